"""The publishers of the demonstration: a steady flow from a thread each, with every receipt kept.

The seed decides what the n-th message of a publisher is; how many there are depends on how long the
faults take, since messages flow until all of them have been seen through.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any, NamedTuple

from broker.errors import BrokerError
from publisher import Publisher
from publisher.receipt import Accepted, Receipt
from simulations.demo.check import Told
from simulations.demo.wait import Failure

PARTITIONS = 10  # per publisher
BURST = 10
PAUSE_S = 0.04
WITH_ID = 5  # every so many messages carry an id of their own
ANSWER_DEADLINE_S = 30.0


class Sent(NamedTuple):
    """One message that was handed to a publisher."""

    partition: str
    body: dict[str, Any]
    id: str | None
    at: float
    receipt: Receipt


class Pump(threading.Thread):
    """Publishes until it is told to stop, and at least ``count_min`` messages."""

    def __init__(self, publisher: Publisher, seed: int, count_min: int) -> None:
        super().__init__(name=f"pump-{publisher.publisher}", daemon=True)
        self.publisher = publisher
        self.sent: list[Sent] = []
        self.copies: list[Sent] = []
        self.error: Exception | None = None
        self._random = random.Random(f"{seed}/{publisher.publisher}")
        self._count_min = count_min
        self._enough = threading.Event()
        self._at_once = threading.Event()

    @property
    def name_of_publisher(self) -> str:
        """The publisher's id."""
        return self.publisher.publisher

    def run(self) -> None:
        """The flow: a few messages, a short pause, and so on."""
        try:
            while len(self.sent) < self._count_min or not self._enough.is_set():
                for _ in range(BURST):
                    self.sent.append(self._publish_next())
                if self._at_once.wait(PAUSE_S):
                    return
        except Exception as error:  # told by whoever looks at the flow next
            self.error = error

    def _publish_next(self) -> Sent:
        number = len(self.sent) + 1
        partition = f"customer-{self._random.randrange(PARTITIONS)}"
        body = {"number": number, "cents": self._random.randrange(100, 10_000)}
        chosen = f"{self.name_of_publisher}-{number}" if number % WITH_ID == 0 else None
        at = time.monotonic()
        return Sent(partition, body, chosen, at, self.publisher.publish(body, partition, id=chosen))

    def repeat_ids(self, count: int) -> list[Sent]:
        """Publish again messages that have ids of their own, old ones and new ones; the copies."""
        known = [sent for sent in list(self.sent) if sent.id and sent.receipt.done()]
        chosen = self._random_sample(known, count)
        copies = [
            Sent(
                sent.partition, sent.body | {"copy": True}, sent.id, time.monotonic(),
                self.publisher.publish(sent.body | {"copy": True}, sent.partition, id=sent.id),
            )
            for sent in chosen
        ]  # fmt: skip
        self.copies += copies
        return copies

    def confirmed_in_first_partition(self, count_max: int) -> tuple[str, int]:
        """A partition, and up to how many sequences of it are known to be accepted."""
        partition = self.sent[0].partition
        count = 0
        for sent in list(self.sent):
            if sent.partition == partition:
                if count == count_max or not sent.receipt.done():
                    break
                count += 1
        return partition, count

    def _random_sample(self, known: list[Sent], count: int) -> list[Sent]:
        chooser = random.Random(f"{self.name_of_publisher}/{len(known)}")
        return chooser.sample(known, min(count, len(known)))

    def finish(self) -> None:
        """No more than the least number from now on."""
        self._enough.set()

    def check(self) -> None:
        """Raise if the flow broke off."""
        if self.error is not None:
            raise Failure(f"publisher {self.name_of_publisher} failed: {self.error}")

    def close(self) -> None:
        """Stop at once and let the connection go."""
        self._enough.set()
        self._at_once.set()
        if self.is_alive():
            self.join(5.0)
        self.publisher.close(5.0)


def told(pumps: list[Pump]) -> Told:
    """What the publishers of one channel were told about everything they sent."""
    found = Told()
    for pump in pumps:
        for sent in pump.sent + pump.copies:
            outcome = _outcome(sent)
            if isinstance(outcome, BrokerError):
                found.errors.append(f"{pump.name_of_publisher}: {outcome}")
            elif outcome.duplicate:
                found.duplicates += 1
            else:
                found.accepted.add((pump.name_of_publisher, sent.partition, outcome.sequence))
        found.sent_again += len(pump.copies)
    return found


def _outcome(sent: Sent) -> Accepted | BrokerError:
    try:
        return sent.receipt.result(ANSWER_DEADLINE_S)
    except BrokerError as error:
        return error


def accepted_between(pumps: list[Pump], begin: float, end: float) -> tuple[int, int]:
    """Of the messages that were published in that time: how many, and how many were accepted."""
    sent = [item for pump in pumps for item in pump.sent if begin <= item.at <= end]
    return len(sent), sum(isinstance(_outcome(item), Accepted) for item in sent)
