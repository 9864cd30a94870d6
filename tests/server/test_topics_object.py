"""Topics over real Pyro5 on loopback, as plain scripts meet them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.core.topics import TopicPolicy
from broker.errors import (
    BadRequest,
    BrokerError,
    ChannelNotFound,
    MessageTooLarge,
    NotSubscribed,
    RequestOvertaken,
    SequenceGap,
    TopicFull,
    TopicNotFound,
)
from broker.pyro_setup import Proxy, invoke
from broker.remote.exposed import exposed_names
from broker.server.service import Service
from broker.server.topics_object import TopicObject, TopicsObject
from tests.conftest import Serve

#: What somebody runs who has nothing but Pyro5.
PLAIN = """
import sys
from Pyro5.api import Proxy, config, locate_ns
config.SERIALIZER = sys.argv[2]
host, port = sys.argv[1].split(":")
names = locate_ns(host, int(port))
assert "topic.news" in names.list(prefix="topic."), names.list()
with Proxy(names.lookup("topic.news")) as news:
    print(news.subscribe("ann")["new"], news.subscribe("ann")["new"])
    print(news.put("bob", ["a", {"b": [1, None]}, 3])["number"])
    got = news.get("ann", None, 2)["messages"]
    print([message["body"] for message in got], got[0]["publisher"], got[1]["id"])
    print([message["body"] for message in news.get("ann", 2, 10)["messages"]])
    print(news.confirm("ann", 3)["position"], news.get("ann")["messages"])
    print(news.unsubscribe("ann")["was"], news.unsubscribe("ann")["was"])
"""


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(topics=["news"], topic_policy=TopicPolicy(backlog_count_max=100))


@pytest.fixture
def topics(service: Service) -> Iterator[Any]:
    with Proxy(service.names.lookup("fairlead.topics")) as proxy:
        yield proxy


def test_exactly_these_methods_can_be_called_from_outside() -> None:
    four = {"subscribe", "unsubscribe", "put", "get", "confirm", "statistics"}
    assert exposed_names(TopicObject) == four
    assert exposed_names(TopicsObject) == four | {
        "put_bodies", "get_columns", "take_over", "topics", "create", "subscriptions", "overview",
    }  # fmt: skip


@pytest.mark.parametrize("serializer", ["serpent", "json", "msgpack"])
def test_a_plain_script_uses_a_topic(service: Service, serializer: str) -> None:
    address = f"{service.names.host}:{service.names.port}"
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, address, serializer], capture_output=True, text=True,
        timeout=60, cwd=Path("/"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "True False", "3", "['a', {'b': [1, None]}] bob 2", "[3]", "3 []", "True False",
    ]  # fmt: skip


def test_a_topic_is_made_and_registered_when_somebody_subscribes_or_puts(
    service: Service, topics: Any
) -> None:
    invoke(topics, "subscribe", "sport", "ann")
    invoke(topics, "put", "weather", "bob", ["rain"])
    assert invoke(topics, "topics") == ["news", "sport", "weather"]
    for name in ("sport", "weather"):
        with Proxy(service.names.lookup(f"topic.{name}")) as proxy:
            assert invoke(proxy, "statistics")["name"] == name
    with pytest.raises(ChannelNotFound):
        service.names.lookup("topic.nothing")
    for verb, *more in (("statistics",), ("get", "ann", 0), ("confirm", "ann", 0)):
        with pytest.raises(TopicNotFound):
            invoke(topics, verb, "nothing", *more)


def test_a_topic_and_a_channel_may_have_the_same_name(serve: Serve) -> None:
    service = serve(topics=["orders"])
    with Proxy(service.names.lookup("fairlead.topics")) as topics:
        invoke(topics, "subscribe", "orders", "ann")
        invoke(topics, "put", "orders", "bob", ["x"])
    with Proxy(service.names.lookup("channel.orders")) as channel:
        assert invoke(channel, "statistics")["published_total"] == 0


def test_a_removed_topic_is_not_registered_any_more(serve: Serve) -> None:
    service = serve(remember_s=0.0, topics=["brief"])
    service.topics.tick()
    with pytest.raises(ChannelNotFound):
        service.names.lookup("topic.brief")
    with Proxy(service.names.lookup("fairlead.topics")) as topics:
        invoke(topics, "subscribe", "brief", "ann")
    assert service.names.lookup("topic.brief")


@pytest.mark.parametrize(
    ("verb", "arguments", "error"),
    [
        ("subscribe", ("no/slash", "ann"), BadRequest),
        ("subscribe", ("news", ""), BadRequest),
        ("subscribe", ("news", "ann", "", 0), BadRequest),
        ("put", ("news", "bob", []), BadRequest),
        ("put", ("news", "bob", "text"), BadRequest),
        ("put", ("news", "bob", ["x"], -1), BadRequest),
        ("put", ("news", "bob", ["x"], 2), SequenceGap),
        ("put", ("news", "bob", ["x" * (2 << 20)]), MessageTooLarge),
        ("put_bodies", ("news", "bob", "i", 1, 7, [b"x"]), BadRequest),
        ("put_bodies", ("news", "bob", "i", 1, [0, 0], [b"x"]), BadRequest),
        ("put_bodies", ("news", "bob", "i", 1, 0, ["x"]), BadRequest),
        ("put_bodies", ("news", "bob", "i", 1, 0, [b"x"], [1]), BadRequest),
        ("get", ("news", "ann"), NotSubscribed),
        ("get", ("news", "ann", 0, 0), BadRequest),
        ("get", ("news", "ann", 0, 1, -1.0), BadRequest),
        ("get_columns", ("ann", "i", {}, 1, 0.0), BadRequest),
        ("get_columns", ("ann", "i", {"news": [1]}, 1, 0.0), BadRequest),
        ("get_columns", ("ann", "i", {"news": [1, 0]}, 1, 0.0), NotSubscribed),
        ("confirm", ("news", "ann", 1), NotSubscribed),
        ("create", ("a b",), BadRequest),
        ("statistics", ("news", -1), BadRequest),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(
    topics: Any, verb: str, arguments: tuple[Any, ...], error: type[BrokerError]
) -> None:
    before = invoke(topics, "statistics", "news")
    with pytest.raises(error) as caught:
        invoke(topics, verb, *arguments)
    assert type(caught.value) is error and caught.value.definite
    assert invoke(topics, "statistics", "news") == before


def test_a_full_topic_says_so_and_nothing_is_lost(topics: Any) -> None:
    invoke(topics, "subscribe", "news", "ann")
    invoke(topics, "put", "news", "bob", ["x"] * 100, 1)
    with pytest.raises(TopicFull) as caught:
        invoke(topics, "put", "news", "bob", ["y"], 101)
    assert caught.value.retriable and caught.value.details["last"] == 100
    assert len(invoke(topics, "get", "news", "ann", 0, 1_000)["messages"]) == 100
    invoke(topics, "confirm", "news", "ann", 1)
    assert invoke(topics, "put", "news", "bob", ["y"], 101)["position"] == 101


def test_an_empty_answer_in_columns_has_empty_columns(topics: Any) -> None:
    ticket = invoke(topics, "subscribe", "news", "ann", "i")["ticket"]
    answer = invoke(topics, "get_columns", "ann", "i", {"news": [ticket, 0]}, 5, 0.0)
    assert not answer["bodies"] and not answer["names"] and answer["topics"]["news"]["last"] == 0


def test_a_late_subscribe_is_not_done_after_an_unsubscribe_that_found_no_topic(topics: Any) -> None:
    assert not invoke(topics, "unsubscribe", "later", "ann", "i", 2)["was"]
    with pytest.raises(RequestOvertaken):
        invoke(topics, "subscribe", "later", "ann", "i", 1)
