"""TopicHistory: what a topic client asked for and what it heard, as lines. Pure.

No file, clock or thread here: lines go through the ``append`` that is handed in, that of a
``broker.history.HistoryFile`` or ``MemoryHistory``.

Each line has the members ``client`` ("topic"), ``name`` (the client id), ``session`` (the life as
text), ``channel`` ("topics"), ``instance``, ``n`` (dense from 0), ``at_us`` (wall clock) and
``event``. A life is one opening of the state directory.

- ``opened``. The first line.
- ``requested``: ``topic``, ``request``, ``ask`` ("subscribe" or "unsubscribe"), ``ticket`` (of the
  subscription that is to end; 0 for whichever there is). Before the request is sent first.
- ``subscribed``: ``topic``, ``request``, ``ticket``, ``position``, ``new``, ``born``. The answer is
  written down. ``position`` is the one that the client goes on from.
- ``unsubscribed``: ``topic``, ``request``, ``ticket`` (that has ended; 0 if none has, or if it was
  one whose ticket the client never heard), ``was``.
- ``tried``: ``topic``, ``number``, ``count``, ``crc``, ``again``. Before each sending of a put; if
  then no connection can be made, it was tried all the same. ``again``: a copy may have been sent
  before. ``crc`` is ``broker.wire.call_checksum``.
- ``answered``: ``topic``, ``number`` (first), ``count``, ``position`` (first), ``again``, ``born``.
- ``refused``: ``topic``, ``number``, ``count``, ``reason``. No copy of it was or will be done.
- ``unknown``: ``topic``, ``number``, ``count``. The caller was told that the outcome is unknown.
- ``got``: ``topic``, ``ticket``, ``first``, ``count``, ``crc``. Written down as received, and about
  to be handed out. ``crc`` is CRC-32 over the bodies. A get over several topics has one line for
  each stretch of one topic, in the order in which the messages are handed out.
- ``received``: the same members. Handed out, and not written down as received.
- ``confirmed``: ``topic``, ``ticket``, ``position``. Everything up to it is written down.
- ``taken_over``: ``topic``, ``number``, ``ticket``, ``position``.
- ``closed``. The last line of a clean end.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Callable, Sequence
from zlib import crc32

from topics.ledger import Account, PutCall
from topics.message import TopicMessage


def topic_identity(client: str, life: int, instance: str) -> dict[str, str]:
    """What every line of one life says about whose it is."""
    return {
        "client": "topic", "name": client, "session": str(life), "channel": "topics",
        "instance": instance,
    }  # fmt: skip


def stretches(messages: Sequence[TopicMessage]) -> list[list[TopicMessage]]:
    """The messages in the same order, cut where the next one does not follow in its topic."""
    found: list[list[TopicMessage]] = []
    for message in messages:
        last = found[-1][-1] if found else None
        if last is not None and (last.topic, last.id + 1) == (message.topic, message.id):
            found[-1].append(message)
        else:
            found.append([message])
    return found


class TopicHistory:
    """Turns what happens to a client into lines. Not for several threads at a time."""

    def __init__(self, append: Callable[[str, str], None] | None) -> None:
        self._append = append  # None: nobody wants to know
        self._end("opened")

    def requested(self, topic: str, request: int, ask: str, ticket: int = 0) -> None:
        """A request about a subscription is about to be sent."""
        self._line("requested", topic, f',"request":{request},"ask":"{ask}","ticket":{ticket}')

    def subscribed(self, account: Account, request: int, reply: dict[str, Any]) -> None:
        """The client is subscribed, and has written it down."""
        self._line(
            "subscribed", account.topic,
            f',"request":{request},"ticket":{account.ticket},"position":{account.position}'
            f',"new":{_flag(reply["new"])},"born":{reply["born"]}',
        )  # fmt: skip

    def unsubscribed(self, topic: str, request: int, ticket: int, was: bool) -> None:
        """The client is not subscribed any more, and has written it down."""
        self._line(
            "unsubscribed", topic, f',"request":{request},"ticket":{ticket},"was":{_flag(was)}'
        )

    def tried(self, topic: str, call: PutCall, crc: int, again: bool) -> None:
        """A put is about to be sent."""
        self._line("tried", topic, f'{_numbers(call)},"crc":{crc},"again":{_flag(again)}')

    def answered(self, topic: str, call: PutCall, reply: dict[str, Any]) -> None:
        """A put was accepted, and that is about to be reported."""
        self._line(
            "answered", topic,
            f'{_numbers(call)},"position":{reply["position"]},"again":{_flag(reply["again"])}'
            f',"born":{reply["born"]}',
        )  # fmt: skip

    def refused(self, topic: str, call: PutCall, reason: str) -> None:
        """A put was surely not done, and will not be."""
        self._line("refused", topic, f'{_numbers(call)},"reason":{quoted(reason)}')

    def unknown(self, topic: str, call: PutCall) -> None:
        """The caller is about to be told that nobody knows what became of a put."""
        self._line("unknown", topic, _numbers(call))

    def got(self, messages: Sequence[TopicMessage]) -> None:
        """Messages are the client's, and about to be handed out."""
        self._handed("got", messages)

    def received(self, messages: Sequence[TopicMessage]) -> None:
        """Messages are about to be handed out, and not the client's yet."""
        self._handed("received", messages)

    def confirmed(self, message: TopicMessage) -> None:
        """Everything up to a message is the client's."""
        self._line("confirmed", message.topic,
                   f',"ticket":{message.ticket},"position":{message.id}')  # fmt: skip

    def taken_over(self, account: Account) -> None:
        """The client goes on from what the broker knows of it."""
        self._line(
            "taken_over", account.topic,
            f',"number":{account.number},"ticket":{account.ticket},"position":{account.position}',
        )  # fmt: skip

    def closed(self) -> None:
        """The life ends."""
        self._end("closed")

    def _handed(self, event: str, messages: Sequence[TopicMessage]) -> None:
        if self._append is None:
            return
        for stretch in stretches(messages):
            crc = 0
            for message in stretch:
                crc = crc32(message.data, crc)
            first = stretch[0]
            self._line(
                event, first.topic,
                f',"ticket":{first.ticket},"first":{first.id},"count":{len(stretch)},"crc":{crc}',
            )  # fmt: skip

    def _line(self, event: str, topic: str, fields: str) -> None:
        if self._append is not None:
            self._append(event, f',"topic":{quoted(topic)}{fields}')

    def _end(self, event: str) -> None:
        if self._append is not None:
            self._append(event, "")


def _numbers(call: PutCall) -> str:
    return f',"number":{call.number},"count":{len(call.bodies)}'


def _flag(value: Any) -> str:
    return "true" if value else "false"
