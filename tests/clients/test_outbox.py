"""The publisher's pure half: what is sent, in which order, under which sequences, and when it
counts."""

from __future__ import annotations

from typing import Any

import pytest

from broker.errors import BrokerUnavailable, ChannelFull, LimitReached
from publisher.outbox import Call, Learn, Outbox, follow


def outbox(**more: Any) -> Outbox:
    settings = {"batch_count_max": 4, "batch_bytes_max": 1 << 20, "refuse_when_full": True}
    return Outbox(**{**settings, **more})  # type: ignore[arg-type]


def add(box: Outbox, *partitions: str) -> list[tuple[Any, int]]:
    """Messages whose bodies are their running numbers over the whole outbox."""
    return [
        box.add(name, f"{name}{box.count}".encode(), 0, 1_000 + box.count, 0, None)
        for name in partitions
    ]


def accepted(record: int, durable: int | None = None, room: int = 1_000) -> dict[str, Any]:
    return {
        "accepted": 1, "duplicates": 0, "refused": 0, "room": room, "record": record,
        "durable": record if durable is None else durable,
    }  # fmt: skip


def refused(runs: list[list[Any]], count: int, record: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "accepted": 0, "duplicates": 0, "refused": count, "room": 0, "record": record,
        "durable": record, "runs": runs, "known": [], "limit": 7, "retry_after_ms": 5, **more,
    }  # fmt: skip


def next_call(box: Outbox) -> Call:
    call = box.next_call()
    assert isinstance(call, Call)
    return call


def test_messages_are_gathered_into_one_run_per_partition_in_their_order() -> None:
    box = outbox()
    add(box, "a", "b", "a", "b")
    call = next_call(box)
    assert (call.partitions, call.firsts, call.counts) == (["a", "b"], [1, 1], [2, 2])
    assert call.column(call.batch.bodies) == [b"a0", b"a2", b"b1", b"b3"]


def test_sequences_go_on_from_call_to_call() -> None:
    box = outbox(under_way_max=2)
    add(box, "a", "a", "a", "a", "a", "b")
    first, second = next_call(box), next_call(box)
    assert (first.firsts, second.firsts) == ([1], [5, 1])


def test_no_more_calls_are_under_way_than_allowed() -> None:
    box = outbox(under_way_max=2)
    add(box, *"abcdefghijkl")
    assert isinstance(box.next_call(), Call)
    assert isinstance(box.next_call(), Call)
    assert box.next_call() is None


def test_a_restarted_publisher_learns_the_sequences_before_it_sends() -> None:
    box = outbox()
    box.known = True
    add(box, "a", "b")
    learn = box.next_call()
    assert isinstance(learn, Learn) and learn.partitions == ["a", "b"]
    box.learnt(["a", "b"], [8, 1])
    assert next_call(box).firsts == [8, 1]


def test_an_answer_resolves_nothing_before_its_record_is_durable() -> None:
    box = outbox()
    ((batch, index),) = add(box, "a")
    box.answered(next_call(box), accepted(record=5, durable=4))
    assert batch.outcome(index) is None and box.count == 1
    box.durable(5)
    assert batch.outcome(index) == (1, False) and box.count == 0 == box.size


def test_after_a_broken_connection_everything_unconfirmed_goes_again_as_it_was() -> None:
    box = outbox(under_way_max=2)
    add(box, *"aaaaaaaaa")
    first = next_call(box)
    box.answered(first, accepted(record=1, durable=0))
    second = next_call(box)
    box.unknown()
    again = next_call(box)
    assert again is first and again.resent and again.firsts == [1]
    assert box.next_call() is None, "resent calls go one at a time"
    box.answered(again, accepted(record=2, durable=2))
    assert next_call(box) is second and second.firsts == [5]


def test_refused_messages_get_the_error_and_give_their_sequences_back() -> None:
    box = outbox()
    places = add(box, "a", "a", "a", "a")
    box.answered(next_call(box), refused([[1, 0, "full", 2, 0]], count=3))
    outcomes = [batch.outcome(index) for batch, index in places]
    assert outcomes[0] == (1, False)
    assert all(isinstance(outcome, ChannelFull) for outcome in outcomes[1:])
    assert box.count == 0 == box.size
    add(box, "a")
    assert next_call(box).firsts == [2]


def test_near_the_limit_a_call_carries_no_more_than_fits() -> None:
    """So that with a full channel exactly the first messages in publishing order are kept."""
    box = outbox(batch_count_max=10)
    add(box, "z")
    box.answered(next_call(box), accepted(1, room=3))
    add(box, *"ababababab")
    assert next_call(box).counts == [2, 1]


def test_a_blocking_publisher_sends_the_refused_rest_again_before_anything_newer() -> None:
    box = outbox(refuse_when_full=False)
    places = add(box, "a", "a", "a", "a", "a")
    box.answered(next_call(box), refused([[1, 0, "full", 2, 0]], count=3))
    call = next_call(box)
    assert call.column(call.batch.bodies) == [b"a1", b"a2", b"a3"]
    assert call.firsts == [2]
    box.answered(call, accepted(2))
    box.answered(next_call(box), accepted(3))
    assert [b.outcome(i) for b, i in (follow(*place) for place in places)] == [
        (sequence, False) for sequence in range(1, 6)
    ]
    assert box.count == 0 == box.size


def test_refusals_of_several_calls_under_way_keep_the_order_of_a_partition() -> None:
    box = outbox(refuse_when_full=False, under_way_max=2, batch_count_max=2)
    add(box, "a", "a", "a", "a", "a")
    first, second = next_call(box), next_call(box)
    box.answered(first, refused([[0, 0, "full", 1, 0]], count=2))
    assert box.next_call() is None, "nothing new before the other answer"
    box.answered(second, refused([[0, 0, "gap", 1, 0]], count=2))
    sent = []
    while (call := box.next_call()) is not None:
        assert isinstance(call, Call)
        sent.append((call.firsts, call.column(call.batch.bodies)))
        box.answered(call, accepted(9))
    assert [body for _, bodies in sent for body in bodies] == [b"a0", b"a1", b"a2", b"a3", b"a4"]
    assert [firsts for firsts, _ in sent] == [[1], [3], [5]]


def test_only_the_messages_with_known_ids_are_reported_as_duplicates() -> None:
    box = outbox()
    places = add(box, "a", "b", "a")
    reply = {
        **accepted(1), "duplicates": 1, "known": [1],
        "runs": [[2, 1, None, 3, 0], [1, 0, None, 2, 0]],
    }  # fmt: skip
    box.answered(next_call(box), reply)
    assert [batch.outcome(index) for batch, index in places] == [
        (1, False), (1, False), (2, True),
    ]  # fmt: skip


def test_a_partition_beyond_the_limit_is_an_error_even_for_a_blocking_publisher() -> None:
    box = outbox(refuse_when_full=False)
    ((batch, index),) = add(box, "new")
    box.answered(next_call(box), refused([[0, 0, "partition-limit", 1, 0]], count=1))
    assert isinstance(batch.outcome(index), LimitReached)


def test_giving_up_resolves_every_open_message_with_the_error() -> None:
    box = outbox(under_way_max=2)
    places = add(box, *"aaaaaaaaaa")
    box.answered(next_call(box), accepted(record=3, durable=0))
    next_call(box)
    box.fail(BrokerUnavailable("gone"))
    assert all(isinstance(b.outcome(i), BrokerUnavailable) for b, i in places)
    assert box.count == 0 == box.size and box.next_call() is None


def test_a_batch_is_bounded_in_count_and_in_bytes() -> None:
    box = outbox(batch_count_max=100, batch_bytes_max=10, under_way_max=9)
    for _ in range(5):
        box.add("a", b"12345", 0, 1, 0, None)
    assert [next_call(box).counts for _ in range(3)] == [[2], [2], [1]]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 11])
def test_add_many_is_add_many_times(count: int) -> None:
    one, many = outbox(under_way_max=9), outbox(under_way_max=9)
    names = [f"p{i % 3}" for i in range(count)]
    bodies = [b"%d" % i for i in range(count)]
    for name, body in zip(names, bodies):
        one.add(name, body, 0, 7, 0, None)
    many.add_many(names, bodies, 0, 7)

    def calls(box: Outbox) -> list[Any]:
        found = []
        while (call := box.next_call()) is not None:
            assert isinstance(call, Call)
            found.append(
                (call.partitions, call.firsts, call.counts, call.column(call.batch.bodies))
            )
        return found

    assert calls(one) == calls(many)
    assert (one.count, one.size) == (many.count, many.size)
