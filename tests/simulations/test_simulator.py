"""The simulator: the same seed does the same, a great many seeds pass, and it can fail."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.errors import BadRequest
from simulations.world import ledger, run, simulate
from simulations.world.campaign import Tally, run_chunk, run_seeds
from simulations.world.mutants import MUTANTS, Mutant, applied
from simulations.world.profile import KINDS, PROFILES, draw, find_profile
from simulations.world.shrink import shrink

ROOT = Path(__file__).resolve().parents[2]

SEEDS = 2_000
SAME_SEEDS = 50
#: How many seeds a mutant may need to be caught; most need fewer than ten.
CAUGHT_WITHIN = 400

#: Bugs that the simulator has found -> (the mutant that brings it back, a seed that shows it).
#: What each of them was is told in simulations/LEDGER.md.
FOUND = {
    "messages_from_before_it_was_given_up": ("no-session-fence", 1),
    "a_refused_call_that_was_done_later": ("overtaken-calls-done", 1),
    "a_repeated_opening_that_fenced_its_publisher": ("opened-twice", 56),
    "a_nack_that_was_dropped_with_those_of_an_older_membership": ("new-nacks-forgotten", 1227),
    "a_lease_renewed_for_what_was_lost": ("renewed-without-fence", 20806),
    "a_back_off_that_lasted_an_hour_after_the_clock_jumped": ("backoff-outlives-restart", 999),
}


def digests(hash_seed: str) -> list[list[str]]:
    """Digests of journals and histories from a process of its own."""
    program = (
        "import hashlib, json\n"
        "from simulations.world import simulate\n"
        f"made = [simulate(seed, keep=True) for seed in range({SAME_SEEDS})]\n"
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


def test_the_same_seed_gives_a_byte_equal_journal_in_any_process() -> None:
    """Neither the order of sets, nor the addresses of objects, nor a clock has a part in it."""
    first, second = digests("1"), digests("2")
    assert first == second
    assert len({journal for journal, _ in first}) == SAME_SEEDS, "and other seeds other journals"
    assert all(journal and history for journal, history in first)


@pytest.mark.timeout(400)
def test_two_thousand_seeds_pass() -> None:
    tally = run_seeds(iter(range(SEEDS)))
    assert [result.reproduce for result in tally.failures] == []
    assert tally.seeds == SEEDS
    missing = [kind for kind in KINDS if tally.faults[kind] < SEEDS // 100]
    assert not missing, f"hardly any {missing} were injected"
    assert min(tally.faults[kind] for kind in ("lost", "repeated", "late", "cut off")) > SEEDS
    assert tally.accepted > 20 * SEEDS and tally.handled > tally.accepted
    assert tally.records > 50 * SEEDS and tally.lines > 50 * SEEDS


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "standard"])
def test_seeds_of_every_profile_pass(profile: str) -> None:
    tally = run_chunk(list(range(40)), profile, None)
    assert [result.reproduce for result in tally.failures] == []
    wanted = find_profile(profile)
    assert set(wanted.kinds) <= set(tally.faults) or not wanted.kinds


# It can fail.


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 15


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_plausible_bug_is_caught(mutant: Mutant) -> None:
    known = dict(FOUND.values())
    seeds = [known[mutant.name]] if mutant.name in known else range(CAUGHT_WITHIN)
    with applied(mutant.name):
        caught = next((r for seed in seeds if not (r := simulate(seed, mutant.profile)).ok), None)
    assert caught is not None, f"not in {len(seeds)} seeds"
    assert simulate(caught.seed, mutant.profile).ok, "it is the bug that was caught"


@pytest.mark.parametrize("name", FOUND)
def test_a_seed_that_found_a_bug_passes(name: str) -> None:
    mutant, seed = FOUND[name]
    assert simulate(seed, MUTANTS[mutant].profile).ok


def test_a_mutant_that_does_not_fit_any_more_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Mutant("gone", "", "broker.core.settling:decide_ack", "no such words", "")
    monkeypatch.setitem(MUTANTS, "gone", gone)
    with pytest.raises(BadRequest, match="does not fit any more"), applied("gone"):
        pass


def test_a_mutant_is_gone_after_its_block() -> None:
    with applied("two-owners"):
        assert not simulate(0).ok
    assert simulate(0).ok


@pytest.mark.parametrize(
    ("limit", "kind"),
    [("RECORDS_MIN", "compared too little"), ("ACCEPTED_MIN", "compared too little")],
)
def test_a_run_that_compared_too_little_fails(
    monkeypatch: pytest.MonkeyPatch, limit: str, kind: str
) -> None:
    monkeypatch.setattr(run, limit, 10**6)
    assert simulate(0).kind == kind


def test_a_run_that_injected_too_little_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulations.world.faults.inject", lambda *_: None)
    seeds = (seed for seed in itertools.count() if not draw(seed, PROFILES["crashes"]).trouble)
    assert simulate(next(seeds), "crashes").kind == "injected too little"


# A failing seed.


def test_a_failing_seed_shrinks_to_the_fault_that_matters() -> None:
    with applied("queues-not-restored"):
        failed = next(r for seed in range(100) if not (r := simulate(seed)).ok)
        smaller = shrink(failed)
        again = simulate(failed.seed, only=set(smaller.only or []))
    plan = draw(failed.seed, PROFILES["standard"])
    assert smaller.kind == again.kind == failed.kind and smaller.text == again.text
    kept = smaller.only or []
    kinds = [fault.kind for fault in plan.faults if fault.number in kept]
    assert "queue crash" in kinds and len(kinds) < len(plan.faults)
    with applied("queues-not-restored"):
        for number in kept:
            fewer = simulate(failed.seed, only=set(kept) - {number})
            assert fewer.kind != failed.kind, "each that is left is needed"
    assert any("the queues crash" in line for line in smaller.trace), "the trace tells it"
    assert smaller.trace[-1].endswith(f"{smaller.kind}: {smaller.text}")


def test_leaving_a_fault_out_leaves_the_others_as_they_are() -> None:
    plan = draw(4, PROFILES["standard"])
    fewer = plan.only({2, 3})
    assert fewer.faults == plan.faults[1:3] and fewer.messages == plan.messages


def test_a_campaign_ends_when_its_time_is_over() -> None:
    tally = run_seeds(itertools.count(), "calm", jobs=1, deadline_s=0.0)
    assert 0 < tally.seeds < 100


def test_a_campaign_ends_when_too_many_fail() -> None:
    tally = run_seeds(itertools.count(), mutant="two-owners", jobs=1, failures_max=3)
    assert 3 <= len(tally.failures) <= 30


def test_the_ledger_keeps_what_people_wrote(tmp_path: Path) -> None:
    path = tmp_path / "LEDGER.md"
    path.write_text(f"# Ours\n\nbefore\n\n{ledger.BEGIN}\nold\n{ledger.END}\n\nafter\n")
    tally = Tally()
    tally.add(simulate(0))
    ledger.write(path, tally, "standard", 0, None)
    text = path.read_text()
    assert text.startswith("# Ours\n\nbefore\n") and text.endswith("\nafter\n")
    assert "old" not in text and "| seeds | 1 (from 0 on) |" in text
    assert f"| faults injected | {sum(tally.faults.values())} |" in text


# The command.


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fairlead", "simulate", *arguments], cwd=ROOT, capture_output=True,
        text=True, timeout=100, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip


def test_the_command_runs_seeds() -> None:
    done = command("--seeds", "20", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("passed: 20 seeds, ")


def test_the_command_says_what_a_seed_is_made_of() -> None:
    done = command("--seed", "3")
    assert done.returncode == 0 and "passed: " in done.stdout
    plan = draw(3, PROFILES["standard"])
    assert all(fault.kind in done.stderr for fault in plan.faults)


def test_a_broken_build_is_caught_with_one_line_that_shows_it_again() -> None:
    done = command("--seeds", "30", "--jobs", "1", "--mutant", "ids-not-remembered")
    assert done.returncode == 1
    again = next(line for line in done.stdout.splitlines() if line.startswith("again: "))
    assert "Published" in done.stderr, "the trace"
    arguments = again.removeprefix("again: fairlead simulate ").split()
    once_more = command(*arguments)
    assert once_more.returncode == 1 and "duplicate" in once_more.stdout
    without = [item for item in arguments if item not in ("--mutant", "ids-not-remembered")]
    assert command(*without).returncode == 0


def test_the_command_answers_in_json() -> None:
    answer: Any = json.loads(command("--seeds", "5", "--jobs", "1", "--json").stdout)
    assert answer["ok"] and answer["seeds"] == 5 and answer["failures"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "rain"], "there is no profile 'rain'"),
        (["--mutant", "x"], "there is no mutant 'x'"),
        (["--seed", "1", "--seeds", "2"], "leave --seeds and --hours out"),
        (["--only", "2"], "name it with --seed"),
        (["--seed", "1", "--only", "x"], "give their numbers"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], said: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2 and said in done.stderr
