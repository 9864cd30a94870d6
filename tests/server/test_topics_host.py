"""The topics of a broker on a real store: waiting, several topics as one, trimming, restarts."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Iterator

import pytest

from broker.core.topics import TopicPolicy
from broker.core.topics import commands as c
from broker.core.topics.log import BODY
from broker.errors import (
    BrokerStopping,
    CallOvertaken,
    JournalError,
    LimitReached,
    NotSubscribed,
    SequenceGap,
    TopicNotFound,
)
from broker.journal.sqlite import SqliteJournal
from broker.server import topics_host
from broker.server.clock import Clock
from broker.server.topics_host import TopicsHost
from broker.server.topics_object import call_checksum
from tests.processes import poll


class Stage:
    """A host on a store that can be closed and opened again."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path, self.settings = path, settings
        self.failures: list[BaseException] = []
        self.open()

    def open(self) -> None:
        """As a broker does when it starts."""
        self.journal = SqliteJournal(str(self.path), "flush")
        self.clock = Clock()
        self.host = TopicsHost(self.journal, self.clock, self.failures.append, **self.settings)
        self.host.recover()

    def restart(self) -> None:
        """Close and open."""
        self.host.close()
        self.journal.close()
        self.open()

    def subscribe(self, client: str, topic: str = "news") -> dict[str, Any]:
        """Without the numbers that a client of ours would send."""
        return self.host.settle(topic, c.Subscribe(client, client), create=True)

    def put(self, client: str, *bodies: bytes, topic: str = "news", **more: Any) -> dict[str, Any]:
        """With the next numbers."""
        size, crc = sum(map(len, bodies)), call_checksum(0, bodies)
        command = c.PutMessages(client, client, more.pop("number", None), 0, bodies, size, crc)
        return self.host.settle(topic, command, create=True, **more)

    def get(
        self, client: str, *received: int, topics: tuple[str, ...] = ("news",), **more: Any
    ) -> list[bytes]:
        """The bodies of what comes next."""
        asked = {
            topic: c.Confirm(client, client, None, upto) for topic, upto in zip(topics, received)
        }
        count, wait_s = more.get("count", 100), more.get("wait_s", 0.0)
        return [item.entry[BODY] for item in self.host.get(asked, count, 1 << 20, wait_s)[0]]


    def seen(self) -> dict[str, Any]:
        """What is to be seen of the topic, but for how much of it is durable by now."""
        found = self.host.statistics("news", 10)
        del found["journal_durable"]
        return found


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "fairlead.db")
    yield made
    made.host.close()
    made.journal.close()
    assert made.failures == []


def test_a_restart_changes_nothing(stage: Stage) -> None:
    stage.subscribe("ann")
    stage.put("p", b"1", b"2", b"3")
    stage.get("ann", 1)
    before = stage.seen()
    stage.restart()
    assert stage.seen() == before
    assert stage.get("ann", 1) == [b"2", b"3"]
    assert stage.put("p", b"4")["position"] == 4


def test_several_topics_are_one_line_in_the_order_of_acceptance(stage: Stage) -> None:
    topics = ("a", "b", "c")
    for topic in topics:
        stage.subscribe("ann", topic)
    wanted = []
    for number in range(12):
        body = b"%d" % number
        stage.put("p", body, topic=topics[number * 7 % 3])
        wanted.append(body)
    assert stage.get("ann", 0, 0, 0, topics=topics) == wanted
    assert stage.get("ann", 0, 0, 0, topics=topics, count=5) == wanted[:5]
    stage.restart()
    assert stage.get("ann", 0, 0, 0, topics=topics) == wanted
    stage.put("p", b"new", topic="a")
    assert stage.get("ann", 0, 0, 0, topics=topics)[-1] == b"new", "stamps go on after a restart"


def test_a_waiting_get_is_woken_by_a_put_to_any_of_its_topics(stage: Stage) -> None:
    for topic in ("a", "b"):
        stage.subscribe("ann", topic)
    got: list[list[bytes]] = []

    def wait() -> None:
        got.append(stage.get("ann", 0, 0, topics=("a", "b"), wait_s=30.0))

    thread = threading.Thread(target=wait)
    thread.start()
    poll(lambda: stage.host._held["b"].waiters, 10, "somebody waits")
    stage.put("p", b"x", topic="b")
    thread.join(10)
    assert got == [[b"x"]]
    assert not stage.host._held["a"].waiters and not stage.host._held["b"].waiters


@pytest.mark.parametrize("ending", ["unsubscribe", "close"])
def test_a_waiting_get_ends_when_there_is_nothing_to_wait_for(stage: Stage, ending: str) -> None:
    stage.subscribe("ann")
    raised: list[Exception] = []

    def wait() -> None:
        try:
            stage.get("ann", 0, wait_s=30.0)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    poll(lambda: stage.host._held["news"].waiters, 10, "somebody waits")
    if ending == "close":
        stage.host.close()
    else:
        stage.host.settle("news", c.Unsubscribe("ann", "ann"))
    thread.join(10)
    (error,) = raised
    assert isinstance(error, BrokerStopping if ending == "close" else NotSubscribed)


def test_a_get_that_is_refused_for_one_topic_confirms_nothing_of_the_others(stage: Stage) -> None:
    for topic in ("a", "b"):
        stage.subscribe("ann", topic)
        stage.put("p", b"1", topic=topic)
    with pytest.raises(Exception, match="the last one is 1"):
        stage.get("ann", 1, 9, topics=("a", "b"))
    assert stage.get("ann", 0, topics=("a",)) == [b"1"]


def test_messages_are_handed_out_only_when_they_are_durable(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.subscribe("ann")
    asked: list[int] = []
    real = stage.journal.wait_durable

    def wait_durable(name: str, sequence: int, *more: Any) -> bool:
        asked.append(sequence)
        return real(name, sequence, *more)

    stage.put("p", b"1")
    monkeypatch.setattr(stage.journal, "durable", lambda name: 0)
    monkeypatch.setattr(stage.journal, "wait_durable", wait_durable)
    assert stage.get("ann", 0) == [b"1"]
    assert asked == [3], "the record of the put, and not what came after it"


def test_a_put_that_got_stuck_is_not_done_after_a_newer_one(stage: Stage) -> None:
    stage.put("p", b"1", number=1, order=(1, 2))
    with pytest.raises(CallOvertaken):
        stage.put("p", b"2", number=2, order=(1, 1))
    with pytest.raises(SequenceGap):
        stage.put("p", b"9", number=9, order=(2, 1))
    assert stage.put("p", b"2", number=2, order=(2, 2))["number"] == 2


def test_what_is_remembered_of_calls_is_bounded(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "small.db", policy=TopicPolicy(client_count_max=2))
    for client in ("ann", "bob"):
        stage.host.settle("news", c.Unsubscribe(client, client, 1), create=True)
    with pytest.raises(LimitReached, match="client_count_max"):
        stage.host.settle("news", c.Unsubscribe("eve", "eve", 1))
    stage.put("ann", b"1", order=(1, 1))
    stage.put("bob", b"1", order=(1, 1))
    with pytest.raises(LimitReached, match="client_count_max"):
        stage.put("eve", b"1", order=(1, 1))
    assert len(stage.host._held["news"]._orders) == len(stage.host._held["news"]._requests) == 2
    stage.host.close()
    stage.journal.close()


# Trimming.


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trim as soon as there is something to trim."""
    monkeypatch.setattr(topics_host, "RELEASE_RECORDS", 1)


def test_what_nobody_is_owed_leaves_the_store_and_a_restart_does_not_miss_it(
    stage: Stage, eager: None
) -> None:
    stage.subscribe("ann")
    stage.subscribe("bob")
    for number in range(20):
        stage.put("p", b"%d" % number)
    stage.get("ann", 20)
    stage.get("bob", 7)
    stage.host.tick()
    first = next(iter(stage.journal.read("topic:news")))[1]
    assert first.position == 8, "the first message that bob is owed"  # type: ignore[attr-defined]
    before = stage.seen()
    stage.restart()
    assert stage.seen() == before
    assert stage.get("bob", 7) == [b"%d" % number for number in range(7, 20)]
    assert stage.get("ann", 20) == []
    with pytest.raises(SequenceGap) as caught:
        stage.put("p", b"x", number=99)
    assert caught.value.details["last"] == 20, "put numbers outlive the trim"
    stage.get("bob", 20)
    stage.host.tick()
    stage.restart()
    assert stage.get("bob", 20) == []
    assert stage.put("p", b"20")["position"] == 21


def test_a_trim_in_the_middle_of_a_batch_keeps_the_batch(stage: Stage, eager: None) -> None:
    stage.subscribe("ann")
    stage.put("p", b"0", b"1", b"2", b"3")
    stage.put("p", b"4")
    stage.get("ann", 2)
    stage.host.tick()
    stage.restart()
    assert stage.get("ann", 2) == [b"2", b"3", b"4"]
    stage.put("p", b"5")
    stage.get("ann", 4)
    stage.host.tick()
    stage.restart()
    assert stage.get("ann", 4) == [b"4", b"5"]


def test_with_release_off_everything_is_kept(tmp_path: Path, eager: None) -> None:
    stage = Stage(tmp_path / "kept.db", release=False)
    stage.subscribe("ann")
    stage.put("p", b"1")
    stage.get("ann", 1)
    stage.host.tick()
    poll(lambda: stage.journal.durable("topic:news") == 4, 10, "the confirmation is written")
    assert len(list(stage.journal.read("topic:news"))) == 4
    stage.host.close()
    stage.journal.close()


def test_a_trim_that_fails_is_put_off(
    stage: Stage, eager: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.subscribe("ann")
    stage.put("p", b"1")
    stage.get("ann", 1)

    def fail(*_: Any) -> int:
        raise JournalError("busy")

    with monkeypatch.context() as patch:
        patch.setattr(stage.journal, "trim", fail)
        stage.host.tick()
    assert stage.journal.base("topic:news").sequence == 0
    stage.host.tick()
    assert stage.journal.base("topic:news").sequence == 4


def test_a_topic_that_nobody_uses_is_removed_when_all_is_forgotten(tmp_path: Path) -> None:
    gone: list[str] = []
    stage = Stage(tmp_path / "forgetful.db", remember_s=0.0)
    stage.host.on_dropped = gone.append
    stage.subscribe("ann")
    born = stage.put("p", b"1")["born"]
    stage.host.tick()
    assert stage.host.topics() == ["news"], "ann is owed something"
    stage.host.settle("news", c.Unsubscribe("ann", "ann"))
    stage.host.tick()
    assert stage.host.topics() == gone[1:] == [] and gone == ["news"]
    assert stage.journal.channels() == []
    with pytest.raises(TopicNotFound):
        stage.host.statistics("news")
    assert stage.put("p", b"1")["born"] > born, "it is told from the one before"
    stage.restart()
    assert stage.host.topics() == ["news"]
    stage.host.close()
    stage.journal.close()


@pytest.mark.parametrize("subscribers", [1, 200])
def test_a_put_is_one_record_however_many_are_owed_it(stage: Stage, subscribers: int) -> None:
    for number in range(subscribers):
        stage.subscribe(f"client-{number}")
    before = stage.journal.durable("topic:news")
    stage.put("p", b"x")
    assert stage.journal.durable("topic:news") == before + 1
    assert len(stage.host._held["news"].topic.log) == 1


def test_a_million_messages_leave_neither_memory_nor_store(tmp_path: Path) -> None:
    """Two subscribers that keep up: what stays is a bit of the last that was not trimmed yet."""
    stage = Stage(tmp_path / "million.db", policy=TopicPolicy(backlog_count_max=50_000))
    for client in ("ann", "bob"):
        stage.subscribe(client)
    bodies = [b"x" * 300] * 5_000
    sizes: list[int] = []
    resident: list[int] = []
    for number in range(1, 201):
        stage.put("p", *bodies)
        upto = number * 5_000
        for client in ("ann", "bob"):
            assert len(stage.get(client, upto - 5_000, count=1)) == 1
            stage.get(client, upto)
        if number % 10 == 0:
            stage.host.tick()
            sizes.append(stage.journal.size_bytes())
            resident.append(resident_bytes())
    topic = stage.host._held["news"].topic
    assert topic.put_total == 1_000_000 and len(topic.log) == 0 and topic.log.size == 0
    assert len(topic.log._entries) <= 10_000
    stage.host.close()
    stage.journal.close()
    # 300 MB went through. What is trimmed is used again; how much lies in the store's log at a
    # moment depends on when it is folded.
    assert max(sizes) < 180e6, sizes
    assert resident[-1] - resident[4] < 30e6, resident


def resident_bytes() -> int:
    """What this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
