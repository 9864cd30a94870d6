"""The exposed objects of a channel: decode and check, hand to the host, answer. No state, no lock.

``ChannelObject`` is what the name server knows as ``channel.<name>``: every verb, for plain Pyro5
scripts with any serializer and for Fairlead's own publishers. ``SettleObject`` is the same channel
on a daemon of its own, with what a busy subscriber must always get through: acks and heartbeats.
"""

from __future__ import annotations

import secrets
from typing import Any, Callable

from broker import wire
from broker.core import commands as c
from broker.core.channel import DEFAULT_SUBSCRIPTION, Channel
from broker.core.message import PartitionKey
from broker.errors import BadRequest, ChannelFull, FaultInjectionDisabled, LimitReached, SequenceGap
from broker.pyro_setup import current_context, serializers
from broker.remote.exposed import caller_host, remote
from broker.server.callback import PyroCallback, checked_uri
from broker.server.channel_host import ChannelHost
from broker.server.link import Link, PullLink, PushLink

EPOCH_MAX = 1 << 62
JSON_ID: int = serializers.JsonSerializer.serializer_id
WAIT_S_MAX = 10.0
LIST_LIMIT_MAX = 10_000


def _session_of(subscription: Any, subscriber: Any, session: Any) -> tuple[str, str, str]:
    return (
        wire.check_id(subscription, "subscription"),
        wire.check_id(subscriber, "subscriber id"),
        wire.check_id(session, "session"),
    )


def _seconds(value: Any, what: str, high: float) -> float:
    if type(value) not in (int, float) or not 0 <= value <= high:
        raise BadRequest(f"{what}={value!r:.40} is refused: it must be 0 to {high:g} seconds")
    return float(value)


def _order(
    publisher: str, epoch: int | None, place: Any
) -> tuple[str, int, int, int] | None:
    if place is None:
        return None
    if len(wire.check_ints(place, "place", 0, EPOCH_MAX)) != 2 or epoch is None:
        raise BadRequest("place is [connection, number] of a publisher with an epoch")
    return (publisher, wire.check_int(epoch, "epoch", 0, EPOCH_MAX), place[0], place[1])


class SettleObject:
    """Acks, nacks, heartbeats and fetches of one channel."""

    def __init__(self, host: ChannelHost) -> None:
        self._host = host

    @remote
    def settle(
        self,
        subscription: str,
        subscriber: str,
        session: str,
        epochs: list[int],
        uptos: list[int],
        delays: list[list[int]] | None = None,
    ) -> dict[str, Any]:
        """Acknowledge many assignments at once: epochs[i] is done up to position uptos[i]."""
        member = _session_of(subscription, subscriber, session)
        epochs = wire.check_ints(epochs, "epochs", 1, EPOCH_MAX)
        uptos = wire.check_ints(uptos, "uptos", 0, EPOCH_MAX)
        if len(epochs) != len(uptos):
            raise BadRequest(f"{len(epochs)} epochs but {len(uptos)} positions")
        checked = []
        if delays is not None and not isinstance(delays, (list, tuple)):
            raise BadRequest("delays must be a list of [epoch, position, milliseconds]")
        for delay in delays or ():
            if len(wire.check_ints(delay, "delays", 0, EPOCH_MAX)) != 3:
                raise BadRequest("a delay is [epoch, position, milliseconds]")
            checked.append(list(delay))
        return self._host.settle(c.Ack(*member, epochs, uptos, checked))

    @remote
    def nack(
        self,
        subscriber: str,
        session: str,
        epoch: int,
        position: int,
        reason: str = "nack",
        delay_s: float | None = None,
        final: bool = False,
        subscription: str = DEFAULT_SUBSCRIPTION,
    ) -> dict[str, Any]:
        """One message failed: retry it in place later, or (final) park it at once."""
        member = _session_of(subscription, subscriber, session)
        delay_ms = None if delay_s is None else int(_seconds(delay_s, "delay_s", 86_400.0) * 1000)
        command = c.Nack(
            *member,
            wire.check_int(epoch, "epoch", 1, EPOCH_MAX),
            wire.check_int(position, "position", 1, EPOCH_MAX),
            wire.safe_text(reason, 500),
            delay_ms,
            bool(final),
        )
        return self._host.settle(command)

    @remote
    def hand_back(
        self, subscription: str, subscriber: str, session: str, epochs: list[int], uptos: list[int]
    ) -> dict[str, Any]:
        """Give back what was not started: everything after position uptos[i] of epochs[i]."""
        member = _session_of(subscription, subscriber, session)
        epochs = wire.check_ints(epochs, "epochs", 1, EPOCH_MAX)
        uptos = wire.check_ints(uptos, "uptos", 0, EPOCH_MAX)
        if len(epochs) != len(uptos):
            raise BadRequest(f"{len(epochs)} epochs but {len(uptos)} positions")
        return self._host.settle(c.HandBack(*member, epochs, uptos))

    @remote
    def heartbeat(
        self, subscriber: str, session: str, subscription: str = DEFAULT_SUBSCRIPTION
    ) -> dict[str, Any]:
        """I am alive. Raises NotSubscribed when the broker cannot reach the subscriber any more."""
        member = _session_of(subscription, subscriber, session)
        return self._host.execute(c.Heartbeat(*member))[0]

    @remote
    def leave(
        self, subscriber: str, session: str, subscription: str = DEFAULT_SUBSCRIPTION
    ) -> dict[str, Any]:
        """Hand everything back and unsubscribe."""
        return self._host.settle(c.Leave(*_session_of(subscription, subscriber, session)))

    @remote
    def fetch(
        self,
        subscriber: str,
        session: str,
        count_max: int = 100,
        wait_s: float = 0.0,
        received: int = 0,
        subscription: str = DEFAULT_SUBSCRIPTION,
    ) -> dict[str, Any]:
        """The next messages for a subscriber without a callback, waiting up to ``wait_s`` for some.

        ``received`` is the number of the last batch that came; while it is not raised, the same
        batch is answered again, so that a lost answer loses nothing.
        """
        member = _session_of(subscription, subscriber, session)
        answer = self._host.fetch(
            c.Heartbeat(*member),
            wire.check_int(count_max, "count_max", 1, self._host.policy.prefetch_count_max),
            _seconds(wait_s, "wait_s", WAIT_S_MAX),
            wire.check_int(received, "received", 0, EPOCH_MAX),
        )
        takes_bytes = current_context.serializer_id != JSON_ID
        messages = [
            message
            for send in answer["sends"]
            for message in wire.plain_messages(send, takes_bytes)
        ]
        return {"number": answer["number"], "messages": messages}


class ChannelObject(SettleObject):
    """Everything a script can ask of a channel."""

    def __init__(
        self, host: ChannelHost, settle_uri: str, fault_injection: bool, now_us: Callable[[], int]
    ) -> None:
        super().__init__(host)
        self._settle_uri = settle_uri
        self._fault_injection = fault_injection
        self._now_us = now_us

    # Publishing.

    @remote
    def open_publisher(self, publisher: str, instance: str | None = None) -> dict[str, Any]:
        """Start a new epoch of a publisher id; older ones may publish no more.

        ``instance`` names the one who asks: repeating the call does not start a further epoch.
        """
        command = c.OpenPublisher(wire.check_id(publisher, "publisher id"))
        if instance is not None:
            wire.check_id(instance, "instance")
        reply = self._host.opened(command, instance)
        return {**reply, "policy": self._host.policy.to_dict()}

    @remote
    def publish_runs(
        self,
        publisher: str,
        epoch: int,
        partitions: list[str],
        firsts: list[int],
        counts: list[int],
        timestamps: list[int],
        bodies: list[bytes],
        priorities: list[int] | None,
        formats: Any,
        extras: Any,
        wait: bool,
        place: list[int] | None = None,
    ) -> dict[str, Any]:
        """Publish a batch in columns. Without ``wait`` it counts once ``record`` is durable.

        ``place`` is [connection, number]: it rises with each call of a publisher's life, so that a
        call that got stuck on its way is not done after a newer one (CallOvertaken).
        """
        command = wire.publish_command(
            self._host.policy, publisher, epoch, partitions, firsts, counts, timestamps, bodies,
            priorities, formats, extras,
        )  # fmt: skip
        order = _order(publisher, epoch, place)
        return self._host.publish(lambda channel: command, wait, order)

    @remote
    def wait_durable(self, record: int, wait_s: float) -> int:
        """The last durable journal sequence, after waiting for ``record`` for up to ``wait_s``."""
        wire.check_int(record, "record", 0, EPOCH_MAX)
        return self._host.durable(record, _seconds(wait_s, "wait_s", WAIT_S_MAX))

    @remote
    def next_sequences(
        self,
        publisher: str,
        partitions: list[str],
        epoch: int | None = None,
        place: list[int] | None = None,
    ) -> list[int]:
        """The sequence that each partition of a publisher expects next.

        ``epoch`` and ``place`` as in ``publish_runs``: older calls are not done after this one.
        """
        wire.check_id(publisher, "publisher id")
        if not isinstance(partitions, (list, tuple)):
            raise BadRequest("partitions must be a list of partition ids")
        wire.check_ids(partitions, "partition id")
        order = _order(publisher, epoch, place)
        return self._host.next_sequences(publisher, list(partitions), order)

    @remote
    def publish(
        self,
        publisher: str,
        partition: str,
        messages: list[Any],
        first_sequence: int | None = None,
        epoch: int | None = None,
    ) -> dict[str, Any]:
        """Publish messages to one partition; the answer comes when they are durable.

        A message is a str, bytes, a JSON value, or a dict with "body" and any of "timestamp",
        "priority", "id", "headers". With ``first_sequence`` a repeated call is recognised and done
        once; without it the broker numbers the messages itself and a repeated call counts again.
        Raises ChannelFull with how many were accepted, or SequenceGap with the expected sequence.
        """
        policy = self._host.policy
        wire.check_id(partition, "partition id")
        bodies, timestamps, priorities, formats, extras = wire.plain_columns(
            policy, messages, self._now_us()
        )
        if first_sequence is not None:
            wire.check_int(first_sequence, "first_sequence", 1, EPOCH_MAX)
        if epoch is not None:
            wire.check_int(epoch, "epoch", 0, EPOCH_MAX)

        def command_at(first: int) -> c.Publish:
            return wire.publish_command(
                policy, publisher, epoch, [partition], [first], [len(bodies)], timestamps, bodies,
                priorities, formats, extras if any(extras) else None,
            )  # fmt: skip

        if first_sequence is not None:
            command = command_at(first_sequence)
            reply = self._host.publish(lambda channel: command, True)
        else:
            command_at(1)  # checks everything before the lock is taken

            def build(channel: Channel) -> c.Command:
                return command_at(channel.next_sequences(publisher, [partition])[0])

            reply = self._host.publish(build, True)
        if reply["refused"]:
            raise _refusal(self._host.name, partition, reply)
        return reply

    # Subscribing.

    @remote
    def subscribe(
        self,
        subscriber: str,
        callback: Any = None,
        prefetch: int = 100,
        subscription: str = DEFAULT_SUBSCRIPTION,
        session: str | None = None,
        form: str = "plain",
    ) -> dict[str, Any]:
        """Join a subscription. ``callback``: an object with ``receive(messages)``; without one, use
        ``fetch``. The answer has the ``session`` that every further call carries.

        ``form`` is "plain" (a list of dicts) or "columns" (Fairlead's own subscribers, whose
        callback also has ``recall(epochs)``).
        """
        if form not in ("plain", "columns"):
            raise BadRequest(f"form {form!r:.40} is refused: it is 'plain' or 'columns'")
        session = session or secrets.token_hex(8)
        member = _session_of(subscription, subscriber, session)
        wire.check_int(prefetch, "prefetch", 1, self._host.policy.prefetch_count_max)
        uri = "" if callback is None else checked_uri(callback, caller_host())
        columns = form == "columns"
        command = c.Subscribe(*member, prefetch, uri, columns and bool(uri))
        link: Link
        if uri:
            serializer = serializers.serializers_by_id[current_context.serializer_id]
            names = {id(value): name for name, value in serializers.serializers.items()}
            timeout_s = self._host.policy.send_timeout_ms / 1000
            caller = PyroCallback(uri, names.get(id(serializer), "serpent"), timeout_s)
            link = PushLink(self._host, *member, not columns, caller)
        else:
            link = PullLink(*member, not columns)
        reply = self._host.connect(command, link)
        return {**reply, "session": session, "settle": self._settle_uri}

    @remote
    def ack(
        self,
        subscriber: str,
        session: str,
        epoch: int,
        position: int,
        subscription: str = DEFAULT_SUBSCRIPTION,
    ) -> dict[str, Any]:
        """Acknowledge an assignment's messages up to and including ``position``."""
        member = _session_of(subscription, subscriber, session)
        wire.check_int(epoch, "epoch", 1, EPOCH_MAX)
        wire.check_int(position, "position", 1, EPOCH_MAX)
        return self._host.settle(c.Ack(*member, [epoch], [position]))

    @remote
    def create_subscription(self, subscription: str) -> dict[str, Any]:
        """Make a durable group that gets everything published from now on."""
        return self._host.settle(
            c.CreateSubscription(wire.check_id(subscription, "subscription"))
        )

    @remote
    def delete_subscription(self, subscription: str) -> dict[str, Any]:
        """Remove a durable group and what it is still owed."""
        return self._host.settle(
            c.DeleteSubscription(wire.check_id(subscription, "subscription"))
        )

    # Looking.

    @remote
    def statistics(self) -> dict[str, Any]:
        """The channel in numbers."""
        return self._host.statistics()

    @remote
    def partitions(
        self, subscription: str = DEFAULT_SUBSCRIPTION, limit: int = 100
    ) -> list[dict[str, Any]]:
        """The partitions with work: owner, in flight, lag, age, attempt."""
        wire.check_id(subscription, "subscription")
        wire.check_int(limit, "limit", 1, LIST_LIMIT_MAX)
        return self._host.partitions(subscription, limit)

    @remote
    def parked(
        self, subscription: str = DEFAULT_SUBSCRIPTION, limit: int = 100
    ) -> list[dict[str, Any]]:
        """Messages and partitions that were set aside, with the reasons."""
        wire.check_id(subscription, "subscription")
        wire.check_int(limit, "limit", 1, LIST_LIMIT_MAX)
        return self._host.parked(subscription, limit)

    @remote
    def redrive(
        self,
        subscription: str = DEFAULT_SUBSCRIPTION,
        publisher: str | None = None,
        partition: str | None = None,
        drop: bool = False,
    ) -> dict[str, Any]:
        """Send parked work on its way again, or give it up: all of it, or one partition's."""
        wire.check_id(subscription, "subscription")
        if (publisher is None) != (partition is None):
            raise BadRequest("name both publisher and partition, or neither for all parked work")
        key = None if publisher is None else PartitionKey(str(publisher), str(partition))
        return self._host.settle(c.Redrive(subscription, key, bool(drop)))

    # Faults.

    @remote
    def kill_queues(self, restore_after_s: float = 0.5) -> dict[str, Any]:
        """Crash the global queue and all sub-queues; the backup restores them after that time."""
        if not self._fault_injection:
            raise FaultInjectionDisabled(
                f"kill_queues on channel {self._host.name} is refused: the broker was started "
                "without --fault-injection"
            )
        seconds = _seconds(restore_after_s, "restore_after_s", 60.0)
        return self._host.kill_queues(int(seconds * 1000))


def _refusal(channel: str, partition: str, reply: dict[str, Any]) -> Exception:
    """Why a plain publish was not accepted whole; says what was and what was not."""
    through, _, reason, expected = reply["runs"][0][:4]
    details = {name: reply[name] for name in ("accepted", "duplicates", "refused")}
    counts = ", ".join(f"{name} {count}" for name, count in details.items())
    if reason == "gap":
        return SequenceGap(
            f"partition {partition} of channel {channel} expects sequence {expected} next; send "
            f"from there ({counts})",
            expected=expected, **details,
        )  # fmt: skip
    if reason == "partition-limit":
        return LimitReached(
            f"channel {channel} may have no further partition, so {partition} cannot be opened; "
            "reuse partition ids or raise partition_count_max",
            **details,
        )
    return ChannelFull(
        f"channel {channel} is full, its limit is {reply['limit']} unacknowledged messages "
        f"({counts}); the first {through} went through, send the others again when subscribers "
        "have caught up",
        expected=expected, retry_after_ms=reply["retry_after_ms"], **details,
    )  # fmt: skip
