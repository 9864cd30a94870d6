"""The subscriber against a real broker in this process: handlers, failures, stopping."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.core.policy import Policy
from broker.errors import BadRequest, BrokerUnavailable, SubscriberReplaced
from broker.server.service import Service, Settings
from publisher import Publisher
from subscriber import Message, Subscriber
from tests.processes import free_port, poll

POLICY = Policy(backoff_ms=20, lease_ms=3_000, send_backoff_ms=20)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    settings = Settings(
        store=str(tmp_path / "store.db"), name_server_port=0, channels=["orders"], policy=POLICY,
        tick_s=0.02, durability="flush",
    )  # fmt: skip
    running = Service(settings).start()
    yield running
    running.close()


@pytest.fixture
def names(service: Service) -> str:
    return f"127.0.0.1:{service.names.port}"


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
    poll(lambda: first._settle_uri is not None, 10, "the first to be subscribed")
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
