"""Subscriber: the thin half around the session. Threads, proxies, the callback, life and death.

The threads of one subscriber:

- the callback daemon's, in which the broker hands batches over (``receive``) and asks for unstarted
  work back (``recall``); both only touch the session;
- the workers, which run the handler: one partition at a time each, one partition at most once;
- the settler, which carries acks and nacks, gathered while the previous call was under way;
- the keeper, which subscribes, keeps the lease, and comes back after a broken connection.

One lock guards the session. A worker that finds that the lease may have run out starts nothing more
until the keeper has heard from the broker: so a process that was stopped and wakes up again does
not go on with work that has been given to others.
"""

from __future__ import annotations

import logging
import secrets
import signal
import socket
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Callable

from broker import wire
from broker.core.policy import Policy
from broker.errors import BadRequest, BrokerError, ChannelNotFound, NotSubscribed
from broker.pyro_setup import Proxy, invoke
from broker.remote.daemon import FairleadDaemon
from broker.remote.exposed import remote
from broker.remote.lookup import ChannelAddress, pause_s
from subscriber.message import Message
from subscriber.session import Assignment, Session

log = logging.getLogger("fairlead.subscriber")

Handler = Callable[[Message], Any]
ACK_INTERVAL_S = 0.005
ACK_LATENCY_S = 0.05
TAKE_COUNT_MAX = 64


class CallbackObject:
    """What the broker calls. Its id is random: who does not know it cannot call it."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber = subscriber

    @remote
    def receive(self, batch: dict[str, Any]) -> None:
        """Buffer a batch."""
        self._subscriber._receive(batch)

    @remote
    def recall(self, epochs: list[int]) -> list[int]:
        """Give back what is not started."""
        return self._subscriber._recall(epochs)


class Subscriber:
    """Handles the messages of one subscription, competing with the others in it.

    >>> worker = Subscriber("worker-1", "orders")                   # doctest: +SKIP
    >>> @worker.handler                                             # doctest: +SKIP
    ... def handle(message):
    ...     print(message.partition, message.body)
    >>> worker.run()                                                # doctest: +SKIP

    Args:
        subscriber: an id of its own. A second one with the same id replaces the first.
        channel: the name of the channel.
        name_server: "host:port"; else FAIRLEAD_NAME_SERVER, else 127.0.0.1:9090.
        subscription: the durable group; its subscribers share the work.
        prefetch: how many messages may be here unacknowledged.
        concurrency: how many partitions are handled at once, each by a thread of its own.
        create: make the channel if it does not exist yet.
        timeout_s: how long one call may take.
        give_up_s: how long a broker may be away before ``run`` ends with an error.
        stop_s: how long a running handler is waited for when the subscriber stops; one that takes
            longer loses its message to another subscriber.

    A handler that returns has acknowledged. One that raises, or calls ``message.nack``, gets the
    message again, after the channel's back-off, up to its number of attempts.
    """

    def __init__(
        self,
        subscriber: str,
        channel: str,
        *,
        name_server: str | None = None,
        subscription: str = "default",
        prefetch: int = 1000,
        concurrency: int = 1,
        create: bool = False,
        timeout_s: float = 10.0,
        give_up_s: float = 60.0,
        stop_s: float = 30.0,
    ) -> None:
        self._stop_s = stop_s
        self.subscriber = wire.check_id(subscriber, "subscriber id")
        self.channel = wire.check_channel_name(channel)
        self.subscription = wire.check_id(subscription, "subscription")
        if concurrency < 1 or prefetch < 1:
            raise BadRequest(
                f"prefetch={prefetch} and concurrency={concurrency} must both be at least 1"
            )
        self.prefetch, self.concurrency = prefetch, concurrency
        self._create, self._timeout_s, self._give_up_s = create, timeout_s, give_up_s
        self._address = ChannelAddress(self.channel, name_server, timeout_s)
        self._handler: Handler | None = None
        self._origin = (self.channel, self.subscription, 0)
        # State, all guarded by the lock of ``_changed``.
        self._changed = threading.Condition(threading.Lock())
        self._session = Session()
        self._session_id = secrets.token_hex(8)
        self._nacks: list[tuple[int, int, str, float | None, bool]] = []
        self._policy = Policy()
        self._settle_uri: str | None = None
        self._lease_until = 0.0
        self._working = 0
        self._handled = 0
        self._acked = 0  # of the handled ones; together they tell how full the window is
        self._count_max: int | None = None
        self._begun = 0
        self._signalled = False
        self._last_received = time.monotonic()
        self._error: BrokerError | None = None
        # Life.
        self._stopping = threading.Event()
        self._check_now = threading.Event()
        self._settle_now = threading.Event()
        self._drained = threading.Event()
        self._daemon: FairleadDaemon | None = None
        self._threads: list[threading.Thread] = []

    # What users call.

    def handler(self, function: Handler) -> Handler:
        """Use ``function(message)`` as the handler; returns it, so it works as a decorator."""
        self._handler = function
        return function

    @property
    def handled(self) -> int:
        """How many messages the handler has finished, successfully or not."""
        return self._handled

    def start(self) -> Subscriber:
        """Subscribe and begin to handle in the background. Raises if no broker can be reached."""
        if self._handler is None:
            raise BadRequest(
                f"subscriber {self.subscriber} has no handler; decorate one with @worker.handler"
            )
        if self._threads:
            raise BadRequest(f"subscriber {self.subscriber} was started before")
        self._connect_with_retries()
        for index in range(self.concurrency):
            self._spawn(self._work, f"worker-{index}")
        self._spawn(self._settle_loop, "settler")
        self._spawn(self._keep_loop, "keeper")
        return self

    def run(
        self, count: int | None = None, idle_s: float | None = None, signals: bool = True
    ) -> int:
        """Start, handle until stopped, and leave cleanly; returns how many were handled.

        Ends after ``count`` messages, after ``idle_s`` seconds without a new one, by ``stop()``,
        or by SIGTERM and Ctrl-C (``signals``, in the main thread): the running message is
        finished, the rest is handed back. Raises the error that ended it, if one did.
        """
        restore = self._catch_signals() if signals else []
        self._count_max = count
        try:
            self.start()
            while not self._stopping.wait(0.05) and not self._signalled:
                if idle_s is not None and self._is_idle(idle_s):
                    break
        except KeyboardInterrupt:
            pass
        finally:
            self.close()
            for number, handler in restore:
                signal.signal(number, handler)
        if self._error is not None:
            raise self._error
        return self._handled

    def stop(self) -> None:
        """Ask it to end: the running message is finished, the rest is handed back."""
        self._stopping.set()
        self._check_now.set()
        self._settle_now.set()
        with self._changed:
            self._changed.notify_all()

    def close(self, timeout: float | None = None) -> None:
        """Stop, wait for the running handlers (``stop_s``), acknowledge what is done, leave."""
        self.stop()
        deadline = time.monotonic() + (self._stop_s if timeout is None else timeout)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.1, deadline - time.monotonic()))
        self._leave()
        if self._daemon is not None:
            self._daemon.close()
            self._daemon = None

    def __enter__(self) -> Subscriber:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Called by the broker.

    def _receive(self, batch: dict[str, Any]) -> None:
        # Also while stopping: to refuse would look like death. It goes back with the leaving.
        with self._changed:
            self._session.receive(batch)
            self._last_received = time.monotonic()
            self._changed.notify_all()
        self._settle_now.set()

    def _recall(self, epochs: list[int]) -> list[int]:
        wire.check_ints(epochs, "epochs", 1, 1 << 62)
        with self._changed:
            uptos = self._session.recall(epochs)
        self._settle_now.set()
        return uptos

    # Workers.

    def _work(self) -> None:
        taken: list[Assignment] = []
        while True:
            with self._changed:
                if taken:
                    self._working -= 1
                    for assignment in taken:
                        self._session.put_back(assignment)
                while True:
                    if self._stopping.is_set():
                        self._settle_now.set()
                        return
                    taken = self._session.take(self._take_count())
                    if taken:
                        break
                    self._settle_now.set()
                    self._changed.wait()
                self._working += 1
            try:
                for assignment in taken:
                    if not self._handle_all(assignment):
                        break
            except Exception:
                log.exception("worker of subscriber %s failed", self.subscriber)
                self._stopping.set()

    def _take_count(self) -> int:
        """Few enough to leave something for the other workers."""
        if self.concurrency == 1:
            return TAKE_COUNT_MAX
        share = len(self._session.ready) // (2 * self.concurrency)
        return max(1, min(TAKE_COUNT_MAX, share))

    def _handle_all(self, assignment: Assignment) -> bool:
        """Handle what an assignment has, in order; False when the subscriber is to stop."""
        handler, origin, stopping = self._handler, self._origin, self._stopping
        assert handler is not None
        delay_s = self._policy.delay_ms / 1000
        items = assignment.items
        clock = time.monotonic
        acked_at = begun = clock()
        while assignment.cursor < len(items):
            if stopping.is_set() or (self._count_max is not None and self._enough()):
                return False
            try:
                item = items[assignment.cursor]
            except IndexError:
                return True  # handed back or lost between the look and the grasp
            assignment.cursor += 1
            position = item[0]
            assignment.started = position
            if assignment.closed or begun > self._lease_until:
                if not self._still_ours(assignment, position):
                    return True
                begun = clock()
            message = Message(assignment, item, origin)
            try:
                handler(message)
            except BaseException as error:
                reason = f"{type(error).__name__}: {error}"
                message.verdict = message.verdict or (None, False, reason)
                log.warning(
                    "handler of %s failed on %r: %s", self.subscriber, message, error,
                    exc_info=log.isEnabledFor(logging.DEBUG),
                )  # fmt: skip
            ended = clock()
            self._handled += 1
            if self._count_max is not None and self._begun >= self._count_max:
                self.stop()  # the others finish what they have begun
            if message.verdict is not None:
                self._failed(assignment, position, message.verdict)
                return True
            if ended - begun >= delay_s:
                self._session.delays.append(
                    [assignment.epoch, position, int((ended - begun) * 1000)]
                )
            assignment.done = position
            begun = ended
            if ended - acked_at > ACK_INTERVAL_S:
                acked_at = ended
                self._settle_now.set()
        return True

    def _enough(self) -> bool:
        """Whether ``run(count=)`` has begun as many as it was asked for; counts one more if not."""
        with self._changed:
            if self._begun >= (self._count_max or 0):
                return True
            self._begun += 1
            return False

    def _failed(
        self, assignment: Assignment, position: int, verdict: tuple[float | None, bool, str]
    ) -> None:
        delay_s, final, reason = verdict
        with self._changed:
            self._session.failed(assignment)
            if not assignment.lost:
                self._nacks.append((assignment.epoch, position, reason[:500], delay_s, final))
        self._settle_now.set()

    def _still_ours(self, assignment: Assignment, position: int) -> bool:
        """Look properly: was the assignment closed, or may the lease have run out?"""
        with self._changed:
            while not self._stopping.is_set():
                if not self._session.may_start(assignment, position):
                    break
                if time.monotonic() <= self._lease_until:
                    return True
                self._check_now.set()
                self._changed.wait(0.5)
            if not assignment.closed:
                # Stopping: the message was not started after all.
                assignment.started = assignment.done
            elif assignment.started == position and position > assignment.keep_upto:
                assignment.started = assignment.done
            return False

    # The settler.

    def _settle_loop(self) -> None:
        proxy: Any = None
        attempt = 0
        while True:
            # Not for ever: short messages may be done while a long one runs.
            self._settle_now.wait(ACK_LATENCY_S)
            self._settle_now.clear()
            if proxy is not None and proxy[0] != self._settle_uri:
                proxy[1]._pyroRelease()
                proxy = None
            try:
                if proxy is None and self._settle_uri is not None:
                    proxy = (self._settle_uri, self._proxy(self._settle_uri))
                if proxy is not None:
                    self._settle_once(proxy[1])
                attempt = 0
            except BrokerError as error:
                with self._changed:
                    self._session.not_confirmed()
                self._trouble(error)
                if not error.definite and proxy is not None:
                    proxy[1]._pyroRelease()
                    proxy = None
                if self._stopping.is_set() and attempt >= 5:
                    break
                self._drained.wait(pause_s(attempt, error))
                attempt += 1
                self._settle_now.set()
                continue
            if self._finished():
                break
            self._gather_acks()
        if proxy is not None:
            proxy[1]._pyroRelease()
        self._drained.set()
        self._check_now.set()

    def _settle_once(self, proxy: Any) -> None:
        """Carry what is to be settled by now; nacks come after the acks before them."""
        began = time.monotonic()
        with self._changed:
            handled = self._handled
            acks = self._session.take_acks()
            nacks = list(self._nacks)
        if acks is not None:
            reply = invoke(
                proxy, "settle", self.subscription, self.subscriber, self._session_id, *acks
            )
            with self._changed:
                self._session.confirmed(reply["stale"])
                self._acked = handled
        for nack in nacks:
            epoch, position, reason, delay_s, final = nack
            invoke(
                proxy, "nack", self.subscriber, self._session_id, epoch, position, reason,
                delay_s, final, self.subscription,
            )  # fmt: skip
            with self._changed:
                if nack in self._nacks:
                    self._nacks.remove(nack)
        if acks is not None or nacks:
            self._renew(began)

    def _gather_acks(self) -> None:
        """Let acks gather for a moment, unless they hold up the window: a call costs the same for
        one message as for a thousand."""
        if self._handled - self._acked < max(1, self.prefetch // 4):
            self._stopping.wait(ACK_INTERVAL_S)

    def _finished(self) -> bool:
        """Stopped, no handler running, and nothing left to settle."""
        if not self._stopping.is_set():
            return False
        with self._changed:
            return not self._working and not self._nacks and self._session.take_acks() is None

    # The keeper.

    def _keep_loop(self) -> None:
        proxy: Any = None
        broken_since: float | None = None
        attempt = 0
        while not self._drained.is_set():
            try:
                if proxy is None:
                    proxy = self._reconnect() if attempt else self._settle_proxy()
                self._heartbeat(proxy)
                broken_since, attempt = None, 0
            except NotSubscribed:
                attempt += 1
                proxy = None
                continue
            except BrokerError as error:
                # A channel that was there and has no name now: its broker is on its way back.
                away = not error.definite or isinstance(error, ChannelNotFound)
                if not (away or error.retriable):
                    self._end(error)
                    break
                if proxy is not None:
                    proxy._pyroRelease()
                    proxy = None
                self._address.forget()
                now = time.monotonic()
                broken_since = broken_since or now
                if now - broken_since > self._give_up_s:
                    self._end(error)
                    break
                attempt += 1
                self._drained.wait(pause_s(attempt - 1, error))
                continue
            self._check_now.wait(max(0.02, self._policy.lease_ms / 4000))
            self._check_now.clear()
        if proxy is not None:
            proxy._pyroRelease()

    def _settle_proxy(self) -> Any:
        assert self._settle_uri is not None
        return self._proxy(self._settle_uri)

    def _heartbeat(self, proxy: Any) -> None:
        began = time.monotonic()
        invoke(proxy, "heartbeat", self.subscriber, self._session_id, self.subscription)
        self._renew(began)

    def _renew(self, began: float) -> None:
        """The lease runs from when the call that renewed it was sent."""
        with self._changed:
            until = began + self._policy.lease_ms / 1000
            if until > self._lease_until:
                self._lease_until = until
                self._changed.notify_all()

    def _trouble(self, error: BrokerError) -> None:
        """A call of the settler failed: let the keeper find out what is the matter."""
        if error.code in ("not-subscribed", "broker-unavailable"):
            self._check_now.set()

    def _reconnect(self) -> Any:
        self._subscribe()
        return self._settle_proxy()

    def _end(self, error: BrokerError) -> None:
        log.error("subscriber %s ends: %s", self.subscriber, error)
        self._error = error
        self.stop()

    # Connecting.

    def _connect_with_retries(self) -> None:
        deadline = time.monotonic() + min(self._give_up_s, self._timeout_s)
        attempt = 0
        while True:
            try:
                self._subscribe()
                return
            except BrokerError as error:
                self._address.forget()
                if not error.retriable or time.monotonic() > deadline or self._stopping.is_set():
                    if self._daemon is not None:
                        self._daemon.close()
                    raise
                self._stopping.wait(pause_s(attempt, error))
                attempt += 1

    def _subscribe(self) -> None:
        """Subscribe, or come back; what the broker does not know as ours any more is let go."""
        uri = self._address.uri(self._create)
        if self._daemon is None:
            self._open_daemon(uri)
        with self._changed:
            before = list(self._session.held)
        began = time.monotonic()
        proxy = self._proxy(uri)
        try:
            reply = invoke(
                proxy, "subscribe", self.subscriber, self._callback_uri, self.prefetch,
                self.subscription, self._session_id, "columns",
            )  # fmt: skip
        finally:
            proxy._pyroRelease()
        with self._changed:
            if not reply["resumed"]:
                self._session.lose(before)
                self._nacks.clear()
            self._policy = Policy.from_dict(reply["policy"])
            self._origin = (self.channel, self.subscription, reply["generation"])
            self._settle_uri = reply["settle"]
            self._changed.notify_all()
        self._renew(began)
        self._settle_now.set()

    def _open_daemon(self, channel_uri: str) -> None:
        host = _local_address(channel_uri)
        self._daemon = FairleadDaemon(host, 0, 8, name=f"callback-{self.subscriber}")
        uri = self._daemon.register(CallbackObject(self), "callback." + secrets.token_hex(16))
        self._callback_uri = str(uri)
        self._daemon.start()

    def _leave(self) -> None:
        """Unsubscribe; the broker gets back what was not handled. Best effort: a lease is behind
        it."""
        if self._settle_uri is None:
            return
        proxy = self._proxy(self._settle_uri)
        proxy._pyroTimeout = min(self._timeout_s, 5.0)
        try:
            invoke(proxy, "leave", self.subscriber, self._session_id, self.subscription)
        except BrokerError as error:
            log.debug("subscriber %s could not say good-bye: %s", self.subscriber, error)
        finally:
            proxy._pyroRelease()
            self._settle_uri = None

    def _proxy(self, uri: str) -> Any:
        proxy = Proxy(uri)
        proxy._pyroTimeout = self._timeout_s
        return proxy

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=f"{self.subscriber}-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _is_idle(self, idle_s: float) -> bool:
        with self._changed:
            quiet = time.monotonic() - self._last_received > idle_s
            return quiet and not self._working and self._session.idle and not self._nacks

    def _catch_signals(self) -> list[tuple[int, Any]]:
        if threading.current_thread() is not threading.main_thread():
            return []

        def on_signal(number: int, frame: FrameType | None) -> None:
            # Only a note: the main thread may be inside an Event's own lock at this moment.
            self._signalled = True

        wanted = (signal.SIGTERM, signal.SIGINT)
        return [(number, signal.signal(number, on_signal)) for number in wanted]


def _local_address(uri: str) -> str:
    """The address of this host as the broker sees it: where the callback daemon must listen."""
    host = uri.rpartition("@")[2].rpartition(":")[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing; it only chooses the way
        return str(probe.getsockname()[0])
