"""Chaos: the same seed gives the same faults, a run ends as it should, and would say so if not.

The runs are real ones, as anybody would start them, only short; the audit with Spark is left out of
them (it has its own tests), except where it is to say that it cannot tell.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Iterator, NamedTuple

import pytest

from broker.core import records as r
from broker.core.message import PartitionKey
from broker.errors import BrokerUnavailable
from broker.remote.name_server import NameServer
from simulations.chaos import command, figures, plan
from simulations.chaos.actors import KILLS, RAISES
from simulations.chaos.director import Director
from simulations.chaos.faults import FAULTS, Missed
from simulations.demo.screen import Screen
from simulations.stage.gateway import Gateway
from simulations.stage.proxy import DOWN
from simulations.stage.script import Script
from tests.processes import HOST, ROOT, command_line, environment, free_port, poll, run_fairlead

DEADLINE_S = 90.0
SEEDS = range(60)


class Ran(NamedTuple):
    """How a run ended."""

    code: int
    out: str
    told: dict[str, Any]
    folder: Path


def run_chaos(folder: Path, *args: object, **variables: str) -> Ran:
    """A run to its end; its temporary folder is in ``folder``."""
    folder.mkdir()
    answer = folder.with_suffix(".json")
    done = subprocess.run(
        command_line("chaos", "--json", answer, *args), cwd=ROOT,
        env=environment(TMPDIR=str(folder), **variables), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    told = json.loads(answer.read_text()) if answer.exists() else {}
    return Ran(done.returncode, done.stdout, told, folder)


def running(folder: Path) -> list[int]:
    """The processes that have the name of a folder in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def unmet(told: dict[str, Any]) -> set[str]:
    """The expectations that were not met."""
    return {item["what"] for item in told["expectations"] if not item["good"]}


# The plan.


def test_same_seed_gives_the_same_plan_in_another_process() -> None:
    code = "from simulations.chaos import plan; print(plan.draw(4, 90.0))"
    plans = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment(PYTHONHASHSEED=seed),
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert plans == {str(plan.draw(4, 90.0))}


def test_other_seeds_give_other_plans() -> None:
    assert len({plan.draw(seed, 60.0).faults for seed in SEEDS}) == len(SEEDS)


def test_every_kind_comes_in_short_plans_of_many_seeds_and_in_every_long_plan() -> None:
    short = Counter(
        fault.kind for seed in SEEDS for fault in plan.draw(seed, 18.0).faults
    )
    assert set(short) == set(plan.KINDS)
    for seed in SEEDS:
        long = Counter(fault.kind for fault in plan.draw(seed, 600.0).faults)
        assert min(long[kind] for kind in plan.KINDS) >= 10, long


def test_every_target_of_every_kind_is_hit() -> None:
    hit = {(f.kind, f.target) for seed in SEEDS for f in plan.draw(seed, 600.0).faults}
    kinds = plan.KINDS.items()
    assert hit == {(name, target) for name, kind in kinds for target in kind.targets}


@pytest.mark.parametrize("seconds", [6.0, 18.0, 600.0])
def test_faults_come_in_time_and_never_two_at_one_place(seconds: float) -> None:
    for seed in SEEDS:
        faults = plan.draw(seed, seconds).faults
        assert len(faults) >= seconds / 4
        assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
        assert all(fault.end_s <= seconds for fault in faults)
        over: dict[str, float] = {}
        for fault in faults:
            place = plan.place_of(fault)
            assert fault.at_s >= over.get(place, 0.0), fault
            over[place] = fault.end_s


def test_freeze_outlasts_the_lease() -> None:
    spans = [f.span_s for f in plan.draw(1, 3_000.0).faults if f.kind == "freeze subscriber"]
    assert min(spans) * 1000 > plan.LEASE_MS


def test_every_kind_has_its_function() -> None:
    assert set(FAULTS) == set(plan.KINDS)


# The director.


class FakeCluster:
    """Time passes, nothing happens."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.supervised = 0

    def supervise(self) -> None:
        """Counted."""
        self.supervised += 1


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A script of nobody."""
    return Script(tmp_path, 1, Screen())


def direct(script: Script, kinds: dict[str, Any]) -> tuple[Director, list[str]]:
    """A director with these functions, after its plan of half a second."""
    seen: list[str] = []
    faults = [
        plan.Fault(number, 0.1 * number, kind, "x", 0.25)
        for number, kind in enumerate(kinds, 1)
    ]
    functions = {kind: lambda _cluster, fault, f=f: f(seen, fault) for kind, f in kinds.items()}
    cluster: Any = FakeCluster(script)
    director = Director(cluster, plan.Plan(1, 0.5, tuple(faults)), functions)
    director.perform()
    assert cluster.supervised > 0
    return director, seen


def test_director_begins_and_ends_each_fault_in_the_order_of_their_times(script: Script) -> None:
    def course(seen: list[str], fault: plan.Fault) -> Iterator[str]:
        seen.append(f"+{fault.kind}")
        yield "done"
        seen.append(f"-{fault.kind}")

    director, seen = direct(script, {"a": course, "b": course})
    assert seen == ["+a", "+b", "-a", "-b"]
    assert director.injected() == {"a": 1, "b": 1}
    assert director.seconds >= 0.5


def test_director_notes_what_could_not_be_done_and_goes_on(script: Script) -> None:
    def gone(seen: list[str], fault: plan.Fault) -> Iterator[str]:
        raise Missed("worker-1 is not running")
        yield ""

    def unreachable(seen: list[str], fault: plan.Fault) -> Iterator[str]:
        raise BrokerUnavailable("no broker")
        yield ""

    def course(seen: list[str], fault: plan.Fault) -> Iterator[str]:
        yield "done"

    director, _ = direct(script, {"a": gone, "b": unreachable, "c": course})
    assert director.injected() == {"c": 1}
    assert [item.text for item in director.done] == [
        "missed: worker-1 is not running", "missed: no broker", "done",
    ]  # fmt: skip


# The figures and what is expected of them.

KEY = PartitionKey("p", "one")


def published(at_ms: int, first: int, *bodies: str, dropped: tuple[int, ...] = ()) -> r.Published:
    """A batch for two partitions: the first body goes to "one", the rest to "two"."""
    count = len(bodies) + len(dropped)
    kept = [number for number in range(count) if number not in dropped]
    sequences = [first if number == 0 else first + number - 1 for number in kept]
    entries = [(0, seq, 0, 1, body.encode(), None) for seq, body in zip(sequences, bodies)]
    return r.Published(
        at_ms, "p", 1, ["one", "two"], [first, first], [1, count - 1], list(dropped), 0, 0, False,
        entries,
    )  # fmt: skip


def test_figures_count_what_was_handed_out_again_and_the_longest_stop() -> None:
    found = figures.count(
        [
            published(1_000, 1, "a", "b"), published(4_500, 2, "c"),
            r.Delivered(1_100, "default", "w", [KEY], [1], [1], [2], [1], [1], []),
            r.Reassigned(2_000, "default", "w", [KEY], [1], [2], [1], "crash"),
            r.Delivered(2_100, "default", "v", [KEY], [1], [1], [2], [2], [2], []),
            r.Acked(2_200, "default", "v", [KEY], [1], [1], [2], []),
            r.Acked(9_300, "default", "v", [KEY], [2], [1], [2], []),
        ],
        [
            {"client": "subscriber", "event": "finished", "counts": [1, 1]},
            {"client": "subscriber", "event": "failed"},
            {"client": "publisher", "event": "answered", "counts": [7]},
        ],
    )  # fmt: skip
    assert (found.published, found.handed_out, found.handed_out_again) == (3, 4, 2)
    assert (found.acknowledged, found.handled, found.failed) == (2, 2, 1)
    assert (found.longest_stop_handling_s, found.longest_stop_publishing_s) == (7.1, 3.5)
    assert found.reassigned == {"crash": 2}


def test_figures_know_poison_by_its_body_also_behind_a_dropped_message() -> None:
    found = figures.count(
        [
            published(0, 1, RAISES + "1", "b"),
            published(0, 5, KILLS + "2", "b", dropped=(0,)),
        ],
        [],
    )
    assert found.poison == {("p", "one", 1), ("p", "two", 5)}


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ({}, set()),
        ({"injected": 5}, set()),
        ({"injected": 4}, {"faults brought about"}),
        ({"planned": 0, "injected": 0}, {"faults brought about"}),
        ({"handled": 0}, {"messages handled"}),
        ({"drained": False}, {"nothing is owed at the end"}),
        ({"parked": {("p", "x", 2)}}, {"parked, and no poison", "poison, and not parked"}),
        ({"acknowledged": 8}, {"acknowledged and parked"}),
    ],
)  # fmt: skip
def test_run_is_held_to_what_it_should_have_done(
    change: dict[str, Any], bad: set[str], script: Script
) -> None:
    """Enough faults, something handled, nothing owed, parked exactly the poison."""
    case = {
        "planned": 10, "injected": 10, "handled": 9, "drained": True, "acknowledged": 9,
        "parked": {("p", "x", 1)}, **change,
    }  # fmt: skip
    fault = plan.Fault(1, 1.0, "cut", "net-1", 0.0)
    director: Any = SimpleNamespace(injected=lambda: Counter(cut=case["injected"]))
    outcome = command.Outcome(plan.Plan(1, 60.0, (fault,) * case["planned"]), director)
    outcome.parked = case["parked"]
    script.drained = case["drained"]
    found = figures.Figures(
        published=10, handled=case["handled"], acknowledged=case["acknowledged"], parked=1,
        poison={("p", "x", 1)},
    )  # fmt: skip
    command._expect(script, outcome, found)
    assert {item.what for item in script.expectations if not item.good} == bad


# The networks.


def test_network_of_clients_that_come_and_go_keeps_a_bounded_number_of_proxies() -> None:
    """The oldest that nobody is connected through makes room; the way to the channel stays."""
    names = NameServer.start_or_join(HOST, 0)
    names.register("channel.x", f"PYRO:channel.x@{HOST}:{free_port()}")
    network = Gateway(f"{HOST}:{names.port}", "x", ways_max=4)
    try:
        with socket.create_server((HOST, 0)) as target:
            used = network._way(DOWN, target.getsockname()[1])
            with socket.create_connection((HOST, used.port)):
                poll(lambda: used.connections == 1, 10.0, "somebody is connected through it")
                ways = [network._way(DOWN, free_port()) for _ in range(6)]
        assert network.proxies == [network.front, used, *ways[-2:]]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, ways[0].port))
    finally:
        network.close()
        names.close()


# Real runs.


def test_short_run_is_valid_and_leaves_nothing(tmp_path: Path) -> None:
    """Exit code 0, the faults are those of the seed's plan, no process and no folder stays."""
    ran = run_chaos(tmp_path / "run", "--minutes", 0.3, "--seed", 2, "--no-audit")
    assert ran.code == 0, ran.out
    planned = [(fault.kind, fault.target) for fault in plan.draw(2, 18.0).faults]
    assert [(item["kind"], item["target"]) for item in ran.told["faults"]] == planned
    assert len(planned) >= 7
    for kind, _ in planned:
        assert re.search(rf"^ *\d+\.\d s  fault    {kind} ", ran.out, re.M), kind
    numbers = ran.told["figures"]
    assert numbers["published"] == numbers["acknowledged"] + numbers["parked"] > 1_000
    assert numbers["handed_out_again"] > 0, "the faults were felt"
    assert unmet(ran.told) == set() and ran.told["judge"].startswith("valid")
    assert "verdict  all is as promised: seed 2, 0.3 minutes" in ran.out
    assert running(ran.folder) == []
    assert list(ran.folder.iterdir()) == []


SABOTAGES = {
    "a journal that tells something else": (
        "anomalies in journal and histories",
        """
        from broker.journal import sqlite
        encode = sqlite.encode
        def falsified(channel, sequence, record, *rest):
            if record.kind == "Delivered":
                record.attempts[:] = [attempt + 1 for attempt in record.attempts]
            return encode(channel, sequence, record, *rest)
        sqlite.encode = falsified
        """,
    ),
    "a history that lacks some of what was acknowledged": (
        "anomalies in journal and histories",
        """
        import random
        from subscriber.history import SubscriberHistory
        finished = SubscriberHistory.finished
        def forgetful(self, stretches):
            if random.random() > 0.05:
                finished(self, stretches)
        SubscriberHistory.finished = forgetful
        """,
    ),
}  # fmt: skip


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_run_notices_a_product_that_is_broken(sabotage: str, tmp_path: Path) -> None:
    """Exit code 1, the expectation that shows it is not met, the folder is kept."""
    expectation, code = SABOTAGES[sabotage]
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(textwrap.dedent(code))
    ran = run_chaos(
        tmp_path / "run", "--minutes", 0.1, "--seed", 1, "--no-audit",
        PYTHONPATH=f"{ROOT}{os.pathsep}{broken}",
    )  # fmt: skip
    assert ran.code == 1, ran.out
    assert expectation in unmet(ran.told)
    assert "NOT as promised" in ran.out and "judge    invalid" in ran.out
    assert running(ran.folder) == []
    (kept,) = ran.folder.iterdir()
    assert f"are in {kept}" in ran.out and (kept / "plan.json").exists()


def test_run_without_java_is_unknown_and_says_so(tmp_path: Path) -> None:
    """Exit code 2: what was not audited is not valid."""
    ran = run_chaos(
        tmp_path / "run", "--minutes", 0.1, "--seed", 1, PATH=str(tmp_path), JAVA_HOME=""
    )
    assert ran.code == 2, ran.out
    assert "NOT proved" in ran.out and "audit    unknown" in ran.out
    assert "Java" in ran.out or "java" in ran.out
    assert running(ran.folder) == []


def test_interrupted_run_leaves_nothing_running_and_names_its_folder(tmp_path: Path) -> None:
    """Ctrl-C in the middle of the faults ends every process, soon."""
    folder, out = tmp_path / "run", tmp_path / "out.txt"
    folder.mkdir()
    with open(out, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "simulations.chaos", "--no-audit", "--seed", "3"], cwd=ROOT,
            env=environment(TMPDIR=str(folder)), stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        poll(lambda: out.read_text().count(" fault ") >= 2, 30.0, "two faults have come")
        assert len(running(folder)) >= 8
        process.send_signal(signal.SIGINT)
        assert process.wait(20.0) == 128 + signal.SIGINT, out.read_text()
    finally:
        process.kill()
        process.wait()
    assert running(folder) == []
    (kept,) = folder.iterdir()
    assert f"are in {kept}" in out.read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("--report", "x.html", "--no-audit"), ("--json", "/nowhere/at/all.json"),
        ("--minutes", "0"), ("--minutes", "60"),
    ],
)
def test_wrong_usage_is_told_before_anything_starts(words: tuple[str, ...]) -> None:
    done = run_fairlead("chaos", *words)
    assert done.returncode == 2
    assert done.stdout == "" and done.stderr.startswith("fairlead: ")
