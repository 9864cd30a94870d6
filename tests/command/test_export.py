"""``fairlead export``: beside a running broker and without one, what it says and how it ends."""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

from broker.core.channel import Channel
from broker.core.policy import Policy
from broker.core.records import PublisherOpened
from broker.journal.archive import list_files, verify
from broker.journal.sqlite import SqliteJournal
from tests.processes import BrokerProcess, environment, run_fairlead

pytest.importorskip("pyarrow")


def worked_on(broker: BrokerProcess, channel: str, count: int, open_: int = 0) -> None:
    """Publish and handle ``count`` messages, then publish ``open_`` more that nobody takes."""
    lines = "".join(f"customer-{i % 7}:{i}\n" for i in range(count))
    done = broker.run("pub", channel, "--key-delimiter", ":", stdin=lines)
    assert done.returncode == 0, done.stderr
    done = broker.run("sub", channel, "--count", count)
    assert done.returncode == 0, done.stderr
    for number in range(open_):
        assert broker.run("pub", channel, "-K", "late", f"open-{number}").returncode == 0


def count_rows(store: Path) -> int:
    connection = sqlite3.connect(store)
    try:
        return int(connection.execute("SELECT count(*) FROM records").fetchone()[0])
    finally:
        connection.close()


def export_json(*args: object) -> dict[str, Any]:
    done = run_fairlead("export", *args, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["channels"]
    return dict(row)


def test_a_store_is_exported_and_trimmed_beside_its_running_broker(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start_broker("--channel", "orders")
    worked_on(broker, "orders", 60, open_=2)
    archive = tmp_path / "archive"
    row = export_json(broker.store, "--archive", archive, "--trim")
    assert row["trimmed"] == row["records"] == row["settled"] == row["base"] > 3
    oldest = row["oldest_unsettled"]
    assert (oldest["partition"], oldest["sequence"]) == ("late", 1)
    assert oldest["record"] == row["base"] + 1
    assert verify(archive, "orders").sequence == row["base"]

    assert broker.alive, broker.tail()
    worked_on(broker, "orders", 5)  # the first of these are the two that were open
    broker.kill9()
    broker.start()
    done = broker.run("sub", "orders", "--count", 2)
    assert done.returncode == 0, "what was unsettled is delivered after a restart"
    broker.stop()
    verified = run_fairlead("journal", "verify", broker.store, "--json")
    (found,) = json.loads(verified.stdout)["channels"]
    assert (found["verdict"], found["archived"]) == ("valid", row["base"])
    assert (found["messages"], found["unsettled"]) == (67, 0)

    row = export_json(broker.store, "--archive", archive, "--trim")
    assert (row["stays"], count_rows(broker.store), row["reason"]) == (0, 0, None)
    assert list_files(archive)[-1].last == row["head"]
    broker.start()
    worked_on(broker, "orders", 3)


def test_the_summary_for_people_says_what_was_done_and_what_stays_and_why(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start_broker("--channel", "orders", "--channel", "quiet")
    worked_on(broker, "orders", 10, open_=1)
    before = count_rows(broker.store)
    done = run_fairlead("export", broker.store, "--archive", tmp_path / "a", "--channel", "orders")
    header, line = done.stdout.splitlines()
    assert header.split() == ["CHANNEL", "EXPORTED", "FILES", "BYTES", "TRIMMED", "STAYS", "WHY"]
    assert line.startswith("orders   1-") and "holds the oldest unsettled message" in line
    assert "partition late sequence 1" in line
    assert (done.returncode, done.stderr, count_rows(broker.store)) == (0, "", before)
    done = run_fairlead("export", broker.store, "--archive", tmp_path / "a", "--trim")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["CHANNEL", "orders", "quiet"]
    assert "does not shrink" in done.stderr
    row = export_json(
        broker.store, "--archive", tmp_path / "a", "--channel", "orders", "--all", "--trim",
        "--keep-records", 5,
    )  # fmt: skip
    assert row["last"] == row["head"] and row["stays"] > 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["STORE", "--archive", "DIR", "--keep-records", "5"], 2, "give --trim too"),
        (["STORE", "--archive", "DIR", "--trim", "--keep-records", "-1"], 2, "keep-records"),
        (["STORE"], 2, "--archive"),
        (["nowhere.db", "--archive", "DIR"], 1, "there is no store nowhere.db"),
        (["STORE", "--archive", "STORE"], 1, "is no directory"),
        (["STORE", "--archive", "DIR", "--channel", "nope"], 1, "has no channel nope"),
        (["README", "--archive", "DIR"], 1, "cannot read: the file is damaged: file is not a data"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_its_exit_code(
    tmp_path: Path, words: list[str], code: int, text: str
) -> None:
    SqliteJournal(tmp_path / "s.db").close()
    (tmp_path / "readme").write_text("no database at all, but some text\n" * 50)
    places = {
        "STORE": tmp_path / "s.db", "DIR": tmp_path / "archive", "README": tmp_path / "readme",
    }  # fmt: skip
    done = run_fairlead("export", *[places.get(word, word) for word in words])
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("fairlead: ") and done.stderr.count("\n") == 1
    assert text in done.stderr and "this is a bug" not in done.stderr


def test_a_store_without_channels_is_no_failure(tmp_path: Path) -> None:
    SqliteJournal(tmp_path / "s.db").close()
    done = run_fairlead("export", tmp_path / "s.db", "--archive", tmp_path / "archive")
    assert (done.returncode, done.stdout) == (0, "") and "has no channels" in done.stderr


def test_a_channel_that_fails_does_not_keep_the_others_from_being_exported(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start_broker("--channel", "orders", "--channel", "billing")
    worked_on(broker, "orders", 5)
    worked_on(broker, "billing", 5)
    broker.stop()
    connection = sqlite3.connect(broker.store)
    with connection:
        connection.execute(
            "UPDATE records SET at_ms = at_ms + 1 WHERE channel = 'orders' AND sequence = 3"
        )
    connection.close()
    archive = tmp_path / "archive"
    done = run_fairlead("export", broker.store, "--archive", archive, "--trim", "--json")
    assert done.returncode == 1
    bad, good = json.loads(done.stdout)["channels"]
    assert bad["code"] == "journal-corrupt" and "record 3 is damaged" in bad["error"]
    assert good["channel"] == "billing" and good["trimmed"] > 0
    assert {file.channel for file in list_files(archive)} == {"billing"}


def test_a_full_archive_disk_is_told_in_the_json_beside_the_channels_that_were_done(
    tmp_path: Path,
) -> None:
    """No file may grow beyond 60,000 bytes: enough for the first channel, not for the second."""
    store, archive = tmp_path / "s.db", tmp_path / "archive"
    journal = SqliteJournal(store)
    rng = random.Random(1)
    for name in ("small", "large"):
        journal.append(name, 1, Channel.birth(name, Policy(), 1))
    opened = [PublisherOpened(5, f"p{i}-{rng.randbytes(40).hex()}", 1) for i in range(5_000)]
    journal.append("large", 3, opened)
    journal.close()
    code = (
        "import resource, sys; from fairlead.command import run; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY)); "
        "sys.exit(run(sys.argv[1:]))"
    )
    words = ["export", str(store), "--archive", str(archive), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    small, large = json.loads(done.stdout)["channels"]
    assert (small["channel"], small["records"]) == ("small", 2)
    assert large["code"] == "journal-error" and f"archive {archive}" in large["error"]
    assert "free space and run the export again" in large["error"]
    assert {file.channel for file in list_files(archive)} == {"small"}
    assert list(archive.rglob(".*")) == [], "nothing unfinished is left"
    assert run_fairlead("export", store, "--archive", archive).returncode == 0
    assert verify(archive, "large").sequence == 5_002
