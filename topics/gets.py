"""Gets: how messages come out of topics exactly once.

What came is written down as received, and only then handed out; the next get says so to the
broker. Several threads may get at the same time: what another one was handed meanwhile is left out,
and what is of a subscription that has ended meanwhile, too.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Sequence

from broker.errors import BadRequest, BrokerError, NotSubscribed
from topics.message import TopicMessage
from topics.opened import Opened
from topics.requests import Call, NoSuccess

#: The longest that one request waits at the broker; a get that waits longer asks again.
WAIT_S_MAX = 10.0

Asked = dict[str, list[int]]


class Gets:
    """The gets of one client."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._untold: set[str] = set()  # topics of which the broker does not know the last get

    def get(self, topic: str | None, count: int, wait_s: float) -> list[TopicMessage]:
        """The next messages of a topic, or of all (None). They are the caller's."""
        return self._ask(topic, count, wait_s, self._keep)

    def receive(self, topic: str | None, count: int, wait_s: float) -> list[TopicMessage]:
        """The same, but they come again until they are confirmed."""
        return self._ask(topic, count, wait_s, self._show)

    def confirm(self, message: TopicMessage) -> None:
        """Everything of the message's topic up to it is the caller's."""
        opened = self._opened
        with opened.lock:
            opened.refuse_closed()
            if not opened.ledger.received(message.topic, message.ticket, message.id):
                return
            opened.history.confirmed(message)
        arguments = (message.topic, opened.client, message.id, opened.instance, message.ticket)
        try:
            opened.requests.call("confirm", lambda: Call(arguments), tries=1)
        except NoSuccess:
            pass  # the next get says it again

    def tell(self) -> None:
        """Say what came last, which the next get would say, so that the broker can release it.

        Best effort, once: whoever is not told keeps it for this client until its next life.
        """
        opened = self._opened
        try:
            with opened.lock:
                opened.refuse_closed()
                topics = sorted(self._untold & set(opened.ledger.subscribed()))
                self._untold.clear()
                asked = opened.ledger.asked(topics)
            if not asked:
                return
            # What it answers is not written down as received, and so comes again.
            arguments = (opened.client, opened.instance, asked, 1, 0.0)
            opened.requests.call("get_columns", lambda: Call(arguments), tries=1)
        except (NoSuccess, BrokerError):
            pass

    # Asking.

    def _ask(
        self,
        topic: str | None,
        count: int,
        wait_s: float,
        take: Callable[[list[TopicMessage]], None],
    ) -> list[TopicMessage]:
        if not wait_s >= 0:
            raise BadRequest(f"wait_s={wait_s!r:.40} is refused: it must be 0 or more")
        deadline = time.monotonic() + wait_s
        while True:
            last = time.monotonic() >= deadline
            reply = self._request(topic, count, deadline)
            if reply is None:
                continue
            with self._opened.lock:
                found = self._fresh(_messages(reply))
                if found:
                    take(found)
            # What came may all have been handed to another thread: then there may be more.
            if found or (last and not reply["bodies"]):
                return found

    def _request(self, topic: str | None, count: int, deadline: float) -> dict[str, Any] | None:
        """One answer; None if what was asked was overtaken by another thread's doing."""
        opened = self._opened
        asked: Asked = {}

        def prepare() -> Call:
            nonlocal asked
            asked = self._asked(topic)
            wait_s = min(max(deadline - time.monotonic(), 0.0), WAIT_S_MAX)
            return Call((opened.client, opened.instance, asked, count, wait_s), wait_s)

        try:
            reply: dict[str, Any] = opened.requests.call("get_columns", prepare)
            return reply
        except NoSuccess as failure:
            if not failure.error.retriable and self._asked(topic) != asked:
                return None
            if topic is not None and opened.taken_over_after(failure.error, topic):
                return None
            raise self._told(failure, topic) from failure.error

    def _told(self, failure: NoSuccess, topic: str | None) -> BrokerError:
        what = "all topics" if topic is None else f"topic {topic}"
        # A get changes nothing that the client has not written down: it is never in doubt.
        return self._opened.told(
            NoSuccess(failure.error, False), f"get from {what}", "nothing is lost, get again"
        )

    def _asked(self, topic: str | None) -> Asked:
        opened = self._opened
        with opened.lock:
            opened.refuse_closed()
            subscribed = opened.ledger.subscribed()
            if topic is not None:
                subscribed = [topic] if topic in subscribed else []
            if not subscribed:
                what = "any topic" if topic is None else f"topic {topic}"
                raise NotSubscribed(
                    f"get is refused: client {opened.client} is not subscribed to {what}; "
                    "subscribe first"
                )
            return opened.ledger.asked(subscribed)

    # What came. Under the lock.

    def _fresh(self, messages: list[TopicMessage]) -> list[TopicMessage]:
        places = self._opened.ledger.asked(list({message.topic for message in messages}))
        return [
            message
            for message in messages
            if message.ticket == places[message.topic][0] and message.id > places[message.topic][1]
        ]

    def _keep(self, messages: list[TopicMessage]) -> None:
        opened = self._opened
        last = {message.topic: message for message in messages}
        with opened.state.together():
            for message in last.values():
                opened.ledger.received(message.topic, message.ticket, message.id)
        opened.history.got(messages)
        self._untold |= last.keys()

    def _show(self, messages: Sequence[TopicMessage]) -> None:
        self._opened.history.received(messages)


def _messages(reply: dict[str, Any]) -> list[TopicMessage]:
    tickets = {name: told["ticket"] for name, told in reply["topics"].items()}
    names = reply["names"]
    return [
        TopicMessage(*fields)
        for fields in zip(
            names, reply["positions"], map(tickets.__getitem__, names), reply["stamps"],
            reply["publishers"], reply["numbers"], reply["at_ms"], reply["formats"],
            reply["bodies"],
        )
    ]  # fmt: skip
