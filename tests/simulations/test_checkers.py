"""The simulator's checkers: each anomaly by its name alone, and none where there is none.

First literal journals of a few records each, then the journals and histories that were planted with
one fault, then real runs with real faults.
"""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any, Iterable, Mapping
from zlib import crc32

import pytest

from broker.core import records as r
from broker.core.anomalies import ANOMALIES, INVALID, TOPIC_ANOMALIES, UNKNOWN, VALID
from broker.core.message import PartitionKey
from broker.core.policy import Policy
from broker.history import MemoryHistory, read
from broker.journal.sqlite import SqliteJournal
from simulations.checkers import Judge
from tests.spark import faulty_runs, planted

Records = list[Any]
Line = Mapping[str, Any]


def judged(records: Iterable[Any], lines: Iterable[Any] = (), drained: bool = False) -> Judge:
    """A Judge that has seen all of it and finished."""
    judge = Judge()
    for sequence, record in enumerate(records, 1):
        judge.watch(sequence, record)
    for line in lines:
        judge.hear(line)
    judge.finish(drained)
    return judge


def names(judge: Judge) -> set[str]:
    """The names of what it found."""
    return {anomaly.name for anomaly in judge.anomalies}


def said(judge: Judge) -> str:
    """What it found, for a test that fails."""
    return "\n".join(map(str, judge.anomalies))


# Records of the partition "k" of publisher p, in few words.

KEY = PartitionKey("p", "k")
GOOD_START: Records = [
    r.ChannelCreated(1, "c", Policy(attempts_max=2, dedup_window_count_max=2).to_dict()),
    r.SubscriptionCreated(1, "default"),
    r.PublisherOpened(1, "p", 1),
    r.Subscribed(1, "default", "a", "a-1", 8, "", True),
    r.Subscribed(1, "default", "b", "b-1", 8, "", True),
]


def sent(
    first: int, *stamps: int, epoch: int = 1, ids: list[str] | None = None, dropped: int = 0
) -> r.Published:
    """Messages from ``first`` on; ``dropped`` more of them at the end are not kept."""
    extras = [{"id": name} for name in ids] if ids else [None] * len(stamps)
    entries: Any = [
        (stamp, first + index, 0, 0, b"x", extra)
        for index, (stamp, extra) in enumerate(zip(stamps, extras))
    ]
    gone = list(range(len(stamps), len(stamps) + dropped))
    return r.Published(
        2, "p", epoch, ["k"], [first], [len(stamps) + dropped], gone, len(stamps), 0, bool(ids),
        entries,
    )  # fmt: skip


def given(
    subscriber: str, epoch: int, *runs: tuple[int, int, int], attempt: int = 1,
    late: list[int] | None = None,
) -> r.Delivered:  # fmt: skip
    """Runs of (first position, first sequence, count)."""
    firsts, sequences, counts = (list(column) for column in zip(*runs))
    size = len(runs)
    return r.Delivered(
        3, "default", subscriber, [KEY] * size, firsts, sequences, counts, [epoch] * size,
        [attempt] * size, late or [],
    )  # fmt: skip


def acked(subscriber: str, epoch: int, first: int, count: int) -> r.Acked:
    """One run."""
    return r.Acked(4, "default", subscriber, [KEY], [first], [count], [epoch], [])


def nacked(subscriber: str, epoch: int, position: int, attempt: int = 1) -> r.Nacked:
    """One message."""
    return r.Nacked(4, "default", subscriber, KEY, position, epoch, attempt, 5, "bad")


def taken(
    subscriber: str, epoch: int, first: int, count: int, reason: str = "crash"
) -> r.Reassigned:
    """One run."""
    return r.Reassigned(5, "default", subscriber, [KEY], [first], [count], [epoch], reason)


def parked(position: int, attempt: int, scope: str = "message") -> r.Parked:
    """One message, or the partition."""
    return r.Parked(6, "default", KEY, position, attempt, scope, "bad")


def redriven(*positions: int, dropped: bool = False) -> r.Redriven:
    """Messages that were parked."""
    return r.Redriven(7, "default", KEY, list(positions), dropped)


#: Position 1 failed twice and is parked; 2 waits.
POISONED: Records = [
    sent(1, 10, 10),
    given("a", 1, (1, 1, 1)), nacked("a", 1, 1),
    given("a", 2, (1, 1, 1), attempt=2), nacked("a", 2, 1, 2),
    parked(1, 2),
]  # fmt: skip

GOOD: dict[str, Records] = {
    "plain": [sent(1, 10, 10), given("a", 1, (1, 1, 2)), acked("a", 1, 1, 2)],
    "topped up": [
        sent(1, 10, 10, 10), given("a", 1, (1, 1, 1)), given("a", 1, (2, 2, 1)),
        acked("a", 1, 1, 2), given("b", 2, (3, 3, 1)), acked("b", 2, 3, 1),
    ],
    "crash": [
        sent(1, 10, 10), given("a", 1, (1, 1, 2)), taken("a", 1, 1, 2),
        given("b", 2, (1, 1, 1), attempt=2), acked("b", 2, 1, 1),
        given("b", 3, (2, 2, 1), attempt=2), acked("b", 3, 2, 1),
    ],
    "older ones first": [
        sent(1, 30, 10, 20), given("a", 1, (1, 2, 2), (3, 1, 1)), acked("a", 1, 1, 3),
    ],
    "late": [
        sent(1, 30), given("a", 1, (1, 1, 1)), sent(2, 20), given("a", 1, (2, 2, 1), late=[0]),
        acked("a", 1, 1, 2),
    ],
    "late and handed out again": [
        sent(1, 30), given("a", 1, (1, 1, 1)), sent(2, 20), given("a", 1, (2, 2, 1), late=[0]),
        taken("a", 1, 1, 2, "left"), given("b", 2, (1, 1, 2)), acked("b", 2, 1, 2),
    ],
    "known id": [
        sent(1, 10, ids=["i"], dropped=1), given("a", 1, (1, 1, 1)), acked("a", 1, 1, 1),
        sent(3, 10), given("a", 2, (2, 3, 1)), acked("a", 2, 2, 1),
    ],
    "id beyond the window": [
        sent(1, 10, 10, 10, 10, ids=["i", "j", "k", "i"]), given("a", 1, (1, 1, 4)),
        acked("a", 1, 1, 4),
    ],
    "parked after a crash": [
        *POISONED[:4], taken("a", 2, 1, 1), r.SubscriberLeft(8, "default", "a", "a-1", "crashed"),
        parked(1, 2), given("b", 3, (2, 2, 1)), acked("b", 3, 2, 1),
    ],
    "parked and redriven": [
        *POISONED, redriven(1), given("a", 3, (2, 1, 2)), acked("a", 3, 2, 2),
    ],
    "parked and given up": [*POISONED, redriven(1, dropped=True), given("a", 3, (2, 2, 1)),
                            r.QueuesKilled(9, 1), r.QueuesRestored(9, 1), acked("a", 3, 2, 1)],
    "partition parked and given up": [
        *POISONED[:-1], parked(1, 2, "partition"), r.QueuesKilled(9, 2), r.QueuesRestored(9, 2),
        redriven(1, dropped=True), r.QueuesKilled(9, 1), given("b", 3, (2, 2, 1)),
        acked("b", 3, 2, 1),
    ],
    "subscription made anew": [
        sent(1, 10, 10), given("a", 1, (1, 1, 2)), taken("a", 1, 1, 2, "left"),
        r.SubscriberLeft(8, "default", "a", "a-1", "left"),
        r.SubscriptionDeleted(8, "default", 2), r.SubscriptionCreated(8, "default"),
        r.Subscribed(8, "default", "a", "a-2", 8, "", True), sent(3, 10),
        given("a", 2, (1, 3, 1)), acked("a", 2, 1, 1),
    ],
    "fenced publisher": [
        sent(1, 10), r.PublisherOpened(3, "p", 2), sent(2, 10, epoch=2),
        r.DuplicatesDropped(3, "p", ["k"], [1], [2]), given("a", 1, (1, 1, 2)),
        acked("a", 1, 1, 2),
    ],
}  # fmt: skip
"""What is wrong with none of these follows the same five records."""

BAD: dict[str, tuple[str, Records]] = {
    "gap": ("publisher-gap", [sent(1, 10), sent(3, 10), given("a", 1, (1, 1, 1))]),
    "accepted again": ("duplicate", [sent(1, 10, 10), sent(2, 10), given("a", 1, (1, 1, 1))]),
    "id again": (
        "duplicate",
        [sent(1, 10, 10, 10, ids=["i", "j", "i"]), given("a", 1, (1, 1, 3)), acked("a", 1, 1, 3)],
    ),
    "two places": ("duplicate", [sent(1, 10, 10), given("a", 1, (1, 1, 1), (2, 1, 1))]),
    "handed out before it was redriven": (
        "duplicate",
        [*POISONED, given("a", 3, (2, 1, 2)), redriven(1), acked("a", 3, 2, 2)],
    ),
    "dropped though unknown": (
        "lost-write", [sent(1, 10), r.DuplicatesDropped(3, "p", ["k"], [1], [2])]
    ),
    "left out": (
        "lost-write", [sent(1, 10, 10, 10), given("a", 1, (1, 1, 1), (2, 3, 1)),
                       acked("a", 1, 1, 2)],
    ),
    "left out by a subscription that is gone": (
        "lost-write", [sent(1, 10, 10), given("a", 1, (1, 2, 1)), acked("a", 1, 1, 1),
                       r.SubscriptionDeleted(8, "default", 1)],
    ),
    "redriven and left out": (
        "lost-write", [*POISONED, redriven(1), given("a", 3, (2, 2, 1)), acked("a", 3, 2, 1)]
    ),
    "never published": ("unexpected", [sent(1, 10), given("a", 1, (1, 1, 2))]),
    "handed out though dropped": (
        "unexpected",
        [sent(1, 10, ids=["i"], dropped=1), given("a", 1, (1, 1, 2)), acked("a", 1, 1, 2)],
    ),
    "a message of before, when the line was empty in between": (
        "unexpected",
        [*POISONED, redriven(1, dropped=True), given("a", 3, (2, 2, 1)), acked("a", 3, 2, 1),
         sent(3, 10), given("a", 4, (3, 2, 1))],
    ),
    "another message": (
        "inconsistent-offsets",
        [sent(1, 10, 10), given("a", 1, (1, 1, 2)), taken("a", 1, 1, 2, "left"),
         given("b", 2, (1, 2, 1))],
    ),
    "overtaken": (
        "nonmonotonic-send",
        [sent(1, 10, 20), given("a", 1, (1, 2, 1), (2, 1, 1), late=[1]), acked("a", 1, 1, 2)],
    ),
    "redriven and overtaken": (
        "nonmonotonic-send",
        [*POISONED, redriven(1), given("a", 3, (2, 2, 1), (3, 1, 1)), acked("a", 3, 2, 2)],
    ),
    "late and not recorded": (
        "late-unrecorded",
        [sent(1, 30), given("a", 1, (1, 1, 1)), sent(2, 20), given("a", 1, (2, 2, 1))],
    ),
    "recorded and not late": (
        "late-unrecorded", [sent(1, 10, 10), given("a", 1, (1, 1, 2), late=[1])]
    ),
    "late after the line was empty": (
        "late-unrecorded",
        [sent(1, 30), given("a", 1, (1, 1, 1)), acked("a", 1, 1, 1), sent(2, 20),
         given("a", 2, (2, 2, 1))],
    ),
    "skipped": ("poll-skip", [sent(1, 10, 10), given("a", 1, (2, 2, 1))]),
    "again": (
        "nonmonotonic-poll",
        [sent(1, 10, 10), given("a", 1, (1, 1, 2)), given("a", 1, (2, 2, 1))],
    ),
    "skipped inside": (
        "int-poll-skip", [sent(1, 10, 10, 10), given("a", 1, (1, 1, 1), (3, 3, 1))]
    ),
    "again inside": (
        "int-nonmonotonic-poll", [sent(1, 10, 10), given("a", 1, (1, 1, 2), (2, 2, 1))]
    ),
    "second owner": (
        "single-owner",
        [sent(1, 10, 10), given("a", 1, (1, 1, 2)), given("b", 2, (1, 1, 2))],
    ),
    "second epoch": (
        "single-owner",
        [sent(1, 10, 10), given("a", 1, (1, 1, 1)), given("a", 2, (2, 2, 1))],
    ),
    "older epoch": (
        "single-owner",
        [sent(1, 10, 10), given("a", 2, (1, 1, 1)), acked("a", 2, 1, 1), given("b", 1, (2, 2, 1))],
    ),
    "not subscribed": ("delivery-within-ownership", [sent(1, 10), given("ghost", 1, (1, 1, 1))]),
    "not subscribed any more": (
        "delivery-within-ownership",
        [sent(1, 10), r.SubscriberLeft(2, "default", "a", "a-1", "left"), given("a", 1, (1, 1, 1))],
    ),
    "subscribed to a former life": (
        "delivery-within-ownership",
        [r.SubscriptionDeleted(2, "default", 0), r.SubscriptionCreated(2, "default"), sent(1, 10),
         given("a", 1, (1, 1, 1)), acked("a", 1, 1, 1)],
    ),
    "ack of another": (
        "fenced-ack", [sent(1, 10), given("a", 1, (1, 1, 1)), acked("b", 1, 1, 1)]
    ),
    "ack under another epoch": (
        "fenced-ack", [sent(1, 10), given("a", 2, (1, 1, 1)), acked("a", 1, 1, 1)]
    ),
    "ack beyond": ("fenced-ack", [sent(1, 10, 10), given("a", 1, (1, 1, 1)), acked("a", 1, 1, 2)]),
    "ack with a hole": (
        "fenced-ack", [sent(1, 10, 10), given("a", 1, (1, 1, 2)), acked("a", 1, 2, 1)]
    ),
    "nack of what was taken": (
        "fenced-ack",
        [sent(1, 10), given("a", 1, (1, 1, 1)), taken("a", 1, 1, 1), nacked("a", 1, 1)],
    ),
    "settled and handed out": (
        "no-resurrection",
        [sent(1, 10), given("a", 1, (1, 1, 1)), acked("a", 1, 1, 1), given("b", 2, (1, 1, 1))],
    ),
    "settled twice": (
        "no-resurrection",
        [sent(1, 10, 10), given("a", 1, (1, 1, 2)), acked("a", 1, 1, 1), acked("a", 1, 1, 1)],
    ),
    "settled and parked": (
        "no-resurrection",
        [sent(1, 10), given("a", 1, (1, 1, 1)), acked("a", 1, 1, 1), parked(1, 1)],
    ),
    "redriven, not parked": (
        "no-resurrection",
        [sent(1, 10, 10), given("a", 1, (1, 1, 1)), acked("a", 1, 1, 1), redriven(1)],
    ),
    "redriven twice": ("no-resurrection", [*POISONED, redriven(1), redriven(1)]),
    "tried too often": (
        "delivery-limit", [*POISONED[:-1], given("b", 3, (1, 1, 1), attempt=3)]
    ),
    "attempt not counted": (
        "delivery-limit",
        [sent(1, 10), given("a", 1, (1, 1, 1)), nacked("a", 1, 1), given("b", 2, (1, 1, 1))],
    ),
    "attempt out of nothing": (
        "delivery-limit", [sent(1, 10), given("a", 1, (1, 1, 1), attempt=2)]
    ),
    "nacked as another attempt": (
        "delivery-limit", [sent(1, 10), given("a", 1, (1, 1, 1)), nacked("a", 1, 1, 2)]
    ),
    "parked in flight": (
        "delivery-limit", [sent(1, 10), given("a", 1, (1, 1, 1)), parked(1, 1)]
    ),
    "parked as an attempt that has not failed": (
        "delivery-limit",
        [sent(1, 10), given("a", 1, (1, 1, 1)), nacked("a", 1, 1), parked(1, 2)],
    ),
    "parked without a failure": ("delivery-limit", [sent(1, 10), parked(1, 1)]),
    "handed out though its partition is parked": (
        "delivery-limit",
        [sent(1, 10), given("a", 1, (1, 1, 1)), nacked("a", 1, 1), parked(1, 1, "partition"),
         given("a", 2, (1, 1, 1), attempt=2)],
    ),
    "taken from another": (
        "reassign-causality", [sent(1, 10), given("a", 1, (1, 1, 1)), taken("b", 1, 1, 1)]
    ),
    "taken only in part": (
        "reassign-causality", [sent(1, 10, 10), given("a", 1, (1, 1, 2)), taken("a", 1, 1, 1)]
    ),
    "queues miscounted": ("conservation", [sent(1, 10), r.QueuesKilled(3, 2)]),
    "deletion miscounted": ("conservation", [sent(1, 10), r.SubscriptionDeleted(3, "default", 0)]),
    "fenced": (
        "producer-fencing", [sent(1, 10), r.PublisherOpened(3, "p", 2), sent(2, 10, epoch=1)]
    ),
    "epoch opened twice": ("producer-fencing", [r.PublisherOpened(3, "p", 1), sent(1, 10)]),
}  # fmt: skip
"""Case -> (the one name it is to be found by, what follows the five records)."""


@pytest.mark.parametrize("case", GOOD)
def test_a_good_literal_journal_is_valid_and_drained(case: str) -> None:
    judge = judged([*GOOD_START, *GOOD[case]], drained=True)
    assert judge.verdict() == VALID, said(judge)


@pytest.mark.parametrize("case", BAD)
def test_a_literal_fault_is_found_by_its_name_alone(case: str) -> None:
    judge = judged([*GOOD_START, *BAD[case][1]])
    assert names(judge) == {BAD[case][0]}, said(judge)
    assert judge.verdict() == INVALID


@pytest.mark.parametrize("case", BAD)
def test_a_fault_is_reported_with_its_record_when_it_is_watched_or_at_the_end(case: str) -> None:
    judge = Judge()
    records = [*GOOD_START, *BAD[case][1]]
    told = [
        anomaly
        for sequence, record in enumerate(records, 1)
        for anomaly in judge.watch(sequence, record)
    ]
    assert told == judge.anomalies
    for anomaly in judge.finish(drained=False):
        assert len(GOOD_START) < anomaly.sequence <= len(records) and anomaly.text


def test_what_is_left_when_the_run_is_over_is_unseen_and_what_is_parked_is_not() -> None:
    left = [*GOOD_START, sent(1, 10, 10), given("a", 1, (1, 1, 2)), acked("a", 1, 1, 1)]
    assert names(judged(left)) == set()
    assert names(judged(left, drained=True)) == {"unseen"}
    blocked = [*GOOD_START, *POISONED[:-1], parked(1, 2, "partition")]
    assert names(judged(blocked, drained=True)) == set()
    assert names(judged([*blocked, redriven()], drained=True)) == {"unseen"}


def test_what_was_left_out_is_known_when_its_line_starts_anew() -> None:
    twice = [sent(1, 10, 10), given("a", 1, (1, 2, 1), (2, 2, 1)), acked("a", 1, 1, 2)]
    judge = Judge()
    for sequence, record in enumerate([*GOOD_START, *twice], 1):
        judge.watch(sequence, record)
    # As many positions as messages are settled, but 2 was there twice and 1 never.
    assert [item.name for item in judge.anomalies] == ["duplicate"]
    assert [item.name for item in judge.watch(9, sent(3, 10))] == ["lost-write"]


def test_a_line_is_judged_up_to_its_first_fault_and_the_other_lines_to_the_end() -> None:
    other = PartitionKey("p", "other")
    records = [
        *GOOD_START, sent(1, 10, 10), given("a", 1, (2, 2, 1)), given("b", 2, (1, 1, 2)),
        r.Acked(9, "default", "b", [other], [1], [1], [2], []),
    ]  # fmt: skip
    found = [(anomaly.name, anomaly.where) for anomaly in judged(records).anomalies]
    assert found == [("poll-skip", "default p/k"), ("fenced-ack", "default p/other")]


def test_a_missing_record_is_named_and_nothing_after_it_is_judged() -> None:
    judge = Judge()
    records = [*GOOD_START, sent(1, 10), given("a", 1, (1, 1, 1)), acked("b", 9, 1, 1)]
    for sequence, record in enumerate(records, 1):
        if sequence != 6:
            judge.watch(sequence, record)
    assert [(item.name, item.sequence) for item in judge.finish(False)] == [("log-integrity", 6)]
    assert judge.compared["records"] == 5


def test_a_damaged_record_is_named_by_the_word_of_its_store() -> None:
    judge = Judge()
    for sequence, record in enumerate([*GOOD_START, sent(1, 10)], 1):
        judge.watch(sequence, record)
    (found,) = judge.damaged(7, "its checksum is wrong")
    assert (found.name, found.sequence) == ("log-integrity", 7)
    assert judge.watch(7, given("a", 1, (5, 5, 1))) == judge.damaged(8, "this one, too") == []


def test_a_journal_in_which_nothing_was_delivered_proves_nothing() -> None:
    assert judged([]).verdict() == UNKNOWN
    assert judged([*GOOD_START, sent(1, 10)]).verdict() == UNKNOWN


def test_a_history_that_has_lost_lines_proves_nothing() -> None:
    records = planted.good(drained=True)
    lines = numbered(planted.good_histories(records, "orders"))
    assert judged(records, lines, True).verdict() == VALID
    unanswered = [i for i, line in enumerate(lines) if line["event"] == "answered"][3]
    judge = judged(records, lines[:unanswered] + lines[unanswered + 1 :], True)
    assert (judge.verdict(), names(judge)) == (UNKNOWN, set())


def test_it_says_how_much_it_has_compared() -> None:
    records = planted.good(drained=True)
    lines = numbered(planted.good_histories(records, "orders"))
    published = [item for item in records if isinstance(item, r.Published)]
    assert judged(records, lines).compared == {
        "records": len(records), "lines": len(lines),
        "messages": sum(sum(item.counts) for item in published),
        "partitions": len({name for item in published for name in item.partitions}),
    }  # fmt: skip


# Histories.


def numbered(files: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The lines of all clients, each numbered in its own history."""
    return [{**line, "n": n} for lines in files.values() for n, line in enumerate(lines)]


def test_lines_of_a_history_in_memory_are_taken_as_they_are() -> None:
    history = MemoryHistory(
        {"client": "publisher", "name": "p", "session": "1", "channel": "c"}, lambda: 0
    )
    history.append("opened", ',"epoch":1')
    history.append("answered", ',"call":1,"record":6,"partitions":["k"],"firsts":[1],"counts":[2]')
    records = [*GOOD_START, sent(1, 10), given("a", 1, (1, 1, 1))]
    judge = judged(records, history.lines)
    # What was accepted is not in its history, and it was told of more than was accepted.
    assert names(judge) == {"lost-write", "unexpected"}, said(judge)


def test_lines_may_come_before_the_records_they_speak_of() -> None:
    for case, (name, plant) in planted.HISTORY_PLANTS.items():
        records = planted.good(drained=True)
        judge = Judge()
        for line in numbered(plant(planted.good_histories(records, "orders"))):
            assert judge.hear(line) == []
        for sequence, record in enumerate(records, 1):
            assert judge.watch(sequence, record) == []
        assert {item.name for item in judge.finish(True)} == {name}, case


def test_an_answer_is_compared_as_soon_as_its_record_is_known() -> None:
    records = planted.good(drained=True)
    files = planted.HISTORY_PLANTS["told-but-missing"][1](
        planted.good_histories(records, "orders")
    )
    judge = Judge()
    for sequence, record in enumerate(records, 1):
        judge.watch(sequence, record)
    told = [item.name for line in files["p"] for item in judge.hear(line)]
    assert told == ["lost-write"]


def test_a_client_that_went_on_without_its_history_is_not_held_to_it() -> None:
    records = planted.good(drained=True)
    files = planted.good_histories(records, "orders")
    for name in files:
        half = files[name][: len(files[name]) // 2]
        files[name] = [*half, {**half[0], "event": "cut"}]
    judge = judged(records, numbered(files), True)
    assert judge.verdict() == VALID, said(judge)


def _told(event: str, call: int, first: int, bodies: list[bytes]) -> dict[str, Any]:
    """A line of publisher p about one run of "k"."""
    return {
        "client": "publisher", "name": "p", "session": "1", "channel": "c", "event": event,
        "epoch": 1, "call": call, "partitions": ["k"], "firsts": [first], "counts": [len(bodies)],
        "crc": crc32(b"".join(bodies)),
    }  # fmt: skip


#: What a publisher tells of a batch of one message, b"x", that was accepted -> what is wrong.
TOLD: list[tuple[list[dict[str, Any]], set[str]]] = [
    # Two of three were refused; the accepted one goes again under the number of the call.
    ([_told("tried", 1, 1, [b"x", b"y", b"z"]), _told("refused", 1, 2, [b"y", b"z"]),
      _told("tried", 1, 1, [b"x"])], set()),
    # A try of another body was refused; then one of two messages was accepted.
    ([_told("tried", 1, 1, [b"other"]), _told("refused", 1, 1, [b"other"]),
      _told("tried", 2, 1, [b"x", b"y"]), _told("refused", 2, 2, [b"y"])], set()),
    ([_told("tried", 1, 1, [b"other"]), _told("refused", 1, 1, [b"other"])], {"unexpected"}),
    ([_told("tried", 1, 1, [b"x"]), _told("refused", 1, 1, [b"x"])], {"aborted-read"}),
    # One of two sendings has no answer, so it may count.
    ([_told("tried", 1, 1, [b"x"]), _told("refused", 1, 1, [b"x"]),
      _told("tried", 2, 1, [b"x"])], set()),
]  # fmt: skip


@pytest.mark.parametrize("lines, found", TOLD)
def test_an_accepted_batch_is_one_that_was_tried_and_not_only_refused(
    lines: list[dict[str, Any]], found: set[str]
) -> None:
    records = [*GOOD_START, sent(1, 10), given("a", 1, (1, 1, 1)), acked("a", 1, 1, 1)]
    judge = judged(records, [_told("opened", 0, 1, []), *lines], True)
    assert names(judge) == found, said(judge)


# Planted journals and histories.


@pytest.mark.parametrize(
    "make", [planted.good, lambda: planted.good(drained=True), planted.nobody_there,
             planted.late_behind_parked]
)  # fmt: skip
def test_the_good_journals_of_the_audit_are_valid(make: Any) -> None:
    judge = judged(make())
    assert judge.verdict() == VALID, said(judge)


@pytest.mark.parametrize("plant", planted.JOURNAL_PLANTS)
def test_a_planted_fault_in_a_journal_is_found_by_its_name_alone(plant: str) -> None:
    name, change = planted.JOURNAL_PLANTS[plant]
    judge = judged(change(planted.good()))
    assert names(judge) == {name}, said(judge)


@pytest.mark.parametrize("plant", planted.HISTORY_PLANTS)
def test_a_planted_fault_in_the_histories_is_found_by_its_name_alone(plant: str) -> None:
    name, change = planted.HISTORY_PLANTS[plant]
    records = planted.good(drained=True)
    judge = judged(records, numbered(change(planted.good_histories(records, "orders"))), True)
    assert names(judge) == {name}, said(judge)


def test_every_anomaly_is_found_somewhere_here() -> None:
    literal = {name for name, _ in BAD.values()}
    plants = {name for name, _ in (*planted.JOURNAL_PLANTS.values(),
                                   *planted.HISTORY_PLANTS.values())}  # fmt: skip
    of_channels = set(ANOMALIES) - TOPIC_ANOMALIES
    assert literal | {"unseen", "aborted-read", "log-integrity"} == of_channels
    assert plants | {"log-integrity"} == of_channels


# Real runs with real faults.


@cache
def runs_with_faults(directory: Path) -> list[tuple[str, Records, list[Line], bool]]:
    """(channel, records, lines of its clients, drained) of real runs, made once per directory."""
    made = faulty_runs.make(directory, histories=str(directory / "histories"))
    written = itertools.chain.from_iterable(map(read, (directory / "histories").glob("*.jsonl")))
    lines: dict[str, list[Line]] = {}
    for line in written:
        lines.setdefault(line["channel"], []).append(line)
    journal = SqliteJournal(str(made.store))
    try:
        return [
            (facts["name"], [record for _, record in journal.read(facts["name"])],
             lines.get(facts["name"], []), facts["drained"])
            for facts in made.channels
        ]  # fmt: skip
    finally:
        journal.close()


def faulty_directory(factory: pytest.TempPathFactory) -> Path:
    """Where this session makes its real runs: the same for every test file that wants them."""
    directory = factory.getbasetemp() / "simulations-faulty-runs"
    directory.mkdir(exist_ok=True)
    return directory


def test_real_runs_with_real_faults_are_valid(tmp_path_factory: pytest.TempPathFactory) -> None:
    runs = runs_with_faults(faulty_directory(tmp_path_factory))
    assert len(runs) == faulty_runs.CHANNELS
    for name, records, lines, drained in runs:
        judge = judged(records, lines, drained)
        assert judge.verdict() == VALID, f"{name}\n{said(judge)}"
        assert judge.compared["lines"] > 10
