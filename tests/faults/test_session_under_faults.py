"""The subscriber's pure half against the real core, with lost answers, expired leases and recalls.

Two sessions share one subscription of a driven channel; each seed is another history. What a worker
thread does per message is done here by ``Client`` step by step, so that anything can come between.
"""

from __future__ import annotations

import random
import time
from typing import Any

from broker.core import commands as c
from broker.core import records as r
from broker.errors import NotSubscribed
from broker.wire import delivery_columns
from subscriber.session import Assignment, Session
from subscriber.shared import Shared
from subscriber.workers import Workers
from tests.builders import Driven

Place = tuple[str, int]


class Client:
    """One subscriber with one worker."""

    def __init__(self, name: str, driven: Driven, dice: random.Random) -> None:
        self.name = name
        self.driven = driven
        self.dice = dice
        self.session = Session()
        self.inbox: list[c.Send] = []
        self.taken: Assignment | None = None
        self.running: int | None = None  # the position that the handler is in
        self.handled: list[Place] = []
        driven.subscribe(name)

    def _member(self) -> tuple[str, str, str]:
        return ("default", self.name, self.name + "-1")

    # The worker.

    def start(self) -> None:
        """Begin with the next message, if there is one."""
        if self.running is not None:
            return
        if self.taken is None:
            taken = self.session.take(1)
            self.taken = taken[0] if taken else None
        if self.taken is None:
            return
        assignment = self.taken
        if assignment.cursor >= len(assignment.items):
            self.session.put_back(assignment)
            self.taken = None
            return
        position = assignment.items[assignment.cursor][0]
        assignment.cursor += 1
        assignment.started = position
        if assignment.closed and not self.session.may_start(assignment, position):
            assignment.started = assignment.done
            return
        self.running = position

    def finish(self) -> None:
        """The handler returns."""
        if self.running is not None and self.taken is not None:
            self.handled.append((self.taken.partition, self.running))
            self.taken.done = self.running
            self.running = None

    # The settler and the keeper.

    def ack(self) -> None:
        """Acknowledge; the answer may get lost."""
        acks = self.session.take_acks()
        if acks is None:
            return
        try:
            reply = self.driven.do(c.Ack(*self._member(), *acks)).reply
        except NotSubscribed:
            self.session.not_confirmed()
            return
        if self.dice.random() < 0.2:
            self.session.not_confirmed()
        else:
            self.session.confirmed(reply["stale"])

    def heartbeat(self) -> None:
        """Keep the lease, or learn that it is lost and come back."""
        try:
            self.driven.do(c.Heartbeat(*self._member()))
        except NotSubscribed:
            before = list(self.session.held)
            self.inbox.clear()
            self.driven.subscribe(self.name)
            if self.dice.random() < 0.5:
                self.ack()  # the settler may come between the call and what follows from it
            self.session.lose(before)

    def expire(self) -> None:
        """The broker declares it dead."""
        group = self.driven.channel.subscriptions["default"]
        if self.name in group.subscribers:
            self.driven.do(c.Leave(*self._member(), "expired"))

    def receive(self) -> None:
        """What is on its way arrives, perhaps twice."""
        if self.inbox:
            send = self.inbox.pop(0)
            for _ in range(self.dice.choice([1, 1, 2])):
                self.session.receive(delivery_columns(send))

    def recall(self, epochs: list[int]) -> None:
        """The broker wants something back."""
        while self.inbox:
            self.receive()
        uptos = self.session.recall(epochs)
        self.driven.do(c.HandBack(*self._member(), epochs, uptos))


def turn(driven: Driven, clients: dict[str, Client], dice: random.Random, faults: bool) -> None:
    """One step of somebody."""
    client = clients[dice.choice(sorted(clients))]
    steps = [client.start, client.start, client.finish, client.ack, client.receive,
             client.heartbeat]  # fmt: skip
    if faults:
        steps.append(client.expire)
    dice.choice(steps)()
    for name, sends in driven.dispatch().items():
        clients[name].inbox += sends
    for record in driven.do(c.Tick()).records:
        if isinstance(record, r.Recalled):
            clients[record.subscriber].recall(record.epochs)
    driven.now_ms += 1


def test_a_session_that_lives_handles_nothing_twice() -> None:
    """Through lost answers, repeated sends, expired leases, late acks and recalls no session runs
    its handler twice for one message, and each sees a partition in order; nothing is left over."""
    for seed in range(150):
        dice = random.Random(seed)
        driven = Driven(checked=seed % 10 == 0, attempts_max=1_000_000, poison="block",
                        lease_ms=1_000_000)  # fmt: skip
        clients = {name: Client(name, driven, dice) for name in "ab"}
        published: set[Place] = set()
        for step in range(400):
            if step < 200 and dice.random() < 0.2:
                partition = f"part-{dice.randint(0, 3)}"
                count = dice.randint(1, 4)
                first = driven.channel.next_sequences("p", [partition])[0]
                driven.publish(partition, *[b"x"] * count)
                published |= {(partition, first + i) for i in range(count)}
            turn(driven, clients, dice, faults=step < 300)
        for _ in range(5_000):
            if not driven.channel.unsettled():
                break
            turn(driven, clients, dice, faults=False)
        assert driven.channel.unsettled() == 0, seed
        for client in clients.values():
            assert len(client.handled) == len(set(client.handled)), (seed, client.name)
            for name in {partition for partition, _ in client.handled}:
                positions = [position for part, position in client.handled if part == name]
                assert positions == sorted(positions), (seed, client.name, name)
        assert {place for client in clients.values() for place in client.handled} == published, seed


def batch(epoch: int, first: int, count: int) -> dict[str, Any]:
    """What the broker sends of one partition."""
    return {
        "publishers": "p", "partitions": ["part"], "firsts": [first], "counts": [count],
        "epochs": [epoch], "attempts": None, "timestamps": 1, "sequences": [first],
        "priorities": None, "formats": 0, "bodies": [b"x"] * count, "extras": None,
    }  # fmt: skip


def test_a_fenced_ack_does_not_count_as_a_confirmation() -> None:
    """What was handled and whose ack came too late is remembered: when it comes back under a new
    epoch it is acknowledged again and not handled again."""
    session = Session()
    session.receive(batch(epoch=1, first=1, count=3))
    (assignment,) = session.take(1)
    assignment.cursor, assignment.started, assignment.done = 2, 2, 2
    session.take_acks()
    session.confirmed(stale=[1])
    session.put_back(assignment)
    session.receive(batch(epoch=2, first=1, count=3))
    (again,) = session.take(1)
    assert [item[0] for item in again.items[again.cursor :]] == [3]
    assert session.take_acks() == ([2], [2], [])


def test_a_recall_between_two_messages_does_not_end_the_worker() -> None:
    """What the worker is about to take may be handed back at any instant, also at the worst one."""
    shared = Shared("worker", "orders", "default", prefetch=9, concurrency=1, timeout_s=1.0)
    handled: list[int] = []
    shared.handler = lambda message: handled.append(message.position)
    shared.lease_until = time.monotonic() + 1_000.0
    shared.session.receive(batch(epoch=1, first=1, count=3))
    (assignment,) = shared.session.take(1)

    class Interrupting:
        """Lets a recall in just before the second message is taken."""

        def is_set(self) -> bool:
            if handled and not assignment.closed:
                with shared.changed:
                    assert shared.session.recall([1]) == [1]
            return False

        def set(self) -> None:
            """The subscriber would end."""
            raise AssertionError("the subscriber was ended")

    shared.stopping = Interrupting()  # type: ignore[assignment]
    assert Workers(shared).handle_all(assignment)
    assert handled == [1]
