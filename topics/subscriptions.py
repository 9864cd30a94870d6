"""Subscriptions: how a client comes to a topic and leaves it, whatever gets lost on the way.

Each request has a number that is written down before it is sent. A repetition is done once, and a
late copy not at all, so the last thing that a client asked for is what holds.
"""

from __future__ import annotations

from typing import Any

from broker.errors import BrokerError, RequestOvertaken, TopicNotFound
from topics.opened import Opened
from topics.requests import Call, NoSuccess


class Subscriptions:
    """The subscriptions of one client."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def subscribe(self, topic: str) -> bool:
        """Whether the subscription is new."""
        opened = self._opened
        with opened.numbered(topic):
            reply, request = self._settled(topic, "subscribe")
            with opened.lock:
                opened.ledger.end_subscribe(topic, reply)
                opened.history.subscribed(opened.ledger.account(topic), request, reply)
        return bool(reply["new"])

    def unsubscribe(self, topic: str) -> bool:
        """Whether there was a subscription to end."""
        opened = self._opened
        with opened.numbered(topic):
            ended = ticket = opened.account(topic).ticket
            reply, request = self._settled(topic, "unsubscribe", ticket)
            if ticket and not reply["was"]:
                # Not the one that we know of. There may be a newer one, whose answer was lost.
                reply, request = self._settled(topic, "unsubscribe")
                ended = 0
            was = bool(reply["was"])
            with opened.lock:
                opened.ledger.end_unsubscribe(topic)
                opened.history.unsubscribed(topic, request, ended if was else 0, was)
        return was

    def take_over_all(self) -> None:
        """Take over every topic that the broker or this directory knows of the client."""
        opened = self._opened
        try:
            found = opened.requests.call("subscriptions", lambda: Call((opened.client,)))
        except NoSuccess as failure:
            raise opened.told(
                NoSuccess(failure.error, False), f"taking over client {opened.client}", "try again"
            ) from failure.error
        for topic in sorted({*found, *opened.ledger.accounts}):
            try:
                opened.take_over(topic)
            except TopicNotFound:
                pass  # nobody has used it for long, and there is nothing to know

    def _settled(self, topic: str, ask: str, ticket: int = 0) -> tuple[dict[str, Any], int]:
        """The answer to a request, and its number."""
        try:
            return self._request(topic, ask, ticket)
        except RequestOvertaken as error:
            # A plain script has used the id, or the state directory was put back.
            account = self._opened.account(topic)
            account.request = max(account.request, int(error.details["request"]))
        except BrokerError as error:
            if not self._opened.taken_over_after(error, topic):
                raise
        return self._request(topic, ask, ticket)

    def _request(self, topic: str, ask: str, ticket: int) -> tuple[dict[str, Any], int]:
        opened = self._opened
        with opened.lock:
            request = opened.ledger.begin_request(topic)
            opened.history.requested(topic, request, ask, ticket)
        arguments: tuple[Any, ...] = (topic, opened.client, opened.instance, request)
        if ticket:
            arguments += (ticket,)
        try:
            return opened.requests.call(ask, lambda: Call(arguments)), request
        except NoSuccess as failure:
            if ask == "unsubscribe" and isinstance(failure.error, TopicNotFound):
                return {"was": False}, request
            raise opened.told(
                failure, f"{ask} of client {opened.client} to topic {topic}", f"repeat {ask}"
            ) from failure.error
