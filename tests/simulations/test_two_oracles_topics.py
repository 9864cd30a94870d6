"""Simulated runs of topics, good and damaged, before both oracles: the verdicts agree.

Each case is one simulated run, perhaps with one change to a record or to a line of a history. All
of them are topics of one store, with clients of their own, so that one audit judges them; the
checkers hear the same run in the order in which it happened.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Callable, Iterator, NamedTuple

import pytest
from pyspark.sql import SparkSession

from broker.core.topics.records import Confirmed, Put, TopicCreated, TopicRecord, TopicSubscribed
from broker.journal.bases import TOPIC_PREFIX
from broker.journal.sqlite import SqliteJournal
from simulations.checkers.topics import TopicsJudge
from simulations.world.topics import run as topics_run
from spark import scan
from spark.audit import Question
from spark.session import build
from tests.spark.test_planted import judge

pytestmark = pytest.mark.timeout(300)

Line = dict[str, Any]
Step = tuple[str, TopicRecord] | Line
Opinions = dict[str, tuple[bool, set[str], set[str]]]
GOOD, DAMAGED = 4, 3  # runs that stay as they are; runs that get each kind of damage


class Case(NamedTuple):
    """A run under names of its own, and whether it is as it was."""

    name: str
    steps: list[Step]
    good: bool


class Recorder(TopicsJudge):
    """The judge of a run that also keeps what it was told, in order."""

    steps: list[Step]
    remade: bool

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.remade = [], False

    def watch(self, topic: str, sequence: int, record: TopicRecord) -> list[Any]:
        self.steps.append((topic, record))
        return super().watch(topic, sequence, record)

    def hear(self, line: Any) -> list[Any]:
        self.steps.append(json.loads(line) if isinstance(line, str) else dict(line))
        return super().hear(line)

    def dropped(self, topic: str) -> None:
        self.remade = True
        super().dropped(topic)


def runs(count: int) -> list[list[Step]]:
    """Runs in which no topic was removed: of those a store has one life only."""
    found: list[list[Step]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topics_run, "TopicsJudge", Recorder)
        for seed in range(200):
            made = topics_run.TopicsRun(topics_run.draw_topics(seed, PROFILE))
            assert made.perform().ok
            recorder = made.judge
            assert isinstance(recorder, Recorder)
            kinds = {type(step[1]) for step in recorder.steps if isinstance(step, tuple)}
            if not recorder.remade and {Put, Confirmed} <= kinds:
                found.append(recorder.steps)
            if len(found) == count:
                return found
    raise AssertionError(f"only {len(found)} runs")


PROFILE = topics_run.find_profile("topics")


def renamed(name: str, steps: list[Step]) -> list[Step]:
    """Under topics and clients that no other case has."""
    made: list[Step] = []
    for step in steps:
        if not isinstance(step, tuple):
            topic = {"topic": f"{name}-{step['topic']}"} if "topic" in step else {}
            made.append({**step, **topic, "name": f"{name}-{step['name']}"})
            continue
        topic_name, record = step
        for field in ("publisher", "subscriber"):
            if hasattr(record, field):
                record = replace(record, **{field: f"{name}-{getattr(record, field)}"})
        if isinstance(record, TopicCreated):
            record = replace(record, name=f"{name}-{record.name}")
        made.append((f"{name}-{topic_name}", record))
    return made


# Damage: one step, in the middle of those that it can be done to.


def at(steps: list[Step], fits: Callable[[Any], bool]) -> int:
    places = [
        index
        for index, step in enumerate(steps)
        if fits(step[1] if isinstance(step, tuple) else step)
    ]
    return places[len(places) // 2]


def is_line(event: str) -> Callable[[Any], bool]:
    return lambda step: isinstance(step, dict) and step["event"] == event


def change_record(kind: type[Any], **changes: Callable[[Any], Any]) -> Callable[..., None]:
    def change(steps: list[Step]) -> None:
        index = at(steps, lambda step: isinstance(step, kind))
        topic, record = steps[index]  # type: ignore[misc]
        values = {name: make(getattr(record, name)) for name, make in changes.items()}
        steps[index] = (topic, replace(record, **values))  # type: ignore[type-var]

    return change


def change_line(event: str, **changes: Callable[[Any], Any]) -> Callable[..., None]:
    def change(steps: list[Step]) -> None:
        line = steps[at(steps, is_line(event))]
        assert isinstance(line, dict)
        line |= {name: make(line[name]) for name, make in changes.items()}

    return change


def try_others(steps: list[Step]) -> None:
    """Every sending of a call that was answered: one right one would do."""
    answered = steps[at(steps, is_line("answered"))]
    assert isinstance(answered, dict)
    same = [answered[name] for name in ("name", "topic", "number")]
    lines = [step for step in steps if isinstance(step, dict) and step["event"] == "tried"]
    for line in lines:
        if [line[name] for name in ("name", "topic", "number")] == same:
            line["crc"] ^= 1


def lose_confirmed(steps: list[Step]) -> None:
    del steps[at(steps, lambda step: isinstance(step, Confirmed))]


DAMAGE: dict[str, Callable[[list[Step]], None]] = {
    "confirmed-lost": lose_confirmed,
    "confirmed-too-far": change_record(Confirmed, count=lambda count: count + 1_000),
    "put-other-number": change_record(Put, number=lambda number: number + 1),
    "put-other-body": change_record(Put, bodies=lambda bodies: [b"other", *bodies[1:]]),
    "subscribed-elsewhere": change_record(TopicSubscribed, position=lambda place: place + 1),
    "answered-elsewhere": change_line("answered", position=lambda place: place + 1),
    "got-again": change_line("got", first=lambda first: max(1, first - 1)),
    "got-skipped": change_line("got", first=lambda first: first + 1),
    "got-other": change_line("got", crc=lambda crc: crc ^ 1),
    "tried-other": try_others,
}


def cases() -> list[Case]:
    made = runs(GOOD + DAMAGED)
    found = [Case(f"good-{i}", renamed(f"good-{i}", made[i]), True) for i in range(GOOD)]
    for what, damage in DAMAGE.items():
        for number, steps in enumerate(made[GOOD:]):
            name = f"{what}-{number}"
            steps = renamed(name, steps)
            damage(steps)
            found.append(Case(name, steps, False))
    return found


def by_the_checkers(case: Case) -> set[str]:
    found = TopicsJudge()
    ends: dict[str, int] = {}
    for step in case.steps:
        if isinstance(step, tuple):
            topic, record = step
            ends[topic] = ends.get(topic, 0) + 1
            found.watch(topic, ends[topic], record)
        else:
            found.hear(step)
    return {anomaly.name for anomaly in found.finish(False)}


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """Spark for this file."""
    made = build("local[2]", memory="2g")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def opinions(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Opinions:
    """Case -> whether it is good, what the checkers found, what the audit found."""
    folder = tmp_path_factory.mktemp("two-oracles-topics")
    (folder / "histories").mkdir()
    made = cases()
    journal = SqliteJournal(str(folder / "store.db"), "flush")
    for case in made:
        written = [step for step in case.steps if isinstance(step, tuple)]
        for topic in {topic for topic, _ in written}:
            records = [record for of, record in written if of == topic]
            journal.append(TOPIC_PREFIX + topic, 1, records)
        lives: dict[tuple[str, str], list[Line]] = {}
        for step in case.steps:
            if isinstance(step, dict):
                lives.setdefault((step["name"], step["session"]), []).append(step)
        for (name, life), lines in lives.items():
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / "histories" / f"topic-{name}-{life}.jsonl").write_text(text)
    journal.close()
    place = scan.Place(str(folder / "store.db"), None)
    _, found = judge(session, Question(place, None, str(folder / "histories")))
    audited = {
        case.name: {
            name
            for channel, names in found.items()
            if channel.startswith(f"{TOPIC_PREFIX}{case.name}-")
            for name in names
        }
        for case in made
    }
    return {case.name: (case.good, by_the_checkers(case), audited[case.name]) for case in made}


def test_both_find_nothing_in_good_runs(opinions: Opinions) -> None:
    good = {name: found[1:] for name, found in opinions.items() if found[0]}
    assert len(good) == GOOD
    assert good == {name: (set(), set()) for name in good}


def test_both_find_something_in_each_damaged_run_and_share_a_name(opinions: Opinions) -> None:
    damaged = {name: found[1:] for name, found in opinions.items() if not found[0]}
    assert len(damaged) == len(DAMAGE) * DAMAGED
    apart = {name: found for name, found in damaged.items() if not found[0] & found[1]}
    assert apart == {}
