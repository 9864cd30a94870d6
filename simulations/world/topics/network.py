"""The network of topic clients: calls may also get stuck, and arrive when newer ones have."""

from __future__ import annotations

from random import Random
from typing import Any

from broker.errors import BrokerUnavailable
from simulations.world.network import Flight, Network
from simulations.world.scheduler import Pending, Process, World


class StickyNetwork(Network):
    """As the network of all, but for a while some requests of a client get stuck on their way."""

    def __init__(self, world: World, random: Random) -> None:
        super().__init__(world, random)
        self._stuck: dict[str, tuple[int, int]] = {}  # caller -> until when, and for how long

    def stick(self, name: str, until_us: int, for_us: int) -> None:
        """Until a time some requests of a client take so much longer."""
        self._stuck[name] = (until_us, for_us)

    def heal(self) -> None:
        """Everything gets through again."""
        super().heal()
        self._stuck.clear()

    def call(
        self, caller: Process, address: str, method: str, args: tuple[Any, ...], timeout_us: int
    ) -> Pending:
        """To be yielded: the answer, or the error that the caller sees."""
        until_us, for_us = self._stuck.get(caller.name, (0, 0))
        if self.world.now_us >= until_us or self._random.random() < 0.3:
            return super().call(caller, address, method, args, timeout_us)
        self.count("stuck")
        pending = Pending()
        self.world.at(caller, timeout_us, pending.complete, None, BrokerUnavailable("it is stuck"))
        delay_us = self._random.randrange(for_us)
        there = self._servers.get(address)
        flight = Flight(caller, pending)
        self.world.at(self._wire, delay_us, self.arrive, flight, there, address, method, args)
        return pending
