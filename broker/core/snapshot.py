"""The whole state of a channel as built-in values, and a channel made from them again. Pure.

A channel is the fold of its records. When the oldest records have been archived and trimmed, the
fold starts from a snapshot instead; so a snapshot holds everything that any later decision can
depend on, the order of each queue included, and the bodies of pending and parked messages. How it
is packed and kept is the journal's business.

Lines are named by the number of their partition in the order of the backup queue, sub-queues by
their number among the subscribers, messages by their sequence in their partition: a message that
several subscriptions still need is in the snapshot once.

A line remembers whom it was given to last, and whom to avoid, also when that subscriber has left.
Such a sub-queue is never chosen again and only its name can be seen: it is kept as that name.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, TypeAlias

from broker.core.channel import Channel
from broker.core.global_queue import GlobalQueue
from broker.core.message import SEQUENCE, Entry, PartitionKey
from broker.core.partition import Line, Partition
from broker.core.policy import Policy
from broker.core.sub_queue import SubQueue
from broker.core.subscription import ParkedMessage, Subscription

#: Changes with the meaning of the state; :func:`load` refuses what it does not know.
VERSION = 2
#: Version 1 did not say when a subscriber had joined.
VERSIONS = (1, 2)

CHANNEL_FIELDS = (
    "epoch", "queues_down", "published_total", "published_bytes_total", "duplicates_total",
)  # fmt: skip
SUBSCRIPTION_FIELDS = ("born_ms", "pending_count", "pending_bytes")
SUB_QUEUE_FIELDS = (
    "prefetch", "callback", "can_recall", "unsettled", "away", "progress_ms", "given", "seen_ms",
    "delivered_total", "acked_total", "joined",
)  # fmt: skip
FIELDS_1 = len(SUB_QUEUE_FIELDS) - 1  # how many there were in version 1
LINE_FIELDS = (
    "settled", "delivered", "handed", "epoch", "recalled", "parked", "attempt", "later_attempt",
    "suspect_upto", "trial", "later_trial", "last_timestamp", "irregular", "level", "since_ms",
    "not_before_ms",
)  # fmt: skip
LINE_QUEUES = ("owner", "previous", "avoid")

State: TypeAlias = dict[str, Any]
# A line's number in the order of the backup queue.
_Numbers: TypeAlias = dict[Line, int]


def dump(channel: Channel) -> State:
    """The complete state of ``channel`` as built-in values. Changes nothing."""
    parked: dict[PartitionKey, list[Entry]] = {}
    for group in channel.subscriptions_list:
        for (key, _), message in group.parked.items():
            parked.setdefault(key, []).append(message.entry)
    return {
        "version": VERSION,
        "policy": channel.policy.to_dict(),
        "channel": [getattr(channel, name) for name in CHANNEL_FIELDS],
        "publisher_epochs": dict(channel.publisher_epochs),
        "delivered_ids": list(channel.delivered_ids),
        "publishers": [
            [publisher, [_dump_partition(item, parked) for item in partitions.values()]]
            for publisher, partitions in channel.backup.publishers.items()
        ],
        "subscriptions": [_dump_group(channel, group) for group in channel.subscriptions_list],
    }


def load(name: str, state: State) -> Channel:
    """The channel whose :func:`dump` is ``state``. Raises ValueError for another version."""
    if state["version"] not in VERSIONS:
        raise ValueError(f"a snapshot of version {state['version']!r}, {VERSION} was expected")
    channel = Channel(name, Policy.from_dict(state["policy"]))
    for field, value in zip(CHANNEL_FIELDS, state["channel"], strict=True):
        setattr(channel, field, value)
    channel.publisher_epochs = dict(state["publisher_epochs"])
    channel.delivered_ids.add(state["delivered_ids"])
    for index, saved in enumerate(state["subscriptions"]):
        group = Subscription(saved["name"], index, channel.policy.ageing_ms, 0)
        channel.subscriptions[group.name] = group
        channel.backup.add_subscription(group)
    messages: list[dict[int, Entry]] = []
    for publisher, partitions in state["publishers"]:
        channel.backup.partitions_of(publisher)
        for partition_id, next_sequence, entries in partitions:
            partition = channel.backup.open_partition(publisher, partition_id)
            partition.next_sequence = next_sequence
            messages.append({entry[SEQUENCE]: tuple(entry) for entry in entries})
    for group, saved in zip(channel.subscriptions_list, state["subscriptions"]):
        _load_group(channel, group, saved, messages)
    return channel


def _dump_partition(partition: Partition, parked: dict[PartitionKey, list[Entry]]) -> list[Any]:
    entries = {entry[SEQUENCE]: entry for entry in parked.get(partition.key, ())}
    for line in partition.lines:
        for entry in line.messages[line.head :]:
            entries[entry[SEQUENCE]] = entry
    return [partition.key.partition, partition.next_sequence, [list(e) for e in entries.values()]]


def _dump_group(channel: Channel, group: Subscription) -> State:
    lines = list(channel.backup.lines(group))
    numbers = {line: number for number, line in enumerate(lines)}
    by_key = {line.key: number for line, number in numbers.items()}
    refer = _referrer(group)
    return {
        "name": group.name,
        "fields": [getattr(group, name) for name in SUBSCRIPTION_FIELDS],
        "totals": {name: getattr(group.totals, name) for name in group.totals.__slots__}
        | {"handovers": dict(group.totals.handovers)},
        "lines": [_dump_line(line, refer) for line in lines],
        "subscribers": [_dump_sub_queue(queue, numbers) for queue in group.subscribers.values()],
        "queue": _dump_queue(group.queue, numbers),
        "parked": [
            [by_key[key], position, item.entry[SEQUENCE], item.attempt, item.reason, item.at_ms]
            for (key, position), item in group.parked.items()
        ],
        "parked_partitions": [
            [by_key[key], reason] for key, reason in group.parked_partitions.items()
        ],
    }


def _load_group(
    channel: Channel, group: Subscription, saved: State, messages: list[dict[int, Entry]]
) -> None:
    lines = list(channel.backup.lines(group))
    for field, value in zip(SUBSCRIPTION_FIELDS, saved["fields"], strict=True):
        setattr(group, field, value)
    for field in group.totals.__slots__:
        setattr(group.totals, field, saved["totals"][field])
    group.totals.handovers = dict(group.totals.handovers)
    for values in saved["subscribers"]:
        queue = _load_sub_queue(values, lines)
        group.subscribers[queue.subscriber] = queue
    find = _finder(group)
    for line, values, entries in zip(lines, saved["lines"], messages, strict=True):
        _load_line(line, values, entries, find)
    # After the lines: the delayed ones are sorted by what stands in them.
    _load_queue(group.queue, saved["queue"], lines)
    for number, position, sequence, attempt, reason, at_ms in saved["parked"]:
        entry = messages[number][sequence]
        group.parked[(lines[number].key, position)] = ParkedMessage(entry, attempt, reason, at_ms)
    for number, reason in saved["parked_partitions"]:
        group.parked_partitions[lines[number].key] = reason


def _referrer(group: Subscription) -> Callable[[SubQueue | None], Any]:
    """How a line refers to a sub-queue: by number, or by the name of one that has left."""
    numbers = {queue: number for number, queue in enumerate(group.subscribers.values())}

    def refer(queue: SubQueue | None) -> Any:
        return None if queue is None else numbers.get(queue, queue.subscriber)

    return refer


def _finder(group: Subscription) -> Callable[[Any], SubQueue | None]:
    """The opposite of :func:`_referrer`."""
    queues = list(group.subscribers.values())
    gone: dict[str, SubQueue] = {}

    def find(reference: Any) -> SubQueue | None:
        if reference is None:
            return None
        if isinstance(reference, int):
            return queues[reference]
        return gone.setdefault(reference, SubQueue(reference, "", 0, "", False, 0))

    return find


def _dump_line(line: Line, refer: Callable[[SubQueue | None], Any]) -> list[Any]:
    return [
        [getattr(line, name) for name in LINE_FIELDS],
        [refer(getattr(line, name)) for name in LINE_QUEUES],
        None if line.urgent is None else [list(pair) for pair in line.urgent.items()],
        [entry[SEQUENCE] for entry in line.messages[line.head :]],
    ]


def _load_line(
    line: Line,
    values: list[Any],
    entries: dict[int, Entry],
    find: Callable[[Any], SubQueue | None],
) -> None:
    fields, queues, urgent, sequences = values
    for name, value in zip(LINE_FIELDS, fields, strict=True):
        setattr(line, name, value)
    for name, reference in zip(LINE_QUEUES, queues, strict=True):
        setattr(line, name, find(reference))
    line.urgent = None if urgent is None else dict(urgent)
    line.messages = [entries[sequence] for sequence in sequences]


def _dump_sub_queue(queue: SubQueue, numbers: _Numbers) -> State:
    return {
        "subscriber": queue.subscriber,
        "session": queue.session,
        "fields": [getattr(queue, name) for name in SUB_QUEUE_FIELDS],
        "held": [[epoch, numbers[line]] for epoch, line in queue.held.items()],
        "hungry": [numbers[line] for line in queue.hungry],
        "pressing": [numbers[line] for line in queue.pressing],
        "trial": None if queue.trial is None else numbers[queue.trial],
        "long_delays": [list(pair) for pair in queue.long_delays],
    }


def _load_sub_queue(saved: State, lines: list[Line]) -> SubQueue:
    queue = SubQueue(saved["subscriber"], saved["session"], 0, "", False, 0)
    fields = saved["fields"] if len(saved["fields"]) > FIELDS_1 else [*saved["fields"], 0]
    for field, value in zip(SUB_QUEUE_FIELDS, fields, strict=True):
        setattr(queue, field, value)
    queue.held = {epoch: lines[number] for epoch, number in saved["held"]}
    queue.hungry = {lines[number]: None for number in saved["hungry"]}
    queue.pressing = {lines[number]: None for number in saved["pressing"]}
    queue.trial = None if saved["trial"] is None else lines[saved["trial"]]
    queue.long_delays = [(at_ms, delay_ms) for at_ms, delay_ms in saved["long_delays"]]
    return queue


# The global queue offers no way to be set as a whole, and should not: nobody else may do that.


def _dump_queue(queue: GlobalQueue, numbers: _Numbers) -> State:
    return {
        "levels": [
            [-key, [numbers[line] for line in members]] for key, members in queue._levels.items()
        ],
        "delayed": [numbers[line] for line in queue._delayed],
        "trials": [numbers[line] for line in queue._trials],
    }


def _load_queue(queue: GlobalQueue, saved: State, lines: list[Line]) -> None:
    for level, members in saved["levels"]:
        queue._levels[-level] = OrderedDict((lines[number], None) for number in members)
        queue._count += len(members)
        for number in members:
            lines[number].queued_level = level
    # One by one: among equals the order in which they come is kept.
    for number in saved["delayed"]:
        queue._delayed.add(lines[number])
        queue._waiting.add(lines[number])
    for number in saved["trials"]:
        queue._trials[lines[number]] = None
