"""Many seeds on all cores, and what came of them. A chunk of seeds is one task of one process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Callable, Iterator

from simulations.world.mutants import applied
from simulations.world.run import Result
from simulations.world.seeds import simulate

CHUNK = 25


@dataclass(slots=True)
class Tally:
    """The sum of runs."""

    seeds: int = 0
    simulated_s: float = 0.0
    busy_s: float = 0.0  # of all processes together
    wall_s: float = 0.0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    records: int = 0
    lines: int = 0
    accepted: int = 0
    handled: int = 0
    failures: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        """One more run."""
        self.seeds += 1
        self.simulated_s += result.simulated_s
        self.events += result.events
        self.faults += result.faults
        self.records += result.records
        self.lines += result.lines
        self.accepted += result.accepted
        self.handled += result.handled
        if not result.ok:
            self.failures.append(result)

    def merge(self, other: Tally) -> None:
        """The runs of a chunk."""
        for name in (
            "seeds", "simulated_s", "busy_s", "events", "records", "lines", "accepted", "handled"
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults
        self.failures += other.failures


def run_chunk(seeds: list[int], profile: str, mutant: str | None) -> Tally:
    """Some seeds, in this process. The busy time is this process's own, not the clock's."""
    tally = Tally()
    began = time.process_time()
    with applied(mutant):
        for seed in seeds:
            tally.add(simulate(seed, profile))
    tally.busy_s = time.process_time() - began
    return tally


def run_seeds(
    seeds: Iterator[int],
    profile: str = "standard",
    *,
    mutant: str | None = None,
    jobs: int | None = None,
    deadline_s: float | None = None,
    failures_max: int = 20,
    progress: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Run seeds until there are none left, the time is over, or too many have failed."""
    jobs = jobs or os.cpu_count() or 1
    began = time.monotonic()
    total = Tally()
    if jobs == 1:
        for chunk in _chunks(seeds):
            _take(total, run_chunk(chunk, profile, mutant), began, progress)
            if _over(total, began, deadline_s, failures_max):
                break
        return total
    # A fresh interpreter for each: nothing of this one's state may reach a run.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent)
    try:
        chunks = _chunks(seeds)
        waiting: set[Future[Tally]] = set()
        over = False
        while True:
            while not over and len(waiting) < jobs * 2 and (chunk := next(chunks, [])):
                waiting.add(pool.submit(run_chunk, chunk, profile, mutant))
            if not waiting:
                return total
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                _take(total, future.result(), began, progress)
            if not over and _over(total, began, deadline_s, failures_max):
                over = True
                waiting = {future for future in waiting if not future.cancel()}
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """In a process of the pool: Ctrl-C is for the parent, and its end, however it came, is ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, name="leash", daemon=True).start()


def _take(
    total: Tally, chunk: Tally, began: float, progress: Callable[[Tally], None]
) -> None:
    total.merge(chunk)
    total.wall_s = time.monotonic() - began
    progress(total)


def _over(total: Tally, began: float, deadline_s: float | None, failures_max: int) -> bool:
    late = deadline_s is not None and time.monotonic() - began > deadline_s
    return late or len(total.failures) >= failures_max


def _chunks(seeds: Iterator[int]) -> Iterator[list[int]]:
    chunk: list[int] = []
    for seed in seeds:
        chunk.append(seed)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
