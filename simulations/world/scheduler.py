"""Time, processes and tasks of a simulated world. Everything happens in an order given by the seed.

An event is a call at a virtual time, on behalf of a process. Events of a dead process do not
happen; those of a frozen one wait until it is thawed, as with SIGSTOP. What is a thread in a real
process is a task here: a generator that yields what it waits for.

- ``yield 5_000``: sleep so many microseconds.
- ``value = yield pending``: wait for a ``Pending``; its error is raised where it was waited for.
- ``heard = yield signal.wait(timeout_us)``: wait for a ``Signal``; False when the time is over.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, Callable, Generator, Iterable

from broker.errors import BrokerError

#: What a task is made of.
Steps = Generator[Any, Any, Any]
#: Told of the end of a task: its value, or the error that ended it.
Ended = Callable[[Any, "BrokerError | None"], None]

SECOND_US = 1_000_000
MS_US = 1_000


class Process:
    """One simulated operating system process. Dead for good, or frozen for a while."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.frozen = False
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.serving: dict[Any, None] = {}  # calls that were received and not answered

    def __repr__(self) -> str:
        return f"<{self.name}{' dead' if self.dead else ''}{' frozen' if self.frozen else ''}>"


class World:
    """The virtual clock and the heap of what is to happen."""

    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0
        self.wall_offset_us = 1_700_000_000 * SECOND_US  # what a jump of the wall clock moves
        self.trace: Callable[[str, str], None] | None = None
        self._heap: list[tuple[int, int, Process, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._resort: list[Process] = []

    def note(self, who: str, text: str) -> None:
        """A line for the trace, if there is one."""
        if self.trace is not None:
            self.trace(who, text)

    def wall_us(self) -> int:
        """The wall clock, which may jump."""
        return self.now_us + self.wall_offset_us

    def at(self, owner: Process, delay_us: int, act: Callable[..., None], *args: Any) -> None:
        """Let ``act`` happen later on behalf of ``owner``."""
        self._number += 1
        heappush(self._heap, (self.now_us + delay_us, self._number, owner, act, args))

    def spawn(self, owner: Process, steps: Steps, ended: Ended | None = None) -> None:
        """Start a task, at once."""
        Task(self, owner, steps, ended).resume(None)

    def step(self) -> bool:
        """Let the next event happen; False when there is none."""
        if not self._heap:
            return False
        when, _, owner, act, args = heappop(self._heap)
        self.now_us = when
        if owner.dead:
            return True
        if owner.frozen:
            owner.backlog.append((act, args))
            return True
        self.events += 1
        act(*args)
        return True

    def freeze(self, process: Process) -> None:
        """Stop a process where it stands; the world goes on."""
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """Let a frozen process go on: what was due meanwhile happens now, in its order."""
        process.frozen = False
        backlog, process.backlog = process.backlog, []
        for act, args in backlog:
            self.at(process, 0, act, *args)

    def kill(self, process: Process) -> Iterable[Any]:
        """End a process at once; returns the calls that it leaves without an answer."""
        process.dead = True
        process.backlog.clear()
        left, process.serving = process.serving, {}
        return left


class Task:
    """One thread of a process."""

    __slots__ = ("_world", "_owner", "_steps", "_ended")

    def __init__(self, world: World, owner: Process, steps: Steps, ended: Ended | None) -> None:
        self._world = world
        self._owner = owner
        self._steps = steps
        self._ended = ended

    def resume(self, value: Any = None, error: BrokerError | None = None) -> None:
        """Go on with what was waited for, up to the next wait."""
        if self._owner.dead:
            return
        try:
            while True:
                if error is None:
                    wanted = self._steps.send(value)
                else:
                    wanted = self._steps.throw(error)
                if type(wanted) is int:
                    self._world.at(self._owner, wanted, self.resume)
                    return
                if not wanted.done:
                    wanted.task = self
                    return
                value, error = wanted.value, wanted.error
        except StopIteration as stop:
            if self._ended is not None:
                self._ended(stop.value, None)
        except BrokerError as caught:
            if self._ended is None:
                raise
            self._ended(None, caught)


class Pending:
    """What one task waits for, and somebody else completes."""

    __slots__ = ("done", "value", "error", "task")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: BrokerError | None = None
        self.task: Task | None = None

    def complete(self, value: Any = None, error: BrokerError | None = None) -> None:
        """It is there, or failed. Only the first time counts."""
        if self.done:
            return
        self.done, self.value, self.error = True, value, error
        if self.task is not None:
            self.task.resume(value, error)


class Signal:
    """Something that one task of a process tells another: set until it is cleared."""

    def __init__(self, world: World, owner: Process) -> None:
        self._world = world
        self._owner = owner
        self._set = False
        self._waiting: list[Pending] = []

    def set(self) -> None:
        """Wake who waits; not at once, since whoever sets it is in the middle of something."""
        self._set = True
        waiting, self._waiting = self._waiting, []
        for pending in waiting:
            self._world.at(self._owner, 0, pending.complete, True)

    def clear(self) -> None:
        """Forget that it was set."""
        self._set = False

    def wait(self, timeout_us: int | None = None) -> Pending:
        """To be yielded: True when it is set, False when the time is over before."""
        pending = Pending()
        if self._set:
            pending.complete(True)
            return pending
        self._waiting.append(pending)
        if timeout_us is not None:
            self._world.at(self._owner, timeout_us, self._time_out, pending)
        return pending

    def _time_out(self, pending: Pending) -> None:
        if pending in self._waiting:
            self._waiting.remove(pending)
            pending.complete(False)
