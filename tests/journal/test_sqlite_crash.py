"""kill -9: whatever a process was told is durable is there afterwards, and the chain is whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from journal_samples import contents_at, sample

from broker.errors import JournalError
from broker.journal.sqlite import SqliteJournal

HERE = Path(__file__).parent
SEED = 20240611


#: So small that kills fall into checkpoints too.
CHECKPOINT_BYTES = 300_000


def run_and_kill(
    path: Path, durability: str, lines_before: int, checkpoint_bytes: int = CHECKPOINT_BYTES
) -> dict[str, int]:
    """Let a child append until it printed so many lines, kill it; what it was told, by channel."""
    search = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    child = subprocess.Popen(
        [
            sys.executable,
            str(HERE / "appending_child.py"),
            str(path),
            durability,
            str(checkpoint_bytes),
        ],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": search},
        text=True,
    )
    assert child.stdout is not None
    told: dict[str, int] = {}
    with child:
        # The child does not stop while we read: the kill falls anywhere in its work.
        for count, line in enumerate(child.stdout, 1):
            channel, sequence = line.split()
            told[channel] = int(sequence)
            if count == lines_before:
                child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    return told


def assert_holds(path: Path, told: dict[str, int]) -> dict[str, int]:
    """The store has all that was told, equal to what was written; returns where it ends."""
    found = contents_at(path)
    for channel, records in found.items():
        assert records == [(n, sample(channel, n)) for n in range(1, len(records) + 1)]
    ends = {channel: len(records) for channel, records in found.items()}
    for channel, sequence in told.items():
        assert ends.get(channel, 0) >= sequence, f"{channel}: told {sequence}, found {ends}"
    return ends


@pytest.mark.parametrize(("durability", "kills"), [("fsync", 8), ("flush", 3)])
def test_everything_reported_durable_survives_kill_9_again_and_again(
    tmp_path: Path, durability: str, kills: int
) -> None:
    """Flush promises this too: the process dies, the machine does not."""
    path = tmp_path / "journal.db"
    rng = random.Random(SEED)
    told: dict[str, int] = {}
    for _ in range(kills):
        told.update(run_and_kill(path, durability, rng.randrange(1, 150)))
        ends = assert_holds(path, told)
    assert sum(ends.values()) >= kills


def test_a_kill_releases_the_lock_and_a_closed_store_can_be_opened_by_the_next(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    run_and_kill(path, "fsync", 1)
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match="in use"):
        SqliteJournal(path)
    journal.close()
    SqliteJournal(path).close()
