"""Opened: a client's id while it is open. What its parts share: ledger, history, requests, locks.

Two kinds of locks, always taken in this order:

- one per topic, for what is numbered in it: puts and requests about its subscription go one at a
  time, and it is held while they are under way;
- one short one for ledger, state and history. No request is made under it.

A get holds neither while it waits. Nothing here decides what is asked.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from contextlib import contextmanager
from typing import Any, Iterator, Sequence

from broker import wire
from broker.errors import BadRequest, BrokerError, ClientElsewhere
from broker.history import HistoryFile
from topics.history import TopicHistory, topic_identity
from topics.ledger import Account, Ledger
from topics.requests import Call, NoSuccess, Requests, said
from topics.state import State, state_directory


class Opened:
    """One life of a client."""

    def __init__(
        self,
        client: str,
        directory: str | os.PathLike[str] | None,
        name_server: str | Sequence[str] | None,
        timeout_s: float,
        tries: int,
        history: str | os.PathLike[str] | None,
        may_take_over: bool,
    ) -> None:
        self.client = wire.check_id(client, "client id")
        self._may_take_over = may_take_over
        self._taken: set[str] = set()
        self.requests = Requests(name_server, timeout_s, tries)
        self.state = State(state_directory(client, directory), client)
        self.lock = threading.RLock()
        self._topic_locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._sent = 0
        self._file: HistoryFile | None = None
        self._closed = False
        try:
            self.instance = self.state.instance
            self.ledger = Ledger(self.state, self.state.accounts())
            if history is not None:
                identity = topic_identity(client, self.state.life, self.instance)
                self._file = HistoryFile(history, identity)
            self.history = TopicHistory(self._file.append if self._file is not None else None)
        except BaseException:
            self.state.close()
            raise

    @contextmanager
    def numbered(self, topic: str) -> Iterator[None]:
        """Held while something that is numbered in the topic is under way."""
        wire.check_name(topic, "topic name")
        with self.lock:
            turn = self._topic_locks[topic]
        with turn:
            with self.lock:
                self.refuse_closed()
            yield

    def account(self, topic: str) -> Account:
        """What is known of a topic."""
        with self.lock:  # a new one is added, and others may be looking through them
            return self.ledger.account(topic)

    def next_order(self) -> list[int]:
        """The place of the next put among all that this client sends. Under the lock."""
        self._sent += 1
        return [self.state.life, self._sent]

    def refuse_closed(self) -> None:
        """Raise if the client is closed, or its disk has failed. Under the lock.

        After an error of the disk the ledger may be ahead of what is written down: what it would
        tell the broker might not be so.
        """
        if self._closed:
            raise BadRequest(f"client {self.client} is closed; open it anew")
        self.state.refuse_failed()

    def take_over(self, topic: str) -> None:
        """Let the id belong to this state directory, and go on from what the broker knows."""
        arguments = (topic, self.client, self.instance)
        with self.numbered(topic):
            try:
                reply: dict[str, Any] = self.requests.call("take_over", lambda: Call(arguments))
            except NoSuccess as failure:
                raise self.told(
                    failure, f"taking over client {self.client} of topic {topic}",
                    "nothing is lost by trying again",
                ) from failure.error  # fmt: skip
            with self.lock:
                self.ledger.taken_over(topic, reply)
                self.history.taken_over(self.ledger.account(topic))
                self._taken.add(topic)

    def taken_over_after(self, error: BrokerError, topic: str) -> bool:
        """Whether that is what helps against an error, and was done; once in a life, or two who
        may do so would take the id from each other for ever."""
        if not isinstance(error, ClientElsewhere) or not self._may_take_over:
            return False
        if topic in self._taken:
            return False
        self.take_over(topic)
        return True

    def told(self, failure: NoSuccess, asked: str, advice: str) -> BrokerError:
        """The error to raise: what was asked, what stands against it, what to do next."""
        error = failure.error
        if not error.retriable and not failure.doubtful:
            return error
        details = {**error.details, "sent": failure.doubtful}
        text = (
            f"{asked}: {'the outcome is unknown' if failure.doubtful else 'surely not done'}; "
            f"{advice}. {self.requests.tries} tries of {self.requests.timeout_s:g} s at "
            f"{self.requests.addresses}, and the broker's word or the cause is: {error}"
        )
        return said(error, failure.doubtful)(text, **details)

    def close(self) -> None:
        """End the life, when the puts under way are over. Closing twice is fine."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            turns = list(self._topic_locks.values())
        for turn in turns:
            with turn:
                pass  # whoever comes after that is refused
        self.requests.close()
        with self.lock:
            self.history.closed()
            if self._file is not None:
                self._file.close()
            self.state.close()
