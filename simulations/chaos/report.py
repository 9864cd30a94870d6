"""How a chaos run is told: the faults by kind, the run in numbers, what was expected, the verdicts.

Only form. What counts as right is in ``command`` (the expectations), ``stage/proof`` and the audit.
"""

from __future__ import annotations

import resource
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Iterable

from rich import box
from rich.table import Table
from rich.text import Text

from simulations.chaos.director import Director, Done
from simulations.chaos.figures import Figures
from simulations.chaos.plan import KINDS
from simulations.demo.cast import CLIENT_HISTORIES, STORE
from simulations.demo.screen import Screen


def show_faults(director: Director, screen: Screen) -> None:
    """How many of each kind were planned and brought about."""
    planned = Counter(fault.kind for fault in director.plan.faults)
    injected = director.injected()
    table = _table("faults")
    for name in ("planned", "brought about", "missed"):
        table.add_column(name, justify="right")
    for kind in KINDS:
        if planned[kind]:
            _add(table, kind, planned[kind], injected[kind], planned[kind] - injected[kind])
    total, done = len(director.plan.faults), sum(injected.values())
    _add(table, "together", total, done, total - done)
    _print(table, screen)


def show_figures(figures: Figures, screen: Screen, room: dict[str, float]) -> None:
    """The run in numbers."""
    table = _table("the run, by journal and histories")
    table.add_column("", justify="right")
    for name, value in _figures(figures).items():
        _add(table, name, value)
    for name, amount in room.items():
        _add(table, f"{name}, MB", f"{amount:,.0f}")
    _print(table, screen)


def _figures(found: Figures) -> dict[str, Any]:
    return {
        "messages published": found.published,
        "sent again for want of an answer, dropped": found.duplicates_dropped,
        "published again under their ids, dropped": found.copies_dropped,
        "handled (the subscribers' word)": found.handled,
        "acknowledged (the journal's)": found.acknowledged,
        "handler failed": found.failed,
        "parked": found.parked,
        "handed out": found.handed_out,
        "handed out again": found.handed_out_again,
        "handed out late (an older timestamp)": found.late,
        "taken back unsettled, by reason": _told(found.reassigned),
        "subscribers gone, by reason": _told(found.subscribers_left),
        "stale acks": found.stale_acks,
        "restarts of the broker": found.broker_restarts,
        "longest stop of handling, s": found.longest_stop_handling_s,
        "longest stop of publishing, s": found.longest_stop_publishing_s,
        "journal records": found.records,
    }


def peak_mb(whose: int) -> float:
    """The most memory of this process (RUSAGE_SELF), or of any child that has ended, in MB.

    A child counts what its parent had when it was forked: ask for the children before the judge,
    who needs more than all of them, has been at work here.
    """
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return resource.getrusage(whose).ru_maxrss * unit / 1e6


def room_taken(folder: Path, cluster_peak_mb: float) -> dict[str, float]:
    """What a run took of the disk and, at most, of memory, in MB (millions of bytes)."""
    return {
        "store on disk": _size(folder.glob(STORE + "*")),
        "histories on disk": _size((folder / CLIENT_HISTORIES).glob("*")),
        "logs on disk": _size(folder.glob("*.log")),
        "memory of the largest process of the cluster": cluster_peak_mb,
        "memory of the judge": peak_mb(resource.RUSAGE_SELF),
    }


def _size(paths: Iterable[Path]) -> float:
    return sum(path.stat().st_size for path in paths) / 1e6


def to_dict(done: Done) -> dict[str, Any]:
    """A fault as it came, as plain values."""
    fault = done.fault
    return {
        "number": fault.number, "planned_at_s": fault.at_s, "at_s": done.at_s, "kind": fault.kind,
        "target": fault.target, "span_s": fault.span_s, "text": done.text, "missed": done.missed,
    }  # fmt: skip


def _table(title: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        show_edge=False, pad_edge=False,
    )  # fmt: skip
    table.add_column("")
    return table


def _add(table: Table, name: str, *values: Any) -> None:
    shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
    table.add_row(Text(name), *map(Text, shown))


def _print(table: Table, screen: Screen) -> None:
    screen.console.print()
    screen.console.print(table)


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in sorted(counts.items())) or "none"
