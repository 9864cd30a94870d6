"""Settler: the thread that carries acks and nacks to the broker.

A call costs the same for one message as for a thousand, so acks gather while the previous call is
under way and for a moment after it. The settler goes on until every handler has returned and what
they did is settled. When nothing can be settled any more, because the subscriber has left or the
broker stays away, it still notes what running handlers finish, and ends with the last of them. What
may not live here: a decision about the lease or the subscription. A call that fails is tried
again, and the keeper is told to look.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from broker.errors import BrokerError
from broker.pyro_setup import invoke
from broker.remote.lookup import pause_s
from subscriber.shared import ACK_INTERVAL_S, Shared

log = logging.getLogger("fairlead.subscriber")

ACK_LATENCY_S = 0.05
LAST_ATTEMPTS_MAX = 5  # once the subscriber stops; after that the broker's lease has to do


class Settler:
    """The loop of acks and nacks, and the proxy it uses."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._proxy: Any = None
        self._proxy_uri: str | None = None

    def run(self) -> None:
        """The settler's thread: until the subscriber has stopped and all is settled."""
        shared = self._shared
        try:
            self._run()
            self._note_until_the_last()
        except Exception as error:
            # Never go on handling while nothing is acknowledged any more.
            log.exception("settler of subscriber %s failed", shared.subscriber)
            shared.end(BrokerError(f"subscriber {shared.subscriber} can settle no more: {error}"))
        finally:
            self._release()
            shared.drained.set()
            shared.check_now.set()

    def _run(self) -> None:
        """Settle, until all is settled after a stop, or nothing can be settled any more."""
        shared = self._shared
        attempt = 0
        while not shared.left:
            # Not for ever: short messages may be done while a long one runs.
            shared.settle_now.wait(ACK_LATENCY_S)
            shared.settle_now.clear()
            try:
                self._follow_uri()
                if self._proxy is not None:
                    self._settle_once(self._proxy)
                else:
                    self.note_finished()
                attempt = 0
            except BrokerError as error:
                self._not_settled(error)
                if attempt >= LAST_ATTEMPTS_MAX and self._hopeless():
                    break
                shared.drained.wait(pause_s(attempt, error))
                attempt += 1
                shared.settle_now.set()
                continue
            if self._finished():
                break
            self._gather_acks()

    def _hopeless(self) -> bool:
        """Whether nobody waits for a broker to come back. While a handler runs, close does."""
        shared = self._shared
        with shared.changed:
            waited_for = shared.working and not shared.drained.is_set()
        return shared.stopping.is_set() and not waited_for

    def _note_until_the_last(self) -> None:
        """Note what handlers finish that nobody waits for any more, as each of them does."""
        shared = self._shared
        while True:
            shared.settle_now.clear()
            with shared.changed:
                working = shared.working  # looked at first: what ends later has another turn
            self.note_finished()
            if not working:
                return
            # The subscriber is stopping: a worker ends with its message, and says so.
            shared.settle_now.wait()

    def _follow_uri(self) -> None:
        """The keeper may have subscribed at another address meanwhile."""
        uri = self._shared.settle_uri
        if self._proxy is not None and self._proxy_uri != uri:
            self._release()
        if self._proxy is None and uri is not None:
            self._proxy, self._proxy_uri = self._shared.proxy(uri), uri

    def _release(self) -> None:
        if self._proxy is not None:
            self._proxy._pyroRelease()
            self._proxy = None

    def _settle_once(self, proxy: Any) -> None:
        """Carry what is to be settled by now; nacks come after the acks before them."""
        shared = self._shared
        began = time.monotonic()
        with shared.changed:
            handled = shared.handled
            acks = shared.session.take_acks()
            nacks = list(shared.nacks)
        self.note_finished()
        fence = 0
        if acks is not None:
            reply = invoke(
                proxy, "settle", shared.subscription, shared.subscriber, shared.session_id, *acks
            )
            with shared.changed:
                shared.session.confirmed(reply["stale"])
                shared.acked = handled
            fence = reply["fence"]
        for nack in nacks:
            epoch, position, reason, delay_s, final = nack
            reply = invoke(
                proxy, "nack", shared.subscriber, shared.session_id, epoch, position, reason,
                delay_s, final, shared.subscription,
            )  # fmt: skip
            with shared.changed:
                # The keeper may have cleared them: then the broker has forgotten us meanwhile.
                if nack in shared.nacks:
                    shared.nacks.remove(nack)
                shared.session.nacked(epoch)
            fence = reply["fence"]
        if acks is not None or nacks:
            shared.renew(began, fence)

    def note_finished(self) -> None:
        """Write what was handled into the history, before any ack of it is sent."""
        shared = self._shared
        if shared.history is not None:
            with shared.changed:
                stretches = shared.session.take_finished()
            if stretches is not None:
                shared.history.finished(stretches)

    def _not_settled(self, error: BrokerError) -> None:
        """A call failed: it is tried again, and the keeper finds out what is the matter."""
        shared = self._shared
        with shared.changed:
            shared.session.not_confirmed()
        if error.code in ("not-subscribed", "broker-unavailable"):
            shared.check_now.set()
        if not error.definite:
            self._release()

    def _gather_acks(self) -> None:
        """Let acks gather for a moment, unless they hold up the window."""
        shared = self._shared
        if shared.handled - shared.acked < max(1, shared.prefetch // 4):
            shared.stopping.wait(ACK_INTERVAL_S)

    def _finished(self) -> bool:
        """Stopped, no handler running, and nothing left to settle."""
        shared = self._shared
        if not shared.stopping.is_set():
            return False
        with shared.changed:
            return not shared.working and not shared.nacks and shared.session.take_acks() is None
