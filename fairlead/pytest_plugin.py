"""The pytest plugin: a fixture ``fairlead`` that runs a handler of yours in the simulator.

It comes with the package; pytest finds it by itself. Nothing heavy is imported before a test asks
for the fixture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable

import pytest

if TYPE_CHECKING:
    from simulations.world.trial import Given, Make, Trial

SEEDS_DEFAULT = 50


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin."""
    group = parser.getgroup("fairlead", "handlers in the simulator of Fairlead")
    group.addoption(
        "--fairlead-seeds", type=int, default=None, metavar="N",
        help=f"how many seeds each handler goes through (default: what the test says, or "
        f"{SEEDS_DEFAULT})",
    )  # fmt: skip
    group.addoption(
        "--fairlead-seed", type=int, default=None, metavar="S",
        help="run this seed alone: the one that a failure printed",
    )  # fmt: skip


class HandlerFailed(AssertionError):
    """A handler did not do what its check demands; the text has the seed and what happened."""


class Fairlead:
    """What the fixture gives: ``run`` for a test, ``crash_point`` for a handler."""

    def __init__(self, seed: int | None, seeds: int | None) -> None:
        self._seed, self._seeds = seed, seeds
        self.seeds_run = 0
        self.handled = 0

    def run(
        self, make: Make, messages: Iterable[Given], *, seeds: int = SEEDS_DEFAULT, first: int = 0
    ) -> None:
        """Run a handler through many seeds, each with its own faults.

        Args:
            make: called for each seed; returns (start, check) for a fresh world. ``start`` is
                called when a process starts, and returns its handler, which is called as by a
                Subscriber, with a message; what it remembers is gone when the process dies.
                ``check`` is called when all messages have been handled, and raises if something
                is wrong.
            messages: (partition, body) or (publisher, partition, body), in the order in which they
                are published. Each is handled at least once, and those of one partition in order.
            seeds: how many; ``first`` is the first of them.
        """
        from simulations.world.trial import run_trial

        given = list(messages)
        count = self._seeds if self._seeds is not None else seeds
        chosen = [self._seed] if self._seed is not None else range(first, first + count)
        for seed in chosen:
            trial = run_trial(seed, make, given)
            self.seeds_run += 1
            self.handled += len(trial.story)
            if not trial.ok:
                raise HandlerFailed(_told(trial)) from trial.complaint

    @staticmethod
    def crash_point() -> None:
        """For a handler to call, as between two commits: its process may die right there."""
        from simulations.world.trial import crash_point

        crash_point()


def _told(trial: Trial) -> str:
    from simulations.world.trial import STORY_LINES

    if trial.complaint is not None:
        what = f"{type(trial.complaint).__name__}: {trial.complaint}"
    else:
        what = f"{trial.result.kind}: {trial.result.text}"
    story = trial.story[-STORY_LINES:]
    left = len(trial.story) - len(story)
    lines = [
        f"with seed {trial.seed} the handler fails: {what}",
        f"again: pytest --fairlead-seed {trial.seed}",
        "what happened to the handler:",
        *([f"  ... {left} lines before"] if left else []),
        *(f"  {text}" for text in story),
    ]
    return "\n".join(lines)


@pytest.fixture
def fairlead(request: pytest.FixtureRequest) -> Any:
    """Runs a handler of yours in Fairlead's simulator: see ``Fairlead.run``."""
    option = request.config.getoption
    return Fairlead(option("--fairlead-seed"), option("--fairlead-seeds"))
