"""The broker's end of a simulated subscriber: what ``PushLink`` does in a thread of a real broker.

The queue, its order and its resending are the real host's; here is only the sender: wait for the
commit, call, try again, give up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.core.commands import HandBack, Leave, Send
from broker.core.records import Recalled
from broker.errors import BrokerError, BrokerStopping, JournalError
from broker.server.link import Item, Link, merge, split
from broker.wire import delivery_columns
from simulations.world.scheduler import MS_US, Signal, Steps

if TYPE_CHECKING:
    from simulations.world.broker import Broker


class SimulatedLink(Link):
    """A link whose sender is a task."""

    def __init__(
        self, broker: Broker, subscription: str, subscriber: str, session: str, address: str
    ) -> None:
        super().__init__(subscription, subscriber, session, plain=False)
        self._broker = broker
        self._address = address
        self._work = Signal(broker.world, broker)

    def wake(self) -> None:
        """There is something in the queue, or the link was closed."""
        self._work.set()

    def sender(self) -> Steps:
        """The sender's task."""
        host = self._broker.host
        try:
            while not self.closed:
                self._work.clear()
                items, sequence = host.take(self)
                if not items:
                    yield self._work.wait()
                    continue
                yield self._broker.disk.when_durable(sequence)
                if not (yield from self._send_all(items)):
                    break
        except BrokerError as error:
            if not isinstance(error, (JournalError, BrokerStopping)):
                self._give_up()

    def _send_all(self, items: list[Item]) -> Steps:
        sends: list[Send] = []
        for item in items:
            if isinstance(item, Send):
                sends.append(item)
                continue
            if not (yield from self._send_batches(sends)):
                return False
            if not (yield from self._recall(item)):
                return False
            sends = []
        return (yield from self._send_batches(sends))

    def _send_batches(self, sends: list[Send]) -> Steps:
        if not sends:
            return True
        for part in split(merge(sends), self._broker.host.batch_bytes_max):
            done, _ = yield from self._try(
                "receive", delivery_columns(part, self.fence, self.generation)
            )
            if not done:
                return False
        return True

    def _recall(self, record: Recalled) -> Steps:
        done, uptos = yield from self._try("recall", record.epochs)
        if not done:
            return False
        command = HandBack(
            self.subscription, self.subscriber, self.session, record.epochs, list(uptos)
        )
        while not self.closed:
            try:
                yield from self._broker.settle(command)
                break
            except BrokerError as error:
                if not error.retriable:
                    raise
                yield from self._pause(self._broker.host.policy.send_backoff_ms)
        return True

    def _try(self, method: str, argument: Any) -> Steps:
        """Call up to ``sends_max`` times with back-off; then the subscriber is inactive."""
        broker, policy = self._broker, self._broker.host.policy
        for attempt in range(policy.sends_max):
            if self.closed:
                return False, None
            if attempt:
                yield from self._pause(policy.send_backoff_ms * (1 << (attempt - 1)))
            try:
                answer = yield broker.network.call(
                    broker, self._address, method, (argument,), policy.send_timeout_ms * MS_US
                )
                return True, answer
            except BrokerError:
                continue
        broker.world.note(broker.name, f"gives up {self.subscriber} after {method} failed")
        self._give_up()
        return False, None

    def _give_up(self) -> None:
        command = Leave(self.subscription, self.subscriber, self.session, "crashed")
        self._broker.host.give_up(self, command)

    def _pause(self, milliseconds: int) -> Steps:
        deadline_us = self._broker.world.now_us + milliseconds * MS_US
        while not self.closed and (left := deadline_us - self._broker.world.now_us) > 0:
            self._work.clear()
            yield self._work.wait(left)
