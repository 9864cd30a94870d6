"""The demonstration: ``python -m simulations.demo``, or ``./run_demo.sh``, which sets itself up.

What lives here: the options, the folder, signals and exit codes. What happens is in ``story``,
what it means in ``check`` and ``report``, and for the second opinion in ``audit``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from broker.core.anomalies import UNKNOWN, VALID
from broker.errors import BrokerError
from simulations.demo import audit as demo_audit
from simulations.demo import report as demo_report
from simulations.demo import story
from simulations.demo.audit import Audit
from simulations.demo.screen import Screen
from simulations.demo.stage import Stage
from simulations.demo.wait import Failure

WRONG = 1
NOT_KNOWN = 2


class Interrupted(BaseException):
    """A signal asks for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(arguments: list[str] | None = None) -> int:
    """Run it; the exit code is 0 only if everything is as promised."""
    options = _options(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    screen = Screen()
    folder = Path(tempfile.mkdtemp(prefix="fairlead-demo-"))
    code = WRONG
    try:
        code = _run(folder, options, screen)
    except Interrupted as interrupted:
        code = 128 + interrupted.number
    finally:
        if options.keep or code in (WRONG, NOT_KNOWN):
            screen.step("kept", f"store, logs and histories are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _run(folder: Path, options: argparse.Namespace, screen: Screen) -> int:
    stage = Stage(folder, options.seed, screen)
    try:
        story.perform(stage)
    except (Failure, BrokerError) as error:
        screen.quiet()
        screen.step("FAILED", str(error))
        _write(options, screen, {"ok": False, "exit_code": WRONG, "failed": str(error)})
        return WRONG
    except Interrupted as interrupted:
        _tell_of_signal(screen, interrupted)
        raise
    finally:
        stage.close()
    report = demo_report.make(stage)
    demo_report.show(report, screen)
    screen.console.print()
    page = folder / "report.html"
    audit = None if options.no_audit else _audit(stage, page)
    code = exit_code(report.ok, audit)
    told = {**report.to_dict(), "ok": code == 0, "exit_code": code, "audit": audit and audit.told}
    _write(options, screen, told)
    _conclude(code, report, audit, screen)
    if audit is not None:
        _tell_of_page(page, options, screen, folder_stays=options.keep or code != 0)
    return code


def _audit(stage: Stage, page: Path) -> Audit:
    with stage.screen.part("audit"):
        try:
            audit = demo_audit.perform(stage.folder, page, stage.screen)
        except Interrupted as interrupted:
            _tell_of_signal(stage.screen, interrupted)
            raise
    demo_audit.show(audit, stage.screen)
    stage.screen.console.print()
    return demo_audit.require_histories(audit, len(stage.all_pumps), len(stage.workers))


def exit_code(checks_hold: bool, audit: Audit | None) -> int:
    """What is wrong weighs more than what is not known; an audit left out weighs nothing."""
    if not checks_hold:
        return WRONG
    if audit is None or audit.verdict == VALID:
        return 0
    return NOT_KNOWN if audit.verdict == UNKNOWN else WRONG


def _conclude(
    code: int, report: demo_report.Report, audit: Audit | None, screen: Screen
) -> None:
    screen.show_parts()
    whole = {0: "all is as promised", WRONG: "NOT as promised", NOT_KNOWN: "NOT proved"}[code]
    good = f"{sum(check.ok for check in report.checks)} of {len(report.checks)} checks hold"
    second = "left out (--no-audit)" if audit is None else audit.summary
    screen.step("verdict", f"{whole}: {good}; the audit: {second}")
    if audit is not None:
        screen.step("compared", f"by the audit: {audit.compared}")


def _tell_of_page(
    page: Path, options: argparse.Namespace, screen: Screen, folder_stays: bool
) -> None:
    """Leave the page where its reader will look for it, and say where that is."""
    if not page.exists():
        command = demo_audit.command(page.parent)
        screen.step("report", f"none was drawn; to audit what is kept once more: {command}")
        return
    if options.report is not None:
        page = Path(shutil.copyfile(page, options.report))
    elif not folder_stays:
        descriptor, name = tempfile.mkstemp(prefix="fairlead-report-", suffix=".html")
        os.close(descriptor)
        page = Path(shutil.copyfile(page, name))
    screen.step("report", f"{page.absolute()} (open it in a browser)")


def _tell_of_signal(screen: Screen, interrupted: Interrupted) -> None:
    screen.quiet()
    name = signal.Signals(interrupted.number).name
    screen.step("stop", f"{name}: ending all processes; once more ends them at once")


def _write(options: argparse.Namespace, screen: Screen, told: dict[str, Any]) -> None:
    if options.json is not None:
        parts = {name: round(seconds, 1) for name, seconds in screen.parts.items()}
        whole = {
            "seed": options.seed, "seconds": round(screen.seconds, 1), "parts": parts, **told
        }  # fmt: skip
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run_demo.sh",
        description="Starts a broker, publishes to two channels with two subscriber processes "
        "each, crashes and slows things while messages flow, and proves twice that every promise "
        "was kept: from what the subscribers really received, and by an audit of the journal and "
        "of all clients' histories with Spark.",
        epilog="Exit code: 0 all is as promised and the audit says valid; 1 something is not, or "
        "a step failed; 2 the audit could not tell (no Java, for one), or wrong usage; 128 + the "
        "signal's number when interrupted.",
    )
    parser.add_argument("--seed", type=int, default=1, help="what is published (default: 1)")
    parser.add_argument(
        "--keep", action="store_true",
        help="keep the folder with store, logs, histories and report",
    )  # fmt: skip
    parser.add_argument(
        "--report", type=Path, metavar="FILE.html",
        help="where the audit's page goes (default: with --keep into the folder, else a file in "
        "the system's temporary folder)",
    )  # fmt: skip
    parser.add_argument("--no-audit", action="store_true", help="leave the audit out: it is faster")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write figures, checks and the audit there"
    )
    options = parser.parse_args(arguments)
    if options.report is not None and options.no_audit:
        parser.error("--report is drawn by the audit: leave --no-audit out")
    for path in (options.report, options.json):
        # Now, not when all is done: nobody wants to hear of a mistyped folder a minute later.
        if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
            parser.error(f"{path} cannot be written: name a file in a folder where you may write")
    return options


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)


