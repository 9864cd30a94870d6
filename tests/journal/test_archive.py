"""The archive: what is exported, that it is the journal bit for bit, and that nothing is trimmed
before the archive has it.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import re
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from histories import START_MS, Life, alter, replay, rows_in, write_store
from journal_samples import copy_store

from broker.core import commands as c
from broker.core.message import PartitionKey
from broker.errors import JournalCorrupt, JournalError, JournalGap
from broker.journal import archive, archive_parquet, settled
from broker.journal.archive import (
    ArchiveFile,
    Link,
    export_channel,
    list_files,
    read_batches,
    read_rows,
    verify,
)
from broker.journal.archive_files import channel_directory, day_of, file_path
from broker.journal.bases import make_base, sizes_of
from broker.journal.codec import AT_MS, CHECKSUM, COLUMNS
from broker.journal.recovery import recover
from broker.journal.sqlite import SqliteJournal
from tests.builders import Driven, fingerprint, publish_command
from tests.processes import environment

pytest.importorskip("pyarrow")


def recovered(path: Path) -> Any:
    journal = SqliteJournal(path)
    try:
        return fingerprint(recover(journal, "orders")[0])
    finally:
        journal.close()


def archived_rows(directory: Path, channel: str = "orders") -> list[Any]:
    return [row for file in list_files(directory, channel) for row in read_rows(file)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def life() -> Life:
    return Life().live(300).settle_all()


@pytest.fixture
def store(tmp_path: Path, life: Life) -> Path:
    return write_store(tmp_path / "journal.db", life)


# --- the files


def test_an_archive_holds_the_rows_of_the_store_bit_for_bit_by_utc_day(
    store: Path, directory: Path, life: Life
) -> None:
    rows = rows_in(store)
    done = export_channel(store, directory, "orders")
    assert (done.first, done.last, done.archived) == (1, len(rows), len(rows))
    assert archived_rows(directory) == rows
    files = list_files(directory)
    assert done.files == len(files) > 1, "the life takes several days"
    assert done.bytes == sum(file.path.stat().st_size for file in files)
    for file in files:
        days = {day_of(row[AT_MS]) for row in read_rows(file)}
        assert file.path.parent.name == f"day={days.pop()}" and not days
        assert file.path.name == f"{file.first:012}-{file.last:012}.parquet"
    assert rows_in(store) == rows, "without --trim the store is left alone"


def test_files_and_row_groups_are_bounded_in_rows_and_bytes(
    store: Path, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet

    monkeypatch.setattr(archive_parquet, "FILE_ROWS_MAX", 40)
    monkeypatch.setattr(archive_parquet, "GROUP_ROWS_MAX", 15)
    export_channel(store, directory, "orders")
    files = list_files(directory)
    assert max(file.last - file.first + 1 for file in files) == 40
    full = next(file for file in files if file.last - file.first + 1 == 40)
    metadata = pyarrow.parquet.read_metadata(full.path)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    assert max(group.num_rows for group in groups) == 15
    sequence = groups[1].column(COLUMNS.index("sequence"))
    assert (sequence.statistics.min, sequence.compression) == (full.first + 15, "ZSTD")
    assert archived_rows(directory) == rows_in(store)

    monkeypatch.setattr(archive_parquet, "FILE_BYTES_MAX", 2_000)
    monkeypatch.setattr(archive_parquet, "GROUP_BYTES_MAX", 500)
    export_channel(store, tmp_path / "by-bytes", "orders")
    assert len(list_files(tmp_path / "by-bytes")) > len(files)
    assert archived_rows(tmp_path / "by-bytes") == rows_in(store)


def test_a_range_of_a_file_can_be_read_and_only_some_columns(
    store: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_parquet, "GROUP_ROWS_MAX", 7)
    monkeypatch.setattr(archive_parquet, "BATCH_ROWS", 3)
    rows = rows_in(store)
    export_channel(store, directory, "orders")
    rng = random.Random(3)
    file = max(list_files(directory), key=lambda file: file.last - file.first)
    for _ in range(40):
        first = rng.randint(file.first - 3, file.last + 3)
        last = rng.randint(first - 1, file.last + 3)
        expected = rows[max(first, file.first) - 1 : min(last, file.last)]
        assert list(read_rows(file, first, last)) == expected
    batches = list(read_batches(file, file.first + 1, file.last, ["sequence", "kind"]))
    assert batches[0].schema.names == ["sequence", "kind"]
    assert [n for batch in batches for n in batch.column(0).to_pylist()] == list(
        range(file.first + 1, file.last + 1)
    )


def test_a_clock_that_was_set_back_makes_more_files_and_keeps_the_order(
    tmp_path: Path, directory: Path
) -> None:
    life = Life(step_ms=2)
    for jump in (0, 86_400_000, -86_400_000):
        life.now_ms += jump
        life.live(len(life.records) + 20)
    store = write_store(tmp_path / "journal.db", life.settle_all())
    export_channel(store, directory, "orders")
    days = [file.path.parent.name for file in list_files(directory)]
    assert days == [
        "day=1970-01-01", *(f"day={day_of(START_MS + ms)}" for ms in (0, 86_400_000, 0))
    ]
    assert archived_rows(directory) == rows_in(store)


def touch(directory: Path, channel: str, first: int, last: int) -> None:
    path = file_path(channel_directory(directory, channel), "2024-01-01", first, last)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_the_list_of_files_is_sorted_and_passes_over_what_is_none(directory: Path) -> None:
    for channel, first, last in (("b", 1, 5), ("a/ä", 6, 10**12), ("a/ä", 1, 5), ("b", 6, 6)):
        touch(directory, channel, first, last)
    folder = channel_directory(directory, "b")
    (folder / ".000000000007.unfinished").touch()
    (folder / "day=2024-01-01" / "notes.parquet").touch()
    assert [(file.channel, file.first, file.last) for file in list_files(directory)] == [
        ("a/ä", 1, 5), ("a/ä", 6, 10**12), ("b", 1, 5), ("b", 6, 6),
    ]  # fmt: skip
    assert [file.first for file in list_files(directory, "b")] == [1, 6]
    assert list_files(directory, "none") == [] == list_files(directory / "none")


@pytest.mark.parametrize(
    ("ranges", "error", "text"),
    [
        ([(1, 5), (7, 9)], JournalGap, "record 6 is missing: the archive goes on with"),
        ([(2, 5)], JournalGap, "record 1 is missing"),
        ([(1, 5), (5, 9)], JournalCorrupt, "starts at record 5, but the files before it end at 5"),
        ([(1, 9), (2, 3)], JournalCorrupt, "starts at record 2"),
        ([(1, 5), (1, 6)], JournalCorrupt, "starts at record 1"),
    ],
)
def test_a_list_with_gaps_or_overlaps_is_refused_and_says_where(
    directory: Path, ranges: list[tuple[int, int]], error: type[JournalError], text: str
) -> None:
    for first, last in ranges:
        touch(directory, "orders", first, last)
    with pytest.raises(error, match=text):
        list_files(directory)


def test_without_pyarrow_files_are_listed_and_all_else_says_what_to_install(
    store: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(directory, "orders", 1, 5)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    files = list_files(directory)
    assert len(files) == 1
    with pytest.raises(JournalError, match=r"fairlead\[spark\]"):
        list(read_rows(files[0]))
    with pytest.raises(JournalError, match=r"fairlead\[spark\]"):
        export_channel(store, directory, "orders")


def test_a_broker_does_not_import_pyarrow() -> None:
    code = "import sys, fairlead.command; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


# --- how far


def expected_settled(life: Driven) -> int:
    """By the definition: the longest prefix that published nothing which is unsettled now."""
    channel = replay(life.channel.name, life.records)
    open_ = {
        (line.key, entry[1])
        for group in channel.subscriptions_list
        for line in channel.backup.lines(group)
        if not line.parked
        for entry in line.messages[line.head :]
    }
    for sequence, record in enumerate(life.records, 1):
        if record.kind == "Published":
            for partition, first, count in zip(record.partitions, record.firsts, record.counts):
                key = (record.publisher, partition)
                if any((key, number) in open_ for number in range(first, first + count)):
                    return sequence - 1
    return len(life.records)


@pytest.mark.parametrize("seed", range(12))
def test_the_settled_prefix_ends_before_the_oldest_unsettled_message(
    tmp_path: Path, directory: Path, seed: int
) -> None:
    life = Life(seed)
    if seed % 3 == 0:
        life.do(c.CreateSubscription("late"))
    life.live(120 + 7 * seed)
    if seed % 3 == 1:
        life.settle_all()
        life.send("last", 2)
    store = write_store(tmp_path / "journal.db", life)
    done = export_channel(store, directory, "orders")
    assert done.settled == expected_settled(life)
    assert done.last in (0, done.settled) and done.archived == done.settled
    assert (done.oldest is None) == (done.settled == len(life.records))
    if done.oldest is not None:
        record: Any = life.records[done.oldest.record - 1]
        index = record.partitions.index(done.oldest.key.partition)
        assert done.oldest.record == done.settled + 1
        assert 0 <= done.oldest.sequence - record.firsts[index] < record.counts[index]


def parked_life(poison: str) -> Driven:
    """One message parked, or its partition, with settled ones around it."""
    life = Driven(poison=poison, attempts_max=1)
    life.now_ms = START_MS
    life.subscribe("s")
    life.publish("a", b"poison", b"behind")
    life.publish("b", b"fine")
    for send in life.dispatch()["s"]:
        record = send.delivered
        for key, epoch, last in zip(record.keys, record.epochs, record.counts):
            if key.partition == "a":
                life.do(c.Nack("default", "s", "s-1", epoch, 1, "no", None, False))
            else:
                life.ack("s", epoch, last)
    if poison == "park_message":
        for send in life.dispatch()["s"]:
            life.ack("s", send.delivered.epochs[0], 2)
    return life


@pytest.mark.parametrize("poison", ["park_message", "park_partition"])
def test_parked_messages_hold_nothing_up_and_live_on_in_the_base(
    tmp_path: Path, directory: Path, poison: str
) -> None:
    life = parked_life(poison)
    store = write_store(tmp_path / "journal.db", life)
    done = export_channel(store, directory, "orders", trim=True)
    assert done.base == done.settled == len(life.records) and rows_in(store) == []
    assert recovered(store) == fingerprint(replay("orders", life.records))
    end = len(life.records)
    life.do(c.Redrive("default", None, False))
    write_store(store, life)
    done = export_channel(store, directory, "orders", trim=True)
    assert (done.settled, done.archived, done.trimmed) == (end, 0, 0), "unsettled once more"
    assert "an archived record holds the oldest unsettled message" in done.reason
    assert "partition a sequence 1" in done.reason
    life.now_ms += 60_000
    for send in life.dispatch()["s"]:
        record = send.delivered
        life.ack("s", record.epochs[0], record.firsts[-1] + record.counts[-1] - 1)
    write_store(store, life)
    done = export_channel(store, directory, "orders", trim=True)
    assert done.base == len(life.records)
    assert recovered(store) == fingerprint(replay("orders", life.records))


def test_everything_is_archived_on_request_and_trimmed_only_as_far_as_settled(
    tmp_path: Path, directory: Path
) -> None:
    life = Life().live(100).settle_all()
    settled_upto = len(life.records)
    life.send("open", 1)
    life.send("more", 1)
    store = write_store(tmp_path / "journal.db", life)
    done = export_channel(store, directory, "orders", everything=True, trim=True)
    assert (done.last, done.base) == (len(life.records), settled_upto)
    assert f"record {settled_upto + 1} holds the oldest unsettled message" in done.reason
    assert "partition open sequence 1" in done.reason
    assert len(rows_in(store)) == 2
    life.settle_all()
    write_store(store, life)
    done = export_channel(store, directory, "orders", trim=True)
    assert done.first == settled_upto + 3, "the archive goes on where it ended"
    assert len(archived_rows(directory)) == len(life.records)


def test_the_last_records_are_kept_on_request(store: Path, directory: Path, life: Life) -> None:
    rows = rows_in(store)
    done = export_channel(store, directory, "orders", trim=True, keep_records=25)
    assert rows_in(store) == rows[-25:] and done.base == len(rows) - 25
    assert "last 25 records are kept" in done.reason
    assert export_channel(store, directory, "orders", trim=True, keep_records=25).trimmed == 0
    assert export_channel(store, directory, "orders", trim=True, keep_records=10**9).trimmed == 0
    assert recovered(store) == fingerprint(replay("orders", life.records))


def test_a_cut_is_made_where_the_channel_held_little(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bodies that were unsettled at the cut go into the base; a backlog would be too much."""
    life = Life().live(60).settle_all()
    calm = len(life.records)
    for number in range(30):
        life.send(f"backlog-{number}", 3)
    life.subscribe("worker-3", 100)
    backlog = len(life.records)
    life.settle_all()
    store = write_store(tmp_path / "journal.db", life)
    limit = 300
    monkeypatch.setattr(settled, "UNSETTLED_BYTES_MAX", limit)
    done = export_channel(store, directory, "orders", trim=True, keep_records=40)
    records = life.records
    held = [
        replay("orders", records[:upto]).subscriptions_list[0].pending_bytes
        for upto in range(2, len(records) - 39)
    ]
    light = max(upto for upto, size in enumerate(held, 2) if size <= limit)
    assert calm <= light < backlog and done.base == light
    assert "more than a base takes" in done.reason
    assert recovered(store) == fingerprint(replay("orders", records))


def test_a_state_that_is_too_large_is_not_stored_and_nothing_is_trimmed(
    store: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_in(store)
    monkeypatch.setattr(archive, "STATE_BYTES_MAX", 10)
    done = export_channel(store, directory, "orders", trim=True)
    assert (done.base, done.trimmed, rows_in(store)) == (0, 0, rows)
    assert "a base holds 10: 12 partitions take " in done.reason
    assert "redrive" not in done.reason


def test_the_reason_for_a_state_that_is_too_large_says_what_takes_the_space() -> None:
    """One partition with a parked message of 5,000 bytes, one with a pending one of 3,000, ids."""
    driven = Driven(attempts_max=1)
    driven.subscribe("worker-1", 50)
    driven.do(publish_command("billing", {"a": (1, [b"x" * 5_000])}))
    driven.dispatch()
    (line,) = driven.channel.backup.find(PartitionKey("billing", "a")).lines  # type: ignore[union-attr]
    driven.do(c.Nack("default", "worker-1", "worker-1-1", line.epoch, 1, "test", 0))
    driven.do(publish_command("billing", {"b": (1, [b"x" * 3_000])}))
    driven.channel.delivered_ids.add(["id-1", "id-2"])
    base = make_base(driven.channel, 1, 1)
    found = re.fullmatch(
        r"2 partitions take (\d+) bytes, pending messages (\d+), parked messages (\d+), "
        r"ids of delivered messages (\d+)",
        sizes_of(base),
    )
    assert found is not None, sizes_of(base)
    rest, pending, parked, ids = map(int, found.groups())
    assert 3_000 < pending < 3_100 and 5_000 < parked < 5_200 and 10 < ids < 20
    assert rest + pending + parked + ids == len(base.state)


# --- going on, and what does not fit


def test_many_exports_make_one_archive_and_the_store_recovers_after_each(
    tmp_path: Path, directory: Path
) -> None:
    life = Life(4)
    store = tmp_path / "journal.db"
    whole = tmp_path / "whole.db"
    for round_ in range(6):
        life.live(len(life.records) + 70)
        write_store(store, life)
        write_store(whole, life)
        export_channel(store, directory, "orders", trim=round_ % 2 == 1)
        assert recovered(store) == recovered(whole)
    life.settle_all()
    write_store(store, life)
    write_store(whole, life)
    export_channel(store, directory, "orders", trim=True)
    assert rows_in(store) == [] and archived_rows(directory) == rows_in(whole)
    assert verify(directory, "orders") == Link(len(life.records), rows_in(whole)[-1][CHECKSUM])


def test_an_archive_of_another_journal_is_refused_before_anything_is_added(
    tmp_path: Path, store: Path, directory: Path
) -> None:
    other = write_store(tmp_path / "other.db", Life(9).live(100).settle_all())
    export_channel(other, directory, "orders")
    before = archived_rows(directory)
    with pytest.raises(JournalCorrupt, match="belongs to another store"):
        export_channel(store, directory, "orders", trim=True)
    assert archived_rows(directory) == before


def test_an_archive_that_is_ahead_of_the_store_is_refused(
    tmp_path: Path, directory: Path
) -> None:
    """The store was put back from an older copy."""
    life = Life(9).live(60).settle_all()
    store = write_store(tmp_path / "journal.db", life)
    old = tmp_path / "old.db"
    copy_store(store, old)
    write_store(store, life.live(90).settle_all())
    export_channel(store, directory, "orders")
    with pytest.raises(JournalCorrupt, match="which ends at"):
        export_channel(old, directory, "orders", trim=True)


def test_a_trimmed_channel_needs_the_archive_that_has_its_beginning(
    tmp_path: Path, store: Path, directory: Path, life: Life
) -> None:
    export_channel(store, directory, "orders", trim=True, keep_records=20)
    with pytest.raises(JournalGap, match="they are in another archive"):
        export_channel(store, tmp_path / "new", "orders")


def test_a_damaged_archive_stops_the_trim_and_names_the_file(
    store: Path, directory: Path
) -> None:
    rows = rows_in(store)
    export_channel(store, directory, "orders")
    victim = list_files(directory)[1].path
    whole = victim.read_bytes()
    rng = random.Random(1)
    refused = 0
    for _ in range(60):
        content = bytearray(whole)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        victim.write_bytes(content)
        try:
            verify(directory, "orders")
        except JournalError as error:
            refused += 1
            assert victim.name in str(error) or "journal record" in str(error)
            with pytest.raises(JournalError):
                export_channel(store, directory, "orders", trim=True)
            assert rows_in(store) == rows
        else:
            assert archived_rows(directory) == rows, "a bit that means nothing"
    assert refused > 40
    victim.write_bytes(whole)
    assert export_channel(store, directory, "orders", trim=True).trimmed == len(rows)


def test_a_file_with_other_rows_than_its_name_says_is_refused(
    store: Path, directory: Path
) -> None:
    export_channel(store, directory, "orders")
    file = list_files(directory)[-1]
    longer = file_path(file.path.parents[1], file.path.parent.name[4:], file.first, file.last + 1)
    file.path.rename(longer)
    with pytest.raises(JournalCorrupt, match="its name promises"):
        verify(directory, "orders")
    with pytest.raises(JournalCorrupt, match="is damaged"):
        list(read_rows(ArchiveFile("orders", 1, 2, Path(__file__))))


def test_verification_can_start_at_a_known_link_and_notices_a_wrong_one(
    store: Path, directory: Path
) -> None:
    rows = rows_in(store)
    export_channel(store, directory, "orders")
    end = Link(len(rows), rows[-1][CHECKSUM])
    assert verify(directory, "orders", Link(50, rows[49][CHECKSUM])) == end
    assert verify(directory, "orders", upto=70) == Link(70, rows[69][CHECKSUM])
    with pytest.raises(JournalCorrupt, match="record 51"):
        verify(directory, "orders", Link(50, 1))
    with pytest.raises(JournalGap, match=f"record {len(rows) + 1} is missing"):
        verify(directory, "orders", upto=len(rows) + 1)


def test_a_damaged_store_is_not_exported(store: Path, directory: Path) -> None:
    alter(store, "UPDATE records SET at_ms = at_ms + 1 WHERE sequence = 40")
    with pytest.raises(JournalCorrupt, match="record 40 is damaged"):
        export_channel(store, directory, "orders", trim=True)
    assert list_files(directory) == []


def test_two_exports_into_one_archive_do_not_mix(store: Path, directory: Path) -> None:
    steps: list[str] = []

    def export_inside(step: str, count: int, total: int) -> None:
        if step == "archiving" and step not in steps:
            with pytest.raises(JournalError, match="written by another export"):
                export_channel(store, directory, "orders")
        steps.append(step)

    export_channel(store, directory, "orders", trim=True, progress=export_inside)
    assert {"reading", "archiving", "verifying", "trimming"} == set(steps)


def test_a_second_trim_stops_politely_when_the_first_has_come_further(
    tmp_path: Path, store: Path, directory: Path
) -> None:
    other = tmp_path / "other-archive"

    def overtake(step: str, count: int, total: int) -> None:
        if step == "verifying" and count and not overtaken:
            overtaken.append(export_channel(store, other, "orders", trim=True).base)

    overtaken: list[int] = []
    done = export_channel(
        store, directory, "orders", trim=True, keep_records=10, progress=overtake
    )
    assert overtaken and done.trimmed == 0
    assert "another export has trimmed" in done.reason
    assert rows_in(store) == []


# --- interruption


@pytest.mark.parametrize("step", ["reading", "archiving", "verifying", "trimming"])
def test_ctrl_c_leaves_nothing_half_done(
    store: Path, directory: Path, life: Life, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rows_in(store)
    monkeypatch.setattr("broker.journal.sqlite_trim.CHUNK_ROWS", 30)

    def interrupt(at: str, count: int, total: int) -> None:
        if at == step:
            seen.append(at)
            if len(seen) == 5:
                raise KeyboardInterrupt

    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        export_channel(store, directory, "orders", trim=True, progress=interrupt)
    assert not list(Path(directory).rglob(".*")), "no unfinished file"
    assert recovered(store) == fingerprint(replay("orders", life.records))
    export_channel(store, directory, "orders", trim=True)
    assert archived_rows(directory) == whole and rows_in(store) == []


@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("write", 1), ("write", 150), ("before-rename", 3), ("after-file", 1), ("after-file", 2),
        ("after-file", 3), ("verify", 200), ("before-base", 1), ("after-base", 1), ("delete", 1),
        ("delete", 4),
    ],
)  # fmt: skip
def test_kill_9_at_any_point_loses_nothing_and_doubles_nothing(
    tmp_path: Path, store: Path, directory: Path, life: Life, point: str, count: int
) -> None:
    whole = rows_in(store)
    script = Path(__file__).parent / "dying_export.py"
    command = [sys.executable, str(script), str(store), str(directory), point, str(count)]
    killed = subprocess.run(command, env=environment(), timeout=60, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    expected = fingerprint(replay("orders", life.records))
    assert recovered(store) == expected
    kept = rows_in(store)
    assert {*archived_rows(directory), *kept} == set(whole), "together they are the whole journal"
    done = export_channel(store, directory, "orders", trim=True)
    assert done.base == len(whole)
    assert archived_rows(directory) == whole and rows_in(store) == []
    assert not list(Path(directory).rglob(".*")), "what the crash left is gone"
    assert recovered(store) == expected


def test_unfinished_files_are_removed_also_when_there_is_nothing_to_export(
    store: Path, directory: Path
) -> None:
    """A dead export's file may start at another record than the next one's."""
    for sequence in (7, 10**6):
        folder = channel_directory(directory, "orders")
        folder.mkdir(parents=True, exist_ok=True)
        leftover = folder / f".{sequence:012}.unfinished"
        leftover.write_bytes(b"PAR1")
        assert archived_rows(directory) in ([], rows_in(store)), "readers pass over it"
        export_channel(store, directory, "orders")
        assert not leftover.exists()


def test_a_file_has_its_name_only_after_it_was_synced(
    store: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("fsync", "rename"):
        function = getattr(os, name)

        def noted(*args: Any, name: str = name, function: Any = function) -> Any:
            folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            calls.append("directory" if folder else name)
            return function(*args)

        monkeypatch.setattr(os, name, noted)
    export_channel(store, directory, "orders")
    renames = [index for index, call in enumerate(calls) if call == "rename"]
    assert renames
    for index in renames:
        before = [call for call in calls[:index] if call != "directory"]
        assert before[-1] == "fsync" and calls[index + 1] == "directory"


def test_what_the_store_has_not_synced_is_synced_before_it_is_archived(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With durability "flush" a power cut could otherwise leave an archive ahead of its store."""
    life = Life().live(60).settle_all()
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path, "flush", sync_interval_s=3600)
    journal.append("orders", 1, life.records)
    assert journal.wait_durable("orders", len(life.records), 20)
    order: list[str] = []
    fsync, opened = os.fsync, builtins.open
    wal = os.stat(f"{path}-wal").st_ino

    def noted_fsync(fd: int) -> None:
        order.append("wal" if os.fstat(fd).st_ino == wal else "")
        fsync(fd)

    def noted_open(name: Any, *args: Any, **keywords: Any) -> Any:
        order.append(str(name))
        return opened(name, *args, **keywords)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(builtins, "open", noted_open)
    export_channel(path, directory, "orders")
    monkeypatch.undo()
    first_file = next(i for i, item in enumerate(order) if item.endswith(".unfinished"))
    assert "wal" in order[:first_file]
    journal.close()


def test_what_a_trim_relies_on_is_synced_before_the_base_also_when_an_earlier_export_wrote_it(
    store: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That export may have died between the rename and the sync of the folder."""
    monkeypatch.setattr(archive_parquet, "FILE_ROWS_MAX", 40)
    export_channel(store, directory, "orders")
    synced: list[int] = []
    before_base: list[int] = []
    fsync, write_base = os.fsync, archive.write_base

    def noted_fsync(fd: int) -> None:
        fsync(fd)
        synced.append(os.fstat(fd).st_ino)

    def noted_write_base(*args: Any) -> bool:
        before_base.extend(synced)
        return write_base(*args)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(archive, "write_base", noted_write_base)
    done = export_channel(store, directory, "orders", trim=True, keep_records=100)
    assert done.archived == 0 and done.base > 0
    files = [file for file in list_files(directory) if file.first <= done.base]
    assert 1 < len(files) < len(list_files(directory))
    places = {file.path for file in files} | {file.path.parent for file in files}
    places |= {channel_directory(directory, "orders"), directory}
    assert {path.stat().st_ino for path in places} <= set(before_base)


# --- what goes wrong outside


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "The disk is full: free space and run the export again"),
        (errno.EIO, "Correct that and run the export again"),
    ],
)
def test_an_archive_that_cannot_be_written_is_named_and_the_export_goes_on_later(
    store: Path, directory: Path, monkeypatch: pytest.MonkeyPatch, number: int, text: str
) -> None:
    monkeypatch.setattr(archive_parquet, "FILE_ROWS_MAX", 100)
    rows = rows_in(store)
    calls = 0

    def flush(self: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(number, os.strerror(number))
        function(self)

    function = archive_parquet._FileWriter._flush
    monkeypatch.setattr(archive_parquet._FileWriter, "_flush", flush)
    with pytest.raises(JournalError) as caught:
        export_channel(store, directory, "orders", trim=True)
    assert type(caught.value) is JournalError
    assert f"archive {directory}: cannot archive channel 'orders'" in str(caught.value)
    assert os.strerror(number) in str(caught.value) and text in str(caught.value)
    assert rows_in(store) == rows and 0 < len(archived_rows(directory)) < len(rows)
    export_channel(store, directory, "orders")
    assert archived_rows(directory) == rows


def test_a_file_that_was_not_finished_goes_also_when_closing_it_fails(
    store: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is buffered is written on closing: on a full disk that fails once more."""

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(path: Path, mode: str) -> Any:
        return io.BufferedWriter(Full(path, mode), 10**6)

    monkeypatch.setattr(archive_parquet, "open", opened, raising=False)
    with pytest.raises(JournalError, match="free space and run the export again"):
        export_channel(store, directory, "orders")
    assert [path for path in directory.rglob("*") if path.is_file()] == []


def test_the_channels_of_what_is_no_store_are_refused_like_the_store_itself(
    tmp_path: Path,
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database at all, but some text\n" * 50)
    with pytest.raises(JournalCorrupt, match="notes.txt: cannot read: .* not a database"):
        archive.channels_of(path)
    with pytest.raises(JournalError, match="nowhere.db: cannot read: .*unable to open"):
        archive.channels_of(tmp_path / "nowhere.db")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]


def test_the_mark_is_only_looked_at_by_an_export(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: list[int] = []
    opened = os.open

    def noted(path: Any, how: int, *args: Any, **keywords: Any) -> int:
        if str(path).endswith(".mark"):
            flags.append(how & (os.O_ACCMODE | os.O_CREAT))
        return opened(path, how, *args, **keywords)

    monkeypatch.setattr(os, "open", noted)
    assert archive.channels_of(store) == ["orders"]
    assert flags == [os.O_RDONLY]
    Path(f"{store}.mark").unlink()
    assert archive.channels_of(store) == ["orders"]
    assert not Path(f"{store}.mark").exists()


@pytest.mark.parametrize("step", ["reading", "archiving"])
@pytest.mark.parametrize("again", [0, 20, 600])
def test_a_channel_that_is_deleted_or_made_anew_during_an_export_is_not_called_damaged(
    store: Path, directory: Path, step: str, again: int
) -> None:
    journal = SqliteJournal(store)
    heir = Life(2).live(again) if again else None
    if heir is not None and again == 600:  # longer than the first life: its first record tells
        heir.records[0] = replace(heir.records[0], at_ms=heir.now_ms)
    seen = 0

    def progress(name: str, count: int, total: int) -> None:
        nonlocal seen
        seen += name == step
        if seen == 40 and name == step:
            journal.drop("orders")
            if heir is not None:
                journal.append("orders", 1, heir.records)
                assert journal.wait_durable("orders", len(heir.records), 20)

    with pytest.raises(JournalError, match="'orders' was deleted or made anew meanwhile") as caught:
        export_channel(store, directory, "orders", trim=True, progress=progress)
    assert type(caught.value) is JournalError
    if heir is not None:
        assert [record for _, record in journal.read("orders")] == heir.records
    journal.close()


def test_damage_found_while_a_channel_grows_is_still_called_damage(
    store: Path, directory: Path, life: Life
) -> None:
    alter(store, "UPDATE records SET at_ms = at_ms + 1 WHERE sequence = 200")
    journal = SqliteJournal(store)
    end = len(life.records)
    life.live(end + 20)

    def progress(name: str, count: int, total: int) -> None:
        if journal.durable("orders") == end:
            journal.append("orders", end + 1, life.records[end:])
            assert journal.wait_durable("orders", len(life.records), 20)

    with pytest.raises(JournalCorrupt, match="record 200 is damaged"):
        export_channel(store, directory, "orders", progress=progress)
    journal.close()
