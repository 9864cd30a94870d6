"""A channel over real Pyro5 on loopback, as plain scripts and Fairlead's clients meet it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.core.policy import Policy
from broker.errors import (
    BadRequest,
    BrokerUnavailable,
    CallbackRefused,
    ChannelExists,
    ChannelFull,
    ChannelNotFound,
    FaultInjectionDisabled,
    MessageTooLarge,
    SequenceGap,
)
from broker.pyro_setup import Proxy, invoke, pyro_server
from broker.remote.daemon import FairleadDaemon
from broker.remote.exposed import exposed_names
from broker.server.broker_object import BrokerObject
from broker.server.channel_object import ChannelObject, SettleObject
from broker.server.service import Service
from publisher import Publisher
from subscriber import Subscriber
from tests.conftest import Serve
from tests.processes import poll

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(clients_max=20)


@pytest.fixture
def channel(service: Service) -> Iterator[Any]:
    with Proxy(service.names.lookup("channel.orders")) as proxy:
        yield proxy


def test_exactly_these_methods_can_be_called_from_outside() -> None:
    settle = {"settle", "nack", "hand_back", "heartbeat", "leave", "fetch"}
    assert exposed_names(SettleObject) == settle
    assert exposed_names(ChannelObject) == settle | {
        "open_publisher", "publish_runs", "wait_durable", "next_sequences", "publish", "subscribe",
        "ack", "create_subscription", "delete_subscription", "statistics", "partitions", "parked",
        "redrive", "kill_queues",
    }  # fmt: skip
    assert exposed_names(BrokerObject) == {
        "ping", "channels", "overview", "create_channel", "delete_channel",
    }  # fmt: skip


def test_the_plain_pyro_example_runs_against_a_broker(names: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/plain_pyro.py"), "orders", names],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "publish 2: accepted 0, duplicates 3" in done.stdout
    assert "acknowledged: 3 waiting: 0" in done.stdout


def test_the_example_imports_nothing_but_pyro5() -> None:
    source = (ROOT / "examples/plain_pyro.py").read_text()
    imported = {line.split()[1] for line in source.splitlines() if line.startswith("import ")}
    assert imported == {"queue", "sys", "threading", "Pyro5.api"}


@pytest.mark.parametrize("serializer", ["serpent", "json", "msgpack"])
def test_a_plain_client_publishes_and_fetches_with_any_safe_serializer(
    service: Service, serializer: str
) -> None:
    with Proxy(service.names.lookup("channel.orders")) as proxy:
        proxy._pyroSerializer = serializer
        session = proxy.subscribe("s")["session"]
        bodies: list[Any] = ["text", {"body": {"total": 3}}, {"body": [1, 2], "priority": 3}]
        if serializer != "json":
            bodies.append(b"bytes")
        assert proxy.publish("p", "a", bodies)["accepted"] == len(bodies)
        messages: list[Any] = []
        number = 0
        for _ in range(10):
            answer = proxy.fetch("s", session, 10, 2.0, number)
            number = answer["number"]
            messages += answer["messages"]
            if len(messages) == len(bodies):
                break
        assert [m["sequence"] for m in messages] == list(range(1, len(bodies) + 1))
        assert messages[0]["body"] == "text" and messages[1]["body"] == {"total": 3}
        proxy.ack("s", session, messages[-1]["epoch"], messages[-1]["position"])
        assert proxy.statistics()["subscriptions"]["default"]["backup"] == 0


def test_a_fetch_whose_answer_was_lost_gives_the_same_batch_again(channel: Any) -> None:
    session = channel.subscribe("s")["session"]
    channel.publish("p", "a", ["1", "2"])
    lost = channel.fetch("s", session, 10, 2.0, 0)
    again = channel.fetch("s", session, 10, 2.0, 0)
    assert again == lost and [m["body"] for m in again["messages"]] == ["1", "2"]
    assert channel.fetch("s", session, 10, 0.0, again["number"])["messages"] == []


@pytest.mark.parametrize(
    "uri",
    [
        "PYRO:x@192.0.2.1:4444",
        "PYRO:x@localhost.example:4444",
        "PYRO:x@./u:/tmp/socket",
        "PYRONAME:somebody",
        "PYROMETA:class:x",
    ],
)
def test_only_the_host_that_subscribes_is_called_back(channel: Any, uri: str) -> None:
    with pytest.raises(CallbackRefused):
        invoke(channel, "subscribe", "s", uri)


@pytest.mark.parametrize("callback", ["nonsense", 7, ["x"], {"a": 1}])
def test_a_callback_that_is_no_address_is_refused(channel: Any, callback: Any) -> None:
    with pytest.raises((BadRequest, CallbackRefused)):
        invoke(channel, "subscribe", "s", callback)


@pytest.mark.parametrize(
    "partition",
    ["", "x" * 201, "nul\0", "line\nbreak", "bell\a", "\ud800", "\u200f", 7, None, b"b"],
)
def test_bad_ids_are_refused_at_the_edge_and_nothing_is_stored(
    channel: Any, partition: Any
) -> None:
    with pytest.raises(BadRequest):
        invoke(channel, "publish", "p", partition, ["x"])
    assert channel.statistics()["published_total"] == 0


def test_ids_that_look_alike_are_kept_apart_byte_by_byte(channel: Any) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    for name in (composed, decomposed, "../..", "a b"):
        channel.publish("p", name, ["x"])
    assert channel.statistics()["partitions"] == 4


@pytest.mark.parametrize("stamp", [float("nan"), float("inf"), -1, 1e30, "now", True])
def test_a_timestamp_that_is_no_time_is_refused(channel: Any, stamp: Any) -> None:
    with pytest.raises(BadRequest):
        invoke(channel, "publish", "p", "a", [{"body": "x", "timestamp": stamp}])


def test_sizes_are_checked_up_to_the_byte(service: Service) -> None:
    service.create_channel("small", None)
    limit = service.settings.policy.message_bytes_max
    with Proxy(service.names.lookup("channel.small")) as proxy:
        assert invoke(proxy, "publish", "p", "a", [b"x" * limit])["accepted"] == 1
        with pytest.raises(MessageTooLarge):
            invoke(proxy, "publish", "p", "a", [b"x" * (limit + 1)])
        assert invoke(proxy, "statistics")["published_total"] == 1


def test_a_refused_plain_publish_says_what_was_accepted(service: Service) -> None:
    service.create_channel("tiny", Policy(pending_count_max=3))
    with Proxy(service.names.lookup("channel.tiny")) as proxy:
        with pytest.raises(ChannelFull) as caught:
            invoke(proxy, "publish", "p", "a", list("12345"))
        assert caught.value.details["accepted"] == 3 and caught.value.details["refused"] == 2
        with pytest.raises(SequenceGap) as gap:
            invoke(proxy, "publish", "p", "a", ["x"], 9)
        assert gap.value.details["expected"] == 4


def test_malformed_columns_are_refused_whole(channel: Any) -> None:
    good: list[Any] = ["p", 0, ["a", "b"], [1, 1], [1, 1], 5, [b"x", b"y"], None, 0, None, True]
    for index, value in [
        (2, ["a", "a"]), (2, "ab"), (2, ["a"]), (3, [0, 1]), (3, [1, True]), (4, [1, 2]),
        (4, [1, -1]), (5, [1]), (5, -1), (5, 1.5), (6, [b"x"]), (6, ["x", "y"]), (6, []),
        (7, [1]), (7, [1, 999]), (8, 9), (8, [0]), (9, [None]), (9, [{"id": ""}, None]),
        (9, [{"headers": {"a": 1}}, None]), (9, [{"other": 1}, None]),
    ]:  # fmt: skip
        bad = list(good)
        bad[index] = value
        with pytest.raises(BadRequest):
            invoke(channel, "publish_runs", *bad)
    assert channel.statistics()["published_total"] == 0
    assert invoke(channel, "publish_runs", *good)["accepted"] == 2


def test_fault_hooks_exist_only_when_asked_for(channel: Any) -> None:
    with pytest.raises(FaultInjectionDisabled):
        invoke(channel, "kill_queues")


def test_channels_are_created_listed_and_deleted(service: Service) -> None:
    with Proxy(service.names.lookup("fairlead.broker")) as broker:
        assert invoke(broker, "channels") == ["orders"]
        assert invoke(broker, "create_channel", "bills", {"lease_ms": 5000})["created"]
        assert not invoke(broker, "create_channel", "bills")["created"]
        with pytest.raises(ChannelExists):
            invoke(broker, "create_channel", "bills", {"lease_ms": 6000})
        with pytest.raises(BadRequest):
            invoke(broker, "create_channel", "bad name")
        with pytest.raises(BadRequest):
            invoke(broker, "create_channel", "other", {"leese_ms": 1})
        assert sorted(service.names.registered("channel.")) == ["channel.bills", "channel.orders"]
        with Proxy(service.names.lookup("channel.bills")) as proxy:
            invoke(proxy, "publish", "p", "a", ["x"])
        with pytest.raises(BadRequest):
            invoke(broker, "delete_channel", "bills")
        assert invoke(broker, "delete_channel", "bills", True)["dropped"] == 1
        assert invoke(broker, "channels") == ["orders"]
        with pytest.raises(ChannelNotFound):
            invoke(broker, "delete_channel", "bills")
    with pytest.raises(ChannelNotFound):
        service.names.lookup("channel.bills")


def test_channels_carry_metadata_at_the_name_server(service: Service) -> None:
    from broker.pyro_setup import core

    with Proxy(f"PYRO:{core.NAMESERVER_NAME}@{service.names.host}:{service.names.port}") as names:
        names._pyroSerializer = "serpent"
        found = names.yplookup(meta_all=["fairlead.channel"])
    assert list(found) == ["channel.orders"]


def test_a_full_front_pool_does_not_keep_acks_and_heartbeats_out(
    service: Service, names: str
) -> None:
    """Each connection holds a slot of its daemon; acks go to a daemon of their own."""
    seen: list[Any] = []
    release = threading.Event()
    worker = Subscriber("w", "orders", name_server=names)

    @worker.handler
    def handle(message: Any) -> None:
        release.wait(20)
        seen.append(message.body)

    with worker, Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish("x").result(10)
        crowd = []
        uri = service.names.lookup("channel.orders")
        try:
            for _ in range(service.settings.clients_max + 5):
                proxy = Proxy(uri)
                crowd.append(proxy)
                try:
                    invoke(proxy, "statistics")
                except BrokerUnavailable:
                    break
            else:
                pytest.fail("the pool never filled up")
            release.set()
            poll(
                lambda: service.overview()[0]["subscriptions"]["default"]["acked_total"] == 1,
                10,
                "the ack to get through beside a full front daemon",
            )
            with Proxy(service.names.lookup("fairlead.broker")) as broker:
                assert invoke(broker, "channels") == ["orders"], "the admin daemon answers, too"
        finally:
            for proxy in crowd:
                proxy._pyroRelease()


def test_two_subscriptions_each_get_everything(service: Service, names: str) -> None:
    with Proxy(service.names.lookup("channel.orders")) as proxy:
        invoke(proxy, "create_subscription", "audit")
    got: dict[str, list[Any]] = {"default": [], "audit": []}
    workers = []
    for group, found in got.items():
        worker = Subscriber("w-" + group, "orders", name_server=names, subscription=group)
        worker.handler(lambda message, found=found: found.append(message.body))
        workers.append(worker.start())
    with Publisher("p", "orders", name_server=names) as publisher:
        for number in range(50):
            publisher.publish(number, partition="a")
    poll(lambda: all(len(found) == 50 for found in got.values()), 20, "both to have everything")
    for worker in workers:
        worker.close()
    assert got["default"] == got["audit"] == list(range(50))


class PlainInbox:
    """The callback object of a plain script."""

    def __init__(self) -> None:
        self.received: list[Any] = []

    @pyro_server.expose  # type: ignore[untyped-decorator]
    def receive(self, messages: list[Any]) -> None:
        self.received += messages


def test_an_idle_plain_subscriber_is_kept_without_heartbeats_and_dropped_when_gone(
    service: Service,
) -> None:
    """It holds nothing, so the broker itself looks whether its daemon still answers."""
    service.create_channel("quick", Policy(lease_ms=300, send_backoff_ms=20, send_timeout_ms=500))
    inbox = PlainInbox()
    daemon = FairleadDaemon(name="plain").start()  # its close cuts the connections at once
    uri = str(daemon.register(inbox))

    def subscribers() -> dict[str, Any]:
        found: dict[str, Any] = service.overview()[1]["subscriptions"]["default"]["subscribers"]
        return found

    with Proxy(service.names.lookup("channel.quick")) as proxy:
        proxy._pyroSerializer = "serpent"
        proxy.subscribe("plain", uri)
        session = subscribers()["plain"]["session"]
        began = time.monotonic()
        poll(lambda: time.monotonic() - began > 1.0, 5, "three leases to pass")
        assert subscribers()["plain"]["session"] == session
        proxy.publish("p", "a", ["still there"])
        poll(lambda: len(inbox.received) == 1, 5, "the message to arrive")
        message = inbox.received[0]
        proxy.ack("plain", session, message["epoch"], message["position"])
        daemon.shutdown()
        poll(lambda: "plain" not in subscribers(), 10, "the vanished subscriber to be dropped")


def test_a_text_that_is_none_and_bytes_over_json_reach_plain_subscribers_all_the_same(
    service: Service,
) -> None:
    """A body that its reader cannot carry must not stop the partition or its subscriber."""
    inbox = PlainInbox()
    daemon = FairleadDaemon(name="plain").start()
    uri = str(daemon.register(inbox))
    with Proxy(service.names.lookup("channel.orders")) as proxy:
        invoke(
            proxy, "publish_runs", "p", 0, ["a"], [1], [3], 5, [b"\xff", b"{", b"fine"], None,
            [1, 2, 0], None, True,
        )  # fmt: skip
        proxy._pyroSerializer = "json"
        session = proxy.subscribe("plain", uri)["session"]
        poll(lambda: len(inbox.received) == 3, 10, "all three messages to arrive")
        assert [m["body"]["data"] for m in inbox.received] == ["/w==", "ew==", "ZmluZQ=="]
        proxy.ack("plain", session, inbox.received[-1]["epoch"], 3)
        assert proxy.statistics()["subscriptions"]["default"]["acked_total"] == 3
    daemon.close()
