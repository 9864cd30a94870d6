"""The director: brings each fault of a plan about when it is due, and ends it when its time is up.

It keeps books on what was really done; what could not be done is told with the reason. Nothing here
knows what a fault is.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Callable, Mapping

from broker.errors import BrokerError
from simulations.chaos.cluster import Cluster
from simulations.chaos.faults import FAULTS, Course, Missed
from simulations.chaos.plan import Fault, Plan
from simulations.demo.wait import DEADLINE_S

Functions = Mapping[str, Callable[[Cluster, Fault], Course]]


@dataclass
class Done:
    """A fault as it came: when, in words, and why not if it was missed."""

    fault: Fault
    at_s: float
    text: str
    missed: bool = False


class Director:
    """Performs a plan over a cluster."""

    def __init__(self, cluster: Cluster, plan: Plan, functions: Functions = FAULTS) -> None:
        self.plan = plan
        self.done: list[Done] = []
        self._cluster = cluster
        self._functions = functions
        self._began = 0.0
        # When, the order of coming among equals, and what to do.
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    @property
    def seconds(self) -> float:
        """How long the faults have been coming."""
        return time.monotonic() - self._began

    def injected(self) -> Counter[str]:
        """How many of each kind were brought about."""
        return Counter(item.fault.kind for item in self.done if not item.missed)

    def perform(self) -> None:
        """All of the plan, from its beginning to its end."""
        self._began = time.monotonic()
        for fault in self.plan.faults:
            self._plan(fault.at_s, partial(self._begin, fault))
        self._plan(self.plan.seconds, lambda: None)
        while self._agenda:
            at_s, _, act = heapq.heappop(self._agenda)
            self._wait_for(at_s)
            act()

    def _plan(self, at_s: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._agenda, (at_s, self._number, act))

    def _wait_for(self, at_s: float) -> None:
        script = self._cluster.script

        def due() -> bool:
            self._cluster.supervise()
            return self.seconds >= at_s

        def shown() -> str:
            left_s = max(0.0, self.plan.seconds - self.seconds)
            count = sum(self.injected().values())
            return f"{count} of {len(self.plan.faults)} faults, {left_s:.0f} s to go"

        script.wait(due, "chaos", shown, max(0.0, at_s - self.seconds) + DEADLINE_S)

    def _begin(self, fault: Fault) -> None:
        course = self._functions[fault.kind](self._cluster, fault)
        at_s = round(self.seconds, 1)
        try:
            text = next(course)
        except (Missed, BrokerError) as reason:
            self._note(Done(fault, at_s, f"missed: {reason}", missed=True))
            return
        self._note(Done(fault, at_s, text))
        self._plan(fault.end_s, partial(_finish, course))

    def _note(self, done: Done) -> None:
        self.done.append(done)
        self._cluster.script.step("fault", f"{done.fault.kind:20} {done.text}")


def _finish(course: Course) -> None:
    for _ in course:
        pass
