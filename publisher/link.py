"""Link: a publisher's way to its channel. Where it is, the connection, the opening, a call's form.

What may not live here: when something is sent, or sent again; that is the sender's business.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import Any

from broker.errors import BrokerError
from broker.remote.lookup import ChannelAddress, pause_s
from broker.remote.pipeline import Pipeline
from publisher.batch import Call


class Link:
    """One publisher's connection to one channel, made when it is needed."""

    def __init__(
        self,
        publisher: str,
        channel: str,
        name_server: str | None,
        *,
        create: bool,
        policy: dict[str, Any] | None,
        timeout_s: float,
    ) -> None:
        self.epoch = 0
        self._instance = secrets.token_hex(8)
        self._publisher = publisher
        self._create, self._policy, self._timeout_s = create, policy, timeout_s
        self._address = ChannelAddress(channel, name_server, timeout_s)
        self._pipeline: Pipeline | None = None
        # Together the place of a call among all that were sent in this life: see CallOvertaken.
        self._connections = self._sent = 0

    def connected(self) -> Pipeline:
        """The connection, for the calling thread alone until ``release``."""
        if self._pipeline is None:
            uri = self._address.uri(self._create, self._policy)
            self._pipeline = Pipeline(uri, self._timeout_s)
            self._connections += 1
        return self._pipeline

    def open(self, give_up_s: float, abandoned: threading.Event) -> dict[str, Any]:
        """Open the publisher id, with retries for so long, and let the connection go again."""
        deadline = time.monotonic() + min(give_up_s, self._timeout_s)
        attempt = 0
        while True:
            try:
                opened: dict[str, Any] = self.connected().call(
                    "open_publisher", self._publisher, self._instance
                )
                self.epoch = opened["epoch"]
                self.release()  # the connection belongs to this thread; the sender makes its own
                return opened
            except BrokerError as error:
                self.forget()
                if not error.retriable or time.monotonic() > deadline:
                    raise
                abandoned.wait(pause_s(attempt, error))
                attempt += 1

    def release(self) -> None:
        """Let the connection go."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None

    def forget(self) -> None:
        """Let the connection go, and look the channel up anew for the next one."""
        self.release()
        self._address.forget()

    def arguments(self, call: Call, wait: bool) -> tuple[Any, ...]:
        """What ``publish_runs`` is given for a call, each time it is sent."""
        return call.arguments(self._publisher, self.epoch, wait, self.place())

    def place(self) -> list[int]:
        """The place of the next call among all that are sent in this life."""
        self._sent += 1
        return [self._connections, self._sent]
