"""Records to write and ways to look at a store from outside, for the tests of this folder only.

``sample(channel, sequence)`` is a pure function, so a parent process knows what its child wrote.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any, Iterable

from broker.core.message import PartitionKey, make_entries
from broker.core.records import Acked, ChannelCreated, Delivered, Nacked, Published, Record
from broker.journal.memory import MemoryJournal
from broker.journal.sqlite import SqliteJournal

STORE_SUFFIXES = ("", "-wal", ".mark")


def sample(channel: str, sequence: int, body_bytes: int = 100) -> Record:
    """The record that the tests write at this place: different everywhere, the same always."""
    rng = random.Random(f"{channel}:{sequence}")
    at_ms = 1_700_000_000_000 + sequence
    partitions = [f"customer-{rng.randrange(50)}" for _ in range(1 + sequence % 5)]
    runs = len(partitions)
    keys = [PartitionKey("billing", partition) for partition in partitions]
    if sequence == 1:
        return ChannelCreated(at_ms, channel, {"prefetch": 10, "ratio": 0.5})
    if sequence % 4 == 0:
        return Delivered(
            at_ms, "default", "worker-1", keys, [sequence] * runs, [sequence] * runs, [2] * runs,
            [sequence] * runs, [1] * runs, [],
        )  # fmt: skip
    if sequence % 4 == 1:
        return Acked(
            at_ms, "default", "worker-1", keys, [1] * runs, [2] * runs, [sequence] * runs,
            [[0, 1, 250]],
        )  # fmt: skip
    if sequence % 4 == 3 and sequence % 3 == 0:
        return Nacked(
            at_ms, "default", "worker-1", keys[0], sequence, 7, 1, at_ms + 50, "handler failed"
        )
    sequences = [sequence * 10 + i for _ in partitions for i in range(2)]
    return Published(
        at_ms, "billing", 3, partitions, [sequence * 10] * runs, [2] * runs, [],
        2 * runs * body_bytes, 1, True,
        make_entries(
            sequences,
            [rng.randbytes(body_bytes) for _ in sequences],
            [at_ms * 1000 + i for i in range(len(sequences))],
            [i % 2 for i in range(len(sequences))],
            1,
            [{"id": f"id-{n}"} if n % 2 else None for n in sequences],
        ),
    )  # fmt: skip


def samples(channel: str, first: int, last: int, body_bytes: int = 100) -> list[Record]:
    return [sample(channel, sequence, body_bytes) for sequence in range(first, last + 1)]


def contents(journal: Any) -> dict[str, list[tuple[int, Record]]]:
    """Everything that a journal holds, read through all its checks."""
    return {channel: list(journal.read(channel)) for channel in journal.channels()}


def contents_at(path: Path) -> dict[str, list[tuple[int, Record]]]:
    """Everything that the store at ``path`` holds; raises what opening or reading it raises."""
    journal = SqliteJournal(path)
    try:
        return contents(journal)
    finally:
        journal.close()


def copy_store(source: Path, target: Path, suffixes: Iterable[str] = STORE_SUFFIXES) -> None:
    """Copy a store that nobody has open, as a backup or a dead machine's disk would have it."""
    for suffix in (*STORE_SUFFIXES, "-shm", ".lock"):
        Path(f"{target}{suffix}").unlink(missing_ok=True)
    for suffix in suffixes:
        if os.path.exists(f"{source}{suffix}"):
            shutil.copyfile(f"{source}{suffix}", f"{target}{suffix}")


class Home:
    """One store; ``open`` opens it, and closes it first if it is open."""

    def __init__(self, store: str, durability: str, path: Path) -> None:
        self.store, self.durability, self.path = store, durability, path
        self.journal: Any = None

    def open(self) -> Any:
        if self.journal is not None:
            self.journal.close()
        if self.store == "sqlite":
            self.journal = SqliteJournal(self.path, self.durability)  # type: ignore[arg-type]
        elif self.journal is None:
            self.journal = MemoryJournal(self.durability)  # type: ignore[arg-type]
        else:
            self.journal.reopen()
        return self.journal
