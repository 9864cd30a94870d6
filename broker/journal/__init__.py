"""The journal: the append-only truth of every channel. This file is the protocol; nothing else.

One ``Journal`` is one store (a SQLite file, later a PostgreSQL database) with the journals of many
channels in it. Each channel's sequence is dense from 1. An append names the sequence it expects to
write, so a broker that has lost a channel to another one collides with it and learns so.

``append`` only queues: it may be called under a channel's lock and does no I/O. One writer thread
commits what has gathered, in one transaction, and then wakes everybody who waits for it.
"""

from __future__ import annotations

from typing import Iterator, Protocol, Sequence

from broker.core.records import Record


class Journal(Protocol):
    """What every store offers. All methods may be called from any thread."""

    def channels(self) -> list[str]:
        """The names of the channels in the store, in order of creation."""
        ...

    def append(self, channel: str, expected: int, records: Sequence[Record]) -> int:
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

    def read(self, channel: str, first: int = 1) -> Iterator[tuple[int, Record]]:
        """The channel's durable records from ``first`` on, checked: raises JournalCorrupt."""
        ...

    def drop(self, channel: str) -> None:
        """Remove a deleted channel's records from the store."""
        ...

    def close(self) -> None:
        """Commit what is queued, sync and close."""
        ...
