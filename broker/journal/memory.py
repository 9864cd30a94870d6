"""The journal in memory: the same protocol and the same encoded rows, for simulations and tests.

It has no thread and no clock, so a run with it repeats exactly. What a disk does by itself, a
script does here: :meth:`MemoryJournal.sync` makes durable what was appended, ``lose_unsynced`` is
the crash that forgets the rest, ``fail_next`` makes the next sync fail as a disk would, ``trim``
removes what was archived.
"""

from __future__ import annotations

from typing import Any, Iterator, Literal, Mapping, Sequence

from broker.core.topics.records import AnyRecord
from broker.errors import JournalError
from broker.journal.bases import Base, archived, checked_base, state_checksum
from broker.journal.codec import CHECKSUM, SEQUENCE, Row, decode, encode
from broker.journal.faults import gap, mismatch


class MemoryJournal:
    """The journals of many channels in memory. See :class:`broker.journal.Journal`.

    With ``auto_sync`` an append is durable when it returns; without, only after :meth:`sync`.
    ``durability`` is "fsync" (``durable`` counts what is synced) or "flush" (what is written):
    with "flush" a crash can lose what was durable, exactly as it can on disk.
    """

    def __init__(
        self, durability: Literal["fsync", "flush"] = "fsync", *, auto_sync: bool = True
    ) -> None:
        if durability not in ("fsync", "flush"):
            raise ValueError(f"durability is 'fsync' or 'flush', not {durability!r}")
        self.durability = durability
        self.auto_sync = auto_sync
        self._rows: dict[str, list[Row]] = {}  # those after the base
        self._bases: dict[str, tuple[int, int, bytes, int]] = {}  # as a row of a store's bases
        self._synced: dict[str, int] = {}  # the last synced sequence
        self._fault: Exception | None = None
        self._failure: JournalError | None = None
        self._closed = False

    def channels(self) -> list[str]:
        """The names of the channels in the store, in order of creation."""
        return [channel for channel in self._rows if self.durable(channel)]

    def append(self, channel: str, expected: int, records: Sequence[AnyRecord]) -> int:
        """Store ``records`` as the sequences expected, expected+1 ...; return the last one."""
        self._raise_failure()
        for record in records:
            if not record.durable:
                raise JournalError(f"channel {channel!r}: {record.kind} is never journaled")
        rows = self._rows.get(channel, [])
        following = self._end(channel) + 1
        if expected != following:
            raise mismatch(channel, expected, following)
        added: list[Row] = []
        previous = rows[-1][CHECKSUM] if rows else self.base(channel).checksum
        for sequence, record in enumerate(records, expected):
            added.append(encode(channel, sequence, record, previous))
            previous = added[-1][CHECKSUM]
        if added:
            self._rows.setdefault(channel, rows).extend(added)
        if self.auto_sync:
            self._try_sync()
        return expected + len(added) - 1

    def durable(self, channel: str) -> int:
        """The last sequence of the channel that is durable in the sense of ``durability``."""
        if self.durability == "flush" and self._failure is None:
            return self._end(channel)
        return self._synced.get(channel, 0)

    def wait_durable(
        self, channel: str, sequence: int, timeout: float, urgent: bool = True
    ) -> bool:
        """Whether ``sequence`` is durable. There is nobody to wait for: a script syncs, or not."""
        if self.durable(channel) >= sequence:
            return True
        self._raise_failure()
        return False

    def base(self, channel: str) -> Base:
        """Where the channel's journal starts: ``NO_BASE`` unless it was trimmed."""
        return checked_base(channel, self._bases.get(channel))

    def read(self, channel: str, first: int | None = None) -> Iterator[tuple[int, Any]]:
        """The channel's durable records from ``first`` on, checked: raises JournalCorrupt.

        Without ``first`` from the first one that was not trimmed.
        """
        base = self.base(channel)
        first = base.sequence + 1 if first is None else first
        if first < 1:
            raise JournalError(f"channel {channel!r}: journal sequences start at 1, not {first}")
        if first <= base.sequence:
            raise archived(channel, first, base)
        rows = self._rows.get(channel, [])[: self.durable(channel) - base.sequence]
        skipped = first - base.sequence - 1
        previous = rows[skipped - 1][CHECKSUM] if 0 < skipped <= len(rows) else base.checksum
        for sequence, row in enumerate(rows[skipped:], first):
            if row[SEQUENCE] != sequence:
                raise gap(channel, sequence, f"the next one that exists is {row[SEQUENCE]}")
            record = decode(row, previous)
            previous = row[CHECKSUM]
            yield sequence, record

    def drop(self, channel: str) -> None:
        """Remove a deleted channel's records; the removal is synced at once."""
        self._raise_failure()
        self._rows.pop(channel, None)
        self._bases.pop(channel, None)
        self._synced.pop(channel, None)

    def close(self) -> None:
        """Sync what was appended and close; :meth:`reopen` is the next start."""
        if not self._closed and self._failure is None:
            self.sync()
        self._closed = True

    # --- what a script does

    def written(self) -> dict[str, int]:
        """The last sequence of each channel that was written, synced or not."""
        return {channel: self._end(channel) for channel in self._rows}

    def sync(self, upto: Mapping[str, int] | None = None) -> None:
        """Make durable what was appended; raises if it was told to fail.

        With ``upto``, what ``written`` said earlier: a sync that takes its time covers what was
        written when it began.
        """
        self._raise_failure()
        self._try_sync(upto)
        self._raise_failure()

    def fail_next(self, exception: Exception) -> None:
        """Let the next sync fail with ``exception``; the journal is failed from then on."""
        self._fault = exception

    def lose_unsynced(self, kept: int = 0) -> None:
        """Crash and start again: what was not synced is gone, and so is an earlier failure.

        Of each channel so many unsynced records are ``kept`` after all: they had reached the disk,
        and nobody was told. They are durable from now on.
        """
        for channel in list(self._rows):
            base = self._bases.get(channel, (0,))[0]
            end = min(self._synced.get(channel, 0) + kept, self._end(channel))
            del self._rows[channel][end - base :]
            if not self._rows[channel] and not base:
                del self._rows[channel]
            elif kept:
                self._synced[channel] = end
        self.reopen()

    def checksum(self, channel: str, sequence: int) -> int:
        """The checksum of a durable record that is there; raises JournalGap if it is not."""
        base = self.base(channel)
        if sequence == base.sequence:
            return base.checksum
        if not base.sequence < sequence <= self._synced.get(channel, 0):
            raise gap(channel, sequence, "it was trimmed, or is not synced yet")
        checksum = self._rows[channel][sequence - base.sequence - 1][CHECKSUM]
        return int(checksum)

    def trim(self, channel: str, base: Base) -> int:
        """Remove the synced records up to ``base``; returns how many. Never moves a base back."""
        before = self.base(channel)
        if base.sequence <= before.sequence:
            return 0
        if base.sequence > self._synced.get(channel, 0):
            raise JournalError(f"channel {channel!r}: record {base.sequence} is not synced yet")
        rows, count = self._rows[channel], base.sequence - before.sequence
        if rows[count - 1][CHECKSUM] != base.checksum:
            raise JournalError(f"channel {channel!r}: the base belongs to another journal")
        self._bases[channel] = (*base, state_checksum(channel, base))
        del rows[:count]
        return count

    def reopen(self) -> None:
        """Start again on the same store: what was written is there, a failure is forgotten."""
        self._fault = self._failure = None
        self._closed = False

    def _try_sync(self, upto: Mapping[str, int] | None = None) -> None:
        if self._fault is not None:
            error, self._fault = self._fault, None
            if isinstance(error, JournalError):
                self._failure = error
            else:
                self._failure = JournalError(f"store in memory: cannot write: {error!r}")
                self._failure.__cause__ = error
            return
        ends = self.written() if upto is None else upto
        for channel in self._rows:
            end = min(ends.get(channel, 0), self._end(channel))
            self._synced[channel] = max(end, self._synced.get(channel, 0))

    def _end(self, channel: str) -> int:
        """The last sequence that was written."""
        return self._bases.get(channel, (0,))[0] + len(self._rows.get(channel, ()))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(self._failure.message, **self._failure.details)
        if self._closed:
            raise JournalError("the store in memory is closed")
