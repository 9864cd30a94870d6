"""The client against faults: lost and repeated requests, deaths of either side, a lost store.

Nothing is lost, nothing comes twice, and all subscribers see one order.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from broker.errors import (
    BeyondEnd,
    BrokerError,
    BrokerStopping,
    BrokerUnavailable,
    CallOvertaken,
    NumberReused,
    PutsLost,
    StateBehind,
)
from broker.pyro_setup import invoke
from tests.processes import ROOT, BrokerProcess, environment
from tests.topics.dying_client import PUTS
from tests.topics.stage import Stage, bodies
from topics import StateUnusable, Topics, requests
from topics.ledger import KEPT_CALLS


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


class Network:
    """Stands between a client and its broker: what happens to each request is said in advance.

    ``ok``, ``unsent`` (never left), ``lost`` (never arrived), ``unanswered`` (done, and the answer
    is lost), ``twice`` (arrives twice, the second answer counts), ``late`` (not answered, and
    arrives once more after the next one).
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plan: Iterator[str] = iter(())
        self.verbs: tuple[str, ...] = ()
        self.late: list[Callable[[], Any]] = []
        self.late_outcomes: list[str] = []
        monkeypatch.setattr(requests, "invoke", self._invoke)

    def will(self, *plan: str, verbs: tuple[str, ...] = ()) -> None:
        self.plan, self.verbs = iter(plan), verbs

    def _invoke(self, proxy: Any, verb: str, *args: Any) -> Any:
        fate = "ok" if self.verbs and verb not in self.verbs else next(self.plan, "ok")
        late, self.late = self.late, []
        if fate == "unsent":
            raise BrokerUnavailable("no way there", fault="unreachable", sent=False)
        if fate == "stopping":
            raise BrokerStopping("stopping")
        answer = None
        try:
            if fate not in ("lost", "late"):
                answer = invoke(proxy, verb, *args)
            if fate == "twice":
                answer = invoke(proxy, verb, *args)
        finally:
            self._send(late)
        if fate == "late":
            self.late.append(lambda: invoke(proxy, verb, *args))
        if fate in ("lost", "unanswered", "late"):
            raise BrokerUnavailable("silence", fault="timeout", sent=True)
        return answer

    def _send(self, late: list[Callable[[], Any]]) -> None:
        for send in late:
            try:
                send()
                self.late_outcomes.append("done")
            except BrokerError as error:
                self.late_outcomes.append(error.code)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


# One request.


@pytest.mark.parametrize("fate", ["unsent", "lost", "unanswered", "late"])
def test_a_request_that_fails_twice_is_done_once(
    stage: Stage, network: Network, fate: str
) -> None:
    ann = stage.client("ann", timeout_s=0.2)
    network.will(fate, fate, verbs=("subscribe",))
    assert ann.subscribe("news")
    network.will(fate, fate, verbs=("put_bodies",))
    receipt = ann.put("news", 1)
    # Of two that are late, the first arrives before the third try.
    assert (receipt.number, receipt.again) == (1, fate in ("unanswered", "late"))
    network.will(fate, fate, verbs=("get_columns",))
    assert bodies(ann.get_many("news", 9)) == [1]
    assert ann.get("news") is None
    network.will(fate, fate, verbs=("unsubscribe",))
    assert ann.unsubscribe("news")


def test_a_put_of_unknown_outcome_stays_and_goes_first_next_time(
    stage: Stage, network: Network
) -> None:
    ann = stage.client("ann", timeout_s=0.2, history=stage.directory / "histories")
    ann.subscribe("news")
    network.will("unanswered", "lost", "unsent")
    with pytest.raises(BrokerUnavailable, match="is unknown; it stays written down") as told:
        ann.put("news", "first")
    assert told.value.details["sent"] is True
    network.will("lost", "lost", "lost")
    with pytest.raises(BrokerUnavailable, match="the new put .* was not sent, since an earlier"):
        ann.put("news", "never sent")
    assert ann.put("news", "second").number == 2
    assert bodies(ann.get_many("news", 9)) == ["first", "second"]
    events = [
        (line["event"], line["number"], line.get("again"))
        for line in stage.lines("ann")
        if "number" in line
    ]
    assert events == [
        ("tried", 1, False), ("tried", 1, True), ("tried", 1, True), ("unknown", 1, None),
        ("tried", 1, True), ("tried", 1, True), ("tried", 1, True), ("unknown", 1, None),
        ("tried", 1, True), ("answered", 1, True), ("tried", 2, False), ("answered", 2, False),
    ]  # fmt: skip


def test_a_put_of_an_earlier_life_is_settled_by_resume(stage: Stage, network: Network) -> None:
    ann = stage.client("ann", timeout_s=0.2)
    ann.subscribe("news")
    network.will("unanswered", "lost", "lost")
    with pytest.raises(BrokerUnavailable):
        ann.put_many("news", [1, 2])
    ann.close()
    again = stage.client("ann")
    (receipt,) = again.resume()
    assert (receipt.number, receipt.position, receipt.again) == (2, 2, True)
    assert again.resume() == []
    assert bodies(again.get_many("news", 9)) == [1, 2]


def test_a_put_is_unknown_if_the_broker_stops_after_a_try_without_answer(
    stage: Stage, network: Network
) -> None:
    """That it is stopping says nothing about the first copy."""
    ann = stage.client("ann", timeout_s=0.2)
    ann.subscribe("news")
    network.will("unanswered", "stopping", "stopping")
    with pytest.raises(BrokerUnavailable, match="outcome is unknown"):
        ann.put("news", 1)
    network.will("stopping", "stopping", "stopping")
    with pytest.raises(BrokerUnavailable, match="outcome is unknown"):
        ann.resume()
    assert [receipt.again for receipt in ann.resume()] == [True]
    network.will("stopping", "stopping", "stopping")
    with pytest.raises(BrokerStopping, match="surely not done"):
        ann.put("news", 2)
    assert ann.put("news", 3).number == 2


def test_a_late_copy_of_a_refused_put_is_not_done_under_its_number(
    tmp_path: Path, network: Network
) -> None:
    stage = Stage(tmp_path, backlog_count_max=1)
    try:
        ann = stage.client("ann", timeout_s=0.2, tries=2)
        ann.subscribe("news")
        ann.put("news", 1)
        network.will("late", "ok", verbs=("put_bodies",))
        with pytest.raises(BrokerError, match="surely not done"):
            ann.put("news", "refused")
        assert network.late_outcomes == ["call-overtaken"]
        assert bodies(ann.get_many("news", 9)) == [1]
        assert ann.get("news") is None
        assert ann.put("news", 2).number == 2
        assert bodies(ann.get_many("news", 9)) == [2]
    finally:
        stage.close()


def test_unsubscribe_ends_a_subscription_whose_answer_was_lost(
    stage: Stage, network: Network
) -> None:
    ann, bob = stage.client("ann", timeout_s=0.2, tries=1), stage.client("bob")
    ann.subscribe("news")
    network.will("unanswered", "unanswered")
    for verb in (ann.unsubscribe, ann.subscribe):
        with pytest.raises(BrokerUnavailable, match="outcome is unknown; repeat"):
            verb("news")
    assert ann.unsubscribe("news")
    bob.put("news", "nobody is owed this")
    assert ann.subscribe("news")
    assert ann.get("news") is None


def test_a_late_unsubscribe_does_not_end_a_newer_subscription(
    stage: Stage, network: Network
) -> None:
    ann = stage.client("ann", timeout_s=0.2, tries=1)
    ann.subscribe("news")
    network.will("late")
    with pytest.raises(BrokerUnavailable):
        ann.unsubscribe("news")
    ann.subscribe("news")
    assert network.late_outcomes == ["request-overtaken"]
    ann.put("news", 1)
    assert bodies(ann.get_many("news", 9)) == [1]


@pytest.mark.parametrize("seed", range(6))
def test_under_random_faults_everybody_gets_everything_once_in_one_order(
    stage: Stage, network: Network, seed: int
) -> None:
    chance = random.Random(seed)
    fates = ["ok", "ok", "unsent", "lost", "unanswered", "twice", "late"]
    clients = [stage.client(f"c{number}", timeout_s=0.05) for number in range(3)]
    topics = ["a", "b"]
    for client in clients:
        for topic in topics:
            client.subscribe(topic)
    network.plan = (chance.choice(fates) for _ in iter(int, 1))
    got: dict[str, list[tuple[str, int, Any]]] = {client.client: [] for client in clients}
    wanted = 0
    for number in range(60):
        client = chance.choice(clients)
        if number % 2:
            wanted += persist(client, chance.choice(topics), number)
            continue
        try:
            count = chance.randrange(1, 5)
            found = client.get_any_many(count)
            got[client.client] += [(m.topic, m.id, m.body) for m in found]
        except BrokerUnavailable:
            pass
    network.will()
    for client in clients:
        client.resume()
    for client in clients:
        found = client.get_any_many(1000)
        got[client.client] += [(m.topic, m.id, m.body) for m in found]
    first, *others = got.values()
    assert len(first) == wanted and sorted(body for *_, body in first) == list(range(1, 60, 2))
    assert all(other == first for other in others)


def persist(client: Topics, topic: str, message: Any) -> int:
    """Put a message, however often that takes."""
    while True:
        try:
            client.put(topic, message)
            return 1
        except BrokerUnavailable as error:
            if error.details["sent"] and not error.details.get("earlier"):
                return 1  # it stays written down


# Deaths.


def test_a_client_that_is_killed_between_any_two_steps_puts_once_and_gets_once(
    stage: Stage,
) -> None:
    eve = stage.client("eve")
    for step in range(1, 200):
        for topic in (f"one-{step}", f"two-{step}"):
            eve.subscribe(topic)
    done = subprocess.run(
        [sys.executable, "-m", "tests.topics.dying_client", stage.name_server, stage.directory],
        env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout)
    assert 60 < steps < 200
    missing = 0
    for step in range(1, steps + 1):
        lines = (stage.directory / f"used-{step}.jsonl").read_text().splitlines()
        used: dict[str, list[int]] = {f"one-{step}": [], f"two-{step}": []}
        for topic, _, body in map(json.loads, lines):
            used[topic].append(body)
        for topic in used:
            assert bodies(eve.get_many(topic, 99)) == [1, 2, 3], f"puts of step {step}"
        one, two = used.values()
        # In one step only what was written down and not handed out yet can be missing.
        assert one == sorted(set(one)) and len(one) >= PUTS - 1, f"step {step}: {one}"
        missing += len(one) < PUTS
        assert two == sorted(two) and set(two) == {1, 2, 3}, f"step {step}: {two}"
        assert len(two) <= PUTS + 1
    assert missing <= 3 * PUTS


def test_a_broker_that_is_killed_again_and_again_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        options: dict[str, Any] = {"name_server": broker.name_server, "timeout_s": 0.5}
        clients = [Topics(f"c{n}", tmp_path / "state", **options) for n in range(3)]
        for client in clients:
            client.subscribe("news")
        putting = threading.Event()
        threads = [
            threading.Thread(target=keep_putting, args=(client, 100 * number, putting))
            for number, client in enumerate(clients[:2])
        ]
        got: list[list[Any]] = [[] for _ in clients]
        threads += [
            threading.Thread(target=keep_getting, args=(client, seen, 60))
            for client, seen in zip(clients, got)
        ]
        for thread in threads:
            thread.start()
        for _ in range(3):
            putting.wait(0.4)  # anything may be under way when it is killed
            broker.kill9()
            broker.start()
        putting.set()
        for thread in threads:
            thread.join(60)
        for client in clients:
            assert client.get("news") is None
            client.close()
    assert sorted(got[0]) == [*range(30), *range(100, 130)]
    assert got[1] == got[0] and got[2] == got[0]


def keep_putting(client: Topics, base: int, hurry: threading.Event) -> None:
    for number in range(30):
        hurry.wait(0.04)
        while True:
            try:
                client.put("news", base + number)
                break
            except BrokerUnavailable as error:
                if error.details["sent"] and not error.details.get("earlier"):
                    break
    while True:
        try:
            client.resume()
            return
        except BrokerUnavailable:
            pass


def keep_getting(client: Topics, seen: list[Any], count: int) -> None:
    while len(seen) < count:
        try:
            seen += bodies(client.get_many("news", 7, wait_s=0.2))
        except BrokerUnavailable:
            pass


# A broker that has lost something, and a state directory that was put back.


def test_puts_that_the_broker_has_lost_are_sent_again(stage: Stage) -> None:
    ann, bob = stage.client("ann"), stage.client("bob")
    bob.subscribe("news")
    ann.put("news", 1)
    stage.stop()
    stage.save_store()
    stage.start()
    for number in (2, 3, 4):
        ann.put("news", number)
    stage.stop()
    stage.put_back_store()
    stage.start()
    assert ann.put("news", 5).number == 5
    assert bodies(bob.get_many("news", 9)) == [1, 2, 3, 4, 5]


def test_puts_that_nobody_has_any_more_are_named_and_can_be_given_up(stage: Stage) -> None:
    ann, bob = stage.client("ann"), stage.client("bob")
    bob.subscribe("news")
    ann.put("news", 1)
    stage.stop()
    stage.save_store()
    stage.start()
    for number in range(KEPT_CALLS + 2):
        ann.put("news", number)
    stage.stop()
    stage.put_back_store()
    stage.start()
    for _ in range(2):
        with pytest.raises(PutsLost, match="after forget_put"):
            ann.put("news", "x")
    ann.forget_put("news")
    assert ann.put("news", "next").number == 2
    assert bodies(bob.get_many("news", 9)) == [1, "next"]


def test_a_client_that_has_what_the_broker_has_lost_is_told_and_can_take_over(
    stage: Stage,
) -> None:
    ann, bob = stage.client("ann"), stage.client("bob")
    bob.subscribe("news")
    stage.stop()
    stage.save_store()
    stage.start()
    ann.put("news", 1)
    assert bodies(bob.get_many("news", 9)) == [1]
    stage.stop()
    stage.put_back_store()
    stage.start()
    with pytest.raises(BeyondEnd, match="put back to an earlier state"):
        bob.get("news")
    bob.close()
    again = stage.client("bob", take_over=True)
    ann.put("news", 2)
    assert bodies(again.get_many("news", 9)) == [1, 2]


def test_a_state_directory_that_was_put_back_is_told_and_can_take_over(
    stage: Stage, tmp_path: Path
) -> None:
    ann = stage.client("ann")
    ann.subscribe("news")
    ann.close()
    state = tmp_path / "state" / "ann" / "state.db"
    old = state.read_bytes()
    ann = stage.client("ann")
    ann.put_many("news", [1, 2])
    assert bodies(ann.get_many("news", 1)) == [1]
    ann.confirm(ann.receive("news")[0])
    ann.put("news", 3)
    ann.close()
    state.write_bytes(old)
    ann = stage.client("ann")
    with pytest.raises(StateBehind):
        ann.get("news")
    with pytest.raises((NumberReused, CallOvertaken, BrokerUnavailable)):
        ann.put("news", "x")
    ann.close()
    ann = stage.client("ann", take_over=True)
    assert ann.put("news", 4).number == 4
    assert bodies(ann.get_many("news", 9)) == [3, 4]


def test_a_message_that_cannot_be_written_down_is_not_handed_out_and_not_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = stage.client("ann")
    ann.subscribe("news")
    ann.put("news", 1)

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(ann._opened.state, "_save", full)
    with pytest.raises(StateUnusable):
        ann.get("news")
    # It must not tell the broker that it has what it could not write down.
    with pytest.raises(StateUnusable, match="not used any more"):
        ann.get("news")
    ann.close()
    assert bodies(stage.client("ann").get_many("news", 9)) == [1]
