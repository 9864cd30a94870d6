"""Session: the pure half of the subscriber. What it was given, what it has started, what to ack.

No thread, clock or socket here; the client calls every method under its lock. What a worker does
per message needs no lock: it sets ``started``, looks at ``closed``, handles, and sets ``done``.
That is safe because whoever closes an assignment marks it first and looks at ``started``
afterwards, so at least one of the two sees the other; a worker that finds it closed asks
``may_start`` under the lock.

The duplicate guard: a message that this session has handled is never handled again by it, neither
when the broker sends it again under the same epoch, nor when it comes back under a new one because
the ack was lost.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import chain, islice, repeat
from typing import Any, Sequence

from broker.wire import expand
from subscriber.history import Stretches

#: (position, attempt, timestamp, sequence, priority, format, body, extras)
Item = tuple[int, int, int, int, int, int, bytes, "dict[str, Any] | None"]

CLOSED_COUNT_MAX = 10_000
ENDED_COUNT_MAX = 200_000
HANDLED_COUNT_MAX = 100_000


class Assignment:
    """A partition in this subscriber's hands, under one epoch."""

    __slots__ = (
        "epoch", "publisher", "partition", "items", "cursor", "received_upto", "started", "done",
        "acked", "closed", "keep_upto", "queued", "lost", "seen", "noted",
    )  # fmt: skip

    def __init__(self, epoch: int, publisher: str, partition: str, first: int) -> None:
        self.epoch = epoch
        self.publisher = publisher
        self.partition = partition
        self.items: list[Item] = []
        self.cursor = 0  # the next item for the worker
        self.received_upto = first - 1
        self.started = first - 1
        self.done = first - 1
        self.acked = first - 1
        self.closed = False
        self.keep_upto = 0  # once closed: what is started up to here is still finished
        self.queued = False  # in the ready line or with a worker
        self.lost = False  # taken away: it may be somebody else's by now
        # For the history, and only if there is one: (position, sum of the sequences so far) of the
        # last message that was handled, set before ``done``; and of the last one that was noted.
        self.seen = self.noted = (first - 1, 0)

    @property
    def key(self) -> tuple[str, str]:
        """(publisher, partition)"""
        return (self.publisher, self.partition)

    def __repr__(self) -> str:
        return (
            f"<Assignment {self.publisher}/{self.partition} epoch={self.epoch} done={self.done} "
            f"received={self.received_upto} closed={self.closed}>"
        )


class Session:
    """Everything one subscriber holds of one subscription."""

    def __init__(self) -> None:
        self.held: dict[int, Assignment] = {}
        self.ready: deque[Assignment] = deque()
        self.dirty: dict[Assignment, None] = {}  # those with something to ack, now or soon
        self.delays: list[list[int]] = []
        self._lingering: dict[tuple[str, str], Assignment] = {}  # lost while a message was running
        self._closed: OrderedDict[int, None] = OrderedDict()
        self.fence = 0  # epochs up to here were taken away
        self.generation = 0  # of the subscription, once it is known
        # Assignments that were settled, with the last position: a batch that is sent again after
        # its ack, because the answer to it got lost, is recognised by this.
        self._ended: dict[int, int] = {}
        self._handled: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._sent: tuple[list[int], list[int], list[list[int]]] | None = None
        self.recording = False  # whether ``take_finished`` will be asked
        self._recorded: dict[Assignment, None] = {}  # those that may have something to note
        self._stretches: list[tuple[int, int, int, int]] = []  # noted apart from the rest

    # Receiving.

    def receive(self, batch: dict[str, Any]) -> None:
        """Buffer a batch in columns, without what this session has received before."""
        publishers = batch["publishers"]
        same = publishers if isinstance(publishers, str) else None
        items = _items(batch)
        held, closed = self.held, self._closed
        if not self._take_note(batch.get("generation", 0), batch.get("fence", 0)):
            return
        end = 0
        for run, (epoch, partition, first, count) in enumerate(
            zip(batch["epochs"], batch["partitions"], batch["firsts"], batch["counts"])
        ):
            start = end
            end += count
            assignment = held.get(epoch)
            if assignment is None:
                if epoch <= self.fence or epoch in closed:
                    continue
                ended = self._ended.get(epoch, 0)
                if ended >= first + count - 1:
                    continue
                publisher = same if same is not None else publishers[run]
                known = max(0, ended - first + 1)
                assignment = Assignment(epoch, publisher, partition, first + known)
                assignment.items = items[start + known : end]
                held[epoch] = assignment
            elif assignment.closed:
                continue
            else:
                known = max(0, assignment.received_upto - first + 1)
                assignment.items += items[start + known : end]
            assignment.received_upto = max(assignment.received_upto, first + count - 1)
            if self._handled:
                self._recognise(assignment)
            if not assignment.queued and assignment.cursor < len(assignment.items):
                assignment.queued = True
                self.ready.append(assignment)

    def _take_note(self, generation: int, fence: int) -> bool:
        """What a batch tells about its time; False if it is of another one, and not to be taken.

        We may have been taken in anew before the answer tells that we had been given up, or that
        the subscription was made anew.
        """
        if generation and generation != self.generation:
            if self.generation and fence <= self.fence:
                # It is late; or the channel was made anew, epochs and all: then the answer to
                # ``subscribe`` will tell, and what it carries is sent again.
                return False
            self.enter(generation)
        self.move_fence(fence)
        return True

    def enter(self, generation: int) -> None:
        """From now on all is of this generation; what was of another one means nothing any more."""
        if self.generation not in (0, generation):
            self.forget()
        self.generation = generation

    def _recognise(self, assignment: Assignment) -> None:
        """Messages that were handled before their ack got lost are done, not handled again."""
        handled = min(self._handled.get(assignment.key, 0), assignment.received_upto)
        if handled > assignment.done and not assignment.queued:
            if self.recording:
                # What is recognised was handled, and noted, before.
                self._stretch(assignment)
                assignment.seen = assignment.noted = (handled, assignment.seen[1])
            assignment.started = assignment.done = handled
            assignment.items = [item for item in assignment.items if item[0] > handled]
            self.dirty[assignment] = None

    # Handling.

    def take(self, count: int) -> list[Assignment]:
        """Up to ``count`` assignments with work; they are the caller's until ``put_back``."""
        ready, dirty = self.ready, self.dirty
        taken: list[Assignment] = []
        for _ in range(len(ready)):
            if len(taken) >= count:
                break
            assignment = ready.popleft()
            if self._lingering and assignment.key in self._lingering:
                ready.append(assignment)  # an earlier message of the partition is still running
            elif assignment.cursor < len(assignment.items):
                taken.append(assignment)
                dirty[assignment] = None
                if self.recording:
                    self._recorded[assignment] = None
            else:
                assignment.queued = False
        return taken

    def put_back(self, assignment: Assignment) -> None:
        """The worker is done with it for now; it is ready again if more has come."""
        if assignment.cursor < len(assignment.items):
            self.ready.append(assignment)
            return
        assignment.queued = False
        assignment.items.clear()
        assignment.cursor = 0
        if assignment.lost:
            self._end_lingering(assignment)

    def _end_lingering(self, assignment: Assignment) -> None:
        if self._lingering.get(assignment.key) is assignment:
            del self._lingering[assignment.key]
        self._remember(assignment)
        for other in list(self.held.values()):
            if other.key == assignment.key and other in self.ready:
                self.ready.remove(other)
                other.queued = False
                self._recognise(other)
                if other.items:
                    other.queued = True
                    self.ready.append(other)

    def may_start(self, assignment: Assignment, position: int) -> bool:
        """Whether a position of an assignment that was closed meanwhile is still ours to handle."""
        return not assignment.closed or position <= assignment.keep_upto

    # Giving back.

    def recall(self, epochs: Sequence[int]) -> list[int]:
        """Close assignments; the answer is the last position of each that is finished here."""
        return [self._close(epoch) for epoch in epochs]

    def _close(self, epoch: int) -> int:
        self._note_closed(epoch)
        assignment = self.held.get(epoch)
        if assignment is None:
            return 0
        assignment.closed = True
        assignment.keep_upto = assignment.started
        assignment.items.clear()
        if assignment.acked >= assignment.keep_upto:
            self._drop(assignment)
        return assignment.keep_upto

    def _note_closed(self, epoch: int) -> None:
        """Messages of that epoch may still be on their way here; they are not taken any more."""
        self._closed[epoch] = None
        if len(self._closed) > CLOSED_COUNT_MAX:
            self._closed.popitem(last=False)

    def failed(self, assignment: Assignment) -> None:
        """The message that was started failed: the broker sends it and the rest again.

        Until it has heard so (``nacked``) the message counts as started here: a recall that comes
        in between must not hand it on as if nobody had tried it.
        """
        self._close(assignment.epoch)

    def nacked(self, epoch: int) -> None:
        """The broker knows about the failure: the assignment has ended."""
        assignment = self.held.get(epoch)
        if assignment is not None and assignment.closed:
            self._drop(assignment)

    def _drop(self, assignment: Assignment) -> None:
        self.held.pop(assignment.epoch, None)
        self.dirty.pop(assignment, None)
        self._ended[assignment.epoch] = assignment.acked
        if len(self._ended) > ENDED_COUNT_MAX:
            for epoch in list(islice(self._ended, ENDED_COUNT_MAX // 2)):
                del self._ended[epoch]

    # Settling.

    def take_acks(self) -> tuple[list[int], list[int], list[list[int]]] | None:
        """(epochs, positions, delays) to be acknowledged; None when there is nothing.

        The same again until ``confirmed`` or ``not_confirmed`` is called.
        """
        if self._sent is not None:
            return self._sent
        epochs, uptos = [], []
        for assignment in self.dirty:
            done = assignment.done
            if done > assignment.acked:
                epochs.append(assignment.epoch)
                uptos.append(done)
        if not epochs:
            return None
        delays, self.delays = self.delays, []
        self._sent = (epochs, uptos, delays)
        return self._sent

    def take_finished(self) -> Stretches | None:
        """What was handled since the last time; None when there is nothing.

        Asked after ``take_acks``, it covers what those acks cover: ``seen`` is set before ``done``.
        """
        for assignment in list(self._recorded):
            # First look whether a worker has it: what it does after that is for the next time.
            queued = assignment.queued
            self._stretch(assignment)
            if not queued:
                del self._recorded[assignment]
        if not self._stretches:
            return None
        columns = Stretches(*map(list, zip(*self._stretches)))
        self._stretches.clear()
        return columns

    def _stretch(self, assignment: Assignment) -> None:
        seen, noted = assignment.seen, assignment.noted
        if seen is not noted:
            assignment.noted = seen
            self._stretches.append(
                (assignment.epoch, noted[0] + 1, seen[0] - noted[0], seen[1] - noted[1])
            )

    def confirmed(self, stale: Sequence[int] = ()) -> None:
        """The broker has the acks durably; stale ones belong to assignments that are lost.

        While the call was under way the subscriber may have subscribed anew (``lose``), which takes
        the acks back: then what is still held is acknowledged once more, and that is harmless.
        """
        fenced = set(stale)
        epochs, uptos, _ = self._sent or ([], [], [])
        for epoch, upto in zip(epochs, uptos):
            assignment = self.held.get(epoch)
            if assignment is None or epoch in fenced:
                continue
            assignment.acked = upto
            limit = assignment.keep_upto if assignment.closed else assignment.received_upto
            if assignment.acked >= limit:
                self._drop(assignment)
        self._sent = None
        for epoch in stale:
            self._lose(epoch)

    def not_confirmed(self) -> None:
        """The ack call failed: what it carried is acknowledged again with the next one."""
        if self._sent is not None:
            self.delays = self._sent[2] + self.delays
            self._sent = None

    def _lose(self, epoch: int) -> None:
        """An assignment was taken away. Remember what was handled without a confirmed ack."""
        assignment = self.held.pop(epoch, None)
        self._note_closed(epoch)
        if assignment is None:
            return
        assignment.closed = assignment.lost = True
        assignment.keep_upto = assignment.done
        assignment.items.clear()
        self.dirty.pop(assignment, None)
        if assignment.started > assignment.done and assignment.queued:
            self._lingering[assignment.key] = assignment
        self._remember(assignment)

    def _remember(self, assignment: Assignment) -> None:
        if assignment.done > assignment.acked:
            self._handled[assignment.key] = max(
                assignment.done, self._handled.get(assignment.key, 0)
            )
            if len(self._handled) > HANDLED_COUNT_MAX:
                self._handled.popitem(last=False)

    def lose(self, epochs: Sequence[int], fence: int = 0) -> None:
        """The broker has given these assignments to others: nothing of them is ours any more.

        Neither is anything up to ``fence``, the newest epoch there was: it may still be on its way.
        """
        self.not_confirmed()
        self.move_fence(fence)
        for epoch in epochs:
            self._lose(epoch)

    def move_fence(self, fence: int) -> None:
        """Let go of everything up to ``fence``: it was taken away before we joined."""
        if fence > self.fence:
            self.fence = fence
            for epoch in [epoch for epoch in self.held if epoch <= fence]:
                self._lose(epoch)

    def forget(self) -> None:
        """The subscription was made anew: epochs and positions of before mean nothing any more."""
        for assignment in self.held.values():
            assignment.acked = 1 << 62  # so that nothing of it is remembered when it ends
        self.lose(list(self.held))
        self._closed.clear()
        self.fence = 0
        self._handled.clear()
        self._ended.clear()
        self._recorded.clear()  # an epoch of before would be taken for another one

    @property
    def idle(self) -> bool:
        """Nothing to handle and nothing to acknowledge."""
        return not self.ready and not self.dirty


def _items(batch: dict[str, Any]) -> list[Item]:
    """The messages of a batch as items, run after run."""
    positions = expand(batch["firsts"], batch["counts"])
    attempts: Any = repeat(1)
    if batch["attempts"] is not None:
        # Only the first message of a run can have been tried before.
        attempts = chain.from_iterable(
            [attempt, *repeat(1, count - 1)]
            for attempt, count in zip(batch["attempts"], batch["counts"])
        )
    formats, priorities, extras = batch["formats"], batch["priorities"], batch["extras"]
    timestamps = batch["timestamps"]
    return list(
        zip(
            positions,
            attempts,
            repeat(timestamps) if isinstance(timestamps, int) else timestamps,
            expand(batch["sequences"], batch["counts"]),
            repeat(0) if priorities is None else priorities,
            repeat(formats) if isinstance(formats, int) else formats,
            batch["bodies"],
            repeat(None) if extras is None else extras,
        )
    )
