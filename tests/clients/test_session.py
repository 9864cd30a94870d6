"""The subscriber's pure half: what it takes, what it starts, what it acks, what it never does
twice."""

from __future__ import annotations

from typing import Any

from subscriber.session import Assignment, Session


def batch(*runs: tuple[int, str, int, int], attempts: list[int] | None = None) -> dict[str, Any]:
    """Runs as (epoch, partition, first position, count); bodies are "partition:position"."""
    bodies = [f"{p}:{first + i}".encode() for _, p, first, count in runs for i in range(count)]
    return {
        "publishers": "p",
        "partitions": [partition for _, partition, _, _ in runs],
        "firsts": [first for _, _, first, _ in runs],
        "counts": [count for _, _, _, count in runs],
        "epochs": [epoch for epoch, _, _, _ in runs],
        "attempts": attempts,
        "timestamps": 5,
        "sequences": [first for _, _, first, _ in runs],
        "priorities": None,
        "formats": 0,
        "bodies": bodies,
        "extras": None,
    }


def handle(session: Session, assignment: Assignment, count: int = 1 << 30) -> list[bytes]:
    """What a worker does: start, handle, finish, up to ``count`` messages."""
    handled = []
    while assignment.cursor < len(assignment.items) and len(handled) < count:
        item = assignment.items[assignment.cursor]
        assignment.cursor += 1
        assignment.started = item[0]
        if assignment.closed and not session.may_start(assignment, item[0]):
            break
        assignment.done = item[0]
        handled.append(item[6])
    return handled


def handle_everything(session: Session) -> list[bytes]:
    handled = []
    while taken := session.take(10):
        for assignment in taken:
            handled += handle(session, assignment)
            session.put_back(assignment)
    return handled


def test_messages_are_handled_in_order_and_acknowledged_cumulatively() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 3), (2, "b", 1, 1)))
    assert handle_everything(session) == [b"a:1", b"a:2", b"a:3", b"b:1"]
    assert session.take_acks() == ([1, 2], [3, 1], [])


def test_acks_are_repeated_until_they_are_confirmed() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 2)))
    handle_everything(session)
    first = session.take_acks()
    session.not_confirmed()
    assert session.take_acks() == first
    session.confirmed()
    assert session.take_acks() is None and session.idle and not session.held


def test_a_batch_that_is_sent_again_is_taken_once() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 2)))
    assert handle_everything(session) == [b"a:1", b"a:2"]
    session.receive(batch((1, "a", 1, 4)))
    assert handle_everything(session) == [b"a:3", b"a:4"]


def test_more_of_a_held_partition_is_appended_to_it() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 2)))
    session.receive(batch((1, "a", 3, 2)))
    assert handle_everything(session) == [b"a:1", b"a:2", b"a:3", b"a:4"]


def test_a_taken_partition_is_given_to_no_second_worker() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 2)))
    (taken,) = session.take(5)
    session.receive(batch((1, "a", 3, 1)))
    assert session.take(5) == []
    handle(session, taken, 2)
    session.put_back(taken)
    assert session.take(5) == [taken]


def test_a_recall_returns_what_is_not_started_and_keeps_what_is() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 5), (2, "b", 1, 5)))
    a, b = session.take(2)
    handle(session, a, 1)
    a.started = 2  # running
    assert session.recall([1, 2, 99]) == [2, 0, 0]
    a.done = 2
    assert handle(session, a) == [] and handle(session, b) == []
    assert session.take_acks() == ([1], [2], [])
    session.confirmed()
    assert not session.held


def test_messages_of_a_closed_assignment_that_come_late_are_not_taken() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 2)))
    session.recall([1])
    session.receive(batch((1, "a", 3, 2)))
    assert handle_everything(session) == [] and not session.held


def test_a_failed_message_closes_its_assignment_after_what_was_done() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 4)))
    (taken,) = session.take(1)
    handle(session, taken, 2)
    taken.started = 3
    session.failed(taken)
    session.put_back(taken)
    assert session.take_acks() == ([1], [2], [])
    assert handle_everything(session) == []


def test_what_was_handled_without_a_confirmed_ack_is_not_handled_again() -> None:
    """The lease ran out while acks got lost; the work comes back under a new epoch."""
    session = Session()
    session.receive(batch((1, "a", 1, 4)))
    (taken,) = session.take(1)
    handle(session, taken, 3)
    session.lose([1])
    session.put_back(taken)
    session.receive(batch((7, "a", 1, 4), attempts=[2]))
    assert handle_everything(session) == [b"a:4"]
    assert session.take_acks() == ([7], [4], [])


def test_a_running_message_of_a_lost_assignment_holds_its_partition_back() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 3)))
    (old,) = session.take(1)
    handle(session, old, 1)
    old.started = 2  # running while the assignment is lost
    session.lose([1])
    session.receive(batch((7, "a", 1, 3)))
    assert session.take(5) == [], "message 3 must not start while 2 is running"
    old.done = 2
    session.put_back(old)
    assert handle_everything(session) == [b"a:3"]


def test_a_running_message_of_a_lost_assignment_that_fails_is_handled_again() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 3)))
    (old,) = session.take(1)
    handle(session, old, 1)
    old.started = 2
    session.lose([1])
    session.receive(batch((7, "a", 1, 3)))
    session.failed(old)
    session.put_back(old)
    assert handle_everything(session) == [b"a:2", b"a:3"]


def test_stale_acks_lose_the_assignment() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 2), (2, "b", 1, 2)))
    handle_everything(session)
    session.take_acks()
    session.confirmed(stale=[1])
    assert not session.held and session.take_acks() is None


def test_only_the_first_message_of_a_run_carries_the_attempt() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 3), (2, "b", 4, 1), attempts=[2, 3]))
    attempts = {}
    for assignment in session.take(2):
        attempts.update({item[6]: item[1] for item in assignment.items})
    assert attempts == {b"a:1": 2, b"a:2": 1, b"a:3": 1, b"b:4": 3}


def test_a_batch_that_is_sent_again_after_its_ack_was_confirmed_is_recognised() -> None:
    """The answer to ``receive`` got lost, so the broker sends what has been settled meanwhile."""
    session = Session()
    session.receive(batch((1, "a", 1, 3)))
    assert handle_everything(session) == [b"a:1", b"a:2", b"a:3"]
    session.take_acks()
    session.confirmed()
    session.receive(batch((1, "a", 1, 3)))
    assert handle_everything(session) == [] and not session.held
    session.receive(batch((1, "a", 1, 5)))
    assert handle_everything(session) == [b"a:4", b"a:5"], "more of the same assignment is taken"
    assert session.take_acks() == ([1], [5], [])


def test_a_recall_between_a_failure_and_its_nack_keeps_the_failed_message() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 4)))
    (taken,) = session.take(1)
    handle(session, taken, 1)
    taken.started = 2
    session.failed(taken)
    session.put_back(taken)
    assert session.recall([1]) == [2], "2 was tried here, and the broker will hear so"
    session.nacked(1)
    assert not session.held


def test_a_subscription_made_anew_brings_its_epochs_and_positions_from_the_start() -> None:
    session = Session()
    session.receive(batch((1, "a", 1, 2), (2, "b", 1, 2)))
    handle_everything(session)
    session.recall([2])
    session.forget()
    session.receive(batch((1, "a", 1, 2), (2, "b", 1, 2)))
    assert handle_everything(session) == [b"a:1", b"a:2", b"b:1", b"b:2"]


def test_acks_that_come_back_after_the_work_was_lost_do_no_harm() -> None:
    """A SIGSTOP past the lease, once: the settler's call ended while the keeper subscribed anew."""
    session = Session()
    session.receive(batch((1, "a", 1, 2), (2, "b", 1, 2)))
    handle_everything(session)
    assert session.take_acks() == ([1, 2], [2, 2], [])
    session.lose([1])
    session.confirmed(stale=[1])
    assert session.take_acks() == ([2], [2], []), "what is still held is acknowledged again"
    session.confirmed()
    assert not session.held


# Given up by the broker and taken in anew, found by the simulator.


def test_what_was_handled_before_it_was_given_up_is_recognised_afterwards() -> None:
    """The batch of the new membership may come before the answer that tells of it."""
    session = Session()
    session.receive({**batch((4, "a", 1, 1)), "fence": 0})
    assert handle_everything(session) == [b"a:1"]
    session.receive({**batch((6, "a", 1, 2)), "fence": 5})
    assert handle_everything(session) == [b"a:2"], "a:1 was handled, only its ack got lost"
    assert session.take_acks() == ([6], [2], []), "and is acknowledged under the new epoch"


def test_a_batch_from_before_it_was_given_up_comes_too_late() -> None:
    session = Session()
    session.receive({**batch((11, "d", 1, 1)), "fence": 10})
    assert handle_everything(session) == [b"d:1"]
    session.take_acks()
    session.confirmed()
    session.receive({**batch((9, "d", 1, 1)), "fence": 0})
    assert handle_everything(session) == []


def test_the_fence_of_a_subscription_made_anew_starts_over() -> None:
    session = Session()
    session.receive({**batch((11, "d", 1, 1)), "fence": 10})
    session.forget()
    session.receive({**batch((1, "d", 1, 1)), "fence": 0})
    assert handle_everything(session) == [b"d:1"]


def test_the_first_batch_of_a_subscription_made_anew_is_handled_though_positions_repeat() -> None:
    """Found by the simulator: position 1 was taken for that of the old subscription, and acked."""
    session = Session()
    session.enter(100)
    session.receive({**batch((4, "a", 1, 3)), "fence": 3, "generation": 100})
    assert handle_everything(session) == [b"a:1", b"a:2", b"a:3"]
    session.receive({**batch((6, "a", 1, 1)), "fence": 5, "generation": 200})
    assert handle_everything(session) == [b"a:1"], "of the new one: another message"
    assert session.generation == 200


def test_a_late_batch_of_a_subscription_that_was_deleted_changes_nothing() -> None:
    session = Session()
    session.receive({**batch((6, "a", 1, 2)), "fence": 5, "generation": 200})
    session.receive({**batch((4, "a", 1, 3)), "fence": 3, "generation": 100})
    assert session.generation == 200 and list(session.held) == [6]
