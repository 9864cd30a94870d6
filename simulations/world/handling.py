"""What handlers do in a simulated run: succeed, raise, reject, be slow, or kill their process.

Which message makes trouble is part of the plan. Every effect is written down here, apart from any
journal and any history: at the end it must have reached everything that was confirmed.
"""

from __future__ import annotations

from random import Random
from typing import Callable

from simulations.world.scheduler import MS_US
from simulations.world.subscriber import SimulatedSubscriber
from subscriber.message import Message


class PlannedHandling:
    """Handlers that behave as the plan says."""

    def __init__(
        self,
        random: Random,
        trouble: dict[bytes, str],
        kill: Callable[[SimulatedSubscriber, str], None],
    ) -> None:
        self.calm = False  # the phase in which everything must come to an end
        self.slow_until_us: dict[str, int] = {}
        self.effects: dict[tuple[str, bytes], int] = {}  # (subscription, body) -> how often
        self.handled = 0
        self.deaths: dict[tuple[str, bytes], int] = {}  # how often a message killed its process
        #: (subscription, subscriber, epoch) -> the position that is being handled
        self.running: dict[tuple[str, str, int], int] = {}
        #: Told of each start, before it.
        self.on_start: Callable[[SimulatedSubscriber, Message], None] = lambda *_: None
        self._random = random
        self._trouble = trouble
        self._kill = kill

    def takes_us(self, subscriber: SimulatedSubscriber, message: Message) -> int:
        """How long the handler runs."""
        self.on_start(subscriber, message)
        self.running[place_of(subscriber, message)] = message.position
        usual_us = self._random.choice((200, 800, 5 * MS_US, 30 * MS_US))
        if self.calm:
            return usual_us
        if subscriber.world.now_us < self.slow_until_us.get(subscriber.name, 0):
            return usual_us + self._random.randrange(100 * MS_US, 1_500 * MS_US)
        if self._trouble and self._trouble.get(message.body) == "slow":
            return usual_us + 2_000 * MS_US
        return usual_us

    def handle(self, subscriber: SimulatedSubscriber, message: Message) -> None:
        """The handler's effect, and what then goes wrong."""
        self.running.pop(place_of(subscriber, message), None)
        trouble = None if self.calm else self._trouble.get(message.body)
        if trouble == "raises" or (trouble == "raises once" and message.attempt == 1):
            raise ValueError("poison")
        if trouble == "rejects":
            message.reject("not wanted")
            return
        key = (message.subscription, message.body)
        self.effects[key] = self.effects.get(key, 0) + 1
        self.handled += 1
        if trouble == "kills":
            self.deaths[key] = self.deaths.get(key, 0) + 1
            self._kill(subscriber, "its message killed it")


def place_of(subscriber: SimulatedSubscriber, message: Message) -> tuple[str, str, int]:
    """Under which ``running`` knows what is being handled."""
    return (subscriber.subscription, subscriber.name, message.epoch)
