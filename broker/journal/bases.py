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
from broker.errors import JournalCorrupt, JournalGap, JournalVersion
from broker.journal.codec import CHECKSUM_START

#: A larger state is not stored: it would hold the writer up, and SQLite takes no gigabyte.
STATE_BYTES_MAX = 256 * 1024 * 1024


class Base(NamedTuple):
    """The last trimmed record of a channel, and the channel's state after it."""

    sequence: int
    checksum: int
    state: bytes


#: Where a channel starts that was never trimmed.
NO_BASE = Base(0, CHECKSUM_START, b"")


def make_base(channel: Channel, sequence: int, checksum: int) -> Base:
    """The base after record ``sequence``; ``channel`` is the fold of all up to it."""
    return Base(sequence, checksum, _packed(snapshot.dump(channel)))


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


def start_of(name: str, base: Base) -> Channel:
    """The channel to fold the records after ``base`` into; raises JournalCorrupt."""
    if base.sequence == 0:
        return Channel(name)
    try:
        state = _unpacked(base)
        version = state["version"]
    # Whole by its checksum and still no snapshot: msgpack may fail in any way it knows.
    except Exception as error:
        raise _damaged(name, base, f"the state cannot be unpacked: {error!r}") from error
    if version not in snapshot.VERSIONS:
        raise JournalVersion(
            f"channel {name!r}: the state at journal record {base.sequence} has version "
            f"{version!r}, this Fairlead reads {snapshot.VERSION}. Use the version of Fairlead "
            "that trimmed the channel",
            channel=name, sequence=base.sequence,
        )  # fmt: skip
    try:
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
