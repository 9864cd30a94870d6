"""What the clients write about themselves: the exact lines, and that they are there in time."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any, Iterator

import pytest

from broker.core.policy import Policy
from broker.errors import BadRequest, BrokerUnavailable, ChannelFull, PublisherFenced
from broker.history import MemoryHistory, read
from broker.journal.sqlite import SqliteJournal
from broker.remote.pipeline import Pipeline
from broker.server.service import Service
from publisher import Publisher
from publisher.history import PublisherHistory, checksum, publisher_identity
from publisher.outbox import Call, Outbox
from subscriber import Message, Subscriber, settler
from subscriber.history import SubscriberHistory, subscriber_identity
from subscriber.session import Session
from tests.conftest import Serve
from tests.processes import ROOT, poll, run_fairlead

POLICY = Policy(backoff_ms=20, lease_ms=3_000, send_backoff_ms=20, pending_count_max=30_000)


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(policy=POLICY, tick_s=0.02, durability="flush")


def lines_of(folder: Path, client: str = "") -> list[dict[str, Any]]:
    """The lines of the one history of that client in the folder."""
    (path,) = folder.glob(f"{client}*.jsonl")
    return list(read(path))


def bare(line: dict[str, Any]) -> dict[str, Any]:
    """A line without what is the same in all of one file, or different in each run."""
    common = ("client", "name", "session", "channel", "subscription", "n", "at_us")
    return {key: value for key, value in line.items() if key not in common}


def events(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


def finished_positions(lines: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """(epoch, position) of everything that is finished, as often as it is."""
    return [
        (epoch, position)
        for line in lines
        if line["event"] == "finished"
        for epoch, first, count in zip(line["epochs"], line["firsts"], line["counts"])
        for position in range(first, first + count)
    ]


# A simple life, line by line.


def test_a_publisher_writes_what_it_sent_and_what_was_confirmed(
    names: str, tmp_path: Path
) -> None:
    folder = tmp_path / "made" / "on demand"
    before = time.time_ns() // 1000
    with Publisher('b"\u00e4/1', "orders", name_server=names, history=str(folder)) as publisher:
        publisher.publish_many([b"1", b"2", b"3"], ["a", 'q"\u20ac\\', "a"]).result(10)
        publisher.publish(b"4", "a").result(10)
        epoch = publisher.epoch
    (path,) = folder.iterdir()
    assert path.name.startswith(f"publisher-b%22%C3%A4%2F1-{epoch}-") and path.suffix == ".jsonl"
    assert path.read_bytes().endswith(b"}\n"), "closing cuts the file to its length"
    lines = list(read(path))
    assert [line["n"] for line in lines] == list(range(6))
    stamps = [line["at_us"] for line in lines]
    assert stamps == sorted(stamps) and before <= stamps[0] <= time.time_ns() // 1000
    for line in lines:
        assert list(line)[:7] == ["client", "name", "session", "channel", "n", "at_us", "event"]
        assert [line[key] for key in ("client", "name", "session", "channel")] == [
            "publisher", 'b"\u00e4/1', str(epoch), "orders",
        ]  # fmt: skip
    records = [line["record"] for line in lines if line["event"] == "answered"]
    assert records == sorted(set(records)) and records[0] > 0
    first = {"call": 1, "partitions": ["a", 'q"\u20ac\\'], "firsts": [1, 1], "counts": [2, 1]}
    second = {"call": 2, "partitions": ["a"], "firsts": [3], "counts": [1]}
    tried = {"event": "tried", "epoch": epoch, "resent": False}
    answered = {"event": "answered", "duplicates": 0}
    assert [bare(line) for line in lines] == [
        {"event": "opened", "epoch": epoch},
        {**tried, **first, "crc": zlib.crc32(b"132")},
        {**answered, **first, "record": records[0]},
        {**tried, **second, "crc": zlib.crc32(b"4")},
        {**answered, **second, "record": records[1]},
        {"event": "closed", "open": 0},
    ]


def test_a_subscriber_writes_what_it_started_finished_and_failed(
    service: Service, names: str, tmp_path: Path
) -> None:
    with Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish_many([b"x"] * 5, "k")
    worker = Subscriber("w", "orders", name_server=names, history=tmp_path / "h")

    @worker.handler
    def handle(message: Message) -> None:
        if message.sequence == 4 and message.attempt == 1:
            raise ValueError("no\nluck")

    assert worker.run(count=6, signals=False) == 6
    lines = lines_of(tmp_path / "h")
    session = lines[0]["session"]
    for number, line in enumerate(lines):
        assert list(line)[:8] == [
            "client", "name", "session", "channel", "subscription", "n", "at_us", "event",
        ]  # fmt: skip
        assert list(line.values())[:6] == [
            "subscriber", "w", session, "orders", "default", number,
        ]  # fmt: skip
    (path,) = (tmp_path / "h").iterdir()
    assert path.name.startswith(f"subscriber-w-{session}-")
    shown = [bare(line) for line in lines]
    assert events(lines[:3]) == ["opened", "subscribed", "started"]
    assert shown[1]["resumed"] is False and shown[1]["generation"] > 0
    started = [line for line in shown if line["event"] == "started"]
    one, two = started[0]["epoch"], started[1]["epoch"]
    where = {"event": "started", "publisher": "p", "partition": "k"}
    assert started[:2] == [  # the fifth may come under an epoch of its own
        {**where, "epoch": one, "position": 1, "sequence": 1, "attempt": 1},
        {**where, "epoch": two, "position": 4, "sequence": 4, "attempt": 2},
    ]
    (failed,) = [line for line in shown if line["event"] == "failed"]
    assert failed == {
        "event": "failed", "epoch": one, "position": 4, "sequence": 4, "attempt": 1,
        "reason": "ValueError: no\nluck",
    }  # fmt: skip
    finished = [line for line in shown if line["event"] == "finished"]
    assert set(finished[0]) == {"event", "epochs", "firsts", "counts", "sequence_sums"}
    handled = sorted(finished_positions(shown))
    assert [position for _, position in handled] == [1, 2, 3, 4, 5]
    assert [epoch for epoch, _ in handled][:4] == [one, one, one, two]
    assert sum(sum(line["sequence_sums"]) for line in finished) == 1 + 2 + 3 + 4 + 5
    assert lines[-1]["event"] == "closed" and events(lines).count("closed") == 1


def test_each_message_behind_a_slow_one_has_a_line_of_its_own(names: str, tmp_path: Path) -> None:
    with Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish_many([b"x"] * 40, "k")
    worker = Subscriber("w", "orders", name_server=names, history=tmp_path)
    slow = {7, 8, 20}
    clock = time.monotonic

    @worker.handler
    def handle(message: Message) -> None:
        if message.sequence in slow:
            until = clock() + 0.005
            while clock() < until:
                pass

    worker.run(count=40, signals=False)
    started = {line["position"] for line in lines_of(tmp_path) if line["event"] == "started"}
    assert {1, 8, 9, 21} <= started, "more only if the machine held a fast one up"
    assert len(started) < 30


def test_a_started_line_is_in_the_file_when_the_handler_runs(names: str, tmp_path: Path) -> None:
    with Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish(b"x", "k")
    worker = Subscriber("w", "orders", name_server=names, history=tmp_path)
    seen: list[str] = []
    worker.handler(lambda message: seen.extend(events(lines_of(tmp_path))))
    worker.run(count=1, signals=False)
    assert seen == ["opened", "subscribed", "started"]


# Acks, and the line before them.


def test_no_ack_is_sent_before_its_finished_line_is_written(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish_many([b"x"] * 2_000, [f"k{i % 16}" for i in range(2_000)])
    uncovered: list[Any] = []
    real = settler.invoke

    def invoke(proxy: Any, method: str, *arguments: Any) -> Any:
        if method == "settle":
            written = set(finished_positions(lines_of(tmp_path)))
            acks = set(zip(arguments[3], arguments[4]))
            uncovered.extend(acks - written)
        return real(proxy, method, *arguments)

    monkeypatch.setattr(settler, "invoke", invoke)
    worker = Subscriber("w", "orders", name_server=names, concurrency=3, history=tmp_path)
    worker.handler(lambda message: None)
    worker.run(count=2_000, signals=False)
    assert not uncovered
    lines = lines_of(tmp_path)
    assert [line["n"] for line in lines] == list(range(len(lines))), "three workers, one order"
    positions = finished_positions(lines)
    assert len(positions) == len(set(positions)) == 2_000
    sums = sum(sum(line["sequence_sums"]) for line in lines if line["event"] == "finished")
    assert sums == 16 * sum(range(1, 126))


def test_a_recognised_message_is_not_finished_again() -> None:
    session = Session()
    session.recording = True

    def batch(epoch: int, first: int, count: int) -> dict[str, Any]:
        return {
            "publishers": "p", "partitions": ["k"], "epochs": [epoch], "firsts": [first],
            "counts": [count], "sequences": [first + 10], "attempts": None, "timestamps": 1,
            "priorities": None, "formats": 0, "extras": None, "bodies": [b"x"] * count,
        }  # fmt: skip

    def handle(count: int) -> None:
        (taken,) = session.take(1)
        for _ in range(count):
            item = taken.items[taken.cursor]
            taken.cursor += 1
            taken.seen = (item[0], taken.seen[1] + item[3])
            taken.done = item[0]
        session.put_back(taken)

    session.receive(batch(5, 1, 3))
    handle(2)
    assert session.take_acks() == ([5], [2], [])
    assert session.take_finished() == ([5], [1], [2], [11 + 12])
    assert session.take_finished() is None
    handle(1)
    session.lose([5])  # the third was handled and has no line yet; no ack of the three got through
    session.receive(batch(9, 1, 5))
    assert session.take_acks() == ([9], [3], []), "recognised, and acknowledged again"
    assert session.take_finished() == ([5], [3], [1], [13])
    handle(2)
    assert session.take_finished() == ([9], [4], [2], [14 + 15])
    assert session.take_finished() is None and not session._recorded


def test_what_a_made_anew_subscription_interrupts_is_not_noted_under_a_wrong_epoch() -> None:
    session = Session()
    session.recording = True
    session.receive(
        {
            "publishers": "p", "partitions": ["k"], "epochs": [5], "firsts": [1], "counts": [2],
            "sequences": [1], "attempts": None, "timestamps": 1, "priorities": None, "formats": 0,
            "extras": None, "bodies": [b"x"] * 2,
        }
    )  # fmt: skip
    (taken,) = session.take(1)
    taken.cursor = taken.started = 1
    session.forget()
    taken.seen, taken.done = (1, 1), 1
    session.put_back(taken)
    assert session.take_finished() is None


# Killed.

KILLED = """
import os, signal, sys
from subscriber import Subscriber
worker = Subscriber("w", "orders", name_server=sys.argv[1], history=sys.argv[2], concurrency=2)
seen = set()
@worker.handler
def handle(message):
    seen.add(message.sequence)
    if sys.argv[3] == "in the handler" and message.sequence == 3:
        os.kill(os.getpid(), signal.SIGKILL)
worker.run()
"""


@pytest.fixture
def killed(names: str, tmp_path: Path) -> Iterator[Any]:
    """Starts the subscriber above in a process of its own, with its history in ``h``."""
    running: list[subprocess.Popen[bytes]] = []

    def start(how: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", KILLED, names, str(tmp_path / "h"), how]
        running.append(subprocess.Popen(command, cwd=ROOT))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_a_handler_that_kills_its_process_leaves_started_without_finished(
    names: str, tmp_path: Path, killed: Any
) -> None:
    process = killed("in the handler")
    with Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish(b"x", "k")
        publisher.publish(b"x", "k").result(10)
        folder = tmp_path / "h"
        poll(
            lambda: folder.exists() and len(finished_positions(lines_of(folder))) == 2,
            20, "two are finished",
        )  # fmt: skip
        publisher.publish(b"x", "k")
        assert process.wait(20) == -signal.SIGKILL
    (path,) = folder.iterdir()
    assert path.stat().st_size > path.read_bytes().index(b"\0"), "nobody has cut it to its length"
    lines = list(read(path))
    last = [line for line in lines if line["event"] == "started"][-1]
    assert last == lines[-1] and (last["position"], last["sequence"]) == (3, 3)
    assert {position for _, position in finished_positions(lines)} == {1, 2}


@pytest.mark.parametrize("seed", range(3))
def test_after_a_kill_under_load_every_ack_in_the_journal_has_its_finished_line(
    service: Service, names: str, tmp_path: Path, killed: Any, seed: int
) -> None:
    goal = random.Random(seed).randrange(200, 12_000)
    with Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish_many([b"x"] * 20_000, [f"k{i % 16}" for i in range(20_000)])
        publisher.flush(30)
    process = killed("from outside")

    def acked() -> bool:
        found: int = service.overview()[0]["subscriptions"]["default"]["acked_total"]
        return found >= goal

    poll(acked, 30, "enough is acknowledged")
    process.kill()
    process.wait()
    service.close()
    journal = SqliteJournal(str(tmp_path / "store.db"))
    acks = {
        (epoch, position)
        for _, record in journal.read("orders")
        if record.kind == "Acked"
        for epoch, first, count in zip(record.epochs, record.firsts, record.counts)
        for position in range(first, first + count)
    }
    journal.close()
    lines = lines_of(tmp_path / "h")
    positions = finished_positions(lines)
    assert len(acks) >= goal
    assert acks <= set(positions)
    assert len(positions) == len(set(positions))
    assert events(lines)[-1] != "closed"
    begun = {line["epoch"] for line in lines if line["event"] == "started"}
    assert {epoch for epoch, _ in positions} <= begun


# A publisher in trouble.


def test_a_call_is_in_the_file_before_it_is_sent_and_answered_only_once_it_is_durable(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Pipeline.send
    seen: list[list[str]] = []

    def look_and_send(pipeline: Pipeline, *arguments: Any) -> None:
        seen.append(events(lines_of(tmp_path)))
        send(pipeline, *arguments)

    monkeypatch.setattr(Pipeline, "send", look_and_send)
    with Publisher("p", "orders", name_server=names, history=tmp_path) as publisher:
        publisher.publish(b"1").result(10)
    assert seen == [["opened", "tried"]]

    book, box = in_memory()
    box.add("a", b"1", 0, 1, 0, None)
    call = next_call(box)
    book.tried(call)
    reply = {"accepted": 1, "duplicates": 0, "refused": 0, "room": 9, "record": 7, "durable": 6}
    box.answered(call, reply)
    assert shown(book)[1:] == [("tried", False)]
    box.durable(7)
    assert shown(book)[1:] == [("tried", False), ("answered", 0)]


def test_a_cut_connection_is_tried_unknown_tried_again_answered(
    names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive = Pipeline.receive
    cuts = [1]

    def cut(pipeline: Pipeline) -> Any:
        answer = receive(pipeline)
        if cuts:
            cuts.pop()
            raise pipeline._broken("an answer", ConnectionError("cut"))
        return answer

    monkeypatch.setattr(Pipeline, "receive", cut)
    with Publisher("p", "orders", name_server=names, history=tmp_path) as publisher:
        publisher.publish_many([b"1", b"2"], ["a", "b"]).result(10)
    lines = lines_of(tmp_path)
    assert events(lines) == ["opened", "tried", "unknown", "tried", "answered", "closed"]
    first, unknown, again, answered = map(bare, lines[1:5])
    assert unknown == {"event": "unknown", "calls": [1]}
    assert (first.pop("resent"), again.pop("resent")) == (False, True)
    assert first == again, "the same call, sequences and bodies"
    assert answered["call"] == 1 and answered["duplicates"] == 2, "it had got through before"


def test_what_a_publisher_gives_up_is_unknown_and_open_at_the_end(
    service: Service, names: str, tmp_path: Path
) -> None:
    publisher = Publisher(
        "p", "orders", name_server=names, history=tmp_path, give_up_s=0.3, timeout_s=1.0
    )
    service.close()
    assert isinstance(publisher.publish(b"x").error(20), BrokerUnavailable)
    publisher.close()
    lines = lines_of(tmp_path)
    assert set(events(lines)[1:-1]) == {"tried", "unknown"} and lines[-2]["event"] == "unknown"
    assert bare(lines[-1]) == {"event": "closed", "open": 1}


def test_what_a_full_channel_refuses_is_in_a_refused_line(serve: Serve, tmp_path: Path) -> None:
    service = serve(policy=Policy(pending_count_max=5), durability="flush")
    names = f"127.0.0.1:{service.names.port}"
    publisher = Publisher(
        "p", "orders", name_server=names, on_full="refuse", history=tmp_path / "h"
    )
    receipts = publisher.publish_many([b"x"] * 8, ["a", "a", "a", "b", "b", "b", "b", "b"])
    assert sum(isinstance(r.error(10), ChannelFull) for r in receipts) == 3
    publisher.close()
    lines = lines_of(tmp_path / "h")
    assert events(lines) == ["opened", "tried", "refused", "answered", "closed"]
    assert bare(lines[2]) == {
        "event": "refused", "call": 1, "partitions": ["b"], "firsts": [3], "counts": [3],
        "reason": "channel-full",
    }  # fmt: skip
    assert (lines[3]["firsts"], lines[3]["counts"]) == ([1, 1], [3, 2])
    assert lines[4]["open"] == 0


def test_what_a_fenced_publisher_had_sent_stays_unknown(names: str, tmp_path: Path) -> None:
    """A copy of the call may have been done before the newer publisher came."""
    old = Publisher("p", "orders", name_server=names, history=tmp_path)
    with Publisher("p", "orders", name_server=names):
        assert isinstance(old.publish(b"x", "a").error(10), PublisherFenced)
    old.close()
    lines = [bare(line) for line in lines_of(tmp_path)]
    assert lines[2:] == [{"event": "unknown", "calls": [1]}, {"event": "closed", "open": 1}]

    book, box = in_memory()
    box.add("a", b"1", 0, 1, 0, None)
    book.tried(next_call(box))
    box.unknown()
    again = next_call(box)
    book.tried(again)
    book.refused_whole(again, "publisher-fenced")
    box.fail(PublisherFenced("fenced"))
    book.closed()
    assert shown(book)[1:] == [
        ("tried", False), ("unknown", [1]), ("tried", True), ("unknown", [1]), ("closed", 1),
    ]  # fmt: skip


def test_the_rest_of_a_split_call_is_a_new_call() -> None:
    book, box = in_memory()
    for name in ("a", "a", "b"):
        box.add(name, name.encode(), 0, 1, 0, None)
    call = next_call(box)
    book.tried(call)
    runs = [[1, 0, "full", 2, 0], [0, 0, "gap", 1, 0]]
    reply = {
        "accepted": 1, "duplicates": 0, "refused": 2, "room": 0, "record": 7, "durable": 6,
        "runs": runs, "known": [], "limit": 7, "retry_after_ms": 5,
    }  # fmt: skip
    box.answered(call, reply)
    box.unknown()
    book.tried(next_call(box))
    box.answered(call, {**reply, "refused": 0, "room": 99, "durable": 7, "duplicates": 1,
                        "runs": [[1, 1, None, 2, 1]]})  # fmt: skip
    rest = next_call(box)
    book.tried(rest)
    found = [bare(json.loads(line)) for line in book_lines(book)]
    assert [line["event"] for line in found] == [
        "opened", "tried", "refused", "refused", "unknown", "tried", "answered", "tried",
    ]  # fmt: skip
    full, gap = found[2:4]
    assert (full["partitions"], full["firsts"], full["counts"]) == (["a"], [2], [1])
    assert (full["reason"], gap["reason"]) == ("channel-full", "sequence-gap")
    assert found[5] == {**found[1], "partitions": ["a"], "firsts": [1], "counts": [1],
                        "crc": zlib.crc32(b"a"), "resent": True}  # fmt: skip
    assert (found[6]["call"], found[6]["record"], found[6]["duplicates"]) == (1, 7, 1)
    assert (found[7]["call"], found[7]["resent"], found[7]["firsts"]) == (2, False, [2, 1])


def test_the_checksum_is_that_of_the_joined_bodies_at_any_length() -> None:
    for size in (0, 1, 5_120, 5_121, 70_000, 300_000):
        bodies = [random.Random(size).randbytes(size), b"tail"]
        assert checksum(bodies) == zlib.crc32(b"".join(bodies))


# Without a broker.


def in_memory() -> tuple[PublisherHistory, Outbox]:
    memory = MemoryHistory(publisher_identity("p", 3, "orders"), lambda: 5)
    book = PublisherHistory(memory.append, 3)
    book.memory = memory  # type: ignore[attr-defined]
    box = Outbox(10, 1 << 20, False, 2)
    box.watcher = book
    return book, box


def book_lines(book: PublisherHistory) -> list[str]:
    found: list[str] = book.memory.lines  # type: ignore[attr-defined]
    return found


def shown(book: PublisherHistory) -> list[tuple[str, Any]]:
    """Each event with the last member of its line."""
    lines = [json.loads(line) for line in book_lines(book)]
    return [(line["event"], list(line.values())[-1]) for line in lines]


def next_call(box: Outbox) -> Call:
    call = box.next_call()
    assert isinstance(call, Call)
    return call


def test_a_history_in_memory_has_the_lines_that_a_file_would_have() -> None:
    ticks = iter(range(100, 200))
    memory = MemoryHistory(subscriber_identity("w", "s", "orders", "g"), lambda: next(ticks))
    book = SubscriberHistory(memory.append)
    book.started("p", "k\u0000", 1, 2, 3, 4)
    assert memory.lines == [
        '{"client":"subscriber","name":"w","session":"s","channel":"orders","subscription":"g",'
        '"n":0,"at_us":100,"event":"opened"}',
        '{"client":"subscriber","name":"w","session":"s","channel":"orders","subscription":"g",'
        '"n":1,"at_us":101,"event":"started","publisher":"p","partition":"k\\u0000","epoch":1,'
        '"position":2,"sequence":3,"attempt":4}',
    ]
    book.failed(1, 2, 3, 4, "odd \ud800 text")
    assert json.loads(memory.lines[2])["reason"] == "odd ? text"


# Off, and in the way.


def test_without_a_directory_nothing_is_written(names: str, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    with Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish(b"x").result(10)
        assert not publisher.history_failed
    worker = Subscriber("w", "orders", name_server=names)
    worker.handler(lambda message: None)
    worker.run(count=1, signals=False)
    assert not worker.history_failed and set(tmp_path.iterdir()) == before


def test_a_directory_that_cannot_be_written_is_an_error_of_the_constructor(
    service: Service, names: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with Publisher("p", "orders", name_server=names) as live:
        with pytest.raises(BadRequest, match="history=.*file/h.* cannot be used"):
            Publisher("p", "orders", name_server=names, history=tmp_path / "file" / "h")
        assert live.publish(b"x").result(10), "and the id was not opened anew"
    with pytest.raises(BadRequest, match="history=.* cannot be used"):
        Subscriber("w", "orders", name_server=names, history=tmp_path / "file")


def test_the_commands_write_histories_too(names: str, tmp_path: Path) -> None:
    where = ("--history", tmp_path / "h")
    done = run_fairlead("pub", "orders", "one", "two", *where, name_server=names)
    assert done.returncode == 0, done.stderr
    done = run_fairlead("sub", "orders", "--count", 2, *where, name_server=names)
    assert done.stdout.split() == ["one", "two"]
    assert events(lines_of(tmp_path / "h", "publisher"))[-1] == "closed"
    assert len(finished_positions(lines_of(tmp_path / "h", "subscriber"))) == 2


def test_a_long_id_still_makes_a_file(tmp_path: Path) -> None:
    subscriber = Subscriber("\u20ac" * 200, "orders", history=tmp_path)
    subscriber.close()
    assert [line["name"] for line in lines_of(tmp_path)] == ["\u20ac" * 200] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_nothing_into_the_parents_file(names: str, tmp_path: Path) -> None:
    worker = Subscriber("w", "orders", name_server=names, history=tmp_path)
    book = worker._shared.history
    assert book is not None
    child = os.fork()
    if not child:
        try:
            book.started("p", "child", 1, 1, 1, 1)
            worker.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    book.started("p", "parent", 1, 1, 1, 1)
    worker.close()
    assert [line.get("partition", line["event"]) for line in lines_of(tmp_path)] == [
        "opened", "parent", "closed",
    ]  # fmt: skip


FULL = """
import resource, sys
from publisher import Publisher
resource.setrlimit(resource.RLIMIT_FSIZE, (200 << 10, resource.RLIM_INFINITY))
with Publisher("p", "orders", name_server=sys.argv[1], history=sys.argv[2]) as publisher:
    for _ in range(40):
        publisher.publish_many([b"x"] * 100, [f"{i}" * 50 for i in range(100)]).result(20)
    assert publisher.history_failed
"""


def test_a_full_disk_ends_the_history_and_not_the_client(
    service: Service, names: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", FULL, names, str(tmp_path / "h")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("it cannot grow") == 1
    assert service.overview()[0]["published_total"] == 4_000
    lines = lines_of(tmp_path / "h")
    assert [line["n"] for line in lines] == list(range(len(lines)))
    assert events(lines)[-1] == "cut" and "closed" not in events(lines)
    (path,) = (tmp_path / "h").iterdir()
    assert b"\0" not in path.read_bytes()


def test_several_threads_may_write_at_a_time(tmp_path: Path) -> None:
    worker = Subscriber("w", "orders", history=tmp_path)
    book = worker._shared.history
    assert book is not None
    threads = [
        threading.Thread(
            target=lambda name=f"t{t}": [book.started("p", name, 1, i, i, 1) for i in range(3_000)]
        )
        for t in range(4)
    ]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet in the middle of a line
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    worker.close()
    lines = lines_of(tmp_path)
    assert [line["n"] for line in lines] == list(range(12_002))
    for t in range(4):
        mine = [line["position"] for line in lines if line.get("partition") == f"t{t}"]
        assert mine == list(range(3_000)), "over several windows of the file"
