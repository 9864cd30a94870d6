"""How messages come in: fencing, gaps, duplicates, limits. Each decision, then its apply."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from broker.core.commands import Decision, OpenPublisher, Publish
from broker.core.message import BODY, EXTRAS, Entry
from broker.core.partition import Partition
from broker.core.records import DuplicatesDropped, Published, PublisherOpened, Record
from broker.errors import PublisherFenced

if TYPE_CHECKING:
    from broker.core.channel import Channel


def decide_open_publisher(channel: Channel, command: OpenPublisher, now_ms: int) -> Decision:
    """A new epoch for a publisher id; ``known`` tells the caller whether sequences may exist."""
    epoch = channel.publisher_epochs.get(command.publisher, 0) + 1
    known = bool(channel.backup.publishers.get(command.publisher))
    return Decision(
        [PublisherOpened(now_ms, command.publisher, epoch)], {"epoch": epoch, "known": known}
    )


def apply_publisher_opened(channel: Channel, record: PublisherOpened) -> None:
    """From now on only this epoch may publish under the id."""
    channel.publisher_epochs[record.publisher] = record.epoch


def decide_publish(channel: Channel, command: Publish, now_ms: int) -> Decision:
    """Accept what is next, drop what is known, refuse what is ahead or does not fit.

    The reply has ``accepted``, ``duplicates`` and ``refused`` (messages), ``room`` (what would
    still fit) and, only when not everything was accepted, ``runs``: per run [through from the
    front, duplicates among them, reason why the rest was refused or None, expected sequence,
    duplicates by sequence], and ``known``: the indexes in the batch of duplicates by id.
    """
    channel.refuse_without_queues()
    current = channel.publisher_epochs.get(command.publisher, 0)
    if command.epoch is not None and command.epoch != current:
        raise PublisherFenced(
            f"publisher {command.publisher} with epoch {command.epoch} may not publish to channel "
            f"{channel.name}: epoch {current} was opened after it; stop this publisher, or open "
            "it again to take over",
            epoch=current,
        )
    partitions = channel.backup.publishers.get(command.publisher) or {}
    found = [partitions.get(name) for name in command.partitions]
    for partition, first in zip(found, command.firsts):
        if first != (1 if partition is None else partition.next_sequence):
            break
    else:
        room, room_bytes = channel.room()
        fits = len(command.entries) <= room and command.size <= room_bytes
        new_count = found.count(None)
        if fits and not command.ids and not (new_count and _over(channel, new_count)):
            record = Published(
                now_ms, command.publisher, current, command.partitions, command.firsts,
                command.counts, [], command.size, command.priority, False, command.entries, found,
                command.columns,
            )  # fmt: skip
            accepted = len(command.entries)
            return Decision(
                [record],
                {"accepted": accepted, "duplicates": 0, "refused": 0, "room": room - accepted},
            )
    return _decide_run_by_run(channel, command, found, current, now_ms)


def _over(channel: Channel, new_count: int) -> bool:
    return channel.backup.partition_count + new_count > channel.policy.partition_count_max


class _Sorting:
    """The careful way through a batch: run by run, when not everything is plainly next."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.room, self.room_bytes = channel.room()
        self.partitions_left = (
            channel.policy.partition_count_max - channel.backup.partition_count
        )
        self.ids: set[str] = set()
        self.kept = 0
        self.dropped: list[int] = []
        self.entries: list[Entry] = []
        self.known: list[int] = []  # indexes in the whole batch of messages with known ids
        self.used = 0  # sequences used up so far in the accepted part of the batch

    def take(self, entries: list[Entry], start: int) -> tuple[int, int]:
        """How many of a run's new entries can be taken, and how many of those have known ids.

        ``start`` is the index of the first of them in the whole batch.
        """
        taken = known = 0
        for entry in entries:
            extras = entry[EXTRAS]
            message_id = extras.get("id") if extras else None
            if message_id is not None and (
                message_id in self.ids or message_id in self.channel.delivered_ids
            ):
                self.dropped.append(self.used)
                self.known.append(start + taken)
                known += 1
            else:
                if self.room < 1 or self.room_bytes < len(entry[BODY]):
                    break
                self.room -= 1
                self.room_bytes -= len(entry[BODY])
                if message_id is not None:
                    self.ids.add(message_id)
                self.entries.append(entry)
            self.used += 1
            taken += 1
        return taken, known


def _decide_run_by_run(
    channel: Channel,
    command: Publish,
    found: list[Partition | None],
    epoch: int,
    now_ms: int,
) -> Decision:
    sorting = _Sorting(channel)
    names: list[str] = []
    firsts: list[int] = []
    counts: list[int] = []
    lines: list[Partition | None] = []
    repeated = DuplicatesDropped(now_ms, command.publisher, [], [], [])
    runs: list[list[Any]] = []
    starts = [0, *accumulate(command.counts)]
    for index, partition in enumerate(found):
        name, first, count = command.partitions[index], command.firsts[index], command.counts[index]
        expected = 1 if partition is None else partition.next_sequence
        if first > expected:
            runs.append([0, 0, "gap", expected, 0])
            continue
        if partition is None and sorting.partitions_left < 1:
            runs.append([0, 0, "partition-limit", expected, 0])
            continue
        again = min(count, expected - first)
        if again:
            repeated.partitions.append(name)
            repeated.firsts.append(first)
            repeated.counts.append(again)
        start = starts[index] + again
        taken, known = sorting.take(command.entries[start : starts[index + 1]], start)
        if taken:
            names.append(name)
            firsts.append(first + again)
            counts.append(taken)
            lines.append(partition)
            sorting.partitions_left -= partition is None
        reason = None if again + taken == count else "full"
        runs.append([again + taken, again + known, reason, first + again + taken, again])
    records: list[Record] = []
    if repeated.counts:
        records.append(repeated)
    if names:
        records.append(
            Published(
                now_ms, command.publisher, epoch, names, firsts, counts, sorting.dropped,
                sum([len(entry[BODY]) for entry in sorting.entries]), command.priority,
                command.ids, sorting.entries, lines,
            )
        )  # fmt: skip
    return Decision(records, _reply(command, runs, sorting))


def _reply(command: Publish, runs: list[list[Any]], sorting: _Sorting) -> dict[str, Any]:
    through = sum(run[0] for run in runs)
    duplicates = sum(run[1] for run in runs)
    reply: dict[str, Any] = {
        "accepted": through - duplicates,
        "duplicates": duplicates,
        "refused": len(command.entries) - through,
        "room": sorting.room,
    }
    if duplicates or through < len(command.entries):
        reply["runs"] = runs
        reply["known"] = sorting.known
        reply["limit"] = sorting.channel.policy.pending_count_max
        reply["retry_after_ms"] = sorting.channel.policy.send_backoff_ms
    return reply


def apply_published(channel: Channel, record: Published) -> None:
    """Append every run to the lines of its partition and make the lines ready."""
    lines: list[Partition | None] = record.lines
    entries = record.entries
    if lines is None:
        partitions = channel.backup.publishers.get(record.publisher) or {}
        lines = [partitions.get(name) for name in record.partitions]
    kept = _kept_counts(record) if record.dropped else record.counts
    at_ms, urgent = record.at_ms, record.priority > 0
    start = 0
    for partition, name, first, count, keep in zip(
        lines, record.partitions, record.firsts, record.counts, kept
    ):
        if partition is None:
            partition = channel.backup.open_partition(record.publisher, name)
        assert first == partition.next_sequence, (record.publisher, name, first)
        partition.next_sequence = first + count
        if not keep:
            for line in partition.lines:
                line.irregular = bool(line.messages)
            continue
        run = entries[start : start + keep]
        start += keep
        for line in partition.lines:
            messages = line.messages
            if keep == 1 and (not messages or messages[-1] < run[0]):
                messages.append(run[0])  # what Line.add would do, for the most frequent case
            else:
                line.add(run)
            if keep != count:
                line.irregular = True
            if urgent:
                line.add_urgent(run)
            owner = line.owner
            if owner is None:
                if not line.parked:
                    line.subscription.queue.add(line, at_ms)
            elif not line.recalled:
                owner.note_hunger(line)
    for subscription in channel.subscriptions_list:
        subscription.pending_count += len(entries)
        subscription.pending_bytes += record.size
    channel.published_total += len(entries)
    channel.published_bytes_total += record.size
    if record.dropped:
        channel.duplicates_total += len(record.dropped)
    if record.ids:
        extras = [entry[EXTRAS] or {} for entry in entries]
        channel.delivered_ids.add([extra["id"] for extra in extras if "id" in extra])


def _kept_counts(record: Published) -> list[int]:
    kept = list(record.counts)
    ends = list(accumulate(record.counts))
    run = 0
    for index in record.dropped:
        while index >= ends[run]:
            run += 1
        kept[run] -= 1
    return kept


def apply_duplicates_dropped(channel: Channel, record: DuplicatesDropped) -> None:
    """Nothing happens to the queues; it is only counted."""
    channel.duplicates_total += sum(record.counts)
