"""The client over a real broker, while all is well; and what its errors say."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Iterator
from zlib import crc32

import pytest

from broker.errors import (
    BadRequest,
    BrokerUnavailable,
    ClientElsewhere,
    MessageTooLarge,
    NotSubscribed,
    TopicFull,
)
from broker.wire import call_checksum
from tests.processes import free_port, poll
from tests.topics.stage import Stage, bodies
from topics import StateUnusable, Topic, Topics


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("stage"), backlog_count_max=100)
    yield made
    made.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic, and the beginning of client ids, of the test alone."""
    return f"t{crc32(request.node.name.encode())}"


@pytest.fixture
def ann(stage: Stage, name: str) -> Topics:
    return stage.client(name + "-ann", history=stage.directory / "histories")


@pytest.fixture
def bob(stage: Stage, name: str) -> Topics:
    return stage.client(name + "-bob", history=stage.directory / "histories")


@pytest.mark.parametrize(
    "value", [b"\0\xff", b"", "text é", "", {"a": [1, None]}, 0, None, [], 1.5, True]
)
def test_a_message_arrives_as_it_was_put(stage: Stage, ann: Topics, name: str, value: Any) -> None:
    ann.subscribe(name)
    receipt = ann.put(name, value)
    got = ann.get(name)
    assert got is not None and got.body == value and type(got.body) is type(value)
    assert (got.topic, got.id, got.publisher, got.number) == (name, 1, ann.client, 1)
    assert (receipt.number, receipt.position, receipt.again) == (1, 1, False)


def test_a_subscriber_gets_what_is_put_after_it_came_and_nothing_from_before(
    ann: Topics, bob: Topics, name: str
) -> None:
    assert ann.subscribe(name)
    ann.put(name, "early")
    assert bob.subscribe(name)
    ann.put(name, "late")
    assert bodies(ann.get_many(name, 9)) == ["early", "late"]
    assert bodies(bob.get_many(name, 9)) == ["late"]
    assert ann.get(name) is None and bob.get(name) is None


def test_subscribing_again_says_so_and_changes_nothing(ann: Topics, name: str) -> None:
    assert ann.subscribe(name)
    ann.put(name, 1)
    assert not ann.subscribe(name)
    assert bodies(ann.get_many(name, 9)) == [1]
    assert ann.subscriptions() == [name]


def test_after_unsubscribe_nothing_comes_also_not_what_waited(ann: Topics, name: str) -> None:
    ann.subscribe(name)
    ann.put(name, "waits")
    assert ann.unsubscribe(name)
    with pytest.raises(NotSubscribed, match="subscribe first"):
        ann.get(name)
    assert not ann.unsubscribe(name)
    assert ann.subscribe(name)
    assert ann.get(name) is None


def test_unsubscribe_from_a_topic_that_nobody_made_says_was_not_subscribed(
    ann: Topics, name: str
) -> None:
    assert not ann.unsubscribe(name)


def test_put_many_is_one_call_and_its_receipt_is_of_the_last(ann: Topics, name: str) -> None:
    ann.subscribe(name)
    receipt = ann.put_many(name, ["a", b"b", {"c": 1}])
    assert (receipt.number, receipt.position) == (3, 3)
    assert bodies(ann.get_many(name, 2)) == ["a", b"b"]
    assert bodies(ann.get_many(name, 2)) == [{"c": 1}]
    with pytest.raises(BadRequest, match="no messages"):
        ann.put_many(name, [])


def test_closing_tells_the_broker_what_came_last(stage: Stage, name: str) -> None:
    """So that it is released without a further get, and an audit finds nothing owed."""
    with stage.client("teller") as teller:
        teller.subscribe(name)
        teller.put_many(name, ["a", "b"])
        assert len(teller.get_many(name, 2)) == 2
        assert stage.service.topics.statistics(name)["backlog"] == 2
    assert stage.service.topics.statistics(name)["backlog"] == 0


def test_last_put_is_the_number_of_the_last_message_that_is_surely_there(
    ann: Topics, name: str
) -> None:
    assert ann.last_put(name) == 0
    assert ann.put_many(name, ["a", "b"]).number == ann.last_put(name) == 2


def test_get_any_reads_all_topics_in_the_order_of_acceptance(
    ann: Topics, bob: Topics, name: str
) -> None:
    names = [f"{name}-{index}" for index in range(3)]
    for topic in names:
        ann.subscribe(topic)
        bob.subscribe(topic)
    for number in range(12):
        ann.put(names[number * 7 % 3], number)
    assert bodies(ann.get_any_many(5)) == [0, 1, 2, 3, 4]
    first = ann.get_any()
    assert first is not None and first.body == 5
    assert bodies(ann.get_any_many(50)) == [6, 7, 8, 9, 10, 11]
    assert bodies(bob.get_any_many(50)) == list(range(12))
    assert ann.get_any() is None


def test_get_any_without_a_subscription_says_so(ann: Topics) -> None:
    with pytest.raises(NotSubscribed, match="not subscribed to any topic"):
        ann.get_any()


def test_what_was_received_comes_again_until_it_is_confirmed(
    stage: Stage, ann: Topics, name: str
) -> None:
    ann.subscribe(name)
    ann.put_many(name, range(4))
    received = ann.receive(name, 2)
    assert bodies(received) == [0, 1]
    assert ann.receive(name, 3)[:2] == received
    ann.confirm(received[0])
    assert bodies(ann.receive_any(9)) == [1, 2, 3]
    ann.confirm(received[0])  # once more is fine
    ann.close()
    again = stage.client(ann.client)
    assert bodies(again.receive(name, 9)) == [1, 2, 3]


def test_a_confirmation_reaches_the_broker_at_once(stage: Stage, ann: Topics, name: str) -> None:
    ann.subscribe(name)
    ann.put_many(name, range(4))
    assert stage.service is not None
    before = stage.service.topics.statistics(name)["backlog"]
    ann.confirm(ann.receive(name, 3)[-1])
    assert (before, stage.service.topics.statistics(name)["backlog"]) == (4, 1)


def test_a_message_of_a_subscription_that_has_ended_confirms_nothing(
    ann: Topics, name: str
) -> None:
    ann.subscribe(name)
    ann.put_many(name, range(3))
    old = ann.receive(name, 3)
    ann.unsubscribe(name)
    ann.subscribe(name)
    ann.put(name, "new")
    ann.confirm(old[-1])
    assert bodies(ann.get_many(name, 9)) == ["new"]


def test_a_get_waits_for_a_message_and_lets_other_threads_put(ann: Topics, name: str) -> None:
    ann.subscribe(name)
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(ann.get(name, wait_s=30)))
    waiter.start()
    started = time.monotonic()
    ann.put(name, "for the waiter")
    waiter.join(20)
    assert found and found[0].body == "for the waiter"
    assert time.monotonic() - started < 15


def test_a_get_that_waits_in_vain_returns_none_in_time(ann: Topics, name: str) -> None:
    ann.subscribe(name)
    started = time.monotonic()
    assert ann.get(name, wait_s=0.3) is None
    assert 0.3 <= time.monotonic() - started < 3


def test_several_threads_get_every_message_once(ann: Topics, name: str) -> None:
    ann.subscribe(name)
    found: list[Any] = []

    def take() -> None:
        while (message := ann.get(name, wait_s=5)) is not None and message.body != "end":
            found.append(message.body)
        ann.put(name, "end")  # for the next thread

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(60):
        ann.put(name, number)
    ann.put(name, "end")
    for thread in threads:
        thread.join(60)
    assert sorted(found) == list(range(60))


def test_several_threads_put_every_message_once(ann: Topics, name: str) -> None:
    ann.subscribe(name)
    threads = [
        threading.Thread(target=lambda base=base: [ann.put(name, base + i) for i in range(20)])
        for base in (0, 100, 200)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = bodies(ann.get_many(name, 100))
    assert len(found) == 60 and len(set(found)) == 60
    for base in (0, 100, 200):
        assert [body for body in found if base <= body < base + 20] == list(range(base, base + 20))


def test_unsubscribe_sends_away_who_waits(ann: Topics, name: str) -> None:
    ann.subscribe(name)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            ann.get(name, wait_s=60)
        except NotSubscribed as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    ann.unsubscribe(name)
    waiter.join(20)
    assert errors


def test_closing_sends_away_who_waits_and_refuses_the_rest(ann: Topics, name: str) -> None:
    ann.subscribe(name)
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            ann.get(name, wait_s=60)
        except BadRequest as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    poll(lambda: list(ann._opened.requests._proxies)[1:], 10, "the waiter is connected")
    ann.close()
    ann.close()
    waiter.join(20)
    assert errors
    for verb in (lambda: ann.put(name, 1), lambda: ann.get(name), lambda: ann.subscribe(name)):
        with pytest.raises(BadRequest, match="closed"):
            verb()


def test_a_client_goes_on_where_it_stopped(stage: Stage, ann: Topics, name: str) -> None:
    ann.subscribe(name)
    ann.put_many(name, [1, 2, 3])
    assert bodies(ann.get_many(name, 2)) == [1, 2]
    ann.close()
    again = stage.client(ann.client)
    assert again.subscriptions() == [name]
    assert again.put(name, 4).number == 4
    assert bodies(again.get_many(name, 9)) == [3, 4]


def test_the_same_id_with_another_directory_is_refused_until_it_takes_over(
    stage: Stage, ann: Topics, name: str, tmp_path: Path
) -> None:
    ann.subscribe(name)
    ann.put_many(name, [1, 2])
    ann.put(name + "-other", 1)
    assert ann.get(name) is not None
    ann.put(name, 3)
    ann.confirm(ann.receive(name)[0])
    other = stage.client(ann.client, directory=tmp_path)
    for verb in (lambda: other.put(name, "x"), lambda: other.subscribe(name)):
        with pytest.raises(ClientElsewhere, match="take the id over"):
            verb()
    other.close()
    heir = stage.client(ann.client, directory=tmp_path, take_over=True)
    assert heir.subscriptions() == [name]
    assert heir.put(name, 4).number == 4
    assert heir.put(name + "-other", 2).number == 2
    assert bodies(heir.get_many(name, 9)) == [3, 4]
    with pytest.raises(ClientElsewhere):
        ann.put(name, "too late")


def test_a_full_topic_refuses_for_sure_and_the_message_is_not_sent_later(
    stage: Stage, bob: Topics, name: str
) -> None:
    bob.subscribe(name)
    ann = stage.client(name + "-ann", timeout_s=0.5, tries=2)
    ann.put_many(name, range(100))
    with pytest.raises(TopicFull, match="surely not done.*it is not kept"):
        ann.put(name, "refused")
    assert ann.resume() == []
    assert len(bob.get_many(name, 100)) == 100
    assert bob.get(name) is None
    assert ann.put(name, "next").number == 101
    assert bodies(bob.get_many(name, 9)) == ["next"]


def test_a_message_that_is_too_large_is_refused_and_the_next_one_is_put(
    ann: Topics, name: str
) -> None:
    ann.subscribe(name)
    with pytest.raises(MessageTooLarge, match="message_bytes_max"):
        ann.put(name, b"x" * (2 << 20))
    with pytest.raises(BadRequest, match="JSON"):
        ann.put(name, object())
    ann.put(name, "small")
    assert bodies(ann.get_many(name, 9)) == ["small"]


def test_without_a_broker_a_put_is_surely_not_done_after_all_tries(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with Topics("ann", tmp_path, name_server=address, timeout_s=0.2, tries=3) as ann:
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="surely not done.*3 tries of 0.2 s") as told:
            ann.put("news", 1)
        assert 0.4 <= time.monotonic() - started < 2
        assert told.value.details["sent"] is False
        assert address in str(told.value)
        assert ann.resume() == []
        with pytest.raises(BrokerUnavailable, match="surely not done; repeat subscribe"):
            ann.subscribe("news")


def test_every_known_address_is_tried(stage: Stage, name: str) -> None:
    dead = f"127.0.0.1:{free_port()}"
    ann = stage.client(name, name_server=[dead, stage.name_server], tries=1)
    ann.subscribe(name)
    assert ann.put(name, 1).number == 1
    bob = stage.client(name + "-bob", name_server=f"{dead},{stage.name_server}", tries=1)
    assert bob.subscribe(name)


def test_the_address_is_taken_from_the_environment(
    stage: Stage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_NAME_SERVER", stage.name_server)
    assert stage.client(name, name_server=None).subscribe(name)


@pytest.mark.parametrize("options", [{"tries": 0}, {"timeout_s": 0}, {"name_server": []}])
def test_settings_that_leave_no_try_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        Topics("ann", tmp_path, **options)


@pytest.mark.parametrize("topic", ["", "a/b", "-x", "a" * 101])
def test_a_bad_name_is_refused_before_anything_is_written(ann: Topics, topic: str) -> None:
    for verb in (ann.subscribe, ann.unsubscribe, ann.forget_put, lambda t: ann.put(t, 1)):
        with pytest.raises(BadRequest, match="topic name"):
            verb(topic)
    assert ann._opened.ledger.accounts == {}


def test_one_topic_has_the_same_verbs(stage: Stage, name: str, tmp_path: Path) -> None:
    with Topic("ann", name, tmp_path, name_server=stage.name_server, timeout_s=3.0) as topic:
        assert topic.subscribe() and not topic.subscribe()
        topic.put(1)
        topic.put_many([2, 3])
        first = topic.get()
        assert first is not None and first.body == 1
        (second,) = topic.receive()
        topic.confirm(second)
        assert bodies(topic.get_many(9)) == [3]
        assert topic.unsubscribe() and not topic.unsubscribe()
        with pytest.raises(StateUnusable, match="use one Topics"):
            Topic("ann", name + "-2", tmp_path, name_server=stage.name_server)


def test_the_history_says_what_the_client_saw(stage: Stage, ann: Topics, name: str) -> None:
    ann.subscribe(name)
    ann.put_many(name, [b"a", "b"])
    got = ann.get(name)
    (second,) = ann.receive(name)
    ann.confirm(second)
    ann.unsubscribe(name)
    ann.close()
    lines = stage.lines(ann.client)
    assert [line["n"] for line in lines] == list(range(len(lines)))
    assert {line["instance"] for line in lines} == {ann._opened.instance}
    assert {(line["client"], line["name"], line["session"]) for line in lines} == {
        ("topic", ann.client, "1")
    }
    common = {"client", "name", "session", "channel", "instance", "n", "at_us", "topic"}
    told = [{key: line[key] for key in line if key not in common} for line in lines]
    assert got is not None
    ticket, born = got.ticket, told[2].get("born")
    assert told == [
        {"event": "opened"},
        {"event": "requested", "request": 1, "ask": "subscribe", "ticket": 0},
        {"event": "subscribed", "request": 1, "ticket": ticket, "position": 0, "new": True,
         "born": born},
        {"event": "tried", "number": 1, "count": 2, "crc": call_checksum([0, 1], [b"a", b"b"]),
         "again": False},
        {"event": "answered", "number": 1, "count": 2, "position": 1, "again": False,
         "born": born},
        {"event": "got", "ticket": ticket, "first": 1, "count": 1, "crc": crc32(b"a")},
        {"event": "received", "ticket": ticket, "first": 2, "count": 1, "crc": crc32(b"b")},
        {"event": "confirmed", "ticket": ticket, "position": 2},
        {"event": "requested", "request": 2, "ask": "unsubscribe", "ticket": ticket},
        {"event": "unsubscribed", "request": 2, "ticket": ticket, "was": True},
        {"event": "closed"},
    ]  # fmt: skip
