"""Publisher: the thin half around the outbox. One sender thread, one proxy, bounded retries.

What gathers while a call is under way travels in the next one, so a lone message leaves at once
and a flood goes in long batches. With durability ``fsync`` a call does not wait for its own commit
as long as more is waiting to be sent: its messages are confirmed by a later answer or by
``wait_durable``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from types import TracebackType
from typing import Any, Sequence

from broker import wire
from broker.core.policy import Policy
from broker.errors import (
    BadRequest,
    BrokerError,
    BrokerUnavailable,
    ChannelNotFound,
    MessageTooLarge,
    OutboxFull,
    PublisherClosed,
    PublisherFenced,
)
from broker.history import HistoryFile
from broker.remote.lookup import pause_s
from publisher.batch import Call, Learn
from publisher.history import PublisherHistory, publisher_identity
from publisher.link import Link
from publisher.outbox import Outbox
from publisher.receipt import Receipt, Receipts

log = logging.getLogger("fairlead.publisher")

UNDER_WAY_MAX = 8


class Publisher:
    """Publishes to one channel under a publisher id.

    >>> with Publisher("billing", "orders") as publisher:          # doctest: +SKIP
    ...     publisher.publish({"total": 3}, partition="customer-42")

    Args:
        publisher: the id under which messages are numbered. Two live publishers must not share one:
            the newer fences the older.
        channel: the name of the channel.
        name_server: "host:port"; else FAIRLEAD_NAME_SERVER, else 127.0.0.1:9090.
        create: make the channel if it does not exist, with ``policy`` if given.
        linger_s: wait so long for more messages before a batch leaves.
        batch_count_max: the longest batch.
        outbox_count_max: how many unconfirmed messages are held before ``publish`` blocks.
        on_full: "refuse" or "block" when the channel is full; None: as the channel's policy says.
        timeout_s: how long one call may take.
        give_up_s: how long a broker may be away before the open receipts fail.
        history: a directory for a file of what this publisher saw; see ``publisher.history``. If
            the file cannot be made, that is a BadRequest before the id is opened: a publisher that
            lives under the id is not fenced for nothing.

    Any thread may publish. Errors come through receipts and ``flush``.
    """

    def __init__(
        self,
        publisher: str,
        channel: str,
        *,
        name_server: str | None = None,
        create: bool = True,
        policy: dict[str, Any] | None = None,
        linger_s: float = 0.0,
        batch_count_max: int = 500,
        outbox_count_max: int = 10_000,
        on_full: str | None = None,
        timeout_s: float = 10.0,
        give_up_s: float = 60.0,
        history: str | os.PathLike[str] | None = None,
    ) -> None:
        self.publisher = wire.check_id(publisher, "publisher id")
        self.channel = wire.check_channel_name(channel)
        if on_full not in (None, "refuse", "block"):
            raise BadRequest(f"on_full={on_full!r} is refused: it is 'refuse' or 'block'")
        self._linger_s, self._give_up_s = linger_s, give_up_s
        self._outbox_count_max = outbox_count_max
        self._link = Link(
            self.publisher, self.channel, name_server,
            create=create, policy=policy, timeout_s=timeout_s,
        )  # fmt: skip
        self._calls: deque[Call] = deque()  # under way, oldest first
        # One lock guards the outbox. Three conditions of it, so that an answer wakes nobody in
        # vain: the sender, those who wait for room, those who wait for outcomes.
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._room = threading.Condition(lock)
        self._resolved = threading.Condition(lock)
        self._room_wanted = 0
        self._answers = 0
        self._idle = False
        self._abandoned = threading.Event()
        self._closing = False
        self._failure: BrokerError | None = None
        self._errors: list[BrokerError] = []
        # Before the opening, which fences an older publisher.
        self._history_file = None if history is None else self._make_history(history)
        self._history: PublisherHistory | None = None
        self._writers = 2  # of the history: the sender and ``close``; the last one ends it
        self._closed = False
        # In the constructing thread, so that a wrong address shows at once.
        opened = self._open()
        self._policy = Policy.from_dict(opened["policy"])
        self._message_bytes_max = self._policy.message_bytes_max
        refuse = (on_full or self._policy.overflow) == "refuse"
        self._outbox = Outbox(
            min(batch_count_max, self._policy.batch_count_max),
            self._policy.batch_bytes_max,
            refuse,
            UNDER_WAY_MAX,
        )
        self._outbox.known = opened["known"]
        if self._history_file is not None:
            self._history_file.begin(str(self.epoch))
            self._history = PublisherHistory(self._history_file.append, self.epoch)
            self._outbox.watcher = self._history
        self._thread = threading.Thread(
            target=self._live, name=f"publisher-{publisher}", daemon=True
        )
        self._thread.start()
        _live.add(self)

    # What users call.

    def publish(
        self,
        body: Any,
        partition: str = "default",
        *,
        priority: int = 0,
        timestamp: float | None = None,
        id: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Receipt:
        """Take a message for sending; returns at once with a receipt.

        Args:
            body: bytes, str, or anything JSON can carry.
            partition: messages with the same partition are handled in order, one at a time.
            priority: larger is more urgent; urgent work lifts its predecessors in the partition.
            timestamp: seconds since 1970; orders the partition. Now, if not given.
            id: an id of your own; a second message with it is dropped as a duplicate.
            headers: a dict of str to str.

        Raises BadRequest or MessageTooLarge for what could never be accepted, OutboxFull when the
        broker does not keep up for longer than ``give_up_s``.
        """
        if type(body) is bytes:
            kind = 0
        else:
            kind, body = wire.encode_body(body)
        if len(body) > self._message_bytes_max:
            raise MessageTooLarge(
                f"a body of {len(body)} bytes is refused: the limit of channel {self.channel} is "
                f"{self._message_bytes_max} (message_bytes_max)",
                limit=self._message_bytes_max,
            )
        if type(partition) is not str or not 0 < len(partition) <= 200 or (
            not partition.isprintable()
        ):
            wire.check_id(partition, "partition id")
        if priority:
            wire.check_int(priority, "priority", 0, self._policy.priority_max)
        stamp = time.time_ns() // 1000 if timestamp is None else wire.to_timestamp(timestamp)
        extras: dict[str, Any] | None = None
        if id is not None or headers:
            extras = self._extras(id, headers)
        changed = self._changed
        with changed:
            outbox = self._outbox
            if outbox.count >= self._outbox_count_max or self._closing:
                self._wait_for_room(1)
            batch, index = outbox.add(partition, body, kind, stamp, priority, extras)
            if self._idle:
                self._idle = False
                changed.notify()
        return Receipt(batch, index, self._resolved)

    def publish_many(
        self, bodies: Sequence[bytes], partition: str | Sequence[str] = "default"
    ) -> Receipts:
        """Take many bodies (bytes) at once, for one partition or with a partition for each.

        What ``publish`` does, at a fraction of the cost per message.
        """
        bodies = bodies if isinstance(bodies, list) else list(bodies)
        names = [partition] * len(bodies) if isinstance(partition, str) else list(partition)
        if len(names) != len(bodies):
            raise BadRequest(f"{len(bodies)} bodies but {len(names)} partitions")
        if not set(map(type, bodies)) <= {bytes}:
            raise BadRequest("publish_many takes bytes; use publish for other bodies")
        wire.check_ids(names[:1] if isinstance(partition, str) else names, "partition id")
        if max(map(len, bodies), default=0) > self._message_bytes_max:
            raise MessageTooLarge(
                f"a body of {max(map(len, bodies))} bytes is refused: the limit of channel "
                f"{self.channel} is {self._message_bytes_max} (message_bytes_max)",
                limit=self._message_bytes_max,
            )
        stamp = time.time_ns() // 1000
        places = []
        changed = self._changed
        with changed:
            step = max(1, self._outbox_count_max // 4)
            for at in range(0, len(bodies), step):
                part = bodies[at : at + step]
                if self._outbox.count + len(part) > self._outbox_count_max or self._closing:
                    self._wait_for_room(len(part))
                places += self._outbox.add_many(names[at : at + step], part, 0, stamp)
                if self._idle:
                    self._idle = False
                    changed.notify()
        return Receipts(places, self._resolved)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything published so far has an outcome.

        Raises the first error that a message met since the last flush, or BrokerUnavailable when
        the time is over.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._wait(lambda: self._outbox.count == 0, deadline, "flush")
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def close(self, timeout: float | None = 30.0) -> None:
        """Flush, stop the sender and let the connection go. Closing twice is fine."""
        with self._changed:
            first = not self._closing
            self._closing = True
            self._changed.notify_all()
            self._room.notify_all()
        self._thread.join(timeout)
        if first:
            self._abandon()
        with self._changed:
            once, self._closed = not self._closed, True
        if once:  # a fenced publisher has closed itself before, without this
            self._end_writer()

    def _abandon(self) -> None:
        """Whatever is open by now fails; a sender that still runs ends with its call."""
        self._abandoned.set()
        with self._changed:
            if self._thread.is_alive() or self._outbox.count:
                left = self._outbox.count
                self._outbox.fail(
                    self._failure
                    or PublisherClosed(
                        f"publisher {self.publisher} was closed before channel {self.channel} "
                        "confirmed the message; it may have been accepted"
                    )
                )
                log.warning("publisher %s closed with %d open messages", self.publisher, left)
            self._tell()

    def _make_history(self, directory: str | os.PathLike[str]) -> HistoryFile:
        return HistoryFile(directory, publisher_identity(self.publisher, None, self.channel))

    def _open(self) -> dict[str, Any]:
        """Open the id; if that fails, nothing is left of the history."""
        try:
            return self._link.open(self._give_up_s, self._abandoned)
        except BaseException:
            if self._history_file is not None:
                self._history_file.discard()
            raise

    def _end_writer(self) -> None:
        """The sender or ``close`` writes no more. A sender may outlive ``close`` and still send."""
        with self._changed:
            self._writers -= 1
            last = not self._writers
        if last and self._history is not None and self._history_file is not None:
            self._history.closed()
            self._history_file.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.flush(self._give_up_s * 2)
        finally:
            self.close()

    @property
    def epoch(self) -> int:
        """The epoch of this publisher: it rises each time the id is opened."""
        return self._link.epoch

    @property
    def history_failed(self) -> bool:
        """Whether there should be a history and it has ended early, as on a full disk."""
        return self._history_file is not None and self._history_file.failed

    def _end_in_child(self) -> None:
        """In a forked child: there is no sender here, and the connection is the parent's."""
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._room = threading.Condition(lock)
        self._resolved = threading.Condition(lock)
        self._closing = True
        self._failure = BadRequest(
            f"publisher {self.publisher} was opened before a fork and belongs to the parent; open "
            "one in the child, under an id of its own"
        )

    # Under the condition.

    def _extras(self, id: str | None, headers: dict[str, str] | None) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if id is not None:
            extras["id"] = wire.check_id(id, "message id")
        if headers:
            extras["headers"] = wire.check_headers(headers, self._policy.headers_bytes_max)
        return extras

    def _wait_for_room(self, count: int) -> None:
        # Come back with room for a good stretch, not for one message: waking up costs more.
        limit = max(0, min(self._outbox_count_max - count, self._outbox_count_max * 3 // 4))
        self._room_wanted = limit
        deadline = time.monotonic() + self._give_up_s
        while self._outbox.count > limit or self._closing:
            if self._closing or self._failure is not None:
                raise self._failure or PublisherClosed(
                    f"publisher {self.publisher} is closed; open a new one to publish"
                )
            if time.monotonic() > deadline:
                raise OutboxFull(
                    f"publisher {self.publisher} holds {self._outbox.count} unconfirmed messages "
                    f"for channel {self.channel}, its limit is {self._outbox_count_max}, and the "
                    f"broker confirmed too few within {self._give_up_s} s; try again later",
                    limit=self._outbox_count_max,
                )
            self._room.wait(1.0)

    def _tell(self) -> None:
        """Outcomes have become known: wake those whom it may concern."""
        self._resolved.notify_all()
        if self._outbox.count <= self._room_wanted:
            self._room.notify_all()

    def _wait(self, condition: Any, deadline: float | None, what: str) -> None:
        while not condition():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise BrokerUnavailable(
                    f"{what} of publisher {self.publisher} is not done in time: "
                    f"{self._outbox.count} messages are unconfirmed; the publisher goes on trying"
                )
            self._resolved.wait(left)

    # The sender thread.

    def _live(self) -> None:
        try:
            self._run()
        finally:
            self._end_writer()

    def _run(self) -> None:
        attempt = answers = 0
        broken_since: float | None = None
        while not self._abandoned.is_set():
            try:
                if not self._step():
                    break
                if self._answers != answers:
                    answers = self._answers
                    attempt, broken_since = 0, None
                continue
            except BrokerError as caught:
                error = caught
            except Exception as caught:
                log.exception("publisher %s failed", self.publisher)
                error = BrokerUnavailable(f"publisher {self.publisher} failed: {caught}")
            # A channel that was there and has no name now: its broker is on its way back.
            away = not error.definite or isinstance(error, ChannelNotFound)
            if self._calls or self._outbox.under_way or away:
                # Also when one of several calls under way was refused: they go again in order.
                self._disconnect()
            if away:
                broken_since = broken_since or time.monotonic()
            lost = broken_since is not None and time.monotonic() - broken_since > self._give_up_s
            if lost or not (away or error.retriable):
                self._give_up(error)
                attempt, broken_since = 0, None
            else:
                self._abandoned.wait(pause_s(attempt, error))
                attempt += 1
        self._calls.clear()
        self._link.release()

    def _step(self) -> bool:
        """Do the next thing; False when the publisher is closed and nothing is left."""
        with self._changed:
            while True:
                self._linger()
                call = self._outbox.next_call()
                record = self._outbox.unconfirmed_record
                if call is not None or self._calls or record:
                    break
                if self._closing:
                    return False
                self._idle = True
                self._changed.wait()
                self._idle = False
            # Nothing else to do: then the answer may as well wait for the commit.
            wait = self._outbox.gathered == 0
        pipeline = self._link.connected()
        if isinstance(call, Call):
            self._calls.append(call)
            arguments = self._link.arguments(call, wait)
            if self._history is not None:
                self._history.tried(call)
            pipeline.send("publish_runs", *arguments)
        elif self._calls:
            try:
                reply = pipeline.receive()
            except BrokerError as error:
                self._refused(self._calls[0], error)
                raise
            self._answered(self._calls.popleft(), reply)
        elif isinstance(call, Learn):
            sequences = pipeline.call(
                "next_sequences", self.publisher, call.partitions, self.epoch, self._link.place()
            )
            with self._changed:
                self._outbox.learnt(call.partitions, sequences)
        else:
            upto = pipeline.call("wait_durable", record, 1.0)
            self._answers += 1
            with self._changed:
                self._outbox.durable(upto)
                self._tell()
        return True

    def _linger(self) -> None:
        if self._linger_s and not self._closing and self._outbox.gathered > 0:
            deadline = time.monotonic() + self._linger_s
            while (
                self._outbox.gathered < self._outbox.batch_count_max
                and not self._closing
                and (left := deadline - time.monotonic()) > 0
            ):
                self._changed.wait(left)

    def _answered(self, call: Call, reply: dict[str, Any]) -> None:
        self._answers += 1
        with self._changed:
            self._outbox.answered(call, reply)
            if call.batch.errors:
                self._errors += list(self._refusals(call))[: 1_000 - len(self._errors)]
            self._tell()
            full = reply["refused"] and not self._outbox.refuse_when_full
        if full and not self._calls:
            self._abandoned.wait(pause_s(0) + reply["retry_after_ms"] / 1000)

    def _refused(self, call: Call, error: BrokerError) -> None:
        """The answer to a call was an error. Note it, if it is sure that nothing was accepted."""
        # An error that this version does not know says nothing for sure, nor what may pass.
        final = error.definite and not error.retriable and type(error) is not BrokerError
        # Whoever is fenced does not know whether a copy of the call was done before that.
        doubtful = isinstance(error, (ChannelNotFound, PublisherFenced))
        if self._history is not None and final and not doubtful:
            self._history.refused_whole(call, error.code)

    def _refusals(self, call: Call) -> Any:
        for index in range(call.start, call.stop):
            error = call.batch.errors.get(index)
            if error is not None and error.message != "moved":
                yield error

    def _disconnect(self) -> None:
        """The outcome of whatever was under way is unknown: it is sent again as it was."""
        self._calls.clear()
        self._link.forget()
        with self._changed:
            self._outbox.unknown()
            self._tell()

    def _give_up(self, error: BrokerError) -> None:
        """Every open receipt gets the error; a fenced publisher is closed for good."""
        log.error("publisher %s gives up: %s", self.publisher, error)
        with self._changed:
            if error.code == "publisher-fenced":
                self._failure = error
                self._closing = True
            self._outbox.fail(error)
            self._errors.append(error)
            self._tell()


_live: weakref.WeakSet[Publisher] = weakref.WeakSet()


def _after_fork() -> None:
    for publisher in list(_live):
        publisher._end_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
