"""The topic's state machine: who is owed what, what is done once, what is refused and why."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from broker.core.topics import Topic, TopicPolicy
from broker.core.topics import commands as c
from broker.core.topics import records as r
from broker.core.topics.log import BODY
from broker.core.topics.snapshot import dump, load, restore
from broker.errors import (
    BadRequest,
    BeyondEnd,
    ClientElsewhere,
    LimitReached,
    NotSubscribed,
    NumberReused,
    RequestOvertaken,
    SequenceGap,
    StateBehind,
    TopicFull,
)


class Driven:
    """A topic with its journal, driven by hand."""

    def __init__(self, **limits: int) -> None:
        self.topic = Topic("news")
        self.records: list[r.TopicRecord] = []
        self.now_ms = 1_000
        self._take_in(Topic.birth("news", TopicPolicy(**limits), 1, self.now_ms))

    def do(self, command: c.TopicCommand) -> dict[str, Any]:
        """Decide, write, apply."""
        self.now_ms += 1
        if isinstance(command, c.PutMessages):
            command.stamp = self.topic.stamp + 1
        elif isinstance(command, c.Subscribe):
            command.ticket = self.topic.stamp + 1
        decision = self.topic.decide(command, self.now_ms)
        self._take_in(decision.records)
        return decision.reply

    def _take_in(self, records: list[r.TopicRecord]) -> None:
        for record in records:
            self.records.append(record)
            self.topic.apply(record)

    def subscribe(self, client: str, request: int | None = None) -> dict[str, Any]:
        """The client's own instance is its id."""
        return self.do(c.Subscribe(client, client, request))

    def unsubscribe(self, client: str, request: int | None = None) -> dict[str, Any]:
        """By whichever ticket it has."""
        return self.do(c.Unsubscribe(client, client, request))

    def put(self, client: str, *bodies: bytes, number: int | None = None) -> dict[str, Any]:
        """Messages with the next numbers, or from a number on."""
        size, crc = sum(map(len, bodies)), crc32(b"".join(bodies))
        return self.do(c.PutMessages(client, client, number, 0, list(bodies), size, crc))

    def confirm(self, client: str, received: int, ticket: int | None = None) -> dict[str, Any]:
        """The client has everything up to there."""
        return self.do(c.Confirm(client, client, ticket, received))

    def owed(self, client: str) -> list[bytes]:
        """What waits for a client."""
        log = self.topic.log
        place = self.topic.places[client]
        return [entry[BODY] for entry in log.after(place.confirmed, len(log) + 1, 1 << 30)]


# Subscriptions.


def test_a_subscriber_is_owed_what_is_accepted_after_it_and_nothing_from_before() -> None:
    driven = Driven()
    driven.subscribe("early")
    driven.put("p", b"1", b"2")
    assert driven.subscribe("ann")["position"] == 2
    driven.put("p", b"3")
    assert driven.owed("ann") == [b"3"]
    assert driven.owed("early") == [b"1", b"2", b"3"]


def test_subscribing_again_says_so_and_changes_nothing() -> None:
    driven = Driven()
    first = driven.subscribe("ann", 1)
    driven.put("p", b"1")
    count = len(driven.records)
    again = driven.subscribe("ann", 2)
    assert first["new"] and not again["new"]
    assert again["ticket"] == first["ticket"] and again["position"] == 0
    assert len(driven.records) == count and driven.owed("ann") == [b"1"]


def test_a_repeated_request_gets_the_same_answer() -> None:
    driven = Driven()
    assert driven.subscribe("ann", 1) == driven.subscribe("ann", 1)
    assert driven.unsubscribe("ann", 2)["was"] and driven.unsubscribe("ann", 2)["was"]
    assert not driven.unsubscribe("ann", 3)["was"], "there was nothing left to end"


def test_a_late_copy_of_a_request_is_not_done_after_a_newer_one() -> None:
    driven = Driven()
    driven.subscribe("ann", 1)
    driven.unsubscribe("ann", 2)
    with pytest.raises(RequestOvertaken):
        driven.subscribe("ann", 1)
    assert "ann" not in driven.topic.places
    driven.subscribe("ann", 3)
    with pytest.raises(RequestOvertaken):
        driven.unsubscribe("ann", 2)
    with pytest.raises(RequestOvertaken):
        driven.unsubscribe("ann", 3)
    assert "ann" in driven.topic.places


def test_an_unsubscribe_ends_only_the_subscription_that_it_names() -> None:
    driven = Driven()
    old = driven.subscribe("ann")["ticket"]
    driven.unsubscribe("ann")
    new = driven.subscribe("ann")["ticket"]
    assert new > old
    assert not driven.do(c.Unsubscribe("ann", "ann", None, old))["was"]
    assert driven.do(c.Unsubscribe("ann", "ann", None, new))["was"]


def test_after_unsubscribing_nothing_comes_even_of_what_was_owed() -> None:
    driven = Driven()
    ticket = driven.subscribe("ann")["ticket"]
    driven.put("p", b"1", b"2")
    assert driven.unsubscribe("ann")["owed"] == 2
    with pytest.raises(NotSubscribed):
        driven.confirm("ann", 0)
    driven.subscribe("ann")
    with pytest.raises(NotSubscribed, match="subscribed anew"):
        driven.confirm("ann", 0, ticket)
    assert driven.owed("ann") == []


# Puts.


def test_the_last_put_is_recognised_when_it_comes_again() -> None:
    driven = Driven()
    driven.subscribe("ann")
    first = driven.put("p", b"1", b"2", number=1)
    again = driven.put("p", b"1", b"2", number=1)
    assert (first["again"], again["again"]) == (False, True)
    assert again["position"] == first["position"] == 1 and again["number"] == 2
    assert driven.owed("ann") == [b"1", b"2"]


def test_a_number_that_skips_is_refused_with_the_last_one_received() -> None:
    driven = Driven()
    driven.put("p", b"1", b"2", number=1)
    with pytest.raises(SequenceGap) as caught:
        driven.put("p", b"4", number=4)
    assert caught.value.details["last"] == 2 and caught.value.details["born"] == 1


@pytest.mark.parametrize(
    ("number", "bodies"), [(3, [b"other"]), (1, [b"1"]), (1, [b"1", b"2"]), (2, [b"2", b"3", b"4"])]
)
def test_a_taken_number_with_something_else_in_it_is_refused(
    number: int, bodies: list[bytes]
) -> None:
    """It is never dropped silently as a duplicate: that would lose a message."""
    driven = Driven()
    driven.put("p", b"1", b"2", number=1)
    driven.put("p", b"3", number=3)
    with pytest.raises(NumberReused) as caught:
        driven.put("p", *bodies, number=number)
    assert caught.value.details["last"] == 3


def test_all_see_the_same_order_also_between_publishers() -> None:
    driven = Driven()
    for client in ("ann", "bob"):
        driven.subscribe(client)
    for number in range(6):
        driven.put(f"p{number % 2}", b"%d" % number)
    assert driven.owed("ann") == driven.owed("bob") == [b"%d" % number for number in range(6)]


def test_a_full_topic_refuses_all_of_a_call_and_takes_it_later() -> None:
    driven = Driven(backlog_count_max=3)
    driven.subscribe("ann")
    driven.put("p", b"1", b"2", number=1)
    with pytest.raises(TopicFull, match="backlog_count_max"):
        driven.put("p", b"3", b"4", number=3)
    driven.confirm("ann", 1)
    assert driven.put("p", b"3", b"4", number=3)["position"] == 3


def test_what_nobody_is_owed_needs_no_room() -> None:
    driven = Driven(backlog_count_max=3)
    for _ in range(5):
        driven.put("p", b"x", b"y")
    assert len(driven.topic.log) == 0 and driven.topic.released
    driven.subscribe("ann")
    assert driven.put("p", b"z")["position"] == 11


def test_two_state_directories_under_one_id_are_refused_until_one_takes_over() -> None:
    driven = Driven()
    driven.subscribe("ann")
    driven.put("ann", b"1")
    with pytest.raises(ClientElsewhere):
        driven.do(c.PutMessages("ann", "other", 1, 0, [b"x"], 1, 0))
    with pytest.raises(ClientElsewhere):
        driven.do(c.Confirm("ann", "other", None, 0))
    told = driven.do(c.TakeOver("ann", "other"))
    assert (told["number"], told["position"], told["request"]) == (1, 0, 1)
    driven.do(c.Confirm("ann", "other", told["ticket"], 1))
    with pytest.raises(ClientElsewhere):
        driven.put("ann", b"2")


def test_an_id_that_the_topic_does_not_know_can_be_taken_over_as_well() -> None:
    """So that a call of the lost directory, on its way since before, does not claim it."""
    driven = Driven()
    assert not driven.do(c.TakeOver("ann", "new"))["known"]
    with pytest.raises(ClientElsewhere):
        driven.do(c.Subscribe("ann", "old", 1))


def test_limits_on_subscribers_and_clients_are_errors() -> None:
    driven = Driven(subscriber_count_max=1, client_count_max=2)
    driven.subscribe("ann")
    with pytest.raises(LimitReached):
        driven.subscribe("bob")
    driven.put("p", b"1")
    with pytest.raises(LimitReached, match="client_count_max"):
        driven.put("q", b"1")
    with pytest.raises(BadRequest, match="backlog_count_max"):
        TopicPolicy(backlog_count_max=0)
    with pytest.raises(BadRequest, match="no limit"):
        TopicPolicy.from_dict({"colour": 1})


# Gets.


def test_only_what_is_confirmed_is_taken_from_a_clients_line() -> None:
    driven = Driven()
    driven.subscribe("ann")
    driven.put("p", b"1", b"2", b"3")
    assert driven.confirm("ann", 0)["position"] == 0
    assert driven.owed("ann") == [b"1", b"2", b"3"]
    driven.confirm("ann", 2)
    driven.confirm("ann", 2)
    assert driven.owed("ann") == [b"3"]
    assert sum(isinstance(record, r.Confirmed) for record in driven.records) == 1


def test_a_client_whose_state_is_ahead_or_behind_is_told_so() -> None:
    driven = Driven()
    driven.subscribe("ann")
    driven.put("p", b"1", b"2")
    with pytest.raises(BeyondEnd):
        driven.confirm("ann", 3)
    driven.confirm("ann", 2)
    with pytest.raises(StateBehind) as caught:
        driven.confirm("ann", 1)
    assert caught.value.details["position"] == 2


# Garbage.


def test_a_message_is_released_when_the_last_one_that_is_owed_it_has_it() -> None:
    driven = Driven()
    for client in ("ann", "bob", "eve"):
        driven.subscribe(client)
    driven.put("p", *[b"x" * 10] * 10)
    driven.confirm("ann", 10)
    driven.confirm("bob", 4)
    assert driven.topic.log.first == 1 and driven.topic.log.size == 100
    driven.unsubscribe("eve")
    assert driven.topic.log.first == 5 and driven.topic.log.size == 60
    driven.confirm("bob", 10)
    assert len(driven.topic.log) == 0 and driven.topic.log.size == 0
    assert not driven.topic.released
    driven.unsubscribe("ann")
    driven.unsubscribe("bob")
    assert driven.topic.released


def test_released_places_are_given_back() -> None:
    driven = Driven()
    driven.subscribe("ann")
    for number in range(100):
        driven.put("p", *[b"x"] * 100)
        driven.confirm("ann", number * 100 + 50)
    assert len(driven.topic.log._entries) < 3_000
    assert [entry[3] for entry in driven.topic.log.after(9_949, 2, 100)] == [9_951, 9_952]


# Snapshots and replay.


def state(topic: Topic) -> Any:
    """All of a topic, as builtin types."""
    return dump(topic, 0, messages=True) | {"upto": 0}


def scene() -> Driven:
    """A topic with a bit of everything in it."""
    driven = Driven()
    for client in ("ann", "bob"):
        driven.subscribe(client)
    for number in range(8):
        driven.put(f"p{number % 2}", *[b"%d" % number] * (number % 3 + 1))
        if number % 2:
            driven.confirm("ann", driven.topic.log.last - 1)
        if number == 4:
            driven.unsubscribe("bob")
        if number == 5:
            driven.subscribe("bob")
    driven.confirm("bob", driven.topic.log.last - 3)
    return driven


def test_the_journal_alone_gives_the_same_topic() -> None:
    driven = scene()
    replayed = Topic("news")
    for record in driven.records:
        replayed.apply(record)
    assert state(replayed) == state(driven.topic)


def test_a_snapshot_gives_the_same_topic() -> None:
    driven = scene()
    assert state(load("news", dump(driven.topic, 9, messages=True))) == state(driven.topic)


def test_a_state_and_the_records_with_what_is_owed_give_the_same_topic() -> None:
    """The base that the broker makes stands before its state; see ``snapshot``."""
    driven = scene()
    first = driven.topic.log.first
    owed = [
        index
        for index, record in enumerate(driven.records)
        if isinstance(record, r.Put) and record.position + len(record.bodies) > first
    ]
    made = load("news", dump(driven.topic, len(driven.records), messages=False))
    for record in driven.records[owed[0] :]:
        restore(made, record)
    assert made.log.last == made.expected_last
    assert state(made) == state(driven.topic)


def test_a_state_of_another_topic_is_refused() -> None:
    with pytest.raises(ValueError, match="topic 'news'"):
        load("other", dump(scene().topic, 9, messages=True))
