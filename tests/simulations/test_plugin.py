"""The pytest plugin: a user's handler in the simulator, and the bug that it finds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.pytest_plugin import Fairlead, HandlerFailed
from simulations.world.trial import run_trial

ROOT = Path(__file__).resolve().parents[2]


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest as a user runs it, in a project of their own."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "fairlead.pytest_plugin", "-q", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip


def test_the_example_finds_the_bug_and_passes_the_right_handler(tmp_path: Path) -> None:
    for name in ("booking.py", "test_booking.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    done = run_pytest(tmp_path, "-s")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert "the handler fails: AssertionError" in done.stdout
    assert "killed inside the handler" in done.stdout


COUNTING = """
def test_each_message_is_handled_once(fairlead):
    def make():
        seen = []

        def check():
            assert sorted(seen) == list(range(20))

        return lambda: lambda message: seen.append(message.body), check

    fairlead.run(make, [("a" if n % 2 else "b", n) for n in range(20)])
"""


def test_a_failure_names_the_seed_that_shows_it_again(tmp_path: Path) -> None:
    (tmp_path / "test_counting.py").write_text(COUNTING)
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    seed = done.stdout.split("again: pytest --fairlead-seed ")[1].split()[0]
    once_more = run_pytest(tmp_path, "--fairlead-seed", seed)
    assert f"with seed {seed} the handler fails" in once_more.stdout
    assert "1 failed" in once_more.stdout


def in_order(seen: dict[str, list[int]]) -> Any:
    def handle(message: Any) -> None:
        done = seen.setdefault(message.partition, [])
        if not done or message.body > done[-1]:
            done.append(message.body)

    return handle


def test_partitions_are_interleaved_and_each_is_in_order() -> None:
    """A handler that passes over what it has seen before sees every message, in its order."""
    messages = [(name, number) for number in range(15) for name in "abc"]

    def make() -> Any:
        seen: dict[str, list[int]] = {}

        def check() -> None:
            assert seen == {name: list(range(15)) for name in "abc"}

        return lambda: in_order(seen), check

    fixture = Fairlead(None, None)
    fixture.run(make, messages, seeds=40)
    assert fixture.seeds_run == 40 and fixture.handled > 40 * len(messages)


def test_everything_that_is_promised_happens_to_a_handler() -> None:
    told = ""
    for seed in range(40):
        seen: list[int] = []
        trial = run_trial(
            seed, lambda seen=seen: (lambda: lambda m: seen.append(m.body), lambda: None),  # type: ignore
            [("a", n) for n in range(20)],
        )  # fmt: skip
        assert trial.ok, trial.result.text
        assert sorted(set(seen)) == list(range(20)), "each message is handled"
        told += "\n".join(trial.story)
    for what in (
        "killed before the effect", "killed after the effect", "failed before the effect",
        "failed after the effect", "attempt 2: done",
    ):  # fmt: skip
        assert what in told


def test_a_handler_that_never_succeeds_is_told_apart() -> None:
    def make() -> Any:
        def handle(message: Any) -> None:
            raise RuntimeError("no database")

        return lambda: handle, lambda: None

    with pytest.raises(HandlerFailed, match="never succeeds: RuntimeError"):
        Fairlead(3, None).run(make, [("a", 1)])


def test_a_message_that_is_none_is_refused() -> None:
    with pytest.raises(Exception, match="is no message"):
        Fairlead(None, None).run(lambda: (print, print), ["ann"])


def test_what_a_handler_remembers_dies_with_its_process() -> None:
    """A set of the messages seen, in memory, is no protection: the classic mistake."""

    def make() -> Any:
        booked: list[int] = []

        def start() -> Any:
            seen = set()

            def handle(message: Any) -> None:
                if message.body not in seen:
                    seen.add(message.body)
                    booked.append(message.body)

            return handle

        def check() -> None:
            if len(booked) != 20:
                pytest.fail("booked twice")

        return start, check

    with pytest.raises(HandlerFailed, match="with seed .* booked twice"):
        Fairlead(None, None).run(make, [("a", number) for number in range(20)])
