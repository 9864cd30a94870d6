"""From a failing seed to fewer faults that fail in the same way.

The plan's faults are left out in halves, then in smaller and smaller parts, as long as what is left
still goes wrong in the same way. What is published, and every fault that stays, is unchanged.
"""

from __future__ import annotations

from typing import Callable

from simulations.world.run import Result
from simulations.world.seeds import plan_of, simulate

RUNS_MAX = 120

Progress = Callable[[int, int], None]


def shrink(failed: Result, progress: Progress = lambda runs, left: None) -> Result:
    """The run with the fewest faults found that goes wrong as ``failed`` did, with its trace."""
    plan = plan_of(failed.seed, failed.profile)
    kept = failed.only or [fault.number for fault in plan.faults]
    runs = 0
    parts = 2
    while kept and runs < RUNS_MAX:
        size = max(1, len(kept) // parts)
        for start in range(0, len(kept), size):
            fewer = kept[:start] + kept[start + size :]
            runs += 1
            progress(runs, len(kept))
            if _same(simulate(failed.seed, failed.profile, only=set(fewer)), failed):
                kept, parts = fewer, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), parts * 2)
    return simulate(failed.seed, failed.profile, only=set(kept), trace=True)


def _same(result: Result, failed: Result) -> bool:
    return result.kind == failed.kind
