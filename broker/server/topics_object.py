"""What a remote caller may ask of topics: ``TopicsObject`` for all, ``TopicObject`` for one.

``fairlead.topics`` is the object of Fairlead's own clients: every verb names its topic, and a topic
is made when somebody subscribes to it or puts something into it. ``topic.<name>`` is the same for
one topic, for any Pyro5 script. No state lives here, and no decision: arguments are checked, and
the host is asked.

Whoever leaves out ``instance``, ``number``, ``request`` and ``ticket`` goes without what they give:
a repeated put counts again, a subscription that was made anew is not told from the one before.
"""

from __future__ import annotations

from typing import Any

from broker import wire
from broker.core.message import FORMAT_BYTES, FORMAT_JSON
from broker.core.topics import commands as c
from broker.errors import BadRequest, MessageTooLarge
from broker.pyro_setup import current_context, serializers
from broker.remote.exposed import remote
from broker.server.topics_host import Got, TopicsHost
from broker.wire import call_checksum

NUMBER_MAX = 1 << 62
COUNT_MAX = 10_000
WAIT_S_MAX = 60.0
LIST_LIMIT_MAX = 10_000
TOPICS_MAX = 10_000
JSON_ID: int = serializers.JsonSerializer.serializer_id  # it carries no bytes


class TopicsObject:
    """Every verb, for any topic."""

    def __init__(self, host: TopicsHost) -> None:
        self._host = host

    # Subscriptions.

    @remote
    def subscribe(
        self, topic: str, client: str, instance: str = "", request: int | None = None
    ) -> dict[str, Any]:
        """Owe a client every message from now on. ``new`` says whether that is new.

        ``request`` numbers what a client asks about its subscription, so that a repetition is done
        once and a late one not at all.
        """
        command = c.Subscribe(*_who(client, instance), _number(request, "request"))
        return self._host.settle(_topic(topic), command, create=True)

    @remote
    def unsubscribe(
        self,
        topic: str,
        client: str,
        instance: str = "",
        request: int | None = None,
        ticket: int | None = None,
    ) -> dict[str, Any]:
        """Owe a client nothing any more. ``was`` says whether it was subscribed."""
        command = c.Unsubscribe(
            *_who(client, instance), _number(request, "request"), _number(ticket, "ticket")
        )
        # Made if it must be, to remember the request: an older one may still be on its way.
        return self._host.settle(_topic(topic), command, create=True)

    # Messages.

    @remote
    def put(
        self,
        topic: str,
        client: str,
        messages: list[Any],
        number: int | None = None,
        instance: str = "",
    ) -> dict[str, Any]:
        """Put messages (str, bytes or JSON values) into a topic, all or none; durable on return.

        ``number`` is that of the first one: a repetition of the last call is recognised. A number
        that skips is refused with SequenceGap, which has the ``last`` one received.
        """
        if not isinstance(messages, (list, tuple)):
            raise BadRequest("messages must be a list; for one message, a list of one")
        bodies, formats = [], []
        for message in messages:
            form, body = wire.encode_body(wire.from_serpent(message))
            bodies.append(body)
            formats.append(form)
        return self._put(topic, client, instance, number, formats, bodies)

    @remote
    def put_bodies(
        self,
        topic: str,
        client: str,
        instance: str,
        number: int | None,
        formats: Any,
        bodies: list[bytes],
        order: list[int] | None = None,
    ) -> dict[str, Any]:
        """Put messages in columns: ``formats`` is one number when all are the same.

        ``order`` is [life, number]: it rises with each call that a client sends, so that a call
        that got stuck on its way is not done after a newer one (CallOvertaken).
        """
        if not isinstance(bodies, (list, tuple)):
            raise BadRequest("bodies must be a list of bytes")
        return self._put(topic, client, instance, number, formats, bodies, order)

    def _put(
        self,
        topic: str,
        client: str,
        instance: str,
        number: int | None,
        formats: Any,
        bodies: Any,
        order: list[int] | None = None,
    ) -> dict[str, Any]:
        policy = self._host.policy
        if not 0 < len(bodies) <= policy.batch_count_max:
            raise BadRequest(
                f"a put of {len(bodies)} messages is refused: it has 1 to {policy.batch_count_max}"
            )
        if set(map(type, bodies)) != {bytes}:
            raise BadRequest("bodies must be bytes")
        longest, size = max(map(len, bodies)), sum(map(len, bodies))
        if longest > policy.message_bytes_max or size > policy.batch_bytes_max:
            raise MessageTooLarge(
                f"a put to topic {topic!r:.120} is refused: its longest message has {longest} "
                f"bytes, of {policy.message_bytes_max} that are allowed (message_bytes_max), and "
                f"all have {size}, of {policy.batch_bytes_max} (batch_bytes_max)"
            )
        if type(formats) is not int:
            wire.check_ints(formats, "formats", FORMAT_BYTES, FORMAT_JSON)
            if len(formats) != len(bodies):
                raise BadRequest(f"{len(bodies)} bodies but {len(formats)} formats")
            formats = formats[0] if len(set(formats)) == 1 else list(formats)
        else:
            wire.check_int(formats, "formats", FORMAT_BYTES, FORMAT_JSON)
        command = c.PutMessages(
            *_who(client, instance), _number(number, "number"), formats, list(bodies), size,
            call_checksum(formats, bodies),
        )  # fmt: skip
        place = None
        if order is not None:
            place = _pair(order, "order", 1)
        return self._host.settle(_topic(topic), command, create=True, order=place)

    @remote
    def get(
        self,
        topic: str,
        client: str,
        received: int | None = None,
        count: int = 1,
        wait_s: float = 0.0,
        instance: str = "",
        ticket: int | None = None,
    ) -> dict[str, Any]:
        """The next messages after ``received``, which is confirmed by that and never comes again.

        Without ``received`` the same messages come again until ``confirm`` is called.
        """
        name = _topic(topic)
        if received is None:
            received = self._host.subscriptions(wire.check_id(client, "client id")).get(name, 0)
        command = c.Confirm(
            *_who(client, instance), _number(ticket, "ticket"), _position(received)
        )
        found, told = self._host.get({name: command}, *_limits(count, wait_s))
        return {"messages": _plain(found), **told[name]}

    @remote
    def get_columns(
        self,
        client: str,
        instance: str,
        asked: dict[str, list[int]],
        count: int,
        wait_s: float,
    ) -> dict[str, Any]:
        """The next messages of one topic, or of several in one order, in columns.

        ``asked`` has [ticket, last position received] of each topic. The answer has ``topics`` (the
        state of each) and parallel lists, one item per message.
        """
        if not isinstance(asked, dict) or not 0 < len(asked) <= TOPICS_MAX:
            raise BadRequest(f"asked must be a dict of 1 to {TOPICS_MAX} topics")
        commands = {}
        who = _who(client, instance)
        for topic, pair in asked.items():
            ticket, received = _pair(pair, "asked", 0)
            commands[_topic(topic)] = c.Confirm(*who, ticket, received)
        found, told = self._host.get(commands, *_limits(count, wait_s))
        columns = list(zip(*(item.entry for item in found))) or [()] * 6
        stamps, ats, publishers, numbers, formats, bodies = columns
        return {
            "topics": told,
            "names": [item.topic for item in found],
            "positions": [item.position for item in found],
            "stamps": stamps, "at_ms": ats, "publishers": publishers, "numbers": numbers,
            "formats": formats, "bodies": bodies,
        }  # fmt: skip

    @remote
    def confirm(
        self,
        topic: str,
        client: str,
        received: int,
        instance: str = "",
        ticket: int | None = None,
    ) -> dict[str, Any]:
        """The client has everything up to ``received``, and gets none of it again."""
        command = c.Confirm(
            *_who(client, instance), _number(ticket, "ticket"), _position(received)
        )
        return self._host.settle(_topic(topic), command)

    @remote
    def take_over(self, topic: str, client: str, instance: str) -> dict[str, Any]:
        """Let a client id belong to another state directory; the answer is what it must know."""
        return self._host.settle(_topic(topic), c.TakeOver(*_who(client, instance)))

    # Looking.

    @remote
    def topics(self) -> list[str]:
        """The names of all topics."""
        return self._host.topics()

    @remote
    def create(self, topic: str) -> dict[str, Any]:
        """Make a topic, so that ``topic.<name>`` can be looked up."""
        return self._host.create(_topic(topic))

    @remote
    def subscriptions(self, client: str) -> dict[str, int]:
        """The topics that a client is subscribed to, with the last position confirmed."""
        return self._host.subscriptions(wire.check_id(client, "client id"))

    @remote
    def statistics(self, topic: str, clients: int = 0) -> dict[str, Any]:
        """A topic in numbers, with up to ``clients`` of its subscribers."""
        wire.check_int(clients, "clients", 0, LIST_LIMIT_MAX)
        return self._host.statistics(_topic(topic), clients)

    @remote
    def overview(self) -> list[dict[str, Any]]:
        """All topics in numbers."""
        return self._host.overview()


class TopicObject:
    """The verbs of one topic, for any Pyro5 script."""

    def __init__(self, topics: TopicsObject, topic: str) -> None:
        self._topics, self._topic = topics, topic

    @remote
    def subscribe(
        self, client: str, instance: str = "", request: int | None = None
    ) -> dict[str, Any]:
        """Owe a client every message from now on."""
        return self._topics.subscribe(self._topic, client, instance, request)

    @remote
    def unsubscribe(
        self,
        client: str,
        instance: str = "",
        request: int | None = None,
        ticket: int | None = None,
    ) -> dict[str, Any]:
        """Owe a client nothing any more."""
        return self._topics.unsubscribe(self._topic, client, instance, request, ticket)

    @remote
    def put(
        self, client: str, messages: list[Any], number: int | None = None, instance: str = ""
    ) -> dict[str, Any]:
        """Put messages into the topic, all or none."""
        return self._topics.put(self._topic, client, messages, number, instance)

    @remote
    def get(
        self,
        client: str,
        received: int | None = None,
        count: int = 1,
        wait_s: float = 0.0,
        instance: str = "",
        ticket: int | None = None,
    ) -> dict[str, Any]:
        """The next messages after ``received``."""
        return self._topics.get(self._topic, client, received, count, wait_s, instance, ticket)

    @remote
    def confirm(
        self, client: str, received: int, instance: str = "", ticket: int | None = None
    ) -> dict[str, Any]:
        """The client has everything up to ``received``."""
        return self._topics.confirm(self._topic, client, received, instance, ticket)

    @remote
    def statistics(self, clients: int = 0) -> dict[str, Any]:
        """The topic in numbers."""
        return self._topics.statistics(self._topic, clients)


def _topic(name: Any) -> str:
    return wire.check_name(name, "topic name")


def _who(client: Any, instance: Any) -> tuple[str, str]:
    wire.check_id(client, "client id")
    if instance != "":
        wire.check_id(instance, "instance")
    return client, instance


def _number(value: Any, what: str) -> int | None:
    return None if value is None else wire.check_int(value, what, 1, NUMBER_MAX)


def _pair(values: Any, what: str, low: int) -> tuple[int, int]:
    checked = wire.check_ints(values, what, low, NUMBER_MAX)
    if len(checked) != 2:
        raise BadRequest(f"{what} has {len(checked)} numbers: a pair was expected")
    return checked[0], checked[1]


def _position(value: Any) -> int:
    return wire.check_int(value, "received", 0, NUMBER_MAX)


def _limits(count: Any, wait_s: Any) -> tuple[int, int, float]:
    wire.check_int(count, "count", 1, COUNT_MAX)
    if type(wait_s) not in (int, float) or not 0 <= wait_s <= WAIT_S_MAX:
        raise BadRequest(f"wait_s={wait_s!r:.60} is refused: it must be 0 to {WAIT_S_MAX}")
    return count, 8 << 20, float(wait_s)


def _plain(found: list[Got]) -> list[dict[str, Any]]:
    messages = []
    for item in found:
        stamp, at_ms, publisher, number, form, body = item.entry
        messages.append(
            {
                "topic": item.topic, "id": item.position, "ticket": item.ticket, "stamp": stamp,
                "publisher": publisher, "number": number, "at_ms": at_ms,
                "body": wire.readable(form, body),
            }
        )  # fmt: skip
    if current_context.serializer_id == JSON_ID:
        wire.without_bytes(messages)
    return messages
