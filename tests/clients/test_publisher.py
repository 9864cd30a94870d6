"""The publisher against a real broker in this process: threads, forks, closing, limits."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from broker.core.policy import Policy
from broker.errors import (
    BadRequest,
    ChannelFull,
    MessageTooLarge,
    PublisherClosed,
    PublisherFenced,
)
from broker.server.service import Service
from publisher import Publisher
from tests.conftest import Serve


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(policy=Policy(pending_count_max=5_000, message_bytes_max=1_000))


def statistics(service: Service) -> dict[str, Any]:
    return service.overview()[0]


def test_many_threads_may_share_one_publisher(service: Service, names: str) -> None:
    with Publisher("p", "orders", name_server=names) as publisher:
        receipts: dict[int, list[Any]] = {}

        def work(number: int) -> None:
            receipts[number] = [publisher.publish(b"x", f"k{number}") for _ in range(200)]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        publisher.flush(30)
        for found in receipts.values():
            assert [r.result(5).sequence for r in found] == list(range(1, 201))
    assert statistics(service)["published_total"] == 1_600


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_publisher_is_of_no_use_in_a_forked_child_and_unharmed_in_the_parent(
    names: str,
) -> None:
    with Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish(b"1").result(10)
        child = os.fork()
        if not child:
            try:
                publisher.publish(b"2")
                os._exit(1)
            except BadRequest:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert publisher.publish(b"3").result(10).sequence == 2


def test_a_message_that_could_never_be_accepted_is_refused_at_once(names: str) -> None:
    with Publisher("p", "orders", name_server=names) as publisher:
        with pytest.raises(MessageTooLarge):
            publisher.publish(b"x" * 1_001)
        for bad in ("", "a\nb", 7):
            with pytest.raises(BadRequest):
                publisher.publish(b"x", partition=bad)  # type: ignore[arg-type]
        with pytest.raises(BadRequest):
            publisher.publish(object())
        with pytest.raises(BadRequest):
            publisher.publish(b"x", priority=999)
        with pytest.raises(BadRequest):
            publisher.publish(b"x", timestamp=float("nan"))
        assert publisher.publish(b"fine").result(10).sequence == 1


def test_a_closed_publisher_says_so(names: str) -> None:
    publisher = Publisher("p", "orders", name_server=names)
    receipt = publisher.publish(b"x")
    publisher.close()
    assert receipt.result(1).sequence == 1, "closing flushes"
    with pytest.raises(PublisherClosed):
        publisher.publish(b"y")
    publisher.close()


def test_the_newer_of_two_publishers_with_one_id_wins(names: str) -> None:
    old = Publisher("p", "orders", name_server=names)
    old.publish(b"1").result(10)
    with Publisher("p", "orders", name_server=names) as new:
        assert new.publish(b"2").result(10).sequence == 2, "it learnt where the old one stopped"
        assert isinstance(old.publish(b"x").error(10), PublisherFenced)
        with pytest.raises(PublisherFenced):
            old.publish(b"y")
        assert new.publish(b"3").result(10).sequence == 3
    old.close()


def test_flush_raises_the_first_refusal_and_the_receipts_tell_them_apart(names: str) -> None:
    publisher = Publisher("p", "orders", name_server=names, on_full="refuse")
    receipts = [publisher.publish(b"x", f"k{i % 3}") for i in range(6_000)]
    with pytest.raises(ChannelFull):
        publisher.flush(30)
    errors = [receipt.error(5) for receipt in receipts]
    assert all(error is None for error in errors[:5_000])
    assert all(isinstance(error, ChannelFull) for error in errors[5_000:])
    publisher.close()


def test_publish_many_takes_one_partition_or_one_for_each(service: Service, names: str) -> None:
    with Publisher("p", "orders", name_server=names, batch_count_max=7) as publisher:
        one = publisher.publish_many([b"x"] * 20, "a")
        each = publisher.publish_many([b"x"] * 20, [f"k{i % 2}" for i in range(20)])
        assert [item.sequence for item in one.result(10)] == list(range(1, 21))
        assert [item.sequence for item in each.result(10)] == [i // 2 + 1 for i in range(20)]
        assert len(each) == 20
        with pytest.raises(BadRequest):
            publisher.publish_many([b"x"], ["a", "b"])
    assert statistics(service)["published_total"] == 40


def test_lingering_gathers_a_batch(service: Service, names: str) -> None:
    with Publisher("p", "orders", name_server=names, linger_s=0.2) as publisher:
        for _ in range(50):
            publisher.publish(b"x")
        publisher.flush(10)
    assert statistics(service)["journal_sequence"] <= 6, "one Published record, not fifty"
