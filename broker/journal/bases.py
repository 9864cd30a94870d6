"""The base of a trimmed channel: where its journal starts now, and the state to start from. Pure.

Records up to ``sequence`` have been archived and may be gone from the store. ``checksum`` is the
chain's at that record, so that what follows is still tied to what was archived; ``state`` is the
packed snapshot of the channel after it. The state checksum covers all of it: a base that was
damaged, moved to another channel or put back in part shows.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

import msgpack  # type: ignore[import-untyped]

from broker.core import snapshot
from broker.core.channel import Channel
from broker.core.message import SEQUENCE
from broker.core.topics import Topic
from broker.core.topics import snapshot as topic_snapshot
from broker.errors import JournalCorrupt, JournalGap, JournalVersion
from broker.journal.codec import CHECKSUM_START

#: A larger state is not stored: it would hold the writer up, and SQLite takes no gigabyte.
STATE_BYTES_MAX = 256 * 1024 * 1024


class Base(NamedTuple):
    """The last trimmed record of a channel, and the channel's state after it."""

    sequence: int
    checksum: int
    state: bytes


#: What the journal of a topic is called, before the topic's name; a channel's name has no colon.
TOPIC_PREFIX = "topic:"

#: Where a channel starts that was never trimmed.
NO_BASE = Base(0, CHECKSUM_START, b"")


def make_base(channel: Channel | Topic, sequence: int, checksum: int) -> Base:
    """The base after record ``sequence``; ``channel`` is the fold of all up to it."""
    if isinstance(channel, Topic):
        state = topic_snapshot.dump(channel, sequence, messages=True)
    else:
        state = snapshot.dump(channel)
    return Base(sequence, checksum, _packed(state))


def make_early_base(topic: Topic, sequence: int, checksum: int, upto: int) -> Base:
    """A topic's base after record ``sequence``, out of its state after the later one ``upto``.

    No message of a record up to ``sequence`` may be owed to anybody.
    """
    return Base(sequence, checksum, _packed(topic_snapshot.dump(topic, upto, messages=False)))


def state_checksum(channel: str, base: Base) -> int:
    """What is stored beside a base to notice damage to it."""
    return crc32(base.state, crc32(msgpack.packb((channel, base.sequence, base.checksum))))


def checked_base(channel: str, values: tuple[Any, ...] | None) -> Base:
    """The base out of the columns of its row; NO_BASE without one. Raises JournalCorrupt."""
    if values is None:
        return NO_BASE
    *fields, stored = values
    base = Base(*fields)
    try:
        found = state_checksum(channel, base)
    except Exception as error:
        raise _damaged(channel, base, f"a column has a wrong type: {error!r}") from error
    if found != stored or base.sequence < 1:
        reason = f"the state checksum does not match: stored {stored!r}, computed {found}"
        raise _damaged(channel, base, reason)
    return base


def sizes_of(base: Base) -> str:
    """What takes the space in a base's state, for people."""
    state = _unpacked(base)
    if "topic" in state:
        names = ("clients", "places", "entries")
        sizes = [f"{len(state[name])} {name} {len(_packed(state[name]))} bytes" for name in names]
        return ", ".join(sizes)
    parked_places = {
        (number, sequence)
        for group in state["subscriptions"]
        for number, _, sequence, *_ in group["parked"]
    }
    pending = parked = count = 0
    for _, partitions in state["publishers"]:
        for _, _, entries in partitions:
            for entry in entries:
                if (count, entry[SEQUENCE]) in parked_places:
                    parked += len(_packed(entry))
                else:
                    pending += len(_packed(entry))
            count += 1
    parked += sum(len(_packed(group["parked"])) for group in state["subscriptions"])
    ids = len(_packed(state["delivered_ids"]))
    rest = len(base.state) - pending - parked - ids
    return (
        f"{count} partitions take {rest} bytes, pending messages {pending}, parked messages "
        f"{parked}, ids of delivered messages {ids}"
    )


def _packed(value: Any) -> bytes:
    # Headers may hold lone surrogates, as in the codec.
    return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))


def _unpacked(base: Base) -> Any:
    return msgpack.unpackb(
        base.state, unicode_errors="surrogatepass", strict_map_key=False, use_list=True
    )


def is_topic(name: str) -> bool:
    """Whether a journal is that of a topic; no channel may have such a name."""
    return name.startswith(TOPIC_PREFIX)


def start_of(name: str, base: Base) -> Channel:
    """The channel to fold the records after ``base`` into; raises JournalCorrupt."""
    found = machine_of(name, base)
    assert isinstance(found, Channel)
    return found


def machine_of(name: str, base: Base) -> Channel | Topic:
    """The channel or topic to fold the records after ``base`` into; raises JournalCorrupt.

    A topic may be ahead of ``base``: its ``upto`` is the record that it has come to.
    """
    if base.sequence == 0:
        return Topic(name.removeprefix(TOPIC_PREFIX)) if is_topic(name) else Channel(name)
    try:
        state = _unpacked(base)
        version = state["version"]
    # Whole by its checksum and still no snapshot: msgpack may fail in any way it knows.
    except Exception as error:
        raise _damaged(name, base, f"the state cannot be unpacked: {error!r}") from error
    known = (topic_snapshot.VERSION,) if is_topic(name) else snapshot.VERSIONS
    if version not in known:
        raise JournalVersion(
            f"channel {name!r}: the state at journal record {base.sequence} has version "
            f"{version!r}, this Fairlead reads {max(known)}. Use the version of Fairlead "
            "that trimmed the channel",
            channel=name, sequence=base.sequence,
        )  # fmt: skip
    try:
        if is_topic(name):
            return topic_snapshot.load(name.removeprefix(TOPIC_PREFIX), state)
        return snapshot.load(name, state)
    except Exception as error:
        raise _damaged(name, base, f"the state is none of a channel: {error!r}") from error


def archived(channel: str, first: int, base: Base) -> JournalGap:
    """Records were asked for that are in the archive only; ``archived`` says up to which."""
    return JournalGap(
        f"channel {channel!r}: journal record {first} is not in the store: records up to "
        f"{base.sequence} were archived and trimmed. Read from {base.sequence + 1} on, or read "
        "the archive",
        channel=channel, sequence=first, archived=base.sequence,
    )  # fmt: skip


def _damaged(channel: str, base: Base, reason: str) -> JournalCorrupt:
    return JournalCorrupt(
        f"channel {channel!r}: the base of its journal, at record {base.sequence!r}, is damaged: "
        f"{reason}",
        channel=channel, sequence=base.sequence, reason=reason,
    )  # fmt: skip
