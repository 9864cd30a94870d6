"""Subscriber: the public face. Its life from ``start`` to ``close``, and what the broker calls.

The threads of one subscriber, each in a file of its own, with ``shared`` between them:

- the callback daemon's, in which the broker hands batches over (``receive``) and asks for unstarted
  work back (``recall``); both only touch the session;
- the workers, which run the handler (``workers``);
- the settler, which carries acks and nacks (``settler``);
- the keeper, which subscribes, keeps the lease, and comes back after a broken connection
  (``keeper``).

What may not live here: what one of these threads does in its loop.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Callable

from broker import wire
from broker.errors import BadRequest
from broker.history import HistoryFile
from broker.remote.lookup import ChannelAddress
from subscriber.history import SubscriberHistory, subscriber_identity
from subscriber.keeper import CallbackObject, Keeper
from subscriber.settler import Settler
from subscriber.shared import Handler, Shared
from subscriber.workers import Workers

KEEPER_END_S = 5.0


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
        history: a directory for a file of what this subscriber saw; see ``subscriber.history``.

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
        history: str | os.PathLike[str] | None = None,
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
        self._shared = Shared(
            self.subscriber, self.channel, self.subscription,
            prefetch=prefetch, concurrency=concurrency, timeout_s=timeout_s,
        )  # fmt: skip
        self._history_file = None if history is None else self._open_history(history)
        self._workers = Workers(self._shared)
        self._settler = Settler(self._shared)
        self._keeper = Keeper(
            self._shared,
            ChannelAddress(self.channel, name_server, timeout_s),
            CallbackObject(self._receive, self._recall),
            create=create,
            give_up_s=give_up_s,
        )
        self._signalled = False
        self._threads: list[threading.Thread] = []
        # Who may still write to the history: each thread, and ``close``. The last one ends it.
        self._writers_lock = threading.Lock()
        self._writers = 1
        self._closed = False

    # What users call.

    def handler(self, function: Handler) -> Handler:
        """Use ``function(message)`` as the handler; returns it, so it works as a decorator."""
        self._shared.handler = function
        return function

    @property
    def handled(self) -> int:
        """How many messages the handler has finished, successfully or not."""
        return self._shared.handled

    @property
    def subscribed(self) -> bool:
        """Whether the broker knows it: from the first subscription until it has left."""
        return self._shared.settle_uri is not None

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end, by whatever; it stays so after the end."""
        return self._shared.stopping.is_set()

    @property
    def history_failed(self) -> bool:
        """Whether there should be a history and it has ended early, as on a full disk."""
        return self._history_file is not None and self._history_file.failed

    def start(self) -> Subscriber:
        """Subscribe and begin to handle in the background. Raises if no broker can be reached."""
        if self._shared.handler is None:
            raise BadRequest(
                f"subscriber {self.subscriber} has no handler; decorate one with @worker.handler"
            )
        if self._threads:
            raise BadRequest(f"subscriber {self.subscriber} was started before")
        self._keeper.connect()
        for index in range(self.concurrency):
            self._spawn(self._workers.work, f"worker-{index}")
        self._spawn(self._settler.run, "settler")
        self._spawn(self._keeper.run, "keeper")
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
        self._shared.count_max = count
        try:
            self.start()
            while not self._shared.stopping.wait(0.05) and not self._signalled:
                if idle_s is not None and self._shared.is_idle(idle_s):
                    break
        except KeyboardInterrupt:
            pass
        finally:
            self.close()
            for number, handler in restore:
                signal.signal(number, handler)
        if self._shared.error is not None:
            raise self._shared.error
        return self._shared.handled

    def stop(self) -> None:
        """Ask it to end: the running message is finished, the rest is handed back."""
        self._shared.stop()

    def close(self, timeout: float | None = None) -> None:
        """Stop, wait for the running handlers (``stop_s``), acknowledge what is done, leave.

        From inside a handler it only stops: who started the subscriber closes it. A handler that
        takes longer goes on after this has returned. Its message is another subscriber's by then;
        what becomes of it here is in the history, which ends when the last thread does.
        """
        self.stop()
        if threading.current_thread() in self._threads:
            return
        deadline = time.monotonic() + (self._stop_s if timeout is None else timeout)
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        # A handler that outlives this keeps the settler waiting; the keeper must not come back.
        self._shared.drained.set()
        self._shared.check_now.set()
        if self._threads:
            self._threads[-1].join(KEEPER_END_S)
        try:
            self._keeper.leave()
            self._keeper.close_daemon()
        finally:
            with self._writers_lock:
                first, self._closed = not self._closed, True
            if first:
                self._end_writer()

    def __enter__(self) -> Subscriber:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # For subclasses that want to watch what goes on between the broker and the buffer.

    def received(self, batch: dict[str, Any]) -> None:
        """A batch has come into the buffer; override it to watch. Does nothing by itself.

        ``batch`` is in columns, as on the wire; do not change it. It is called in a thread of the
        callback daemon, without a lock, while workers may have begun with the batch. The broker
        waits for it, and takes an exception for a failed delivery.
        """

    def recalled(self, epochs: list[int], uptos: list[int]) -> None:
        """Assignments were asked back, and given back after the positions ``uptos``, one for each
        of ``epochs``; 0 is all of it. Override it to watch; the same holds as for ``received``."""

    # Called by the broker.

    def _receive(self, batch: dict[str, Any]) -> None:
        # Also while stopping: to refuse would look like death. It goes back with the leaving.
        shared = self._shared
        with shared.changed:
            shared.session.receive(batch)
            shared.last_received = time.monotonic()
            shared.changed.notify_all()
        shared.settle_now.set()
        self.received(batch)

    def _recall(self, epochs: list[int]) -> list[int]:
        wire.check_ints(epochs, "epochs", 1, 1 << 62)
        with self._shared.changed:
            uptos = self._shared.session.recall(epochs)
        self._shared.settle_now.set()
        self.recalled(epochs, uptos)
        return uptos

    # The history.

    def _open_history(self, directory: str | os.PathLike[str]) -> HistoryFile:
        shared = self._shared
        identity = subscriber_identity(
            self.subscriber, shared.session_id, self.channel, self.subscription
        )
        file = HistoryFile(directory, identity)
        shared.history = SubscriberHistory(file.append)
        shared.session.recording = True
        return file

    def _end_writer(self) -> None:
        """A thread, or ``close``, writes no more; after the last of them the history ends."""
        with self._writers_lock:
            self._writers -= 1
            last = not self._writers
        if last and self._shared.history is not None and self._history_file is not None:
            self._settler.note_finished()
            self._shared.history.closed()
            self._history_file.close()

    # Threads and signals.

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        def live() -> None:
            try:
                target()
            finally:
                self._end_writer()

        thread = threading.Thread(target=live, name=f"{self.subscriber}-{name}", daemon=True)
        with self._writers_lock:
            self._writers += 1
        self._threads.append(thread)
        thread.start()

    def _catch_signals(self) -> list[tuple[int, Any]]:
        if threading.current_thread() is not threading.main_thread():
            return []

        def on_signal(number: int, frame: FrameType | None) -> None:
            # Only a note: the main thread may be inside an Event's own lock at this moment.
            self._signalled = True

        wanted = (signal.SIGTERM, signal.SIGINT)
        return [(number, signal.signal(number, on_signal)) for number in wanted]
