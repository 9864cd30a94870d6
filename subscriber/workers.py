"""Workers: the threads that run the handler. One partition at a time each, in order.

A worker takes assignments from the session, handles what they have, and puts them back. Per
message it takes no lock: ``session`` says why that is safe. A worker that finds that the lease may
have run out starts nothing more until the keeper has heard from the broker: so a process that was
stopped and wakes up again does not go on with work that has been given to others.

What may not live here: calls to the broker. A worker only leaves word for the settler and the
keeper.
"""

from __future__ import annotations

import logging
import time

from subscriber.history import SLOW_S
from subscriber.message import Message
from subscriber.session import Assignment, Item
from subscriber.shared import ACK_INTERVAL_S, Shared

log = logging.getLogger("fairlead.subscriber")

TAKE_COUNT_MAX = 64


class Workers:
    """What each worker thread does; the threads themselves share nothing but ``Shared``."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def work(self) -> None:
        """One worker's thread: until the subscriber stops."""
        shared = self._shared
        taken: list[Assignment] = []
        while True:
            with shared.changed:
                if taken:
                    shared.working -= 1
                    for assignment in taken:
                        shared.session.put_back(assignment)
                taken = self._take()
                if not taken:
                    return
                shared.working += 1
            try:
                for assignment in taken:
                    if not self.handle_all(assignment):
                        break
            except BaseException:  # whatever it is: what was taken is put back, for the settler
                log.exception("worker of subscriber %s failed", shared.subscriber)
                shared.stop()

    def _take(self) -> list[Assignment]:
        """Wait for work, under the lock; nothing when the subscriber is to stop."""
        shared = self._shared
        while not shared.stopping.is_set():
            # When all are begun, to take would be to put back, over and over.
            if not shared.all_begun():
                taken = shared.session.take(self._take_count())
                if taken:
                    return taken
            shared.settle_now.set()
            shared.changed.wait()
        shared.settle_now.set()
        return []

    def _take_count(self) -> int:
        """Few enough to leave something for the other workers."""
        shared = self._shared
        if shared.concurrency == 1:
            return TAKE_COUNT_MAX
        share = len(shared.session.ready) // (2 * shared.concurrency)
        return max(1, min(TAKE_COUNT_MAX, share))

    def handle_all(self, assignment: Assignment) -> bool:
        """Handle what an assignment has, in order; False when no more is to be started.

        The hot loop: every message passes here, so it works on local names and calls little.
        """
        shared = self._shared
        handler, stopping = shared.handler, shared.stopping
        # All that is handled here is of one generation: a new one closes what was held before it.
        origin = (shared.channel, shared.subscription, shared.session.generation)
        assert handler is not None
        counted, alone = shared.count_max is not None, shared.concurrency == 1
        noting = note = shared.history is not None  # note: the next one has a line of its own
        total = assignment.seen[1]
        delay_s = shared.policy.delay_ms / 1000
        items = assignment.items
        clock = time.monotonic
        acked_at = begun = clock()
        while assignment.cursor < len(items):
            if stopping.is_set() or (counted and not shared.count_begun()):
                return False
            try:
                item = items[assignment.cursor]
            except IndexError:
                shared.count_back()
                return True  # handed back or lost between the look and the grasp
            assignment.cursor += 1
            position = item[0]
            assignment.started = position
            if assignment.closed or begun > shared.lease_until:
                if not self._still_ours(assignment, position):
                    shared.count_back()
                    return True
                begun = clock()
            if note:
                self._note_started(assignment, item)
            message = Message(assignment, item, origin)
            try:
                handler(message)
            except BaseException as error:
                self._raised(message, error)
            ended = clock()
            if alone:
                shared.handled += 1
            else:
                shared.count_handled()
            if counted:
                shared.count_ended()
            if message.verdict is not None:
                self._failed(assignment, item, message.verdict)
                return True
            if ended - begun >= delay_s:
                delay = [assignment.epoch, position, int((ended - begun) * 1000)]
                shared.session.delays.append(delay)
            if noting:
                total += item[3]
                assignment.seen = (position, total)
                note = ended - begun > SLOW_S
            assignment.done = position
            begun = ended
            if ended - acked_at > ACK_INTERVAL_S:
                acked_at = ended
                shared.settle_now.set()
        return True

    def _raised(self, message: Message, error: BaseException) -> None:
        """To raise is to nack, unless the handler had left a verdict of its own before."""
        reason = f"{type(error).__name__}: {error}"
        message.verdict = message.verdict or (None, False, reason)
        log.warning(
            "handler of %s failed on %r: %s", self._shared.subscriber, message, error,
            exc_info=log.isEnabledFor(logging.DEBUG),
        )  # fmt: skip

    def _note_started(self, assignment: Assignment, item: Item) -> None:
        history = self._shared.history
        assert history is not None
        history.started(
            assignment.publisher, assignment.partition, assignment.epoch, item[0], item[3], item[1]
        )

    def _failed(
        self, assignment: Assignment, item: Item, verdict: tuple[float | None, bool, str]
    ) -> None:
        """Close the assignment and leave the nack for the settler."""
        shared = self._shared
        position = item[0]
        delay_s, final, reason = verdict
        if shared.history is not None:
            shared.history.failed(assignment.epoch, position, item[3], item[1], reason[:500])
        with shared.changed:
            shared.session.failed(assignment)
            if not assignment.lost:
                shared.nacks.append((assignment.epoch, position, reason[:500], delay_s, final))
        shared.settle_now.set()

    def _still_ours(self, assignment: Assignment, position: int) -> bool:
        """Look properly: was the assignment closed, or may the lease have run out?"""
        shared = self._shared
        with shared.changed:
            while not shared.stopping.is_set():
                if not shared.session.may_start(assignment, position):
                    break
                if time.monotonic() <= shared.lease_until:
                    return True
                shared.check_now.set()
                shared.changed.wait(0.5)
            if not assignment.closed:
                # Stopping: the message was not started after all.
                assignment.started = assignment.done
            elif assignment.started == position and position > assignment.keep_upto:
                assignment.started = assignment.done
            return False
