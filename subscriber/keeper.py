"""Keeper: subscribes, keeps the lease, comes back after a broken connection, and leaves.

Also what the broker calls back: the callback daemon is opened with the first subscription, because
only then is the way to the broker known. What may not live here: anything about single messages.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from typing import Any, Callable

from broker.core.policy import Policy
from broker.errors import BrokerError, ChannelNotFound, NotSubscribed
from broker.pyro_setup import invoke
from broker.remote.daemon import FairleadDaemon
from broker.remote.exposed import remote
from broker.remote.lookup import ChannelAddress, pause_s
from subscriber.shared import Shared

log = logging.getLogger("fairlead.subscriber")

CALLBACK_SLOTS = 8
LEAVE_TIMEOUT_S = 5.0

Receive = Callable[[dict[str, Any]], None]
Recall = Callable[[list[int]], list[int]]


class CallbackObject:
    """What the broker calls. Its id is random: who does not know it cannot call it."""

    def __init__(self, receive: Receive, recall: Recall) -> None:
        self._receive, self._recall = receive, recall

    @remote
    def receive(self, batch: dict[str, Any]) -> None:
        """Buffer a batch."""
        self._receive(batch)

    @remote
    def recall(self, epochs: list[int]) -> list[int]:
        """Give back what is not started."""
        return self._recall(epochs)


class Keeper:
    """The subscription's life: ``connect``, then ``run`` in a thread, then ``leave``."""

    def __init__(
        self,
        shared: Shared,
        address: ChannelAddress,
        callback: CallbackObject,
        *,
        create: bool,
        give_up_s: float,
    ) -> None:
        self._shared = shared
        self._address = address
        self._callback = callback
        self._callback_uri = ""
        self._create, self._give_up_s = create, give_up_s
        self._daemon: FairleadDaemon | None = None

    # Subscribing and leaving.

    def connect(self) -> None:
        """Subscribe for the first time; raises when no broker can be reached in time."""
        shared = self._shared
        deadline = time.monotonic() + min(self._give_up_s, shared.timeout_s)
        attempt = 0
        while True:
            try:
                self._subscribe()
                return
            except BrokerError as error:
                self._address.forget()
                late = time.monotonic() > deadline
                if not error.retriable or late or shared.stopping.is_set():
                    if self._daemon is not None:
                        self._daemon.close()
                    raise
                shared.stopping.wait(pause_s(attempt, error))
                attempt += 1

    def _subscribe(self) -> None:
        """Subscribe, or come back; what the broker does not know as ours any more is let go."""
        shared = self._shared
        uri = self._address.uri(self._create)
        if self._daemon is None:
            self._open_daemon(uri)
        session = shared.session
        with shared.changed:
            before, generation = list(session.held), session.generation
        began = time.monotonic()
        proxy = shared.proxy(uri)
        try:
            reply = invoke(
                proxy, "subscribe", shared.subscriber, self._callback_uri, shared.prefetch,
                shared.subscription, shared.session_id, "columns",
            )  # fmt: skip
        finally:
            proxy._pyroRelease()
        with shared.changed:
            if not reply["resumed"]:
                # Only what was held before the call: what came since is of the new session. If a
                # batch has told of a new generation meanwhile, what was held is forgotten already.
                if session.generation == generation:
                    session.lose(before, reply.get("epoch", 0))
                shared.nacks[:] = [nack for nack in shared.nacks if nack[0] not in before]
            # An epoch below the fence: the broker has lost what it had told us. Start over as well.
            epoch = reply.get("epoch", 0)
            made_anew = session.generation not in (0, reply["generation"]) or epoch < session.fence
            self._note_subscribed(reply, made_anew)
            if made_anew:
                session.forget()
            session.enter(reply["generation"])
            # Also when it was resumed: the answer that told of a loss may have been lost itself.
            session.move_fence(epoch)
            shared.policy = Policy.from_dict(reply["policy"])
            shared.settle_uri = reply["settle"]
            shared.changed.notify_all()
        shared.renew(began)
        shared.settle_now.set()
        if made_anew:
            self._subscribe()  # what came before we knew is sent again to the same session

    def _note_subscribed(self, reply: dict[str, Any], made_anew: bool) -> None:
        """Write it into the history, under the lock; what is of another generation before it."""
        history = self._shared.history
        if history is None:
            return
        stretches = self._shared.session.take_finished() if made_anew else None
        if stretches is not None:
            history.finished(stretches)
        history.subscribed(reply["resumed"], reply["generation"])

    def _open_daemon(self, channel_uri: str) -> None:
        host = _local_address(channel_uri)
        name = f"callback-{self._shared.subscriber}"
        self._daemon = FairleadDaemon(host, 0, CALLBACK_SLOTS, name=name)
        uri = self._daemon.register(self._callback, "callback." + secrets.token_hex(16))
        self._callback_uri = str(uri)
        self._daemon.start()

    def leave(self) -> None:
        """Unsubscribe; the broker gets back what was not handled. Best effort: a lease is behind
        it."""
        shared = self._shared
        shared.left = True
        uri, shared.settle_uri = shared.settle_uri, None
        shared.settle_now.set()
        if uri is None:
            return
        proxy = shared.proxy(uri)
        proxy._pyroTimeout = min(shared.timeout_s, LEAVE_TIMEOUT_S)
        try:
            invoke(proxy, "leave", shared.subscriber, shared.session_id, shared.subscription)
        except BrokerError as error:
            log.debug("subscriber %s could not say good-bye: %s", shared.subscriber, error)
        finally:
            proxy._pyroRelease()

    def close_daemon(self) -> None:
        """Take no more calls of the broker."""
        if self._daemon is not None:
            self._daemon.close()
            self._daemon = None

    # Keeping the lease.

    def run(self) -> None:
        """The keeper's thread: heartbeats until the settler has carried its last ack."""
        shared = self._shared
        try:
            self._run()
        except Exception as error:
            log.exception("keeper of subscriber %s failed", shared.subscriber)
            shared.end(BrokerError(f"subscriber {shared.subscriber} lost its keeper: {error}"))

    def _run(self) -> None:
        shared = self._shared
        proxy: Any = None
        broken_since: float | None = None
        attempt = 0
        while not shared.drained.is_set():
            try:
                if proxy is None:
                    proxy = self._settle_proxy(again=attempt > 0)
                    if shared.drained.is_set():
                        break  # closed meanwhile
                self._heartbeat(proxy)
                broken_since, attempt = None, 0
            except NotSubscribed:
                attempt += 1
                if proxy is not None:
                    proxy._pyroRelease()
                    proxy = None
                shared.drained.wait(pause_s(attempt - 1))
                continue
            except BrokerError as error:
                now = time.monotonic()
                broken_since = broken_since or now
                if not _may_pass(error) or now - broken_since > self._give_up_s:
                    shared.end(error)
                    break
                if proxy is not None:
                    proxy._pyroRelease()
                    proxy = None
                self._address.forget()
                attempt += 1
                shared.drained.wait(pause_s(attempt - 1, error))
                continue
            shared.check_now.wait(max(0.02, shared.policy.lease_ms / 4000))
            shared.check_now.clear()
        if proxy is not None:
            proxy._pyroRelease()
        if shared.left:
            self.leave()  # it was left while this thread subscribed once more

    def _settle_proxy(self, again: bool) -> Any:
        """A proxy to where heartbeats go; after trouble by subscribing again first."""
        if again:
            self._subscribe()
        uri = self._shared.settle_uri
        assert uri is not None
        return self._shared.proxy(uri)

    def _heartbeat(self, proxy: Any) -> None:
        shared = self._shared
        began = time.monotonic()
        reply = invoke(
            proxy, "heartbeat", shared.subscriber, shared.session_id, shared.subscription
        )
        shared.renew(began, reply["fence"])


def _may_pass(error: BrokerError) -> bool:
    """Whether to try again is of use."""
    # A channel that was there and has no name now: its broker is on its way back.
    return error.retriable or not error.definite or isinstance(error, ChannelNotFound)


def _local_address(uri: str) -> str:
    """The address of this host as the broker sees it: where the callback daemon must listen."""
    host = uri.rpartition("@")[2].rpartition(":")[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing; it only chooses the way
        return str(probe.getsockname()[0])
