"""The journals that benchmarks are made of are honest: the real core's records in a real store."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.journals import CHANNEL, POLICY, Load, Shape, generate
from broker.core.invariants import check
from broker.core.records import RECORD_TYPES, Record
from broker.journal.recovery import recover
from broker.journal.sqlite import SqliteJournal
from tests.builders import fingerprint
from tests.processes import ROOT, environment, run_fairlead
from tests.spark.oracle import Oracle

MESSAGES = 100_000
DURABLE = {kind for kind, cls in RECORD_TYPES.items() if cls.durable}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A store of 10^5 messages, and what was said about it."""
    path = tmp_path_factory.mktemp("journals") / "store.db"
    return path, generate(path, Shape(MESSAGES))


def heads(path: Path) -> list[tuple[Any, ...]]:
    """Where the channels of a store end; the checksum covers every record before it."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT channel, sequence, checksum FROM heads").fetchall()


def test_verify_accepts_the_store_and_finds_everything_settled(
    store: tuple[Path, dict[str, Any]],
) -> None:
    done = run_fairlead("journal", "verify", store[0], "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["channels"]
    assert (row["channel"], row["verdict"], row["unsettled"]) == (CHANNEL, "valid", 0)
    assert row["records"] == store[1]["records"]


def test_recovery_gives_the_channel_that_made_the_journal(
    store: tuple[Path, dict[str, Any]],
) -> None:
    load = Load(Shape(MESSAGES), lambda record: None)
    load.run()
    journal = SqliteJournal(str(store[0]))
    try:
        recovered, sequence = recover(journal, CHANNEL)
    finally:
        journal.close()
    assert sequence == store[1]["records"]
    check(recovered)
    assert fingerprint(recovered) == fingerprint(load.channel)


def test_every_kind_of_record_occurs(store: tuple[Path, dict[str, Any]]) -> None:
    with closing(sqlite3.connect(store[0])) as connection:
        kinds = {kind for (kind,) in connection.execute("SELECT DISTINCT kind FROM records")}
    assert kinds == DURABLE


@pytest.mark.parametrize("runs", [8, 100])
def test_the_history_of_every_subscription_is_whole(runs: int) -> None:
    oracle = Oracle(POLICY.attempts_max)
    published: Counter[str] = Counter()

    def watch(record: Record) -> None:
        published[record.kind] += sum(getattr(record, "counts", ()))
        oracle.watch(record)

    Load(Shape(MESSAGES, runs=runs, seed=3), watch).run()
    assert oracle.compared > 1_000
    assert published["Published"] == MESSAGES


@pytest.mark.parametrize("runs", [1, 8, 100])
def test_a_batch_touches_as_many_partitions_as_asked(runs: int) -> None:
    found: Counter[tuple[int, int]] = Counter()

    def watch(record: Any) -> None:
        if record.kind == "Published":
            found[len(set(record.partitions)), sum(record.counts)] += 1

    Load(Shape(10_000, runs=runs), watch).run()
    assert found == {(runs, 100): 100}


def test_the_same_seed_gives_the_same_records_and_another_seed_others(
    store: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    generate(tmp_path / "again.db", Shape(MESSAGES))
    generate(tmp_path / "other.db", Shape(MESSAGES, seed=2))
    assert heads(tmp_path / "again.db") == heads(store[0])
    assert heads(tmp_path / "other.db") != heads(store[0])


def test_without_faults_only_work_is_journaled() -> None:
    kinds: Counter[str] = Counter()
    Load(Shape(20_000, fault_every=0), lambda record: kinds.update([record.kind])).run()
    assert set(kinds) == {
        "ChannelCreated", "SubscriptionCreated", "PublisherOpened", "Subscribed", "Published",
        "Delivered", "Acked",
    }  # fmt: skip


def test_the_rate_is_that_of_a_hundred_thousand_messages_a_second(
    store: tuple[Path, dict[str, Any]],
) -> None:
    with closing(sqlite3.connect(store[0])) as connection:
        first, last = connection.execute("SELECT min(at_ms), max(at_ms) FROM records").fetchone()
    assert 1_000 <= last - first <= 2_000  # 10^5 messages, and the pauses that faults make


def test_memory_does_not_grow_with_the_number_of_messages(tmp_path: Path) -> None:
    """Ten times the messages; half as much memory more is forgiven, for longer spells of lag."""

    def peak(messages: int) -> int:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.journals", str(tmp_path / f"{messages}.db"),
             "--messages", str(messages)],
            capture_output=True, env=environment(), cwd=ROOT, timeout=60, check=True,
        )  # fmt: skip
        found: int = json.loads(done.stdout)["peak_memory_bytes"]
        return found

    small, large = peak(200_000), peak(2_000_000)
    assert large < small * 1.5, (small, large)
    assert large < 200 << 20


def test_a_store_that_exists_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="exists"):
        generate(path, Shape(1_000))
    assert path.read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["store.db"]


@pytest.mark.parametrize("settings", [{"runs": 300, "batch": 400}, {"messages": 0}])
def test_an_impossible_shape_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1|cannot touch"):
        Shape(**settings)
