"""The simulated publisher: the real outbox, driven as the sender thread of ``Publisher`` drives it.

One object is one life of a publisher's process. What its program publishes comes from outside
(``publish``); what becomes of it is asked for at the end (``outcomes``).
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, Callable, Iterator

from broker.errors import BrokerError, ChannelNotFound, PublisherFenced
from broker.history import MemoryHistory
from publisher.batch import Batch, Call, Learn, follow
from publisher.history import PublisherHistory, publisher_identity
from publisher.outbox import Outbox
from simulations.world.broker import ADDRESS
from simulations.world.network import Network, Pipe
from simulations.world.scheduler import MS_US, Process, Signal, Steps

UNDER_WAY_MAX = 3
TIMEOUT_US = 2_000 * MS_US

#: (partition, body, priority, timestamp in microseconds, extras, format of the body)
Wanted = tuple[str, bytes, int, int, "dict[str, Any] | None", int]


def pause_us(random: Random, attempt: int, error: BrokerError | None = None) -> int:
    """How long a client waits before it tries again: as ``broker.remote.lookup.pause_s``."""
    hinted_ms = (error.details.get("retry_after_ms") if error is not None else None) or 0
    base_us = max(min(50 << min(attempt, 6), 1_000), hinted_ms) * MS_US
    return int(base_us * random.uniform(0.5, 1.0))


class SimulatedPublisher(Process):
    """One life of a publisher."""

    def __init__(
        self,
        network: Network,
        random: Random,
        name: str,
        life: int,
        channel: str,
        *,
        refuse: bool,
        batch_count_max: int,
        hear: Callable[[str], None],
        on_end: Callable[[SimulatedPublisher, BrokerError], None],
    ) -> None:
        super().__init__(name)
        self.world = network.world
        self.epoch = 0
        self.outbox: Outbox | None = None
        self._network = network
        self._random = random
        self._channel = channel
        self._instance = f"{name}-{life}"
        self._refuse, self._batch_count_max = refuse, batch_count_max
        self._hear = hear
        self._on_end = on_end
        self._pipe: Pipe | None = None
        self._calls: deque[Call] = deque()
        self._history: PublisherHistory | None = None
        self._changed = Signal(self.world, self)
        self._wanted: list[Wanted] = []
        self._places: list[tuple[Batch, int, bytes]] = []
        self._answers = 0
        self._connections = self._sent = 0

    def start(self) -> None:
        """Begin."""
        self.world.spawn(self, self._run(), self._ended)

    def publish(self, messages: list[Wanted]) -> None:
        """What the publisher's program gives it, at any time."""
        if self.outbox is None:
            self._wanted += messages
            return
        for partition, body, priority, timestamp, extras, kind in messages:
            batch, index = self.outbox.add(partition, body, kind, timestamp, priority, extras)
            self._places.append((batch, index, body))
        self._changed.set()

    @property
    def idle(self) -> bool:
        """Everything that was published has an outcome."""
        return self.outbox is not None and self.outbox.count == 0

    def outcomes(self) -> Iterator[tuple[bytes, Any]]:
        """Each message taken, and (sequence, duplicate), its error, or None while it is open."""
        for batch, index, body in self._places:
            batch, index = follow(batch, index)
            yield body, batch.outcome(index)

    def _ended(self, value: Any, error: BrokerError | None) -> None:
        assert error is not None
        self._on_end(self, error)

    # As ``Link.open`` and ``Publisher._run``.

    def _run(self) -> Steps:
        yield from self._open()
        attempt = answers = 0
        while True:
            try:
                yield from self._step()
                if self._answers != answers:
                    answers, attempt = self._answers, 0
                continue
            except BrokerError as caught:
                error = caught
            away = not error.definite or isinstance(error, ChannelNotFound)
            if self._calls or (self.outbox and self.outbox.under_way) or away:
                self._disconnect()
            if not (away or error.retriable):
                self._give_up(error)
                raise error
            yield pause_us(self._random, attempt, error)
            attempt += 1

    def _open(self) -> Steps:
        attempt = 0
        while True:
            try:
                opened = yield from self._ask("open_publisher", self.name, self._instance)
                break
            except BrokerError as error:
                if not error.retriable:
                    raise
                self._release()
                yield pause_us(self._random, attempt, error)
                attempt += 1
        self.epoch = opened["epoch"]
        policy = opened["policy"]
        outbox = Outbox(
            self._batch_count_max, policy["batch_bytes_max"], self._refuse, UNDER_WAY_MAX
        )
        outbox.known = opened["known"]
        identity = publisher_identity(self.name, self.epoch, self._channel)
        history = MemoryHistory(identity, self.world.wall_us)
        self._history = PublisherHistory(_telling(history, self._hear), self.epoch)
        outbox.watcher = self._history
        self.outbox = outbox
        self.world.note(self.name, f"opened as epoch {self.epoch}")
        wanted, self._wanted = self._wanted, []
        self.publish(wanted)

    def _step(self) -> Steps:
        outbox = self.outbox
        assert outbox is not None
        while True:
            call = outbox.next_call()
            record = outbox.unconfirmed_record
            if call is not None or self._calls or record:
                break
            self._changed.clear()
            yield self._changed.wait()
        wait = outbox.gathered == 0
        pipe = self._connected()
        if isinstance(call, Call):
            self._calls.append(call)
            arguments = call.arguments(self.name, self.epoch, wait, self._place())
            assert self._history is not None
            self._history.tried(call)
            pipe.send("publish_runs", *arguments)
        elif self._calls:
            try:
                reply = yield pipe.receive()
            except BrokerError as error:
                self._note_refused(self._calls[0], error)
                raise
            yield from self._answered(self._calls.popleft(), reply)
        elif isinstance(call, Learn):
            sequences = yield from self._ask(
                "next_sequences", self.name, call.partitions, self.epoch, self._place()
            )
            outbox.learnt(call.partitions, sequences)
        else:
            upto = yield from self._ask("wait_durable", record)
            self._answers += 1
            outbox.durable(upto)

    def _answered(self, call: Call, reply: dict[str, Any]) -> Steps:
        assert self.outbox is not None
        self._answers += 1
        self.outbox.answered(call, reply)
        if reply["refused"] and not self._refuse and not self._calls:
            yield pause_us(self._random, 0) + reply["retry_after_ms"] * MS_US

    def _note_refused(self, call: Call, error: BrokerError) -> None:
        final = error.definite and not error.retriable and type(error) is not BrokerError
        doubtful = isinstance(error, (ChannelNotFound, PublisherFenced))
        if final and self._history is not None and not doubtful:
            self._history.refused_whole(call, error.code)

    def _give_up(self, error: BrokerError) -> None:
        self.world.note(self.name, f"gives up: {error}")
        if self.outbox is not None:
            self.outbox.fail(error)
        if self._history is not None:
            self._history.closed()

    def _place(self) -> list[int]:
        self._sent += 1
        return [self._connections, self._sent]

    # The connection.

    def _connected(self) -> Pipe:
        if self._pipe is None:
            self._pipe = Pipe(self._network, self, ADDRESS, TIMEOUT_US)
            self._connections += 1
        return self._pipe

    def _ask(self, method: str, *args: Any) -> Steps:
        pipe = self._connected()
        pipe.send(method, *args)
        answer = yield pipe.receive()
        return answer

    def _release(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    def _disconnect(self) -> None:
        self._calls.clear()
        self._release()
        if self.outbox is not None:
            self.outbox.unknown()


def _telling(
    history: MemoryHistory, hear: Callable[[str], None]
) -> Callable[[str, str], None]:
    """An append that also tells the line to somebody."""

    def append(event: str, fields: str = "") -> None:
        history.append(event, fields)
        hear(history.lines[-1])

    return append
