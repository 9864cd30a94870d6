"""A whole chaos run: the folder, the cluster, the faults, the end of the load, the two judges.

What lives here: what must hold at the end of a run, apart from what the judges look for, and the
exit code. The options are read by ``fairlead/chaos.py``.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import tempfile
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

from broker.core.anomalies import INVALID, VALID
from broker.errors import BrokerError
from simulations.chaos import report
from simulations.chaos.cluster import Cluster
from simulations.chaos.director import Director
from simulations.chaos.figures import Figures, MessageId, count
from simulations.chaos.plan import Plan, draw
from simulations.demo import audit as demo_audit
from simulations.demo.audit import Audit
from simulations.demo.command import exit_code
from simulations.demo.screen import Screen
from simulations.demo.wait import Failure
from simulations.stage import proof
from simulations.stage.script import (
    CHANNEL,
    NOT_KNOWN,
    WRONG,
    Interrupted,
    Script,
    catch_signals,
    show_expectations,
)


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    minutes: float
    seed: int
    rate: float
    audit: bool = True
    keep: bool = False
    json: Path | None = None
    report: Path | None = None


@dataclass
class Outcome:
    """What came of a run."""

    plan: Plan
    director: Director | None = None
    failure: str = ""
    figures: Figures | None = None
    parked: set[MessageId] = field(default_factory=set)
    audit: Audit | None = None
    cluster_peak_mb: float = 0.0


def main(options: Options) -> int:
    """Run it. 0: both judges say valid; 1: one says invalid, or the run itself failed; 2: the audit
    cannot tell; 128 + the signal's number when interrupted."""
    catch_signals()
    screen = Screen()
    folder = Path(tempfile.mkdtemp(prefix="fairlead-chaos-"))
    script = Script(folder, options.seed, screen)
    outcome = Outcome(draw(options.seed, options.minutes * 60))
    (folder / "plan.json").write_text(json.dumps(outcome.plan.to_dict(), indent=1) + "\n")
    code = WRONG
    try:
        script.step(
            "plan", f"seed {options.seed}, {options.minutes:g} minutes: {len(outcome.plan.faults)} "
            f"faults; folder {folder}",
        )  # fmt: skip
        code = _run(script, outcome, options)
    except Interrupted as interrupted:
        code = 128 + interrupted.number
    finally:
        screen.quiet()
        if options.keep or code != 0:
            screen.step("kept", f"store, logs, histories and plan are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _run(script: Script, outcome: Outcome, options: Options) -> int:
    _perform(script, outcome, options.rate)
    _judge(script, outcome)
    if options.audit and not outcome.failure:
        outcome.audit = _audit(script)
    held = not outcome.failure and all(item.good for item in script.expectations)
    code = exit_code(held, outcome.audit)
    _write(script, outcome, options, code)
    _conclude(script, outcome, options, code)
    return code


# The run itself.


def _perform(script: Script, outcome: Outcome, rate: float) -> None:
    """Let it happen; everything has ended when this returns. What failed is in the outcome."""
    cluster: Cluster | None = None
    orderly = False
    try:
        with script.screen.part("start"):
            cluster = Cluster(script, rate)
        script.step("start", f"the cluster is up, {rate:g} messages a second")
        outcome.director = Director(cluster, outcome.plan)
        with script.screen.part("faults"):
            outcome.director.perform()
        with script.screen.part("drain"):
            _drain(script, cluster, outcome)
        orderly = True
    except (Failure, BrokerError) as error:
        outcome.failure = str(error)
    except Interrupted as interrupted:
        script.screen.quiet()
        name = signal.Signals(interrupted.number).name
        script.step("stop", f"{name}: ending all processes; once more ends them at once")
        raise
    except Exception as error:
        script.screen.quiet()
        traceback.print_exc()
        outcome.failure = f"{type(error).__name__}: {error}"
    finally:
        with script.screen.part("end"):
            _end(script, cluster, orderly)
        outcome.cluster_peak_mb = report.peak_mb(resource.RUSAGE_CHILDREN)


def _drain(script: Script, cluster: Cluster, outcome: Outcome) -> None:
    script.step("drain", "no more faults; no more load; waiting until nothing is owed")
    script.drained = False  # until it is
    cluster.drain()
    script.drained = True
    outcome.parked = {
        (row["publisher"], row["partition"], row.get("sequence", 0)) for row in cluster.parked()
    }


def _end(script: Script, cluster: Cluster | None, orderly: bool) -> None:
    try:
        if cluster is not None and not orderly:
            cluster.kill_clients()
    finally:
        script.close()


# What must hold.


def _judge(script: Script, outcome: Outcome) -> None:
    script.step("judge", "reading the journal and the histories")
    script.drained = script.drained and not outcome.failure
    with script.screen.part("judge"):
        journals = proof.prove(script)
        records = [record for _, record in journals[0].get(CHANNEL, [])] if journals else []
        outcome.figures = count(records, proof.read_histories(script.histories))
    _expect(script, outcome, outcome.figures)


def _expect(script: Script, outcome: Outcome, figures: Figures) -> None:
    planned = len(outcome.plan.faults)
    injected = 0 if outcome.director is None else sum(outcome.director.injected().values())
    script.expect_true(
        "faults brought about", f"at least half of {planned}", injected,
        planned > 0 and injected * 2 >= planned,
    )  # fmt: skip
    script.expect_true(
        "messages handled", "at least 1", figures.handled, figures.handled > 0
    )
    script.expect("nothing is owed at the end", True, script.drained)
    if script.drained:
        script.expect("parked, and no poison", 0, len(outcome.parked - figures.poison))
        script.expect("poison, and not parked", 0, len(figures.poison - outcome.parked))
        script.expect(
            "acknowledged and parked", figures.published, figures.acknowledged + figures.parked
        )


def _audit(script: Script) -> Audit:
    with script.screen.part("audit"):
        audit = demo_audit.perform(script.folder, script.folder / "report.html", script.screen)
    histories = len(list(script.histories.glob("*.jsonl")))
    publishers = len(list(script.histories.glob("publisher-*.jsonl")))
    return demo_audit.require_histories(audit, publishers, histories - publishers)


# How it is told.


def _conclude(script: Script, outcome: Outcome, options: Options, code: int) -> None:
    screen = script.screen
    if outcome.director is not None:
        report.show_faults(outcome.director, screen)
    if outcome.figures is not None:
        room = report.room_taken(script.folder, outcome.cluster_peak_mb)
        report.show_figures(outcome.figures, screen, room)
    show_expectations(script)
    if outcome.audit is not None:
        demo_audit.show(outcome.audit, screen)
        screen.console.print()
    screen.show_parts()
    if outcome.failure:
        screen.step("FAILED", outcome.failure)
    whole = {0: "all is as promised", WRONG: "NOT as promised", NOT_KNOWN: "NOT proved"}[code]
    screen.step("judge", judged(script))
    screen.step("audit", _audited(outcome, options))
    if outcome.audit is not None:
        screen.step("compared", f"by the audit: {outcome.audit.compared}")
        _leave_page(script, options)
    screen.step("verdict", f"{whole}: seed {options.seed}, {options.minutes:g} minutes")


def judged(script: Script) -> str:
    """The verdict of the checkers, and on how much it is founded."""
    found = [item for item in script.expectations if item.what == proof.ANOMALIES]
    bad = [item.observed for item in found if not item.good]
    if bad or not found:
        return f"{INVALID}: {'; '.join(bad) or 'the journal cannot be read'}"
    return f"{VALID}: anomalies: {found[0].observed}"


def _audited(outcome: Outcome, options: Options) -> str:
    if outcome.audit is not None:
        return outcome.audit.summary
    return "left out, the run failed before it" if options.audit else "left out (--no-audit)"


def _leave_page(script: Script, options: Options) -> None:
    page = script.folder / "report.html"
    if options.report is not None and page.exists():
        shutil.copyfile(page, options.report)
        script.step("report", f"{options.report.absolute()} (open it in a browser)")


def _write(script: Script, outcome: Outcome, options: Options, code: int) -> None:
    if options.json is None:
        return
    director, figures, audit = outcome.director, outcome.figures, outcome.audit
    whole = {
        "ok": code == 0, "exit_code": code, "failed": outcome.failure, "seed": options.seed,
        "minutes": options.minutes, "seconds": round(script.screen.seconds, 1),
        "parts": {name: round(value, 1) for name, value in script.screen.parts.items()},
        "plan": outcome.plan.to_dict()["faults"],
        "faults": [] if director is None else [report.to_dict(item) for item in director.done],
        "injected": {} if director is None else dict(director.injected()),
        "figures": None if figures is None else figures.to_dict(),
        "room_mb": report.room_taken(script.folder, outcome.cluster_peak_mb),
        "expectations": [asdict(item) for item in script.expectations],
        "judge": judged(script), "audit": audit and {"verdict": audit.verdict, **audit.told},
    }  # fmt: skip
    options.json.write_text(json.dumps(whole, indent=2) + "\n")
