"""Topics: what a put costs with many subscribers that are away, and how fast put and get are.

A real broker in a process of its own, real Pyro5, real SQLite. The subscribers that are away are
real subscriptions in the journal; nobody gets. Everything is measured in turns in one run, and the
figure is the median with the spread beside it; what counts are the ratios.

    python benchmarks/topics.py [--quick] [--json] [--repeat 5] [--durability flush]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402
from rich.table import Table  # noqa: E402

from broker.pyro_setup import Proxy, invoke  # noqa: E402
from broker.remote.name_server import NameServer  # noqa: E402
from broker.server.service import Service, Settings  # noqa: E402
from topics import Topics  # noqa: E402

BODY = b"x" * 100
BATCH = 100
DEADLINE_S = 120.0


def serve(settings: Settings, ready: Any, stop: Any) -> None:
    """The broker's process."""
    service = Service(settings).start()
    ready.put((service.names.host, service.names.port, os.getpid()))
    stop.wait(DEADLINE_S * 10)
    service.close()


class Broker:
    """A broker that runs, and the object that all topics are reached by."""

    def __init__(self, directory: Path, durability: Any) -> None:
        context = mp.get_context("spawn")
        ready, self._stop = context.Queue(), context.Event()
        settings = Settings(
            store=str(directory / "store.db"), durability=durability, name_server_port=0
        )
        self._process = context.Process(target=serve, args=(settings, ready, self._stop))
        self._process.start()
        host, port, self.pid = ready.get(timeout=DEADLINE_S)
        self.name_server = f"{host}:{port}"
        self.topics = Proxy(NameServer(host, port, timeout_s=5.0).lookup("fairlead.topics"))

    def call(self, verb: str, *arguments: Any) -> Any:
        """A plain remote call."""
        return invoke(self.topics, verb, *arguments)

    def resident_bytes(self) -> int:
        """What its process has in memory now."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """End it."""
        self.topics._pyroRelease()
        self._stop.set()
        self._process.join(20)


@contextmanager
def broker(durability: str) -> Iterator[Broker]:
    """A broker on a store of its own."""
    with tempfile.TemporaryDirectory(prefix="fairlead-topics-") as directory:
        made = Broker(Path(directory), durability)
        try:
            yield made
        finally:
            made.close()


def rate(action: Callable[[], int], messages: int) -> float:
    """How many per second, for so many: what is put for who is away stays, and needs memory."""
    began = time.perf_counter()
    count = 0
    while count < messages:
        count += action()
    return count / (time.perf_counter() - began)


def absent(running: Broker, counts: list[int], tick: Callable[[], None]) -> dict[int, float]:
    """One topic for each number of subscribers; bytes of memory per subscriber."""
    memory: dict[int, float] = {}
    for count in counts:
        before = running.resident_bytes()
        for number in range(count):
            running.call("subscribe", f"absent-{count}", f"client-{number}")
        memory[count] = (running.resident_bytes() - before) / count
        tick()
    return memory


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything, in turns."""
    quick = arguments.quick
    counts = [1, 100] if quick else [1, 100, 10_000]
    many = [1, 20] if quick else [1, 100, 1_000]
    calls = 20 if quick else 500
    repeat = 2 if quick else arguments.repeat
    samples: dict[str, list[float]] = {}
    with broker(arguments.durability) as running, tempfile.TemporaryDirectory() as states:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("topics", total=len(counts) + repeat)
            memory = absent(running, counts, lambda: progress.advance(task))
            client = Topics("bench", states, name_server=running.name_server, timeout_s=10.0)
            for topics in many:
                for number in range(topics):
                    running.call("create", f"of-{topics}-{number}")
            client.subscribe("gets")
            for _ in range(repeat):
                _one_turn(running, client, counts, many, calls, samples)
                progress.advance(task)
            client.close()
    return {
        "durability": arguments.durability, "cores": os.cpu_count(), "repeat": repeat,
        "bytes_per_absent_subscriber": {str(key): round(value) for key, value in memory.items()},
        "rates": {
            name: {
                "median": round(statistics.median(values)), "low": round(min(values)),
                "high": round(max(values)),
            }
            for name, values in samples.items()
        },
        "ratios": _ratios(samples, counts, many),
    }  # fmt: skip


def _one_turn(
    running: Broker,
    client: Topics,
    counts: list[int],
    many: list[int],
    calls: int,
    samples: dict[str, list[float]],
) -> None:
    bodies = [BODY] * BATCH

    def note(name: str, action: Callable[[], int], messages: int = calls * BATCH) -> None:
        samples.setdefault(name, []).append(rate(action, messages))

    def put(topic: str) -> int:
        running.call("put_bodies", topic, "publisher", "", None, 0, bodies)
        return BATCH

    for count in counts:
        note(f"put, {count} absent", lambda topic=f"absent-{count}": put(topic))
    for topics in many:
        turn = iter(range(10**9))
        note(
            f"put, over {topics} topics",
            lambda topics=topics, turn=turn: put(f"of-{topics}-{next(turn) % topics}"),
        )
    note("client: put of 1", lambda: client.put("gets", BODY) and 1, calls)
    note("client: put of 100", lambda: client.put_many("gets", bodies) and BATCH)
    note("client: get of 1", lambda: len(client.get_many("gets", 1)) or _refill(client), calls)
    note("client: get of 100", lambda: len(client.get_many("gets", BATCH)) or _refill(client))


def _refill(client: Topics) -> int:
    """Nothing is left to get; what this costs counts against the gets."""
    client.put_many("gets", [BODY] * BATCH)
    return 0


def _ratios(
    samples: dict[str, list[float]], counts: list[int], many: list[int]
) -> dict[str, float]:
    median = {name: statistics.median(values) for name, values in samples.items()}
    found = {
        f"put with {count} absent subscribers to 1": median[f"put, {count} absent"]
        / median["put, 1 absent"]
        for count in counts[1:]
    }
    for topics in many[1:]:
        name = f"put over {topics} topics to 1"
        found[name] = median[f"put, over {topics} topics"] / median["put, over 1 topics"]
    found["client: put of 100 to put of 1"] = (
        median["client: put of 100"] / median["client: put of 1"]
    )
    return {name: round(value, 2) for name, value in found.items()}


def show(result: dict[str, Any]) -> None:
    """Tables for people."""
    console = Console()
    table = Table("messages per second", "median", "lowest", "highest")
    for name, row in result["rates"].items():
        table.add_row(name, *(f"{row[key]:,}" for key in ("median", "low", "high")))
    console.print(table)
    ratios = Table("ratio", "")
    for name, value in result["ratios"].items():
        ratios.add_row(name, f"{value:.2f}")
    console.print(ratios)
    for count, size in result["bytes_per_absent_subscriber"].items():
        console.print(f"memory per absent subscriber, of {count}: {size:,} bytes")


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few and short: only to see it run")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    parser.add_argument("--repeat", type=int, default=5, help="turns of everything (default 5)")
    parser.add_argument("--durability", choices=("fsync", "flush"), default="flush")
    arguments = parser.parse_args()
    result = measure(arguments)
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)


if __name__ == "__main__":
    main()
