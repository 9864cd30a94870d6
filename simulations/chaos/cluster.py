"""The cluster of a chaos run: a name server, a broker, subscribers, publishers, two networks.

``worker-1`` and ``source-1`` reach the channel through the proxies of ``net-1``, ``worker-2`` and
``source-2`` through those of ``net-2``, the rest directly. Whoever a message has killed is started
again, as any supervisor would do it; whoever else ends by itself fails the run. Nothing here knows
a fault.
"""

from __future__ import annotations

import json
from typing import Any

from broker.errors import BrokerError
from simulations.chaos import plan
from simulations.chaos.actors import FENCED, KILLED_BY_MESSAGE
from simulations.demo.cast import CLIENT_HISTORIES, STORE, Child, end_all
from simulations.demo.wait import Failure
from simulations.stage.gateway import Gateway
from simulations.stage.processes import Broker, NameServerProcess, Process
from simulations.stage.script import CHANNEL, HANDLES, HISTORIES, PUBLISHES, Script

POLICY: dict[str, Any] = {
    # Short enough that a run sees many ends of leases, long enough for a busy machine.
    "lease_ms": plan.LEASE_MS, "send_timeout_ms": 1_000, "send_backoff_ms": 50,
    "delay_ms": 100, "long_delay_ms": 300, "long_delays_max": 3, "long_delay_window_ms": 10_000,
    # An innocent message may be in the hands of the dead again and again; only poison gets so far.
    "attempts_max": 5, "backoff_ms": 20,
}  # fmt: skip
SLOW_S = 0.35

PARTITIONS = 6  # of each publisher
PREFETCH, CONCURRENCY = 50, 2
TIMEOUT_S = 1.5
GIVE_UP_S = 120.0  # no fault takes so long: a client that gives up has found a fault of its own
STOP_S = 4.0
WAYS_MAX = 40
DRAIN_S = 60.0
PARKED_MAX = 10_000

assert HISTORIES == CLIENT_HISTORIES, "the audit looks where the clients write"


class Client(Process):
    """A subscriber or publisher under one id, in one life after the other."""

    def __init__(
        self, script: Script, kind: str, name: str, name_server: str, **settings: Any
    ) -> None:
        self.rank = PUBLISHES if kind == "publish" else HANDLES
        super().__init__(script, name)
        self.lives = 0
        self.deaths = 0  # by a message
        self.wanted = True  # whether it is to be started again when a message has killed it
        self.older: list[Child] = []  # that a newer life of the same id is to fence
        self._kind = kind
        self._file = script.folder / f"{name}.json"
        options = {
            "name_server": name_server, "history": str(script.histories), "timeout_s": TIMEOUT_S,
            "give_up_s": GIVE_UP_S, **settings.pop("options", {}),
        }  # fmt: skip
        self._file.write_text(
            json.dumps(
                {"name": name, "channel": CHANNEL, "seed": script.seed, "options": options,
                 **settings}
            )
        )  # fmt: skip
        self.start()

    def start(self) -> None:
        """Begin a life. One before it must have ended."""
        if self.alive:
            raise Failure(f"{self.name} runs already")
        self.end_child()
        self._launch()
        self.wanted = True

    def start_twin(self) -> None:
        """Begin a life while another one of the same id is not over."""
        if self.child is not None:
            self.older.append(self.child)
        self._launch()

    def _launch(self) -> None:
        self.lives += 1
        self.child = Child(
            f"{self.name}-{self.lives}", self.script.folder, "simulations.chaos.actors",
            self._kind, self._file, self.lives,
        )  # fmt: skip

    def kill9(self) -> None:
        """End it at once; only ``start`` brings it back."""
        self.wanted = False
        super().kill9()

    def leave(self) -> None:
        """Ask it to end; does not wait. Only ``start`` brings it back."""
        self.wanted = False
        child = self._running()
        child.killed = True
        child.tell("normal")

    def tell(self, line: str) -> None:
        """Send it a line."""
        self._running().tell(line)

    def check(self) -> None:
        """Raise if it has ended by itself and no message or newer life of it is the reason."""
        if self._ended_with(FENCED) and self.older:
            # The one that was started first was the last one to open the id.
            self.end_child()
            self.child = self.older.pop()
        self.older = [child for child in self.older if not self._is_over(child)]
        if not self.killed_by_message():
            super().check()

    def _is_over(self, child: Child) -> bool:
        if child.alive:
            return False
        if child.process.returncode not in (FENCED, 0):
            raise Failure(
                f"the older {self.name} ended with exit code {child.process.returncode}, expected "
                f"{FENCED} (fenced); its log ends: {child.tail()}"
            )
        end_all([child])
        return True

    def killed_by_message(self) -> bool:
        """Whether a message has ended its process."""
        return self._ended_with(KILLED_BY_MESSAGE)

    def _ended_with(self, code: int) -> bool:
        child = self.child
        return child is not None and not child.alive and child.process.returncode == code

    def kill_all(self) -> None:
        """End every life of it at once."""
        for child in [*self.older, *([self.child] if self.child is not None else [])]:
            child.kill()

    def end_child(self) -> None:
        """End the life that there is, if there is one."""
        super().end()

    def end(self) -> None:
        """End every life of it."""
        end_all(self.older)
        self.end_child()


class Cluster:
    """All of it, running when the constructor returns. ``rate``: messages a second in all."""

    def __init__(self, script: Script, rate: float) -> None:
        self.script = script
        self.names = NameServerProcess(script)
        self.broker = Broker(
            script, name_server=self.names.address, store=script.folder / STORE
        )
        self.broker.create(**POLICY)
        self.networks = {name: self._make_network(name) for name in plan.NETWORKS}
        self.guests: list[Client] = []
        self.subscribers = {
            name: self._make_subscriber(name, self._way(name)) for name in plan.SUBSCRIBERS
        }
        script.wait(self._all_joined, "all subscribers have joined", self._joined)
        self.publishers = {
            name: Client(
                script, "publish", name, self._way(name), partitions=PARTITIONS,
                rate=rate / len(plan.PUBLISHERS),
            )
            for name in plan.PUBLISHERS
        }  # fmt: skip
        script.wait(lambda: self.broker.group()["acked_total"], "messages flow")

    def _make_network(self, name: str) -> Gateway:
        network = Gateway(
            self.broker.name_server, CHANNEL, f"{self.script.seed}/{name}", WAYS_MAX
        )
        self.script.add(network)
        return network

    def _way(self, name: str) -> str:
        """Where a client asks for the channel, by the number in its name."""
        network = self.networks.get("net-" + name.rpartition("-")[2])
        return self.broker.name_server if network is None else network.name_server

    def _make_subscriber(self, name: str, name_server: str) -> Client:
        options = {"prefetch": PREFETCH, "concurrency": CONCURRENCY, "stop_s": STOP_S}
        return Client(self.script, "subscribe", name, name_server, options=options)

    def _joined(self) -> list[str]:
        return sorted(self.broker.group()["subscribers"])

    def _all_joined(self) -> bool:
        return self._joined() == sorted(plan.SUBSCRIBERS)

    @property
    def clients(self) -> list[Client]:
        """All subscribers and publishers, guests included."""
        return [*self.subscribers.values(), *self.guests, *self.publishers.values()]

    def invite(self, number: int) -> Client:
        """A subscriber more, through a network or not, by its number."""
        ways = [self.broker.name_server, *(net.name_server for net in self.networks.values())]
        guest = self._make_subscriber(f"guest-{number}", ways[number % len(ways)])
        self.guests.append(guest)
        return guest

    def supervise(self) -> None:
        """Start again whomever a message has killed, but for guests; forget guests who have left.
        """
        for worker in self.subscribers.values():
            if worker.wanted and worker.killed_by_message():
                worker.deaths += 1
                worker.start()
        for guest in self.guests:
            if guest.child is None or guest.alive:
                continue
            if guest.killed_by_message() or guest.child.killed:
                guest.deaths += guest.killed_by_message()
                guest.end_child()
                guest.child = None

    # The end.

    def drain(self) -> dict[str, Any]:
        """Stop the load, and wait until nothing is owed; the subscription's numbers then."""
        for network in self.networks.values():
            network.heal()
        for source in self.publishers.values():
            source.leave()
            for child in source.older:
                child.tell("normal")
        self._wait(self._sources_done, "every publisher has all its confirmations")
        group: dict[str, Any] = self._wait(self._drained, "every message is settled")
        return group

    def _wait(self, condition: Any, what: str) -> Any:
        def supervised() -> Any:
            self.supervise()
            return condition()

        return self.script.wait(supervised, what, self._owed, DRAIN_S)

    def _sources_done(self) -> bool:
        for source in self.publishers.values():
            if source.alive or source.older:
                return False
            assert source.child is not None
            if source.child.process.returncode not in (0, FENCED):
                raise Failure(
                    f"{source.name} could not publish all; its log ends: {source.tail()}"
                )
        return True

    def _drained(self) -> dict[str, Any] | None:
        try:
            group = self.broker.group()
        except BrokerError:
            return None  # asked again; a broker that is gone for good is noticed by its member
        return None if group["backup"] else group

    def _owed(self) -> str:
        try:
            return f"{self.broker.group()['backup']} messages are not settled"
        except BrokerError as error:
            return str(error)

    def parked(self) -> list[dict[str, Any]]:
        """What was set aside."""
        found: list[dict[str, Any]] = self.broker.call("parked", "default", PARKED_MAX)
        return found

    def kill_clients(self) -> None:
        """End every client at once: a run that is broken off waits for nobody."""
        for client in self.clients:
            client.kill_all()
