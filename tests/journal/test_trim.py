"""A trimmed store: it reads, recovers and goes on as if it were whole, and damage to it is noticed.

How far to trim and what is in the archive is not looked at here; see test_archive.py.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from histories import (
    Life,
    alter,
    base_at,
    checksums,
    replay,
    rows_in,
    write_store,
)
from journal_samples import Home, copy_store, samples

from broker.errors import Deposed, JournalCorrupt, JournalError, JournalGap, JournalVersion
from broker.journal import sqlite_trim
from broker.journal.archive import channels_of, export_channel
from broker.journal.bases import NO_BASE, Base
from broker.journal.codec import encode
from broker.journal.memory import MemoryJournal
from broker.journal.recovery import recover
from broker.journal.sqlite import SqliteJournal
from broker.journal.sqlite_reader import read_limits
from broker.journal.sqlite_schema import FORMAT
from broker.journal.sqlite_trim import delete_rows, write_base
from tests.builders import fingerprint
from tests.processes import environment, poll

WAIT_S = 20.0

#: The tables of format 1, as they were.
FORMAT_1 = """
PRAGMA journal_mode = WAL;
CREATE TABLE records (
    channel TEXT NOT NULL, sequence INTEGER NOT NULL, kind TEXT NOT NULL, at_ms INTEGER NOT NULL,
    publisher TEXT, subscriber TEXT, subscription TEXT, count INTEGER NOT NULL,
    checksum INTEGER NOT NULL, runs BLOB NOT NULL, bodies BLOB,
    PRIMARY KEY (channel, sequence));
CREATE TABLE heads (
    channel TEXT PRIMARY KEY NOT NULL, sequence INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE store (id BLOB NOT NULL, writes INTEGER NOT NULL, dropped INTEGER NOT NULL);
INSERT INTO store VALUES (randomblob(16), 0, 0);
CREATE TRIGGER record_written AFTER INSERT ON records BEGIN
    INSERT INTO heads VALUES (new.channel, new.sequence, new.checksum)
        ON CONFLICT (channel) DO UPDATE SET sequence = new.sequence, checksum = new.checksum;
    UPDATE store SET writes = writes + 1;
END;
CREATE TRIGGER channel_dropped AFTER DELETE ON heads BEGIN
    UPDATE store SET writes = writes + 1, dropped = dropped + old.sequence + 1;
END;
PRAGMA application_id = 0x4661724C;
PRAGMA user_version = 1;
"""


def trim(path: Path, life: Life, sequence: int) -> int:
    """Trim the store of a life; returns how many rows went."""
    assert write_base(str(path), life.channel.name, base_at("orders", life.records, sequence))
    return delete_rows(str(path), life.channel.name)


def recovered(path: Path, name: str = "orders") -> tuple[Any, int]:
    """Fingerprint and last sequence of a channel as a starting broker would have it."""
    journal = SqliteJournal(path)
    try:
        channel, sequence = recover(journal, name)
        return fingerprint(channel), sequence
    finally:
        journal.close()


def version_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def write_format_1(path: Path, life: Life) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(FORMAT_1)
    previous = 0
    for sequence, record in enumerate(life.records, 1):
        row = encode("orders", sequence, record, previous)
        connection.execute(f"INSERT INTO records VALUES ({','.join('?' * 11)})", row)
        previous = row[8]
    connection.close()


# --- the format


def test_a_store_of_format_1_is_migrated_when_it_is_opened_for_writing(tmp_path: Path) -> None:
    life = Life().live(60)
    path = tmp_path / "journal.db"
    write_format_1(path, life)
    journal = SqliteJournal(path)
    assert version_of(path) == FORMAT == 2
    assert [record for _, record in journal.read("orders")] == life.records
    assert journal.base("orders") == NO_BASE
    assert journal.append("orders", 1 + len(life.records), samples("orders", 3, 3)) > 0
    journal.close()
    assert delete_rows(str(path), "orders") == 0


def test_a_store_of_format_1_is_read_without_being_changed(tmp_path: Path) -> None:
    life = Life().live(60)
    path = tmp_path / "journal.db"
    write_format_1(path, life)
    before = path.read_bytes()
    assert channels_of(path) == ["orders"]
    base, head = read_limits(str(path), "orders")
    assert (base, head.sequence) == (NO_BASE, len(life.records))
    assert version_of(path) == 1 and path.read_bytes() == before


def test_trimming_a_store_of_format_1_migrates_it(tmp_path: Path) -> None:
    life = Life().live(60)
    path = tmp_path / "journal.db"
    write_format_1(path, life)
    assert trim(path, life, 30) == 30
    assert version_of(path) == 2
    assert recovered(path) == (fingerprint(replay("orders", life.records)), len(life.records))


def test_a_migrated_store_has_the_tables_and_triggers_of_a_new_one(tmp_path: Path) -> None:
    write_format_1(tmp_path / "old.db", Life().live(30))
    for name in ("old.db", "new.db"):
        SqliteJournal(tmp_path / name).close()
    assert schema_of(tmp_path / "old.db") == schema_of(tmp_path / "new.db")


def schema_of(path: Path) -> set[tuple[str, str]]:
    connection = sqlite3.connect(path)
    try:
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {(name, " ".join(sql.split())) for name, sql in found}
    finally:
        connection.close()


# --- the fence


@pytest.mark.parametrize("format_", [1, 2])
@pytest.mark.parametrize("rows", [1, 300], ids=["one-statement", "a-transaction"])
def test_a_deposed_broker_is_refused_also_when_a_trim_took_what_it_collides_with(
    tmp_path: Path, format_: int, rows: int
) -> None:
    """The .lock is removed, as by somebody who takes it for stale, and a second broker starts."""
    life = Life().live(90)
    path = tmp_path / "journal.db"
    if format_ == 1:
        write_format_1(path, life)
    else:
        write_store(path, life)
    deposed = SqliteJournal(path)
    first = len(life.records) + 1
    Path(f"{path}.lock").unlink()
    owner = SqliteJournal(path)
    life.live(first + 400)
    owner.append("orders", first, life.records[first - 1 :])
    end = len(life.records)
    assert owner.wait_durable("orders", end, WAIT_S)
    assert trim(path, life, end) == end
    deposed.append("orders", first, samples("orders", 2, 1 + rows))
    with pytest.raises(Deposed, match=f"'orders': journal record {first} has been written by ano"):
        deposed.wait_durable("orders", first, WAIT_S)
    deposed.close()
    life.live(end + 10)
    owner.append("orders", end + 1, life.records[end:])
    assert owner.wait_durable("orders", len(life.records), WAIT_S)
    owner.close()
    assert recovered(path) == (fingerprint(replay("orders", life.records)), len(life.records))


def test_a_deposed_broker_is_refused_when_the_new_owner_has_deleted_the_channel(
    tmp_path: Path,
) -> None:
    life = Life().live(60)
    path = write_store(tmp_path / "journal.db", life)
    deposed = SqliteJournal(path)
    Path(f"{path}.lock").unlink()
    owner = SqliteJournal(path)
    owner.drop("orders")
    deposed.append("orders", len(life.records) + 1, samples("orders", 2, 2))
    with pytest.raises(Deposed, match="'orders': another broker has deleted it: .* ends at 0"):
        deposed.wait_durable("orders", len(life.records) + 1, WAIT_S)
    deposed.close()
    owner.close()
    assert channels_of(path) == []


# --- reading, in every kind of journal


def trimmed_home(home: Home, life: Life, sequence: int) -> Any:
    journal = home.open()
    journal.append("orders", 1, life.records)
    assert journal.wait_durable("orders", len(life.records), WAIT_S)
    base = base_at("orders", life.records, sequence)
    if home.store == "memory":
        journal.sync()
        assert journal.trim("orders", base) == sequence
    else:
        assert write_base(str(home.path), "orders", base)
        assert delete_rows(str(home.path), "orders") == sequence
    return journal


def test_a_trimmed_channel_reads_from_its_base_and_says_what_was_archived(home: Home) -> None:
    life = Life().live(90)
    journal = trimmed_home(home, life, 50)
    for _ in range(2):
        rest = list(enumerate(life.records, 1))[50:]
        assert list(journal.read("orders")) == list(journal.read("orders", 51)) == rest
        assert list(journal.read("orders", 60)) == rest[9:]
        assert journal.base("orders").sequence == 50
        for first in (1, 50):
            with pytest.raises(JournalGap, match="records up to 50 were archived") as caught:
                list(journal.read("orders", first))
            assert caught.value.details["archived"] == 50
        journal = home.open()


def test_a_trimmed_channel_recovers_and_goes_on_as_if_it_were_whole(home: Home) -> None:
    life = Life().live(90)
    journal = trimmed_home(home, life, 50)
    end = len(life.records)
    channel, sequence = recover(journal, "orders")
    assert (fingerprint(channel), sequence) == (fingerprint(replay("orders", life.records)), end)
    life.live(end + 40)
    journal.append("orders", end + 1, life.records[end:])
    channel, sequence = recover(home.open(), "orders")
    assert sequence == len(life.records)
    assert fingerprint(channel) == fingerprint(replay("orders", life.records))


def test_a_channel_trimmed_to_its_very_end_recovers_and_goes_on(home: Home) -> None:
    life = Life().live(60).settle_all()
    end = len(life.records)
    journal = trimmed_home(home, life, end)
    assert list(journal.read("orders")) == []
    assert journal.durable("orders") == end and journal.channels() == ["orders"]
    journal = home.open()
    channel, sequence = recover(journal, "orders")
    assert (fingerprint(channel), sequence) == (fingerprint(replay("orders", life.records)), end)
    life.live(end + 5)
    assert journal.append("orders", end + 1, life.records[end:]) == len(life.records)
    assert fingerprint(recover(home.open(), "orders")[0]) == fingerprint(
        replay("orders", life.records)
    )


def test_a_dropped_channel_takes_its_base_along(home: Home) -> None:
    life = Life().live(60)
    journal = trimmed_home(home, life, 30)
    journal.drop("orders")
    assert journal.base("orders") == NO_BASE
    journal.append("orders", 1, life.records[:20])
    journal = home.open()
    assert [record for _, record in journal.read("orders")] == life.records[:20]


def test_a_base_in_memory_never_moves_back_and_needs_synced_records() -> None:
    life = Life().live(60)
    journal = MemoryJournal(auto_sync=False)
    journal.append("orders", 1, life.records[:40])
    with pytest.raises(JournalError, match="not synced"):
        journal.trim("orders", base_at("orders", life.records, 30))
    journal.sync()
    assert journal.trim("orders", base_at("orders", life.records, 30)) == 30
    assert journal.trim("orders", base_at("orders", life.records, 20)) == 0
    journal.append("orders", 41, life.records[40:])
    journal.lose_unsynced()
    assert [sequence for sequence, _ in journal.read("orders")] == list(range(31, 41))


# --- what is noticed

BASE = "UPDATE bases SET"


@pytest.mark.parametrize(
    ("statement", "error", "text"),
    [
        (f"{BASE} state = zeroblob(length(state))", JournalCorrupt, "at record 50, is damaged"),
        (
            f"{BASE} state = CAST(replace(hex(state), 'A', 'B') AS BLOB)",
            JournalCorrupt,
            "state checksum does not match",
        ),
        (f"{BASE} checksum = checksum + 1", JournalCorrupt, "at record 50, is damaged"),
        (f"{BASE} sequence = 49", JournalCorrupt, "at record 49, is damaged"),
        (f"{BASE} state_checksum = 1", JournalCorrupt, "stored 1, computed"),
        (f"{BASE} state = 'text'", JournalCorrupt, "wrong type"),
        (f"{BASE} sequence = 1000", JournalCorrupt, "was trimmed up to 1000, but"),
        (f"{BASE} channel = 'other'", JournalCorrupt, "no head for channel 'other'"),
        ("DELETE FROM bases", JournalGap, "journal record 1 is missing: the next one that exists"),
        ("DROP TABLE bases", JournalCorrupt, "no such table: bases"),
        ("DELETE FROM records WHERE sequence = 51", JournalGap, "journal record 51 is missing"),
        ("DELETE FROM records", JournalGap, "journal record 51 is missing"),
        (
            "DELETE FROM records; UPDATE heads SET checksum = 1",
            JournalGap,
            "journal record 51 is missing",
        ),
    ],
)
def test_damage_to_a_trimmed_store_is_named(
    tmp_path: Path, statement: str, error: type[JournalError], text: str
) -> None:
    life = Life().live(90)
    path = write_store(tmp_path / "journal.db", life)
    trim(path, life, 50)
    alter(path, statement)
    with pytest.raises(error) as caught:
        recovered(path)
    assert text in str(caught.value)


def test_a_flipped_bit_anywhere_in_a_trimmed_store_is_refused_or_harmless(tmp_path: Path) -> None:
    life = Life().live(90)
    source, path = write_store(tmp_path / "whole.db", life), tmp_path / "journal.db"
    trim(source, life, 50)
    expected = fingerprint(replay("orders", life.records))
    rng = random.Random(11)
    refused = harmless = 0
    for offset in rng.sample(range(source.stat().st_size), 250):
        copy_store(source, path)
        content = bytearray(path.read_bytes())
        content[offset] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        try:
            found = recovered(path)
        except JournalError as error:
            assert any(word in str(error) for word in (path.name, "journal record", "the base"))
            refused += 1
        else:
            assert found == (expected, len(life.records)), f"byte {offset}: silently different"
            harmless += 1
    assert refused > 40 and harmless > 0, (refused, harmless)


def test_a_base_of_another_journal_shows_in_the_chain(tmp_path: Path) -> None:
    """Whole in itself, but made from other records: the next row does not follow from it."""
    life, other = Life(1).live(90), Life(2).live(90)
    path = write_store(tmp_path / "journal.db", life)
    trim(path, life, 50)
    wrong = base_at("orders", other.records, 50)
    connection = sqlite3.connect(path, isolation_level=None)
    values = (*wrong, sqlite_trim.state_checksum("orders", wrong))
    connection.execute(
        "UPDATE bases SET sequence = ?, checksum = ?, state = ?, state_checksum = ?", values
    )
    connection.close()
    with pytest.raises(JournalCorrupt, match="journal record 51 is damaged: the checksum"):
        recovered(path)


def test_a_fully_trimmed_channel_whose_head_disagrees_is_refused(tmp_path: Path) -> None:
    life = Life().live(60).settle_all()
    path = write_store(tmp_path / "journal.db", life)
    trim(path, life, len(life.records))
    alter(path, "UPDATE heads SET checksum = checksum + 1")
    with pytest.raises(JournalCorrupt, match="its base has"):
        recovered(path)


def test_a_state_of_a_later_version_is_refused_as_such(tmp_path: Path) -> None:
    life = Life().live(60)
    path = write_store(tmp_path / "journal.db", life)
    sequence, checksum, _ = base_at("orders", life.records, 30)
    assert write_base(
        str(path), "orders", Base(sequence, checksum, msgpack.packb({"version": 99}))
    )
    with pytest.raises(JournalVersion, match="at journal record 30 has version 99"):
        recovered(path)


# --- the trim itself


def test_the_counters_of_the_store_hold_through_trims_and_drops(tmp_path: Path) -> None:
    life, other = Life(1).live(90), Life(2, name="billing").live(40)
    path = write_store(tmp_path / "journal.db", life, other)
    for sequence in (10, 60):
        trim(path, life, sequence)
        connection = sqlite3.connect(path)
        counted = connection.execute(
            "SELECT writes, dropped + (SELECT sum(sequence) FROM heads) FROM store"
        ).fetchone()
        connection.close()
        assert counted[0] == counted[1] == len(life.records) + len(other.records)
    journal = SqliteJournal(path)
    journal.drop("orders")
    journal.close()
    assert channels_of(path) == ["billing"]


def test_rows_below_the_base_are_ignored_and_removed_by_the_next_trim(tmp_path: Path) -> None:
    life = Life().live(90)
    path = write_store(tmp_path / "journal.db", life)
    assert write_base(str(path), "orders", base_at("orders", life.records, 50))
    assert len(rows_in(path)) == len(life.records), "as after a crash in the middle of a trim"
    journal = SqliteJournal(path)
    assert [sequence for sequence, _ in journal.read("orders")][0] == 51
    journal.close()
    assert recovered(path)[0] == fingerprint(replay("orders", life.records))
    assert delete_rows(str(path), "orders") == 50
    assert delete_rows(str(path), "orders") == 0
    assert recovered(path)[0] == fingerprint(replay("orders", life.records))


def test_a_base_never_moves_back(tmp_path: Path) -> None:
    life = Life().live(90)
    path = write_store(tmp_path / "journal.db", life)
    trim(path, life, 50)
    for sequence in (30, 50):
        assert not write_base(str(path), "orders", base_at("orders", life.records, sequence))
    assert read_limits(str(path), "orders")[0].sequence == 50


def test_a_channel_that_was_made_anew_is_not_trimmed_by_its_predecessors_base(
    tmp_path: Path,
) -> None:
    life, heir = Life(1).live(90), Life(2).live(90)
    path = write_store(tmp_path / "journal.db", life)
    journal = SqliteJournal(path)
    journal.drop("orders")
    journal.append("orders", 1, heir.records)
    journal.close()
    with pytest.raises(JournalError, match="made anew"):
        write_base(str(path), "orders", base_at("orders", life.records, 50))
    assert delete_rows(str(path), "orders") == 0
    assert len(rows_in(path)) == len(heir.records)


def test_rows_go_in_chunks_bounded_in_rows_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life().live(90)
    path = write_store(tmp_path / "journal.db", life)
    assert write_base(str(path), "orders", base_at("orders", life.records, 50))
    monkeypatch.setattr(sqlite_trim, "CHUNK_ROWS", 20)
    counts: list[int] = []
    delete_rows(str(path), "orders", counts.append)
    assert counts == [20, 20, 10]
    assert write_base(str(path), "orders", base_at("orders", life.records, 80))
    monkeypatch.setattr(sqlite_trim, "CHUNK_BYTES", 1)
    counts.clear()
    delete_rows(str(path), "orders", counts.append)
    assert counts == [1] * 30, "one row is always taken, however large"


# --- a full disk


def on_a_full_disk(path: Path, size: int, step: str) -> str:
    """What the child is told when no file may grow beyond ``size``."""
    child = Path(__file__).parent / "full_disk_child.py"
    done = subprocess.run(
        [sys.executable, child, path, str(size), step],
        stdout=subprocess.PIPE, env=environment(), text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def test_a_base_that_cannot_be_written_is_no_damage_and_the_store_stays_as_it_was(
    tmp_path: Path,
) -> None:
    """SQLite has rolled back by then: a second ROLLBACK would hide what had happened."""
    life = Life().live(60)
    path = write_store(tmp_path / "journal.db", life)
    told = on_a_full_disk(path, 1_000_000, "base")
    assert told.startswith("JournalError ") and "cannot trim channel 'orders'" in told
    assert "disk I/O error" in told or "the disk is full" in told
    assert read_limits(str(path), "orders")[0] == NO_BASE
    assert recovered(path) == (fingerprint(replay("orders", life.records)), len(life.records))


def test_a_migration_that_cannot_be_written_is_no_damage_and_can_be_done_later(
    tmp_path: Path,
) -> None:
    life = Life().live(60)
    path = tmp_path / "journal.db"
    write_format_1(path, life)
    told = on_a_full_disk(path, 3_000, "open")
    assert told.startswith("JournalError ") and "cannot open" in told
    assert "disk I/O error" in told or "the disk is full" in told
    assert version_of(path) == 1
    assert recovered(path) == (fingerprint(replay("orders", life.records)), len(life.records))


# --- beside a writer


def test_a_write_lock_held_by_another_process_delays_the_writer_and_never_fails_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As by a trim that was stopped in the middle of a chunk, longer than any busy timeout."""
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path, checkpoint_bytes=1, busy_timeout_s=0.02)
    other = sqlite3.connect(path, isolation_level=None)
    sequence = 0
    for count in (1, 300):  # one statement, and many in a transaction
        other.execute("BEGIN IMMEDIATE")
        first, sequence = sequence + 1, sequence + count
        caplog.clear()
        journal.append("orders", first, samples("orders", first, sequence))
        poll(lambda: caplog.records, WAIT_S, "the writer says that it waits")
        assert not journal.wait_durable("orders", sequence, 0.1)
        other.execute("ROLLBACK")
        assert journal.wait_durable("orders", sequence, WAIT_S)
    other.execute("BEGIN IMMEDIATE")
    dropping = threading.Thread(target=journal.drop, args=("orders",))
    caplog.clear()
    dropping.start()
    poll(lambda: caplog.records, WAIT_S, "the drop waits")
    other.execute("ROLLBACK")
    dropping.join(WAIT_S)
    assert journal.channels() == []
    other.close()
    journal.close()


@pytest.mark.parametrize("count", [1, 300], ids=["one-statement", "a-transaction"])
def test_a_held_write_lock_does_not_keep_a_journal_from_being_closed(
    tmp_path: Path, count: int
) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path, busy_timeout_s=0.05)
    journal.append("orders", 1, samples("orders", 1, 1))
    assert journal.wait_durable("orders", 1, WAIT_S)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    journal.append("orders", 2, samples("orders", 2, 1 + count))
    told: list[Exception] = []

    def close() -> None:
        try:
            journal.close()
        except JournalError as error:
            told.append(error)

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert "what was queued is not written: another process" in str(told[0])
    assert "Nothing of it was answered" in str(told[0])
    with pytest.raises(JournalError, match="what was queued is not written"):
        journal.wait_durable("orders", 2, WAIT_S)
    other.execute("ROLLBACK")
    other.close()
    journal = SqliteJournal(path)
    assert journal.durable("orders") == 1
    journal.close()


def test_opening_a_store_whose_write_lock_is_held_says_so_and_what_to_do(tmp_path: Path) -> None:
    path = write_store(tmp_path / "journal.db", Life().live(20))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match="cannot open: another process, perhaps an export") as e:
        SqliteJournal(path, busy_timeout_s=0.02)
    assert "or end it, and try again" in str(e.value) and e.value.code == "journal-error"
    other.execute("ROLLBACK")
    other.close()
    SqliteJournal(path).close()


def test_a_checkpoint_beside_a_held_write_lock_does_not_fail(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append("orders", 1, samples("orders", 1, 50))
    assert journal.wait_durable("orders", 50, WAIT_S)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    journal._store.checkpoint_aside()
    journal._store.checkpoint()
    other.execute("ROLLBACK")
    other.close()
    journal.close()


def test_recovery_starts_over_when_a_trim_overtakes_it(tmp_path: Path) -> None:
    life = Life().live(400)
    path = write_store(tmp_path / "journal.db", life)
    journal = SqliteJournal(path)
    bases: list[int] = []

    class Overtaken:
        """The journal, with a trim after the base was read and one in the middle of reading."""

        def base(self, name: str) -> Base:
            base = journal.base(name)
            bases.append(base.sequence)
            if len(bases) == 1:
                trim(path, life, 50)
            return base

        def read(self, name: str, first: int | None = None) -> Any:
            for sequence, record in journal.read(name, first):
                if len(bases) == 2 and sequence == 60:
                    trim(path, life, 200)
                yield sequence, record

    channel, sequence = recover(Overtaken(), "orders")  # type: ignore[arg-type]
    assert bases == [0, 50, 200]
    assert (fingerprint(channel), sequence) == (
        fingerprint(replay("orders", life.records)), len(life.records),
    )  # fmt: skip
    journal.close()


@pytest.mark.parametrize("durability", ["fsync", "flush"])
def test_many_trims_beside_a_busy_writer_fail_no_append_and_change_no_state(
    tmp_path: Path, durability: Any
) -> None:
    """A real process trims; two threads write, checkpoints included. The second channel is left
    alone: nothing of it may go."""
    pytest.importorskip("pyarrow")
    life, other = Life(5).live(6_000), Life(6, name="billing").live(1_500)
    path, archive = tmp_path / "journal.db", tmp_path / "archive"
    failures: list[JournalError] = []
    journal = SqliteJournal(
        path, durability, checkpoint_bytes=400_000, on_failure=failures.append
    )
    journal.append("orders", 1, life.records[:20])
    assert journal.wait_durable("orders", 20, WAIT_S)
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent / "trimming_child.py"), path, archive, "orders"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    bases = [int(child.stdout.readline())]
    reader = threading.Thread(target=lambda: bases.extend(map(int, child.stdout or ())))
    reader.start()

    def write(name: str, records: list[Any], first: int, batch: int) -> None:
        for start in range(first - 1, len(records), batch):
            if name == "orders" and start // batch in (400, 800, 1_200):
                # Trims must fall between the writes also on a machine that is busy with others.
                wanted = start // batch // 400
                poll(lambda: len(set(bases)) > wanted, 60, f"{wanted} trims")  # noqa: B023
            part = records[start : start + batch]
            last = journal.append(name, start + 1, part)
            assert journal.wait_durable(name, last, WAIT_S)

    threads = [
        threading.Thread(target=write, args=("orders", life.records, 21, 4)),
        threading.Thread(target=write, args=("billing", other.records, 1, 3)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    during = len(set(bases))
    child.stdin.close()
    assert child.wait(60) == 0
    reader.join()
    assert failures == []
    journal.close()
    assert during > 3, f"trims while the writer wrote: {bases}"
    assert bases == sorted(bases)
    export_channel(path, archive, "orders", trim=True)
    assert recovered(path) == (fingerprint(replay("orders", life.records)), len(life.records))
    assert recovered(path, "billing")[0] == fingerprint(replay("billing", other.records))
    assert len(rows_in(path, "billing")) == len(other.records)
    assert read_limits(str(path), "orders")[1].checksum == checksums("orders", life.records)[-1]
