"""Which fault comes when, to whom, and for how long: drawn from the seed, and from nothing else.

Pure, so that the same seed always gives the same plan. Every kind comes once in each round, in an
order that is drawn anew. Faults overlap as it happens; only two faults of one ``place`` never do:
who is dead cannot be frozen. What may not live here: how a fault is brought about (``faults``).
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

SUBSCRIBERS = tuple(f"worker-{number}" for number in range(1, 6))
PUBLISHERS = tuple(f"source-{number}" for number in range(1, 5))
NETWORKS = ("net-1", "net-2")
BROKER, NAMES, GUEST = ("broker",), ("name-server",), ("guest",)

#: The lease of a subscriber in a chaos run: what a freeze has to outlast.
LEASE_MS = 2_000

FIRST_S = 1.0
GAP_S = (1.0, 3.0)
#: After its end a place is left alone for so long, so that what follows meets it at work.
REST_S = {"centre": 2.0, "guest": 0.0}
REST_OTHERS_S = 1.0


class Kind(NamedTuple):
    """A kind of fault: whom it may hit, and the least and most seconds that it lasts."""

    targets: tuple[str, ...]
    span_s: tuple[float, float] = (0.0, 0.0)


KINDS: dict[str, Kind] = {
    "kill subscriber": Kind(SUBSCRIBERS, (0.0, 3.0)),
    "kill publisher": Kind(PUBLISHERS, (0.0, 2.0)),
    "kill broker": Kind(BROKER, (0.0, 2.0)),
    "freeze subscriber": Kind(SUBSCRIBERS, (LEASE_MS / 800, LEASE_MS / 400)),
    "freeze broker": Kind(BROKER, (0.3, 1.5)),
    "restart name server": Kind(NAMES, (0.2, 2.0)),
    "queue crash": Kind(BROKER, (0.1, 1.0)),
    "slow spell": Kind(SUBSCRIBERS, (3.0, 6.0)),
    "raising message": Kind(PUBLISHERS),
    "killing message": Kind(PUBLISHERS),
    "twin publisher": Kind(PUBLISHERS),
    "join and leave": Kind(GUEST, (2.0, 8.0)),
    "leave and return": Kind(SUBSCRIBERS, (0.5, 3.0)),
    "delay": Kind(NETWORKS, (2.0, 5.0)),
    "cut": Kind(NETWORKS),
    "black hole": Kind(NETWORKS, (1.0, 5.0)),
    "lost answers": Kind(NETWORKS, (0.5, 3.0)),
    "resets": Kind(NETWORKS, (1.0, 4.0)),
}


@dataclass(frozen=True)
class Fault:
    """One fault of a plan. ``at_s`` and ``span_s`` are seconds; a span of 0 is over at once."""

    number: int
    at_s: float
    kind: str
    target: str
    span_s: float

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.at_s + self.span_s


@dataclass(frozen=True)
class Plan:
    """All that goes wrong in ``seconds``."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def draw(seed: int, seconds: float) -> Plan:
    """The plan of a seed. Every fault of it is over when ``seconds`` are.

    >>> draw(7, 30.0) == draw(7, 30.0), draw(7, 30.0) == draw(8, 30.0)
    (True, False)
    """
    chance = random.Random(f"chaos/{seed}/{seconds:g}")
    deck = _Deck(chance)
    faults: list[Fault] = []
    free_from: dict[str, float] = {}
    at_s = FIRST_S
    while at_s < seconds:
        fault = deck.take(len(faults) + 1, round(at_s, 2), seconds, free_from)
        if fault is not None:
            place = place_of(fault)
            free_from[place] = fault.end_s + REST_S.get(place, REST_OTHERS_S)
            faults.append(fault)
        at_s += chance.uniform(*GAP_S)
    return Plan(seed, seconds, tuple(faults))


def place_of(fault: Fault) -> str:
    """What a fault has to itself: its target, or for broker and name server the two of them.

    A broker that starts without a name server would start one itself.
    """
    return "centre" if fault.target in BROKER + NAMES else fault.target


class _Deck:
    """The kinds in a drawn order, then in another one, and so on."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._left: list[str] = []

    def take(
        self, number: int, at_s: float, seconds: float, free_from: dict[str, float]
    ) -> Fault | None:
        """The next kind that has somebody to hit and time to end; None if none has."""
        if not self._left:
            self._left = self._chance.sample(sorted(KINDS), len(KINDS))
        for kind in self._left:
            target = self._chance.choice(KINDS[kind].targets)
            span_s = round(self._chance.uniform(*KINDS[kind].span_s), 2)
            fault = Fault(number, at_s, kind, target, span_s)
            if free_from.get(place_of(fault), 0.0) <= at_s and fault.end_s <= seconds:
                self._left.remove(kind)
                return fault
        return None
