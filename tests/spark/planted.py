"""A good journal, good histories of it, and one fault at a time put into them. No test lives here.

The journal is what the real core decides in a short story that has a bit of everything. A plant is
a function that changes its list of records (or the histories) so that exactly one promise is
broken. The records are encoded afterwards, so the store is whole: only what it tells is wrong.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable
from zlib import crc32

from broker.core import commands as c
from broker.core import records as r
from broker.core.message import PartitionKey
from broker.journal.codec import CHECKSUM, CHECKSUM_START, COLUMNS, encode
from broker.journal.sqlite_schema import create
from tests.builders import Driven, publish_command

Records = list[Any]
Plant = Callable[[Records], Records]
Line = dict[str, Any]

#: Timestamps rise with the story, so that only the partition "late" is late.
_STAMP = 1_000_000


def good(channel: str = "orders", drained: bool = False) -> Records:
    """The records of a run in which every promise was kept."""
    driven = Driven(channel, attempts_max=2, backoff_ms=1)
    driven.do(c.OpenPublisher("p"))
    driven.do(c.CreateSubscription("audit"))
    for name in ("a", "b"):
        driven.subscribe(name, prefetch=8)
    story = _Story(driven)
    story.publish("plain", 4)
    story.publish("skip", 3)
    story.publish("pair", 4)
    story.handle_all()
    story.duplicates("plain")
    story.nack_once("retried")
    story.crash("crashed")
    story.poison("poison")
    story.late("late")
    story.dropped_id("named")
    driven.do(c.KillQueues())
    driven.do(c.RestoreQueues())
    driven.do(c.DeleteSubscription("audit"))
    story.publish("order", 3, stamps=[10, 20, 30])
    story.handle_all()
    if not drained:
        story.publish("open", 2)
        driven.dispatch()
        story.publish("tail", 2, dispatch=False)
    return deepcopy(driven.records)


def nobody_there() -> Records:
    """What is published to no subscription is owed to nobody, also when the queues are counted."""
    driven = Driven("nobody")
    driven.subscribe("a")
    driven.publish("k", b"1")
    _Story(driven).handle_all()
    driven.do(c.Leave("default", "a", "a-1"))
    driven.do(c.DeleteSubscription("default"))
    driven.publish("k", b"2")
    driven.do(c.KillQueues())
    driven.do(c.RestoreQueues())
    return deepcopy(driven.records)


def late_behind_parked() -> Records:
    """A message is late behind one that was parked; that one is redriven afterwards."""
    driven = Driven("late", attempts_max=1)
    driven.subscribe("a")
    story = _Story(driven)
    driven.publish("k", b"1", timestamps=[1_000])
    _, delivered = story.give()
    driven.do(c.Nack("default", "a", "a-1", delivered.epochs[0], 1, "bad"))
    driven.publish("k", b"2", timestamps=[500])
    story.handle_all()
    driven.do(c.Redrive("default"))
    story.handle_all()
    return deepcopy(driven.records)


class _Story:
    """What publisher p and the subscribers a and b do."""

    def __init__(self, driven: Driven) -> None:
        self.driven = driven
        self.stamp = _STAMP

    def publish(
        self, partition: str, count: int, stamps: list[int] | None = None, dispatch: bool = True
    ) -> None:
        self.stamp += 1_000
        self.driven.now_ms += 5
        first = self.driven.channel.next_sequences("p", [partition])[0]
        bodies = [f"{partition} {first + i}".encode() for i in range(count)]
        times: Any = [self.stamp + item for item in stamps] if stamps else self.stamp
        self.driven.do(publish_command("p", {partition: (first, bodies)}, 1, times))

    def handle_all(self, limit: int = 50) -> None:
        for _ in range(limit):
            self.driven.now_ms += 10  # beyond every back-off
            sends = self.driven.dispatch()
            if not sends:
                return
            for subscriber, items in sends.items():
                for send in items:
                    self.ack(subscriber, send.delivered)
        raise AssertionError("the story does not end")

    def ack(self, subscriber: str, delivered: r.Delivered) -> None:
        self.driven.now_ms += 1
        uptos = {
            epoch: first + count - 1
            for epoch, first, count in zip(delivered.epochs, delivered.firsts, delivered.counts)
        }
        session = self.driven.channel.subscriptions["default"].subscribers[subscriber].session
        self.driven.do(c.Ack("default", subscriber, session, list(uptos), list(uptos.values())))

    def give(self) -> tuple[str, r.Delivered]:
        """The one send of a dispatch."""
        self.driven.now_ms += 10
        ((subscriber, (send,)),) = self.driven.dispatch().items()
        return subscriber, send.delivered

    def duplicates(self, partition: str) -> None:
        body = f"{partition} 1".encode()
        self.driven.do(publish_command("p", {partition: (1, [body])}, 1, self.stamp))

    def nack_once(self, partition: str) -> None:
        self.publish(partition, 2)
        subscriber, delivered = self.give()
        self.driven.do(
            c.Nack("default", subscriber, subscriber + "-1", delivered.epochs[0], 1, "once")
        )
        self.handle_all()

    def crash(self, partition: str) -> None:
        self.publish(partition, 3)
        subscriber, _ = self.give()
        self.driven.do(c.Leave("default", subscriber, subscriber + "-1", "crashed"))
        self.handle_all()
        self.driven.subscribe(subscriber, prefetch=8)

    def poison(self, partition: str) -> None:
        self.publish(partition, 2)
        for _ in range(2):
            subscriber, delivered = self.give()
            self.driven.do(
                c.Nack("default", subscriber, subscriber + "-1", delivered.epochs[0], 1, "bad")
            )
        self.handle_all()
        self.driven.do(c.Redrive("default"))
        self.handle_all()

    def late(self, partition: str) -> None:
        self.publish(partition, 2)
        self.handle_all()
        self.publish(partition, 1, stamps=[-500_000])
        self.publish(partition, 1)
        self.handle_all()

    def dropped_id(self, partition: str) -> None:
        for first in (1, 2):
            self.driven.do(
                publish_command("p", {partition: (first, [b"named"])}, 1, self.stamp, ids=["one"])
            )
        self.publish(partition, 1)
        self.handle_all()


# Finding and changing records.


def delivered_of(records: Records, partition: str, nth: int = 0) -> r.Delivered:
    """The nth Delivered record that has a run of this partition."""
    found = [
        item
        for item in records
        if isinstance(item, r.Delivered) and any(key.partition == partition for key in item.keys)
    ]
    return found[nth]


def run_of(record: Any, partition: str) -> int:
    """The index of the partition's run in a record."""
    return [key.partition for key in record.keys].index(partition)


def epoch_max(records: Records) -> int:
    """The newest epoch of the journal."""
    return max(max(item.epochs) for item in records if isinstance(item, r.Delivered))


def give(
    records: Records, subscriber: str, partition: str, runs: list[tuple[int, int, int]],
    epoch: int | None = None, attempt: int = 1,
) -> r.Delivered:  # fmt: skip
    """A Delivered of runs (first position, first sequence, count) under a new epoch."""
    epoch = epoch_max(records) + 1 if epoch is None else epoch
    return r.Delivered(
        9_000, "default", subscriber, [PartitionKey("p", partition)] * len(runs),
        [first for first, _, _ in runs], [sequence for _, sequence, _ in runs],
        [count for _, _, count in runs], [epoch] * len(runs), [attempt] * len(runs), [],
    )  # fmt: skip


def ack(subscriber: str, partition: str, first: int, count: int, epoch: int) -> r.Acked:
    """An Acked of one run."""
    key = PartitionKey("p", partition)
    return r.Acked(9_000, "default", subscriber, [key], [first], [count], [epoch], [])


def published(partition: str, first: int, count: int, epoch: int = 1) -> r.Published:
    """A Published of one run."""
    entries = [(9_000_000, first + i, 0, 0, b"planted", None) for i in range(count)]
    return r.Published(
        9_000, "p", epoch, [partition], [first], [count], [], 7 * count, 0, False, entries
    )


def holder(records: Records, partition: str) -> tuple[str, int]:
    """Who was given the partition last, under which epoch."""
    last = delivered_of(records, partition, -1)
    return last.subscriber, last.epochs[run_of(last, partition)]


def other(subscriber: str) -> str:
    """The other one of a and b."""
    return "b" if subscriber == "a" else "a"


# One fault each. The partition "open" is in flight at the end, "tail" has never been handed out.


def _gap(records: Records) -> Records:
    return [*records, published("tail", 4, 1)]


def _accepted_twice(records: Records) -> Records:
    return [*records, published("tail", 2, 1)]


def _dropped_unknown(records: Records) -> Records:
    return [*records, r.DuplicatesDropped(9_000, "p", ["tail"], [3], [1])]


def _left_out(records: Records) -> Records:
    """Message 2 of "skip" is passed over; 1 and 3 get positions 1 and 2."""
    given = delivered_of(records, "skip")
    at = run_of(given, "skip")
    epoch = given.epochs[at]
    for name in ("keys", "firsts", "sequences", "counts", "epochs", "attempts"):
        getattr(given, name).insert(at + 1, getattr(given, name)[at])
    given.counts[at : at + 2] = [1, 1]
    given.firsts[at + 1], given.sequences[at + 1] = 2, 3
    for item in records:
        if isinstance(item, r.Acked) and epoch in item.epochs:
            item.counts[item.epochs.index(epoch)] = 2
    return _recount(records, -1)


def _recount(records: Records, change: int) -> Records:
    """Keep what later records count in step with a settled message more or less."""
    for item in records:
        if isinstance(item, (r.QueuesKilled, r.QueuesRestored)):
            item.count -= change
    return records


def _unpublished(records: Records) -> Records:
    return [*records, give(records, "a", "plain", [(5, 5, 1)])]


def _other_message(records: Records) -> Records:
    again = delivered_of(records, "crashed", 1)
    again.sequences[run_of(again, "crashed")] = 2
    return records


def _two_places(records: Records) -> Records:
    """Message 1 of "pair" stands at position 1 and at position 2; 2 keeps its own at 3."""
    return [
        *records, give(records, "a", "fresh", [(1, 1, 1), (2, 1, 1)]),
    ]  # fmt: skip


def _swapped(records: Records) -> Records:
    """2 is handed out before 1, which waited; recorded as late, so that only the order is wrong."""
    given = delivered_of(records, "order")
    at = run_of(given, "order")
    for name in ("keys", "firsts", "sequences", "counts", "epochs", "attempts"):
        value = getattr(given, name)[at]
        getattr(given, name)[at : at + 1] = [value] * 3
    given.counts[at : at + 3] = [1, 1, 1]
    given.firsts[at : at + 3] = [1, 2, 3]
    given.sequences[at : at + 3] = [2, 1, 3]
    given.late = [sum(given.counts[:at]) + 1]
    return records


def _not_late(records: Records) -> Records:
    for item in records:
        if isinstance(item, r.Delivered):
            item.late = []
    return records


def _skipped(records: Records) -> Records:
    return [*records, give(records, "a", "tail", [(2, 2, 1)])]


def _again(records: Records) -> Records:
    subscriber, epoch = holder(records, "open")
    return [*records, give(records, subscriber, "open", [(2, 2, 1)], epoch)]


def _skipped_inside(records: Records) -> Records:
    return [*records, published("tail", 3, 1), give(records, "a", "tail", [(1, 1, 1), (3, 3, 1)])]


def _again_inside(records: Records) -> Records:
    return [*records, give(records, "a", "tail", [(1, 1, 2), (2, 2, 1)])]


def _second_owner(records: Records) -> Records:
    subscriber, _ = holder(records, "open")
    return [*records, give(records, other(subscriber), "open", [(1, 1, 2)])]


def _old_epoch(records: Records) -> Records:
    return [*records, published("plain", 5, 1), give(records, "a", "plain", [(5, 5, 1)], 1)]


def _stranger(records: Records) -> Records:
    return [*records, give(records, "ghost", "tail", [(1, 1, 1)])]


def _stolen_ack(records: Records) -> Records:
    subscriber, epoch = holder(records, "open")
    return [*records, ack(other(subscriber), "open", 1, 1, epoch)]


def _ack_beyond(records: Records) -> Records:
    subscriber, epoch = holder(records, "open")
    return [*records, ack(subscriber, "open", 1, 3, epoch)]


def _stolen_nack(records: Records) -> Records:
    subscriber, epoch = holder(records, "open")
    key = PartitionKey("p", "open")
    stale = r.Nacked(9_000, "default", subscriber, key, 1, epoch - 1, 1, 9_000, "stale")
    return [*records, stale]


def _resurrected(records: Records) -> Records:
    return [*records, give(records, "a", "plain", [(4, 4, 1)])]


def _settled_twice(records: Records) -> Records:
    subscriber, epoch = holder(records, "open")
    return [
        *records, ack(subscriber, "open", 1, 1, epoch), ack(subscriber, "open", 1, 1, epoch)
    ]  # fmt: skip


def _attempt_lost(records: Records) -> Records:
    again = delivered_of(records, "retried", 1)
    again.attempts[run_of(again, "retried")] = 1
    return records


def _one_too_many(records: Records) -> Records:
    subscriber, epoch = holder(records, "open")
    key = PartitionKey("p", "open")
    nack = [r.Nacked(9_000, "default", subscriber, key, 1, epoch, 1, 9_000, "x")]
    more = [*records, *nack, give(records, "a", "open", [(1, 1, 1)], attempt=2)]
    new = epoch_max(more)
    nack2 = r.Nacked(9_000, "default", "a", key, 1, new, 2, 9_000, "x")
    return [*more, nack2, give(more, "a", "open", [(1, 1, 1)], attempt=3)]


def _parked_in_flight(records: Records) -> Records:
    key = PartitionKey("p", "open")
    return [*records, r.Parked(9_000, "default", key, 1, 1, "message", "planted")]


def _handed_out_though_parked(records: Records) -> Records:
    subscriber, epoch = holder(records, "open")
    key = PartitionKey("p", "open")
    return [
        *records,
        r.Nacked(9_000, "default", subscriber, key, 1, epoch, 1, 9_000, "x"),
        r.Parked(9_000, "default", key, 1, 1, "partition", "planted"),
        give(records, "a", "open", [(1, 1, 1)], attempt=2),
    ]


def _parked_unfailed(records: Records) -> Records:
    key = PartitionKey("p", "tail")
    return [*records, r.Parked(9_000, "default", key, 1, 1, "message", "planted")]


def _nacked_as_another(records: Records) -> Records:
    subscriber, epoch = holder(records, "open")
    key = PartitionKey("p", "open")
    return [*records, r.Nacked(9_000, "default", subscriber, key, 1, epoch, 2, 9_000, "x")]


def _redriven_unparked(records: Records) -> Records:
    return [*records, r.Redriven(9_000, "default", PartitionKey("p", "plain"), [1], False)]


def _old_member(records: Records) -> Records:
    """The subscription is made anew; who was subscribed to the old one is given something."""
    gone = [
        r.SubscriptionDeleted(9_000, "default", 4), r.SubscriptionCreated(9_000, "default"),
        published("new", 1, 1),
    ]  # fmt: skip
    return [*records, *gone, give(records, "a", "new", [(1, 1, 1)])]


def _taken_from_stranger(records: Records) -> Records:
    subscriber, epoch = holder(records, "open")
    key = PartitionKey("p", "open")
    return [
        *records,
        r.Reassigned(9_000, "default", other(subscriber), [key], [1], [2], [epoch], "crash"),
    ]


def _miscounted(records: Records) -> Records:
    for item in records:
        if isinstance(item, r.QueuesKilled):
            item.count += 1
    return records


def _miscounted_delete(records: Records) -> Records:
    for item in records:
        if isinstance(item, r.SubscriptionDeleted):
            item.count -= 1
    return records


def _fenced(records: Records) -> Records:
    return [*records, r.PublisherOpened(9_000, "p", 2), published("tail", 3, 1, epoch=1)]


def _id_twice(records: Records) -> Records:
    entry = (9_000_000, 3, 0, 0, b"planted", {"id": "one"})
    return [
        *records, r.Published(9_000, "p", 1, ["tail"], [3], [1], [], 7, 0, True, [entry])
    ]  # fmt: skip


def _fresh_pair(records: Records) -> Records:
    return _two_places([*records, published("fresh", 1, 2)])


JOURNAL_PLANTS: dict[str, tuple[str, Plant]] = {
    "gap": ("publisher-gap", _gap),
    "accepted-twice": ("duplicate", _accepted_twice),
    "id-twice": ("duplicate", _id_twice),
    "two-places": ("duplicate", _fresh_pair),
    "dropped-unknown": ("lost-write", _dropped_unknown),
    "left-out": ("lost-write", _left_out),
    "unpublished": ("unexpected", _unpublished),
    "other-message": ("inconsistent-offsets", _other_message),
    "swapped": ("nonmonotonic-send", _swapped),
    "not-late": ("late-unrecorded", _not_late),
    "skipped": ("poll-skip", _skipped),
    "again": ("nonmonotonic-poll", _again),
    "skipped-inside": ("int-poll-skip", _skipped_inside),
    "again-inside": ("int-nonmonotonic-poll", _again_inside),
    "second-owner": ("single-owner", _second_owner),
    "old-epoch": ("single-owner", _old_epoch),
    "stranger": ("delivery-within-ownership", _stranger),
    "stolen-ack": ("fenced-ack", _stolen_ack),
    "ack-beyond": ("fenced-ack", _ack_beyond),
    "stolen-nack": ("fenced-ack", _stolen_nack),
    "resurrected": ("no-resurrection", _resurrected),
    "settled-twice": ("no-resurrection", _settled_twice),
    "attempt-lost": ("delivery-limit", _attempt_lost),
    "one-too-many": ("delivery-limit", _one_too_many),
    "parked-in-flight": ("delivery-limit", _parked_in_flight),
    "handed-out-though-parked": ("delivery-limit", _handed_out_though_parked),
    "parked-unfailed": ("delivery-limit", _parked_unfailed),
    "nacked-as-another": ("delivery-limit", _nacked_as_another),
    "redriven-unparked": ("no-resurrection", _redriven_unparked),
    "old-member": ("delivery-within-ownership", _old_member),
    "taken-from-stranger": ("reassign-causality", _taken_from_stranger),
    "miscounted": ("conservation", _miscounted),
    "miscounted-delete": ("conservation", _miscounted_delete),
    "fenced": ("producer-fencing", _fenced),
}
"""Channel -> (the anomaly it must be found by, the change)."""


# Histories.


def good_histories(records: Records, channel: str) -> dict[str, list[Line]]:
    """What the clients of these records would have written, by file; lines without numbers."""
    files: dict[str, list[Line]] = defaultdict(list)
    publisher = {"client": "publisher", "name": "p", "session": "1", "channel": channel}
    files["p"].append({**publisher, "event": "opened", "epoch": 1})
    sequence_at: dict[tuple[str, int, int], int] = {}
    for sequence, item in enumerate(records, 1):
        if isinstance(item, r.Published):
            call = len(files["p"])
            runs = {"partitions": item.partitions, "firsts": item.firsts, "counts": item.counts}
            crc = crc32(b"".join(entry[4] for entry in item.entries))
            files["p"] += [
                {**publisher, "event": "tried", "epoch": 1, "call": call, **runs, "crc": crc,
                 "resent": False},
                {**publisher, "event": "answered", "call": call, "record": sequence, **runs,
                 "duplicates": 0},
            ]  # fmt: skip
        elif isinstance(item, r.Subscribed):
            files[item.subscriber].append(_told(channel, item.subscriber, "opened"))
        elif isinstance(item, r.Delivered):
            files[item.subscriber] += _started(channel, item, sequence_at)
        elif isinstance(item, r.Acked):
            files[item.subscriber].append(_finished(channel, item, sequence_at))
    # A subscriber that came back under the same session has one history here.
    for name in ("a", "b"):
        first = files[name][0]
        files[name] = [first, *[item for item in files[name][1:] if item["event"] != "opened"]]
    return dict(files)


def _told(channel: str, subscriber: str, event: str, **more: Any) -> Line:
    return {
        "client": "subscriber", "name": subscriber, "session": subscriber + "-1",
        "channel": channel, "subscription": "default", "event": event, **more,
    }  # fmt: skip


def _started(
    channel: str, item: r.Delivered, sequence_at: dict[tuple[str, int, int], int]
) -> list[Line]:
    lines = []
    columns = zip(item.keys, item.firsts, item.sequences, item.counts, item.epochs, item.attempts)
    for key, first, sequence, count, epoch, attempt in columns:
        for offset in range(count):
            sequence_at[(item.subscriber, epoch, first + offset)] = sequence + offset
        lines.append(
            _told(
                channel, item.subscriber, "started", publisher=key.publisher,
                partition=key.partition, epoch=epoch, position=first, sequence=sequence,
                attempt=attempt,
            )
        )  # fmt: skip
    return lines


def _finished(
    channel: str, item: r.Acked, sequence_at: dict[tuple[str, int, int], int]
) -> Line:
    sums = [
        sum(sequence_at[(item.subscriber, epoch, first + offset)] for offset in range(count))
        for first, count, epoch in zip(item.firsts, item.counts, item.epochs)
    ]
    return _told(
        channel, item.subscriber, "finished", epochs=item.epochs, firsts=item.firsts,
        counts=item.counts, sequence_sums=sums,
    )  # fmt: skip


Histories = dict[str, list[Line]]


def _last(lines: list[Line], event: str) -> int:
    return max(index for index, line in enumerate(lines) if line["event"] == event)


def _told_but_missing(files: Histories) -> Histories:
    line = dict(files["p"][_last(files["p"], "answered")])
    line.update(call=900, partitions=["plain"], firsts=[5], counts=[2])
    files["p"] += [{**line, "event": "tried", "epoch": 1, "crc": 1, "resent": False}, line]
    return files


def _never_tried(files: Histories) -> Histories:
    del files["p"][_last(files["p"], "tried") :]
    return files


def _other_bodies(files: Histories) -> Histories:
    files["p"][_last(files["p"], "tried")]["crc"] += 1
    return files


def _only_refused(files: Histories) -> Histories:
    at = _last(files["p"], "answered")
    line = files["p"][at]
    files["p"][at] = {**line, "event": "refused", "reason": "channel-full"}
    return files


def _never_given(files: Histories) -> Histories:
    line = files["a"][_last(files["a"], "started")]
    files["a"].append({**line, "position": line["position"] + 50})
    return files


def _not_his(files: Histories) -> Histories:
    line = files["a"][_last(files["a"], "started")]
    files["b"].append({**line, "name": "b", "session": "b-1"})
    return files


def _handled_twice(files: Histories) -> Histories:
    files["a"].append(dict(files["a"][_last(files["a"], "finished")]))
    return files


def _other_sequences(files: Histories) -> Histories:
    line = files["b"][_last(files["b"], "finished")]
    line["sequence_sums"] = [item + 1 for item in line["sequence_sums"]]
    return files


def _never_finished(files: Histories) -> Histories:
    del files["b"][_last(files["b"], "finished")]
    return files


def _hole(files: Histories) -> Histories:
    """Positions 1 to 3 of "order" were acknowledged; 2 was not finished."""
    line = files["b"][_last(files["b"], "finished")]
    line.update(epochs=line["epochs"] * 2, firsts=[1, 3], counts=[1, 1], sequence_sums=[1, 3])
    return files


def _other_runs(files: Histories) -> Histories:
    """The same bodies were tried, but not all of them for this partition."""
    line = files["p"][_last(files["p"], "tried")]
    line.update(partitions=["order", "other"], firsts=[1, 1], counts=[2, 1])
    return files


HISTORY_PLANTS: dict[str, tuple[str, Callable[[Histories], Histories]]] = {
    "told-but-missing": ("lost-write", _told_but_missing),
    "never-tried": ("unexpected", _never_tried),
    "other-bodies": ("unexpected", _other_bodies),
    "only-refused": ("aborted-read", _only_refused),
    "never-given": ("unexpected", _never_given),
    "not-his": ("unexpected", _not_his),
    "handled-twice": ("duplicate", _handled_twice),
    "other-sequences": ("inconsistent-offsets", _other_sequences),
    "never-finished": ("unseen", _never_finished),
    "hole": ("unseen", _hole),
    "other-runs": ("unexpected", _other_runs),
}
"""Channel -> (the anomaly it must be found by, the change to good histories)."""


# Writing.


def write_store(path: Path, channels: dict[str, Records]) -> None:
    """A whole store with these channels: every row encoded by the codec, the chain unbroken."""
    create(str(path))
    insert = f"INSERT INTO records VALUES ({', '.join('?' * len(COLUMNS))})"
    with closing(sqlite3.connect(path)) as connection:
        for channel, records in channels.items():
            previous = CHECKSUM_START
            for sequence, record in enumerate(records, 1):
                row = encode(channel, sequence, _plain(record, channel), previous)
                previous = row[CHECKSUM]
                connection.execute(insert, row)
        connection.commit()


def _plain(record: Any, channel: str) -> Any:
    for name in ("lines", "columns"):
        if hasattr(record, name):
            record = replace(record, **{name: None})
    return replace(record, name=channel) if isinstance(record, r.ChannelCreated) else record


def write_histories(folder: Path, files: Histories, channel: str) -> None:
    """Each client's lines as a file, numbered."""
    folder.mkdir(exist_ok=True)
    for name, lines in files.items():
        numbered = [{**line, "n": n, "at_us": n} for n, line in enumerate(lines)]
        text = "".join(json.dumps(line) + "\n" for line in numbered)
        (folder / f"{channel}-{name}.jsonl").write_text(text)
