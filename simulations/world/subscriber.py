"""The simulated subscriber: the real session, driven as the threads of ``Subscriber`` drive it.

One object is one life of a subscriber's process: a keeper, a settler and workers as tasks. What a
handler does with a message, and how long it takes, comes from outside (``Handling``).
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Protocol

from broker.core.policy import Policy
from broker.errors import BrokerError, NotSubscribed
from broker.history import MemoryHistory
from simulations.world.broker import ADDRESS
from simulations.world.network import Answer, Network
from simulations.world.publisher import _telling, pause_us
from simulations.world.scheduler import MS_US, Pending, Process, Signal, Steps
from subscriber.history import SLOW_S, SubscriberHistory, subscriber_identity
from subscriber.message import Message
from subscriber.session import Assignment, Item, Session

TIMEOUT_US = 2_000 * MS_US
ACK_INTERVAL_US = 5 * MS_US
TAKE_COUNT_MAX = 64


class Handling(Protocol):
    """What happens when a message is handled."""

    def takes_us(self, subscriber: SimulatedSubscriber, message: Message) -> int:
        """How long the handler runs."""

    def handle(self, subscriber: SimulatedSubscriber, message: Message) -> None:
        """The handler's effect. It may leave a verdict, raise, or kill its process."""


class SimulatedSubscriber(Process):
    """One life of a subscriber."""

    def __init__(
        self,
        network: Network,
        random: Random,
        name: str,
        life: int,
        channel: str,
        subscription: str,
        *,
        prefetch: int,
        concurrency: int,
        handling: Handling,
        hear: Callable[[str], None],
        on_end: Callable[[SimulatedSubscriber, str], None],
    ) -> None:
        super().__init__(name)
        self.world = network.world
        self.subscription = subscription
        self.session_id = f"{name}-{life}"
        self.session = Session()
        self.session.recording = True
        self.address = f"{name}#{life}"
        self.subscribed = False
        self.heard_us = 0  # when the last call was sent that the broker has answered as to a member
        self.leaving = False
        self._network = network
        self._random = random
        self._channel = channel
        self._prefetch, self._concurrency = prefetch, concurrency
        self._handling = handling
        self._on_end = on_end
        identity = subscriber_identity(name, self.session_id, channel, subscription)
        history = MemoryHistory(identity, self.world.wall_us)
        self.history = SubscriberHistory(_telling(history, hear))
        self._nacks: list[tuple[int, int, str, float | None, bool]] = []
        self._policy = Policy()
        self._lease_until_us = 0
        self._working = 0
        self._settled_all = False
        self._changed = Signal(self.world, self)
        self._check_now = Signal(self.world, self)
        self._settle_now = Signal(self.world, self)

    def start(self) -> None:
        """Begin."""
        self._network.listen(self.address, self, self.serve)
        self.world.spawn(self, self._keep(), self._ended)

    def leave(self) -> None:
        """End cleanly, as with SIGTERM: finish what runs, settle, say good-bye."""
        self.leaving = True
        self._changed.set()
        self._settle_now.set()
        self._check_now.set()

    @property
    def idle(self) -> bool:
        """Subscribed, and nothing to handle or to settle."""
        session = self.session
        return (
            self.subscribed
            and not self._working
            and not self._nacks
            and not session.ready
            and session.take_acks() is None
        )

    def _ended(self, value: Any, error: BrokerError | None) -> None:
        self._on_end(self, str(error) if error is not None else "left")

    # What the broker calls.

    def serve(self, method: str, args: tuple[Any, ...], answer: Answer) -> None:
        """One remote call."""
        if method == "receive":
            self.session.receive(args[0])
            answer(None, None)
        else:
            answer(self.session.recall(args[0]), None)
        self._changed.set()

    # The keeper: subscribes, keeps the lease, comes back, leaves.

    def _keep(self) -> Steps:
        attempt = 0
        while True:
            try:
                yield from self._subscribe()
                break
            except BrokerError as error:
                if not error.retriable:
                    raise
                yield pause_us(self._random, attempt, error)
                attempt += 1
        self.world.spawn(self, self._settle())
        for _ in range(self._concurrency):
            self.world.spawn(self, self._work())
        attempt = 0
        while not self._settled_all:
            try:
                if attempt:
                    yield from self._subscribe()
                yield from self._heartbeat()
                attempt = 0
            except NotSubscribed:
                attempt += 1
                yield pause_us(self._random, attempt - 1)
                continue
            except BrokerError as error:
                if not error.retriable and error.definite:
                    raise
                attempt += 1
                yield pause_us(self._random, attempt - 1, error)
                continue
            yield self._check_now.wait(max(20, self._policy.lease_ms // 4) * MS_US)
            self._check_now.clear()
        try:
            yield self._call("leave", self.name, self.session_id, self.subscription)
        except BrokerError:
            pass  # a lease is behind it
        self.history.closed()

    def _subscribe(self) -> Steps:
        session = self.session
        before, generation = list(session.held), session.generation
        began_us = self.world.now_us
        reply = yield self._call(
            "subscribe", self.name, self.address, self._prefetch, self.subscription,
            self.session_id,
        )  # fmt: skip
        if not reply["resumed"]:
            if session.generation == generation:
                session.lose(before, reply["epoch"])
            self._nacks[:] = [nack for nack in self._nacks if nack[0] not in before]
        epoch = reply["epoch"]
        made_anew = session.generation not in (0, reply["generation"]) or epoch < session.fence
        if made_anew and (stretches := session.take_finished()) is not None:
            self.history.finished(stretches)
        self.history.subscribed(reply["resumed"], reply["generation"])
        if made_anew:
            session.forget()
        session.enter(reply["generation"])
        session.move_fence(epoch)
        self._policy = Policy.from_dict(reply["policy"])
        self.subscribed = True
        self._renew(began_us)
        self._settle_now.set()
        if made_anew:
            yield from self._subscribe()

    def _heartbeat(self) -> Steps:
        began_us = self.world.now_us
        reply = yield self._call("heartbeat", self.name, self.session_id, self.subscription)
        self._renew(began_us, reply["fence"])

    def _renew(self, began_us: int, fence: int = 0) -> None:
        self.session.move_fence(fence)
        self.heard_us = max(self.heard_us, began_us)
        until_us = began_us + self._policy.lease_ms * MS_US
        if until_us > self._lease_until_us:
            self._lease_until_us = until_us
            self._changed.set()

    def _call(self, method: str, *args: Any) -> Pending:
        return self._network.call(self, ADDRESS, method, args, TIMEOUT_US)

    # The settler: carries acks and nacks.

    def _settle(self) -> Steps:
        attempt = 0
        while True:
            self._settle_now.clear()
            try:
                yield from self._settle_once()
                attempt = 0
            except BrokerError as error:
                self.session.not_confirmed()
                if error.code in ("not-subscribed", "broker-unavailable"):
                    self._check_now.set()
                if self.leaving and attempt >= 5:
                    break
                yield pause_us(self._random, attempt, error)
                attempt += 1
                continue
            if self.leaving and not self._working and not self._nacks:
                if self.session.take_acks() is None:
                    break
                continue
            yield self._settle_now.wait()
            yield ACK_INTERVAL_US
        self._note_finished()
        self._settled_all = True
        self._check_now.set()

    def _settle_once(self) -> Steps:
        session = self.session
        began_us = self.world.now_us
        acks = session.take_acks()
        nacks = list(self._nacks)
        self._note_finished()
        fence = 0
        if acks is not None:
            reply = yield self._call(
                "settle", self.subscription, self.name, self.session_id, *acks
            )
            session.confirmed(reply["stale"])
            fence = reply["fence"]
        for nack in nacks:
            epoch, position, reason, delay_s, final = nack
            reply = yield self._call(
                "nack", self.name, self.session_id, epoch, position, reason, delay_s, final,
                self.subscription,
            )  # fmt: skip
            if nack in self._nacks:
                self._nacks.remove(nack)
            session.nacked(epoch)
            fence = reply["fence"]
        if acks is not None or nacks:
            self._renew(began_us, fence)
            self._changed.set()

    def _note_finished(self) -> None:
        stretches = self.session.take_finished()
        if stretches is not None:
            self.history.finished(stretches)

    # The workers: handle, one partition at a time each, in order.

    def _work(self) -> Steps:
        session = self.session
        while True:
            taken: list[Assignment] = []
            while not self.leaving:
                taken = session.take(self._take_count())
                if taken:
                    break
                self._settle_now.set()
                self._changed.clear()
                yield self._changed.wait()
            if not taken:
                return
            self._working += 1
            for assignment in taken:
                if not (yield from self._handle_all(assignment)):
                    break
            self._working -= 1
            for assignment in taken:
                session.put_back(assignment)
            self._settle_now.set()

    def _take_count(self) -> int:
        if self._concurrency == 1:
            return TAKE_COUNT_MAX
        share = len(self.session.ready) // (2 * self._concurrency)
        return max(1, min(TAKE_COUNT_MAX, share))

    def _handle_all(self, assignment: Assignment) -> Steps:
        items = assignment.items
        origin = (self._channel, self.subscription, self.session.generation)
        note = True
        total = assignment.seen[1]
        while assignment.cursor < len(items):
            if self.leaving:
                return False
            item = items[assignment.cursor]
            assignment.cursor += 1
            position = item[0]
            assignment.started = position
            doubtful = assignment.closed or self.world.now_us > self._lease_until_us
            if doubtful and not (yield from self._still_ours(assignment, position)):
                return True
            if note:
                self._note_started(assignment, item)
            message = Message(assignment, item, origin)
            took_us = self._handling.takes_us(self, message)
            yield took_us
            try:
                self._handling.handle(self, message)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                message.verdict = message.verdict or (None, False, reason)
            if self.dead:
                return False
            if message.verdict is not None:
                self._failed(assignment, item, message.verdict)
                return True
            if took_us >= self._policy.delay_ms * MS_US:
                self.session.delays.append([assignment.epoch, position, took_us // MS_US])
            total += item[3]
            assignment.seen = (position, total)
            note = took_us > SLOW_S * 1_000_000
            assignment.done = position
            self._settle_now.set()
        return True

    def _note_started(self, assignment: Assignment, item: Item) -> None:
        self.history.started(
            assignment.publisher, assignment.partition, assignment.epoch, item[0], item[3], item[1]
        )

    def _failed(
        self, assignment: Assignment, item: Item, verdict: tuple[float | None, bool, str]
    ) -> None:
        delay_s, final, reason = verdict
        self.history.failed(assignment.epoch, item[0], item[3], item[1], reason[:500])
        self.session.failed(assignment)
        if not assignment.lost:
            self._nacks.append((assignment.epoch, item[0], reason[:500], delay_s, final))
        self._settle_now.set()

    def _still_ours(self, assignment: Assignment, position: int) -> Steps:
        while not self.leaving:
            if not self.session.may_start(assignment, position):
                break
            if self.world.now_us <= self._lease_until_us:
                return True
            self._check_now.set()
            self._changed.clear()
            yield self._changed.wait(500 * MS_US)
        not_begun = assignment.started == position and position > assignment.keep_upto
        if not assignment.closed or not_begun:
            assignment.started = assignment.done
        return False
