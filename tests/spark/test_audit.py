"""The audit over journals of real runs, growing and archived ones, and ones that prove nothing."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.core.anomalies import TOPIC_ANOMALIES
from broker.journal.archive import export_channel
from broker.journal.sqlite import SqliteJournal
from fairlead.command import run
from spark import scan
from spark.audit import Question, audit
from tests.spark import planted
from tests.spark.faulty_runs import FaultyStore

pytestmark = pytest.mark.timeout(300)

#: What one audit of one small journal without histories costs with Spark 4.3. A frame that is made
#: twice shows here.
JOBS_MAX = 18


def judge(spark: SparkSession, question: Question) -> dict[str, Any]:
    """The verdict as a dictionary."""
    outcome = audit(spark, question)
    outcome.release()
    return outcome.verdict.to_dict()


def named(verdict: dict[str, Any]) -> dict[str, int]:
    """The anomalies that were found."""
    return {item["name"]: item["violations"] for item in verdict["checks"] if item["violations"]}


def test_journals_and_histories_of_real_runs_with_faults_are_valid(
    spark: SparkSession, faulty_store: FaultyStore
) -> None:
    """More than twenty runs with faults: nothing was broken, so nothing may be found."""
    histories = str(Path(faulty_store.store).parent / "histories")
    verdict = judge(spark, Question(scan.Place(str(faulty_store.store), None), None, histories))
    assert named(verdict) == {}
    assert verdict["verdict"] == "valid" and verdict["reasons"] == []
    judged = [item for item in verdict["channels"] if item["verdict"] == "valid"]
    assert len(judged) == len(faulty_store.channels) >= 20
    compared = {item["name"]: item["compared"] for item in verdict["checks"]}
    # The faults were there to be found: all but those that need --drained compared something.
    assert {name for name, count in compared.items() if count == 0} == TOPIC_ANOMALIES
    assert verdict["histories_compared"]["subscribers"] > 20


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one good channel."""
    path = tmp_path / "store.db"
    planted.write_store(path, {"orders": planted.good()})
    return path


def test_the_number_of_spark_jobs_is_pinned(spark: SparkSession, store: Path) -> None:
    group = "pinned"
    spark.sparkContext.setJobGroup(group, group)
    try:
        assert judge(spark, Question(scan.Place(str(store), None)))["verdict"] == "valid"
    finally:
        spark.sparkContext.setJobGroup("", "")
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(group)
    assert 0 < len(jobs) <= JOBS_MAX, len(jobs)


def test_archive_and_trimmed_store_are_judged_as_one_journal(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    whole = judge(spark, Question(scan.Place(str(store), None)))
    archive = tmp_path / "archive"
    done = export_channel(store, archive, "orders", trim=True)
    assert done.trimmed
    both = judge(spark, Question(scan.Place(str(store), str(archive))))
    keys = ("verdict", "records", "messages", "partitions")
    assert {key: both[key] for key in keys} == {key: whole[key] for key in keys}
    assert both["verdict"] == "valid"
    for one, other in zip(both["checks"], whole["checks"]):
        assert one["compared"] == other["compared"], one["name"]
    alone = judge(spark, Question(scan.Place(str(store), None)))
    assert alone["verdict"] == "unknown"
    assert "--archive" in alone["reasons"][0]


def test_a_growing_journal_is_judged_up_to_a_stated_record_without_a_false_alarm(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Records are appended, one by one, while three audits run; each judges a prefix."""
    records = [item for item in planted.good() if item.durable]
    journal = SqliteJournal(tmp_path / "store.db", durability="flush")
    written = threading.Event()
    stop = threading.Event()

    def append() -> None:
        for sequence, record in enumerate(records, 1):
            journal.append("orders", sequence, [record])
            journal.wait_durable("orders", sequence, 10.0)
            if sequence == 30:
                written.set()
            # Paced by the audits: they last until the last record is there.
            stop.wait(0.4 if sequence > 30 else 0)

    writer = threading.Thread(target=append)
    writer.start()
    try:
        assert written.wait(30)
        uptos = []
        for _ in range(3):
            verdict = judge(spark, Question(scan.Place(str(tmp_path / "store.db"), None)))
            assert named(verdict) == {}
            uptos.append(verdict["channels"][0]["upto"])
            assert verdict["channels"][0]["records"] == uptos[-1]
    finally:
        stop.set()
        writer.join(30)
        journal.close()
    assert uptos == sorted(uptos) and 30 <= uptos[0] < len(records)


def test_nothing_compared_is_unknown(spark: SparkSession, tmp_path: Path) -> None:
    planted.write_store(tmp_path / "empty.db", {})
    assert judge(spark, Question(scan.Place(str(tmp_path / "empty.db"), None)))["verdict"] == (
        "unknown"
    )
    only_made = {"orders": planted.good()[:2]}
    planted.write_store(tmp_path / "made.db", only_made)
    verdict = judge(spark, Question(scan.Place(str(tmp_path / "made.db"), None)))
    assert verdict["verdict"] == "unknown"
    assert "nothing to compare" in verdict["reasons"][0]
    missing = judge(spark, Question(scan.Place(str(tmp_path / "made.db"), None), "other"))
    assert missing["verdict"] == "unknown" and "'other'" in missing["reasons"][0]


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``fairlead audit`` in this process, on the session that is there already."""
    from contextlib import contextmanager

    @contextmanager
    def lent(*_: object) -> Any:
        yield spark

    monkeypatch.setattr("spark.session.quiet", lent)
    return lambda *arguments: run(["audit", *map(str, arguments)])


def test_the_exit_code_is_the_verdict(
    command: Any, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(store) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("verdict: valid\n")
    assert "64 records" in shown and "judged up to".upper() in shown
    _, plant = planted.JOURNAL_PLANTS["stolen-ack"]
    planted.write_store(tmp_path / "bad.db", {"orders": plant(planted.good())})
    report = tmp_path / "report.html"
    assert command(tmp_path / "bad.db", "--json", "--report", report) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "invalid"
    (found,) = [item for item in told["checks"] if item["violations"]]
    assert found["name"] == "fenced-ack" and found["offenders"][0]["sequence"] == 65
    page = report.read_text()
    assert "fenced-ack" in page and "invalid" in page
    assert command(store, "--channel", "nobody") == 2


@pytest.mark.parametrize(
    "arguments, told",
    [
        ([], "give STORE, --archive DIR or both"),
        (["nowhere.db"], "there is no store nowhere.db"),
        (["{store}", "--archive", "nowhere"], "nowhere is no directory"),
        (["{store}", "--histories", "{folder}"], "there is no history in"),
        (["{store}", "--report", "nowhere/report.html"], "there is no folder for"),
    ],
)
def test_what_cannot_be_audited_is_unknown_and_says_what_to_do(
    command: Any, store: Path, tmp_path: Path, arguments: list[str], told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "folder").mkdir()
    filled = [item.format(store=store, folder=tmp_path / "folder") for item in arguments]
    assert command(*filled) == 2
    assert told in capsys.readouterr().err


def test_a_failure_of_the_audit_itself_is_unknown_and_not_a_verdict(
    command: Any, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("too much")

    monkeypatch.setattr("spark.audit.audit", fail)
    assert command(store, "--json") == 2
    assert json.loads(capsys.readouterr().out) == {"verdict": "unknown", "reasons": ["too much"]}


def test_a_report_that_cannot_be_drawn_leaves_the_verdict_standing(
    command: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("spark.report.collect_figures", fail)
    assert command(store, "--report", tmp_path / "report.html") == 0
    assert "the verdict stands" in capsys.readouterr().err


def test_the_archive_of_an_earlier_life_of_a_channel_is_refused(
    command: Any, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A channel deleted and made anew: its archive and its store are two journals, not one."""
    export_channel(store, tmp_path / "archive", "orders", everything=True)
    for count, name in ((20, "shorter.db"), (64, "other.db")):
        records = planted.good()
        records[5].at_ms += 1
        planted.write_store(tmp_path / name, {"orders": records[:count]})
        assert command(tmp_path / name, "--archive", tmp_path / "archive") == 2
        assert "needs an archive of its own" in capsys.readouterr().err


def test_a_store_that_cannot_be_read_is_unknown(
    command: Any, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.db"
    shutil.copy(store, broken)
    pages = bytearray(broken.read_bytes())
    pages[4096 * 3 :] = b"\xff" * (len(pages) - 4096 * 3)
    broken.write_bytes(pages)
    assert command(broken) == 2
    shown = capsys.readouterr().err
    assert "damaged" in shown and "Restore it from a copy" in shown, shown
