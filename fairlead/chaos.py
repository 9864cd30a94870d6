"""``fairlead chaos``: faults drawn from a seed over a cluster of processes under load, then judged.

Thin: what happens lives in ``simulations/chaos``, which is imported only when it is asked for. This
file reads the options, and hands on the exit code.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Annotated

import typer

from fairlead.options import option
from fairlead.problems import UsageProblem

MINUTES_MAX = 24 * 60.0
RATE_MAX = 2_000.0
SEED_MAX = 10**6
#: The judge holds a run in memory, about 8 KB for each message, and the audit has 1 GB and minutes.
MESSAGES_MAX = 250_000

MinutesOption = Annotated[
    float,
    option("--minutes", min=0.1, max=MINUTES_MAX, help="How long faults come."),
]
SeedOption = Annotated[
    int | None,
    option(
        "--seed", min=0, show_default=False,
        help="What the plan of faults is drawn from; without it one is drawn, and printed.",
    ),
]  # fmt: skip
RateOption = Annotated[
    float,
    option("--rate", min=1.0, max=RATE_MAX, help="Messages a second, of all publishers."),
]
NoAuditOption = Annotated[
    bool, option("--no-audit", help="Leave the audit with Spark out; the other judge stays.")
]
KeepOption = Annotated[
    bool, option("--keep", help="Keep the folder with store, logs, histories and plan.")
]
JsonFileOption = Annotated[
    Path | None,
    option(
        "--json", metavar="FILE", show_default=False,
        help="Also write plan, faults, figures and verdicts there.",
    ),
]  # fmt: skip
ReportOption = Annotated[
    Path | None,
    option(
        "--report", metavar="FILE.html", show_default=False, help="Where the audit's page goes."
    ),
]  # fmt: skip


def chaos(
    minutes: MinutesOption = 1.0,
    seed: SeedOption = None,
    rate: RateOption = 200.0,
    no_audit: NoAuditOption = False,
    keep: KeepOption = False,
    json: JsonFileOption = None,
    report: ReportOption = None,
) -> None:
    """Start a cluster, let faults loose on it while messages flow, and prove what came of it.

    Everything is its own: broker, store, publishers, subscribers, on loopback, in a temporary
    folder. The exit code is the verdict: 0 valid; 1 invalid, not drained, or too few faults came
    about; 2 the audit cannot tell (no Java, for one), or wrong usage.
    """
    count = round(minutes * 60 * rate)
    if count > MESSAGES_MAX:
        raise UsageProblem(
            f"--minutes {minutes:g} at --rate {rate:g} may become {count:,} messages, and a run "
            f"is judged in memory: {MESSAGES_MAX:,} are the limit",
            "give fewer minutes, or a lower rate",
        )
    if report is not None and no_audit:
        raise UsageProblem("--report is drawn by the audit", "leave --no-audit out")
    for path in (json, report):
        # Now, not when all is done: nobody wants to hear of a mistyped folder ten minutes later.
        if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
            raise UsageProblem(
                f"{path} cannot be written", "name a file in a folder where you may write"
            )
    from simulations.chaos.command import Options, main

    chosen = random.SystemRandom().randrange(SEED_MAX) if seed is None else seed
    raise typer.Exit(main(Options(minutes, chosen, rate, not no_audit, keep, json, report)))
