"""The clients of a chaos run: a subscriber and a publisher, each a process of its own.

``python -m simulations.chaos.actors KIND SETTINGS LIFE`` with the settings as a JSON file and the
number of this life of the client. Both live until the line ``normal`` comes through their leash,
and try again for as long as there is no broker to begin with. Nothing here judges, and nothing is
written down but the histories that every client can write.

A body that begins with ``RAISES`` makes the handler raise, one with ``KILLS`` ends its process.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import random
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Callable

from broker.errors import BrokerError, ChannelNotFound, PublisherFenced
from publisher import Publisher
from publisher.receipt import Receipt
from simulations.demo import leash
from subscriber import Message, Subscriber

RAISES, KILLS = "poison: raises ", "poison: kills "
KILLED_BY_MESSAGE = 77  # exit code of a subscriber that a message has killed
FENCED = 78  # exit code of a publisher that a newer one of its id has fenced

PAUSE_S = 0.3
WORK_S = (0.0, 0.04)  # so that a fault meets messages in many hands
BURST_S = 0.1
OPEN_MAX = 2_000  # receipts; then the oldest is waited for
ANSWER_S = 120.0
BODY_CHARS = 200
URGENT = 5

# Of all messages: urgent ones, those with an id of their own, those that are sent once more under
# their id, and those whose timestamp lies up to LATE_S before those that were sent before them.
URGENT_PART, ID_PART, COPY_PART, LATE_PART = 0.1, 0.1, 0.02, 0.05
LATE_S = 0.5

log = logging.getLogger("fairlead.chaos")


class Handling:
    """How a subscriber handles: as it should, or slowly for a while. Lines tell it which."""

    def __init__(self, seed: str) -> None:
        self.ended = threading.Event()
        self.subscriber: Subscriber | None = None
        self._random = random.Random(seed)
        self._slow_s = 0.0

    def obey(self, line: str) -> None:
        """``slow SECONDS``, ``quick``, or ``normal``: the end, after the message at hand."""
        word, _, value = line.partition(" ")
        if word == "slow":
            self._slow_s = float(value)
        elif word == "quick":
            self._slow_s = 0.0
        elif word == "normal":
            self._slow_s = 0.0
            self.ended.set()
            if self.subscriber is not None:
                self.subscriber.stop()

    def handle(self, message: Message) -> None:
        """The handler."""
        if message.body.startswith(RAISES):
            raise ValueError(message.body)
        if message.body.startswith(KILLS):
            os._exit(KILLED_BY_MESSAGE)
        time.sleep(self._slow_s or self._random.uniform(*WORK_S))


def subscribe(settings: dict[str, Any], life: int) -> int:
    """Handle until told to end."""
    handling = Handling(f"{settings['seed']}/{settings['name']}/{life}")
    leash.hold(handling.obey)
    while not handling.ended.is_set():
        worker = Subscriber(settings["name"], settings["channel"], **settings["options"])
        worker.handler(handling.handle)
        handling.subscriber = worker
        try:
            worker.run(signals=False)
            return 0
        except BrokerError as error:
            _demand_passing(error)
            handling.ended.wait(PAUSE_S)
    return 0


def publish(settings: dict[str, Any], life: int) -> int:
    """Publish at a steady rate until told to end; then wait for every confirmation."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    leash.hold(lines.put)
    try:
        source = _open(settings)
        _flow(source, lines, settings, life)
        source.flush(ANSWER_S)
        source.close()
    except PublisherFenced as error:
        log.warning("%s", error)
        return FENCED
    return 0


def _open(settings: dict[str, Any]) -> Publisher:
    deadline = time.monotonic() + ANSWER_S
    while True:
        try:
            return Publisher(settings["name"], settings["channel"], **settings["options"])
        except BrokerError as error:
            _demand_passing(error)
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


def _flow(
    source: Publisher, lines: queue.SimpleQueue[str], settings: dict[str, Any], life: int
) -> None:
    name = settings["name"]
    chance = random.Random(f"{settings['seed']}/{name}/{life}")
    partitions = [f"{name}-{number}" for number in range(settings["partitions"])]
    receipts: deque[Receipt] = deque()
    number, owed, due = 0, 0.0, time.monotonic()
    while (line := _next_line(lines)) != "normal":
        if line:  # "raises 12", "kills 12": a poisonous message with that number
            word, _, value = line.partition(" ")
            body = {"raises": RAISES, "kills": KILLS}[word] + value
            receipts.append(source.publish(body, chance.choice(partitions)))
        # Not steady to the message: what waits when a fault comes should be now few, now many.
        owed += settings["rate"] * BURST_S * chance.uniform(0.2, 1.8)
        while owed >= 1.0:
            owed -= 1.0
            number += 1
            receipts += _publish_one(source, chance, partitions, f"{life}:{number}")
        _drop_confirmed(receipts)
        # What could not be sent in time is not made up for: the rate is an upper limit.
        due = max(due + BURST_S, time.monotonic())
        time.sleep(due - time.monotonic() if due > time.monotonic() else 0.0)
    while receipts:
        receipts.popleft().result(ANSWER_S)


def _next_line(lines: queue.SimpleQueue[str]) -> str:
    try:
        return lines.get_nowait()
    except queue.Empty:
        return ""


def _publish_one(
    source: Publisher, chance: random.Random, partitions: list[str], number: str
) -> list[Receipt]:
    """A message of one sort or another, and perhaps a copy of it."""
    body = f"{number} ".ljust(chance.randrange(len(number) + 1, BODY_CHARS), ".")
    partition = chance.choice(partitions)
    copied = chance.random() < COPY_PART
    options: dict[str, Any] = {}
    if copied or chance.random() < ID_PART:
        options["id"] = f"{source.publisher}:{number}"
    if chance.random() < URGENT_PART:
        options["priority"] = URGENT
    if chance.random() < LATE_PART:
        options["timestamp"] = time.time() - chance.uniform(0.0, LATE_S)
    return [source.publish(body, partition, **options) for _ in range(2 if copied else 1)]


def _drop_confirmed(receipts: deque[Receipt]) -> None:
    """Forget what is confirmed; raise if something was refused for good."""
    while receipts and (receipts[0].done() or len(receipts) > OPEN_MAX):
        receipts.popleft().result(ANSWER_S)


def _demand_passing(error: BrokerError) -> None:
    """Raise what will not pass by itself."""
    if error.definite and not error.retriable and not isinstance(error, ChannelNotFound):
        raise error
    log.warning("not yet: %s", error)


KINDS: dict[str, Callable[[dict[str, Any], int], int]] = {
    "subscribe": subscribe, "publish": publish
}  # fmt: skip

if __name__ == "__main__":
    # The word to end comes through the leash, just before the signal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    sys.exit(KINDS[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()), int(sys.argv[3])))
