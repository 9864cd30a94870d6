"""The verdict of the demonstration: the figures of each channel, and each promise as expected and
observed. Everything is computed here from histories and receipts; the broker's own numbers stand
beside them, and must agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from simulations.demo.check import Anomaly, Figures, figures, find_anomalies
from simulations.demo.history import History
from simulations.demo.screen import Screen
from simulations.demo.stage import CHANNELS, CRASHED, POLICY, SLOWED, Stage

ANOMALIES_SHOWN = 5


class Check(NamedTuple):
    """One promise."""

    name: str
    expected: str
    observed: str
    ok: bool


class Row(NamedTuple):
    """One figure of a channel, as its clients saw it and as the broker counted it."""

    name: str
    seen: Any
    broker: Any
    relation: str  # how the two must stand to each other: "=", "<=", or "" (nothing to compare)

    @property
    def ok(self) -> bool:
        """Whether they do."""
        if self.relation == "=":
            return bool(self.seen == self.broker)
        return self.relation == "" or bool(self.seen <= self.broker)


@dataclass
class Report:
    """All that is known at the end."""

    figures: dict[str, Figures]
    rows: dict[str, list[Row]]
    anomalies: dict[str, list[Anomaly]]
    checks: list[Check]

    @property
    def ok(self) -> bool:
        """Whether everything is as promised."""
        return all(check.ok for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for ``--json``."""
        return {
            "ok": self.ok,
            "channels": {
                name: {
                    **self.figures[name].to_dict(),
                    "broker": {
                        row.name: row.broker for row in self.rows[name] if row.broker is not None
                    },
                    "anomalies": [list(anomaly) for anomaly in self.anomalies[name]],
                }
                for name in self.figures
            },
            "checks": [check._asdict() for check in self.checks],
        }


def make(stage: Stage) -> Report:
    """Judge a performance whose processes have ended."""
    histories = {
        channel: [w.history() for w in stage.workers.values() if w.channel == channel]
        for channel in CHANNELS
    }
    found, rows, anomalies = {}, {}, {}
    for channel in CHANNELS:
        told = stage.seen.told[channel]
        anomalies[channel] = find_anomalies(told.accepted, histories[channel])
        found[channel] = figures(
            told, histories[channel], stage.seen.parked[channel],
            POLICY["long_delay_ms"] / 1000, POLICY["long_delays_max"],
        )  # fmt: skip
        rows[channel] = compare(found[channel], stage.seen.statistics[channel])
    checks = [
        *_promises(stage, found, anomalies),
        *_crash(stage, histories),
        *_slow(stage, found),
        _queues(stage),
        _agreement(rows),
        _clean_end(stage),
    ]
    return Report(found, rows, anomalies, checks)


def compare(seen: Figures, statistics: dict[str, Any]) -> list[Row]:
    """The figures beside the broker's.

    Some may differ. A subscriber is not told why it must give messages back, so "slow" and "join"
    are told apart by its delays; only their sum is certain. What was assigned to a
    subscriber that was dead already is "crash" to the broker, but never reached anybody. And a
    publisher that repeats a call whose answer it has not read is no news to its user, but a dropped
    duplicate to the broker.
    """
    group = statistics["subscriptions"]["default"]
    moved, counted = seen.reassigned, group["handover_total"]
    return [
        Row("published (accepted)", seen.published, statistics["published_total"], "="),
        Row("delivered (distinct)", seen.delivered, group["acked_total"], "="),
        Row("duplicates dropped", seen.duplicates_dropped, statistics["dedup_dropped_total"], "<="),
        Row("duplicates handled", seen.duplicates_handled, None, ""),
        Row("reassigned: crash", moved.get("crash", 0), counted.get("crash", 0), "<="),
        Row("reassigned: slow", moved.get("slow", 0), counted.get("slow", 0), ""),
        Row("reassigned: join", moved.get("join", 0), counted.get("join", 0), ""),
        Row("  slow and join", _given_back(moved), _given_back(counted), "="),
        Row("redelivered", seen.redelivered, group["redelivered_total"], "="),
        Row("parked", seen.parked, group["parked_total"], "="),
        Row("in order", "yes" if seen.in_order else "NO", None, ""),
    ]


def _given_back(moved: dict[str, int]) -> int:
    return moved.get("slow", 0) + moved.get("join", 0)


# The promises.


def _promises(
    stage: Stage, found: dict[str, Figures], anomalies: dict[str, list[Anomaly]]
) -> list[Check]:
    told = stage.seen.told

    def count(*kinds: str) -> int:
        return sum(item.kind in kinds for each in anomalies.values() for item in each)

    def none(name: str, kind: str) -> Check:
        return Check(name, "0", str(count(kind)), not count(kind))

    published = sum(item.published for item in found.values())
    delivered = sum(item.delivered for item in found.values())
    sent_again = sum(item.sent_again for item in told.values())
    dropped = sum(item.duplicates for item in told.values())
    errors = [error for item in told.values() for error in item.errors]
    accepted = sum(stage.seen.plain_accepted.values())
    return [
        Check("every publish was accepted", "no error", "; ".join(errors[:2]) or "no error",
              not errors),
        Check("every accepted message was finished by a handler", str(published), str(delivered),
              published == delivered > 0 and not count("lost")),
        none("handled twice although nobody died over it", "duplicate"),
        none("first handlings of a partition out of order", "out-of-order"),
        none("started while another of its partition was running", "overlap"),
        Check("copies sent again were all dropped", str(sent_again), str(dropped),
              sent_again == dropped > 0 and not accepted),
        none("copies, or unknown messages, that reached a handler", "unexpected"),
        Check("messages set aside (parked)", "0", str(sum(i.parked for i in found.values())),
              not any(item.parked for item in found.values())),
    ]  # fmt: skip


def _crash(stage: Stage, histories: dict[str, list[History]]) -> list[Check]:
    """It really was a crash, with work in hand, and another one went on from there."""
    seen, victim = stage.seen, stage.workers[CRASHED]
    epochs = {run.message: run.epoch for run in seen.in_hand}
    retried = [
        run
        for history in histories[victim.channel]
        for run in history.runs
        if history.subscriber != CRASHED
        and run.message in epochs
        and run.attempt > 1
        and run.finish is not None
        and run.epoch > epochs[run.message]
    ]
    observed = f"exit {seen.crash_exit}, {len(epochs)} in hand, {seen.unstarted} in buffer"
    return [
        Check(f"{CRASHED} was killed with work in hand", "exit -9, at least 1 in hand", observed,
              seen.crash_exit == -9 and len(epochs) > 0 and not victim.history().left),
        Check("what it had in hand was tried again by another", str(len(epochs)),
              str(len(retried)), len(retried) == len(epochs)),
    ]  # fmt: skip


def _slow(stage: Stage, found: dict[str, Figures]) -> list[Check]:
    """It really was slow; it lost what it had not started, and nothing else."""
    seen, slow = stage.seen, stage.workers[SLOWED]
    runs = slow.history().longer_than(POLICY["long_delay_ms"] / 1000)
    long = sum(seen.slow_from < run.start < seen.slow_until for run in runs)
    moved = found[slow.channel].reassigned.get("slow", 0)
    after = sum(run.start > seen.slow_until for run in slow.history().runs)
    members = seen.statistics[slow.channel]["subscriptions"]["default"]["subscribers"]
    kept = members.get(SLOWED, {}).get("session") == seen.slow_session
    wanted = POLICY["long_delays_max"]
    return [
        Check(f"{SLOWED} was slow, and its unstarted messages moved",
              f"{wanted} long delays, at least 1 moved", f"{long} long delays, {moved} moved",
              long >= wanted and moved > 0),
        Check(f"{SLOWED} kept its subscription", "the same session, more work",
              f"{'the same' if kept else 'another'} session, {after} messages afterwards",
              kept and after > 0 and slow.history().left),
    ]  # fmt: skip


def _queues(stage: Stage) -> Check:
    sent, accepted = stage.seen.while_down
    return Check(
        "published while the queues were down, and accepted", f"{sent}, at least 1",
        str(accepted), accepted == sent > 0,
    )  # fmt: skip


def _agreement(rows: dict[str, list[Row]]) -> Check:
    wrong = [
        f"{channel}: {row.name} {row.seen}, broker {row.broker}"
        for channel, each in rows.items()
        for row in each
        if not row.ok
    ]
    compared = sum(row.relation != "" for each in rows.values() for row in each)
    agreed = f"{compared - len(wrong)} of {compared}"
    return Check(
        "figures on which the broker agrees", f"{compared} of {compared}",
        "; ".join([agreed, *wrong]), not wrong,
    )  # fmt: skip


def _clean_end(stage: Stage) -> Check:
    codes = {c.name: c.process.returncode for c in stage.children if c.name != CRASHED}
    bad = [f"{name} exit {code}" for name, code in codes.items() if code != 0]
    clean = f"{len(codes) - len(bad)} of {len(codes)}"
    return Check(
        "processes that ended cleanly when asked", f"{len(codes)} of {len(codes)}",
        "; ".join([clean, *bad]), not bad,
    )  # fmt: skip


# How it is shown.


def show(report: Report, screen: Screen) -> None:
    """Print the tables."""
    console = screen.console
    for channel, rows in report.rows.items():
        console.print()
        console.print(_channel_table(channel, rows, screen))
    console.print()
    table = Table(
        title="promises", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        show_edge=False, pad_edge=False,
    )  # fmt: skip
    for name in ("", "promise", "expected", "observed"):
        table.add_column(name, overflow="fold")
    for check in report.checks:
        table.add_row(screen.mark(check.ok), *map(Text, check[:3]))
    console.print(table)
    for channel, anomalies in report.anomalies.items():
        for anomaly in anomalies[:ANOMALIES_SHOWN]:
            console.print(Text(f"{channel}: {anomaly.kind}: {anomaly.text}", style="red"))


def _channel_table(channel: str, rows: list[Row], screen: Screen) -> Table:
    table = Table(
        title=f"channel {channel}", title_justify="left", title_style="bold",
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
    )  # fmt: skip
    table.add_column("figure")
    table.add_column("seen by its clients", justify="right")
    table.add_column("counted by the broker", justify="right")
    table.add_column("")
    for row in rows:
        agreed = screen.mark(row.ok) if row.relation else Text("")
        table.add_row(row.name, _cell(row.seen), _cell(row.broker), agreed)
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
