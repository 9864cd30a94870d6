"""The SQLite journal when something fails: it stops, says why, and leaves the store to recovery."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from journal_samples import contents_at, sample, samples

from broker.errors import Deposed, JournalCorrupt, JournalError, JournalGap, JournalVersion
from broker.journal.sqlite import SqliteJournal
from broker.journal.sqlite_store import Store

WAIT_S = 20.0


def written(path: Path, last: int = 5) -> dict[str, list[tuple[int, Any]]]:
    """A closed store at ``path``; returns what is in it."""
    journal = SqliteJournal(path)
    journal.append("orders", 1, samples("orders", 1, last))
    journal.close()
    return {"orders": list(enumerate(samples("orders", 1, last), 1))}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (sqlite3.OperationalError("disk I/O error"), "disk I/O error"),
    ],
)
def test_the_first_failed_write_fails_every_waiter_and_every_later_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    path = tmp_path / "journal.db"
    before = written(path)
    journal = SqliteJournal(path)
    entered, go_on = threading.Event(), threading.Event()
    calls: list[int] = []

    def insert(self: Store, rows: list[Any]) -> None:
        calls.append(len(rows))
        entered.set()
        go_on.wait(WAIT_S)
        raise error

    monkeypatch.setattr(Store, "insert", insert)
    journal.append("orders", 6, samples("orders", 6, 6))
    assert entered.wait(WAIT_S)
    journal.append("billing", 1, samples("billing", 1, 1))  # queued behind the one that fails
    told: list[JournalError] = []

    def wait(channel: str, sequence: int) -> None:
        with pytest.raises(JournalError) as caught:
            journal.wait_durable(channel, sequence, WAIT_S)
        told.append(caught.value)

    waiters = [threading.Thread(target=wait, args=args) for args in (("orders", 6), ("billing", 1))]
    for waiter in waiters:
        waiter.start()
    go_on.set()
    for waiter in waiters:
        waiter.join()
    assert len(told) == 2 and all(text in str(failure) for failure in told)
    with pytest.raises(JournalError, match=text):
        journal.append("orders", 7, samples("orders", 7, 7))
    with pytest.raises(JournalError, match=text):
        journal.drop("orders")
    assert journal.wait_durable("orders", 5, 0.0), "what was durable before still is"
    assert calls == [1], "nothing was tried again"
    journal.close()
    monkeypatch.undo()
    assert contents_at(path) == before


def test_a_full_database_fails_with_a_text_that_says_so_and_keeps_what_was_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal.db"
    before = written(path)
    journal = SqliteJournal(path)
    connection = journal._store._open_connection()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    journal.append("orders", 6, [sample("orders", 6, body_bytes=100_000)])
    with pytest.raises(JournalError, match="the disk is full"):
        journal.wait_durable("orders", 6, WAIT_S)
    journal.close()
    assert contents_at(path) == before


def test_a_failed_periodic_sync_stops_a_flush_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path, "flush", sync_interval_s=0.0)

    def fdatasync(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    journal.append("orders", 1, samples("orders", 1, 1))
    journal._writer.join(WAIT_S)
    with pytest.raises(JournalError, match="Input/output error"):
        journal.append("orders", 2, samples("orders", 2, 2))


def test_a_record_that_cannot_be_encoded_stops_the_journal_and_names_itself(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db")
    bad: Any = sample("orders", 2)
    bad.entries = bad.entries[:-1]
    journal.append("orders", 1, [sample("orders", 1), bad])
    with pytest.raises(JournalError, match=r"'orders': record 2 \(Published\) cannot be encoded"):
        journal.wait_durable("orders", 2, WAIT_S)
    journal.close()


def test_a_write_of_another_process_deposes_this_one(tmp_path: Path) -> None:
    """The lock file keeps brokers apart; the store is the fence if it does not (test_trim.py)."""
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append("orders", 1, samples("orders", 1, 1))
    assert journal.wait_durable("orders", 1, WAIT_S)
    other = sqlite3.connect(path)
    with other:
        other.execute(
            "INSERT INTO records SELECT channel, 2, kind, at_ms, publisher, subscriber, "
            "subscription, count, checksum, runs, bodies FROM records"
        )
    other.close()
    journal.append("orders", 2, samples("orders", 2, 3))
    with pytest.raises(Deposed, match="'orders': journal record 2 has been written by another"):
        journal.wait_durable("orders", 3, WAIT_S)
    journal.close()


def test_a_store_that_is_open_cannot_be_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    with pytest.raises(JournalError, match=f"in use by another broker .process {os.getpid()}"):
        SqliteJournal(path)
    journal.append("orders", 1, samples("orders", 1, 1))
    journal.close()
    assert contents_at(path) == {"orders": [(1, sample("orders", 1))]}


def test_a_zero_length_file_is_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.touch()
    assert contents_at(path) == {}


def test_a_store_whose_making_was_interrupted_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert path.stat().st_size > 0
    assert contents_at(path) == {}


@pytest.mark.parametrize("pragma", ["user_version = 3", "user_version = 0", "application_id = 1"])
def test_a_store_of_another_format_is_refused_as_such(tmp_path: Path, pragma: str) -> None:
    path = tmp_path / "journal.db"
    written(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA {pragma}")
    connection.close()
    with pytest.raises(JournalVersion, match="journal.db is not a Fairlead journal of format 2"):
        SqliteJournal(path)


def test_a_file_that_is_no_database_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"these are not the records you are looking for" * 100)
    with pytest.raises(JournalCorrupt, match="journal.db.*not a database"):
        SqliteJournal(path)


def test_a_directory_that_does_not_exist_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no-such"):
        SqliteJournal(tmp_path / "no-such" / "journal.db")


def test_a_lost_file_is_noticed_by_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    written(path)
    path.unlink()
    with pytest.raises(JournalGap, match="missing or empty.* 5 writes were synced"):
        SqliteJournal(path)


def test_flush_syncs_by_itself_and_then_moves_the_mark(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path, "flush", sync_interval_s=3600)
    mark = Path(f"{path}.mark")
    before = mark.read_bytes()
    journal.append("orders", 1, samples("orders", 1, 3))
    assert journal.wait_durable("orders", 3, WAIT_S)
    assert mark.read_bytes() == before, "written, not synced: the mark must not run ahead"
    journal.close()
    assert mark.read_bytes() != before


def test_statistics_count_commits_rows_and_times(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "journal.db", checkpoint_bytes=1)
    for sequence in (1, 2, 3):
        journal.append("orders", sequence, samples("orders", sequence, sequence))
        assert journal.wait_durable("orders", sequence, WAIT_S)
    assert journal.size_bytes() > 4096
    journal.close()
    found = journal.statistics()
    assert (found["commits"], found["rows"], found["rows_per_commit"]) == (3, 3, 1.0)
    assert found["write_seconds"] > 0 and found["checkpoint_seconds"] > 0
