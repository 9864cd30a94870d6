"""Topics and Topic: what a program uses. Here are the verbs; how they work is in the files beside.

A client is an id with a state directory of its own, which one process at a time may have open. Any
number of threads of that process may use one ``Topics``.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Iterable, Sequence, TypedDict, Unpack

from broker import wire
from broker.errors import BadRequest
from topics.gets import Gets
from topics.message import Receipt, TopicMessage
from topics.opened import Opened
from topics.puts import Puts
from topics.subscriptions import Subscriptions


class Options(TypedDict, total=False):
    """What can be said of a client when it is opened; see ``Topics``."""

    name_server: str | Sequence[str] | None
    timeout_s: float
    tries: int
    history: str | os.PathLike[str] | None
    take_over: bool


class Topics:
    """All topics of one client.

    ``directory``: where the state directories of clients are, that of this one is below it; without
    it ``$FAIRLEAD_STATE`` or ``~/.local/state/fairlead/topics``. ``name_server``: one address as
    "host:port" or several; without it ``$FAIRLEAD_NAME_SERVER``. ``history``: a directory for a
    file with what this client saw. ``take_over``: the state directory is new or was put back, and
    the client goes on from what the broker knows of it.
    """

    def __init__(
        self,
        client: str,
        directory: str | os.PathLike[str] | None = None,
        *,
        name_server: str | Sequence[str] | None = None,
        timeout_s: float = 0.1,
        tries: int = 3,
        history: str | os.PathLike[str] | None = None,
        take_over: bool = False,
    ) -> None:
        self._opened = Opened(
            client, directory, name_server, timeout_s, tries, history, take_over
        )
        self._puts = Puts(self._opened)
        self._gets = Gets(self._opened)
        self._subscriptions = Subscriptions(self._opened)
        if take_over:
            try:
                self._subscriptions.take_over_all()
            except BaseException:
                self.close()
                raise

    def __repr__(self) -> str:
        state = self._opened.state
        return f"<Topics {self.client} life={state.life} directory={str(state.directory)!r}>"

    @property
    def client(self) -> str:
        """The client's id."""
        return self._opened.client

    # Subscriptions.

    def subscribe(self, topic: str) -> bool:
        """Get what is put into a topic from now on. False: that was so before, nothing changes."""
        return self._subscriptions.subscribe(topic)

    def unsubscribe(self, topic: str) -> bool:
        """Get nothing of a topic any more, also not what waits. False: was not subscribed."""
        return self._subscriptions.unsubscribe(topic)

    def subscriptions(self) -> list[str]:
        """The topics that this client is subscribed to."""
        with self._opened.lock:
            return sorted(self._opened.ledger.subscribed())

    # Putting.

    def last_put(self, topic: str) -> int:
        """The number of the last message of this client that is surely in the topic; 0 for none.

        For a program that was killed between ``put`` and its own note of it. A put whose outcome
        is not known yet does not count; ``resume`` settles it.
        """
        with self._opened.lock:
            return self._opened.account(topic).number

    def put(self, topic: str, message: Any) -> Receipt:
        """Put a message (bytes, str or a JSON value): durable on return, and once.

        An error says whether it was surely not done, or its outcome is unknown. In the latter case
        the put stays written down and is sent again first, by the next put to the topic or by
        ``resume``: do not put it again.
        """
        return self._puts.put(topic, (message,))

    def put_many(self, topic: str, messages: Iterable[Any]) -> Receipt:
        """Put several messages by one request, all or none."""
        return self._puts.put(topic, messages)

    def resume(self) -> list[Receipt]:
        """Settle the puts whose outcome is unknown, also those of an earlier life."""
        return self._puts.resume()

    def forget_put(self, topic: str) -> None:
        """After PutsLost or NumberReused: go on from the number that the broker has.

        What is pending is given up, and what the broker has lost is not sent again.
        """
        self._puts.forget(topic)

    # Getting.

    def get(self, topic: str, wait_s: float = 0.0) -> TopicMessage | None:
        """The next message of a topic; it never comes again. None: nothing came in time."""
        return _first(self._gets.get(topic, 1, wait_s))

    def get_many(self, topic: str, count: int, wait_s: float = 0.0) -> list[TopicMessage]:
        """Up to so many messages; waits only for the first."""
        return self._gets.get(topic, count, wait_s)

    def get_any(self, wait_s: float = 0.0) -> TopicMessage | None:
        """The next message of all subscribed topics, read as one line in the order of stamps."""
        return _first(self._gets.get(None, 1, wait_s))

    def get_any_many(self, count: int, wait_s: float = 0.0) -> list[TopicMessage]:
        """Up to so many messages of all subscribed topics."""
        return self._gets.get(None, count, wait_s)

    def receive(self, topic: str, count: int = 1, wait_s: float = 0.0) -> list[TopicMessage]:
        """The first half of a get in two steps: the same messages come again until ``confirm``."""
        return self._gets.receive(topic, count, wait_s)

    def receive_any(self, count: int = 1, wait_s: float = 0.0) -> list[TopicMessage]:
        """``receive`` over all subscribed topics, in one order."""
        return self._gets.receive(None, count, wait_s)

    def confirm(self, message: TopicMessage) -> None:
        """The second half: everything of its topic up to this message never comes again.

        That is safe on return. The broker is told too, and if it does not hear it, the next get
        says it. Nothing happens if the subscription that it came by has ended.
        """
        self._gets.confirm(message)

    # Ending.

    def close(self) -> None:
        """Let the state directory go. Whoever waits in a get is sent away.

        The broker is told what came last, so that it need not keep it for this client.
        """
        self._gets.tell()
        self._opened.close()

    def __enter__(self) -> Topics:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Topic:
    """One topic, for a client that uses no other; the arguments after ``topic`` are those of
    ``Topics``. The verbs are the same, without the topic's name."""

    def __init__(
        self,
        client: str,
        topic: str,
        directory: str | os.PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.name = wire.check_name(topic, "topic name")
        self.topics = Topics(client, directory, **options)

    def __repr__(self) -> str:
        return f"<Topic {self.name} of {self.topics!r}>"

    def subscribe(self) -> bool:
        """Get what is put from now on. False: that was so before."""
        return self.topics.subscribe(self.name)

    def unsubscribe(self) -> bool:
        """Get nothing any more. False: was not subscribed."""
        return self.topics.unsubscribe(self.name)

    def put(self, message: Any) -> Receipt:
        """Put a message; see ``Topics.put``."""
        return self.topics.put(self.name, message)

    def put_many(self, messages: Iterable[Any]) -> Receipt:
        """Put several messages by one request, all or none."""
        return self.topics.put_many(self.name, messages)

    def get(self, wait_s: float = 0.0) -> TopicMessage | None:
        """The next message, or None."""
        return self.topics.get(self.name, wait_s)

    def get_many(self, count: int, wait_s: float = 0.0) -> list[TopicMessage]:
        """Up to so many messages."""
        return self.topics.get_many(self.name, count, wait_s)

    def receive(self, count: int = 1, wait_s: float = 0.0) -> list[TopicMessage]:
        """Messages that come again until ``confirm``."""
        return self.topics.receive(self.name, count, wait_s)

    def confirm(self, message: TopicMessage) -> None:
        """Everything up to this message never comes again."""
        if message.topic != self.name:
            raise BadRequest(
                f"confirm is refused: the message is of topic {message.topic}, this is {self.name}"
            )
        self.topics.confirm(message)

    def close(self) -> None:
        """Let the state directory go."""
        self.topics.close()

    def __enter__(self) -> Topic:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _first(messages: list[TopicMessage]) -> TopicMessage | None:
    return messages[0] if messages else None
