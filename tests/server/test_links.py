"""The way between a broker and its subscribers when something breaks on it: each was a bug once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from broker.core import commands as c
from broker.core.channel import Channel
from broker.core.policy import Policy
from broker.errors import CallOvertaken, PublisherFenced
from broker.journal.memory import MemoryJournal
from broker.pyro_setup import Proxy, invoke
from broker.server import callback
from broker.server.channel_host import ChannelHost
from broker.server.clock import Clock
from broker.server.link import PushLink
from broker.server.service import Service
from publisher import Publisher
from subscriber import Message, Subscriber
from subscriber.keeper import Keeper
from subscriber.session import Session
from subscriber.settler import Settler
from subscriber.shared import Shared
from tests.builders import publish_command
from tests.conftest import Serve
from tests.processes import poll


@pytest.fixture
def service(serve: Serve) -> Service:
    return serve(policy=Policy(lease_ms=2_000, send_backoff_ms=50, backoff_ms=20), tick_s=0.02)


class Inbox:
    """A callback in this process: a session, and a gate that holds ``receive`` up."""

    takes_bytes = True

    def __init__(self) -> None:
        self.session = Session()
        self.lock = threading.Lock()
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def receive(self, received: Any) -> None:
        self.entered.set()
        assert self.open.wait(10)
        with self.lock:
            self.session.receive(received)

    def recall(self, epochs: list[int]) -> list[int]:
        with self.lock:
            return self.session.recall(epochs)

    def ping(self, nothing: None) -> None:
        """Always there."""

    def close(self) -> None:
        """Nothing to let go."""

    def handle(self) -> list[int]:
        """Handle everything; the positions."""
        handled = []
        with self.lock:
            while taken := self.session.take(100):
                for assignment in taken:
                    for item in assignment.items[assignment.cursor :]:
                        assignment.cursor += 1
                        assignment.started = assignment.done = item[0]
                        handled.append(item[0])
                    self.session.put_back(assignment)
        return handled


def join(host: ChannelHost, name: str, prefetch: int = 1_000) -> tuple[Inbox, PushLink]:
    inbox = Inbox()
    link = PushLink(host, "default", name, name + "-1", False, inbox)
    host.connect(c.Subscribe("default", name, name + "-1", prefetch, "uri"), link)
    return inbox, link


def publish(host: ChannelHost, partition: str, count: int) -> None:
    def build(channel: Channel) -> c.Command:
        first = channel.next_sequences("p", [partition])[0]
        return publish_command("p", {partition: (first, [b"x"] * count)})

    host.publish(build, True)


def test_after_a_queue_crash_what_was_not_sent_yet_comes_before_anything_new() -> None:
    """Otherwise a session would take the first positions for settled, and ack them unhandled."""
    journal = MemoryJournal()
    host = ChannelHost.create("orders", Policy(), journal, Clock(), lambda error: None)
    inbox, link = join(host, "a")
    inbox.open.clear()
    publish(host, "warm", 1)
    assert inbox.entered.wait(5), "the sender is inside receive now"
    join(host, "idle", prefetch=1)
    publish(host, "other", 1)
    publish(host, "long", 300)
    poll(lambda: any(link.queue), 5, "messages to be queued behind the sender")
    host.kill_queues(1)
    inbox.open.set()

    def restored() -> bool:
        host.tick()
        return not host.statistics()["queues_down"]

    poll(restored, 5, "the queues to be restored")
    handled: list[int] = []

    def everything() -> bool:
        nonlocal handled
        handled += inbox.handle()
        return len(handled) >= 301

    poll(everything, 10, "all messages to be handled")
    assert sorted(handled) == sorted([1, *range(1, 301)])
    host.close()


def test_a_lost_answer_to_receive_makes_nobody_handle_anything_twice(
    service: Service, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = callback.PyroCallback.receive
    lost: list[int] = []
    handled: list[int] = []

    def lossy(self: Any, received: Any) -> None:
        real(self, received)
        if not lost:
            lost.append(1)
            poll(lambda: acked() == 5, 10, "all to be acknowledged before the answer is lost")
            raise OSError("the connection broke while the answer was under way")

    def acked() -> int:
        found: int = service.overview()[0]["subscriptions"]["default"]["acked_total"]
        return found

    monkeypatch.setattr(callback.PyroCallback, "receive", lossy)
    worker = Subscriber("a", "orders", name_server=names)
    worker.handler(lambda message: handled.append(message.sequence))
    with worker, Publisher("p", "orders", name_server=names) as publisher:
        publisher.publish_many([b"x"] * 5, "k").result(10)
        poll(lambda: acked() == 5, 10, "the first five")
        publisher.publish_many([b"x"] * 5, "k").result(10)
        poll(lambda: acked() == 10, 10, "the next five, after the batch was sent again")
    assert lost and handled == list(range(1, 11))


def test_a_subscriber_that_was_closed_over_a_hung_handler_does_not_come_back(
    service: Service, names: str
) -> None:
    hang = threading.Event()
    began = threading.Event()
    worker = Subscriber("a", "orders", name_server=names)

    @worker.handler
    def handle(message: Message) -> None:
        began.set()
        hang.wait(30)

    try:
        worker.start()
        with Publisher("p", "orders", name_server=names) as publisher:
            publisher.publish(b"x", "k").result(10)
        assert began.wait(10)
        worker.close(timeout=0.2)
        handled: list[int] = []
        other = Subscriber("b", "orders", name_server=names)
        other.handler(lambda message: handled.append(message.sequence))
        with other:
            poll(lambda: handled == [1], 10, "the message to move on")
            # Nothing to poll for: it is watched that for two leases it does *not* come back.
            assert not threading.Event().wait(2 * service.settings.policy.lease_ms / 1000)
            groups = service.overview()[0]["subscriptions"]["default"]
            assert list(groups["subscribers"]) == ["b"] and not worker.subscribed
    finally:
        hang.set()


def test_a_channel_that_is_deleted_and_made_again_is_served_from_its_first_message(
    service: Service, names: str
) -> None:
    """Epochs and positions start anew, and must not be taken for those of before."""
    handled: list[str] = []
    failed: set[str] = set()
    worker = Subscriber("a", "orders", name_server=names)

    @worker.handler
    def handle(message: Message) -> None:
        if message.partition not in failed and message.partition.startswith("old"):
            failed.add(message.partition)
            raise ValueError("once")
        handled.append(message.partition)

    with worker:
        with Publisher("p", "orders", name_server=names) as publisher:
            for number in range(5):
                publisher.publish(b"x", f"old{number}")
        poll(lambda: len(handled) == 5, 20, "the first life of the channel")
        service.delete_channel("orders", True)
        service.create_channel("orders", None)
        with Publisher("p", "orders", name_server=names) as publisher:
            for number in range(10):
                publisher.publish(b"x", f"new{number}")
        poll(lambda: len(handled) == 15, 20, "the second life of the channel")
    assert sorted(handled[5:]) == sorted(f"new{number}" for number in range(10))


def test_after_a_nack_a_plain_script_is_sent_nothing_more_of_that_assignment(
    service: Service,
) -> None:
    with Proxy(service.names.lookup("channel.orders")) as channel:
        session = invoke(channel, "subscribe", "s")["session"]
        invoke(channel, "publish", "p", "a", list("123456"))
        first = invoke(channel, "fetch", "s", session, 2, 2.0)
        assert [m["position"] for m in first["messages"]] == [1, 2]
        epoch = first["messages"][0]["epoch"]
        invoke(channel, "nack", "s", session, epoch, 1, "later", 5.0)
        following = invoke(channel, "fetch", "s", session, 10, 0.2, first["number"])
        assert following["messages"] == []


def test_a_store_behind_a_symbolic_link_is_opened_and_locked_as_the_file_itself(
    serve: Serve, tmp_path: Path
) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real.db")
    serve(store=str(link))
    with pytest.raises(Exception, match="in use"):
        serve(store=str(tmp_path / "real.db"))


def test_what_waits_for_a_plain_script_outlives_a_crash_of_the_queues(serve: Serve) -> None:
    service = serve(fault_injection=True, tick_s=0.02)
    with Proxy(service.names.lookup("channel.orders")) as channel:
        session = invoke(channel, "subscribe", "s")["session"]
        invoke(channel, "publish", "p", "a", list("1234"))
        first = invoke(channel, "fetch", "s", session, 2, 2.0)
        invoke(channel, "kill_queues", 0.2)
        during = invoke(channel, "fetch", "s", session, 2, 0.0, first["number"])
        assert during["messages"] == []
        rest: list[Any] = []

        def everything() -> bool:
            answer = invoke(channel, "fetch", "s", session, 10, 0.5, first["number"])
            rest.extend(answer["messages"])
            return bool(rest)

        poll(everything, 10, "the rest to come once the queues are restored")
        assert [m["position"] for m in rest] == [3, 4]


def two_with_something_to_share() -> tuple[ChannelHost, Inbox, PushLink]:
    """``a`` holds three lines with more to come, and nobody else is there yet."""
    host = ChannelHost.create("orders", Policy(), MemoryJournal(), Clock(), lambda error: None)
    inbox, link = join(host, "a")
    for name in ("x", "y", "z"):
        publish(host, name, 2)
    poll(lambda: len(inbox.session.held) == 3, 5, "a to have everything")
    return host, inbox, link


def given_to(host: ChannelHost, name: str) -> int:
    found: int = host.statistics()["subscriptions"]["default"]["subscribers"][name]["partitions"]
    return found


def test_a_hand_back_that_meets_crashed_queues_is_repeated_until_they_are_restored() -> None:
    """The sender thread used to end over it, and its subscriber was sent nothing any more."""
    host, inbox, link = two_with_something_to_share()
    answer = inbox.recall

    def crash_in_between(epochs: list[int]) -> list[int]:
        uptos = answer(epochs)
        inbox.recall = answer  # type: ignore[method-assign]
        host.kill_queues(50)
        return uptos

    inbox.recall = crash_in_between  # type: ignore[method-assign]
    join(host, "b")

    def shared() -> bool:
        host.tick()
        return not host.statistics()["queues_down"] and given_to(host, "b") > 0

    poll(shared, 10, "b to get what a handed back")
    assert link._thread.is_alive()
    host.close()


def test_a_recall_whose_answer_got_lost_is_asked_again_when_the_session_comes_back() -> None:
    host, inbox, link = two_with_something_to_share()
    answer = inbox.recall

    def lose_the_answer(epochs: list[int]) -> list[int]:
        uptos = answer(epochs)
        inbox.recall = answer  # type: ignore[method-assign]
        link.closed = True  # the connection is gone before the hand-back is decided
        return uptos

    inbox.recall = lose_the_answer  # type: ignore[method-assign]
    join(host, "b")

    def asked() -> bool:
        host.tick()
        return link.closed

    poll(asked, 10, "a to be asked")
    assert given_to(host, "b") == 0
    again = PushLink(host, "default", "a", "a-1", False, inbox)
    host.connect(c.Subscribe("default", "a", "a-1", 1_000, "uri"), again)
    poll(lambda: given_to(host, "b") > 0, 10, "b to get what a handed back")
    host.close()


# Calls of publishers that come late or twice, found by the simulator.


@pytest.fixture
def host() -> ChannelHost:
    def fail(error: BaseException) -> None:
        raise error

    return ChannelHost.create(
        "orders", Policy(pending_count_max=1), MemoryJournal(), Clock(), fail
    )


def test_a_call_that_got_stuck_is_not_done_after_a_newer_one(host: ChannelHost) -> None:
    """Its publisher has been told of a refusal, and has given the sequence to another message."""
    epoch = host.settle(c.OpenPublisher("p"))["epoch"]

    def publish(sequence: int, body: bytes, *place: int) -> dict[str, Any]:
        command = publish_command("p", {"a": (sequence, [body])}, epoch)
        return host.publish(lambda channel: command, True, ("p", epoch, *place))  # type: ignore

    assert publish(1, b"first", 1, 1)["accepted"] == 1
    assert publish(2, b"refused", 1, 2)["refused"] == 1
    with pytest.raises(CallOvertaken):
        publish(2, b"refused", 1, 2)
    publish(2, b"other", 2, 3)
    with pytest.raises(CallOvertaken):
        publish(2, b"late", 1, 9)


def test_a_call_of_an_older_epoch_is_fenced_and_not_only_late(host: ChannelHost) -> None:
    """The one is for good; the other is tried again, without end."""
    old = host.settle(c.OpenPublisher("p"))["epoch"]
    new = host.settle(c.OpenPublisher("p"))["epoch"]
    for epoch, error in ((new, None), (old, PublisherFenced)):
        command = publish_command("p", {"a": (1, [b"x"])}, epoch)
        order = ("p", epoch, 1, 1)
        if error is None:
            host.publish(lambda channel, made=command: made, True, order)  # type: ignore
        else:
            with pytest.raises(error):
                host.publish(lambda channel, made=command: made, True, order)  # type: ignore


def test_an_opening_that_comes_twice_does_not_fence_its_own_publisher(host: ChannelHost) -> None:
    first = host.opened(c.OpenPublisher("p"), "one")
    assert host.opened(c.OpenPublisher("p"), "one") == first
    second = host.opened(c.OpenPublisher("p"), "two")
    assert second["epoch"] == first["epoch"] + 1


def test_a_nack_of_the_new_membership_is_kept_when_the_answer_tells_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What came before the answer to ``subscribe`` may have been handled, and failed, by then."""
    keeper, shared = keeper_and_shared()
    shared.session.receive(delivered(3))
    shared.nacks.append((3, 1, "old", None, False))

    def subscribe(proxy: Any, method: str, *arguments: Any) -> dict[str, Any]:
        shared.session.receive(delivered(5))
        shared.nacks.append((5, 1, "new", None, False))
        return {"resumed": False, "generation": 1, "epoch": 4, "policy": {}, "settle": "PYRO:x@y:1"}

    monkeypatch.setattr("subscriber.keeper.invoke", subscribe)
    keeper._subscribe()
    assert [nack[0] for nack in shared.nacks] == [5]
    assert list(shared.session.held) == [5]


def keeper_and_shared() -> tuple[Keeper, Shared]:
    shared = Shared("s", "orders", "default", prefetch=1, concurrency=1, timeout_s=1.0)
    keeper = Keeper(shared, FixedAddress(), None, create=False, give_up_s=1.0)  # type: ignore
    keeper._daemon = object()  # type: ignore[assignment]
    return keeper, shared


def answering(
    monkeypatch: pytest.MonkeyPatch, *replies: dict[str, Any]
) -> list[dict[str, Any]]:
    """Let ``subscribe`` be answered like this, one after the other; what is left of them."""
    left = [
        {"resumed": False, "generation": 1, "policy": {}, "settle": "PYRO:x@y:1", **reply}
        for reply in replies
    ]
    monkeypatch.setattr("subscriber.keeper.invoke", lambda *_: left.pop(0))
    return left


def test_who_missed_that_it_had_joined_anew_lets_go_of_what_it_had_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer that told of it got lost; the next one says ``resumed``, and where it joined."""
    keeper, shared = keeper_and_shared()
    shared.session.receive(delivered(3))
    answering(monkeypatch, {"resumed": True, "epoch": 4})
    keeper._subscribe()
    assert not shared.session.held and not shared.session.take(1)


@pytest.mark.parametrize("method", ["heartbeat", "settle", "nack"])
def test_an_answer_that_renews_the_lease_tells_who_missed_that_it_joined_anew(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Else it would go on with what it has lost, its lease being good again."""
    keeper, shared = keeper_and_shared()
    shared.session.receive(delivered(3))
    shared.session.receive(delivered(5))
    reply = {"acked": 0, "stale": [], "fence": 4}
    monkeypatch.setattr("subscriber.keeper.invoke", lambda *_: reply)
    monkeypatch.setattr("subscriber.settler.invoke", lambda *_: reply)
    if method == "heartbeat":
        keeper._heartbeat(None)
    else:
        (taken,) = shared.session.take(1)
        if method == "settle":
            taken.done = 1
        else:
            shared.nacks.append((3, 1, "no", None, False))
        Settler(shared)._settle_once(None)
    assert list(shared.session.held) == [5]
    assert shared.lease_until > 0


def test_a_broker_that_has_lost_what_it_had_told_is_started_over_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a power cut with durability flush: epochs start lower than they were."""
    keeper, shared = keeper_and_shared()
    shared.session.receive({**delivered(7), "fence": 6, "generation": 1})
    left = answering(monkeypatch, {"epoch": 2}, {"epoch": 2, "resumed": True})
    keeper._subscribe()
    assert not left, "it has subscribed once more, so that what came meanwhile is sent again"
    shared.session.receive({**delivered(3), "fence": 2, "generation": 1})
    assert list(shared.session.held) == [3]


def test_a_batch_tells_when_its_subscriber_joined(host: ChannelHost) -> None:
    """A session needs it to tell what is of before from what is of now."""
    got: list[dict[str, Any]] = []
    inbox = Inbox()
    inbox.receive = got.append  # type: ignore[method-assign]
    command = publish_command("p", {"a": (1, [b"x"])})
    host.publish(lambda channel: command, True)
    for session, batches in (("one", 1), ("two", 2)):
        link = PushLink(host, "default", "s", session, False, inbox)
        generation = host.connect(c.Subscribe("default", "s", session, 1, ""), link)["generation"]
        poll(lambda wanted=batches: len(got) == wanted, 10, "a batch")  # type: ignore[misc]
        assert got[-1]["generation"] == generation
    assert [batch["fence"] for batch in got] == [0, 1]
    host.close()


def test_a_late_opening_of_an_older_publisher_does_not_fence_the_newer_one(
    host: ChannelHost,
) -> None:
    host.opened(c.OpenPublisher("p"), "one")
    second = host.opened(c.OpenPublisher("p"), "two")
    with pytest.raises(PublisherFenced):
        host.opened(c.OpenPublisher("p"), "one")
    assert host.opened(c.OpenPublisher("p"), "two") == second


def test_no_older_call_takes_a_sequence_that_was_learnt(host: ChannelHost) -> None:
    epoch = host.settle(c.OpenPublisher("p"))["epoch"]
    assert host.next_sequences("p", ["a"], ("p", epoch, 2, 5)) == [1]
    command = publish_command("p", {"a": (1, [b"stuck"])}, epoch)
    with pytest.raises(CallOvertaken):
        host.publish(lambda channel: command, True, ("p", epoch, 1, 4))


class FixedAddress:
    """A channel that is always at the same place."""

    def uri(self, create: bool) -> str:
        return "PYRO:channel@127.0.0.1:1"


def delivered(epoch: int) -> dict[str, Any]:
    """One message under an epoch."""
    return {
        "publishers": "p", "partitions": ["a"], "firsts": [1], "counts": [1], "epochs": [epoch],
        "attempts": None, "timestamps": 5, "sequences": [1], "priorities": None, "formats": 0,
        "bodies": [b"x"], "extras": None,
    }  # fmt: skip
