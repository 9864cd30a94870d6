"""GlobalQueue: the partitions that have work and no owner, by urgency, then by age.

One level per priority in use, in a SortedDict; in a level the lines stand in the order in which
they became ready. An OrderedDict gives insertion, removal from anywhere and a walk from the
oldest, each in constant time, which a sorted list of all lines would not.

Ageing: a line ranks by level + waited / ageing_ms. In one level the oldest ranks first, so a walk
over all lines in rank order is a merge of the levels, and no line has to be moved as time passes.
Lines that must wait for a back-off stand apart, sorted by the time when they are due; and so do
lines whose next message is on trial, since each of those needs a subscriber of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import merge
from typing import Iterator

from sortedcontainers import SortedDict, SortedKeyList

from broker.core.partition import Line


def _due(line: Line) -> tuple[int, int]:
    return (line.not_before_ms, line.epoch)


class GlobalQueue:
    """The ready lines of one subscription.

    >>> queue = GlobalQueue(ageing_ms=1000)
    >>> len(queue), list(queue.ranked(0))
    (0, [])
    """

    __slots__ = ("ageing_ms", "_levels", "_count", "_delayed", "_waiting", "_trials")

    def __init__(self, ageing_ms: int) -> None:
        self.ageing_ms = ageing_ms
        self._levels: SortedDict[int, OrderedDict[Line, None]] = SortedDict()  # by -priority
        self._count = 0  # lines in the levels; each knows its level itself
        self._delayed: SortedKeyList[Line] = SortedKeyList(key=_due)
        self._waiting: set[Line] = set()  # the members of _delayed
        self._trials: dict[Line, None] = {}

    def __len__(self) -> int:
        return self._count + len(self._waiting) + len(self._trials)

    def __contains__(self, line: Line) -> bool:
        return line.queued_level >= 0 or line in self._waiting or line in self._trials

    def add(self, line: Line, now_ms: int) -> None:
        """Put a line in, or move it to the level that its urgency has reached by now."""
        if line.trial:
            self._trials[line] = None
            return
        if line in self._waiting:
            return
        if line.not_before_ms > now_ms:
            self._delayed.add(line)
            self._waiting.add(line)
            return
        before = line.queued_level
        if before < 0:
            line.since_ms = now_ms
        elif before == line.level:
            return
        else:
            self._remove_from_level(line)
        members = self._levels.get(-line.level)
        if members is None:
            members = self._levels[-line.level] = OrderedDict()
        members[line] = None
        line.queued_level = line.level
        self._count += 1

    def discard(self, line: Line) -> None:
        """Take a line out, wherever it stands."""
        if line.queued_level >= 0:
            self._remove_from_level(line)
        elif line in self._waiting:
            self._delayed.remove(line)
            self._waiting.remove(line)
        else:
            self._trials.pop(line, None)

    def discard_all(self, lines: list[Line]) -> None:
        """:meth:`discard` for many lines at once: each dispatch takes out all that it gives."""
        levels = self._levels
        for line in lines:
            level = line.queued_level
            if level < 0:
                self.discard(line)
                continue
            members = levels[-level]
            del members[line]
            if not members:
                del levels[-level]
            line.queued_level = -1
            self._count -= 1

    def _remove_from_level(self, line: Line) -> None:
        level = line.queued_level
        members = self._levels[-level]
        del members[line]
        if not members:
            del self._levels[-level]
        line.queued_level = -1
        self._count -= 1

    def clear(self) -> None:
        """Forget everything: the queue has crashed."""
        for members in self._levels.values():
            for line in members:
                line.queued_level = -1
        self._levels.clear()
        self._count = 0
        self._delayed.clear()
        self._waiting.clear()
        self._trials.clear()

    def ranked(self, now_ms: int) -> Iterator[Line]:
        """All lines that may be given out at ``now_ms``, the most urgent first. Changes nothing.

        Without those on trial; see :meth:`next_trial`.
        """
        if self._waiting and self._delayed[0].not_before_ms <= now_ms:
            # Rare, and they have waited for their back-off already: they go first.
            for line in self._delayed:
                if line.not_before_ms > now_ms:
                    break
                yield line
        if len(self._levels) == 1:
            yield from self._levels.peekitem(0)[1]
        elif self._levels:
            yield from self._merged(now_ms)

    def _merged(self, now_ms: int) -> Iterator[Line]:
        ageing = self.ageing_ms

        def rank(line: Line) -> tuple[float, int]:
            return (-(line.level + (now_ms - line.since_ms) / ageing), line.since_ms)

        # Moving a line up keeps its age, so a level is only almost in order of age; close enough
        # for a merge, which then ranks such a line by the older neighbour in front of it.
        yield from merge(*self._levels.values(), key=rank)

    def next_trial(self) -> Line | None:
        """The line that has waited longest to be tried alone."""
        return next(iter(self._trials), None)

    def trials(self) -> list[Line]:
        """All lines that wait to be tried alone."""
        return list(self._trials)

    def bound_delays(self, latest_ms: int) -> None:
        """Shorten back-offs that end after ``latest_ms``, as after a jump of the clock."""
        for line in [item for item in self._delayed if item.not_before_ms > latest_ms]:
            self._delayed.remove(line)
            line.not_before_ms = latest_ms
            self._delayed.add(line)

    def level_max(self) -> int:
        """The highest level with a ready line; -1 when nothing is ready."""
        return -self._levels.peekitem(0)[0] if self._levels else -1

    def rank_max(self, now_ms: int) -> float:
        """The rank of the ready line that ranks first, its age included; -1 when none is ready."""
        ranks = (
            -key + (now_ms - next(iter(members)).since_ms) / self.ageing_ms
            for key, members in self._levels.items()
        )
        return max(ranks, default=-1.0)

    def next_due_ms(self) -> int | None:
        """When the next back-off ends."""
        return self._delayed[0].not_before_ms if self._waiting else None
