"""``fairlead simulate``: run seeds of the deterministic simulator, one or many, and show failures.

Nothing here decides what a run is: that is ``simulations.world``. No broker is needed or asked.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Iterator

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fairlead.options import JsonOption, option
from fairlead.output import line, note, show_json, stderr_console
from fairlead.problems import EXIT_FAILED, UsageProblem
from simulations.world import ledger
from simulations.world.campaign import Tally, run_seeds
from simulations.world.mutants import MUTANTS, applied
from simulations.world.profile import PROFILES
from simulations.world.run import Result
from simulations.world.seeds import plan_of, simulate
from simulations.world.shrink import shrink

TRACE_LINES = 60
SHOWN_MAX = 5
LEDGER = "simulation-ledger.md"  # of a campaign, in the current directory

SeedsOption = Annotated[
    int | None, option("--seeds", min=1, metavar="N", help="How many seeds to run; 100 without it.")
]
SeedOption = Annotated[
    int | None,
    option("--seed", min=0, metavar="S", help="Run this seed alone, and say what was drawn."),
]
FirstOption = Annotated[
    int, option("--first", min=0, metavar="S", help="The first of the seeds.")
]
ProfileOption = Annotated[
    str, option("--profile", metavar="NAME", help=f"What is drawn: {', '.join(PROFILES)}.")
]
OnlyOption = Annotated[
    str | None,
    option("--only", metavar="N,N", help="With --seed: only these of its faults; 0 for none."),
]
HoursOption = Annotated[
    float | None,
    option("--hours", min=0.0, metavar="H", help="A campaign: seed after seed for so long."),
]
JobsOption = Annotated[
    int | None,
    option("--jobs", min=1, metavar="N", help="Processes; without it one for each core."),
]
LedgerOption = Annotated[
    Path | None,
    option(
        "--ledger", metavar="FILE.md",
        help=f"Write the figures there. A campaign (--hours) without it writes {LEDGER}.",
    ),
]  # fmt: skip
MutantOption = Annotated[
    str | None,
    option(
        "--mutant", metavar="NAME",
        help="Switch one bug on, to see it found; 'list' shows them.",
    ),
]  # fmt: skip
TraceOption = Annotated[bool, option("--trace", help="With --seed: show everything that happened.")]


def run_simulation(
    seeds: SeedsOption = None,
    seed: SeedOption = None,
    first: FirstOption = 0,
    profile: ProfileOption = "standard",
    only: OnlyOption = None,
    hours: HoursOption = None,
    jobs: JobsOption = None,
    ledger_file: LedgerOption = None,
    mutant: MutantOption = None,
    trace: TraceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run the real core, outbox, session and journal in a world made of a seed, and break it.

    Calls are delayed, lost, repeated and reordered; processes crash and hang;
    the journal is slow and fails; the clock jumps. Nothing may ever be wrong;
    then the faults stop, and everything must come to an end.

    The same seed does exactly the same. Exit code 1 if a seed fails: a line
    shows how to see it again.
    """
    if mutant == "list":
        for item in MUTANTS.values():
            line(f"{item.name:32} {item.about}")
        return
    if mutant is not None and mutant not in MUTANTS:
        raise UsageProblem(f"there is no mutant {mutant!r}", "--mutant list shows them")
    if profile not in PROFILES:
        raise UsageProblem(f"there is no profile {profile!r}", f"there are {', '.join(PROFILES)}")
    if seed is not None:
        if seeds is not None or hours is not None:
            raise UsageProblem("--seed runs one seed", "leave --seeds and --hours out")
        _one(seed, profile, _numbers(only), mutant, trace, as_json)
        return
    if only is not None or trace:
        raise UsageProblem("--only and --trace are about one seed", "name it with --seed")
    _many(seeds, first, profile, hours, jobs, ledger_file, mutant, as_json)


def _numbers(only: str | None) -> set[int] | None:
    if only is None:
        return None
    try:
        return {int(item) for item in only.split(",")}
    except ValueError:
        what = f"--only {only} names no faults"
        raise UsageProblem(what, "give their numbers, as in 2,5") from None


# One seed.


def _one(
    seed: int, profile: str, only: set[int] | None, mutant: str | None, trace: bool, as_json: bool
) -> None:
    plan = plan_of(seed, profile)
    if not as_json:
        note(
            f"seed {seed}, profile {profile}: {plan.summary}, {plan.duration_us / 1e6:.0f} s "
            f"with {len(plan.faults)} faults, {plan.weather}"
        )
        for fault in plan.faults:
            if only is None or fault.number in only:
                note(f"  fault {fault.number:2}  {fault.at_us / 1e6:7.3f} s  {fault.kind}")
    with applied(mutant):
        result = shown = simulate(seed, profile, only=only, trace=True)
        if not result.ok and only is None:
            shown = _shrunk(result)
    if as_json:
        show_json(_facts(result))
    else:
        if trace and result.ok:
            _show_trace(result, len(result.trace))
        _show_one(result, shown, trace, mutant)
    if not result.ok:
        raise typer.Exit(EXIT_FAILED)


def _shrunk(result: Result) -> Result:
    with stderr_console().status("shrinking"):
        shown = shrink(result)
    return shown if shown.kind == result.kind else result


def _show_one(result: Result, shown: Result, trace: bool, mutant: str | None) -> None:
    if result.ok:
        line(
            f"passed: {result.simulated_s:.0f} simulated s, {result.events:,} events, "
            f"{result.accepted} messages accepted, {result.records} records and "
            f"{result.lines} lines compared, {sum(result.faults.values())} faults; journal "
            f"{result.digest[:16]}"
        )
        return
    _show_trace(shown, len(shown.trace) if trace else TRACE_LINES)
    _show_failure(shown, mutant)


def _show_trace(result: Result, count: int) -> None:
    left = len(result.trace) - count
    if left > 0:
        note(f"... {left} lines before; --trace shows all")
    for text in result.trace[-count:]:
        note(text)


def _show_failure(result: Result, mutant: str | None) -> None:
    bug = f" --mutant {mutant}" if mutant else ""
    line(f"FAILED in phase {result.phase} at {result.at_s:.3f} s: {result.kind}: {result.text}")
    line(f"again: {result.reproduce}{bug}")


# Many.


def _many(
    seeds: int | None,
    first: int,
    profile: str,
    hours: float | None,
    jobs: int | None,
    ledger_file: Path | None,
    mutant: str | None,
    as_json: bool,
) -> None:
    count = seeds if seeds is not None else (None if hours is not None else 100)
    wanted: Iterator[int] = itertools.count(first)
    if count is not None:
        wanted = iter(range(first, first + count))
    deadline_s = None if hours is None else hours * 3600
    if hours is not None and ledger_file is None:
        ledger_file = Path(LEDGER)
    with _bar(count, deadline_s) as show:
        tally = run_seeds(
            wanted, profile, mutant=mutant, jobs=jobs, deadline_s=deadline_s, progress=show
        )
    if ledger_file is not None:
        ledger.write(ledger_file, tally, profile, first, mutant)
        note(f"the ledger is in {ledger_file}")
    if as_json:
        show_json(_sums(tally, profile, first))
    else:
        _show_many(tally, mutant)
    if tally.failures:
        raise typer.Exit(EXIT_FAILED)


class _bar:
    """A progress bar on a terminal, and nothing into a pipe."""

    def __init__(self, count: int | None, deadline_s: float | None) -> None:
        self._total = float(count) if count is not None else deadline_s
        self._by_time = count is None
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(), console=stderr_console(), transient=True,
            disable=not stderr_console().is_terminal,
        )  # fmt: skip

    def __enter__(self) -> _bar:
        self._bars.start()
        self._task = self._bars.add_task("0 seeds", total=self._total)
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def __call__(self, tally: Tally) -> None:
        done = tally.wall_s if self._by_time else float(tally.seeds)
        failed = f", {len(tally.failures)} failed" if tally.failures else ""
        self._bars.update(self._task, completed=done, description=f"{tally.seeds} seeds{failed}")


def _show_many(tally: Tally, mutant: str | None) -> None:
    failures = sorted(tally.failures, key=lambda result: result.seed)
    if failures:
        with applied(mutant):
            shrunk = _shrunk(failures[0])
        _show_trace(shrunk, TRACE_LINES)
        failures[0] = shrunk
    for result in failures[:SHOWN_MAX]:
        _show_failure(result, mutant)
    if len(failures) > SHOWN_MAX:
        line(f"... and {len(failures) - SHOWN_MAX} more failures")
    speed = tally.simulated_s / tally.busy_s if tally.busy_s else 0.0
    verdict = f"FAILED: {len(tally.failures)} of" if tally.failures else "passed:"
    line(
        f"{verdict} {tally.seeds:,} seeds, {tally.simulated_s / 3600:.1f} simulated hours "
        f"({speed:,.0f} s per second of a core), {sum(tally.faults.values()):,} faults, "
        f"{tally.accepted:,} messages, {tally.records:,} records and {tally.lines:,} lines compared"
    )


def _facts(result: Result) -> dict[str, object]:
    return {
        "seed": result.seed, "profile": result.profile, "ok": result.ok, "kind": result.kind,
        "text": result.text, "phase": result.phase, "simulated_s": result.simulated_s,
        "events": result.events, "faults": dict(result.faults), "records": result.records,
        "lines": result.lines, "accepted": result.accepted, "handled": result.handled,
        "digest": result.digest, "reproduce": result.reproduce,
    }  # fmt: skip


def _sums(tally: Tally, profile: str, first: int) -> dict[str, object]:
    return {
        "profile": profile, "first": first, "seeds": tally.seeds, "ok": not tally.failures,
        "simulated_hours": tally.simulated_s / 3600, "busy_s": tally.busy_s,
        "wall_s": tally.wall_s, "events": tally.events, "faults": dict(tally.faults),
        "records": tally.records, "lines": tally.lines, "accepted": tally.accepted,
        "handled": tally.handled, "failures": [_facts(result) for result in tally.failures],
    }  # fmt: skip
