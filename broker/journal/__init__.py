"""The journal: the append-only truth of every channel. This file is the protocol; nothing else.

One ``Journal`` is one store (a SQLite file, later a PostgreSQL database) with the journals of many
channels in it. Each channel's sequence is dense from 1. An append names the sequence it expects to
write, so a broker that has lost a channel to another one collides with it and learns so.

The oldest records of a channel may have been archived and trimmed. Its journal then starts after
its ``base``, which holds the state of the channel at that point.

``append`` only queues: it may be called under a channel's lock and does no I/O. One writer thread
commits what has gathered, in one transaction, and then wakes everybody who waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Protocol, Sequence

from broker.core.topics.records import AnyRecord

if TYPE_CHECKING:
    from broker.journal.bases import Base


class Journal(Protocol):
    """What every store offers. All methods may be called from any thread."""

    def channels(self) -> list[str]:
        """The names of the channels in the store, in order of creation."""
        ...

    def append(self, channel: str, expected: int, records: Sequence[AnyRecord]) -> int:
        """Queue ``records`` as the sequences expected, expected+1 ...; return the last one.

        The caller serialises the appends of one channel. Raises JournalError when the journal has
        failed; after its first failure a journal takes nothing more.
        """
        ...

    def durable(self, channel: str) -> int:
        """The last sequence of the channel that is durable in the sense of the store's class."""
        ...

    def wait_durable(
        self, channel: str, sequence: int, timeout: float, urgent: bool = True
    ) -> bool:
        """Wait until ``sequence`` is durable; False when the time is over. Raises if it failed.

        Who is not ``urgent`` has other work meanwhile, and may be kept waiting a little longer for
        the sake of a larger group.
        """
        ...

    def base(self, channel: str) -> Base:
        """Where the channel's journal starts: ``NO_BASE`` unless it was trimmed."""
        ...

    def read(self, channel: str, first: int | None = None) -> Iterator[tuple[int, Any]]:
        """The channel's durable records from ``first`` on, checked: raises JournalCorrupt.

        Without ``first`` from the first one that was not trimmed. When ``first`` was trimmed, also
        while the caller was reading towards it: JournalGap, with ``archived`` in its details.
        """
        ...

    def checksum(self, channel: str, sequence: int) -> int:
        """The checksum of a durable record that is there; raises JournalGap if it is not."""
        ...

    def trim(self, channel: str, base: Base) -> int:
        """Remove the durable records up to ``base``; returns how many. Never moves a base back.

        While the channel is being written to, from a thread that has no lock of it.
        """
        ...

    def drop(self, channel: str) -> None:
        """Remove a deleted channel's records from the store."""
        ...

    def close(self) -> None:
        """Commit what is queued, sync and close."""
        ...
