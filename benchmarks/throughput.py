"""Throughput of a whole channel against a bare Pyro5 relay, on real processes, in one run.

One publisher, two subscribers, 100-byte bodies, every message handled by a handler and
acknowledged, each kind measured several times in turns; the figure is the median. The relay is the
least that Pyro5 can do: a publish call that forwards the same batch by one ``receive`` call to one
of two subscribers, no logic, no journal, no acks. Prints one JSON object.

    python benchmarks/throughput.py [--quick] [--batch 100] [--repeat 3] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from broker.pyro_setup import Proxy, configure, invoke  # noqa: E402
from broker.remote.daemon import FairleadDaemon  # noqa: E402
from broker.remote.exposed import remote  # noqa: E402
from broker.server.service import Service, Settings  # noqa: E402
from publisher import Publisher  # noqa: E402
from subscriber import Subscriber  # noqa: E402

BODY = b"x" * 100
DEADLINE_S = 300.0


# The bare relay.


class RelayEnd:
    """A subscriber of the relay: takes the batch and answers."""

    @remote
    def receive(self, batch: list[bytes]) -> int:
        return len(batch)


class Relay:
    """Forwards each batch to the next of its subscribers."""

    def __init__(self, uris: list[str]) -> None:
        self._uris = uris
        self._proxies: list[Any] = []
        self._turn = 0

    @remote
    def publish(self, batch: list[bytes]) -> int:
        if not self._proxies:
            self._proxies = [Proxy(uri) for uri in self._uris]
        self._turn = (self._turn + 1) % len(self._proxies)
        return invoke(self._proxies[self._turn], "receive", batch)  # type: ignore[no-any-return]


def serve_object(make: Callable[[], Any], out: Any, stop: Any) -> None:
    configure()
    daemon = FairleadDaemon(name="relay", pool_size=8)
    out.put(str(daemon.register(make())))
    daemon.start()
    stop.wait(DEADLINE_S)
    daemon.close()


def make_relay(uris: list[str]) -> Relay:
    return Relay(uris)


def relay_publisher(uri: str, count: int, batch: int, out: Any) -> None:
    configure()
    with Proxy(uri) as proxy:
        bodies = [BODY] * batch
        invoke(proxy, "publish", bodies)
        began = time.perf_counter()
        for _ in range(count // batch):
            invoke(proxy, "publish", bodies)
        out.put(time.perf_counter() - began)


def measure_relay(count: int, batch: int) -> float:
    """Messages per second through the relay."""
    from functools import partial

    context = mp.get_context("spawn")
    out, stop = context.Queue(), context.Event()
    processes = []
    uris = []
    for _ in range(2):
        processes.append(context.Process(target=serve_object, args=(RelayEnd, out, stop)))
        processes[-1].start()
        uris.append(out.get(timeout=30))
    processes.append(
        context.Process(target=serve_object, args=(partial(make_relay, uris), out, stop))
    )
    processes[-1].start()
    uri = out.get(timeout=30)
    client = context.Process(target=relay_publisher, args=(uri, count, batch, out))
    client.start()
    seconds = out.get(timeout=DEADLINE_S)
    stop.set()
    for process in [client, *processes]:
        process.join(10)
    return count / seconds


# Fairlead.


def serve_broker(durability: str, store: str, out: Any, stop: Any) -> None:
    service = Service(
        Settings(store=store, durability=durability, name_server_port=0, channels=["bench"])  # type: ignore[arg-type]
    ).start()
    out.put(f"127.0.0.1:{service.names.port}")
    stop.wait(DEADLINE_S)
    service.close()


def run_subscriber(
    name: str, names: str, prefetch: int, history: str | None, out: Any, stop: Any
) -> None:
    handled = [0]
    worker = Subscriber(name, "bench", name_server=names, prefetch=prefetch, history=history)

    @worker.handler
    def handle(message: Any) -> None:
        handled[0] += 1

    worker.start()
    out.put("ready")
    stop.wait(DEADLINE_S)
    worker.close()


def run_publisher(
    names: str, count: int, batch: int, partitions: int, api: str, history: str | None,
    go: Any, out: Any,
) -> None:  # fmt: skip
    keys = [f"customer-{i}" for i in range(partitions)]
    bodies = [BODY] * batch
    plan = [
        [keys[(start + i) % partitions] for i in range(batch)]
        for start in range(0, min(count, max(partitions, batch) * 4), batch)
    ]
    with Publisher(
        "bench", "bench", name_server=names, batch_count_max=batch, history=history
    ) as publisher:
        out.put("ready")
        go.wait(DEADLINE_S)
        for index in range(count // batch):
            chosen = plan[index % len(plan)]
            if api == "many":
                publisher.publish_many(bodies, chosen)
            else:
                for body, key in zip(bodies, chosen):
                    publisher.publish(body, key)
        publisher.flush(DEADLINE_S)


def measure_fairlead(
    count: int, batch: int, durability: str, partitions: int, api: str = "many",
    prefetch: int = 4_000, histories: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Messages per second from the first publish to the last acknowledgement."""
    context = mp.get_context("spawn")
    out, stop, go = context.Queue(), context.Event(), context.Event()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "bench.db")
        history = os.path.join(folder, "histories") if histories else None
        broker = context.Process(target=serve_broker, args=(durability, store, out, stop))
        broker.start()
        names = out.get(timeout=30)
        workers = [
            context.Process(
                target=run_subscriber, args=(f"w{i}", names, prefetch, history, out, stop)
            )
            for i in range(2)
        ]
        publisher = context.Process(
            target=run_publisher, args=(names, count, batch, partitions, api, history, go, out)
        )
        for process in [*workers, publisher]:
            process.start()
        for _ in range(3):
            out.get(timeout=30)
        configure()
        from broker.remote.lookup import ChannelAddress

        with Proxy(ChannelAddress("bench", names, 10.0).uri()) as proxy:
            began = time.perf_counter()
            go.set()
            group: dict[str, Any] = {}
            while time.perf_counter() - began < DEADLINE_S:
                group = invoke(proxy, "statistics")["subscriptions"]["default"]
                if group["acked_total"] >= count:
                    break
                time.sleep(0.02)
            seconds = time.perf_counter() - began
        publisher.join(30)
        stop.set()
        for process in [*workers, broker]:
            process.join(20)
    if group["acked_total"] != count:
        raise SystemExit(f"only {group['acked_total']} of {count} messages were acknowledged")
    return {"rate": count / seconds, "redelivered": group["redelivered_total"]}


def cpu_of_children_s() -> float:
    """User and system time of all processes that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shares_by_turn(found: list[float], base: list[float]) -> dict[str, Any]:
    """What was found against the base of the same turn: the median, and every turn."""
    shares = [round(one / other, 3) for one, other in zip(found, base)]
    return {"median": round(statistics.median(shares), 3), "turns": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="messages per measurement")
    parser.add_argument("--batch", type=int, default=100, help="messages per publish call")
    parser.add_argument("--repeat", type=int, default=3, help="measurements of each kind")
    parser.add_argument("--quick", action="store_true", help="one short measurement of each kind")
    parser.add_argument("--only", help="measure only the kinds of these names, a,b,c")
    parser.add_argument("--out", help="also write the JSON object to this file")
    options = parser.parse_args()
    if options.quick:
        options.count, options.repeat = 60_000, 1
    count, batch = options.count, options.batch
    kinds: dict[str, Callable[[], float]] = {
        "relay": lambda: measure_relay(count, batch),
        "flush": lambda: measure_fairlead(count, batch, "flush", 16)["rate"],
        "flush_again": lambda: measure_fairlead(count, batch, "flush", 16)["rate"],
        "flush_histories": lambda: measure_fairlead(count, batch, "flush", 16, histories=True)[
            "rate"
        ],
        "fsync": lambda: measure_fairlead(count, batch, "fsync", 16)["rate"],
        "flush_one_by_one": lambda: measure_fairlead(count, batch, "flush", 16, "one")["rate"],
        "flush_1000_partitions": lambda: measure_fairlead(count, batch, "flush", 1_000)["rate"],
        "flush_100000_partitions": lambda: measure_fairlead(count, batch, "flush", 100_000)["rate"],
    }
    wanted = options.only.split(",") if options.only else list(kinds)
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    costs: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(options.repeat):
        # Another one begins each time: what runs first, or behind a certain other, has no favour.
        first = turn % len(wanted)
        for name in wanted[first:] + wanted[:first]:
            before = cpu_of_children_s()
            rates[name].append(kinds[name]())
            costs[name].append((cpu_of_children_s() - before) / count * 1e6)
            print(f"{turn + 1}/{options.repeat} {name}: {rates[name][-1]:,.0f}/s", file=sys.stderr)
    medians = {name: statistics.median(found) for name, found in rates.items() if found}
    result = {
        "batch": batch,
        "messages": count,
        "body_bytes": len(BODY),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "messages_per_second": {name: round(rate) for name, rate in medians.items()},
        "cpu_us_per_message": {
            name: round(statistics.median(found), 3) for name, found in costs.items() if found
        },
        "spread": {
            name: [round(min(found)), round(max(found))] for name, found in rates.items() if found
        },
    }
    if "relay" in medians:
        result["against_relay"] = {
            name: round(medians[name] / medians["relay"], 3)
            for name in ("flush", "fsync", "flush_one_by_one")
            if name in medians
        }
    if rates["flush"]:
        # Each turn by itself: both were measured within the same minute.
        result["against_flush_by_turn"] = {
            name: {
                "rate": shares_by_turn(rates[name], rates["flush"]),
                "cpu": shares_by_turn(costs[name], costs["flush"]),
            }
            for name in ("flush_again", "flush_histories")
            if rates[name]
        }
    if "flush" in medians:
        result["against_16_partitions"] = {
            name: round(medians[name] / medians["flush"], 3)
            for name in ("flush_1000_partitions", "flush_100000_partitions")
            if name in medians
        }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        Path(options.out).write_text(text + "\n")


if __name__ == "__main__":
    main()
