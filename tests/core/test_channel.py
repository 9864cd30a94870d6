"""Stories of one channel, told in commands. Each test pins one behaviour of the core."""

from __future__ import annotations

import pytest

from broker.core import commands as c
from broker.core import records as r
from broker.core.message import PartitionKey
from broker.errors import (
    BadRequest,
    LimitReached,
    NotSubscribed,
    PublisherFenced,
    QueuesDown,
    SubscriberReplaced,
)
from tests.builders import Driven, bodies_of, publish_command


def kinds(driven: Driven, kind: str) -> list[r.Record]:
    return [record for record in driven.records if record.kind == kind]


def held_by(driven: Driven, subscriber: str) -> list[str]:
    group = driven.channel.subscriptions["default"]
    return [line.key.partition for line in group.subscribers[subscriber].held.values()]


# Publishing.


def test_what_is_published_first_waits_for_a_subscriber() -> None:
    driven = Driven()
    driven.publish("a", b"1", b"2")
    assert driven.dispatch() == {}
    driven.subscribe("s")
    (send,) = driven.dispatch()["s"]
    assert bodies_of(send) == [b"1", b"2"]


def test_a_sequence_that_was_accepted_before_is_dropped_as_a_duplicate() -> None:
    driven = Driven()
    command = publish_command("p", {"a": (1, [b"1", b"2"])})
    driven.do(command)
    again = driven.do(publish_command("p", {"a": (1, [b"1", b"2", b"3"])})).reply
    assert (again["accepted"], again["duplicates"], again["refused"]) == (1, 2, 0)
    assert driven.channel.published_total == 3


def test_a_gap_is_refused_and_names_the_expected_sequence() -> None:
    driven = Driven()
    driven.publish("a", b"1")
    reply = driven.do(publish_command("p", {"a": (5, [b"x"]), "b": (1, [b"y"])})).reply
    assert reply["runs"] == [[0, 0, "gap", 2, 0], [1, 0, None, 2, 0]]
    assert (reply["accepted"], reply["refused"]) == (1, 1)


def test_an_older_epoch_of_a_publisher_is_fenced() -> None:
    driven = Driven()
    old = driven.do(c.OpenPublisher("p")).reply["epoch"]
    new = driven.do(c.OpenPublisher("p")).reply["epoch"]
    assert new > old
    with pytest.raises(PublisherFenced):
        driven.do(publish_command("p", {"a": (1, [b"1"])}, epoch=old))
    assert driven.do(publish_command("p", {"a": (1, [b"1"])}, epoch=new)).reply["accepted"] == 1


def test_over_the_limit_exactly_the_first_are_kept() -> None:
    driven = Driven(pending_count_max=3)
    reply = driven.publish("a", b"1", b"2", b"3", b"4", b"5")
    assert (reply["accepted"], reply["refused"], reply["room"]) == (3, 2, 0)
    assert reply["runs"] == [[3, 0, "full", 4, 0]]


def test_bytes_are_limited_too() -> None:
    driven = Driven(pending_bytes_max=5)
    assert driven.publish("a", b"123", b"45", b"6")["accepted"] == 2


def test_partitions_are_limited() -> None:
    driven = Driven(partition_count_max=1)
    driven.publish("a", b"1")
    reply = driven.do(publish_command("p", {"a": (2, [b"2"]), "b": (1, [b"x"])})).reply
    assert reply["runs"][1][2] == "partition-limit" and reply["accepted"] == 1


def test_a_known_id_is_dropped_inside_the_window_and_uses_up_its_sequence() -> None:
    driven = Driven(dedup_window_count_max=2)
    driven.publish("a", b"1", ids=["x"])
    reply = driven.publish("a", b"1", b"2", ids=["x", "y"])
    assert (reply["accepted"], reply["duplicates"], reply["known"]) == (1, 1, [0])
    assert driven.channel.next_sequences("p", ["a"]) == [4]
    driven.publish("a", b"3", ids=["z"])
    assert driven.publish("a", b"4", ids=["x"])["accepted"] == 1, "the window has moved on"


def test_an_id_twice_in_one_batch_is_accepted_once() -> None:
    driven = Driven()
    assert driven.publish("a", b"1", b"1", ids=["x", "x"])["accepted"] == 1


# Order.


def test_waiting_messages_are_handed_out_by_timestamp_then_sequence() -> None:
    driven = Driven()
    driven.publish("a", b"30", b"10", b"20", timestamps=[30, 10, 20])
    driven.publish("a", b"15", timestamps=[15])
    driven.subscribe("s")
    (send,) = driven.dispatch()["s"]
    assert bodies_of(send) == [b"10", b"15", b"20", b"30"]
    assert send.delivered.sequences == [2, 4, 3, 1], "a run is contiguous in its sequences"


def test_a_message_older_than_one_handed_out_is_next_and_recorded_as_late() -> None:
    driven = Driven()
    driven.subscribe("s", prefetch=2)
    driven.publish("a", b"10", b"20", b"30", timestamps=[10, 20, 30])
    (send,) = driven.dispatch()["s"]
    driven.publish("a", b"15", timestamps=[15])
    driven.ack("s", send.delivered.epochs[0], 2)
    (send,) = driven.dispatch()["s"]
    assert bodies_of(send) == [b"15", b"30"] and send.delivered.late == [0]


def test_late_messages_behind_ones_that_came_back_are_recorded_as_late_too() -> None:
    """Found by the audit: a run of returned messages hid the late ones that it was sent with."""
    driven = Driven()
    driven.subscribe("a")
    driven.publish("k", b"20", b"30", timestamps=[20, 30])
    ((send,),) = driven.dispatch().values()
    driven.do(c.HandBack("default", "a", "a-1", send.delivered.epochs, [0]))
    driven.publish("k", b"10", timestamps=[10])
    ((send,),) = driven.dispatch().values()
    assert bodies_of(send) == [b"20", b"30", b"10"] and send.delivered.late == [2]


def test_the_positions_of_a_partition_are_dense_over_all_assignments() -> None:
    driven = Driven(run_count_max=2)
    driven.publish("a", b"1", b"2", b"3", b"4", b"5")
    driven.subscribe("s")
    firsts = []
    while sends := driven.dispatch():
        record = sends["s"][0].delivered
        firsts += [*zip(record.firsts, record.counts)]
        driven.ack("s", record.epochs[0], record.firsts[0] + record.counts[0] - 1)
    assert [first + i for first, count in firsts for i in range(count)] == [1, 2, 3, 4, 5]


# Assignment.


def test_partitions_are_shared_equally_and_stay_whole() -> None:
    driven = Driven()
    driven.subscribe("s1")
    driven.subscribe("s2")
    for name in "abcdef":
        driven.publish(name, b"1", b"2", b"3")
    driven.dispatch()
    assert len(held_by(driven, "s1")) == len(held_by(driven, "s2")) == 3


def test_with_equal_load_a_partition_returns_to_its_last_subscriber() -> None:
    driven = Driven()
    driven.subscribe("s1")
    driven.subscribe("s2")
    owners = set()
    for _ in range(5):
        driven.publish("a", b"x")
        ((name, (send,)),) = driven.dispatch().items()
        owners.add(name)
        driven.ack(name, send.delivered.epochs[0], send.delivered.firsts[0])
    assert len(owners) == 1


def test_equal_loads_take_turns() -> None:
    driven = Driven()
    for name in ("s1", "s2", "s3"):
        driven.subscribe(name)
    given = []
    for partition in "abcdef":
        driven.publish(partition, b"x")
        ((name, (send,)),) = driven.dispatch().items()
        given.append(name)
        driven.ack(name, send.delivered.epochs[0], 1)
    assert sorted(given) == ["s1", "s1", "s2", "s2", "s3", "s3"]


def test_prefetch_bounds_what_is_given_and_the_rest_stays_in_the_channel() -> None:
    driven = Driven()
    driven.publish("a", *[b"x"] * 10)
    driven.subscribe("s", prefetch=4)
    driven.dispatch()
    group = driven.channel.subscriptions["default"]
    assert group.subscribers["s"].unsettled == 4 and group.pending_count == 10


def test_a_long_partition_takes_turns_with_the_others() -> None:
    driven = Driven(run_count_max=2)
    driven.publish("long", *[b"l"] * 10)
    driven.publish("short", b"s")
    driven.subscribe("s", prefetch=3)
    (send,) = driven.dispatch()["s"]
    assert sorted(bodies_of(send)) == [b"l", b"l", b"s"]


def test_an_epoch_rises_with_every_assignment_of_a_partition() -> None:
    driven = Driven()
    driven.subscribe("s")
    epochs = []
    for _ in range(4):
        driven.publish("a", b"x")
        (send,) = driven.dispatch()["s"]
        epochs.append(send.delivered.epochs[0])
        driven.ack("s", epochs[-1], send.delivered.firsts[0])
    assert epochs == sorted(set(epochs))


def test_all_queues_are_disposed_of_when_everything_is_settled() -> None:
    driven = Driven()
    driven.subscribe("s")
    driven.publish("a", b"1")
    (send,) = driven.dispatch()["s"]
    driven.ack("s", send.delivered.epochs[0], 1)
    group = driven.channel.subscriptions["default"]
    assert not group.queue and not group.subscribers["s"].held and not group.pending_count
    assert group.totals.queues_created == group.totals.queues_disposed == 1


# Priority.


def test_the_partition_with_the_most_urgent_message_comes_first() -> None:
    driven = Driven()
    driven.publish("low", b"1")
    driven.publish("high", b"2", b"3", priorities=[0, 9])
    driven.subscribe("s", prefetch=2)
    (send,) = driven.dispatch()["s"]
    assert bodies_of(send) == [b"2", b"3"], "urgent work lifts its predecessors"


def test_ageing_bounds_the_wait_of_a_partition_without_urgency() -> None:
    driven = Driven(ageing_ms=100)
    driven.publish("old", b"old")
    driven.now_ms += 1_000
    driven.publish("urgent", b"urgent", priorities=[5])
    driven.subscribe("s", prefetch=1)
    (send,) = driven.dispatch()["s"]
    assert bodies_of(send) == [b"old"]


def test_an_urgent_message_in_a_held_partition_is_topped_up_before_others() -> None:
    driven = Driven(run_count_max=1)
    driven.subscribe("s", prefetch=2)
    driven.publish("held", b"1", b"2", b"3")
    driven.dispatch()
    driven.publish("other", b"x")
    driven.publish("held", b"4", priorities=[7])
    (send,) = driven.dispatch()["s"]
    assert send.delivered.keys == [PartitionKey("p", "held")]


# Settling and fencing.


def test_an_ack_with_an_old_epoch_changes_nothing() -> None:
    driven = Driven()
    driven.subscribe("s1")
    driven.publish("a", b"1", b"2")
    (send,) = driven.dispatch()["s1"]
    driven.do(c.Leave("default", "s1", "s1-1", "expired"))
    driven.subscribe("s2")
    driven.dispatch()
    with pytest.raises(NotSubscribed):
        driven.ack("s1", send.delivered.epochs[0], 2)
    driven.subscribe("s1", session="s1-1")
    assert driven.ack("s1", send.delivered.epochs[0], 2)["stale"] == send.delivered.epochs
    assert driven.channel.unsettled() == 2


def test_an_ack_beyond_what_was_delivered_is_refused_as_stale() -> None:
    driven = Driven()
    driven.subscribe("s")
    driven.publish("a", b"1")
    (send,) = driven.dispatch()["s"]
    assert driven.ack("s", send.delivered.epochs[0], 2)["stale"] == send.delivered.epochs


def test_an_epoch_twice_in_one_ack_counts_with_its_highest_position() -> None:
    """Found by the state machine: a split run made one call name the same epoch twice."""
    driven = Driven()
    driven.subscribe("s")
    driven.publish("a", b"1", b"2", b"3", timestamps=[3, 1, 2])
    (send,) = driven.dispatch()["s"]
    epoch = send.delivered.epochs[0]
    reply = driven.do(c.Ack("default", "s", "s-1", [epoch, epoch], [1, 3])).reply
    assert (reply["acked"], reply["stale"]) == (3, [])


def test_a_second_session_with_the_same_id_replaces_the_first() -> None:
    driven = Driven()
    driven.subscribe("s", session="one")
    driven.publish("a", b"1")
    driven.dispatch()
    driven.subscribe("s", session="two")
    with pytest.raises(SubscriberReplaced):
        driven.do(c.Heartbeat("default", "s", "one"))
    (send,) = driven.dispatch()["s"]
    assert send.delivered.attempts == [2], "its first life ended with the message in hand"


def test_the_same_session_comes_back_with_what_it_holds() -> None:
    driven = Driven()
    driven.subscribe("s")
    driven.publish("a", b"1", b"2")
    driven.dispatch()
    driven.channel = driven.replayed()
    driven.do(c.Start("boot"))
    assert driven.do(c.Subscribe("default", "s", "s-1", 100, "")).reply["resumed"]
    again = driven.channel.in_flight("default", "s", driven.now_ms)
    assert again is not None and bodies_of(again) == [b"1", b"2"]
    assert driven.ack("s", again.delivered.epochs[0], 2)["stale"] == []


def test_a_subscriber_not_heard_of_since_the_start_gets_nothing_new() -> None:
    driven = Driven()
    driven.subscribe("s")
    driven.channel = driven.replayed()
    driven.do(c.Start("boot"))
    driven.publish("a", b"1")
    assert driven.dispatch() == {}


# Failures.


def nack(driven: Driven, subscriber: str = "s") -> r.Record:
    (send,) = driven.dispatch()[subscriber]
    record = send.delivered
    driven.do(
        c.Nack("default", subscriber, subscriber + "-1", record.epochs[0], record.firsts[0])
    )
    return record


def test_a_failed_message_is_retried_in_place_after_a_back_off() -> None:
    driven = Driven(backoff_ms=100)
    driven.subscribe("s")
    driven.publish("a", b"1", b"2")
    nack(driven)
    assert driven.dispatch() == {}
    driven.now_ms += 100
    (send,) = driven.dispatch()["s"]
    assert bodies_of(send) == [b"1"] and send.delivered.attempts == [2]


def test_after_the_last_attempt_a_message_is_parked_and_its_partition_goes_on() -> None:
    driven = Driven(attempts_max=3)
    driven.subscribe("s")
    driven.publish("a", b"bad", b"good")
    for _ in range(3):
        nack(driven)
        driven.now_ms += 60_000
        driven.do(c.Heartbeat("default", "s", "s-1"))
    (send,) = driven.dispatch()["s"]
    assert bodies_of(send) == [b"good"] and send.delivered.attempts == [1]
    ((key, position),) = driven.channel.subscriptions["default"].parked
    assert (key.partition, position) == ("a", 1)


def test_a_parked_partition_waits_as_a_whole_and_can_be_redriven() -> None:
    driven = Driven(attempts_max=1, poison="park_partition")
    driven.subscribe("s")
    driven.publish("a", b"1", b"2")
    nack(driven)
    driven.now_ms += 60_000
    driven.do(c.Heartbeat("default", "s", "s-1"))
    assert driven.dispatch() == {}
    assert driven.do(c.Redrive("default")).reply["partitions"] == 1
    (send,) = driven.dispatch()["s"]
    assert bodies_of(send)[0] == b"1"


def test_a_blocking_channel_retries_for_ever_in_order() -> None:
    driven = Driven(attempts_max=2, poison="block")
    driven.subscribe("s")
    driven.publish("a", b"1", b"2")
    for attempt in range(1, 6):
        assert nack(driven).attempts == [attempt]  # type: ignore[union-attr]
        driven.now_ms += 60_000
        driven.do(c.Heartbeat("default", "s", "s-1"))


def test_a_rejected_message_is_parked_at_once() -> None:
    driven = Driven()
    driven.subscribe("s")
    driven.publish("a", b"1")
    (send,) = driven.dispatch()["s"]
    epoch = send.delivered.epochs[0]
    reply = driven.do(c.Nack("default", "s", "s-1", epoch, 1, "no", None, True)).reply
    assert reply["parked"]


def test_a_redriven_message_comes_before_everything_that_was_never_handed_out() -> None:
    driven = Driven(attempts_max=1)
    driven.subscribe("s", prefetch=1)
    driven.publish("a", b"1", b"2", b"3")
    nack(driven)
    driven.do(c.Redrive("default"))
    (send,) = driven.dispatch()["s"]
    assert bodies_of(send) == [b"1"] and send.delivered.firsts == [2], "under a new position"


def test_what_is_redriven_may_go_over_the_limit_for_new_messages() -> None:
    """Found by the state machine: parked messages make room, and come back when it is used."""
    driven = Driven(attempts_max=1, pending_count_max=2)
    driven.subscribe("s", prefetch=1)
    driven.publish("a", b"1", b"2")
    nack(driven)
    assert driven.publish("a", b"3")["accepted"] == 1
    driven.do(c.Redrive("default"))
    assert driven.channel.unsettled() == 3
    assert driven.publish("a", b"4")["refused"] == 1


def test_after_a_crash_the_suspects_are_tried_one_at_a_time_and_only_the_guilty_is_parked() -> None:
    """Four messages in flight, the third kills its process: 1, 2 and 4 must get through."""
    driven = Driven(attempts_max=3)
    driven.publish("a", b"1", b"2", b"killer", b"4")
    handled: list[bytes] = []
    for life in range(8):
        name = f"s{life}"
        driven.subscribe(name)
        dead = False
        while not dead and (sends := driven.dispatch()):
            (send,) = sends[name]
            record = send.delivered
            if life:
                assert len(send.entries) == 1, "one suspect at a time"
            if b"killer" in bodies_of(send):
                driven.do(c.Leave("default", name, name + "-1", "crashed"))
                dead = True
                continue
            handled += bodies_of(send)
            driven.ack(name, record.epochs[0], record.firsts[0])
        if not dead:
            break
    assert handled == [b"1", b"2", b"4"]
    (parked,) = driven.channel.subscriptions["default"].parked.values()
    assert parked.entry[4] == b"killer" and parked.attempt == 3


def test_a_killer_takes_no_innocent_partition_with_it() -> None:
    """Everything that a dying process held counts as tried; only who kills alone is parked."""
    driven = Driven(attempts_max=3)
    for name in "abcde":
        driven.publish(name, b"killer" if name == "c" else b"innocent")
    handled: list[str] = []
    for life in range(20):
        subscriber = f"s{life}"
        driven.subscribe(subscriber)
        dead = False
        while not dead and (sends := driven.dispatch()):
            (send,) = sends[subscriber]
            if b"killer" in bodies_of(send):
                driven.do(c.Leave("default", subscriber, subscriber + "-1", "crashed"))
                dead = True
                continue
            record = send.delivered
            handled += [key.partition for key in record.keys]
            uptos = [first + count - 1 for first, count in zip(record.firsts, record.counts)]
            driven.do(
                c.Ack("default", subscriber, subscriber + "-1", list(record.epochs), uptos)
            )
        if not dead:
            break
    assert sorted(handled) == ["a", "b", "d", "e"]
    (parked,) = driven.channel.subscriptions["default"].parked.values()
    assert parked.entry[4] == b"killer"
    assert life == 3, "three deaths, and then peace"


def test_a_message_on_trial_is_handled_with_nothing_else_beside_it() -> None:
    driven = Driven(attempts_max=2)
    driven.subscribe("s0")
    driven.publish("a", b"suspect")
    driven.dispatch()
    driven.do(c.Leave("default", "s0", "s0-1", "crashed"))
    driven.subscribe("s1")
    driven.publish("b", b"other")
    (trial,) = driven.dispatch()["s1"]
    assert bodies_of(trial) == [b"suspect"]
    driven.publish("c", b"more")
    assert driven.dispatch() == {}
    driven.ack("s1", trial.delivered.epochs[0], 1)
    (rest,) = driven.dispatch()["s1"]
    assert sorted(bodies_of(rest)) == [b"more", b"other"]


def test_a_trial_waits_for_a_subscriber_to_become_empty_while_the_others_go_on() -> None:
    driven = Driven(attempts_max=2)
    driven.subscribe("s0")
    driven.publish("a", b"suspect")
    driven.dispatch()
    for name in ("s1", "s2"):
        driven.subscribe(name)
    driven.publish("b", b"1", b"2")
    driven.publish("c", b"3", b"4")
    held = {name: sends[0].delivered for name, sends in driven.dispatch().items()}
    driven.do(c.Leave("default", "s0", "s0-1", "crashed"))
    assert driven.dispatch() == {}, "both have work"
    driven.publish("d", b"5", b"6")
    busy = driven.dispatch()
    assert len(busy) == 1, "one of them is kept free"
    (free,) = set(held) - set(busy)
    record = held[free]
    driven.ack(free, record.epochs[0], 2)
    assert bodies_of(driven.dispatch()[free][0]) == [b"suspect"]


def test_a_clean_leave_counts_no_attempt() -> None:
    driven = Driven()
    driven.subscribe("s1")
    driven.publish("a", b"1", b"2")
    driven.dispatch()
    driven.do(c.Leave("default", "s1", "s1-1"))
    driven.subscribe("s2")
    (send,) = driven.dispatch()["s2"]
    assert bodies_of(send) == [b"1", b"2"] and send.delivered.attempts == [1]


def test_a_missed_lease_is_a_crash() -> None:
    driven = Driven(lease_ms=1_000)
    driven.subscribe("s1")
    driven.publish("a", b"1")
    driven.dispatch()
    driven.now_ms += 1_001
    driven.do(c.Tick())
    assert "s1" not in driven.channel.subscriptions["default"].subscribers
    driven.subscribe("s2")
    (send,) = driven.dispatch()["s2"]
    assert send.delivered.attempts == [2]


# Slow subscribers and joins.


def slow_story() -> tuple[Driven, c.Send]:
    driven = Driven(long_delay_ms=100, long_delays_max=3)
    driven.subscribe("slow")
    driven.publish("a", *[b"%d" % i for i in range(1, 7)])
    (send,) = driven.dispatch()["slow"]
    driven.subscribe("other")
    epoch = send.delivered.epochs[0]
    for position in (1, 2, 3):
        driven.ack("slow", epoch, position, delays=[[epoch, position, 150]])
    return driven, send


def test_three_long_delays_make_a_subscriber_slow_and_its_work_is_recalled() -> None:
    driven, _ = slow_story()
    assert len(kinds(driven, "Slowed")) == 1
    (recalled,) = kinds(driven, "Recalled")
    assert recalled.reason == "slow"  # type: ignore[union-attr]


def test_what_a_slow_subscriber_has_not_started_moves_after_the_running_one_settles() -> None:
    driven, send = slow_story()
    epoch = send.delivered.epochs[0]
    driven.do(c.HandBack("default", "slow", "slow-1", [epoch], [4]))
    assert driven.dispatch() == {}, "message 4 is still running"
    driven.ack("slow", epoch, 4)
    (moved,) = driven.dispatch()["other"]
    assert bodies_of(moved) == [b"5", b"6"] and moved.delivered.attempts == [1]


def test_a_slow_subscriber_stays_and_gets_new_work() -> None:
    driven, send = slow_story()
    epoch = send.delivered.epochs[0]
    driven.do(c.HandBack("default", "slow", "slow-1", [epoch], [3]))
    assert list(driven.dispatch()) == ["other"]
    driven.publish("new", b"x")
    assert list(driven.dispatch()) == ["slow"]


def test_small_delays_are_counted_and_move_nothing() -> None:
    driven = Driven(long_delay_ms=2_000)
    driven.subscribe("s")
    driven.subscribe("t")
    driven.publish("a", b"1", b"2", b"3", b"4")
    ((name, (send,)),) = driven.dispatch().items()
    epoch = send.delivered.epochs[0]
    for position in (1, 2, 3, 4):
        driven.ack(name, epoch, position, delays=[[epoch, position, 300]])
    totals = driven.channel.subscriptions["default"].totals
    assert (totals.delays, totals.long_delays) == (4, 0)
    assert not kinds(driven, "Recalled") and not kinds(driven, "Reassigned")


def test_a_subscriber_that_joins_gets_a_fair_share_of_what_is_not_started() -> None:
    driven = Driven()
    driven.subscribe("s1", prefetch=100)
    for name in "abcd":
        driven.publish(name, *[b"x"] * 10)
    driven.dispatch()
    driven.subscribe("s2")
    driven.do(c.Tick())
    (recalled,) = kinds(driven, "Recalled")
    epochs = recalled.epochs  # type: ignore[union-attr]
    assert len(epochs) == 2
    driven.do(c.HandBack("default", "s1", "s1-1", epochs, [0, 0]))
    driven.dispatch()
    assert len(held_by(driven, "s1")) == len(held_by(driven, "s2")) == 2
    driven.do(c.Tick())
    assert len(kinds(driven, "Recalled")) == 1, "no ping-pong"


def test_single_messages_are_recalled_from_a_subscriber_that_makes_no_progress() -> None:
    """As with one partition per customer: nothing more to come in any line, but nothing moves."""
    driven = Driven(recall_after_ms=200)
    driven.subscribe("stuck")
    for name in "abcdef":
        driven.publish(name, b"x")
    driven.dispatch()
    driven.subscribe("idle")
    driven.do(c.Tick())
    assert not kinds(driven, "Recalled"), "it may well be about to settle them"
    driven.now_ms += 200
    driven.do(c.Tick())
    (recalled,) = kinds(driven, "Recalled")
    assert len(recalled.epochs) == 3  # type: ignore[union-attr]


def test_a_heartbeat_of_a_subscriber_that_is_away_asks_it_to_subscribe_again() -> None:
    driven = Driven()
    driven.subscribe("s")
    driven.do(c.Start("boot"))
    with pytest.raises(NotSubscribed, match="subscribe again"):
        driven.do(c.Heartbeat("default", "s", "s-1"))
    driven.subscribe("s")
    driven.do(c.Heartbeat("default", "s", "s-1"))


def test_every_answer_that_renews_a_lease_says_when_its_subscriber_joined() -> None:
    """It may have missed the answer to its joining; see ``decide_heartbeat``."""
    driven = Driven()
    driven.subscribe("other")
    driven.publish("a", b"1")
    newest = driven.dispatch()["other"][0].delivered.epochs[0]
    driven.subscribe("s")
    driven.publish("b", b"2")
    (send,) = driven.dispatch()["s"]
    epoch = send.delivered.epochs[0]
    assert epoch > newest
    for command in (
        c.Heartbeat("default", "s", "s-1"),
        c.Nack("default", "s", "s-1", newest, 1, "not its own", None, False),
        c.Ack("default", "s", "s-1", [epoch], [0]),
        c.Nack("default", "s", "s-1", epoch, 1, "no", None, False),
    ):
        assert driven.do(command).reply["fence"] == newest


# The queues' crash, subscriptions, limits.


def test_while_the_queues_are_down_nothing_is_taken_or_settled() -> None:
    driven = Driven()
    driven.subscribe("s")
    driven.publish("a", b"1", b"2")
    (send,) = driven.dispatch()["s"]
    driven.publish("b", b"3")
    driven.do(c.KillQueues())
    for command in (
        publish_command("p", {"a": (3, [b"x"])}),
        c.Ack("default", "s", "s-1", send.delivered.epochs, [2]),
        c.Leave("default", "s", "s-1"),
    ):
        with pytest.raises(QueuesDown):
            driven.do(command)
    assert driven.dispatch() == {}
    assert driven.do(c.RestoreQueues()).reply["restored"] == 3
    assert driven.ack("s", send.delivered.epochs[0], 2)["stale"] == []
    (rest,) = driven.dispatch()["s"]
    assert bodies_of(rest) == [b"3"]


def test_each_subscription_gets_everything_from_its_creation_on() -> None:
    driven = Driven()
    driven.publish("a", b"before")
    driven.do(c.CreateSubscription("audit"))
    driven.publish("a", b"after")
    driven.subscribe("s")
    driven.subscribe("t", subscription="audit")
    sends = driven.dispatch()
    assert bodies_of(sends["s"][0]) == [b"before", b"after"]
    assert bodies_of(sends["t"][0]) == [b"after"]


def test_a_full_subscription_holds_the_whole_channel_back() -> None:
    driven = Driven(pending_count_max=2)
    driven.do(c.CreateSubscription("audit"))
    driven.subscribe("s")
    driven.publish("a", b"1", b"2")
    (send,) = driven.dispatch()["s"]
    driven.ack("s", send.delivered.epochs[0], 2)
    assert driven.publish("a", b"3")["refused"] == 1


def test_a_subscription_with_subscribers_is_not_deleted() -> None:
    driven = Driven()
    driven.subscribe("s")
    with pytest.raises(BadRequest):
        driven.do(c.DeleteSubscription("default"))


def test_subscribers_are_limited() -> None:
    driven = Driven(subscriber_count_max=1)
    driven.subscribe("s1")
    with pytest.raises(LimitReached):
        driven.subscribe("s2")


def test_a_leave_while_the_queues_are_down_is_refused() -> None:
    """Found by the state machine: the restored queues gave lines to a subscriber that had left."""
    driven = Driven()
    driven.subscribe("s1", prefetch=1)
    driven.publish("a", b"1")
    driven.dispatch()
    driven.do(c.KillQueues())
    with pytest.raises(QueuesDown):
        driven.do(c.Leave("default", "s1", "s1-1"))
    driven.do(c.RestoreQueues())


# Found by review: starvation.


def test_ageing_bounds_the_wait_beside_a_held_line_with_a_standing_urgent_backlog() -> None:
    driven = Driven(ageing_ms=1_000, run_count_max=5, lease_ms=1_000_000)
    driven.subscribe("s", prefetch=10)
    driven.publish("urgent", *[b"u"] * 500, priorities=[5] * 500)
    (send,) = driven.dispatch()["s"]
    driven.publish("plain", b"plain")
    held = send.delivered.epochs[0]
    position = 0
    for _ in range(60):
        driven.now_ms += 500
        position += 5
        driven.ack("s", held, position)
        sends = driven.dispatch().get("s", [])
        if any(b"plain" in bodies_of(item) for item in sends):
            return
        held = sends[0].delivered.epochs[0] if sends else held
    pytest.fail("the line without urgency was never served")


def test_a_line_in_back_off_does_not_stop_the_sharing() -> None:
    driven = Driven(backoff_ms=30_000)
    driven.subscribe("s1")
    driven.publish("bad", b"x")
    nack(driven, "s1")
    for name in "abcd":
        driven.publish(name, *[b"x"] * 5)
    driven.dispatch()
    driven.subscribe("s2")
    driven.do(c.Tick())
    assert len(kinds(driven, "Recalled")) == 1


def test_an_avoided_subscriber_gets_its_line_back_when_nobody_else_can_take_it() -> None:
    driven, send = slow_story()
    epoch = send.delivered.epochs[0]
    driven.publish("long", *[b"x"] * 100)
    driven.dispatch()
    group = driven.channel.subscriptions["default"]
    group.subscribers["other"].prefetch = group.subscribers["other"].unsettled
    driven.do(c.HandBack("default", "slow", "slow-1", [epoch], [3]))
    assert list(driven.dispatch()) == ["slow"]


def test_a_trial_does_not_wait_for_a_subscriber_that_hangs() -> None:
    driven = Driven(attempts_max=2, lease_ms=1_000_000, recall_after_ms=200)
    driven.subscribe("dying")
    driven.publish("a", b"suspect")
    driven.dispatch()
    driven.subscribe("hung", can_recall=False)
    driven.publish("b", b"x")
    driven.dispatch()
    driven.subscribe("busy", can_recall=False)
    driven.publish("c", b"1", b"2", b"3")
    driven.dispatch()
    driven.do(c.Leave("default", "dying", "dying-1", "crashed"))
    driven.now_ms += 1_000
    line = driven.channel.line(PartitionKey("p", "c"))
    driven.ack("busy", line.epoch, 1)
    driven.dispatch()
    driven.ack("busy", line.epoch, 3)
    assert bodies_of(driven.dispatch()["busy"][0]) == [b"suspect"]


def test_a_crash_does_not_lower_attempts_that_failures_have_raised() -> None:
    """Found by review: with poison=block a count above the maximum fell back to it."""
    driven = Driven(attempts_max=2, poison="block")
    driven.subscribe("s")
    driven.publish("a", b"1")
    for _ in range(4):
        nack(driven)
        driven.now_ms += 60_000
        driven.do(c.Heartbeat("default", "s", "s-1"))
    driven.dispatch()
    driven.do(c.Leave("default", "s", "s-1", "crashed"))
    assert driven.channel.line(PartitionKey("p", "a")).attempt == 5


def test_messages_redriven_one_after_the_other_keep_their_order() -> None:
    driven = Driven(attempts_max=1)
    driven.subscribe("s", prefetch=1)
    driven.publish("a", b"1", b"2", b"3", timestamps=[1, 2, 3])
    nack(driven)
    nack(driven)
    key = PartitionKey("p", "a")
    driven.do(c.Redrive("default", key))
    handed = []
    for _ in range(3):
        (send,) = driven.dispatch()["s"]
        handed += bodies_of(send)
        driven.ack("s", send.delivered.epochs[0], send.delivered.firsts[0])
    assert handed == [b"1", b"2", b"3"]


@pytest.mark.parametrize("value", [0, -1, 2**63, 2**70, 1.5, True, "7", None])
def test_a_policy_number_out_of_bounds_is_refused(value: object) -> None:
    with pytest.raises(BadRequest):
        Driven(lease_ms=value)


def test_a_back_off_that_was_waited_for_does_not_count_again_after_the_clock_jumped() -> None:
    """Found by the simulator: a partition waited for an hour that had been waited for before."""
    driven = Driven(backoff_ms=100)
    driven.now_ms = 10_000_000
    driven.subscribe("s", prefetch=1)
    driven.publish("a", b"1", b"2")
    driven.dispatch()
    driven.do(c.Nack("default", "s", "s-1", 1, 1))
    driven.now_ms += 100
    driven.dispatch()
    driven.now_ms -= 3_600_000
    driven.do(c.Start("boot"))
    driven.do(c.Subscribe("default", "s", "s-1", 1, ""))
    driven.ack("s", 2, 1)
    assert driven.dispatch(), "the second message is handed out at once"


def test_a_back_off_is_bounded_also_when_the_broker_starts_with_crashed_queues() -> None:
    driven = Driven(backoff_ms=100, backoff_ms_max=1_000)
    driven.now_ms = 10_000_000
    driven.subscribe("s")
    driven.publish("a", b"1")
    driven.dispatch()
    driven.do(c.Nack("default", "s", "s-1", 1, 1))
    driven.do(c.KillQueues())
    driven.now_ms -= 3_600_000
    driven.do(c.Start("boot"))
    driven.do(c.Subscribe("default", "s", "s-1", 100, ""))
    driven.now_ms += 1_000
    assert driven.dispatch()


def test_several_deaths_at_once_park_no_more_messages_than_may_be_parked() -> None:
    """Found by the simulator: each looked at the state before the decision, none at the others."""
    driven = Driven(attempts_max=1, parked_count_max=1, lease_ms=1_000)
    for name in ("s", "t"):
        driven.publish(name, b"1")
        driven.subscribe(name)
    driven.dispatch()
    # The only attempt is also the last: each is tried alone, and its death proves it.
    driven.now_ms += 2_000
    driven.do(c.Tick())
    for name in ("u", "v"):
        driven.subscribe(name)
        driven.dispatch()  # one trial at a time
    driven.now_ms += 2_000
    driven.do(c.Tick())
    parked = kinds(driven, "Parked")
    assert sorted(record.scope for record in parked) == ["message", "partition"]  # type: ignore
