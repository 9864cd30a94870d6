"""Two oracles, one answer: the simulator's checkers and the Spark audit judge the same journals.

The journals are good ones, planted ones, those of real runs with faults, and random stories with
one random change to the records or to the histories of the clients. All are channels of one store,
so that one audit judges them all. Both are asked as though every run were over (``drained``): what
is unfinished must be unseen by both. The verdicts agree on every channel, and the names agree on
every channel but those in ``KNOWN``, where the difference is listed by name with its reason.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping
from zlib import crc32

import pytest
from pyspark.sql import SparkSession

from broker.core import commands as c
from broker.core import records as r
from broker.core.anomalies import ANOMALIES, INVALID, TOPIC_ANOMALIES, UNKNOWN, VALID
from broker.core.message import PartitionKey
from broker.errors import BrokerError, JournalCorrupt
from broker.journal.codec import CHECKSUM, CHECKSUM_START, decode, encode
from broker.journal.sqlite import SqliteJournal
from simulations.checkers import Judge
from simulations.world import simulate
from spark import scan
from spark.audit import Question, audit, read_records
from spark.session import build
from tests.builders import Driven, publish_command
from tests.simulations.test_checkers import (
    BAD,
    GOOD_START,
    TOLD,
    _told,
    acked,
    faulty_directory,
    given,
    runs_with_faults,
    sent,
)
from tests.spark import planted
from tests.spark.oracle import Oracle

pytestmark = pytest.mark.timeout(300)

Records = list[Any]
Line = Mapping[str, Any]

STORIES = 10
JOURNAL_CHANGES = 40
HISTORY_CHANGES = 16
#: Profile -> how many simulated runs.
SIMULATED = {"standard": 6, "crowded": 3, "network": 2, "handlers": 2, "disk": 2}
SIMULATED_CHANGES = 12  # of their journals, and as many of their histories

_REDRIVEN = "a redriven message that is passed over: a gap of the audit that spark/README.md names"
#: Case -> (names that only the checkers give, names that only the audit gives, why).
KNOWN: dict[str, tuple[set[str], set[str], str]] = {
    "literal-redriven and left out": ({"lost-write"}, set(), _REDRIVEN),
    "literal-redriven and overtaken": ({"nonmonotonic-send"}, set(), _REDRIVEN),
}
#: Journals of test_checkers that the random changes rarely come upon.
LITERAL = (
    "redriven and left out", "redriven and overtaken", "handed out before it was redriven"
)  # fmt: skip
#: Of these the audit finds nothing else, so that the verdicts differ, too.
UNNOTICED = {"literal-redriven and overtaken"}


@dataclass
class Case:
    """A channel to judge. ``good``: neither oracle may find anything but what is left undone."""

    name: str
    records: Records
    lines: list[Line] = field(default_factory=list)
    drained: bool = False
    good: bool = False
    what: str = ""


def journals_of_runs() -> Iterator[tuple[str, Records, list[Line], bool]]:
    """(name, records, lines of histories, drained) of simulated runs, all of them good.

    The name is that of a channel, and the lines must speak of that channel.
    """
    for profile, seeds in SIMULATED.items():
        for seed in range(seeds):
            name = f"simulated-{profile}-{seed}"
            yield name, *simulated(profile, seed, name), True


def simulated(profile: str, seed: int, name: str) -> tuple[Records, list[Line]]:
    """The journal and the histories of a simulated run, as those of the channel ``name``."""
    result = simulate(seed, profile, keep=True)
    assert result.ok, result.reproduce
    records: Records = []
    previous = CHECKSUM_START
    for row in result.rows:
        records.append(decode(row, previous))
        previous = row[CHECKSUM]
    records[0] = replace(records[0], name=name)
    return records, [{**json.loads(line), "channel": name} for line in result.histories]


def by_client(lines: Iterable[Line]) -> dict[str, list[dict[str, Any]]]:
    """The histories apart, one for each life of each client."""
    files: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        files[f"{line['client']}-{line['name']}-{line['session']}"].append(dict(line))
    return dict(files)


# Random stories.


class Story:
    """What a channel decides when publishers, subscribers and people do things at random."""

    publishers = ("p", "q")
    partitions = ("a", "b", "c")
    groups = ("default", "audit")
    names = ("s", "t", "u")

    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        policy = {
            "attempts_max": draw.randint(1, 3), "backoff_ms": 1, "recall_after_ms": 5,
            "poison": draw.choice(["park_message", "park_message", "park_partition", "block"]),
            "parked_count_max": draw.choice([2, 100]), "run_count_max": draw.choice([2, 256]),
            "dedup_window_count_max": draw.choice([2, 100]), "ageing_ms": 20,
        }  # fmt: skip
        self.driven = Driven("story", checked=False, **policy)
        self.driven.history = Oracle(1 << 30)  # type: ignore[assignment]
        for record in self.driven.records:
            self.driven.history.watch(record)
        self.falling = draw.choice([0, 0.1, 0.4])
        self.stamp = 1_000
        self.sessions = iter(range(1, 1 << 60))

    def play(self, steps: int) -> Records:
        """The records of so many steps."""
        for publisher in self.publishers:
            self.do(c.OpenPublisher(publisher))
        for name in self.names[:2]:
            self.do(c.Subscribe("default", name, f"{name}-0", 8, ""))
        weights = {
            self.publish: 14, self.dispatch: 20, self.ack: 15, self.nack: 8, self.join: 4,
            self.leave: 2, self.hand_back: 3, self.tick: 3, self.redrive: 6, self.crash_queues: 1,
            self.create: 1.5, self.delete: 0.5, self.resend: 1, self.reopen: 0.5,
        }  # fmt: skip
        for _ in range(steps):
            self.driven.now_ms += self.random.choice([0, 1, 3, 10, 50])
            self.stamp += self.random.choice([0, 0, 5, 100])
            self.random.choices([*weights], [*weights.values()])[0]()
        self.do(c.RestoreQueues())
        self.dispatch()
        return [_plain(record) for record in self.driven.records]

    def do(self, command: c.Command) -> None:
        """Ask for something; to be refused is fine."""
        try:
            self.driven.do(command)
        except BrokerError:
            pass

    def member(self, holding: bool = False) -> tuple[str, Any] | None:
        """Somebody who is subscribed, with the name of the group."""
        found = [
            (group.name, queue)
            for group in self.driven.channel.subscriptions_list
            for queue in group.subscribers.values()
            if queue.held or not holding
        ]
        return self.random.choice(found) if found else None

    def publish(self) -> None:
        draw, publisher = self.random, self.random.choice(self.publishers)
        runs = {}
        for name in draw.sample(self.partitions, draw.randint(1, len(self.partitions))):
            first = self.driven.channel.next_sequences(publisher, [name])[0]
            bodies = [f"{name} {first + i}".encode() for i in range(draw.choice([1, 1, 2, 4]))]
            runs[name] = (first, bodies)
        total = sum(len(bodies) for _, bodies in runs.values())
        stamps = [
            max(1, self.stamp - (draw.randint(0, 400) if draw.random() < self.falling else 0))
            for _ in range(total)
        ]
        chosen = [draw.choice([None, f"i{draw.randint(0, 8)}"]) for _ in range(total)]
        ids = chosen if draw.random() < 0.3 else None
        self.do(publish_command(publisher, runs, None, stamps, None, ids))

    def dispatch(self) -> None:
        self.do(c.Dispatch())

    def ack(self) -> None:
        found = self.member(holding=True)
        if found:
            group, queue = found
            epochs = [epoch for epoch in queue.held if self.random.random() < 0.7]
            uptos = [
                self.random.randint(queue.held[epoch].settled + 1, queue.held[epoch].delivered)
                for epoch in epochs
            ]
            self.do(c.Ack(group, queue.subscriber, queue.session, epochs, uptos))

    def nack(self) -> None:
        found = self.member(holding=True)
        if found:
            group, queue = found
            epoch, line = self.random.choice([*queue.held.items()])
            position = self.random.randint(line.settled + 1, line.delivered)
            final = self.random.random() < 0.15
            self.do(
                c.Nack(group, queue.subscriber, queue.session, epoch, position, "bad", 0, final)
            )

    def join(self) -> None:
        name = self.random.choice(self.names)
        prefetch = self.random.choice([1, 3, 8])
        session = f"{name}-{next(self.sessions)}"
        self.do(c.Subscribe(self.random.choice(self.groups), name, session, prefetch, ""))

    def leave(self) -> None:
        found = self.member()
        if found:
            reason = self.random.choice(["left", "crashed", "crashed", "expired"])
            self.do(c.Leave(found[0], found[1].subscriber, found[1].session, reason))

    def hand_back(self) -> None:
        found = self.member(holding=True)
        if found:
            group, queue = found
            keep = [
                self.random.randint(line.settled, line.delivered) for line in queue.held.values()
            ]
            self.do(c.HandBack(group, queue.subscriber, queue.session, [*queue.held], keep))

    def tick(self) -> None:
        self.driven.now_ms += self.random.choice([10, 10, 10, 11_000])
        self.do(c.Tick())

    def redrive(self) -> None:
        key = PartitionKey(self.random.choice(self.publishers), self.random.choice(self.partitions))
        chosen = self.random.choice([None, None, key])
        drop = self.random.random() < 0.3
        self.do(c.Redrive(self.random.choice(self.groups), chosen, drop))

    def crash_queues(self) -> None:
        self.do(c.KillQueues())
        self.do(c.RestoreQueues())

    def create(self) -> None:
        self.do(c.CreateSubscription(self.random.choice(self.groups)))

    def delete(self) -> None:
        name = self.random.choice(self.groups)
        group = self.driven.channel.subscriptions.get(name)
        for queue in list(group.subscribers.values()) if group else ():
            self.do(c.Leave(name, queue.subscriber, queue.session, "left"))
        self.do(c.DeleteSubscription(name))

    def resend(self) -> None:
        publisher, name = self.random.choice(self.publishers), self.random.choice(self.partitions)
        following = self.driven.channel.next_sequences(publisher, [name])[0]
        if following > 1:
            self.do(publish_command(publisher, {name: (following - 1, [b"x", b"y"])}, None, 1))

    def reopen(self) -> None:
        self.do(c.OpenPublisher(self.random.choice(self.publishers)))


def _plain(record: Any) -> Any:
    """A copy of the fact alone."""
    resolved = {name: None for name in ("lines", "columns") if hasattr(record, name)}
    return deepcopy(replace(record, **resolved))


def histories_of(records: Records, channel: str) -> dict[str, list[dict[str, Any]]]:
    """What the clients of a good journal would have written, by client; lines without numbers."""
    files: dict[str, list[dict[str, Any]]] = defaultdict(list)
    sessions: dict[tuple[str, str], dict[str, Any]] = {}
    sequence_at: dict[tuple[str, int, int], int] = {}
    for number, item in enumerate(records, 1):
        if isinstance(item, (r.PublisherOpened, r.Published)):
            files[f"{item.publisher}-{item.epoch}"] += _told_publisher(item, number, channel)
        elif isinstance(item, r.Subscribed):
            sessions[item.subscription, item.subscriber] = who = {
                "client": "subscriber", "name": item.subscriber, "session": item.session,
                "channel": channel, "subscription": item.subscription,
            }  # fmt: skip
            files[item.session].append({**who, "event": "opened"})
        elif isinstance(item, (r.Delivered, r.Acked)):
            who = sessions[item.subscription, item.subscriber]
            files[who["session"]] += _told_subscriber(item, who, sequence_at)
    return dict(files)


def _told_publisher(
    item: r.PublisherOpened | r.Published, number: int, channel: str
) -> list[dict[str, Any]]:
    who = {"client": "publisher", "name": item.publisher, "session": str(item.epoch),
           "channel": channel}  # fmt: skip
    if isinstance(item, r.PublisherOpened):
        return [{**who, "event": "opened", "epoch": item.epoch}]
    runs = {"partitions": item.partitions, "firsts": item.firsts, "counts": item.counts}
    tried = {
        "epoch": item.epoch, "call": number, "resent": False,
        "crc": crc32(b"".join(entry[4] for entry in item.entries)),
    }  # fmt: skip
    answered = {"call": number, "record": number, "duplicates": 0}
    return [
        {**who, "event": "tried", **tried, **deepcopy(runs)},
        {**who, "event": "answered", **answered, **deepcopy(runs)},
    ]


def _told_subscriber(
    item: r.Delivered | r.Acked, who: dict[str, Any],
    sequence_at: dict[tuple[str, int, int], int],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    if isinstance(item, r.Delivered):
        for key, first, sequence, count, epoch, attempt in zip(
            item.keys, item.firsts, item.sequences, item.counts, item.epochs, item.attempts
        ):
            for index in range(count):
                sequence_at[who["session"], epoch, first + index] = sequence + index
            yield {
                **who, "event": "started", "publisher": key.publisher, "partition": key.partition,
                "epoch": epoch, "position": first, "sequence": sequence, "attempt": attempt,
            }  # fmt: skip
        return
    sums = [
        sum(sequence_at[who["session"], epoch, first + index] for index in range(count))
        for first, count, epoch in zip(item.firsts, item.counts, item.epochs)
    ]
    yield {
        **who, "event": "finished", "epochs": list(item.epochs), "firsts": list(item.firsts),
        "counts": list(item.counts), "sequence_sums": sums,
    }  # fmt: skip


# One random change.

#: What a record of these kinds says is believed by nobody: a change of it breaks no promise.
IGNORED = ("StaleAcked", "Recalled", "Slowed", "BrokerStarted", "Resumed", "ChannelCreated")
CHOICES = {
    "subscriber": Story.names, "subscription": Story.groups, "scope": ("message", "partition"),
    "reason": ("crash", "left"),
}  # fmt: skip


def change_journal(records: Records, draw: random.Random) -> tuple[Records, str]:
    """A copy with one record left out, doubled, moved, or with one value changed."""
    while True:
        changed = deepcopy(records)
        at = draw.randrange(2, len(changed))
        record = changed[at]
        if record.kind in IGNORED:
            continue
        way = draw.choice(["leave out", "double", "move", "value", "value", "value", "value"])
        what = f"{way} {record.kind} {at + 1}"
        if way == "leave out":
            del changed[at]
        elif way == "double":
            changed.insert(at, deepcopy(record))
        elif way == "move":
            changed.insert(max(2, at - draw.randint(1, 8)), changed.pop(at))
        else:
            name = draw.choice([item.name for item in fields(record)])
            what = f"{what}: {name} {_change_value(record, name, draw)}"
            if changed == records:
                continue
        if _can_be_written(changed):
            return changed, what


def _change_value(record: Any, name: str, draw: random.Random) -> Any:
    """Change one field a bit, if it is of a kind that can be; what it is now."""
    value = getattr(record, name)
    if name == "late":
        record.late = sorted({*value} ^ {draw.randrange(sum(record.counts))})
    elif name == "dropped" and isinstance(value, bool):
        record.dropped = not value
    elif name in CHOICES and value in CHOICES[name]:
        setattr(record, name, draw.choice(CHOICES[name]))
    elif name in ("keys", "partitions") and len(value) > 1:
        value[0], value[-1] = value[-1], value[0]
    elif name in ("epoch", "position", "attempt", "count"):
        setattr(record, name, value + draw.choice([-1, 1]))
    elif name in ("firsts", "counts", "sequences", "epochs", "attempts", "positions") and value:
        value[draw.randrange(len(value))] += draw.choice([-1, 1])
    return getattr(record, name)


def _can_be_written(records: Records) -> bool:
    try:
        for record in records:
            encode("c", 1, record, 0)
    except BrokerError:
        return False
    return True


def change_histories(
    files: dict[str, list[dict[str, Any]]], draw: random.Random
) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """A copy with one line left out, doubled, or with one value changed."""
    while True:
        changed = deepcopy(files)
        lines = changed[draw.choice(sorted(name for name, lines in files.items() if lines))]
        at = draw.randrange(len(lines))
        line = lines[at]
        if line["event"] == "opened":
            continue
        way = draw.choice(["leave out", "double", "refuse", "value", "value"])
        what = f"{way} {line['event']} of {line['name']} {at}"
        if way == "leave out":
            del lines[at]
        elif way == "double":
            lines.insert(at, deepcopy(line))
        elif way == "refuse":
            if line["event"] != "answered":
                continue
            line.update(event="refused", reason="channel-full")
        else:
            names = ("crc", "position", "epoch", "epochs", "firsts", "counts", "sequence_sums")
            found = [item for item in names if item in line]
            if not found:
                continue
            name = draw.choice(found)
            if isinstance(line[name], list):
                line[name][draw.randrange(len(line[name]))] += 1
            else:
                line[name] += 1
            what += f": {name} {line[name]}"
        return changed, what


def numbered(files: Mapping[str, list[dict[str, Any]]]) -> list[Line]:
    """The lines of all clients, each numbered in its own history."""
    return [
        {**line, "n": n, "at_us": n} for lines in files.values() for n, line in enumerate(lines)
    ]


# The cases.


def good_cases() -> Iterator[Case]:
    """Journals in which every promise was kept."""
    for name, records, lines, drained in journals_of_runs():
        yield Case(name, records, lines, drained, good=True)
    for seed in range(STORIES):
        name = f"story-{seed}"
        records = Story(seed).play(90)
        yield Case(name, records, numbered(histories_of(records, name)), good=True)
    for make in (planted.nobody_there, planted.late_behind_parked):
        yield Case(make.__name__, make(), good=True)
    for name, drained in (("good", False), ("good-drained", True)):
        records = planted.good(name, drained)
        lines = numbered(planted.good_histories(records, name))
        yield Case(name, records, lines, drained, good=True)
    yield _cut_histories("good-cut")
    yield Case("silent", planted.good("silent")[:6], good=True)


def _cut_histories(name: str) -> Case:
    """The disks of all clients were full after half of the run; they went on."""
    records = planted.good(name, drained=True)
    files = planted.good_histories(records, name)
    for client, lines in files.items():
        half = lines[: len(lines) // 2]
        files[client] = [*half, {**half[0], "event": "cut"}]
    return Case(name, records, numbered(files), True, good=True)


def bad_cases() -> Iterator[Case]:
    """Journals and histories with one fault each, planted or made at random."""
    for plant, (name, change) in planted.JOURNAL_PLANTS.items():
        yield Case(f"plant-{plant}", change(planted.good()), what=name)
    for plant, (name, alter) in planted.HISTORY_PLANTS.items():
        channel = f"plant-{plant}"
        records = planted.good(channel, drained=True)
        files = alter(planted.good_histories(records, channel))
        yield Case(channel, records, numbered(files), True, what=name)
    for literal in LITERAL:
        yield Case(f"literal-{literal}", [*GOOD_START, *BAD[literal][1]], what=literal)
    ghost = replace(given("a", 2, (3, 3, 1)), subscription="ghost")
    good = [*GOOD_START, sent(1, 10, 10), given("a", 1, (1, 1, 2)), acked("a", 1, 1, 2)]
    yield Case("no-such-subscription", [*good, ghost])
    for number, (told, found) in enumerate(TOLD):
        name = f"batch-{number}"
        lines = [{**line, "channel": name} for line in [_told("opened", 0, 1, []), *told]]
        records = [*GOOD_START, sent(1, 10), given("a", 1, (1, 1, 1)), acked("a", 1, 1, 1)]
        what = ", ".join(found)
        yield Case(name, records, numbered({"p": lines}), True, good=not found, what=what)
    draw = random.Random(20)
    for number in range(JOURNAL_CHANGES):
        base = Story(draw.randrange(STORIES)).play(70) if number % 3 else planted.good()
        records, what = change_journal([_plain(record) for record in base], draw)
        yield Case(f"changed-{number}", records, what=what)
    for number in range(HISTORY_CHANGES):
        name = f"told-{number}"
        records = Story(draw.randrange(STORIES)).play(70)
        files, what = change_histories(histories_of(records, name), draw)
        yield Case(name, records, numbered(files), what=what)
    profiles = list(SIMULATED)
    for number in range(SIMULATED_CHANGES):
        name = f"simulated-changed-{number}"
        records, lines = simulated(profiles[number % len(profiles)], 100 + number, name)
        changed, what = change_journal([_plain(record) for record in records], draw)
        yield Case(name, changed, lines, True, what=what)
        name = f"simulated-told-{number}"
        records, lines = simulated(profiles[number % len(profiles)], 200 + number, name)
        files, what = change_histories(by_client(lines), draw)
        yield Case(name, records, numbered(files), True, what=what)


#: Channels of the store that are damaged after they were written: statement.
DAMAGE = {
    "damaged": "UPDATE records SET at_ms = at_ms + 1 WHERE channel = ? AND sequence = 20",
    "hole": "DELETE FROM records WHERE channel = ? AND sequence = 20",
    "cut-short": "DELETE FROM records WHERE channel = ? AND sequence > 40",
}


# The two oracles.

#: Channel -> (verdict, names).
Opinions = dict[str, tuple[str, set[str]]]


def by_the_checkers(case: Case, lines_first: bool) -> tuple[str, set[str]]:
    """The verdict and the names of the simulator's checkers."""
    judge = Judge()
    for line in case.lines if lines_first else ():
        judge.hear(line)
    for sequence, record in enumerate(case.records, 1):
        judge.watch(sequence, record)
    for line in () if lines_first else case.lines:
        judge.hear(line)
    judge.finish(drained=True)
    return judge.verdict(), _names(judge)


def _names(judge: Judge) -> set[str]:
    """The names, but without what the audit does not look for: the messages of doubtful lines.

    The checkers have said by then what is wrong with them; see simulations/checkers.
    """
    doubtful = {item.where for item in judge.anomalies if item.subject == "progress"}
    return {
        item.name
        for item in judge.anomalies
        if item.subject != "order" or item.where not in doubtful
    }


def of_damaged(store: Path, channel: str) -> tuple[str, set[str]]:
    """The same of a channel that its store cannot read to the end."""
    journal = SqliteJournal(str(store))
    try:
        with pytest.raises(JournalCorrupt) as raised:
            list(journal.read(channel))
    finally:
        journal.close()
    judge, broken_at = Judge(), raised.value.details["sequence"]
    for sequence, record in enumerate(planted.good(channel)[: broken_at - 1], 1):
        judge.watch(sequence, record)
    judge.damaged(broken_at, str(raised.value))
    judge.finish(drained=True)
    return judge.verdict(), _names(judge)


def by_the_audit(session: SparkSession, store: Path, histories: Path) -> Opinions:
    """The verdicts and the names of the Spark audit, of all channels of a store."""
    with pytest.MonkeyPatch.context() as patch:
        # All offenders are to be named, or a name could hide among those that are only counted.
        patch.setattr("spark.audit.OFFENDERS_MAX", 1_000_000)
        # Each channel is read by a task of its own, and here they are many and small.
        patch.setattr("spark.audit.read_records", lambda *args: read_records(*args).coalesce(2))
        place = scan.Place(str(store), None)
        outcome = audit(session, Question(place, None, str(histories), drained=True))
    verdict = outcome.verdict.to_dict()
    outcome.release()
    found: Opinions = {item["channel"]: (item["verdict"], set()) for item in verdict["channels"]}
    for check in verdict["checks"]:
        for offender in check["offenders"]:
            found[offender["channel"]][1].add(check["name"])
    return found


def write(folder: Path, cases: Iterable[Case]) -> Path:
    """All cases as the channels of one store, the histories beside it."""
    channels = {case.name: case.records for case in cases}
    channels |= {name: planted.good(name) for name in DAMAGE}
    store = folder / "store.db"
    planted.write_store(store, channels)
    with closing(sqlite3.connect(store)) as connection:
        for name, statement in DAMAGE.items():
            connection.execute(statement, (name,))
        connection.commit()
    (folder / "histories").mkdir()
    for name, lines in _files(cases).items():
        text = "".join(json.dumps({**line, "n": n}) + "\n" for n, line in enumerate(lines))
        (folder / "histories" / f"{name}.jsonl").write_text(text)
    return store


def _files(cases: Iterable[Case]) -> dict[str, list[Line]]:
    """All histories in one file, which is quick to read, but for those that were cut.

    Only their end and the number of their lines are a matter of the file they are in.
    """
    files: dict[str, list[Line]] = defaultdict(list)
    for case in cases:
        was_cut = any(line["event"] == "cut" for line in case.lines)
        for line in case.lines:
            client = f"{case.name}-{line['name']}-{line['session']}"
            files[client if was_cut else "all"].append(line)
    return files


@dataclass
class Compared:
    """All cases with both opinions."""

    cases: dict[str, Case]
    checkers: Opinions
    lines_first: Opinions
    audit: Opinions


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    """Spark for this file."""
    made = build("local[2]", memory="2g")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Compared:
    """One store, one audit; the checkers twice, with the histories after and before the records."""
    with ThreadPoolExecutor(1) as pool:
        # The real runs mostly wait; meanwhile Java starts.
        runs = pool.submit(runs_with_faults, faulty_directory(tmp_path_factory))
        session: SparkSession = request.getfixturevalue("session")
        session.range(1).count()
        cases = [*good_cases(), *bad_cases()]
        cases += [Case(*run, good=True) for run in runs.result()]
    folder = tmp_path_factory.mktemp("two-oracles")
    store = write(folder, cases)
    checkers = {case.name: by_the_checkers(case, lines_first=False) for case in cases}
    first = {case.name: by_the_checkers(case, lines_first=True) for case in cases}
    checkers |= {name: of_damaged(store, name) for name in DAMAGE}
    return Compared(
        {case.name: case for case in cases}, checkers, first,
        by_the_audit(session, store, folder / "histories"),
    )  # fmt: skip


def test_both_oracles_have_judged_every_channel(compared: Compared) -> None:
    assert compared.checkers.keys() == compared.audit.keys() == {*compared.cases, *DAMAGE}


def test_the_verdicts_agree_on_every_channel(compared: Compared) -> None:
    differing = {
        name: (verdict, compared.audit[name][0])
        for name, (verdict, _) in compared.checkers.items()
        if verdict != compared.audit[name][0]
    }
    assert differing == dict.fromkeys(UNNOTICED, (INVALID, VALID))


def test_the_names_agree_on_every_channel_but_those_that_are_known_to_differ(
    compared: Compared,
) -> None:
    differing = {}
    for name, (_, names) in compared.checkers.items():
        others = compared.audit[name][1]
        if names != others:
            what = compared.cases[name].what if name in compared.cases else ""
            differing[name] = (names - others, others - names, what)
    wanted = {name: (ours, theirs) for name, (ours, theirs, _) in KNOWN.items()}
    assert {name: found[:2] for name, found in differing.items()} == wanted, differing


def test_good_journals_are_good_for_both(compared: Compared) -> None:
    good = [case for case in compared.cases.values() if case.good]
    assert len(good) > STORIES
    for case in good:
        for verdict, names in (compared.checkers[case.name], compared.audit[case.name]):
            assert names <= (set() if case.drained else {"unseen"}), (case.name, names)
            assert verdict == (UNKNOWN if case.name == "silent" else VALID) or names, case.name


def test_planted_faults_have_their_name_for_both(compared: Compared) -> None:
    for case in compared.cases.values():
        if case.name.startswith("plant-"):
            for _, names in (compared.checkers[case.name], compared.audit[case.name]):
                assert names | {"unseen"} == {case.what, "unseen"}, (case.name, names)


def test_it_makes_no_difference_when_the_histories_are_heard(compared: Compared) -> None:
    for name, opinion in compared.lines_first.items():
        assert opinion == compared.checkers[name], name


def test_every_anomaly_was_found_by_both(compared: Compared) -> None:
    for opinions in (compared.checkers, compared.audit):
        found = {name for _, names in opinions.values() for name in names}
        assert found == set(ANOMALIES) - TOPIC_ANOMALIES


def test_most_random_changes_are_faults(compared: Compared) -> None:
    changed = [name for name in compared.cases if name.startswith(("changed-", "told-"))]
    found = [name for name in changed if compared.checkers[name][1] - {"unseen"}]
    assert len(changed) == JOURNAL_CHANGES + HISTORY_CHANGES
    assert len(found) > len(changed) / 2
