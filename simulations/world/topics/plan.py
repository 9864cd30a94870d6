"""What one seed of the world of topics is made of: limits, who wants what when, which faults come.

All of it is drawn here, before the run, each part from a stream of its own, as in
``simulations.world.profile``: leaving a fault out changes nothing about what the clients want.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from broker.core.topics import TopicPolicy
from simulations.world.network import Weather
from simulations.world.profile import (
    TOPIC_KINDS,
    Fault,
    Profile,
    draw_faults,
    draw_weather,
    stream,
)
from simulations.world.scheduler import MS_US, SECOND_US

NAMES = ("news", "jobs", "mail")
GETS = ("one", "many", "any", "any many", "two steps", "two steps", "receive only")


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a client's user wants at some time; ``topic`` is empty if it is about all."""

    at_us: int
    want: str
    topic: str = ""
    count: int = 1
    wait_us: int = 0
    #: Whether a request is repeated until it is answered, or given up when it is not.
    insist: bool = True


@dataclass(slots=True)
class Wishes:
    """What one client's user wants: three threads of it."""

    name: str
    puts: list[Step]
    gets: list[Step]
    requests: list[Step]


@dataclass(slots=True)
class TopicsPlan:
    """Everything about one run that is known before it begins."""

    seed: int
    profile: str
    duration_us: int
    policy: TopicPolicy
    weather: Weather
    sync_us_max: int
    remember_s: float
    tick_us: int
    clients: list[Wishes]
    topics: list[str]
    faults: list[Fault] = field(default_factory=list)

    def only(self, numbers: set[int]) -> TopicsPlan:
        """The same plan with some of its faults."""
        return replace(self, faults=[fault for fault in self.faults if fault.number in numbers])

    @property
    def summary(self) -> str:
        """Its size in a line."""
        wanted = [step for client in self.clients for step in client.puts]
        return (
            f"{len(self.clients)} clients, {len(self.topics)} topics, "
            f"{sum(step.count for step in wanted)} messages"
        )


def draw_topics(seed: int, profile: Profile) -> TopicsPlan:
    """The plan of a seed."""
    random = stream(seed, "topics")
    # Mostly short and dense; sometimes hours with long absences.
    duration_us = random.choice((10, 20, 40, 60, 600, 6 * 3600)) * SECOND_US
    topics = list(NAMES[: random.randint(1, len(NAMES))])
    names = [f"c{index}" for index in range(1, random.randint(2, 4) + 1)]
    policy = TopicPolicy(
        backlog_count_max=random.choice((6, 30, 1_000_000, 1_000_000)),
        backlog_bytes_max=random.choice((300, 1 << 30, 1 << 30)),
    )
    return TopicsPlan(
        seed, profile.name, duration_us, policy, draw_weather(stream(seed, "weather"), profile),
        random.choice((1, 4, 20)) * MS_US, random.choice((12.0, 12.0, 7 * 86_400.0)),
        max(SECOND_US, duration_us // 60),
        [_draw_wishes(stream(seed, f"wishes/{name}"), name, topics, duration_us) for name in names],
        topics, draw_faults(stream(seed, "faults"), profile, duration_us, TOPIC_KINDS),
    )  # fmt: skip


def _draw_wishes(random: Random, name: str, topics: list[str], duration_us: int) -> Wishes:
    puts = [
        Step(at_us, "put", random.choice(topics), random.choice((1, 1, 2, 5)))
        for at_us in _times(random, random.choice((1, 5, 10, 20)), duration_us)
    ]
    gets = [
        Step(
            at_us, random.choice(GETS), random.choice(topics), random.choice((1, 2, 10)),
            random.choice((0, 0, 50, 1_000)) * MS_US,
        )
        for at_us in _times(random, random.choice((5, 10, 20)), duration_us)
    ]  # fmt: skip
    requests = [
        Step(random.randrange(SECOND_US), "subscribe", topic)
        for topic in topics
        if random.random() < 0.75
    ]
    requests += [
        Step(
            at_us, random.choice(("subscribe", "subscribe", "unsubscribe")),
            random.choice(topics), insist=random.random() < 0.5,
        )
        for at_us in _times(random, random.choice((0, 3, 10, 20)), duration_us)
    ]  # fmt: skip
    return Wishes(name, puts, gets, requests)


def _times(random: Random, count: int, duration_us: int) -> list[int]:
    """Times in bursts: what is wanted soon after something else meets it more often."""
    found: list[int] = []
    at_us = 0
    while len(found) < count:
        if not found or random.random() < 0.4:
            at_us = random.randrange(duration_us)
        else:
            at_us += random.randrange(200 * MS_US)
        found.append(min(at_us, duration_us - 1))
    return sorted(found)
