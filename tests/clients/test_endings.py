"""How clients end when something does not: threads end, and histories say all that was handled."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from broker import history
from broker.core.policy import Policy
from broker.errors import BadRequest, BrokerError, BrokerUnavailable, SubscriberReplaced
from broker.history import read
from broker.remote.pipeline import Pipeline
from broker.server.service import Service
from publisher import Publisher
from subscriber import Message, Subscriber, keeper, settler
from subscriber.history import SubscriberHistory
from subscriber.shared import Shared
from subscriber.workers import Workers
from tests.conftest import Serve
from tests.processes import ROOT, poll

POLICY = Policy(backoff_ms=20, lease_ms=1_000, send_backoff_ms=20)


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(policy=POLICY, tick_s=0.02, durability="flush")


class Held:
    """A subscriber with a history, each of whose messages waits until it is let go."""

    def __init__(self, names: str, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.begun: list[str] = []
        self._gates: dict[str, threading.Event] = {}
        self.worker = Subscriber("w", "orders", name_server=names, history=folder, **options)
        self.worker.handler(self._handle)

    def _handle(self, message: Message) -> None:
        gate = self._gates.setdefault(message.partition, threading.Event())
        self.begun.append(message.partition)
        assert gate.wait(60)

    def await_begun(self, count: int) -> None:
        poll(lambda: len(self.begun) >= count, 10, f"{count} handlers run")

    def let_go(self, partition: str) -> None:
        self._gates[partition].set()

    def alive(self) -> list[str]:
        return [thread.name for thread in self.worker._threads if thread.is_alive()]

    def await_end(self) -> None:
        poll(lambda: not self.alive(), 10, "all threads have ended")

    def path(self) -> Path:
        (path,) = self.folder.glob("*.jsonl")
        return path

    def lines(self) -> list[dict[str, Any]]:
        return list(read(self.path()))

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines() if line["event"] != "subscribed"]

    def finished_count(self) -> int:
        return sum(sum(line["counts"]) for line in self.lines() if line["event"] == "finished")

    def check_ended(self, finished: int) -> None:
        """The threads end, each handled message is in one line, and the file is cut."""
        self.await_end()
        assert b"\0" not in self.path().read_bytes()
        assert self.events()[-1] == "closed" and self.events().count("closed") == 1
        assert self.finished_count() == finished


def publish(names: str, *partitions: str) -> None:
    with Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish_many([b"x"] * len(partitions), list(partitions)).result(10)


def handled_by_another(names: str, count: int) -> list[str]:
    """What a second subscriber is given."""
    seen: list[str] = []
    other = Subscriber("other", "orders", name_server=names)
    other.handler(lambda message: seen.append(message.partition))
    with other:
        poll(lambda: len(seen) >= count, 15, "another subscriber gets the messages")
    return seen


# A handler that outlives close.


def test_a_handler_that_outlives_close_is_finished_in_the_history_and_the_threads_end(
    service: Service, names: str, tmp_path: Path
) -> None:
    publish(names, "a")
    held = Held(names, tmp_path / "h", stop_s=0.2)
    held.worker.start()
    held.await_begun(1)
    held.worker.close()
    assert held.events() == ["opened", "started"] and held.alive()
    assert handled_by_another(names, 1) == ["a"], "it was given back with the leaving"
    held.let_go("a")
    held.check_ended(finished=1)
    assert held.events() == ["opened", "started", "finished", "closed"]
    held.worker.close()
    held.check_ended(finished=1)


def test_one_that_ends_while_another_runs_on_after_close_is_noted_at_once(
    service: Service, names: str, tmp_path: Path
) -> None:
    publish(names, "a", "b", "c")
    held = Held(names, tmp_path / "h", stop_s=0.2, concurrency=3)
    runner = threading.Thread(target=lambda: held.worker.run(count=3, signals=False))
    runner.start()
    held.await_begun(3)
    held.worker.stop()
    runner.join(20)
    assert not runner.is_alive() and held.finished_count() == 0
    for number, partition in enumerate(["b", "a"], 1):
        held.let_go(partition)
        poll(lambda n=number: held.finished_count() == n, 10, f"{number} of three are noted")
        assert held.events()[-1] == "finished", "the last one still runs"
    held.let_go("c")
    held.check_ended(finished=3)


def test_a_counted_run_with_several_workers_finishes_exactly_that_many(
    service: Service, names: str, tmp_path: Path
) -> None:
    publish(names, *"abcdef")
    held = Held(names, tmp_path / "h", concurrency=4)
    for partition in "abcdef":
        held._gates[partition] = threading.Event()
    counts: list[int] = []
    runner = threading.Thread(
        target=lambda: counts.append(held.worker.run(count=3, signals=False))
    )
    runner.start()
    held.await_begun(3)
    for partition in list(held.begun):
        held.let_go(partition)
    runner.join(20)
    assert counts == [3] and len(held.begun) == 3
    held.check_ended(finished=3)


# The broker is away, refuses, or has somebody else.


def test_close_during_an_outage_ends_the_threads_and_the_history(
    service: Service, names: str, tmp_path: Path
) -> None:
    publish(names, "a", "b")
    held = Held(names, tmp_path / "h", stop_s=0.5, concurrency=2, timeout_s=1.0)
    held.worker.start()
    held.await_begun(2)
    service.close()
    held.let_go("a")
    poll(lambda: held.finished_count() == 1, 10, "it is noted although no ack gets through")
    held.worker.close()
    assert held.events()[-1] != "closed"
    held.let_go("b")
    held.check_ended(finished=2)


def test_while_close_waits_for_a_handler_acks_wait_for_a_broker_that_is_away(
    service: Service, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(names, "a", "b")
    held = Held(names, tmp_path / "h", concurrency=2)
    held.worker.start()
    held.await_begun(2)
    away = threading.Event()
    away.set()
    failures: list[str] = []
    real = settler.invoke

    def invoke(proxy: Any, method: str, *arguments: Any) -> Any:
        if away.is_set():
            failures.append(method)
            raise BrokerUnavailable("away")
        return real(proxy, method, *arguments)

    monkeypatch.setattr(settler, "invoke", invoke)
    held.let_go("a")
    held.worker.stop()
    poll(lambda: len(failures) > settler.LAST_ATTEMPTS_MAX + 1, 20, "it goes on trying")
    away.clear()
    held.let_go("b")
    held.worker.close()
    held.check_ended(finished=2)
    assert service.overview()[0]["subscriptions"]["default"]["acked_total"] == 2


def test_a_refused_leave_ends_the_threads_all_the_same(
    service: Service, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(names, "a")
    held = Held(names, tmp_path / "h", stop_s=0.2)
    held.worker.start()
    held.await_begun(1)
    real = keeper.invoke

    def invoke(proxy: Any, method: str, *arguments: Any) -> Any:
        if method == "leave":
            raise BrokerError("no")
        return real(proxy, method, *arguments)

    monkeypatch.setattr(keeper, "invoke", invoke)
    held.worker.close()
    held.let_go("a")
    held.check_ended(finished=1)
    monkeypatch.undo()
    assert handled_by_another(names, 1) == ["a"], "the lease is behind it"


@pytest.mark.parametrize("in_time", [True, False])
def test_a_replaced_subscriber_notes_its_running_message_and_ends(
    service: Service, names: str, tmp_path: Path, in_time: bool
) -> None:
    publish(names, "a")
    held = Held(names, tmp_path / "h", stop_s=20.0 if in_time else 0.2)
    errors: list[BrokerError] = []

    def run() -> None:
        try:
            held.worker.run(signals=False)
        except BrokerError as error:
            errors.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    held.await_begun(1)
    second = Subscriber("w", "orders", name_server=names)
    seen: list[str] = []
    second.handler(lambda message: seen.append(message.partition))
    with second:
        poll(lambda: held.worker.stopping, 10, "the first has heard of it")
        if not in_time:
            runner.join(20)
            assert not runner.is_alive() and held.alive()
        held.let_go("a")
        runner.join(20)
        assert not runner.is_alive()
        held.check_ended(finished=1)
        poll(lambda: seen == ["a"], 10, "the second gets it")
    assert [type(error) for error in errors] == [SubscriberReplaced]


def test_a_keeper_that_comes_back_after_the_leaving_leaves_again(
    service: Service, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Subscriber("w", "orders", name_server=names, stop_s=0.2)
    worker.handler(lambda message: None)
    worker.start()
    monkeypatch.setattr("subscriber.client.KEEPER_END_S", 0.1)
    real, stuck, go = keeper.invoke, threading.Event(), threading.Event()
    calls: list[str] = []

    def invoke(proxy: Any, method: str, *arguments: Any) -> Any:
        calls.append(method)
        if method == "heartbeat":
            raise BrokerUnavailable("away")
        if method == "subscribe":
            stuck.set()
            assert go.wait(30)
        return real(proxy, method, *arguments)

    monkeypatch.setattr(keeper, "invoke", invoke)
    assert stuck.wait(10)
    worker.close()
    go.set()
    poll(lambda: not any(t.is_alive() for t in worker._threads), 10, "all threads have ended")
    assert calls.count("leave") == 2 and not worker.subscribed
    assert not service.overview()[0]["subscriptions"]["default"]["subscribers"]


# Interrupted workers.


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_handler_is_a_failure_like_any_other(
    service: Service, names: str, tmp_path: Path, error: type[BaseException]
) -> None:
    publish(names, "a")
    worker = Subscriber("w", "orders", name_server=names, history=tmp_path / "h")

    @worker.handler
    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise error

    assert worker.run(count=2, signals=False) == 2
    (path,) = (tmp_path / "h").iterdir()
    lines = list(read(path))
    kinds = [line["event"] for line in lines if line["event"] not in ("opened", "subscribed")]
    assert kinds == ["started", "failed", "started", "finished", "closed"]
    assert not any(thread.is_alive() for thread in worker._threads)


def test_an_interrupt_of_a_worker_outside_of_its_handler_ends_the_subscriber(
    service: Service, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(names, "a", "b")
    held = Held(names, tmp_path / "h", concurrency=2)
    real = held.worker._workers._note_started

    def note(assignment: Any, item: Any) -> None:
        if assignment.partition == "b":
            raise KeyboardInterrupt
        real(assignment, item)

    monkeypatch.setattr(held.worker._workers, "_note_started", note)
    held._gates["a"] = threading.Event()
    held._gates["a"].set()
    held.worker.start()
    poll(lambda: held.worker.stopping, 10, "the subscriber stops")
    held.worker.close(timeout=5)
    held.check_ended(finished=len(held.begun))


def test_what_a_handler_finishes_after_the_settler_has_failed_is_noted_by_the_last_thread(
    service: Service, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(names, "a")
    held = Held(names, tmp_path / "h", stop_s=0.2)
    held.worker.start()
    held.await_begun(1)

    def fail(proxy: Any) -> None:
        raise ValueError("a fault of the settler")

    monkeypatch.setattr(held.worker._settler, "_settle_once", fail)
    poll(lambda: held.worker.stopping, 10, "the subscriber ends with its settler")
    held.worker.close()
    assert held.events() == ["opened", "started"]
    held.let_go("a")
    held.check_ended(finished=1)


def test_the_settler_notes_what_is_finished_also_without_an_address_for_acks() -> None:
    shared = Shared("w", "orders", "default", prefetch=9, concurrency=1, timeout_s=1.0)
    lines: list[str] = []
    shared.history = SubscriberHistory(lambda event, fields: lines.append(event))
    shared.session.recording = True
    shared.lease_until = float("inf")
    shared.handler = lambda message: None
    shared.session.receive(
        {
            "publishers": "p", "partitions": ["k"], "epochs": [5], "firsts": [1], "counts": [1],
            "sequences": [1], "attempts": None, "timestamps": 1, "priorities": None, "formats": 0,
            "extras": None, "bodies": [b"x"],
        }
    )  # fmt: skip
    threads = [
        threading.Thread(target=Workers(shared).work, daemon=True),
        threading.Thread(target=settler.Settler(shared).run, daemon=True),
    ]
    for thread in threads:
        thread.start()
    poll(lambda: lines == ["opened", "started", "finished"], 10, "it is noted while it runs")
    shared.left = True
    shared.stop()
    poll(lambda: not any(thread.is_alive() for thread in threads), 10, "both have ended")
    assert lines == ["opened", "started", "finished"]


# Publishers.


def test_a_sender_that_outlives_close_ends_the_history_itself(
    service: Service, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, stuck, go = Pipeline.receive, threading.Event(), threading.Event()

    def slow(pipeline: Pipeline) -> Any:
        answer = receive(pipeline)
        stuck.set()
        assert go.wait(30)
        raise pipeline._broken("an answer", ConnectionError("cut")) if answer else AssertionError

    publisher = Publisher("p", "orders", name_server=names, history=tmp_path / "h")
    monkeypatch.setattr(Pipeline, "receive", slow)
    publisher.publish(b"x", "a")
    assert stuck.wait(10)
    publisher.close(timeout=0.1)
    (path,) = (tmp_path / "h").iterdir()
    assert [line["event"] for line in read(path)] == ["opened", "tried", "unknown"]
    go.set()
    poll(lambda: not publisher._thread.is_alive(), 10, "the sender has ended")
    lines = list(read(path))
    assert (lines[-1]["event"], lines[-1]["open"]) == ("closed", 1)
    assert b"\0" not in path.read_bytes()


FULL = """
import resource, sys
from broker.errors import BadRequest
from publisher import Publisher
resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 10, resource.RLIM_INFINITY))
try:
    Publisher("p", "orders", name_server=sys.argv[1], history=sys.argv[2])
except BadRequest as error:
    print(error)
"""


def test_a_disk_without_room_for_a_history_fences_nobody(
    service: Service, names: str, tmp_path: Path
) -> None:
    with Publisher("p", "orders", name_server=names) as live:
        command = [sys.executable, "-c", FULL, names, str(tmp_path / "h")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert "cannot be used" in done.stdout and "room on its disk" in done.stdout, done.stderr
        assert live.publish(b"x").result(10), "the id was not opened anew"
    assert not list((tmp_path / "h").iterdir()), "nothing is left of it"


def test_a_publisher_that_cannot_open_leaves_no_history(
    service: Service, names: str, tmp_path: Path
) -> None:
    service.close()
    with pytest.raises(BrokerError):
        Publisher("p", "orders", name_server=names, history=tmp_path / "h", give_up_s=0.1,
                  timeout_s=0.5)  # fmt: skip
    assert not list((tmp_path / "h").iterdir())


def test_a_history_that_cannot_take_its_name_is_given_up_and_the_publisher_goes_on(
    service: Service, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(history.os, "rename", refuse)
    with Publisher("p", "orders", name_server=names, history=tmp_path / "h") as publisher:
        assert publisher.publish(b"x").result(10)
        assert publisher.history_failed
    assert caplog.text.count("Read-only file system") == 1
    assert not list((tmp_path / "h").iterdir())


def test_a_subscriber_without_room_for_a_history_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(history, "_allocate", full)
    with pytest.raises(BadRequest, match="No space left"):
        Subscriber("w", "orders", history=tmp_path / "h")
    assert not list((tmp_path / "h").iterdir())
