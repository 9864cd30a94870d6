"""How the Spark audit grows with the journal: time, processor and memory for several sizes.

Makes the journals with ``benchmarks.journals`` (or takes those that are there), runs ``fairlead
audit STORE --json`` on each as a child process, and watches its whole tree: the driver, the JVM and
the Python workers. Prints one JSON object; ``--plot`` draws it. What may not live here: what the
audit checks.

    python -m benchmarks.audit --sizes 1e6,1e7,1e8 [--json FILE] [--plot FILE.svg]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.journals import Shape, generate_with_bar, whole  # noqa: E402
from benchmarks.log_plot import Panel, draw  # noqa: E402
from benchmarks.process_tree import Cost, measure  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 3_600.0
KEYS = ("verdict", "records", "messages", "partitions")

Row = dict[str, Any]


class AuditFailed(Exception):
    """An audit did not give the answer that an honest journal must get."""


def prepare(directory: Path, shape: Shape) -> Row:
    """The store of this shape, made if it is not there; what its maker said of it.

    That is kept beside the store: to count a store anew would read all of it, and warm the cache.
    """
    mark = f"{shape.messages:.0e}".replace("e+0", "e").replace("e+", "e")
    store = directory / f"journal-{mark}-runs{shape.runs}-seed{shape.seed}.db"
    notes = store.with_suffix(".json")
    if store.exists() and notes.exists():
        known: Row = json.loads(notes.read_text())
        if known["shape"] == asdict(shape) and store.stat().st_size >= known["store_bytes"]:
            return known
        raise AuditFailed(f"{store} is another journal than the one asked for; remove it")
    if store.exists():
        raise AuditFailed(f"{store} is there without its notes {notes.name}; remove it")
    made = {**generate_with_bar(store, shape), "shape": asdict(shape)}
    notes.write_text(json.dumps(made, indent=2))
    return made


def let_go_of(store: Path) -> None:
    """Ask the system to forget the file, so that an audit reads it from the disk."""
    with open(store, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def audit(command: list[str], made: Row, timeout_s: float, cold: bool) -> Row:
    """One measured audit of one store; raises AuditFailed unless it is whole and valid."""
    store = Path(made["store"])
    if cold:
        let_go_of(store)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": path}
    cost = measure([*command, str(store), "--json"], timeout_s, env)
    answer = _answer(cost, store)
    row = {
        "messages": made["messages"],
        "records": made["records"],
        "partitions": made["partitions"],
        "store_bytes": made["store_bytes"],
        "verdict": answer["verdict"],
        "seconds": round(cost.seconds, 3),
        "cpu_seconds": round(cost.cpu_seconds, 3),
        "messages_per_second": round(made["messages"] / cost.seconds),
        "records_per_second": round(made["records"] / cost.seconds),
        "peak_memory_bytes": cost.memory_bytes,
        "peak_resident_bytes": cost.resident_bytes,
        "processes_max": cost.processes,
        "samples": cost.samples,
    }
    _compare(answer, made, store)
    return row


def _answer(cost: Cost, store: Path) -> Row:
    """What the audit printed: a JSON object with at least ``KEYS``."""
    try:
        answer = json.loads(cost.out)
        missing = [key for key in KEYS if key not in answer]
    except (ValueError, TypeError):
        answer, missing = {}, list(KEYS)
    if cost.code or missing:
        tail = "\n".join((cost.error or cost.out).splitlines()[-20:])
        raise AuditFailed(
            f"the audit of {store} ended with code {cost.code}, its answer lacks "
            f"{', '.join(missing) or 'nothing'}; it said:\n{tail}"
        )
    return dict(answer)


def _compare(answer: Row, made: Row, store: Path) -> None:
    """An audit that saw less than there is would be quick and worth nothing."""
    # Messages that were dropped by their ids are counted or not, as the audit sees it.
    expected = {
        "verdict": ("valid",),
        "records": (made["records"],),
        "messages": (made["messages"], made["messages_kept"]),
        "partitions": (made["partitions"],),
    }
    wrong = [
        f"{key} is {answer[key]!r}, not {' or '.join(map(repr, right))}"
        for key, right in expected.items()
        if answer[key] not in right
    ]
    if wrong:
        raise AuditFailed(f"the audit of {store} is wrong: {'; '.join(wrong)}")


def growth(rows: list[Row]) -> list[Row]:
    """From each size to the next: how much larger, longer, more memory; 1.0 is proportion."""
    found = []
    for small, large in zip(rows, rows[1:]):
        size = large["messages"] / small["messages"]
        time_ratio = large["seconds"] / small["seconds"]
        found.append(
            {
                "from_messages": small["messages"],
                "to_messages": large["messages"],
                "size_ratio": round(size, 3),
                "time_ratio": round(time_ratio, 3),
                "time_per_size": round(time_ratio / size, 3),
                "time_exponent": round(math.log(time_ratio) / math.log(size), 3),
                "memory_ratio": round(large["peak_memory_bytes"] / small["peak_memory_bytes"], 3),
            }
        )
    return found


def plot(result: Row) -> str:
    """The rows as a picture: seconds and peak memory over messages, both axes logarithmic."""
    rows = result["rows"]
    return draw(
        "The audit over the size of the journal",
        "messages",
        f"{result['cores']} cores, Python {result['python']}; memory of the whole process tree",
        [
            Panel("seconds", [(r["messages"], r["seconds"]) for r in rows], _seconds, True),
            Panel("peak memory", [(r["messages"], r["peak_memory_bytes"]) for r in rows], _bytes),
        ],
    )


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.3g} s"


def _bytes(value: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def sizes(text: str) -> list[int]:
    """Sizes as 1e6,1e7: rising."""
    found = [whole(item) for item in text.split(",")]
    if not all(found) or found != sorted(set(found)):
        raise argparse.ArgumentTypeError(f"{text}: sizes are given once each, smallest first")
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument("--sizes", type=sizes, default=[10**6, 10**7], help="default 1e6,1e7")
    parser.add_argument(
        "--stores", type=Path, default=Path(tempfile.gettempdir()) / "fairlead-journals",
        help="the folder of the journals; those that are there are used again",
    )  # fmt: skip
    parser.add_argument("--interleaved", action="store_true", help="runs of one message")
    parser.add_argument("--seed", type=whole, default=1)
    parser.add_argument("--cold", action="store_true", help="read each journal from the disk")
    parser.add_argument("--repeat", type=int, default=1, help="the median time of so many counts")
    parser.add_argument("--timeout-s", type=float, default=TIMEOUT_S)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here, too")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    # For the tests of this file: what to run instead of the audit.
    parser.add_argument("--command", help=argparse.SUPPRESS)
    return parser.parse_args()


def run(options: argparse.Namespace) -> Row:
    """All measurements, the small ones first."""
    own = [sys.executable, "-m", "fairlead", "audit"]
    command = shlex.split(options.command) if options.command else own
    options.stores.mkdir(parents=True, exist_ok=True)
    rows = []
    for messages in options.sizes:
        runs = Shape().batch if options.interleaved else Shape().runs
        made = prepare(options.stores, Shape(messages, runs=runs, seed=options.seed))
        turns = [
            audit(command, made, options.timeout_s, options.cold)
            for _ in range(max(1, options.repeat))
        ]
        turns.sort(key=lambda row: float(row["seconds"]))
        spread = [turns[0]["seconds"], turns[-1]["seconds"]]
        rows.append({**turns[len(turns) // 2], "spread": spread})
        print(json.dumps(rows[-1]), file=sys.stderr)
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "cold": options.cold,
        "repeat": options.repeat,
        "rows": rows,
        "growth": growth(rows),
    }


def main() -> None:
    """The command line; exits with 1 when an audit failed or saw something else than there is."""
    options = _options()
    try:
        result = run(options)
    except (AuditFailed, TimeoutError) as error:
        sys.exit(f"audit benchmark: {error}")
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    if options.plot:
        options.plot.write_text(plot(result))


if __name__ == "__main__":
    main()
