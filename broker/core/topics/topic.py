"""Topic: the deterministic state machine of one topic. ``decide`` changes nothing, ``apply`` does.

A topic keeps one copy of each message that somebody is owed, and per subscription one position.
So a put costs the same however many subscribers are away, and a message is released when the last
one has confirmed it.

A client is known by its id, and by the ``instance`` of its state directory: two directories under
one id would number their puts against each other. Of each client the topic remembers for good its
last put and its last request, so that what comes again, however late, is not done again.
"""

from __future__ import annotations

from typing import Any, Callable

from sortedcontainers import SortedDict

from broker.core.topics import commands as c
from broker.core.topics import records as r
from broker.core.topics.log import MessageLog
from broker.core.topics.policy import TopicPolicy
from broker.errors import (
    BeyondEnd,
    ClientElsewhere,
    LimitReached,
    NotSubscribed,
    NumberReused,
    RequestOvertaken,
    SequenceGap,
    StateBehind,
    TopicFull,
)

#: What a caller may wait for before it tries again, when the topic is full.
RETRY_AFTER_MS = 500


class Client:
    """What a topic remembers of a client id, also when it is not subscribed."""

    __slots__ = ("instance", "number", "call_number", "call_crc", "call_position", "request")

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.number = 0  # of its last message
        self.call_number = 0  # of the first message of its last call
        self.call_crc = 0
        self.call_position = 0
        self.request = 0

    def to_list(self) -> list[Any]:
        """For a snapshot."""
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_list(cls, values: list[Any]) -> Client:
        """The inverse of ``to_list``."""
        client = cls(values[0])
        for name, value in zip(cls.__slots__, values, strict=True):
            setattr(client, name, value)
        return client


class Place:
    """A subscription: which one it is, and how far its client has come."""

    __slots__ = ("ticket", "joined", "confirmed", "request")

    def __init__(self, ticket: int, joined: int, confirmed: int, request: int) -> None:
        self.ticket = ticket
        self.joined = joined  # the last position before it
        self.confirmed = confirmed
        self.request = request  # that made it


class Topic:
    """One topic: its messages, its subscriptions, what it remembers of each client."""

    def __init__(self, name: str, policy: TopicPolicy | None = None) -> None:
        self.name = name
        self.policy = policy or TopicPolicy()
        self.log = MessageLog()
        self.clients: dict[str, Client] = {}
        self.places: dict[str, Place] = {}
        self.born = 0  # tells it from an earlier topic of that name
        self.touched_ms = 0  # when the last record was written
        self.stamp = 0  # the last one that is in here, of a message or a subscription
        self.put_total = 0
        self.confirmed_total = 0
        # While it is restored: the record that its state is of, and the log's end there.
        self.upto = self.expected_last = 0
        self._floors: Any = SortedDict()  # confirmed position -> how many subscriptions are there

    def __repr__(self) -> str:
        return (
            f"<Topic {self.name} {self.log.first}..{self.log.last} "
            f"subscriptions={len(self.places)}>"
        )

    @property
    def floor(self) -> int:
        """Everything up to here is confirmed by all that were owed it."""
        return int(self._floors.peekitem(0)[0]) if self._floors else self.log.last

    @property
    def released(self) -> bool:
        """Nobody is subscribed, so nothing is kept."""
        return not self.places and not len(self.log)

    def owed(self, client: str) -> int:
        """How many messages wait for a client."""
        return self.log.last - self.places[client].confirmed

    @staticmethod
    def birth(name: str, policy: TopicPolicy, stamp: int, now_ms: int) -> list[r.TopicRecord]:
        """The first record of a new topic."""
        return [r.TopicCreated(now_ms, name, stamp, policy.to_dict())]

    def decide(self, command: c.TopicCommand, now_ms: int) -> c.TopicDecision:
        """What follows from ``command``. Changes nothing; raises BrokerError to refuse."""
        return _DECIDE[type(command)](self, command, now_ms)

    def apply(self, record: r.TopicRecord) -> None:
        """Take a fact into the state. The only way in which the state changes."""
        _APPLY[type(record)](self, record)
        self.touched_ms = record.at_ms

    def place(self, client: str, instance: str, ticket: int | None) -> Place:
        """The subscription of a client, or an error that says what to do."""
        self.known(client, instance)
        place = self.places.get(client)
        if place is None:
            raise NotSubscribed(
                f"client {client} is not subscribed to topic {self.name}; subscribe first"
            )
        if ticket is not None and ticket != place.ticket:
            raise NotSubscribed(
                f"client {client} has left topic {self.name} and subscribed anew since; what it "
                "asks about was its subscription before, and nothing of that is kept"
            )
        return place

    def known(self, client: str, instance: str) -> Client | None:
        """What is remembered of a client; refuses another state directory than its own."""
        found = self.clients.get(client)
        if found is not None and instance and found.instance and found.instance != instance:
            raise ClientElsewhere(
                f"client {client} of topic {self.name} belongs to another state directory, and "
                "two of them under one id would mix up their numbers; use that directory, choose "
                "another id, or take the id over if that directory is lost",
                number=found.number,
            )
        return found

    def add_place(self, client: str, place: Place) -> None:
        """A subscription is there."""
        self.places[client] = place
        self._floors[place.confirmed] = self._floors.get(place.confirmed, 0) + 1

    def move_floor(self, old: int, new: int | None) -> None:
        """A subscription has moved, or is gone (``new`` None); release what that sets free."""
        floors = self._floors
        if floors[old] == 1:
            del floors[old]
        else:
            floors[old] -= 1
        if new is not None:
            floors[new] = floors.get(new, 0) + 1
        self.log.release(self.floor)


# Subscriptions.


def _decide_subscribe(topic: Topic, command: c.Subscribe, now_ms: int) -> c.TopicDecision:
    """``new`` in the reply tells a new subscription from one that was there."""
    client = topic.known(command.client, command.instance)
    place = topic.places.get(command.client)
    last = client.request if client is not None else 0
    request = last + 1 if command.request is None else command.request
    if request < last or (request == last and place is None):
        raise _overtaken(topic, command.client, "subscribe", request, last)
    if place is not None:
        return c.TopicDecision([], {**_told(topic, place), "new": place.request == request})
    if len(topic.places) >= topic.policy.subscriber_count_max:
        raise LimitReached(
            f"client {command.client} cannot subscribe to topic {topic.name}: it has "
            f"{topic.policy.subscriber_count_max} subscribers, which is its limit"
        )
    if client is None:
        _refuse_client(topic, command.client)
    record = r.TopicSubscribed(
        now_ms, command.client, command.instance, request, command.ticket, topic.log.last
    )
    place = Place(command.ticket, topic.log.last, topic.log.last, request)
    return c.TopicDecision([record], {**_told(topic, place), "new": True})


def _told(topic: Topic, place: Place) -> dict[str, Any]:
    return {
        "ticket": place.ticket, "position": place.confirmed, "request": place.request,
        "born": topic.born,
    }  # fmt: skip


def _apply_subscribed(topic: Topic, record: r.TopicSubscribed) -> None:
    assert record.subscriber not in topic.places and record.position == topic.log.last
    client = _client(topic, record.subscriber, record.instance)
    assert record.request > client.request
    client.request = record.request
    topic.stamp = max(topic.stamp, record.ticket)
    place = Place(record.ticket, record.position, record.position, record.request)
    topic.add_place(record.subscriber, place)


def _decide_unsubscribe(topic: Topic, command: c.Unsubscribe, now_ms: int) -> c.TopicDecision:
    """``was`` in the reply says whether there was something to end."""
    client = topic.known(command.client, command.instance)
    place = topic.places.get(command.client)
    last = client.request if client is not None else 0
    request = last + 1 if command.request is None else command.request
    if request < last:
        raise _overtaken(topic, command.client, "unsubscribe", request, last)
    if place is None:
        # The same request once more has ended it; any other one finds nothing.
        return c.TopicDecision([], {"was": request == last > 0, "request": last})
    if request == last:
        raise _overtaken(topic, command.client, "unsubscribe", request, last)
    if command.ticket is not None and command.ticket != place.ticket:
        return c.TopicDecision([], {"was": False, "request": last})
    owed = topic.owed(command.client)
    record = r.TopicUnsubscribed(
        now_ms, command.client, request, place.ticket, place.confirmed, owed
    )
    return c.TopicDecision([record], {"was": True, "request": request, "owed": owed})


def _apply_unsubscribed(topic: Topic, record: r.TopicUnsubscribed) -> None:
    place = topic.places.pop(record.subscriber)
    assert place.ticket == record.ticket and place.confirmed == record.position
    topic.clients[record.subscriber].request = record.request
    topic.move_floor(place.confirmed, None)


def _overtaken(
    topic: Topic, client: str, asked: str, request: int, last: int
) -> RequestOvertaken:
    return RequestOvertaken(
        f"{asked} of client {client} to topic {topic.name} came too late: it has number "
        f"{request}, and number {last} was done before it",
        request=last,
    )


# Messages.


def _decide_put(topic: Topic, command: c.PutMessages, now_ms: int) -> c.TopicDecision:
    """Accept what is next, recognise the last call when it comes again, refuse all else."""
    client = topic.known(command.client, command.instance)
    last = client.number if client is not None else 0
    number = last + 1 if command.number is None else command.number
    count = len(command.bodies)
    if number > last + 1:
        raise SequenceGap(
            f"put number {number} of client {command.client} to topic {topic.name} is refused: "
            f"the last one received is {last}; send from {last + 1} on",
            last=last, expected=last + 1, born=topic.born,
        )  # fmt: skip
    if client is not None and number <= last:
        same = number == client.call_number and number + count - 1 == last
        if same and command.crc == client.call_crc:
            reply = _accepted(topic, number, count, client.call_position, True)
            return c.TopicDecision([], reply)
        raise NumberReused(
            f"put number {number} of client {command.client} to topic {topic.name} is refused: "
            f"numbers up to {last} are taken, and this is no repetition of its last call; its "
            "state directory is older than what it has sent",
            last=last,
        )
    if client is None:
        _refuse_client(topic, command.client)
    policy = topic.policy
    log = topic.log
    # What nobody is owed is not kept, so it needs no room.
    if topic.places and (
        len(log) + count > policy.backlog_count_max
        or log.size + command.size > policy.backlog_bytes_max
    ):
        raise TopicFull(
            f"topic {topic.name} is full: {len(log)} messages with {log.size} bytes wait for the "
            f"slowest of {len(topic.places)} subscribers; its limits are "
            f"{policy.backlog_count_max} messages (backlog_count_max) and "
            f"{policy.backlog_bytes_max} bytes (backlog_bytes_max). Nothing of this call was "
            "accepted; put it again when the subscriber has caught up, or unsubscribe it",
            last=last, retry_after_ms=RETRY_AFTER_MS,
        )  # fmt: skip
    record = r.Put(
        now_ms, command.client, command.instance, number, log.last + 1, command.stamp, command.crc,
        command.formats, command.bodies,
    )  # fmt: skip
    return c.TopicDecision([record], _accepted(topic, number, count, log.last + 1, False))


def _accepted(
    topic: Topic, number: int, count: int, position: int, again: bool
) -> dict[str, Any]:
    return {
        "number": number + count - 1, "position": position, "count": count, "again": again,
        "born": topic.born,
    }  # fmt: skip


def _apply_put(topic: Topic, record: r.Put) -> None:
    log, count = topic.log, len(record.bodies)
    client = _client(topic, record.publisher, record.instance)
    assert record.position == log.last + 1 and record.number == client.number + 1 and count
    client.call_number = record.number
    client.number += count
    client.call_crc = record.crc
    client.call_position = record.position
    topic.stamp = max(topic.stamp, record.stamp + count - 1)
    topic.put_total += count
    log.add(record)
    if not topic.places:
        log.release(log.last)


def _decide_confirm(topic: Topic, command: c.Confirm, now_ms: int) -> c.TopicDecision:
    """The reply says where the client stands; what it is sent next follows from that."""
    place = topic.place(command.client, command.instance, command.ticket)
    received = command.received
    if received > topic.log.last:
        raise BeyondEnd(
            f"client {command.client} says that it has message {received} of topic {topic.name}, "
            f"but the last one is {topic.log.last}; its state directory belongs to another "
            "broker, or the broker's store was put back to an earlier state",
            position=topic.log.last,
        )
    if received < place.confirmed:
        raise StateBehind(
            f"client {command.client} of topic {topic.name} asks for what comes after message "
            f"{received}, but it has confirmed {place.confirmed} before; its state directory was "
            f"put back to an earlier state. Take the id over to go on after {place.confirmed}",
            position=place.confirmed,
        )
    records: list[r.TopicRecord] = []
    if received > place.confirmed:
        first, count = place.confirmed + 1, received - place.confirmed
        records.append(r.Confirmed(now_ms, command.client, place.ticket, first, count))
    return c.TopicDecision(
        records, {"ticket": place.ticket, "position": received, "last": topic.log.last}
    )


def _apply_confirmed(topic: Topic, record: r.Confirmed) -> None:
    place = topic.places[record.subscriber]
    old, new = place.confirmed, record.first + record.count - 1
    assert place.ticket == record.ticket and record.first == old + 1 and old < new <= topic.log.last
    place.confirmed = new
    topic.confirmed_total += record.count
    topic.move_floor(old, new)


# Clients.


def _decide_take_over(topic: Topic, command: c.TakeOver, now_ms: int) -> c.TopicDecision:
    """The reply has what a new state directory must know to go on."""
    client = topic.clients.get(command.client)
    reply: dict[str, Any] = {"known": client is not None, "born": topic.born}
    if client is None:
        # Written down all the same: a late call of the lost directory must not claim the id.
        _refuse_client(topic, command.client)
        record = r.ClientTakenOver(now_ms, command.client, command.instance)
        return c.TopicDecision([record], {**reply, "number": 0, "request": 0})
    place = topic.places.get(command.client)
    reply |= {"number": client.number, "request": client.request}
    if place is not None:
        reply |= {"ticket": place.ticket, "position": place.confirmed}
    records: list[r.TopicRecord] = []
    if client.instance != command.instance:
        records.append(r.ClientTakenOver(now_ms, command.client, command.instance))
    return c.TopicDecision(records, reply)


def _apply_taken_over(topic: Topic, record: r.ClientTakenOver) -> None:
    _client(topic, record.subscriber, record.instance).instance = record.instance


def _client(topic: Topic, client: str, instance: str) -> Client:
    found = topic.clients.get(client)
    if found is None:
        found = topic.clients[client] = Client(instance)
    elif instance and not found.instance:
        found.instance = instance  # a plain script was the first to use the id
    return found


def _refuse_client(topic: Topic, client: str) -> None:
    if len(topic.clients) >= topic.policy.client_count_max:
        raise LimitReached(
            f"client {client} cannot use topic {topic.name}: it knows "
            f"{topic.policy.client_count_max} clients, which is its limit (client_count_max)"
        )


def _apply_created(topic: Topic, record: r.TopicCreated) -> None:
    assert record.name == topic.name
    topic.policy = TopicPolicy.from_dict(record.policy)
    topic.born = topic.stamp = record.stamp


_DECIDE: dict[type[Any], Callable[[Topic, Any, int], c.TopicDecision]] = {
    c.PutMessages: _decide_put,
    c.Confirm: _decide_confirm,
    c.Subscribe: _decide_subscribe,
    c.Unsubscribe: _decide_unsubscribe,
    c.TakeOver: _decide_take_over,
}

_APPLY: dict[type[Any], Callable[[Topic, Any], None]] = {
    r.Put: _apply_put,
    r.Confirmed: _apply_confirmed,
    r.TopicSubscribed: _apply_subscribed,
    r.TopicUnsubscribed: _apply_unsubscribed,
    r.ClientTakenOver: _apply_taken_over,
    r.TopicCreated: _apply_created,
}
