"""The audit can fail: each anomaly, planted alone in a good journal, is found by its name alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.core.anomalies import ANOMALIES, TOPIC_ANOMALIES
from spark import checks, history_frame, scan
from spark.audit import Question, audit
from tests.spark import planted

pytestmark = pytest.mark.timeout(300)

Found = dict[str, set[str]]


def judge(spark: SparkSession, question: Question) -> tuple[dict[str, Any], Found]:
    """The verdict, and the anomalies of each channel by name."""
    # All offenders are to be named, or a name could hide among those that are only counted.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark.audit.OFFENDERS_MAX", 100)
        outcome = audit(spark, question)
    outcome.release()
    verdict = outcome.verdict.to_dict()
    found: Found = {item["channel"]: set() for item in verdict["channels"]}
    for check in verdict["checks"]:
        assert check["violations"] == len(check["offenders"]), check
        for offender in check["offenders"]:
            found[offender["channel"]].add(check["name"])
    return verdict, found


@pytest.fixture(scope="module")
def journals(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One store: a good channel, a damaged one, one with a hole, and one per plant."""
    path = tmp_path_factory.mktemp("planted") / "store.db"
    channels = {
        "good": planted.good(),
        "nobody": planted.nobody_there(),
        "late": planted.late_behind_parked(),
    }
    for name, (_, plant) in planted.JOURNAL_PLANTS.items():
        channels[name] = plant(planted.good(name))
    channels |= {name: planted.good(name) for name in ("damaged", "hole", "cut-short")}
    planted.write_store(path, channels)
    with closing(sqlite3.connect(path)) as connection:
        damage = "UPDATE records SET at_ms = at_ms + 1 WHERE channel = 'damaged' AND sequence = 20"
        connection.execute(damage)
        connection.execute("DELETE FROM records WHERE channel = 'hole' AND sequence = 20")
        connection.execute("DELETE FROM records WHERE channel = 'cut-short' AND sequence > 40")
        connection.commit()
    return judge(spark, Question(scan.Place(str(path), None)))


def test_a_good_journal_is_valid(journals: tuple[dict[str, Any], Found]) -> None:
    verdict, found = journals
    assert found["good"] == set()
    (good,) = [item for item in verdict["channels"] if item["channel"] == "good"]
    assert good["verdict"] == "valid" and good["pending"] == 4
    assert verdict["verdict"] == "invalid"


@pytest.mark.parametrize("channel", ["nobody", "late"])
def test_good_journals_that_were_once_called_invalid(
    journals: tuple[dict[str, Any], Found], channel: str
) -> None:
    assert journals[1][channel] == set()


@pytest.mark.parametrize("channel", planted.JOURNAL_PLANTS)
def test_a_fault_in_the_journal_is_found_by_its_name_alone(
    journals: tuple[dict[str, Any], Found], channel: str
) -> None:
    assert journals[1][channel] == {planted.JOURNAL_PLANTS[channel][0]}


@pytest.mark.parametrize(
    "channel, at", [("damaged", 20), ("hole", 20), ("cut-short", 41)]
)
def test_a_damaged_or_missing_record_is_named_and_what_follows_is_not_judged(
    journals: tuple[dict[str, Any], Found], channel: str, at: int
) -> None:
    verdict, found = journals
    assert found[channel] == {"log-integrity"}
    (row,) = [item for item in verdict["channels"] if item["channel"] == channel]
    assert (row["verdict"], row["upto"]) == ("invalid", at - 1)


@pytest.fixture(scope="module")
def with_histories(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Drained channels with the histories of their clients; one fault in each but one."""
    folder = tmp_path_factory.mktemp("histories")
    channels: dict[str, planted.Records] = {}
    for name in ("good", "unsettled", *planted.HISTORY_PLANTS):
        channels[name] = planted.good(name, drained=True)
        files = planted.good_histories(channels[name], name)
        if name in planted.HISTORY_PLANTS:
            files = planted.HISTORY_PLANTS[name][1](files)
        planted.write_histories(folder / "clients", files, name)
    channels["unsettled"].append(planted.published("more", 1, 2))
    planted.write_store(folder / "store.db", channels)
    place = scan.Place(str(folder / "store.db"), None)
    # The publisher of "unsettled" has no line about its last batch: only its own fault is wanted.
    for file in (folder / "clients").glob("unsettled-p.jsonl"):
        file.unlink()
    return judge(spark, Question(place, None, str(folder / "clients"), drained=True))


def test_good_histories_agree_with_a_good_journal(
    with_histories: tuple[dict[str, Any], Found],
) -> None:
    verdict, found = with_histories
    assert found["good"] == set()
    assert verdict["histories_compared"]["publishers"] == len(planted.HISTORY_PLANTS) + 1
    compared = {check["name"]: check["compared"] for check in verdict["checks"]}
    assert compared["aborted-read"] and compared["unseen"] and compared["lost-write"]


@pytest.mark.parametrize("channel", planted.HISTORY_PLANTS)
def test_a_fault_in_the_histories_is_found_by_its_name_alone(
    with_histories: tuple[dict[str, Any], Found], channel: str
) -> None:
    assert with_histories[1][channel] == {planted.HISTORY_PLANTS[channel][0]}


def test_what_is_left_of_a_run_that_is_over_is_unseen(
    with_histories: tuple[dict[str, Any], Found],
) -> None:
    assert with_histories[1]["unsettled"] == {"unseen"}


def test_every_anomaly_is_planted_and_every_check_names_a_defined_one() -> None:
    plants = {name for name, _ in planted.JOURNAL_PLANTS.values()}
    plants |= {name for name, _ in planted.HISTORY_PLANTS.values()}
    assert plants | {"log-integrity"} == set(ANOMALIES) - TOPIC_ANOMALIES
    assert {check.anomaly for check in checks.ALL} == set(ANOMALIES)


def test_a_history_with_a_missing_line_proves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    files = planted.good_histories(planted.good(), "orders")
    planted.write_histories(tmp_path, files, "orders")
    kept = (tmp_path / "orders-p.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "orders-p.jsonl").write_text("".join(kept[:3] + kept[4:]))
    (row,) = history_frame.incomplete(history_frame.lines(spark, str(tmp_path))).collect()
    assert (row["file"], row["found"], row["expected"]) == (
        "orders-p.jsonl", len(kept) - 1, len(kept)
    )  # fmt: skip
