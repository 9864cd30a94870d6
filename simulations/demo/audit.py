"""The last word of the demonstration: ``fairlead audit`` over the store that was just written, with
what publishers and subscribers wrote of themselves.

It is a process of its own, as anybody could start it, and it knows nothing of ``check``: the
two judge the same performance from different books. Its answer counts only as it is told in JSON:
an audit that breaks down, or ends without an answer, has found nothing and proved nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from broker.core.anomalies import INVALID, UNKNOWN, VALID
from simulations.demo.cast import CLIENT_HISTORIES, STORE, Child, end_all
from simulations.demo.screen import Screen
from simulations.demo.wait import Failure, wait_until

DEADLINE_S = 300.0
MEMORY = "1g"  # a few thousand records; a small machine has no more to give
VERDICTS = {0: VALID, 1: INVALID, 2: UNKNOWN}


@dataclass
class Audit:
    """What came of it; ``told`` is the whole answer."""

    verdict: str
    reasons: list[str] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def checks(self) -> list[dict[str, Any]]:
        """Each anomaly that was looked for: compared, found, and why not if it was not."""
        found: list[dict[str, Any]] = self.told.get("checks", [])
        return found

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        if self.verdict == UNKNOWN:
            return f"unknown: {'; '.join(self.reasons) or 'nothing was compared'}"
        found = sum(check["violations"] for check in self.checks)
        looked = sum(bool(check["compared"]) for check in self.checks)
        return f"{self.verdict}: {looked} kinds of anomaly looked for, {found:,} found"

    @property
    def compared(self) -> str:
        """How much it is founded on."""
        if not self.told.get("records"):
            return "nothing"
        heard = self.told["histories_compared"]
        return (
            f"{self.told['records']:,} records, {self.told['messages']:,} messages, "
            f"{self.told['partitions']} partitions, {heard['lines']:,} lines of the histories of "
            f"{heard['publishers']} publishers and {heard['subscribers']} subscribers"
        )


def command(folder: Path) -> str:
    """What to type to audit a folder that was kept."""
    return (
        f"fairlead audit {folder / STORE} --histories {folder / CLIENT_HISTORIES} --drained "
        "--report FILE.html"
    )


def perform(folder: Path, report: Path, screen: Screen) -> Audit:
    """Audit what is in the folder, and have the page drawn.

    Everything has ended by now, so what is neither settled nor parked counts as unseen
    (``--drained``).
    """
    answer = folder / "audit.json"
    child = Child(
        "audit", folder, "simulations.demo.leash", "fairlead", "audit", folder / STORE,
        "--histories", folder / CLIENT_HISTORIES, "--drained", "--json", "--memory", MEMORY,
        "--report", report, answer=answer,
    )  # fmt: skip
    steps = _Steps(child.log, screen)
    try:
        wait_until(
            lambda: not child.alive, "the audit has ended", child.tail, DEADLINE_S, steps.show
        )
    except Failure as failure:
        return Audit(UNKNOWN, [str(failure)])
    finally:
        screen.quiet()
        end_all([child])
    steps.show()
    return read_answer(answer.read_text(errors="replace"), child.process.returncode, child.tail())


def read_answer(text: str, code: int, log: str) -> Audit:
    """The answer of an audit that has ended; ``log`` is told when there is none.

    A process that fails by accident exits with 1 as well, so the code alone is no verdict.
    """
    try:
        told = json.loads(text)
        verdict, reasons = told["verdict"], told["reasons"]
    except (ValueError, LookupError, TypeError):
        return Audit(UNKNOWN, [f"the audit gave no answer (exit code {code}); its log ends: {log}"])
    if VERDICTS.get(code) != verdict:
        return Audit(UNKNOWN, [f"the audit said {verdict} and exited with {code}"])
    return Audit(verdict, reasons, told)


def require_histories(audit: Audit, publishers: int, subscribers: int) -> Audit:
    """What was valid is unknown if not every client's history was heard."""
    heard = audit.told.get("histories_compared", {})
    found = (heard.get("publishers"), heard.get("subscribers"))
    if audit.verdict != VALID or found == (publishers, subscribers):
        return audit
    reason = (
        f"histories of {found[0]} publishers and {found[1]} subscribers were compared, and there "
        f"were {publishers} and {subscribers}"
    )
    return Audit(UNKNOWN, [*audit.reasons, reason], audit.told)


class _Steps:
    """What the audit says of its progress, line by line as it comes into its log."""

    def __init__(self, log: Path, screen: Screen) -> None:
        self._log = log
        self._screen = screen
        self._shown = 0
        self._last = "starting"

    def show(self) -> None:
        """Show what is new."""
        lines = self._log.read_text(errors="replace").split("\n")[:-1]
        for line in lines[self._shown :]:
            stamp, bracket, text = line.partition("] ")
            if bracket and stamp.startswith("["):  # other lines are told only if it fails
                self._last = text.removesuffix(" ...")
                self._screen.step("audit", self._last)
        self._shown = len(lines)
        self._screen.progress("the audit", lambda: self._last)


# How it is shown.


def show(audit: Audit, screen: Screen) -> None:
    """Print what was looked for, and what was found."""
    if not audit.checks:
        return
    table = Table(
        title="audit of journal and histories, by Spark", title_justify="left",
        title_style="bold", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False,
    )  # fmt: skip
    table.add_column("")
    table.add_column("anomaly", overflow="fold")
    table.add_column("compared", justify="right")
    table.add_column("found", justify="right")
    for check in audit.checks:
        mark = screen.mark(not check["violations"]) if check["compared"] else Text("-")
        name = Text(check["name"])
        if check["skipped"]:
            name.append(f" (not checked: {check['skipped']})", style="dim")
        table.add_row(mark, name, f"{check['compared']:,}", f"{check['violations']:,}")
    screen.console.print()
    screen.console.print(table)
    for check in audit.checks:
        for item in check["offenders"]:
            text = f"{check['name']}: {item['channel']}: {item['detail']}"
            screen.console.print(Text(text, style="red"), soft_wrap=True)
