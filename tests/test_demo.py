"""The demonstration keeps its word, leaves nothing running, and its judge can find every fault."""

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

from simulations.demo_check import KINDS, Told, figures, find_anomalies
from simulations.demo_history import Given, History, HistoryFile, Recall, Run
from tests.processes import ROOT, environment, poll

DEADLINE_S = 100.0


# The whole of it, in processes.


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts demonstrations whose temporary folders are in ``tmp_path``; ends what is left."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*args: object) -> subprocess.Popen[str]:
        with open(tmp_path / "out.txt", "w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "simulations.demo", *map(str, args)],
                cwd=ROOT, env=environment(TMPDIR=str(tmp_path)), stdout=out,
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


def test_everything_is_as_promised(start: Any, tmp_path: Path) -> None:
    """Exit code 0, consistent figures, every check with what it expected, nothing left behind."""
    process = start("--json", tmp_path / "told.json", "--seed", 3)
    assert process.wait(DEADLINE_S) == 0, shown(tmp_path)
    told = json.loads((tmp_path / "told.json").read_text())
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
    assert not list(tmp_path.glob("fairlead-demo-*"))


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
