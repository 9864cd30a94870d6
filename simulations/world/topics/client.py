"""The simulated topic client: the real ledger and history, driven as ``topics.client`` drives them.

One object is one life of a client's process. Every method with steps is a call of its user. Between
a request and what follows from it stands ``step``: there a crash may come.
"""

from __future__ import annotations

from random import Random
from typing import Any, Callable, Sequence

from broker import wire
from broker.errors import BrokerError, SequenceGap, TopicFull, TopicNotFound
from broker.history import MemoryHistory
from simulations.world.broker import ADDRESS
from simulations.world.network import Network
from simulations.world.scheduler import MS_US, Process, Steps
from simulations.world.topics.directory import Directory
from topics.history import TopicHistory, topic_identity
from topics.ledger import Ledger, PutCall
from topics.message import TopicMessage

TRIES = 3
TIMEOUT_US = 100 * MS_US

#: Told of what is handed out, and of the subscriptions that it was asked over.
OnGot = Callable[["TopicsClient", Sequence[TopicMessage], "tuple[tuple[str, int], ...]"], None]


class TopicsClient(Process):
    """One life of a client."""

    def __init__(
        self,
        network: Network,
        random: Random,
        name: str,
        directory: Directory,
        *,
        hear: Callable[[str], None],
        on_got: OnGot,
        on_crash: Callable[[TopicsClient], None],
    ) -> None:
        super().__init__(name)
        self.world = network.world
        self.directory = directory
        self.ledger = Ledger(directory, directory.open(random))
        self.steps_left = 0  # until it crashes; 0: it does not
        self._network = network
        self._random = random
        self._on_got, self._on_crash = on_got, on_crash
        self._sent = 0
        history = MemoryHistory(
            topic_identity(name, directory.life, directory.instance), self.world.wall_us
        )

        def append(event: str, fields: str) -> None:
            history.append(event, fields)
            hear(history.lines[-1])

        self.history = TopicHistory(append)

    def step(self) -> Steps:
        """A moment, as a write to the disk takes; perhaps the last one."""
        yield self._random.randrange(1, 2 * MS_US)
        if self.steps_left:
            self.steps_left -= 1
            if not self.steps_left:
                self._on_crash(self)
                yield MS_US  # it is dead: what comes after this never happens

    def _who(self) -> tuple[str, str]:
        return self.name, self.directory.instance

    def _ask(self, method: str, *args: Any, wait_us: int = 0) -> Steps:
        """A request that may be repeated as it is."""
        for attempt in range(1, TRIES + 1):
            try:
                timeout_us = TIMEOUT_US + wait_us
                return (yield self._network.call(self, ADDRESS, method, args, timeout_us))
            except BrokerError as error:
                if attempt == TRIES or (error.definite and not error.retriable):
                    raise
            yield self._random.randrange(50 * MS_US)

    # Puts.

    def put(self, topic: str, bodies: list[bytes]) -> Steps:
        """Put messages; what is pending from before goes first."""
        yield from self.settle(topic)
        yield from self.step()
        self.ledger.begin_put(topic, 0, bodies)
        yield from self._send_pending(topic, False)

    def settle(self, topic: str) -> Steps:
        """Send once more what may have been sent in vain."""
        if self.ledger.account(topic).pending is not None:
            yield from self._send_pending(topic, True)

    def _send_pending(self, topic: str, again: bool) -> Steps:
        account = self.ledger.account(topic)
        assert account.pending is not None
        calls = [account.pending]
        for _ in range(3):
            try:
                for call in calls:
                    reply = yield from self._send(topic, call, again)
                break
            except SequenceGap as error:
                calls = self.ledger.after_gap(topic, error)
        yield from self.step()
        call = account.pending
        self.ledger.end_put(topic, reply)
        self.history.answered(topic, call, reply)

    def _send(self, topic: str, call: PutCall, again: bool) -> Steps:
        """Each sending has a place in the order of all, so that an older one is not done later."""
        formats, bodies = call.formats, call.bodies
        for attempt in range(1, TRIES + 1):
            yield from self.step()
            self.history.tried(topic, call, wire.call_checksum(formats, bodies), again)
            again = True
            self._sent += 1
            order = (self.directory.life, self._sent)
            args = (topic, *self._who(), call.number, formats, bodies, order)
            try:
                return (yield self._network.call(self, ADDRESS, "put", args, TIMEOUT_US))
            except SequenceGap:
                raise
            except BrokerError as error:
                if attempt == TRIES or (error.definite and not error.retriable):
                    yield from self._give_up(topic, call, error)
                    raise
            yield self._random.randrange(50 * MS_US)

    def _give_up(self, topic: str, call: PutCall, error: BrokerError) -> Steps:
        """A topic that is full has not had the call, and takes no older sending of it."""
        if isinstance(error, TopicFull):
            yield from self.step()
            self.ledger.drop_put(topic)
            self.history.refused(topic, call, error.code)
        else:
            self.history.unknown(topic, call)

    # Subscriptions.

    def subscribe(self, topic: str) -> Steps:
        """Be owed what comes from now on."""
        yield from self.step()
        request = self.ledger.begin_request(topic)
        self.history.requested(topic, request, "subscribe")
        yield from self.step()
        reply = yield from self._ask("subscribe", topic, *self._who(), request)
        yield from self.step()
        self.ledger.end_subscribe(topic, reply)
        self.history.subscribed(self.ledger.account(topic), request, reply)

    def unsubscribe(self, topic: str) -> Steps:
        """Be owed nothing any more."""
        yield from self.step()
        ticket = self.ledger.account(topic).ticket
        request = self.ledger.begin_request(topic)
        self.history.requested(topic, request, "unsubscribe", ticket)
        yield from self.step()
        try:
            args = (topic, *self._who(), request, ticket or None)
            reply = yield from self._ask("unsubscribe", *args)
        except TopicNotFound:
            reply = {"was": False}
        yield from self.step()
        self.ledger.end_unsubscribe(topic)
        self.history.unsubscribed(topic, request, ticket, reply["was"])

    def take_over(self) -> Steps:
        """Go on with what the broker knows, since the directory of before is lost."""
        for topic in (yield from self._ask("topics")):
            yield from self.take_over_one(topic)

    def take_over_one(self, topic: str) -> Steps:
        """The same for one topic."""
        try:
            reply = yield from self._ask("take_over", topic, *self._who())
        except TopicNotFound:
            return
        yield from self.step()
        self.ledger.taken_over(topic, reply)
        self.history.taken_over(self.ledger.account(topic))

    # Gets.

    def get(self, topics: list[str], count: int, wait_us: int) -> Steps:
        """The next messages, which are the client's when they are handed out."""
        asked, reply = yield from self._look(topics, count, wait_us)
        yield from self.step()
        fresh = self._fresh(asked, reply)
        self._write_down(fresh)
        self._hand_out(asked, fresh)
        return reply

    def _look(self, topics: list[str], count: int, wait_us: int) -> Steps:
        asked = self.ledger.asked(topics)
        reply = yield from self._ask("get", *self._who(), asked, count, wait_us, wait_us=wait_us)
        return asked, reply

    def _fresh(self, asked: dict[str, list[int]], reply: dict[str, Any]) -> list[TopicMessage]:
        """The messages of subscriptions that are still where they were when it was asked."""
        now = self.ledger.asked(list(asked))
        return [
            TopicMessage(topic, place, asked[topic][0], stamp, publisher, number, at_ms, form, body)
            for topic, place, stamp, at_ms, publisher, number, form, body in reply["messages"]
            if now[topic] == asked[topic]
        ]

    def _write_down(self, messages: list[TopicMessage]) -> None:
        for topic, last in {message.topic: message for message in messages}.items():
            self.ledger.received(topic, last.ticket, last.id)

    def _hand_out(self, asked: dict[str, list[int]], messages: list[TopicMessage]) -> None:
        self.history.got(messages)
        over = tuple(sorted((topic, ticket) for topic, (ticket, _) in asked.items()))
        self._on_got(self, messages, over)

    def receive(self, topic: str, count: int, wait_us: int) -> Steps:
        """The next messages, which come again until they are confirmed."""
        asked, reply = yield from self._look([topic], count, wait_us)
        yield from self.step()
        messages = self._fresh(asked, reply)
        self.history.received(messages)
        return messages

    def confirm(self, message: TopicMessage) -> Steps:
        """Everything of its topic up to a message is the client's; the broker is told, perhaps."""
        yield from self.step()
        if not self.ledger.received(message.topic, message.ticket, message.id):
            return
        self.history.confirmed(message)
        args = (message.topic, *self._who(), message.ticket, message.id)
        yield from self.step()
        try:
            yield from self._ask("confirm", *args)
        except BrokerError:
            pass  # the next get says it again

