"""Outbox: the pure half of the publisher. What has gathered, what is under way, what is confirmed.

No thread, clock or socket here: the client (and the simulator) ask ``next_call`` what to send,
carry it, and report what came back. The rules that keep a partition whole:

- A message gets its sequence when its call is formed, and keeps it until the outcome is known.
- Calls go out in their order over one connection and are answered in it. When one is not accepted
  whole, no further call is formed until all that are under way have been answered; then what was
  refused goes again, oldest first, so that no message overtakes another one of its partition.
- An answer is not yet a confirmation: a call is confirmed once its journal record is durable. Until
  then it is kept, and after a broken connection it is sent again under the same sequences.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import Any, Protocol, Sequence

from broker.errors import BrokerError, ChannelFull, LimitReached
from publisher.batch import Batch, Call, Learn, Moved, follow

__all__ = ["Batch", "Call", "Learn", "Outbox", "Watcher", "follow"]


class Watcher(Protocol):
    """Who is told what became of calls, at the moment when the outbox learns it."""

    def refused(self, call: Call, runs: Sequence[Sequence[Any]]) -> None:
        """Not all of a call was accepted; it still has all its runs."""

    def answered(self, call: Call) -> None:
        """What the call still has was accepted, and is durable."""

    def unknown(self) -> None:
        """Nobody knows what becomes of the calls that are neither refused nor answered."""

    def gave_up(self, count: int) -> None:
        """So many messages will not be sent again."""


class Outbox:
    """Everything a publisher has been given and cannot forget yet."""

    def __init__(
        self,
        batch_count_max: int,
        batch_bytes_max: int,
        refuse_when_full: bool,
        under_way_max: int = 1,
    ) -> None:
        self.under_way_max = under_way_max
        self.batch_count_max = batch_count_max
        self.batch_bytes_max = batch_bytes_max
        self.refuse_when_full = refuse_when_full
        self.count = 0  # messages whose receipts are open
        self.size = 0
        self.known = False  # the broker has seen this publisher before: sequences must be learnt
        self._next: dict[str, int] = {}
        self._gathering = Batch()
        self._waiting: deque[Batch] = deque()
        self._resend: deque[Call] = deque()
        self._under_way: deque[Call] = deque()
        self._retries: list[Batch] = []  # refused while other calls are under way
        self._unconfirmed: deque[Call] = deque()
        self._room: int | None = None
        self._formed = 0
        self.watcher: Watcher | None = None

    # Taking messages.

    def add(
        self,
        partition: str,
        body: bytes,
        kind: int,
        timestamp: int,
        priority: int,
        extras: dict[str, Any] | None,
    ) -> tuple[Batch, int]:
        """Take one message; its place is (batch, index)."""
        batch = self._gathering
        index = len(batch.bodies)
        if index >= self.batch_count_max or (
            index and batch.size + len(body) > self.batch_bytes_max
        ):
            self._seal()
            batch, index = self._gathering, 0
        batch.partitions.append(partition)
        batch.bodies.append(body)
        batch.formats.append(kind)
        batch.timestamps.append(timestamp)
        if priority:
            batch.priorities[index] = priority
        if extras is not None:
            batch.extras[index] = extras
        size = len(body)
        batch.size += size
        self.size += size
        self.count += 1
        return batch, index

    def add_many(
        self, partitions: Sequence[str], bodies: Sequence[bytes], kind: int, timestamp: int
    ) -> list[tuple[Batch, int, int]]:
        """Take equal messages in bulk; their places are (batch, first index, count) stretches."""
        places: list[tuple[Batch, int, int]] = []
        at = 0
        while at < len(bodies):
            batch = self._gathering
            index = len(batch.bodies)
            count = min(self.batch_count_max - index, len(bodies) - at)
            size = sum(map(len, bodies[at : at + count]))
            if count < 1 or batch.size + size > self.batch_bytes_max:
                if index:
                    self._seal()
                    continue
                count = self._fitting(bodies, at, count)
                size = sum(map(len, bodies[at : at + count]))
            batch.partitions += partitions[at : at + count]
            batch.bodies += bodies[at : at + count]
            batch.formats += [kind] * count
            batch.timestamps += [timestamp] * count
            batch.size += size
            self.size += size
            self.count += count
            places.append((batch, index, count))
            at += count
        return places

    def _fitting(self, bodies: Sequence[bytes], at: int, count: int) -> int:
        size = fitting = 0
        for body in bodies[at : at + count]:
            size += len(body)
            if fitting and size > self.batch_bytes_max:
                break
            fitting += 1
        return fitting

    def _seal(self) -> None:
        self._waiting.append(self._gathering)
        self._gathering = Batch()

    @property
    def gathered(self) -> int:
        """Messages that no call has been formed for."""
        waiting = sum(len(batch.bodies) - batch.formed_upto for batch in self._waiting)
        return waiting + len(self._gathering.bodies)

    @property
    def unconfirmed(self) -> int:
        """Messages that were answered and whose record is not known to be durable."""
        return sum(call.stop - call.start for call in self._unconfirmed)

    @property
    def unconfirmed_record(self) -> int:
        """The record that would confirm everything answered so far; 0 when nothing is open."""
        return self._unconfirmed[-1].record if self._unconfirmed else 0

    # What to send.

    @property
    def under_way(self) -> int:
        """Calls that were sent and not answered."""
        return len(self._under_way)

    def next_call(self) -> Call | Learn | None:
        """The next thing to send; None when nothing waits, or nothing may be sent before an answer.

        A Call counts as under way from here on; a Learn is to be asked when nothing is.
        """
        if len(self._under_way) >= self.under_way_max:
            return None
        if self._resend:
            # One at a time: what its answer will be is open.
            if self._under_way:
                return None
            self._under_way.append(self._resend.popleft())
            return self._under_way[-1]
        if self._retries:
            return None
        if not self._waiting:
            if not self._gathering.bodies:
                return None
            self._seal()
        batch = self._waiting[0]
        start = batch.formed_upto
        stop = len(batch.bodies)
        if self._room is not None:
            # Near the limit of the channel: no more than fits, and one call at a time.
            if self._under_way:
                return None
            if 0 < self._room < stop - start:
                stop = start + self._room
        formed = self._form(batch, start, stop)
        if isinstance(formed, Call):
            self._under_way.append(formed)
            batch.formed_upto = stop
            if stop == len(batch.bodies):
                self._waiting.popleft()
        return formed

    def _form(self, batch: Batch, start: int, stop: int) -> Call | Learn:
        partitions = batch.partitions[start:stop]
        distinct = dict.fromkeys(partitions)
        nexts = self._next
        unknown = [name for name in distinct if name not in nexts]
        if unknown:
            if self.known:
                return Learn(unknown)
            nexts.update(dict.fromkeys(unknown, 1))
        order: list[int] | None = None
        if len(distinct) == len(partitions):
            names, counts = partitions, [1] * len(partitions)
        elif len(distinct) == 1:
            names, counts = partitions[:1], [len(partitions)]
        else:
            groups: dict[str, list[int]] = {name: [] for name in distinct}
            for index, name in enumerate(partitions, start):
                groups[name].append(index)
            names = list(groups)
            counts = [len(group) for group in groups.values()]
            order = list(chain.from_iterable(groups.values()))
        firsts = [nexts[name] for name in names]
        for name, first, count in zip(names, firsts, counts):
            nexts[name] = first + count
        self._formed += 1
        return Call(batch, start, stop, names, firsts, counts, order, number=self._formed)

    # What came back.

    def learnt(self, partitions: list[str], sequences: list[int]) -> None:
        """The answer to a Learn."""
        self._next.update(zip(partitions, sequences))

    def answered(self, call: Call, reply: dict[str, Any]) -> None:
        """The broker has decided about the oldest call under way."""
        assert call is self._under_way[0]
        self._under_way.popleft()
        room = reply["room"]
        self._room = room if room < self.batch_count_max * (self.under_way_max + 1) else None
        call.record = reply["record"]
        call.duplicate_count = reply["duplicates"]
        if reply["duplicates"]:
            call.duplicates = _duplicates(call, reply)
        if reply["refused"]:
            self._split(call, reply)
        else:
            self._unconfirmed.append(call)
        self._end_retries()
        self.durable(reply["durable"])

    def _split(self, call: Call, reply: dict[str, Any]) -> None:
        """Part of the call went through. The rest is refused for good, or goes again by itself."""
        if self.watcher is not None:
            self.watcher.refused(call, reply["runs"])
        names: list[str] = []
        firsts: list[int] = []
        counts: list[int] = []
        accepted: list[int] = []
        rest: list[tuple[int, str]] = []
        order = call.order if call.order is not None else range(call.start, call.stop)
        at = 0
        for name, first, count, run in zip(
            call.partitions, call.firsts, call.counts, reply["runs"]
        ):
            through, _, reason, expected = run[:4]
            if through:
                names.append(name)
                firsts.append(first)
                counts.append(through)
                accepted += order[at : at + through]
            if through < count:
                # The refused messages give their sequences back.
                self._next[name] = min(expected, self._next[name])
                rest += [(index, reason) for index in order[at + through : at + count]]
            at += count
        batch = call.batch
        lasting = [item for item in rest if item[1] == "partition-limit"]
        if self.refuse_when_full or lasting:
            lasting = [item for item in rest if item[1] in ("full", "partition-limit")]
            for index, reason in lasting:
                batch.errors[index] = _refusal(reason, reply)
        refused = {index for index, _ in lasting}
        again = sorted(index for index, _ in rest if index not in refused)
        # The accepted part goes on as this call; its place among the calls stays.
        call.partitions, call.firsts, call.counts, call.order = names, firsts, counts, accepted
        self._unconfirmed.append(call)
        if again:
            self._again(call, again)

    def _again(self, call: Call, indexes: list[int]) -> None:
        """Messages that must go again, ahead of everything that waits, under new sequences."""
        batch = Batch()
        old = call.batch
        for place, index in enumerate(indexes):
            batch.partitions.append(old.partitions[index])
            batch.bodies.append(old.bodies[index])
            batch.formats.append(old.formats[index])
            batch.timestamps.append(old.timestamps[index])
            if index in old.priorities:
                batch.priorities[place] = old.priorities[index]
            if index in old.extras:
                batch.extras[place] = old.extras[index]
            old.errors[index] = Moved(batch, place)
        batch.size = sum(map(len, batch.bodies))
        self._retries.append(batch)

    def durable(self, record: int) -> None:
        """Everything up to that journal record is confirmed."""
        while self._unconfirmed and self._unconfirmed[0].record <= record:
            call = self._unconfirmed.popleft()
            call.batch.calls.append(call)
            if self.watcher is not None:
                self.watcher.answered(call)
            self._resolve(call)

    def _resolve(self, call: Call) -> None:
        batch = call.batch
        batch.resolved_upto = max(batch.resolved_upto, call.stop)
        moved = sum(
            1
            for index, error in batch.errors.items()
            if isinstance(error, Moved) and call.start <= index < call.stop
        )
        count = call.stop - call.start - moved
        self.count -= count
        if not batch.errors and call.start == 0 and call.stop == len(batch.bodies):
            self.size -= batch.size
        else:
            self.size -= sum(
                len(batch.bodies[index])
                for index in range(call.start, call.stop)
                if not isinstance(batch.errors.get(index), Moved)
            )

    def unknown(self) -> None:
        """The connection broke: everything not confirmed is sent again, in order, as it was."""
        if self.watcher is not None:
            self.watcher.unknown()
        calls: list[Call] = []
        for call in [*self._unconfirmed, *self._under_way]:
            call.resent = True
            if call.counts:
                calls.append(call)
                continue
            # Nothing of it was accepted, so there is nothing to send: it ends with the call before
            # it in its batch.
            before = next((item for item in reversed(calls) if item.batch is call.batch), None)
            if before is None:
                call.batch.calls.append(call)
                self._resolve(call)
            else:
                before.order = before.column(range(len(before.batch.bodies)))
                before.stop = call.stop
        self._resend = deque([*calls, *self._resend])
        self._unconfirmed.clear()
        self._under_way.clear()
        self._end_retries()

    def _end_retries(self) -> None:
        """What was refused goes again once all that was sent has an answer, older before newer."""
        if self._retries and not self._under_way and not self._resend:
            self._waiting.extendleft(reversed(self._retries))
            self._retries.clear()

    def fail(self, error: BrokerError) -> None:
        """Give everything up that is not confirmed; each receipt gets the error."""
        self.unknown()
        batches = {id(call.batch): call.batch for call in self._resend}
        for batch in [*self._retries, *self._waiting, self._gathering]:
            batches[id(batch)] = batch
        for batch in batches.values():
            for index in range(batch.resolved_upto, len(batch.bodies)):
                if index not in batch.errors:
                    batch.errors[index] = error
            batch.resolved_upto = len(batch.bodies)
        self._resend.clear()
        self._retries.clear()
        self._waiting.clear()
        self._gathering = Batch()
        self._next.clear()
        self.known = True  # whatever was sent may have arrived
        self._room = None
        if self.watcher is not None:
            self.watcher.gave_up(self.count)
        self.count = self.size = 0


def _duplicates(call: Call, reply: dict[str, Any]) -> frozenset[int]:
    """Which messages were dropped: their id, or a sequence not sent by us before, was known."""
    order = call.order if call.order is not None else range(call.start, call.stop)
    found = {order[index] for index in reply["known"]}
    at = 0
    for count, run in zip(call.counts, reply["runs"]):
        if not call.resent:
            found.update(order[at : at + run[4]])
        at += count
    return frozenset(found)


def _refusal(reason: str, reply: dict[str, Any]) -> BrokerError:
    if reason == "partition-limit":
        return LimitReached(
            "the message was refused: its channel may have no further partition; reuse partition "
            "ids or raise partition_count_max"
        )
    return ChannelFull(
        f"the message was refused: its channel holds {reply['limit']} unacknowledged messages, "
        "which is its limit; publish it again later, or let the publisher wait (on_full='block')",
        limit=reply["limit"],
        retry_after_ms=reply["retry_after_ms"],
    )
