"""The demonstration keeps its word, leaves nothing running, and its judge can find every fault.

Its exit code is the verdict of two judges: its own checks and the audit.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import pytest

from simulations.demo import audit as demo_audit
from simulations.demo.audit import Audit, read_answer, require_histories
from simulations.demo.check import KINDS, Told, figures, find_anomalies
from simulations.demo.command import exit_code
from simulations.demo.history import Given, History, HistoryFile, Recall, Run
from simulations.demo.screen import Screen
from tests.processes import ROOT, environment, poll

DEADLINE_S = 100.0
AUDIT_DEADLINE_S = 340.0  # Spark on a machine that is busy with other things


# The whole of it, in processes.


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts demonstrations whose temporary folders are in ``tmp_path``; ends what is left."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*args: object, **variables: str) -> subprocess.Popen[str]:
        with open(tmp_path / "out.txt", "w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "simulations.demo", *map(str, args)],
                cwd=ROOT, env=environment(TMPDIR=str(tmp_path), **variables), stdout=out,
                stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def shown(tmp_path: Path) -> str:
    return (tmp_path / "out.txt").read_text()


def children(tmp_path: Path) -> list[int]:
    """The pids of the subscribers, from the line that names them, and of their broker."""
    found = re.search(r"subscriber processes: (.*)", shown(tmp_path))
    if found is None:
        return []
    pids = [int(pid) for pid in re.findall(r"\((\d+)\)", found[1])]
    ready = next(tmp_path.glob("fairlead-demo-*/ready.json"))
    return [*pids, json.loads(ready.read_text())["pid"]]


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def descendants(pid: int) -> dict[int, str]:
    """The processes that a process has started, and theirs: pid and name."""
    found: dict[int, str] = {}
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,comm="], capture_output=True, text=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    parents = [pid]
    while parents:
        parent = str(parents.pop())
        mine = {int(row[0]): row[2] for row in rows if row[1] == parent}
        found |= mine
        parents += mine
    return found


@pytest.mark.timeout(AUDIT_DEADLINE_S + 40)
def test_everything_is_as_promised(start: Any, tmp_path: Path) -> None:
    """Exit code 0, consistent figures, every check with what it expected, nothing left behind."""
    page = tmp_path / "page.html"
    process = start("--json", tmp_path / "told.json", "--seed", 3, "--report", page)
    assert process.wait(AUDIT_DEADLINE_S) == 0, shown(tmp_path)
    told = json.loads((tmp_path / "told.json").read_text())
    check_own_checks(told)
    check_audit(told)
    assert not list(tmp_path.glob("fairlead-*"))
    assert "</html>" in page.read_text()
    *_, seconds, verdict, compared, report = shown(tmp_path).splitlines()
    assert re.search(r" seconds  start .*, audit \d+\.\d; together", seconds)
    assert " verdict  all is as promised: " in verdict and "the audit: valid: " in verdict
    assert "of 4 publishers and 4 subscribers" in compared
    assert str(page) in report


def check_audit(told: dict[str, Any]) -> None:
    """It was valid, and founded on the journal and the histories of everybody."""
    audit, channels = told["audit"], told["channels"].values()
    assert audit["verdict"] == "valid" and audit["drained"] and told["exit_code"] == 0
    assert {item["channel"]: item["pending"] for item in audit["channels"]} == {
        "orders": 0, "payments": 0
    }  # fmt: skip
    assert audit["messages"] >= sum(channel["published"] for channel in channels)
    heard = audit["histories_compared"]
    assert (heard["publishers"], heard["subscribers"]) == (4, 4)
    # The one that was killed could not close its history.
    assert heard["closed"] == 7 and heard["finished"] > 0 and heard["answered"] > 0
    assert set(told["parts"]) > {"crash", "slow", "queues", "audit"}


def check_own_checks(told: dict[str, Any]) -> None:
    """Consistent figures, and every check with what it expected."""
    assert told["ok"] and told["seed"] == 3 and set(told["channels"]) == {"orders", "payments"}
    assert all(check["ok"] for check in told["checks"]) and len(told["checks"]) > 10
    for channel in told["channels"].values():
        assert channel["published"] == channel["delivered"] >= 4_000
        assert channel["duplicates_dropped"] > 0 and channel["duplicates_handled"] == 0
        assert channel["parked"] == 0 and channel["in_order"] and channel["anomalies"] == []
        broker = channel["broker"]
        assert channel["published"] == broker["published (accepted)"]
        assert channel["redelivered"] == broker["redelivered"]
    orders, payments = told["channels"]["orders"], told["channels"]["payments"]
    assert orders["reassigned"]["slow"] > 0 and "crash" not in orders["reassigned"]
    assert payments["reassigned"]["crash"] > 10 and payments["redelivered"] > 10


def test_without_java_the_verdict_is_unknown(start: Any, tmp_path: Path) -> None:
    """Its own checks hold, and yet it exits with 2, says what is missing, and keeps the folder."""
    empty = tmp_path / "empty"
    empty.mkdir()
    process = start(PATH=str(empty), JAVA_HOME="")
    assert process.wait(DEADLINE_S) == 2, shown(tmp_path)
    assert re.search(
        r" verdict  NOT proved: (\d+) of \1 checks hold; the audit: unknown: Spark needs Java 17",
        shown(tmp_path),
    )
    (folder,) = tmp_path.glob("fairlead-demo-*")
    assert (folder / "fairlead.db").exists() and f"fairlead audit {folder}" in shown(tmp_path)


def test_the_audit_can_be_left_out_and_that_is_said(start: Any, tmp_path: Path) -> None:
    process = start("--no-audit", "--json", tmp_path / "told.json", PATH="", JAVA_HOME="")
    assert process.wait(DEADLINE_S) == 0, shown(tmp_path)
    assert shown(tmp_path).splitlines()[-1].endswith("the audit: left out (--no-audit)")
    assert json.loads((tmp_path / "told.json").read_text())["audit"] is None


@pytest.mark.parametrize(
    "arguments", [("--report", "no/such/folder/x.html"), ("--no-audit", "--report", "x.html")]
)
def test_a_report_that_cannot_be_is_refused_at_once(
    start: Any, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """Before anything is started."""
    assert start(*arguments).wait(30.0) == 2
    assert "error: " in shown(tmp_path) and not list(tmp_path.glob("fairlead-*"))


@pytest.mark.timeout(200)
def test_a_signal_ends_the_audit_too(start: Any, tmp_path: Path) -> None:
    """Its Java as well; the folder goes."""
    process = start()

    def audit() -> dict[int, str]:
        found = descendants(process.pid)
        return found if "java" in found.values() else {}

    pids = poll(audit, DEADLINE_S, "the audit's Java runs")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30.0) == 128 + signal.SIGTERM, shown(tmp_path)
    poll(lambda: not any(map(runs, pids)), 30.0, "the audit has ended")
    assert not list(tmp_path.glob("fairlead-*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(start: Any, tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C in the middle: no process and no folder is left."""
    process = start()
    pids = poll(lambda: children(tmp_path), 30.0, "the subscribers are up")
    assert len(pids) == 5 and any(map(runs, pids))
    process.send_signal(number)
    assert process.wait(30.0) == 128 + number, shown(tmp_path)
    assert not any(map(runs, pids))
    assert not list(tmp_path.glob("fairlead-demo-*"))


def test_children_do_not_outlive_a_killed_demonstration(start: Any, tmp_path: Path) -> None:
    """Not even a SIGKILL leaves orphans: each child notices the end of its standard input."""
    process = start()
    pids = poll(lambda: children(tmp_path), 30.0, "the subscribers are up")
    process.kill()
    process.wait()
    poll(lambda: not any(map(runs, pids)), 30.0, "all children have ended")


# Two judges, one exit code.


@pytest.mark.parametrize(
    ("own", "audit", "code"),
    [
        (True, "valid", 0),
        (True, None, 0),
        (True, "invalid", 1),
        (True, "unknown", 2),
        (False, "valid", 1),
        (False, "unknown", 1),
        (False, None, 1),
    ],
)
def test_the_exit_code_is_the_worse_of_both(own: bool, audit: str | None, code: int) -> None:
    """What is surely wrong weighs more than what is not known."""
    assert exit_code(own, None if audit is None else Audit(audit)) == code


def answer(verdict: str = "valid", **more: Any) -> str:
    heard = {"publishers": 4, "subscribers": 4}
    return json.dumps({"verdict": verdict, "reasons": [], "histories_compared": heard, **more})


def test_an_answer_is_taken_for_what_it_says() -> None:
    assert read_answer(answer(), 0, "").verdict == "valid"
    assert read_answer(answer("invalid"), 1, "").verdict == "invalid"
    found = read_answer(answer("unknown", reasons=["no Java"]), 2, "")
    assert (found.verdict, found.summary) == ("unknown", "unknown: no Java")


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 1), ("", 0), ("Traceback", 1), ("[]", 0), ("{}", 0), (answer()[:-9], 0), (answer(), 1),
     (answer("invalid"), 0), (answer(), -9)],
)  # fmt: skip
def test_an_audit_that_breaks_down_has_proved_nothing(text: str, code: int) -> None:
    """Not even that something is wrong: any Python that fails exits with 1."""
    found = read_answer(text, code, "the log")
    assert found.verdict == "unknown" and found.reasons


def test_valid_without_every_history_is_unknown() -> None:
    """The demonstration knows how many clients there were."""
    found = read_answer(answer(), 0, "")
    assert require_histories(found, 4, 4).verdict == "valid"
    assert require_histories(found, 4, 5).verdict == "unknown"
    assert require_histories(read_answer(answer("invalid"), 1, ""), 4, 5).verdict == "invalid"


def test_what_cannot_be_audited_is_unknown_with_the_reason(tmp_path: Path) -> None:
    """A real audit of a folder without a store."""
    found = demo_audit.perform(tmp_path, tmp_path / "report.html", Screen())
    assert found.verdict == "unknown" and "there is no store" in found.summary
    assert found.compared == "nothing"


# The judge, with made-up histories.


def run(sequence: int, start: float, finish: float | None, who: str = "a", **more: Any) -> Run:
    facts = {"attempt": 1, "epoch": 1, **more}
    return Run(who, "web", "p", sequence, facts.pop("attempt"), facts.pop("epoch"), start, finish,
               **facts)  # fmt: skip


def history(*handled: Run, who: str = "a", died_at: float | None = None) -> History:
    return History("orders", who, list(handled), died_at=died_at)


def accepted(count: int) -> set[tuple[str, str, int]]:
    return {("web", "p", sequence) for sequence in range(1, count + 1)}


GOOD = [run(1, 1.0, 1.1), run(2, 1.1, 1.2), run(3, 1.3, 1.4)]
CRASH = [run(1, 1.0, 1.1), run(2, 1.1, None)]
AFTER = [run(2, 2.0, 2.1, "b", attempt=2, epoch=2), run(3, 2.1, 2.2, "b", epoch=2)]


def kinds(*histories: History, count: int = 3) -> list[str]:
    return [anomaly.kind for anomaly in find_anomalies(accepted(count), histories)]


def test_the_judge_is_content_with_what_is_right() -> None:
    """One subscriber; two who take turns; one who dies inside a message."""
    assert kinds(history(*GOOD)) == []
    other = run(2, 1.1, 1.2, "b", epoch=2)
    assert kinds(history(GOOD[0], GOOD[2]._replace(epoch=3)), history(other, who="b")) == []
    assert kinds(history(*CRASH, died_at=1.5), history(*AFTER, who="b")) == []


@pytest.mark.parametrize(
    ("kind", "histories"),
    [
        ("lost", [history(*GOOD[:2])]),
        ("lost", [history(*GOOD[:2], run(3, 1.3, None), died_at=1.4)]),
        ("unexpected", [history(*GOOD, run(4, 1.5, 1.6))]),
        ("unexpected", [history(*GOOD[:2], run(3, 1.3, 1.4, copy=True))]),
        ("duplicate", [history(*GOOD, run(3, 1.5, 1.6, epoch=2))]),
        ("duplicate", [history(*GOOD), history(run(3, 1.5, 1.6, "b", epoch=2), who="b")]),
        ("out-of-order", [history(GOOD[0], run(3, 1.1, 1.2), run(2, 1.3, 1.4))]),
        ("overlap", [history(*GOOD[:2]), history(run(3, 1.15, 1.4, "b", epoch=2), who="b")]),
        # The same crash, but the other one began before the first one was dead.
        ("overlap", [history(*CRASH, died_at=2.05), history(*AFTER, who="b")]),
    ],
)  # fmt: skip
def test_the_judge_finds_each_fault(kind: str, histories: list[History]) -> None:
    """That one, and no other."""
    assert kinds(*histories) == [kind]
    assert kind in KINDS


def test_a_long_run_is_remembered_past_a_short_one() -> None:
    """The third began while the first was still running, although the second had ended."""
    assert kinds(history(run(1, 1.0, 9.0), run(2, 1.1, 1.2), run(3, 1.3, 1.4))) == [
        "overlap", "overlap"
    ]  # fmt: skip


def given(sequence: int, epoch: int, at: float, attempt: int = 1) -> dict[Any, Given]:
    message = ("web", "p", sequence)
    return {(message, epoch): Given(message, epoch, sequence, attempt, at)}


def test_what_is_given_back_is_counted_by_its_reason() -> None:
    """After three long delays it is slow; before, it makes room for somebody who joined."""
    slow = history(run(1, 1.0, 1.5), run(2, 1.5, 2.0), run(3, 2.0, 2.5))
    for sequence in range(1, 8):
        slow.given |= given(sequence, 1 if sequence < 6 else 2, 0.9)
    slow.recalls = {1: Recall(1, 3, 2.6), 2: Recall(2, 6, 1.2)}
    counted = figures(Told(accepted(3)), [slow], 0, 0.4, 3)
    assert counted.reassigned == {"join": 1, "slow": 2}
    assert (counted.published, counted.delivered, counted.in_order) == (3, 3, True)


def test_a_recall_that_comes_too_late_moves_nothing() -> None:
    """Who has settled an assignment and forgotten it answers with position 0."""
    done = history(*GOOD)
    done.given = given(1, 1, 0.9) | given(2, 1, 0.9) | given(3, 1, 0.9)
    done.recalls = {1: Recall(1, 0, 2.0)}
    assert figures(Told(accepted(3)), [done], 0, 0.4, 3).reassigned == {}
    assert done.unstarted == 0


def test_what_the_dead_had_is_counted_when_it_reaches_another() -> None:
    """Two of three had come to the dead one and come to the other, one of them as a retry."""
    dead, other = history(*CRASH, died_at=1.5), history(*AFTER, who="b")
    dead.given = given(1, 1, 0.9) | given(2, 1, 0.9) | given(3, 1, 0.9)
    other.given = given(2, 2, 1.9, attempt=2) | given(3, 2, 1.9)
    counted = figures(Told(accepted(3), 5, 5), [dead, other], 0, 0.4, 3)
    assert counted.reassigned == {"crash": 2} and counted.redelivered == 1
    assert counted.duplicates_dropped == 5 and counted.in_order


def test_a_history_file_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Half a line waits for its other half; the same delivery sent again counts once."""
    path = tmp_path / "a.history"
    file = HistoryFile(path, "orders", "a")
    assert file.read().runs == []
    facts = {"publisher": "web", "partition": "p", "sequence": 1, "attempt": 1, "epoch": 4}
    start = json.dumps({"event": "start", "at": 1.0, "copy": False, **facts})
    finish = json.dumps({"event": "finish", "at": 2.0, "copy": False, **facts})
    received = json.dumps({"event": "received", "at": 0.5, "runs": [[4, "web", "p", 1, 1, 3, 2]]})
    path.write_text(f"{received}\n{received}\n{start}\n{finish[:20]}")
    seen = file.read()
    assert (len(seen.given), len(seen.in_hand), seen.unstarted) == (3, 1, 2)
    assert [item.attempt for item in seen.given.values()] == [2, 1, 1]
    with open(path, "a") as more:
        more.write(finish[20:] + "\n")
    assert file.read().in_hand == [] and seen.runs[0].finish == 2.0
