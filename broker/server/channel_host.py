"""ChannelHost: a channel with its lock, its journal and its links. Only here is the lock taken.

The way of every request: decode (before), lock, decide, append, apply, dispatch, unlock, wait for
the group commit, reply. Under the lock there is no I/O and no remote call: appending is putting a
record into a list, and sending is putting it into a link's queue.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from typing import Any, Callable, Sequence

from broker.core import commands as c
from broker.core.channel import Channel
from broker.core.policy import Policy
from broker.core.records import Recalled, Record, SubscriberLeft
from broker.errors import (
    BrokerError,
    BrokerStopping,
    BrokerUnavailable,
    CallOvertaken,
    PublisherFenced,
    QueuesDown,
)
from broker.journal import Journal
from broker.journal.recovery import recover
from broker.server import statistics
from broker.server.clock import Clock
from broker.server.link import Item, Link, PullLink, PushLink, merge, only_epochs, split

DISPATCH = c.Dispatch()
COMMIT_TIMEOUT_S = 20.0
SUPERSEDED_COUNT_MAX = 10_000


class ChannelHost:
    """One channel of this broker."""

    def __init__(
        self,
        channel: Channel,
        sequence: int,
        journal: Journal,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.name = channel.name
        self.policy: Policy = channel.policy
        self.batch_bytes_max = channel.policy.batch_bytes_max
        self._channel = channel
        self._sequence = sequence
        self._journal = journal
        self._clock = clock
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._links: dict[tuple[str, str], Link] = {}
        self._orders: dict[str, list[int]] = {}  # of the newest call of each publisher
        self._opened: dict[str, tuple[str, int]] = {}  # by whom a publisher was opened, its epoch
        self._superseded: OrderedDict[tuple[str, str], None] = OrderedDict()  # openers before it
        self._asleep = 0  # links whose sender waits for work
        self._restore_at_ms: int | None = None
        self._given_up: list[tuple[Link, c.Leave]] = []
        self._closed = False

    @classmethod
    def create(
        cls,
        name: str,
        policy: Policy,
        journal: Journal,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
    ) -> ChannelHost:
        """A new channel; it exists once its first records are durable."""
        channel = Channel(name, policy)
        records = Channel.birth(name, policy, clock.now_ms())
        sequence = journal.append(name, 1, records)
        for record in records:
            channel.apply(record)
        host = cls(channel, sequence, journal, clock, on_failure)
        host._confirm(sequence)
        return host

    @classmethod
    def recover(
        cls,
        name: str,
        boot: str,
        journal: Journal,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
    ) -> ChannelHost:
        """A channel as its journal tells it."""
        channel, sequence = recover(journal, name)
        host = cls(channel, sequence, journal, clock, on_failure)
        host.settle(c.Start(boot))
        return host

    # The way of a request.

    def execute(self, command: c.Command) -> tuple[dict[str, Any], int]:
        """Decide and apply; the reply counts once the returned journal sequence is durable."""
        with self._lock:
            return self._execute(command)

    def settle(self, command: c.Command) -> dict[str, Any]:
        """Execute, and return the reply when it is durable."""
        reply, sequence = self.execute(command)
        # A subscriber goes on handling while its acks are under way.
        self._confirm(sequence, urgent=type(command) is not c.Ack)
        return reply

    def _execute(self, command: c.Command) -> tuple[dict[str, Any], int]:
        if self._closed:
            raise BrokerStopping(f"channel {self.name} is closed here: look it up again")
        decision = self._channel.decide(command, self._clock.now_ms())
        if decision.records:
            self._take_in(decision.records)
            if self._asleep:
                self._dispatch()
        return decision.reply, self._sequence

    def _take_in(self, records: list[Record]) -> None:
        """Append, then apply; what a link must know goes into its queue."""
        durable = [record for record in records if record.durable]
        if durable:
            self._sequence = self._journal.append(self.name, self._sequence + 1, durable)
        try:
            for record in records:
                self._channel.apply(record)
                if isinstance(record, Recalled):
                    self._offer(record, record)
                elif isinstance(record, SubscriberLeft):
                    link = self._links.pop((record.subscription, record.subscriber), None)
                    if link is not None:
                        self._close_link(link)
        except BaseException as error:
            # The journal has it and the state has not: only a recovery can put that right.
            self._closed = True
            self._on_failure(error)
            raise

    def _dispatch(self) -> None:
        decision = self._channel.decide(DISPATCH, self._clock.now_ms())
        if decision.records:
            self._take_in(decision.records)
            for send in decision.sends:
                self._offer(send, send)

    def _offer(self, item: Item, to: Any) -> None:
        link = self._links.get((to.subscription, to.subscriber))
        if link is not None:
            link.queue.append(item)
            link.sequence = self._sequence
            if link.asleep:
                link.asleep = False
                self._asleep -= 1
                link.wake()

    def wait_durable(self, sequence: int, urgent: bool = False) -> bool:
        """Wait until a journal sequence is durable; False when that takes too long."""
        return self._journal.wait_durable(self.name, sequence, COMMIT_TIMEOUT_S, urgent)

    def _confirm(self, sequence: int, urgent: bool = True) -> None:
        if not self.wait_durable(sequence, urgent):
            raise BrokerUnavailable(
                f"channel {self.name}: the journal did not confirm sequence {sequence} within "
                f"{COMMIT_TIMEOUT_S:.0f} s; the outcome is unknown, repeat the same request"
            )

    # Publishing.

    def open_publisher(
        self, command: c.OpenPublisher, instance: str | None
    ) -> tuple[dict[str, Any], int]:
        """A new epoch for a publisher id; the same ``instance`` again gets the same one again.

        So a copy of the request that comes late does not fence its own sender. Not kept over a
        restart: the connections of before do not outlive it.
        """
        publisher = command.publisher
        with self._lock:
            opener, epoch = self._opened.get(publisher, ("", 0))
            current = self._channel.publisher_epochs.get(publisher, 0)
            if instance is not None:
                if opener == instance and epoch == current:
                    known = bool(self._channel.backup.publishers.get(publisher))
                    return {"epoch": epoch, "known": known}, self._sequence
                if (publisher, instance) in self._superseded:
                    raise PublisherFenced(
                        f"an opening of publisher {publisher} on channel {self.name} came after a "
                        "newer publisher had opened the id; open it under a new instance",
                        epoch=current,
                    )
            reply, sequence = self._execute(command)
            self._note_opener(publisher, opener, instance, reply["epoch"])
            return reply, sequence

    def _note_opener(
        self, publisher: str, before: str, instance: str | None, epoch: int
    ) -> None:
        if before and before != instance:
            self._superseded[publisher, before] = None
            if len(self._superseded) > SUPERSEDED_COUNT_MAX:
                self._superseded.popitem(last=False)
        if instance is not None:
            self._opened[publisher] = (instance, epoch)
        else:
            self._opened.pop(publisher, None)

    def opened(self, command: c.OpenPublisher, instance: str | None) -> dict[str, Any]:
        """Open a publisher, and return the reply when it is durable."""
        reply, sequence = self.open_publisher(command, instance)
        self._confirm(sequence)
        return reply

    def publish(
        self,
        build: Callable[[Channel], c.Command],
        wait: bool,
        order: tuple[str, int, int, int] | None = None,
    ) -> dict[str, Any]:
        """Publish; without ``wait`` the reply tells which journal sequence makes it durable.

        ``build`` makes the command from the state and must be quick. ``order`` is (publisher,
        epoch, connection, number) and rises with each call that a publisher sends.
        """
        with self._lock:
            if order is not None:
                self._refuse_overtaken(order)
            reply, sequence = self._execute(build(self._channel))
        if wait:
            self._confirm(sequence)
        reply["record"] = sequence
        reply["durable"] = self._journal.durable(self.name)
        return reply

    def _refuse_overtaken(self, order: tuple[str, int, int, int]) -> None:
        """A copy of a call that got stuck on its way must not be done after a newer call.

        The publisher has been told of a refusal, say, and given the sequences to other messages.
        Not kept over a restart: the connections of before do not outlive it.
        """
        publisher, *place = order
        if place[0] != self._channel.publisher_epochs.get(publisher):
            return  # of another epoch: that is for good, and the channel says so
        if place <= self._orders.get(publisher, []):
            raise CallOvertaken(
                f"a call of publisher {publisher} to channel {self.name} came after a newer one "
                "and was not done; send it again over a new connection"
            )
        self._orders[publisher] = place

    def durable(self, sequence: int, timeout: float) -> int:
        """The last durable sequence, after waiting for ``sequence`` for a while."""
        self._journal.wait_durable(self.name, sequence, timeout)
        return self._journal.durable(self.name)

    def next_sequences(
        self,
        publisher: str,
        partitions: list[str],
        order: tuple[str, int, int, int] | None = None,
    ) -> list[int]:
        """The next sequence of each of a publisher's partitions.

        With ``order`` no older call of the publisher can take one of them afterwards.
        """
        with self._lock:
            if order is not None:
                self._refuse_overtaken(order)
            return self._channel.next_sequences(publisher, partitions)

    # Links.

    def connect(self, command: c.Subscribe, link: Link) -> dict[str, Any]:
        """Subscribe and attach the link, and return the reply when it is durable."""
        reply, sequence = self.attach(command, link)
        self._confirm(sequence)
        if isinstance(link, PushLink):
            link.start()
        return reply

    def attach(self, command: c.Subscribe, link: Link) -> tuple[dict[str, Any], int]:
        """Subscribe and attach the link; a returning session is sent again what it holds.

        The reply counts, and the link may send, once the returned sequence is durable.
        """
        with self._lock:
            reply, sequence = self._execute(command)
            old = self._links.pop(link.key, None)
            if old is not None:
                self._close_link(old)
            self._links[link.key] = link
            link.fence = self._channel.joined(*link.key)
            link.generation = reply["generation"]
            self._resend(link)
            self._dispatch()
        return reply, sequence

    def _resend(self, link: Link) -> None:
        now_ms = self._clock.now_ms()
        send = self._channel.in_flight(*link.key, now_ms)
        if send is not None:
            self._offer(send, send)
        recalled = self._channel.recalled(*link.key, now_ms)
        if recalled is not None:
            # The answer to it, or the question itself, got lost.
            self._offer(recalled, recalled)

    def take(self, link: Link) -> tuple[list[Item], int]:
        """Everything that waits for a link, and the sequence to wait for before it is sent."""
        with self._lock:
            if self._closed or link.closed:
                return [], 0
            if link.asleep:
                link.asleep = False
                self._asleep -= 1
            items: list[Item] = []
            # While the queues are down nobody knows what a plain script still holds: it waits.
            if not (link.plain and self._channel.queues_down):
                if not link.queue:
                    self._dispatch()
                items, link.queue = link.queue, []
                if link.plain:
                    items = self._still_held(link, items)
            if not items:
                link.asleep = True
                self._asleep += 1
            return items, link.sequence

    def _still_held(self, link: Link, items: Sequence[Item]) -> list[Item]:
        """Without the runs of assignments that have ended since, as by a nack: a plain script has
        no session that would leave them out."""
        group = self._channel.subscriptions.get(link.subscription)
        queue = group.subscribers.get(link.subscriber) if group else None
        held = queue.held if queue is not None else {}
        kept: list[Item] = []
        for item in items:
            left = only_epochs(item, held) if isinstance(item, c.Send) else item
            if left is not None:
                kept.append(left)
        return kept

    def holds_nothing(self, link: Link) -> bool:
        """Whether a link's subscriber has nothing to acknowledge."""
        with self._lock:
            group = self._channel.subscriptions.get(link.subscription)
            found = group.subscribers.get(link.subscriber) if group else None
            return found is not None and not found.held

    def give_up(self, link: Link, command: c.Leave) -> None:
        """A link's subscriber does not answer: it is gone, unless it has come back meanwhile."""
        with self._lock:
            self._drop_link(link, command)

    def _drop_link(self, link: Link, command: c.Leave) -> None:
        if self._links.get(link.key) is not link:
            return
        try:
            self._execute(command)
        except QueuesDown:
            self._given_up.append((link, command))  # it can only leave when they are restored
        except BrokerError:
            del self._links[link.key]
            self._close_link(link)

    def _close_link(self, link: Link) -> None:
        if link.asleep:
            link.asleep = False
            self._asleep -= 1
        link.queue.clear()
        link.close()

    def fetch(
        self, command: c.Heartbeat, count_max: int, wait_s: float, received: int
    ) -> dict[str, Any]:
        """The next batch for a pull subscriber; the same one again until it says that it came."""
        self.execute(command)
        with self._lock:
            link = self._links.get((command.subscription, command.subscriber))
        if not isinstance(link, PullLink):
            raise BrokerUnavailable(
                f"subscriber {command.subscriber} has to subscribe again before it can fetch: the "
                f"broker of channel {self.name} was restarted, or it subscribed with a callback"
            )
        with link.fetching:
            with self._lock:
                if not self._channel.queues_down:
                    repeated = self._still_held(link, link.batch)
                    link.batch = [item for item in repeated if isinstance(item, c.Send)]
            if not link.batch or received >= link.batch_number:
                link.batch = self._next_batch(link, count_max, time.monotonic() + wait_s)
                if link.batch:
                    link.batch_number += 1
            return {"number": link.batch_number, "sends": link.batch}

    def _next_batch(self, link: PullLink, count_max: int, deadline: float) -> list[c.Send]:
        while True:
            while not link.signal.empty():
                link.signal.get_nowait()
            items, sequence = self.take(link)
            sends = [item for item in items if isinstance(item, c.Send)]
            if sends:
                try:
                    self._confirm(sequence)
                except BrokerError:
                    with self._lock:
                        link.queue[:0] = items
                    raise
                parts = split(merge(sends), self.batch_bytes_max, count_max)
                if parts[1:]:
                    with self._lock:
                        link.queue[:0] = parts[1:]
                return parts[:1]
            left = deadline - time.monotonic()
            if left <= 0 or link.closed:
                return []
            try:
                link.signal.get(timeout=left)
            except queue.Empty:
                return []

    # Time.

    def tick(self) -> None:
        """Leases, balance, back-offs that have ended, queues that are to be restored."""
        now_ms = self._clock.now_ms()
        with self._lock:
            if self._closed:
                return
            if self._restore_at_ms is not None and now_ms >= self._restore_at_ms:
                self._restore_at_ms = None
                self._restore_queues(now_ms)
            self._execute(c.Tick())
            if any(
                (due := group.queue.next_due_ms()) is not None and due <= now_ms
                for group in self._channel.subscriptions_list
            ):
                self._dispatch()

    def _restore_queues(self, now_ms: int) -> None:
        """First what each subscriber holds is sent again, and only then something new: a session
        takes the first position that it sees of an epoch for the first one there is."""
        self._take_in(self._channel.decide(c.RestoreQueues(), now_ms).records)
        for link in self._links.values():
            # A plain script has no session that recognises what it has received before.
            if not link.plain:
                self._resend(link)
            elif link.queue and link.asleep:
                link.asleep = False
                self._asleep -= 1
                link.wake()
        given_up, self._given_up = self._given_up, []
        for link, command in given_up:
            self._drop_link(link, command)
        self._dispatch()

    # Faults.

    def kill_queues(self, restore_after_ms: int) -> dict[str, Any]:
        """Crash the queues; they are restored from the backup queue after that time."""
        with self._lock:
            reply, _ = self._execute(c.KillQueues())
            for link in self._links.values():
                if not link.plain:
                    link.queue.clear()
            self._restore_at_ms = self._clock.now_ms() + restore_after_ms
            sequence = self._sequence
        self._confirm(sequence)
        return reply

    # Looking.

    def statistics(self) -> dict[str, Any]:
        """Counts for people and programs; see ``broker.server.statistics``."""
        with self._lock:
            found = statistics.of_channel(self._channel, self._clock.now_ms())
        found["journal_sequence"] = self._sequence
        found["journal_durable"] = self._journal.durable(self.name)
        return found

    def partitions(self, subscription: str, limit: int) -> list[dict[str, Any]]:
        """What waits and who holds it, partition by partition."""
        with self._lock:
            return statistics.of_partitions(
                self._channel, subscription, limit, self._clock.now_ms()
            )

    def parked(self, subscription: str, limit: int) -> list[dict[str, Any]]:
        """What was set aside, and why."""
        with self._lock:
            return statistics.of_parked(self._channel, subscription, limit)

    def close(self) -> None:
        """Take nothing more; end the senders."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
            for link in links:
                self._close_link(link)
            self._links.clear()
        for link in links:
            if isinstance(link, PushLink):
                link.join(1.0)
