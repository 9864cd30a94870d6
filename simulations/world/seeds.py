"""Which world a profile is run in: that of a channel, or that of topics. Nothing else is here."""

from __future__ import annotations

from simulations.world import run
from simulations.world.profile import TOPICS, Plan, draw, find_profile
from simulations.world.run import Result
from simulations.world.topics.plan import TopicsPlan, draw_topics
from simulations.world.topics.run import simulate_topics


def plan_of(seed: int, profile: str) -> Plan | TopicsPlan:
    """What a seed of a profile is made of."""
    found = find_profile(profile)
    return draw_topics(seed, found) if profile == TOPICS else draw(seed, found)


def simulate(
    seed: int,
    profile: str = "standard",
    *,
    only: set[int] | None = None,
    trace: bool = False,
    keep: bool = False,
) -> Result:
    """Run one seed, with all its faults or with those in ``only``.

    ``keep`` leaves the journal's rows and the histories' lines in the result.
    """
    perform = simulate_topics if profile == TOPICS else run.simulate
    return perform(seed, profile, only=only, trace=trace, keep=keep)
