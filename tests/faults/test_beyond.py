"""Beyond the reference: crashed brokers, stopped and dying processes, poison, late joiners."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from typing import Any, Callable

import pytest

from broker.core import records as r
from broker.errors import NotSubscribed, PublisherFenced
from broker.remote.lookup import parse_address
from broker.remote.name_server import NameServer
from subscriber import Message
from tests.faults.stage import (
    DEADLINE_S,
    Child,
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
from tests.processes import HOST, free_port, poll, start_fairlead

NewStage = Callable[..., Stage]


# Joining.


def test_joining_under_a_large_backlog(stage: Stage) -> None:
    """With 100,000 messages waiting, a joiner gets work before the one that was there has emptied
    even its own window, in order, and the other one never stops for it."""
    stage.create()
    count, partitions, window = 100_000, 16, 500
    publisher = stage.publisher(outbox_count_max=20_000)
    publisher.publish_many(
        [b"x" * 20] * count, [f"part-{number % partitions}" for number in range(count)]
    )
    publisher.flush(DEADLINE_S)
    options = {"prefetch": window}
    first = stage.child("subscriber", "first", sleep_s=0.0005, options=options)
    poll(lambda: len(first.lines()) > 100, DEADLINE_S, "the first one is at work")
    joiner = stage.child("subscriber", "joiner", sleep_s=0.0005, options=options)
    poll(lambda: len(joiner.lines()) > 2_000, DEADLINE_S, "the joiner is at work")
    last = stage.child("subscriber", "last", options=options)
    stage.settled(count, deadline_s=40.0)
    crew = [first, joiner, last]
    runs = runs_of(*crew)
    assert whole(runs) == {("p", f"part-{i}"): count // partitions for i in range(partitions)}
    for newcomer, others in ((joiner, [first]), (last, [first, joiner])):
        asked = newcomer.lines("joining")[0]["at"]
        mine = newcomer.seen()
        for other in others:
            theirs = [run.finish or 0.0 for run in other.seen()]
            before = [at for at in theirs if asked < at < mine[0].start]
            assert len(before) < window, "the newcomer had to wait for a window to empty"
            # In every tenth of the time around the joining, the other one went on.
            begin, end = asked, mine[999].start
            for tenth in range(10):
                low = begin + (end - begin) * tenth / 10
                high = begin + (end - begin) * (tenth + 1) / 10
                assert any(low <= at <= high for at in theirs), f"{other.name} stood still"
    records = stage.journal()
    settled_once(records)


def test_joining_when_one_holds_everything(stage: Stage) -> None:
    """When one subscriber has been given all partitions, an idle joiner is given its share of what
    is not started, without a repetition and without a break in the order."""
    stage.create()
    publisher = stage.publisher()
    for number in range(1_600):
        publisher.publish(str(number), f"part-{number % 16}")
    publisher.flush(DEADLINE_S)
    first = stage.child(
        "subscriber", "first", sleep_s=0.002, options={"prefetch": 20_000, "concurrency": 2}
    )
    stage.until(sub_queues=16, messages_ready=0)
    joiner = stage.child("subscriber", "joiner", sleep_s=0.002)
    group = stage.settled(1_600)
    assert whole(runs_of(first, joiner)) == {("p", f"part-{i}"): 100 for i in range(16)}
    assert group["handover_total"]["join"] > 0 and set(group["handover_total"]) == {"join"}
    assert len(by_key(joiner.seen())) >= 4, "the joiner got too small a share"
    assert {run.attempt for run in runs_of(first, joiner)} == {1}
    assert first.alive and joiner.alive
    settled_once(stage.journal())


# The broker dies.


def test_kill_9_of_the_broker_in_the_middle_of_load(new_stage: NewStage) -> None:
    """Three publishers, three subscribers, 50,000 messages, the broker killed twice and started on
    the same file: every answered message is handled, none twice, each partition in order."""
    stage = new_stage("--port", free_port())
    stage.create()
    count, partitions = 50_000, 16
    crew = [stage.child("subscriber", f"worker-{i}") for i in range(3)]
    for child in crew:
        stage.joined(child)
    shares = {"p0": count // 3, "p1": count // 3, "p2": count - 2 * (count // 3)}
    publishers = [
        stage.child("publisher", name, count=share, partitions=partitions)
        for name, share in shares.items()
    ]

    def handled() -> int:
        # A message is two lines of the file.
        return sum(child.record.read_bytes().count(b"\n") for child in crew) // 2

    for mark in (5_000, 20_000):
        poll(lambda: handled() > mark, 20.0, f"{mark} messages are handled")  # noqa: B023
        stage.broker.kill9()
        stage.broker.start()
    for child in publishers:
        assert child.wait(30.0) == 0, child.log
        assert child.lines("done")
    stage.until(backup=0, acked_total=count, deadline_s=20.0)
    assert all(child.alive for child in crew), [child.log for child in crew]
    answered = Counter(
        (child.name, partition, sequence)
        for child in publishers
        for note in child.lines("confirmed")
        for partition, sequence in note["messages"]
    )
    assert len(answered) == count and set(answered.values()) == {1}
    runs = runs_of(*crew)
    seen = Counter((*run.key, run.sequence) for run in runs)
    assert set(answered) <= set(seen), "an answered message was not handled"
    assert [key for key, times in seen.items() if times > 1] == []
    assert sum(whole(runs).values()) == count
    assert {run.body for run in runs} == {
        f"{name}:{number}" for name, share in shares.items() for number in range(share)
    }
    records = stage.journal()
    assert len(of_kind(records, r.BrokerStarted)) == 2
    settled_once(records)


def test_kill_9_of_the_broker_while_a_publisher_waits_for_room(new_stage: NewStage) -> None:
    """A publisher that is held back at the limit of the channel rides out crashes, too: what was
    refused for the moment is neither lost nor published twice."""
    stage = new_stage("--port", free_port())
    stage.create(pending_count_max=100, send_backoff_ms=1)
    count = 6_000
    worker = stage.child("subscriber", "worker", options={"prefetch": 20})
    stage.joined(worker)
    source = stage.child(
        "publisher", "p", count=count, partitions=8, window=count,
        options={"on_full": "block", "batch_count_max": 50},
    )  # fmt: skip
    for mark in (500, 1_500, 2_500, 3_500):
        poll(lambda: len(worker.lines("finish")) > mark, 20.0, f"{mark} are handled")  # noqa: B023
        stage.broker.kill9()
        stage.broker.start()
    assert source.wait(30.0) == 0, source.log
    stage.settled(count)
    assert sum(whole(worker.seen()).values()) == count
    assert "Traceback" not in source.log, source.log


# Processes that stop, end, or die.


def test_a_stopped_subscriber_wakes_up_after_its_lease(stage: Stage) -> None:
    """SIGSTOP past the lease, then SIGCONT: the work is done by the other, in order; the late ack
    changes nothing, and what was not started is not started any more."""
    stage.create(lease_ms=800, send_timeout_ms=500, send_backoff_ms=20)
    publisher = stage.publisher()
    begin, second = stage.gate("begin"), stage.gate("second")
    sleeper = stage.child("subscriber", "sleeper", hold={"1": str(begin), "2": str(second)})
    stage.joined(sleeper)
    for number in range(1, 7):
        publisher.publish(str(number), "part")
    poll(sleeper.seen, DEADLINE_S, "the sleeper has begun")
    other = stage.subscriber("other")
    begin.touch()
    poll(lambda: len(sleeper.seen()) == 2, DEADLINE_S, "the sleeper is in its second")
    stage.until(acked_total=1)
    sleeper.signal(signal.SIGSTOP)
    second.touch()
    group = stage.settled(6)
    assert list(group["subscribers"]) == ["other"]
    assert sequences(other.seen()) == [2, 3, 4, 5, 6] and other.seen()[0].attempt == 2
    assert other.seen()[0].epoch > sleeper.seen()[1].epoch
    in_turn(other.seen())
    sleeper.signal(signal.SIGCONT)
    poll(lambda: sleeper.seen()[1].finish, DEADLINE_S, "the sleeper has finished its second")
    stage.joined(sleeper)
    # The sleeper's own lost epoch, acknowledged once more by hand, is fenced.
    facts = stage.group()["subscribers"]["sleeper"]
    late = stage.call("ack", "sleeper", facts["session"], sleeper.seen()[1].epoch, 2)
    assert (late["acked"], late["stale"]) == (0, [sleeper.seen()[1].epoch])
    with pytest.raises(NotSubscribed):
        stage.call("ack", "nobody", facts["session"], sleeper.seen()[1].epoch, 2)
    fenced = stage.group()["fenced_ack_total"]
    assert fenced >= 1
    for number in range(7, 9):
        publisher.publish(str(number), f"new-{number}")
    stage.settled(8)
    assert sequences(sleeper.seen(), "part") == [1, 2]
    records = stage.journal()
    acked = [record for record in of_kind(records, r.Acked) if record.subscriber == "sleeper"]
    places = [
        (key.partition, first, count)
        for record in acked
        for key, first, count in zip(record.keys, record.firsts, record.counts)
        if key.partition == "part"
    ]
    assert places == [("part", 1, 1)]
    settled_once(records)


def test_a_message_that_kills_its_process_is_parked(stage: Stage) -> None:
    """A message whose handler ends the process three times is set aside with a reason, and the
    partition goes on behind it, in order."""
    stage.create(lease_ms=500, attempts_max=3)
    publisher = stage.publisher()
    for body in ("one", "poison", "three", "four"):
        publisher.publish(body, "part")
    publisher.flush(DEADLINE_S)
    lives: list[Child] = []
    for _ in range(3):
        lives.append(stage.child("subscriber", "worker", exit_on="poison"))
        assert lives[-1].wait() == 9, lives[-1].log
        assert lives[-1].seen()[-1].body == "poison"
    survivor = stage.child("subscriber", "worker", exit_on="poison")
    group = stage.until(backup=0, parked=1)
    assert group["acked_total"] == 3 and survivor.alive
    parked = stage.call("parked")
    assert [(row["scope"], row["sequence"], row["attempt"]) for row in parked] == [
        ("message", 2, 3)
    ]
    assert "died" in parked[0]["reason"]
    poison = [run for run in runs_of(*lives, survivor) if run.body == "poison"]
    assert [run.attempt for run in poison] == [1, 2, 3]
    assert [run.body for run in survivor.seen()] == ["three", "four"]
    assert [run.body for run in runs_of(*lives) if run.body in ("three", "four")] == []
    in_turn(survivor.seen())
    settled_once(stage.journal())


def test_sigterm_finishes_the_running_message(stage: Stage) -> None:
    """On SIGTERM the running message is finished and acknowledged, the rest is handed back without
    counting as tried, and what is sent to it meanwhile does not make it look dead."""
    stage.create(send_backoff_ms=10)
    publisher = stage.publisher()
    first, running = stage.gate("first"), stage.gate("running")
    leaver = stage.child("subscriber", "leaver", hold={"1": str(first), "2": str(running)})
    stage.joined(leaver)
    for number in range(5):
        publisher.publish(str(number), "part")
    first.touch()
    poll(lambda: len(leaver.seen()) == 2, DEADLINE_S, "the leaver is in its second")
    leaver.signal(signal.SIGTERM)
    poll(lambda: leaver.lines("stopping"), DEADLINE_S, "the leaver knows that it is to end")
    # What comes now is given to it, since it is the only one; it must not be called dead for it.
    given = stage.group()["delivered_total"]
    for number in range(20):
        publisher.publish("more", f"more-{number}").result(DEADLINE_S)
    poll(lambda: stage.group()["delivered_total"] > given, DEADLINE_S, "more was given to it")
    watched = time.monotonic() + 0.5
    poll(
        lambda: "leaver" not in stage.group()["subscribers"] or time.monotonic() > watched,
        DEADLINE_S, "the leaver is watched for a while",
    )  # fmt: skip
    other = stage.subscriber("other")
    assert "leaver" in stage.group()["subscribers"] and sequences(other.seen(), "part") == []
    running.touch()
    assert leaver.wait() == 0, leaver.log
    assert [note["handled"] for note in leaver.lines("left")] == [2]
    group = stage.settled(25)
    assert sequences(leaver.seen()) == [1, 2] and leaver.seen()[1].finish is not None
    assert sequences(other.seen(), "part") == [3, 4, 5]
    assert {run.attempt for run in other.seen()} == {1}
    assert set(group["handover_total"]) <= {"left", "join"}
    whole(runs_of(leaver, other))
    records = stage.journal()
    gone = of_kind(records, r.SubscriberLeft)[0]
    assert (gone.subscriber, gone.reason) == ("leaver", "left")
    settled_once(records)


def test_acks_do_not_wait_for_the_running_message(stage: Stage) -> None:
    """What was handled is acknowledged while the next message runs, however short the former and
    however long the latter took: a crash in it must not bring the others back."""
    stage.create()
    gates = [stage.gate(f"long-{number}") for number in range(10)]

    def handle(message: Message) -> None:
        if message.body.startswith("long"):
            wait_for(str(gates[int(message.body.partition(" ")[2])]))

    worker = stage.subscriber("worker", handle=handle)
    for number, gate in enumerate(gates):
        stage.call("publish", "p", f"part-{number}", ["short", "short", "short", f"long {number}"])
        stage.until(acked_total=4 * number + 3, messages_unacknowledged=1, deadline_s=5.0)
        gate.touch()
        stage.settled(4 * number + 4)
    assert set(whole(worker.seen()).values()) == {4}


def test_run_ends_after_its_count(stage: Stage) -> None:
    """``run(count=5)`` ends by itself after five messages, also when no sixth ever comes."""
    stage.create()
    stage.call("publish", "p", "part", list("12345"))
    worker = stage.child("subscriber", "worker", count=5)
    assert worker.wait() == 0, worker.log
    assert [note["handled"] for note in worker.lines("left")] == [5]
    stage.until(acked_total=5, backup=0, consumers=0)
    assert whole(worker.seen()) == {("p", "part"): 5}


# Messages that fail.


def test_a_raising_handler_is_retried_in_place_and_parked(stage: Stage) -> None:
    """A failing message is tried again in its place, after a growing back-off, never overtaken;
    after its last attempt it is parked and the partition goes on."""
    stage.create(attempts_max=3, backoff_ms=100)

    def handle(message: Message) -> None:
        if message.body == "bad" or (message.body == "flaky" and message.attempt == 1):
            raise ValueError("this one fails")

    worker = stage.subscriber("worker", handle=handle)
    bodies = ["one", "bad", "three", "flaky", "five"]
    stage.call("publish", "p", "part", bodies)
    stage.call("publish", "p", "elsewhere", ["a", "b"])
    group = stage.until(backup=0, parked=1, acked_total=6)
    runs = by_key(worker.seen())["p", "part"]
    assert [(run.body, run.attempt) for run in runs] == [
        ("one", 1), ("bad", 1), ("bad", 2), ("bad", 3), ("three", 1), ("flaky", 1), ("flaky", 2),
        ("five", 1),
    ]  # fmt: skip
    bad = [run.start for run in runs if run.body == "bad"]
    assert bad[1] - bad[0] >= 0.1 and bad[2] - bad[1] >= 0.2
    assert group["nacked_total"] == 4
    parked = stage.call("parked")
    assert [(row["body"], row["attempt"]) for row in parked] == [("bad", 3)]
    assert "ValueError: this one fails" in parked[0]["reason"]
    settled_once(stage.journal())


def test_nack_with_a_delay_holds_only_its_partition(stage: Stage) -> None:
    """``message.nack(delay=)`` brings the message back no sooner; nothing of its partition
    overtakes it, and other partitions do not wait."""
    stage.create()

    def handle(message: Message) -> None:
        if message.body == "not now" and message.attempt == 1:
            message.nack(delay=0.5)

    worker = stage.subscriber("worker", handle=handle)
    stage.call("publish", "p", "held", ["not now", "after"])
    poll(worker.seen, DEADLINE_S, "the first attempt was made")
    stage.call("publish", "p", "free", ["free"])
    stage.settled(3)
    runs = worker.seen()
    assert [run.body for run in runs] == ["not now", "free", "not now", "after"]
    assert runs[2].attempt == 2 and runs[2].start - runs[0].start >= 0.5


# Publishers.


def test_two_live_publishers_with_one_id(stage: Stage) -> None:
    """The newer one wins; the older learns that it is fenced, and nothing of it is accepted."""
    stage.create()
    older = stage.publisher("p")
    older.publish("old 1", "part").result(DEADLINE_S)
    newer = stage.publisher("p")
    assert newer.epoch == older.epoch + 1
    assert newer.publish("new 2", "part").result(DEADLINE_S).sequence == 2
    refused = [older.publish("old again", "part").error(DEADLINE_S)]
    with pytest.raises(PublisherFenced):
        older.publish("old once more", "part").result(DEADLINE_S)
    assert [type(error) for error in refused] == [PublisherFenced]
    assert newer.publish("new 3", "part").result(DEADLINE_S).sequence == 3
    worker = stage.subscriber("worker")
    stage.settled(3)
    assert [run.body for run in worker.seen()] == ["old 1", "new 2", "new 3"]
    whole(worker.seen())


# Pulling.


def test_fetch_repeats_a_batch_whose_answer_was_lost(stage: Stage) -> None:
    """Until a fetch says that the last batch came, the same batch is answered again; so a lost
    answer loses nothing and skips nothing."""
    stage.create()
    session = stage.call("subscribe", "puller", None, 100)["session"]
    stage.call("publish", "p", "part", [str(number) for number in range(7)])

    def fetch(received: int) -> dict[str, Any]:
        answer: dict[str, Any] = stage.call("fetch", "puller", session, 3, 5.0, received)
        return answer

    one = fetch(0)
    assert fetch(0) == one and fetch(0) == one
    two = fetch(one["number"])
    assert fetch(one["number"]) == two and two["number"] == one["number"] + 1
    three = fetch(two["number"])
    messages = [message for batch in (one, two, three) for message in batch["messages"]]
    assert [message["sequence"] for message in messages] == list(range(1, 8))
    assert stage.group()["acked_total"] == 0
    last = messages[-1]
    assert stage.call("ack", "puller", session, last["epoch"], last["position"])["acked"] == 7
    assert stage.call("fetch", "puller", session, 3, 0.0, three["number"])["messages"] == []
    stage.settled(7)


# The name server.


@pytest.fixture
def name_server() -> Any:
    """Starts a name server alone, again and again on one port; ended by pid."""
    port = free_port()
    processes: list[Any] = []

    def start() -> str:
        with open("/dev/null", "wb") as null:
            processes.append(start_fairlead("ns", "--port", port, stdout=null, stderr=null))
        names = NameServer(HOST, port)
        poll(names.answers, DEADLINE_S, "the name server answers")
        return f"{HOST}:{port}"

    def kill() -> None:
        processes[-1].kill()
        processes[-1].wait()

    start.kill = kill  # type: ignore[attr-defined]
    yield start
    kill()


def test_a_restarted_name_server_learns_the_names_again(
    new_stage: NewStage, name_server: Any
) -> None:
    """Clients that are connected go on without the name server; the broker registers by itself at
    the new one, and new clients find it."""
    stage = new_stage("--channel", "orders", name_server=name_server())
    publisher = stage.publisher()
    worker = stage.subscriber("worker")
    publisher.publish("before", "part").result(DEADLINE_S)
    name_server.kill()
    publisher.publish("without", "part").result(DEADLINE_S)
    poll(lambda: len(worker.seen()) == 2, DEADLINE_S, "messages flow without a name server")
    name_server()
    names = NameServer(*parse_address(stage.name_server))
    poll(
        lambda: {"fairlead.broker", "channel.orders"} <= set(names.registered()),
        DEADLINE_S, "the broker has registered again",
    )  # fmt: skip
    stage.publisher("new").publish("after", "part").result(DEADLINE_S)
    newcomer = stage.subscriber("newcomer")
    stage.settled(3)
    assert sorted(run.body for run in runs_of(worker, newcomer)) == ["after", "before", "without"]


def test_clients_wait_for_a_broker_that_left_its_names(
    new_stage: NewStage, name_server: Any
) -> None:
    """A broker that stops cleanly takes its names out of a name server that stays. Its clients wait
    for it to come back, as they do after a crash, and go on where they were."""
    stage = new_stage("--channel", "orders", name_server=name_server())
    publisher = stage.publisher()
    worker = stage.subscriber("worker")
    publisher.publish("before", "part").result(DEADLINE_S)
    stage.settled(1)
    assert stage.broker.stop() == 0
    receipt = publisher.publish("meanwhile", "part")
    # Both clients have to find the name gone before the broker is back.
    names = NameServer(*parse_address(stage.name_server))
    assert "channel.orders" not in names.registered()
    noticed = threading.Event()
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline and not receipt.done():
        noticed.wait(0.05)
    assert not receipt.done(), receipt.error(0.0)
    stage.broker.start()
    assert receipt.result(DEADLINE_S).sequence == 2
    stage.settled(2)
    assert [run.body for run in worker.seen()] == ["before", "meanwhile"]
    publisher.publish("after", "part").result(DEADLINE_S)
    stage.settled(3)
    whole(worker.seen())


def test_repeated_restarts_under_an_idle_subscriber(new_stage: NewStage) -> None:
    """A subscriber and a publisher live through any number of crashes of the broker, however short
    the moment between the name server and the names."""
    stage = new_stage("--channel", "orders")
    publisher = stage.publisher()
    worker = stage.subscriber("worker")
    for number in range(1, 6):
        publisher.publish(str(number), "part")
        stage.broker.kill9()
        stage.broker.start()
    publisher.flush(DEADLINE_S)
    stage.settled(5)
    assert [run.body for run in worker.seen()] == list("12345")
