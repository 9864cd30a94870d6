"""Shared: what the threads of one subscriber have in common. One lock, the state under it, events.

The workers, the settler, the keeper and the callback each get the one ``Shared`` and know nothing
of each other. What they tell each other goes through it: state, guarded by the lock of
``changed``, and four events. What may not live here: a thread, a loop, a call to the broker.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import Any, Callable

from broker.core.policy import Policy
from broker.errors import BrokerError
from broker.pyro_setup import Proxy
from subscriber.history import SubscriberHistory
from subscriber.message import Message
from subscriber.session import Session

log = logging.getLogger("fairlead.subscriber")

Handler = Callable[[Message], Any]

#: How long acks gather before they are carried; see ``settler``.
ACK_INTERVAL_S = 0.005


class Shared:
    """The state of one subscriber. Its attributes are for the files of this folder only.

    ``changed`` guards everything from ``session`` to ``error``. What is read without it is read
    once, as one word (``lease_until``, ``settle_uri``, ``left``, ``handled``), and may be a moment
    old.
    """

    def __init__(
        self,
        subscriber: str,
        channel: str,
        subscription: str,
        *,
        prefetch: int,
        concurrency: int,
        timeout_s: float,
    ) -> None:
        self.subscriber, self.channel, self.subscription = subscriber, channel, subscription
        self.prefetch, self.concurrency = prefetch, concurrency
        self.timeout_s = timeout_s
        self.session_id = secrets.token_hex(8)
        self.handler: Handler | None = None
        self.history: SubscriberHistory | None = None  # set before the threads start
        # State, all guarded by the lock of ``changed``.
        self.changed = threading.Condition(threading.Lock())
        self.session = Session()
        self.nacks: list[tuple[int, int, str, float | None, bool]] = []
        self.policy = Policy()
        self.settle_uri: str | None = None
        self.left = False  # for good: nothing is settled any more
        self.lease_until = 0.0
        self.working = 0
        self.handled = 0
        self.acked = 0  # of the handled ones; together they tell how full the window is
        self.count_max: int | None = None  # of ``run(count=)``; set before the threads start
        self.begun = 0  # both only counted if there is a ``count_max``
        self.ended = 0
        self.last_received = time.monotonic()
        self.error: BrokerError | None = None
        # Events: the subscriber is to end; the keeper, the settler has something to look at;
        # the settler has carried its last ack.
        self.stopping = threading.Event()
        self.check_now = threading.Event()
        self.settle_now = threading.Event()
        self.drained = threading.Event()

    def proxy(self, uri: str) -> Any:
        """A proxy for the calling thread alone, which also releases it."""
        proxy = Proxy(uri)
        proxy._pyroTimeout = self.timeout_s
        return proxy

    def stop(self) -> None:
        """Ask all threads to end; who waits for something is woken. Not under the lock."""
        self.stopping.set()
        self.check_now.set()
        self.settle_now.set()
        with self.changed:
            self.changed.notify_all()

    def end(self, error: BrokerError) -> None:
        """Stop because of an error, which ``run`` raises."""
        log.error("subscriber %s ends: %s", self.subscriber, error)
        self.error = error
        self.stop()

    def renew(self, began: float, fence: int = 0) -> None:
        """The lease runs from when the call that renewed it was sent.

        It is the lease of whoever joined at ``fence``; what was held before that has lost its own.
        """
        with self.changed:
            self.session.move_fence(fence)
            until = began + self.policy.lease_ms / 1000
            if until > self.lease_until:
                self.lease_until = until
                self.changed.notify_all()

    def is_idle(self, idle_s: float) -> bool:
        """Nothing came for so long, and all that had come is handled and settled."""
        with self.changed:
            quiet = time.monotonic() - self.last_received > idle_s
            return quiet and not self.working and self.session.idle and not self.nacks

    def count_handled(self) -> None:
        """For several workers, which must not add to the same number at the same time."""
        with self.changed:
            self.handled += 1

    # Counting, for ``run(count=)`` only: an uncounted run takes no lock for it.

    def all_begun(self) -> bool:
        """Whether as many are begun as ``run`` was asked for. Under the lock."""
        return self.count_max is not None and self.begun >= self.count_max

    def count_begun(self) -> bool:
        """Count one more as begun; False if all are begun, then it is not to be started."""
        with self.changed:
            if self.all_begun():
                return False
            self.begun += 1
            return True

    def count_back(self) -> None:
        """One that was counted as begun was not handled after all: another takes its place."""
        if self.count_max is None:
            return
        with self.changed:
            self.begun -= 1
            self.changed.notify_all()  # workers that found all begun wait for this

    def count_ended(self) -> None:
        """Count one as handled; the last one stops the subscriber.

        Not the last one *begun*: another may be counted as begun and yet come back, while its
        worker waits to hear whether it is still ours.
        """
        with self.changed:
            self.ended += 1
            last = self.count_max is not None and self.ended >= self.count_max
        if last:
            self.stop()
