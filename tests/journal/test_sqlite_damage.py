"""A damaged store, as a black box: it is refused with the reason named, or nothing of it is lost.

No test here knows where SQLite keeps what. Bytes are flipped and files are cut at many places;
after each the store either gives back exactly what was written, or refuses. It never gives back
less, and never anything else, without a word.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any, Callable

import pytest
from journal_samples import contents_at, copy_store, sample, samples
from test_sqlite_crash import run_and_kill

from broker.errors import JournalCorrupt, JournalError, JournalGap
from broker.journal.sqlite import SqliteJournal

SEED = 7
CHANNELS = {"orders": 40, "billing": 25, "tiny": 1}
Contents = dict[str, list[tuple[int, Any]]]


def expected_contents() -> Contents:
    return {
        channel: list(enumerate(samples(channel, 1, last, body_bytes=700), 1))
        for channel, last in CHANNELS.items()
    }


@pytest.fixture(scope="module")
def closed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("closed") / "journal.db"
    journal = SqliteJournal(path)
    for channel, last in CHANNELS.items():
        for sequence in range(1, last + 1):
            journal.append(channel, sequence, [sample(channel, sequence, body_bytes=700)])
            assert journal.wait_durable(channel, sequence, 20)
    journal.close()
    return path


@pytest.fixture(scope="module")
def killed_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """A store as kill -9 left it, and what its writer was told.

    The first writer's records are in the main file, the second one's all in the write-ahead log.
    """
    path = tmp_path_factory.mktemp("killed") / "journal.db"
    run_and_kill(path, "fsync", 60)
    contents_at(path)
    told = run_and_kill(path, "fsync", 60, checkpoint_bytes=2**40)
    assert Path(f"{path}-wal").stat().st_size > 100_000
    return path, told


class Damage:
    """Applies one damage after another to fresh copies and keeps count of what came of it."""

    def __init__(self, source: Path, work: Path, told: dict[str, int], make: Any) -> None:
        self.source, self.path, self.told, self.make = source, work / "journal.db", told, make
        self.refused = self.intact = 0

    def check(self, what: str, suffix: str, damage: Callable[[bytes], bytes]) -> None:
        copy_store(self.source, self.path)
        target = Path(f"{self.path}{suffix}")
        target.write_bytes(damage(target.read_bytes()))
        try:
            found = contents_at(self.path)
        except JournalError as error:
            named = self.path.name in str(error) or "journal record" in str(error)
            assert named, f"{what}: the refusal names neither file nor record: {error}"
            self.refused += 1
            return
        for channel, last in self.told.items():
            assert len(found.get(channel, [])) >= last, f"{what}: {channel} is silently shorter"
        for channel, records in found.items():
            right = [(n, self.make(channel, n)) for n in range(1, len(records) + 1)]
            assert records == right, f"{what}: {channel} is silently different"
        self.intact += 1


def flip(offset: int, bit: int) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[offset] ^= 1 << bit
        return bytes(changed)

    return damage


def cut(length: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:length]


def overwrite(start: int, block: bytes) -> Callable[[bytes], bytes]:
    return lambda content: content[:start] + block + content[start + len(block) :]


def damage_of(source: Path, work: Path, told: dict[str, int], body_bytes: int) -> Damage:
    return Damage(source, work, told, lambda channel, n: sample(channel, n, body_bytes))


def test_a_flipped_bit_anywhere_in_the_main_file_is_refused_or_harmless(
    closed_store: Path, tmp_path: Path
) -> None:
    damage = damage_of(closed_store, tmp_path, CHANNELS, 700)
    rng = random.Random(SEED)
    size = closed_store.stat().st_size
    offsets = [*range(108), *(rng.randrange(size) for _ in range(450))]
    # The first pages hold the small tables and the roots of the large ones: look closer there.
    offsets += [rng.randrange(min(size, 12 * 4096)) for _ in range(250)]
    for offset in offsets:
        bit = rng.randrange(8)
        damage.check(f"bit {bit} of byte {offset}", "", flip(offset, bit))
    assert damage.refused > 100 and damage.intact > 0


def test_a_flipped_bit_anywhere_in_the_write_ahead_log_is_refused_or_harmless(
    killed_store: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    """SQLite drops the damaged transaction and all after it without a word; the mark knows."""
    source, told = killed_store
    damage = damage_of(source, tmp_path, told, 100)
    rng = random.Random(SEED)
    size = Path(f"{source}-wal").stat().st_size
    for offset in [*range(60), *(rng.randrange(size) for _ in range(250))]:
        bit = rng.randrange(8)
        damage.check(f"bit {bit} of byte {offset}", "-wal", flip(offset, bit))
    assert damage.refused > 50


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_file_cut_anywhere_is_refused_or_harmless(
    killed_store: tuple[Path, dict[str, int]], tmp_path: Path, suffix: str
) -> None:
    source, told = killed_store
    damage = damage_of(source, tmp_path, told, 100)
    rng = random.Random(SEED)
    size = Path(f"{source}{suffix}").stat().st_size
    cuts = {0, 1, 31, 32, 33, 100, 512, 4096, size - 1, *(rng.randrange(size) for _ in range(60))}
    for length in sorted(cuts):
        damage.check(f"cut to {length}", suffix, cut(length))
    assert damage.refused > 10


@pytest.mark.parametrize("filler", [b"\0", b"\xff"])
def test_garbage_written_over_a_block_is_refused_or_harmless(
    closed_store: Path, tmp_path: Path, filler: bytes
) -> None:
    damage = damage_of(closed_store, tmp_path, CHANNELS, 700)
    size = closed_store.stat().st_size
    for start in range(0, size, 4096 * 3):
        damage.check(f"block at {start}", "", overwrite(start, filler * 4096))
    assert damage.refused > 5


def test_a_cut_closed_store_is_refused(closed_store: Path, tmp_path: Path) -> None:
    damage = damage_of(closed_store, tmp_path, CHANNELS, 700)
    for length in (0, 1, 99, 4096, closed_store.stat().st_size // 2):
        damage.check(f"cut to {length}", "", cut(length))
    assert damage.intact == 0


def test_a_lost_write_ahead_log_is_refused_and_says_what_is_missing(
    killed_store: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    source, _ = killed_store
    path = tmp_path / "journal.db"
    copy_store(source, path, suffixes=("", ".mark"))
    with pytest.raises(JournalGap, match=r"ends at write \d+ .*write \d+ was synced: \d+ writes"):
        SqliteJournal(path)


def test_an_older_copy_of_the_store_beside_a_newer_mark_is_refused(tmp_path: Path) -> None:
    path, old = tmp_path / "journal.db", tmp_path / "old.db"
    for last, first in ((5, 1), (9, 6)):
        journal = SqliteJournal(path)
        journal.append("orders", first, samples("orders", first, last))
        journal.close()
        if last == 5:
            copy_store(path, old)
    shutil.copyfile(old, path)
    with pytest.raises(JournalGap) as caught:
        SqliteJournal(path)
    assert "'orders' at 5" in str(caught.value) and "write 9 was synced" in str(caught.value)
    assert caught.value.details["ends"] == {"orders": 5}


def test_a_refused_store_is_left_as_it_was_byte_for_byte(
    killed_store: tuple[Path, dict[str, int]], tmp_path: Path
) -> None:
    """Somebody may still rescue the part behind the damage: opening must not tidy it away."""
    source, _ = killed_store
    path = tmp_path / "journal.db"
    copy_store(source, path)
    wal = Path(f"{path}-wal")
    wal.write_bytes(flip(5000, 1)(wal.read_bytes()))
    before = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in ("", "-wal", ".mark")}
    for _ in range(2):
        with pytest.raises(JournalError):
            SqliteJournal(path)
    after = {suffix: Path(f"{path}{suffix}").read_bytes() for suffix in before}
    assert after == before


ROW = "channel = 'orders' AND sequence"


@pytest.mark.parametrize(
    ("statement", "error", "text"),
    [
        (
            f"DELETE FROM records WHERE {ROW} = 17",
            JournalGap,
            "'orders': journal record 17 is miss",
        ),
        (f"DELETE FROM records WHERE {ROW} = 1", JournalGap, "'orders': journal record 1 is miss"),
        (
            f"DELETE FROM records WHERE {ROW} = 40",
            JournalGap,
            "'orders': journal record 40 is miss",
        ),
        (
            f"DELETE FROM records WHERE {ROW} > 30",
            JournalGap,
            "'orders': journal record 31 is miss",
        ),
        ("DELETE FROM records", JournalGap, "'orders': journal record 1 is missing"),
        (
            f"UPDATE records SET sequence = -sequence WHERE {ROW} IN (10, 11);"
            f"UPDATE records SET sequence = 21 + sequence WHERE {ROW} < 0",
            JournalCorrupt,
            "'orders': journal record 10 is damaged: the checksum",
        ),
        (
            f"UPDATE records SET bodies = zeroblob(length(bodies)) WHERE {ROW} = 18",
            JournalCorrupt,
            "'orders': journal record 18 is damaged: the checksum",
        ),
        (f"UPDATE records SET bodies = NULL WHERE {ROW} = 18", JournalCorrupt, "record 18 is dam"),
        (f"UPDATE records SET at_ms = at_ms + 1 WHERE {ROW} = 40", JournalCorrupt, "record 40 is"),
        (
            f"UPDATE records SET runs = 'text' WHERE {ROW} = 3",
            JournalCorrupt,
            "record 3 is damaged",
        ),
        (
            "UPDATE records SET (kind, at_ms, publisher, subscriber, subscription, count, checksum,"
            " runs, bodies) = (SELECT kind, at_ms, publisher, subscriber, subscription, count,"
            f" checksum, runs, bodies FROM records WHERE {ROW} = 8) WHERE {ROW} = 12",
            JournalCorrupt,
            "record 12 is damaged: the checksum",
        ),
        (
            "UPDATE heads SET sequence = 39 WHERE channel = 'orders'",
            JournalCorrupt,
            "does not agree with itself: 66 writes",
        ),
        ("UPDATE heads SET checksum = 1 WHERE channel = 'orders'", JournalCorrupt, "record 40"),
        ("UPDATE heads SET channel = 'other' WHERE channel = 'tiny'", JournalCorrupt, "'tiny'"),
        (
            "DROP TRIGGER channel_dropped; DELETE FROM heads WHERE channel = 'tiny'",
            JournalCorrupt,
            "does not agree with itself",
        ),
        ("DELETE FROM store", JournalCorrupt, "'store' has 0 rows"),
        ("UPDATE store SET id = randomblob(16)", JournalCorrupt, "its .mark file belongs to"),
        ("DROP TABLE heads", JournalCorrupt, "no such table: heads"),
    ],
)
def test_rows_that_were_removed_swapped_replaced_or_changed_are_named(
    closed_store: Path, tmp_path: Path, statement: str, error: type[JournalError], text: str
) -> None:
    path = tmp_path / "journal.db"
    copy_store(closed_store, path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(statement)
    connection.close()
    with pytest.raises(error) as caught:
        contents_at(path)
    assert text in str(caught.value)


def test_damage_in_one_channel_leaves_the_others_readable(
    closed_store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "journal.db"
    copy_store(closed_store, path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"DELETE FROM records WHERE {ROW} = 17")
    connection.close()
    journal = SqliteJournal(path)
    assert list(journal.read("billing")) == expected_contents()["billing"]
    got = []
    with pytest.raises(JournalGap):
        for item in journal.read("orders"):
            got.append(item)
    assert got == expected_contents()["orders"][:16], "all before the damage is still handed out"
    journal.close()
