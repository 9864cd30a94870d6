"""The world of topics: the same seed does the same, many seeds pass, and it can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from broker.core.topics.records import Put, TopicCreated, TopicSubscribed
from simulations.checkers.topics import TopicsJudge
from simulations.world import simulate
from simulations.world.campaign import run_seeds
from simulations.world.mutants import MUTANTS, applied
from simulations.world.profile import TOPIC_KINDS, TOPICS
from simulations.world.seeds import plan_of
from simulations.world.shrink import shrink
from simulations.world.topics import run

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 500
SAME_SEEDS = 20

#: Bugs that this world has found -> (the mutant that brings it back, a seed that shows it).
FOUND = {
    "a_second_directory_that_silenced_the_first": ("topic-order-of-anybody", 8),
    "a_topic_made_anew_that_passed_for_the_one_before": ("topic-born-again", 50),
    "a_late_request_after_one_that_changed_nothing": ("topic-request-not-checked", 6),
}


def digests(hash_seed: str) -> list[list[str]]:
    """Digests of journals and histories from a process of its own."""
    program = (
        "import hashlib, json\n"
        "from simulations.world import simulate\n"
        f"made = [simulate(seed, 'topics', keep=True) for seed in range({SAME_SEEDS})]\n"
        "print(json.dumps([[r.digest, hashlib.sha256(''.join(r.histories).encode()).hexdigest()]"
        " for r in made]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_the_same_seed_gives_byte_equal_journals_in_any_process() -> None:
    first, second = digests("1"), digests("2")
    assert first == second
    assert len({journal for journal, _ in first}) == SAME_SEEDS, "and other seeds other journals"
    assert all(journal and history for journal, history in first)


@pytest.mark.timeout(200)
def test_five_hundred_seeds_pass() -> None:
    tally = run_seeds(iter(range(SEEDS)), TOPICS)
    assert [result.reproduce for result in tally.failures] == []
    assert tally.seeds == SEEDS
    missing = [kind for kind in TOPIC_KINDS if tally.faults[kind] < SEEDS // 10]
    assert not missing, f"hardly any {missing} were injected"
    kinds = ("lost", "repeated", "late", "cut off", "stuck")
    assert min(tally.faults[kind] for kind in kinds) > SEEDS
    assert tally.faults["topic removed"] > SEEDS // 20
    assert tally.accepted > 20 * SEEDS and tally.handled > tally.accepted
    assert tally.records > 30 * SEEDS and tally.lines > 100 * SEEDS


def test_there_are_enough_mutants_of_topics() -> None:
    """That each of them is caught is tested with those of channels, in test_simulator.py."""
    assert sum(mutant.profile == TOPICS for mutant in MUTANTS.values()) >= 8


@pytest.mark.parametrize("name", FOUND)
def test_a_seed_that_found_a_bug_passes_and_finds_it_again(name: str) -> None:
    mutant, seed = FOUND[name]
    assert simulate(seed, TOPICS).ok
    with applied(mutant):
        assert not simulate(seed, TOPICS).ok


@pytest.mark.parametrize("limit", ["RECORDS_MIN", "MESSAGES_MIN"])
def test_a_run_that_compared_too_little_fails(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(run, limit, 10**6)
    assert simulate(0, TOPICS).kind == "compared too little"


def test_a_run_that_injected_too_little_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.world.topics.faults.inject", lambda *_: None)
    assert simulate(0, TOPICS).kind == "injected too little"


def test_a_journal_that_gives_another_topic_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = run.recover_topic

    def other(*args: Any) -> Any:
        topic, sequence = real(*args)
        topic.put_total += 1
        return topic, sequence

    monkeypatch.setattr(run, "recover_topic", other)
    assert simulate(0, TOPICS).kind == "replay"


def test_a_failing_seed_shrinks_to_the_faults_that_matter() -> None:
    with applied("topic-get-before-commit"):
        failed = next(r for seed in range(100) if not (r := simulate(seed, TOPICS)).ok)
        smaller = shrink(failed)
    plan = plan_of(failed.seed, TOPICS)
    kept = smaller.only or []
    assert smaller.kind == failed.kind and 0 < len(kept) < len(plan.faults)
    assert smaller.trace[-1].endswith(f"{smaller.kind}: {smaller.text}")
    assert smaller.reproduce.endswith(
        f"--seed {failed.seed} --profile topics --only {','.join(map(str, kept))}"
    )


def test_the_command_runs_seeds_of_topics() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "simulate", "--profile", "topics", "--seed", "3"],
        cwd=ROOT, capture_output=True, text=True, timeout=100, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    assert done.returncode == 0 and "passed: " in done.stdout
    assert all(fault.kind in done.stderr for fault in plan_of(3, TOPICS).faults)


# The checkers by themselves: what a whole run may hide.


def judged(*lines: dict[str, Any]) -> list[str]:
    """Ann is subscribed from the start; b puts x and y by one call; then come the lines."""
    judge = TopicsJudge()
    ann = {"client": "topic", "name": "ann", "instance": "i", "session": "1", "topic": "t", "n": 0}
    bob = {**ann, "name": "bob"}
    judge.watch("t", 1, TopicCreated(0, "t", 1, {}))
    judge.hear({**ann, "event": "requested", "request": 1, "ask": "subscribe", "ticket": 0})
    judge.watch("t", 2, TopicSubscribed(0, "ann", "i", 1, 2, 0))
    judge.hear(
        {**ann, "event": "subscribed", "request": 1, "ticket": 2, "position": 0, "born": 1}
    )
    judge.hear({**bob, "event": "tried", "number": 1, "count": 2, "crc": 7})
    judge.watch("t", 3, Put(0, "bob", "i", 1, 1, 3, 7, 0, [b"x", b"y"]))
    for line in lines:
        judge.hear({**ann, **line})
    return [anomaly.name for anomaly in judge.finish(drained=False)]


def got(first: int, count: int, body: bytes, ticket: int = 2) -> dict[str, Any]:
    crc = crc32(body)
    return {"event": "got", "ticket": ticket, "first": first, "count": count, "crc": crc}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([got(1, 2, b"xy")], []),
        ([got(1, 1, b"x"), got(2, 1, b"y")], []),
        ([got(1, 1, b"x"), got(1, 1, b"x")], ["exactly-once-get"]),
        ([got(2, 1, b"y")], ["topic-completeness"]),
        ([got(1, 1, b"z")], ["exactly-once-get"]),
        ([got(1, 3, b"xyz")], ["exactly-once-get"]),
        ([got(1, 1, b"x", ticket=9)], ["exactly-once-get"]),
    ],
)
def test_what_is_got_runs_on_and_is_what_was_put(
    lines: list[dict[str, Any]], found: list[str]
) -> None:
    assert judged(*lines) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ({"event": "answered", "position": 1, "born": 1}, []),
        ({"event": "answered", "position": 2, "born": 1}, ["exactly-once-put"]),
        ({"event": "answered", "position": 1, "born": 9}, ["exactly-once-put"]),
        ({"event": "refused", "reason": "topic-full"}, ["exactly-once-put"]),
    ],
)
def test_what_a_put_was_told_is_held_against_the_journal(
    line: dict[str, Any], found: list[str]
) -> None:
    assert judged({"name": "bob", "number": 1, "count": 2, **line}) == found
