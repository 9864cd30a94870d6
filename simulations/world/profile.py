"""What one seed is made of: limits, who takes part, what is published, which faults come when.

All of it is drawn here, before the run, each part from a stream of its own: leaving a fault out
changes nothing about what is published. Swarm testing: every seed has a mix of its own, so that a
kind of fault that drowns others is missing in half of the runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from broker.core.policy import Policy
from broker.errors import BadRequest
from simulations.world.network import Weather
from simulations.world.scheduler import MS_US, SECOND_US

CHANNEL = "orders"
TRIAL = "trial"  # the profile of a user's handler, which is not for choosing
TROUBLES = ("raises", "raises once", "rejects", "kills", "slow")

#: Kind of fault -> how often it is drawn among those that a seed has.
KINDS = {
    "broker crash": 3,
    "broker crash in recovery": 1,
    "broker hang": 2,
    "subscriber crash": 4,
    "subscriber hang": 3,
    "subscriber leaves": 2,
    "subscriber twin": 1,
    "subscriber joins": 2,
    "publisher crash": 2,
    "publisher hang": 1,
    "publisher twin": 1,
    "queue crash": 2,
    "journal failure": 1,
    "journal slow": 1,
    "journal trimmed": 1,
    "clock jump": 1,
    "link cut": 2,
    "storm": 2,
    "slow spell": 2,
    "redrive": 1,
    "subscription anew": 1,
}

#: The same for the world of topics.
TOPIC_KINDS = {
    "broker crash": 4,
    "broker hang": 1,
    "client crash": 5,
    "client away": 2,
    "client hang": 1,
    "directory lost": 1,
    "second directory": 1,
    "journal failure": 1,
    "journal slow": 1,
    "topics trimmed": 4,
    "calls stuck": 3,
    "clock jump": 1,
    "link cut": 2,
    "storm": 2,
}
TOPICS = "topics"


@dataclass(frozen=True, slots=True)
class Profile:
    """What may be drawn."""

    name: str
    about: str
    kinds: tuple[str, ...] = tuple(KINDS)
    faults: tuple[int, int] = (4, 12)
    messages: tuple[int, int] = (30, 110)
    seconds: tuple[int, int] = (20, 60)
    #: Of messages on the network, at most; each seed draws its own share of it.
    lost_max: float = 0.02
    repeated_max: float = 0.02
    late_max: float = 0.02
    #: Of messages: those that make trouble for their handler.
    trouble_max: float = 0.06
    pending_counts: tuple[int, ...] = (15, 100, 1_000_000)
    swarm: bool = True


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("standard", "every kind of fault, a mix of its own for each seed"),
        Profile(
            "calm", "no faults at all: a baseline", (), (0, 0),
            lost_max=0, repeated_max=0, late_max=0, trouble_max=0, swarm=False,
        ),
        Profile(
            "network", "calls are lost, repeated and late, links are cut; nobody crashes",
            ("link cut", "storm", "broker hang", "subscriber hang"),
            lost_max=0.1, repeated_max=0.1, late_max=0.1,
        ),
        Profile(
            "crashes", "processes crash, often and soon again; the network is well",
            ("broker crash", "broker crash in recovery", "subscriber crash", "publisher crash",
             "queue crash"),
            (10, 30), lost_max=0, repeated_max=0, late_max=0,
        ),
        Profile(
            "disk", "the journal is slow, fails, loses what is not synced, is trimmed",
            ("broker crash", "journal failure", "journal slow", "journal trimmed"), (8, 20),
        ),
        Profile(
            "crowded", "a channel that is full most of the time, with calls repeated and late",
            ("broker hang", "publisher hang", "publisher twin", "slow spell", "storm"), (4, 12),
            (80, 200), lost_max=0.1, repeated_max=0.3, late_max=0.1, pending_counts=(2, 5, 12),
        ),
        Profile(
            "handlers", "handlers that raise, reject, are slow, or kill their process",
            ("slow spell", "subscriber crash", "subscriber joins"), trouble_max=0.3,
        ),
        Profile(
            TOPICS, "durable topics in a world of their own: clients and broker fail in every way",
            tuple(TOPIC_KINDS), (4, 16), lost_max=0.05, repeated_max=0.1, late_max=0.1,
        ),
    )
}  # fmt: skip


TRIAL_KINDS = (
    "broker crash", "broker hang", "queue crash", "subscriber crash", "subscriber hang",
    "subscriber leaves", "subscriber joins", "subscriber twin", "link cut", "storm", "slow spell",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a plan. Its details are drawn from ``salt`` when it happens."""

    number: int
    at_us: int
    kind: str
    salt: int


@dataclass(slots=True)
class Plan:
    """Everything about one run that is known before it begins."""

    seed: int
    profile: str
    duration_us: int
    policy: Policy
    weather: Weather
    sync_us_max: int
    publishers: list[dict[str, Any]]
    subscribers: list[dict[str, Any]]
    second_subscription: bool
    #: (time, publisher, [(partition, body, priority, skew of the timestamp, extras, format)])
    messages: list[tuple[int, str, list[tuple[str, bytes, int, int, dict[str, Any] | None, int]]]]
    trouble: dict[bytes, str]
    faults: list[Fault] = field(default_factory=list)
    #: Whether each body is unique and names its publisher and partition.
    bodies_tell: bool = True

    @property
    def summary(self) -> str:
        """Its size in a line."""
        messages = sum(len(wanted) for _, _, wanted in self.messages)
        return (
            f"{len(self.publishers)} publishers, {len(self.subscribers)} subscribers, "
            f"{messages} messages"
        )

    def only(self, numbers: set[int]) -> Plan:
        """The same plan with some of its faults."""
        return replace(self, faults=[fault for fault in self.faults if fault.number in numbers])


def stream(seed: int, name: str) -> Random:
    """The random numbers for one use; a str as seed is hashed the same way everywhere."""
    return Random(f"fairlead/{seed}/{name}")


def find_profile(name: str) -> Profile:
    """The profile of that name, or an error that lists them."""
    if name == TRIAL:
        return Profile(TRIAL, "what a user's handler goes through", TRIAL_KINDS, (3, 10))
    if name not in PROFILES:
        raise BadRequest(f"there is no profile {name!r}; there are: {', '.join(PROFILES)}")
    return PROFILES[name]


def draw(seed: int, profile: Profile) -> Plan:
    """The plan of a seed."""
    random = stream(seed, "plan")
    duration_us = random.randint(*profile.seconds) * SECOND_US
    publishers = [
        {"name": f"p{index}", "refuse": random.random() < 0.3, "batch": random.choice((1, 5, 50)),
         "partitions": [f"{letter}" for letter in "abcd"[: random.randint(1, 4)]]}
        for index in range(1, random.randint(1, 3) + 1)
    ]  # fmt: skip
    subscribers = [
        {"name": f"s{index}", "prefetch": random.choice((1, 3, 10, 100)),
         "concurrency": random.choice((1, 1, 2)), "subscription": "default"}
        for index in range(1, random.randint(1, 4) + 1)
    ]  # fmt: skip
    second = random.random() < 0.25
    if second:
        subscribers.append(
            {"name": "t1", "prefetch": 10, "concurrency": 1, "subscription": "second"}
        )
    messages, trouble = _draw_messages(seed, profile, duration_us, publishers)
    policy = _draw_policy(stream(seed, "policy"), profile.pending_counts)
    return Plan(
        seed, profile.name, duration_us, policy, draw_weather(stream(seed, "weather"), profile),
        random.choice((1, 4, 20)) * MS_US, publishers, subscribers, second, messages, trouble,
        draw_faults(stream(seed, "faults"), profile, duration_us),
    )  # fmt: skip


def _draw_policy(random: Random, pending_counts: tuple[int, ...]) -> Policy:
    pick = random.choice
    return Policy(
        pending_count_max=pick(pending_counts),
        parked_count_max=pick((2, 100)),
        dedup_window_count_max=pick((5, 1_000)),
        overflow=pick(("refuse", "block")),
        run_count_max=pick((1, 3, 256)),
        lease_ms=pick((1_000, 3_000, 8_000)),
        sends_max=pick((1, 2, 3)),
        send_timeout_ms=pick((300, 1_000, 2_000)),
        send_backoff_ms=pick((50, 200)),
        delay_ms=pick((50, 250)),
        long_delay_ms=pick((300, 1_000)),
        long_delays_max=pick((2, 3)),
        recall_after_ms=pick((50, 200)),
        attempts_max=pick((2, 3, 5)),
        backoff_ms=pick((50, 100)),
        backoff_ms_max=pick((500, 2_000)),
        poison=pick(("park_message", "park_message", "park_partition", "block")),
        ageing_ms=pick((50, 1_000)),
    )


def draw_weather(random: Random, profile: Profile) -> Weather:
    """How the network is when there is no storm."""

    def share(most: float) -> float:
        return random.random() * most if not profile.swarm or random.random() < 0.5 else 0.0

    return Weather(
        share(profile.lost_max), share(profile.repeated_max), share(profile.late_max),
        random.choice((100, 1_000, 5_000)) * MS_US,
    )  # fmt: skip


def _draw_messages(
    seed: int, profile: Profile, duration_us: int, publishers: list[dict[str, Any]]
) -> tuple[list[Any], dict[bytes, str]]:
    random = stream(seed, "messages")
    troubles = random.random() * profile.trouble_max
    skewed, urgent, with_ids = (random.random() < share for share in (0.3, 0.3, 0.3))
    left = random.randint(*profile.messages)
    found: list[Any] = []
    trouble: dict[bytes, str] = {}
    number = 0
    while left > 0:
        publisher = random.choice(publishers)
        count = min(left, random.choice((1, 1, 2, 5, 20)))
        left -= count
        wanted = []
        for _ in range(count):
            number += 1
            partition = random.choice(publisher["partitions"])
            body = f"{publisher['name']}/{partition}/{number}".encode()
            skew_us = random.randrange(-2_000, 2_000) * MS_US if skewed else 0
            priority = random.choice((0, 0, 0, 1, 5)) if urgent else 0
            extras = {"id": f"id-{random.randrange(60)}"} if with_ids else None
            wanted.append((partition, body, priority, skew_us, extras, 0))
            if random.random() < troubles:
                trouble[body] = random.choice(TROUBLES)
        found.append((random.randrange(duration_us), publisher["name"], wanted))
    return sorted(found, key=lambda item: item[0]), trouble


def draw_faults(
    random: Random, profile: Profile, duration_us: int, shares: dict[str, int] = KINDS
) -> list[Fault]:
    """What goes wrong when."""
    if not profile.kinds:
        return []
    kinds = [kind for kind in profile.kinds if not profile.swarm or random.random() < 0.5]
    if not any("crash" in kind for kind in kinds):
        kinds.append(random.choice([k for k in profile.kinds if "crash" in k] or profile.kinds))
    weights = [shares[kind] for kind in kinds]
    count = random.randint(*profile.faults)
    times = sorted(random.randrange(SECOND_US // 10, duration_us) for _ in range(count))
    chosen = random.choices(kinds, weights, k=count)
    return [
        Fault(number, at_us, kind, random.getrandbits(32))
        for number, (at_us, kind) in enumerate(zip(times, chosen), 1)
    ]
