"""The subscriber against a real broker in this process: handlers, failures, stopping."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from broker.core.policy import Policy
from broker.errors import BadRequest, BrokerUnavailable, SubscriberReplaced
from broker.server.service import Service
from publisher import Publisher
from subscriber import Message, Subscriber
from subscriber.session import Assignment
from subscriber.shared import Shared
from subscriber.workers import Workers
from tests.conftest import Serve
from tests.processes import free_port, poll

POLICY = Policy(backoff_ms=20, lease_ms=3_000, send_backoff_ms=20)


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(policy=POLICY, tick_s=0.02, durability="flush")


def publish(names: str, count: int, partitions: int = 1, **more: Any) -> None:
    with Publisher("p", "orders", name_server=names) as publisher:
        for number in range(count):
            publisher.publish(number, partition=f"k{number % partitions}", **more)


def group_of(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.overview()[0]["subscriptions"]["default"]
    return found


def test_bodies_headers_ids_and_priorities_arrive_as_they_were_published(names: str) -> None:
    got: list[Message] = []
    with Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish(b"\x00\xff", "a")
        publisher.publish("text", "a", headers={"k": "v"})
        publisher.publish({"n": [1, 2.5, None]}, "a", id="my-id", priority=7)
        publisher.publish(3, "a", timestamp=2_000_000_000.5)
    worker = Subscriber("w", "orders", name_server=names)
    worker.handler(got.append)
    assert worker.run(count=4, signals=False) == 4
    assert [m.body for m in got] == [b"\x00\xff", "text", {"n": [1, 2.5, None]}, 3]
    assert got[1].headers == {"k": "v"} and got[2].id == "my-id" and got[2].priority == 7
    assert got[3].timestamp == 2_000_000_000.5
    assert [(m.channel, m.publisher, m.partition, m.sequence, m.attempt) for m in got] == [
        ("orders", "p", "a", sequence, 1) for sequence in (1, 2, 3, 4)
    ]


def test_partitions_run_in_parallel_and_one_partition_never(names: str) -> None:
    publish(names, 60, partitions=6)
    lock = threading.Lock()
    running: dict[str, int] = {}
    most_at_once = 0
    overlaps: list[str] = []
    order: dict[str, list[int]] = {}
    together = threading.Barrier(3)

    worker = Subscriber("w", "orders", name_server=names, concurrency=3)

    @worker.handler
    def handle(message: Message) -> None:
        nonlocal most_at_once
        with lock:
            running[message.partition] = running.get(message.partition, 0) + 1
            if running[message.partition] > 1:
                overlaps.append(message.partition)
            most_at_once = max(most_at_once, sum(running.values()))
            order.setdefault(message.partition, []).append(message.sequence)
        if message.sequence == 1:
            try:
                together.wait(5)  # passes only if three partitions are handled at once
            except threading.BrokenBarrierError:
                pass
        with lock:
            running[message.partition] -= 1

    assert worker.run(count=60, signals=False) == 60
    assert not overlaps and most_at_once == 3
    assert order == {f"k{i}": list(range(1, 11)) for i in range(6)}


def test_an_exception_is_retried_in_place_and_the_order_holds(names: str) -> None:
    publish(names, 5)
    calls: list[tuple[int, int]] = []
    worker = Subscriber("w", "orders", name_server=names)

    @worker.handler
    def handle(message: Message) -> None:
        calls.append((message.sequence, message.attempt))
        if message.sequence == 3 and message.attempt < 3:
            raise ValueError("not yet")

    worker.run(count=7, signals=False)
    assert calls == [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (4, 1), (5, 1)]


@pytest.mark.parametrize("poison", [SystemExit, KeyboardInterrupt, RecursionError, MemoryError])
def test_whatever_a_handler_raises_counts_as_a_failure(
    service: Service, names: str, poison: type[BaseException]
) -> None:
    publish(names, 2)
    worker = Subscriber("w", "orders", name_server=names)

    @worker.handler
    def handle(message: Message) -> None:
        if message.sequence == 1:
            raise poison("boom")

    worker.run(count=4, signals=False)
    group = group_of(service)
    assert (group["parked"], group["acked_total"], group["nacked_total"]) == (1, 1, 3)


def test_a_nack_waits_and_a_reject_does_not_come_again(service: Service, names: str) -> None:
    publish(names, 3)
    calls: list[tuple[int, int]] = []
    worker = Subscriber("w", "orders", name_server=names)

    @worker.handler
    def handle(message: Message) -> None:
        calls.append((message.sequence, message.attempt))
        if message.sequence == 1 and message.attempt == 1:
            message.nack(delay=0.05)
        if message.sequence == 2:
            message.reject("bad")

    worker.run(count=4, signals=False)
    assert calls == [(1, 1), (1, 2), (2, 1), (3, 1)]
    assert group_of(service)["parked"] == 1


def test_stopping_hands_back_what_was_not_started_without_counting_an_attempt(
    service: Service, names: str
) -> None:
    publish(names, 10)
    first: list[int] = []
    worker = Subscriber("w1", "orders", name_server=names)
    worker.handler(lambda message: first.append(message.sequence))
    worker.run(count=4, signals=False)
    second: list[tuple[int, int]] = []
    other = Subscriber("w2", "orders", name_server=names)
    other.handler(lambda message: second.append((message.sequence, message.attempt)))
    other.run(count=6, signals=False)
    assert first == [1, 2, 3, 4]
    assert second == [(sequence, 1) for sequence in range(5, 11)]


def test_a_second_subscriber_with_the_same_id_ends_the_first(names: str) -> None:
    first = Subscriber("same", "orders", name_server=names)
    first.handler(lambda message: None)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            first.run(signals=False)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    poll(lambda: first.subscribed, 10, "the first to be subscribed")
    second = Subscriber("same", "orders", name_server=names)
    second.handler(lambda message: None)
    with second:
        thread.join(15)
    assert isinstance(ended[0], SubscriberReplaced)


def test_a_subscriber_without_a_handler_says_so(names: str) -> None:
    with pytest.raises(BadRequest, match="no handler"):
        Subscriber("w", "orders", name_server=names).start()


def test_without_a_broker_the_error_names_the_address() -> None:
    port = free_port()
    worker = Subscriber("w", "orders", name_server=f"127.0.0.1:{port}", timeout_s=0.5)
    worker.handler(lambda message: None)
    with pytest.raises(BrokerUnavailable, match=str(port)):
        worker.start()
    with pytest.raises(BrokerUnavailable, match=str(port)):
        Publisher("p", "orders", name_server=f"127.0.0.1:{port}", timeout_s=0.5)


def test_a_handler_that_is_long_at_work_keeps_its_lease(service: Service, names: str) -> None:
    """Longer than the lease: the keeper, not the handler, tells the broker that it lives."""
    publish(names, 2)
    attempts: list[int] = []
    worker = Subscriber("w", "orders", name_server=names)
    waited = threading.Event()

    @worker.handler
    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        if message.sequence == 1:
            waited.wait(POLICY.lease_ms / 1000 * 1.5)

    worker.run(count=2, signals=False)
    assert attempts == [1, 1]
    assert group_of(service)["redelivered_total"] == 0


def test_it_tells_whether_it_is_subscribed_and_whether_it_is_stopping(names: str) -> None:
    worker = Subscriber("w", "orders", name_server=names)
    worker.handler(lambda message: None)
    assert not worker.subscribed and not worker.stopping
    with worker:
        assert worker.subscribed and not worker.stopping
        worker.stop()
        assert worker.stopping
    assert not worker.subscribed and worker.stopping


def test_a_subclass_can_watch_what_is_received_and_recalled(names: str) -> None:
    seen: list[tuple[list[int], list[int]]] = []

    class Watching(Subscriber):
        def received(self, batch: dict[str, Any]) -> None:
            seen.append((batch["firsts"], batch["counts"]))

        def recalled(self, epochs: list[int], uptos: list[int]) -> None:
            seen.append((epochs, uptos))

    publish(names, 3)
    worker = Watching("w", "orders", name_server=names)
    worker.handler(lambda message: None)
    worker.run(count=3, signals=False)
    assert sum(sum(counts) for _, counts in seen) == 3
    seen.clear()
    assert worker._recall([999]) == [0]
    assert seen == [([999], [0])]


# run(count=): driven by hand, without a broker, because the worst instant is hard to meet.


def columns(epoch: int, partition: str, count: int) -> dict[str, Any]:
    return {
        "publishers": "p", "partitions": [partition], "firsts": [1], "counts": [count],
        "epochs": [epoch], "attempts": None, "timestamps": 1, "sequences": [1],
        "priorities": None, "formats": 0, "bodies": [b"x"] * count, "extras": None,
    }  # fmt: skip


def counting(count: int) -> tuple[Shared, Workers, list[str]]:
    shared = Shared("w", "orders", "default", prefetch=10, concurrency=2, timeout_s=1.0)
    shared.count_max, shared.lease_until = count, time.monotonic() + 1_000.0
    handled: list[str] = []
    shared.handler = lambda message: handled.append(message.partition)
    return shared, Workers(shared), handled


def test_a_message_recalled_before_its_start_is_taken_back_from_the_count() -> None:
    shared, workers, handled = counting(1)
    shared.session.receive(columns(1, "gone", 2))
    (assignment,) = shared.session.take(1)
    shared.session.recall([1])
    assignment.items.append((1, 1, 1, 1, 0, 0, b"x", None))  # was in its hand already
    assert workers.handle_all(assignment)
    assert (handled, shared.begun, shared.stopping.is_set()) == ([], 0, False)


def test_a_message_that_vanishes_before_the_grasp_is_taken_back_from_the_count() -> None:
    shared, workers, handled = counting(1)

    class Vanishing(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            raise IndexError(index)

    assignment = Assignment(1, "p", "gone", 1)
    assignment.items = Vanishing([None])
    assert workers.handle_all(assignment)
    assert (handled, shared.begun, shared.stopping.is_set()) == ([], 0, False)


def test_a_counted_run_does_not_end_while_one_that_was_begun_may_come_back() -> None:
    """One of two waits for the lease; the other one is handled; the first is then lost. The count
    is made full by a third one: neither too early nor never."""
    shared, workers, handled = counting(2)
    shared.lease_until = 0.0  # so the first one waits to hear whether it is still ours
    shared.session.receive(columns(1, "waits", 1))
    (waits,) = shared.session.take(1)
    waiting = threading.Thread(target=workers.handle_all, args=(waits,))
    waiting.start()
    poll(shared.check_now.is_set, 10, "the first to wait for the lease")
    with shared.changed:  # and nobody is told: the first goes on waiting for a moment
        shared.lease_until = time.monotonic() + 1_000.0
        shared.session.lose([1])
        shared.session.receive(columns(2, "second", 1))
        (second,) = shared.session.take(1)
    assert workers.handle_all(second)
    assert not shared.stopping.is_set()
    waiting.join(10)
    shared.session.receive(columns(3, "third", 1))
    workers.work()  # returns because the count is full
    assert handled == ["second", "third"]
    assert shared.stopping.is_set() and shared.begun == 2


def test_a_worker_waits_while_all_of_the_count_are_begun() -> None:
    """It does not take and put back over and over; when one comes back it goes on."""
    shared, workers, handled = counting(1)
    takes: list[int] = []
    take = shared.session.take
    shared.session.take = lambda count: takes.append(count) or take(count)  # type: ignore
    shared.session.receive(columns(1, "next", 1))
    assert shared.count_begun()  # by another worker
    thread = threading.Thread(target=workers.work)
    thread.start()
    poll(shared.settle_now.is_set, 10, "the worker to wait")
    assert takes == [] and handled == []
    shared.count_back()
    thread.join(10)
    assert handled == ["next"] and shared.stopping.is_set()
