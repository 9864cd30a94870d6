"""The publisher's pure half against a broker that fills up, breaks off and forgets.

Seconds of this meet what whole evenings of real crashes do not: each seed is another history of
limits, lost answers and lost journals' tails.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.errors import BrokerUnavailable
from publisher.outbox import Batch, Call, Learn, Outbox, follow


class FakeBroker:
    """What a channel answers to publish calls, with a journal whose tail a crash takes away."""

    def __init__(self, dice: random.Random, limit: int) -> None:
        self.dice = dice
        self.limit = limit
        self.records: list[list[tuple[str, int, bytes]]] = []  # one list per accepted call
        self.durable = 0
        self.settled = 0

    def accepted(self) -> list[tuple[str, int, bytes]]:
        """Everything that was accepted, in order."""
        return [item for record in self.records for item in record]

    def expected(self, partition: str) -> int:
        """The next sequence."""
        return 1 + sum(item[0] == partition for item in self.accepted())

    def publish(self, call: Call) -> dict[str, Any]:
        """Accept what is next and fits."""
        bodies = iter(call.column(call.batch.bodies))
        room = self.limit - (len(self.accepted()) - self.settled)
        runs, record, through_total, duplicates = [], [], 0, 0
        for name, first, count in zip(call.partitions, call.firsts, call.counts):
            run = [next(bodies) for _ in range(count)]
            expected = self.expected(name)
            if first > expected:
                runs.append([0, 0, "gap", expected, 0])
                continue
            again = min(count, expected - first)
            fit = min(count - again, room)
            room -= fit
            record += [(name, expected + i, run[again + i]) for i in range(fit)]
            through = again + fit
            through_total += through
            duplicates += again
            reason = None if through == count else "full"
            runs.append([through, again, reason, first + through, again])
        if record:
            self.records.append(record)
        return {
            "accepted": through_total - duplicates, "duplicates": duplicates, "room": room,
            "refused": sum(call.counts) - through_total, "runs": runs, "limit": self.limit,
            "retry_after_ms": 1, "record": len(self.records), "durable": self.durable,
            "known": [],
        }  # fmt: skip

    def sync(self) -> None:
        """The journal reaches the disk; subscribers settle some of it."""
        self.durable = len(self.records)
        self.settled = self.dice.randint(self.settled, len(self.accepted()))

    def crash(self) -> None:
        """What was not durable is gone."""
        del self.records[self.durable :]


def carry(outbox: Outbox, broker: FakeBroker, dice: random.Random, breaks: float) -> None:
    """Carry calls until the outbox is empty, answer by answer, with breaks in between."""
    under_way: list[tuple[Call, dict[str, Any]]] = []
    for _ in range(20_000):
        if outbox.count == 0:
            return
        if dice.random() < breaks:
            if dice.random() < 0.5:
                broker.crash()
            outbox.unknown()
            under_way.clear()
        if dice.random() < 0.3:
            broker.sync()
        call = outbox.next_call()
        if isinstance(call, Call):
            assert call.counts and call.column(call.batch.bodies), "an empty call"
            under_way.append((call, broker.publish(call)))
            if dice.random() < 0.5:
                continue
        elif isinstance(call, Learn):
            outbox.learnt(call.partitions, [broker.expected(name) for name in call.partitions])
        if under_way:
            outbox.answered(*under_way.pop(0))
        elif outbox.unconfirmed_record:
            broker.sync()
            outbox.durable(broker.durable)
    raise AssertionError(f"{outbox.count} messages are still open")


@pytest.mark.parametrize("block", [True, False])
def test_order_and_outcomes_survive_breaks_and_limits(block: bool) -> None:
    """However often the connection breaks, the journal loses its tail and the channel is full, a
    message has one outcome; what was accepted is there once, in the order of publishing."""
    for seed in range(400):
        dice = random.Random(seed)
        broker = FakeBroker(dice, limit=dice.choice([3, 10, 40]))
        outbox = Outbox(dice.choice([2, 5, 20]), 1 << 20, not block, dice.choice([1, 3]))
        places: list[tuple[Batch, int]] = []
        for number in range(60):
            name = f"part-{dice.randint(0, 2)}"
            places.append(outbox.add(name, f"{number}".encode(), 0, number, 0, None))
            if dice.random() < 0.1 and not block:
                carry(outbox, broker, dice, 0.1)
        carry(outbox, broker, dice, 0.1)
        outcomes = []
        for batch, index in places:
            batch, index = follow(batch, index)
            outcomes.append(batch.outcome(index))
        assert None not in outcomes, seed
        accepted = broker.accepted()
        there = {body: (name, sequence) for name, sequence, body in accepted}
        assert len(there) == len(accepted), f"seed {seed}: a message was accepted twice"
        for number, outcome in enumerate(outcomes):
            known = there.get(str(number).encode())
            if isinstance(outcome, tuple):
                assert known is not None and known[1] == outcome[0], (seed, number, outcome, known)
            else:
                assert not block and known is None, (seed, number, outcome, known)
        for name in ("part-0", "part-1", "part-2"):
            numbers = [int(body) for partition, _, body in accepted if partition == name]
            assert numbers == sorted(numbers), f"seed {seed}: {name} is out of order: {numbers}"


def test_giving_up_answers_every_receipt() -> None:
    """Whatever state the outbox is in, giving up gives each open message the error."""
    for seed in range(200):
        dice = random.Random(seed)
        broker = FakeBroker(dice, limit=5)
        outbox = Outbox(3, 1 << 20, False, 3)
        places = [
            outbox.add(f"part-{dice.randint(0, 2)}", b"x", 0, number, 0, None)
            for number in range(30)
        ]
        try:
            for _ in range(dice.randint(0, 30)):
                call = outbox.next_call()
                if isinstance(call, Call):
                    outbox.answered(call, broker.publish(call))
                if dice.random() < 0.2:
                    outbox.unknown()
        finally:
            outbox.fail(BrokerUnavailable("given up"))
        for batch, index in places:
            batch, index = follow(batch, index)
            assert batch.outcome(index) is not None, seed
        assert outbox.count == 0 and outbox.next_call() is None, seed
