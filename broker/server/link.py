"""Link: the broker's end of one subscriber. What was decided for it waits here until it is sent.

A push link has a sender thread of its own, which calls the subscriber's callback object outside all
locks; a pull link is emptied by the subscriber's ``fetch`` calls. The queue of a link belongs to
the channel host and is touched only under the host's lock; everything else in here is the
sender's.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Container, Protocol, Union

from broker.core.commands import HandBack, Heartbeat, Leave, Send
from broker.core.records import Delivered, Recalled
from broker.errors import BrokerError, BrokerStopping, JournalError
from broker.wire import body_bytes, delivery_columns, plain_messages

if TYPE_CHECKING:
    from broker.server.channel_host import ChannelHost

log = logging.getLogger("fairlead.link")

Item = Union[Send, Recalled]


class Callback(Protocol):
    """How a subscriber is called. One thread uses it; any exception is a failed call."""

    takes_bytes: bool

    def receive(self, batch: Any) -> None:
        """Hand a batch over; returns when the subscriber has buffered it."""
        ...

    def recall(self, epochs: list[int]) -> list[int]:
        """Ask for unstarted work back; the answer is the last started position per epoch."""
        ...

    def ping(self, nothing: None) -> None:
        """Look whether the subscriber's daemon answers."""
        ...

    def close(self) -> None:
        """Let the connection go."""
        ...


class Link:
    """One subscriber as the broker reaches it."""

    def __init__(self, subscription: str, subscriber: str, session: str, plain: bool) -> None:
        self.subscription = subscription
        self.subscriber = subscriber
        self.session = session
        self.plain = plain
        self.queue: list[Item] = []  # guarded by the host's lock
        self.fence = 0  # what it held before it joined is up to this epoch
        self.generation = 0  # of the subscription
        self.sequence = 0  # the journal sequence that must be durable before the queue is sent
        self.asleep = False
        self.closed = False
        self.signal: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def key(self) -> tuple[str, str]:
        """Under which the host knows it."""
        return (self.subscription, self.subscriber)

    def wake(self) -> None:
        """There is something in the queue, or the link was closed."""
        self.signal.put(None)

    def close(self) -> None:
        """Send nothing more. Does not wait."""
        self.closed = True
        self.wake()


class PullLink(Link):
    """A subscriber that fetches. The last batch is kept until the next fetch says that it came."""

    def __init__(self, subscription: str, subscriber: str, session: str, plain: bool) -> None:
        super().__init__(subscription, subscriber, session, plain)
        self.fetching = threading.Lock()
        self.batch_number = 0
        self.batch: list[Send] = []


class PushLink(Link):
    """A subscriber that is called; owns the sender thread."""

    def __init__(
        self,
        host: ChannelHost,
        subscription: str,
        subscriber: str,
        session: str,
        plain: bool,
        callback: Callback,
    ) -> None:
        super().__init__(subscription, subscriber, session, plain)
        self._host = host
        self._callback = callback
        self._thread = threading.Thread(
            target=self._run, name=f"sender-{host.name}-{subscriber}", daemon=True
        )

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the sender thread to end."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while not self.closed:
                items, sequence = self._host.take(self)
                if not items:
                    self._wait_for_work()
                    continue
                while not self._host.wait_durable(sequence) and not self.closed:
                    log.warning("channel %s: the journal is slow to commit", self._host.name)
                if not self._send_all(items):
                    break
        except BrokerError as error:
            # The journal failed or the broker is stopping: nothing may be sent any more. In any
            # other case nobody may stay behind who holds work and is sent nothing.
            log.info("sender of %s stops: %s", self.subscriber, error)
            if not isinstance(error, (JournalError, BrokerStopping)):
                self._give_up()
        except Exception:
            # Never leave a subscriber behind that holds work and is sent nothing.
            log.exception("sender of %s to %s failed", self._host.name, self.subscriber)
            self._give_up()
        finally:
            self._callback.close()

    def _wait_for_work(self) -> None:
        """Sleep until there is something to send. A plain script need not send heartbeats while it
        holds nothing: then it is the broker that looks whether it is still there."""
        try:
            self.signal.get(timeout=self._host.policy.lease_ms / 3000 if self.plain else None)
        except queue.Empty:
            if self._host.holds_nothing(self) and self._try("ping", None)[0]:
                command = Heartbeat(self.subscription, self.subscriber, self.session)
                self._host.execute(command)

    def _send_all(self, items: list[Item]) -> bool:
        """Send in the order in which things were decided; False when the subscriber is given up."""
        sends: list[Send] = []
        for item in items:
            if isinstance(item, Send):
                sends.append(item)
                continue
            if not self._send_batches(sends) or not self._recall(item):
                return False
            sends = []
        return self._send_batches(sends)

    def _send_batches(self, sends: list[Send]) -> bool:
        if not sends:
            return True
        for part in split(merge(sends), self._host.batch_bytes_max):
            batch: Any = delivery_columns(part, self.fence, self.generation)
            if self.plain:
                batch = plain_messages(part, self._callback.takes_bytes)
            if not self._try("receive", batch)[0]:
                return False
        return True

    def _recall(self, record: Recalled) -> bool:
        done, uptos = self._try("recall", record.epochs)
        if not done:
            return False
        command = HandBack(
            self.subscription, self.subscriber, self.session, record.epochs, list(uptos)
        )
        while not self.closed:
            try:
                self._host.settle(command)
                break
            except BrokerError as error:
                if not error.retriable:
                    raise
                # The queues are down, or the commit is slow. To repeat a hand-back is harmless.
                self._pause(self._host.policy.send_backoff_ms / 1000)
        return True

    def _try(self, method: str, argument: Any) -> tuple[bool, Any]:
        """Call up to ``sends_max`` times with back-off; then the subscriber is inactive."""
        policy = self._host.policy
        error: BaseException | None = None
        for attempt in range(policy.sends_max):
            if self.closed:
                return False, None
            if attempt:
                self._pause(policy.send_backoff_ms * (1 << (attempt - 1)) / 1000)
            try:
                return True, getattr(self._callback, method)(argument)
            except Exception as caught:
                error = caught
                log.warning(
                    "channel %s: %s to subscriber %s failed, attempt %d of %d: %s",
                    self._host.name, method, self.subscriber, attempt + 1, policy.sends_max, caught,
                )  # fmt: skip
        log.warning(
            "channel %s: subscriber %s is inactive after %d failed calls (%s); its work goes to "
            "the others",
            self._host.name, self.subscriber, policy.sends_max, error,
        )  # fmt: skip
        self._give_up()
        return False, None

    def _give_up(self) -> None:
        command = Leave(self.subscription, self.subscriber, self.session, "crashed")
        self._host.give_up(self, command)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.closed and (left := deadline - time.monotonic()) > 0:
            try:
                self.signal.get(timeout=left)
            except queue.Empty:
                return


def merge(sends: list[Send]) -> Send:
    """Several sends to one subscriber as one, in order."""
    if len(sends) == 1:
        return sends[0]
    records = [send.delivered for send in sends]

    def joined(name: str) -> list[Any]:
        return [item for record in records for item in getattr(record, name)]

    first = records[0]
    delivered = Delivered(
        first.at_ms, first.subscription, first.subscriber, joined("keys"), joined("firsts"),
        joined("sequences"), joined("counts"), joined("epochs"), joined("attempts"), [],
    )  # fmt: skip
    entries = [entry for send in sends for entry in send.entries]
    return Send(sends[0].subscription, sends[0].subscriber, delivered, entries)


def only_epochs(send: Send, held: Container[int]) -> Send | None:
    """A send without the runs of other epochs than those ``held``; None if nothing is left."""
    record = send.delivered
    if all(epoch in held for epoch in record.epochs):
        return send
    part = _empty(send)
    end = 0
    for run, (epoch, first, count) in enumerate(
        zip(record.epochs, record.firsts, record.counts)
    ):
        start, end = end, end + count
        if epoch in held:
            _copy_run(record, run, part.delivered, first, count)
            part.entries += send.entries[start:end]
    return part if part.entries else None


def split(send: Send, bytes_max: int, count_max: int = 1 << 60) -> list[Send]:
    """A send as parts that one call can carry; a run may be cut, its positions go on."""
    if len(send.entries) <= count_max and body_bytes(send) <= bytes_max:
        return [send]
    record = send.delivered
    parts: list[Send] = []
    part = _empty(send)
    size = index = 0
    for run, (first, count) in enumerate(zip(record.firsts, record.counts)):
        begin = 0
        for offset in range(count):
            entry = send.entries[index]
            if part.entries and (
                size + len(entry[4]) > bytes_max or len(part.entries) >= count_max
            ):
                _copy_run(record, run, part.delivered, first + begin, offset - begin)
                parts.append(part)
                part, size, begin = _empty(send), 0, offset
            part.entries.append(entry)
            size += len(entry[4])
            index += 1
        _copy_run(record, run, part.delivered, first + begin, count - begin)
    parts.append(part)
    return parts


def _empty(send: Send) -> Send:
    record = send.delivered
    return Send(
        send.subscription, send.subscriber,
        Delivered(record.at_ms, record.subscription, record.subscriber, [], [], [], [], [], [], []),
        [],
    )  # fmt: skip


def _copy_run(source: Delivered, run: int, target: Delivered, first: int, count: int) -> None:
    if count < 1:
        return
    begun = first - source.firsts[run]
    target.keys.append(source.keys[run])
    target.firsts.append(first)
    target.sequences.append(source.sequences[run] + begun)
    target.counts.append(count)
    target.epochs.append(source.epochs[run])
    target.attempts.append(1 if begun else source.attempts[run])
