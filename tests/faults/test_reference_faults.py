"""The seventeen fault cases of the reference system, one test each, over real processes."""

from __future__ import annotations

import random
import time
from typing import Callable

import pytest

from broker.core import records as r
from broker.errors import ChannelFull, FaultInjectionDisabled, QueuesDown
from broker.remote.lookup import parse_address
from broker.remote.name_server import NameServer
from subscriber import Message
from tests.faults.stage import (
    DEADLINE_S,
    InProcess,
    Stage,
    by_key,
    in_turn,
    of_kind,
    runs_of,
    sequences,
    settled_once,
    whole,
)
from tests.faults.workers import wait_for
from tests.processes import poll

NewStage = Callable[..., Stage]


def test_01_publish_with_no_subscriber_waits(stage: Stage) -> None:
    """What is published with nobody there waits, and comes whole and in order to the first one."""
    stage.create()
    publisher = stage.publisher()
    for number in range(30):
        publisher.publish(f"body {number}", f"part-{number % 3}")
    publisher.flush(DEADLINE_S)
    group = stage.group()
    assert group["backup"] == group["messages_ready"] == 30
    assert (group["consumers"], group["delivered_total"], group["global_queue"]) == (0, 0, 3)
    worker = stage.subscriber("late")
    stage.settled(30)
    assert whole(worker.seen()) == {("p", f"part-{i}"): 10 for i in range(3)}
    assert [run.body for run in by_key(worker.seen())["p", "part-1"]] == [
        f"body {number}" for number in range(1, 30, 3)
    ]


def test_02_two_subscribers_share_partitions_equally(stage: Stage) -> None:
    """With two subscribers there first, each is given half of the partitions."""
    stage.create()
    gate = stage.gate("all-published")
    pair = [stage.subscriber(name, handle=lambda _: wait_for(str(gate))) for name in "ab"]
    publisher = stage.publisher()
    for number in range(40):
        publisher.publish(f"body {number}", f"part-{number % 8}")
    publisher.flush(DEADLINE_S)
    group = stage.until(sub_queues=8)
    held = {name: facts["partitions"] for name, facts in group["subscribers"].items()}
    assert held == {"a": 4, "b": 4}
    gate.touch()
    stage.settled(40)
    assert [len(by_key(worker.seen())) for worker in pair] == [4, 4]
    assert set(whole(runs_of(*pair)).values()) == {5}


def test_03_a_thousand_messages_two_partitions_two_subscribers(stage: Stage) -> None:
    """All of 1,000 messages arrive, once, in order, and each partition stays whole at one."""
    stage.create()
    pair = [stage.subscriber(name) for name in "ab"]
    publisher = stage.publisher()
    for number in range(1_000):
        publisher.publish(str(number), f"part-{number % 2}")
    publisher.flush(DEADLINE_S)
    stage.settled(1_000)
    assert whole(runs_of(*pair)) == {("p", "part-0"): 500, ("p", "part-1"): 500}
    owners = [{run.who for run in runs} for runs in by_key(runs_of(*pair)).values()]
    assert sorted(map(sorted, owners)) == [["a"], ["b"]]


@pytest.mark.parametrize("partitions", [1, 4])
def test_04_full_channel_refuses_exactly_the_rest(stage: Stage, partitions: int) -> None:
    """Over the limit of 1,000 the first 1,000 of 10,000 are kept and exactly 9,000 are refused."""
    stage.create(pending_count_max=1_000)
    publisher = stage.publisher(on_full="refuse")
    receipts = [
        publisher.publish(str(number), f"part-{number % partitions}") for number in range(10_000)
    ]
    errors = [receipt.error(DEADLINE_S) for receipt in receipts]
    assert errors[:1_000] == [None] * 1_000
    assert {type(error) for error in errors[1_000:]} == {ChannelFull}
    assert all(error is not None and error.retriable for error in errors[1_000:])
    assert stage.statistics()["published_total"] == 1_000 == stage.group()["backup"]
    worker = stage.subscriber("late")
    stage.settled(1_000)
    assert sorted(int(run.body) for run in worker.seen()) == list(range(1_000))
    assert set(whole(worker.seen()).values()) == {1_000 // partitions}


def test_04_plain_publish_tells_what_was_accepted(stage: Stage) -> None:
    """The plain call answers with exact counts of what was accepted and refused, and from where
    to go on."""
    stage.create(pending_count_max=1_000)
    with pytest.raises(ChannelFull) as full:
        stage.call("publish", "p", "part", [str(number) for number in range(10_000)])
    details = full.value.details
    assert (details["accepted"], details["refused"], details["duplicates"]) == (1_000, 9_000, 0)
    assert details["expected"] == 1_001 and details["retry_after_ms"] > 0 and full.value.retriable
    worker = stage.subscriber("late")
    stage.settled(1_000)
    again = [str(number) for number in range(1_000, 1_500)]
    reply = stage.call("publish", "p", "part", again, first_sequence=details["expected"])
    assert (reply["accepted"], reply["refused"]) == (500, 0)
    stage.settled(1_500)
    assert [int(run.body) for run in worker.seen()] == list(range(1_500))


def test_04_blocking_publisher_is_never_refused(stage: Stage) -> None:
    """With the blocking policy the publisher waits at the limit, and all 10,000 arrive in order
    once a subscriber comes."""
    stage.create(pending_count_max=1_000)
    publisher = stage.publisher(on_full="block", outbox_count_max=20_000)
    receipts = [
        publisher.publish(str(number), f"part-{number % 4}") for number in range(10_000)
    ]
    stage.until(backup=1_000)
    assert sum(receipt.done() for receipt in receipts) <= 1_000
    worker = stage.subscriber("late")
    publisher.flush(DEADLINE_S)
    assert [receipt.error(0.0) for receipt in receipts] == [None] * 10_000
    stage.settled(10_000)
    for key, runs in by_key(worker.seen()).items():
        expected = list(range(int(key[1][-1]), 10_000, 4))
        assert [int(run.body) for run in runs] == expected
    assert set(whole(worker.seen()).values()) == {2_500}


def test_05_a_publisher_makes_a_third_channel(new_stage: NewStage) -> None:
    """The lists of the broker and of the name server show two channels, then three."""
    stage = new_stage("--channel", "first", "--channel", "second")
    names = NameServer(*parse_address(stage.name_server))
    assert stage.call_broker("channels") == ["first", "second"]
    assert sorted(names.registered("channel.")) == ["channel.first", "channel.second"]
    stage.publisher(channel="third").publish("hello").result(DEADLINE_S)
    assert stage.call_broker("channels") == ["first", "second", "third"]
    assert sorted(names.registered("channel.")) == [
        "channel.first", "channel.second", "channel.third",
    ]  # fmt: skip
    listed = stage.broker.run("ls")
    assert listed.returncode == 0 and "third" in listed.stdout


def test_06_queues_are_created_and_disposed_of(stage: Stage) -> None:
    """Ten messages in two partitions: one each, and no queue is left when all are done."""
    stage.create()
    pair = [stage.subscriber(name) for name in "ab"]
    publisher = stage.publisher()
    for number in range(10):
        publisher.publish(str(number), f"part-{number % 2}")
    publisher.flush(DEADLINE_S)
    group = stage.settled(10)
    assert [len(by_key(worker.seen())) for worker in pair] == [1, 1]
    assert set(whole(runs_of(*pair)).values()) == {5}
    assert group["queues_created_total"] == group["queues_disposed_total"] > 0
    assert (group["sub_queues"], group["global_queue"], group["backup"]) == (0, 0, 0)
    assert group["backup_bytes"] == 0 == group["messages_unacknowledged"]
    assert stage.call("partitions") == []


def one_each(stage: Stage, channel: str, workers: list[InProcess]) -> None:
    """Assert that five subscribers of a channel were given one of five messages each."""
    stage.settled(5, channel)
    assert [len(worker.seen()) for worker in workers] == [1] * 5
    assert whole(runs_of(*workers)) == {("p", f"part-{i}"): 1 for i in range(5)}


def test_07_five_messages_five_subscribers(stage: Stage) -> None:
    """Five messages in five partitions go to five subscribers, one each."""
    stage.create()
    workers = [stage.subscriber(f"worker-{i}") for i in range(5)]
    publisher = stage.publisher()
    for i in range(5):
        publisher.publish(f"body {i}", f"part-{i}")
    one_each(stage, "orders", workers)


def test_08_two_channels_at_the_same_time(stage: Stage) -> None:
    """Case 7 on two channels at once: the same on both, and nothing strays into the other."""
    channels = ["first", "second"]
    for channel in channels:
        stage.create(channel)
    workers = {
        channel: [stage.subscriber(f"worker-{i}", channel) for i in range(5)]
        for channel in channels
    }
    publishers = {channel: stage.publisher("p", channel) for channel in channels}
    for i in range(5):
        for channel, publisher in publishers.items():
            publisher.publish(f"{channel} {i}", f"part-{i}")
    for channel in channels:
        one_each(stage, channel, workers[channel])
        bodies = {run.body for run in runs_of(*workers[channel])}
        assert bodies == {f"{channel} {i}" for i in range(5)}


def test_09_small_delays_are_flagged_and_nothing_moves(stage: Stage) -> None:
    """Delays of 300 ms in 15 % of the messages are in the journal and the statistics; no message
    changes hands for them."""
    stage.create(delay_ms=250)
    slow = {"3", "8", "15"}

    def handle(message: Message) -> None:
        if message.body in slow:
            time.sleep(0.31)  # the fault itself

    pair = [stage.subscriber(name, handle=handle) for name in "ab"]
    publisher = stage.publisher()
    for number in range(20):
        publisher.publish(str(number), f"part-{number % 2}")
    publisher.flush(DEADLINE_S)
    group = stage.settled(20)
    assert (group["delays_total"], group["long_delays_total"], group["slowed_total"]) == (3, 0, 0)
    assert group["handover_total"] == {} and group["redelivered_total"] == 0
    assert set(whole(runs_of(*pair)).values()) == {10}
    expected = {
        (run.partition, run.position) for run in runs_of(*pair) if run.body in slow
    }
    records = stage.journal()
    flagged = {
        (record.keys[run].partition, position): delay_ms
        for record in of_kind(records, r.Acked)
        for run, position, delay_ms in record.delays
    }
    assert set(flagged) == expected
    assert all(300 <= delay_ms < 2_000 for delay_ms in flagged.values())
    assert of_kind(records, r.Reassigned, r.Recalled, r.Slowed, r.Nacked) == []
    settled_once(records)


def test_10_a_subscriber_closes_after_one_of_five(stage: Stage) -> None:
    """The other four go back to their partition, untried; who connects first gets all, in order."""
    stage.create()
    publisher = stage.publisher()
    for number in range(5):
        publisher.publish(str(number), "part")
    publisher.flush(DEADLINE_S)
    leaver = stage.child("subscriber", "leaver", count=1)
    assert leaver.wait() == 0, leaver.log
    group = stage.until(consumers=0, acked_total=1)
    assert (group["messages_ready"], group["handover_total"]) == (4, {"left": 4})
    gate = stage.gate("both-there")
    first = stage.subscriber("first", handle=lambda _: wait_for(str(gate)))
    poll(first.seen, DEADLINE_S, "the first one has begun")
    second = stage.subscriber("second")
    stage.until(consumers=2)
    gate.touch()
    stage.settled(5)
    assert sequences(leaver.seen()) == [1]
    assert sequences(first.seen()) == [2, 3, 4, 5] and second.seen() == []
    assert {run.attempt for run in first.seen()} == {1}
    whole(runs_of(leaver, first))


def test_11_queues_crash_with_unprocessed_messages(stage: Stage) -> None:
    """While the backup restores five unprocessed messages, publishing is refused as retriable;
    afterwards all ten come once, and a Publisher rides it out by itself."""
    stage.create()
    gate = stage.gate("restored")
    publisher = stage.publisher()
    for number in range(5):
        publisher.publish(str(number), f"part-{number % 2}")
    publisher.flush(DEADLINE_S)
    holder = stage.subscriber("holder", handle=lambda _: wait_for(str(gate)))
    poll(holder.seen, DEADLINE_S, "a message is under way")
    assert stage.call("kill_queues", 1.0) == {"killed": 5}
    assert stage.statistics()["queues_down"]
    group = stage.group()
    assert (group["backup"], group["global_queue"], group["sub_queues"]) == (5, 0, 0)
    with pytest.raises(QueuesDown) as refused:
        stage.call("publish", "plain", "part", ["refused"])
    assert refused.value.retriable and refused.value.definite
    assert refused.value.details["retry_after_ms"] > 0
    receipts = [publisher.publish(str(number), f"part-{number % 2}") for number in range(5, 10)]
    assert [receipt.error(DEADLINE_S) for receipt in receipts] == [None] * 5
    assert not stage.statistics()["queues_down"]
    assert stage.group()["backup"] == 10
    gate.touch()
    other = stage.subscriber("other")
    stage.settled(10)
    assert whole(runs_of(holder, other)) == {("p", "part-0"): 5, ("p", "part-1"): 5}
    records = stage.journal()
    assert [record.count for record in of_kind(records, r.QueuesKilled)] == [5]
    assert [record.count for record in of_kind(records, r.QueuesRestored)] == [5]
    settled_once(records)


def test_11_queues_crash_with_nobody_subscribed(stage: Stage) -> None:
    """The same while the messages wait in the global queue: they are there again for the first
    subscriber."""
    stage.create()
    stage.call("publish", "p", "part", [str(number) for number in range(5)])
    assert stage.call("kill_queues", 0.3) == {"killed": 5}
    publisher = stage.publisher()
    publisher.publish("5", "part").result(DEADLINE_S)
    worker = stage.subscriber("late")
    stage.settled(6)
    assert [run.body for run in worker.seen()] == list("012345")
    whole(worker.seen())


def test_12_queues_crash_after_all_was_processed(stage: Stage) -> None:
    """Nothing is in the backup, so nothing comes a second time, to nobody."""
    stage.create()
    worker = stage.subscriber("worker")
    publisher = stage.publisher()
    for number in range(5):
        publisher.publish(str(number), "part")
    stage.settled(5)
    assert stage.call("kill_queues", 0.3) == {"killed": 0}
    poll(lambda: not stage.statistics()["queues_down"], DEADLINE_S, "the queues are restored")
    other = stage.subscriber("other")
    publisher.publish("new", "part").result(DEADLINE_S)
    group = stage.settled(6)
    assert group["delivered_total"] == 6
    assert sorted(run.body for run in runs_of(worker, other)) == sorted([*"01234", "new"])
    whole(runs_of(worker, other))


def test_12_kill_queues_is_refused_without_fault_injection(new_stage: NewStage) -> None:
    """A broker that was started without --fault-injection has no fault hooks."""
    stage = new_stage()
    stage.create()
    with pytest.raises(FaultInjectionDisabled):
        stage.call("kill_queues")
    assert not stage.statistics()["queues_down"]
    stage.call("publish", "p", "part", ["accepted"])


def test_13_a_subscriber_crashes_on_its_fourth_of_five(stage: Stage) -> None:
    """One to three stay done; four and five go to the other, in order, the fourth as a retry."""
    stage.create(lease_ms=1_000)
    publisher = stage.publisher()
    begin, never = stage.gate("begin"), stage.gate("never")
    crasher = stage.child("subscriber", "crasher", hold={"1": str(begin), "4": str(never)})
    stage.joined(crasher)
    for number in range(5):
        publisher.publish(str(number), "part")
    poll(crasher.seen, DEADLINE_S, "the crasher has begun")
    other = stage.subscriber("other")
    begin.touch()
    poll(lambda: len(crasher.seen()) == 4, DEADLINE_S, "the crasher is in its fourth")
    # What was handled is acknowledged while the next message runs, however long that takes.
    stage.until(acked_total=3)
    assert other.seen() == []
    crasher.kill9()
    group = stage.settled(5)
    assert sequences(crasher.seen()) == [1, 2, 3, 4] and crasher.seen()[3].finish is None
    assert sequences(other.seen()) == [4, 5]
    assert other.seen()[0].attempt == 2 and other.seen()[0].epoch > crasher.seen()[3].epoch
    assert group["handover_total"] == {"crash": 2} and list(group["subscribers"]) == ["other"]
    in_turn(other.seen())
    records = stage.journal()
    assert of_kind(records, r.SubscriberLeft)[0].reason in ("expired", "crashed")
    settled_once(records)


def test_14_three_long_delays_move_the_rest(stage: Stage) -> None:
    """After three long delays what is not started moves to the other, once the running message is
    settled; the slow one stays subscribed and gets new work."""
    stage.create(delay_ms=50, long_delay_ms=150, long_delays_max=3)
    publisher = stage.publisher()
    begin, never = stage.gate("begin"), stage.gate("fourth")
    slow = stage.child(
        "subscriber", "slow", sleep={"1": 0.2, "2": 0.2, "3": 0.2},
        hold={"1": str(begin), "4": str(never)},
    )  # fmt: skip
    stage.joined(slow)
    for number in range(8):
        publisher.publish(str(number), "part")
    poll(slow.seen, DEADLINE_S, "the slow one has begun")
    hold = stage.gate("other")
    other = stage.subscriber("other", handle=lambda _: wait_for(str(hold)))
    begin.touch()
    # The fourth is running: it stays where it is, and nothing overtakes it.
    stage.until(slowed_total=1, acked_total=3, handover_total={"slow": 4})
    assert other.seen() == [] and sequences(slow.seen()) == [1, 2, 3, 4]
    never.touch()
    poll(other.seen, DEADLINE_S, "the other one has the rest")
    assert set(stage.group()["subscribers"]) == {"slow", "other"}
    publisher.publish("new", "new-part").result(DEADLINE_S)
    poll(lambda: len(slow.seen()) == 5, DEADLINE_S, "the slow one has new work")
    hold.touch()
    group = stage.settled(9)
    assert sequences(slow.seen(), "part") == [1, 2, 3, 4]
    assert sequences(other.seen(), "part") == [5, 6, 7, 8]
    assert [run.body for run in slow.seen()][4:] == ["new"]
    whole(runs_of(slow, other))
    assert {run.attempt for run in runs_of(slow, other)} == {1}
    assert group["long_delays_total"] == 3
    records = stage.journal()
    told = of_kind(records, r.Slowed, r.Recalled, r.Reassigned)
    assert [type(record) for record in told[:3]] == [r.Slowed, r.Recalled, r.Reassigned]
    assert {record.subscriber for record in told[:3]} == {"slow"}
    assert len(told[0].delays_ms) == 3 and min(told[0].delays_ms) >= 150
    assert (told[1].reason, told[2].reason) == ("slow", "slow")
    assert (told[2].firsts, told[2].counts) == ([5], [4])
    settled_once(records)


@pytest.mark.parametrize("fault", ["raise", "hang"])
def test_15_a_subscriber_that_takes_nothing_is_inactive(stage: Stage, fault: str) -> None:
    """After the third failed call the subscriber is inactive, and all that it was given goes to
    the others in order."""
    stage.create(sends_max=3, send_timeout_ms=300, send_backoff_ms=20)
    until = stage.gate("until")
    bad = stage.child("plain", "bad", fault=fault, seconds=2.0, until=str(until))
    stage.joined(bad)
    good = stage.subscriber("good")
    for name in ("one", "two", "three", "four"):
        stage.call("publish", "p", name, [f"{name} {number}" for number in range(5)])
    group = stage.settled(20)
    assert list(group["subscribers"]) == ["good"]
    calls = bad.lines("receive")
    assert len(calls) == 3 and len({str(call["messages"]) for call in calls}) == 1
    assert whole(good.seen()) == {
        ("p", name): 5 for name in ("one", "two", "three", "four")
    }
    records = stage.journal()
    gone = of_kind(records, r.SubscriberLeft)[0]
    assert (gone.subscriber, gone.reason) == ("bad", "crashed")
    taken = [record for record in of_kind(records, r.Reassigned) if record.subscriber == "bad"]
    assert [record.reason for record in taken] == ["crash"]
    assert sum(taken[0].counts) == group["handover_total"]["crash"] > 0
    settled_once(records)


def test_15_a_subscriber_that_never_acknowledges_loses_its_lease(stage: Stage) -> None:
    """One that takes messages but gives no sign of life is inactive when its lease has run out;
    the current and the remaining messages go to the others in order."""
    stage.create(lease_ms=600)
    until = stage.gate("until")
    silent = stage.child("plain", "silent", fault="silent", until=str(until))
    stage.joined(silent)
    for name in ("one", "two"):
        stage.call("publish", "p", name, [f"{name} {number}" for number in range(5)])
    taken = sum(len(call["messages"]) for call in poll(
        lambda: silent.lines("receive"), DEADLINE_S, "the silent one was given something"
    ))  # fmt: skip
    assert taken > 0
    good = stage.subscriber("good")
    group = stage.settled(10)
    assert list(group["subscribers"]) == ["good"]
    assert whole(good.seen()) == {("p", "one"): 5, ("p", "two"): 5}
    records = stage.journal()
    gone = of_kind(records, r.SubscriberLeft)[0]
    assert (gone.subscriber, gone.reason) == ("silent", "expired")
    settled_once(records)


def test_16_shuffled_timestamps_come_in_chronological_order(stage: Stage) -> None:
    """The order of a partition is that of the timestamps, whatever the order of publishing."""
    stage.create()
    shuffler = random.Random(16)
    publisher = stage.publisher()
    for partition in ("one", "two"):
        times = [1_700_000_000 + number / 10 for number in range(50)]
        shuffler.shuffle(times)
        for at in times[:30]:
            publisher.publish(at, partition, timestamp=at)
        publisher.flush(DEADLINE_S)
        rest = [{"body": str(at), "timestamp": at} for at in times[30:]]
        stage.call("publish", "p", partition, rest, first_sequence=31)
    worker = stage.subscriber("worker")
    group = stage.settled(100)
    assert group["late_total"] == 0
    expected = [1_700_000_000 + number / 10 for number in range(50)]
    for partition in ("one", "two"):
        runs = by_key(worker.seen())["p", partition]
        assert [float(run.body) for run in runs] == expected
        assert sequences(runs) != sorted(sequences(runs))
        assert [run.position for run in runs] == list(range(1, 51))
        in_turn(runs)


def test_17_repeated_ids_are_dropped(stage: Stage) -> None:
    """Ten messages again: all dropped. With a new one: only that comes. When everybody has left:
    all dropped, nothing waits."""
    stage.create()
    worker = stage.subscriber("worker")
    publisher = stage.publisher()

    def publish(*ids: int) -> list[bool]:
        receipts = [publisher.publish(f"body {i}", f"part-{i % 2}", id=f"id-{i}") for i in ids]
        return [receipt.result(DEADLINE_S).duplicate for receipt in receipts]

    assert publish(*range(10)) == [False] * 10
    stage.settled(10)
    assert publish(*range(10)) == [True] * 10
    assert stage.statistics()["dedup_dropped_total"] == 10 and stage.group()["backup"] == 0
    assert publish(*range(11)) == [True] * 10 + [False]
    stage.settled(11)
    assert stage.statistics()["dedup_dropped_total"] == 20
    worker.close()
    stage.until(consumers=0)
    another = stage.publisher("another")
    again = [another.publish(f"body {i}", "elsewhere", id=f"id-{i}") for i in range(11)]
    assert [receipt.result(DEADLINE_S).duplicate for receipt in again] == [True] * 11
    statistics = stage.statistics()
    assert (statistics["published_total"], statistics["dedup_dropped_total"]) == (11, 31)
    assert stage.group()["backup"] == 0
    assert sorted(run.body for run in worker.seen()) == sorted(f"body {i}" for i in range(11))


def test_17_repeated_sequences_are_dropped(stage: Stage) -> None:
    """The same by the publisher's own numbers, with the plain call."""
    stage.create()
    worker = stage.subscriber("worker")
    bodies = [f"body {i}" for i in range(10)]

    def publish(*more: str) -> tuple[int, int]:
        reply = stage.call("publish", "p", "part", [*bodies, *more], first_sequence=1)
        return reply["accepted"], reply["duplicates"]

    assert publish() == (10, 0)
    stage.settled(10)
    assert publish() == (0, 10)
    assert publish("new") == (1, 10)
    stage.settled(11)
    worker.close()
    stage.until(consumers=0)
    assert publish("new") == (0, 11)
    assert stage.group()["backup"] == 0 and stage.statistics()["dedup_dropped_total"] == 31
    assert [run.body for run in worker.seen()] == [*bodies, "new"]
    whole(worker.seen())
