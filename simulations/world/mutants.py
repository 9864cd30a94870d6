"""Plausible bugs that can be switched on one at a time, to see that the simulator finds them.

A mutant replaces a few words in the source of one function, of the product or of a task that stands
for one of its threads, and that function's code with the result; ``applied`` puts it back. When the
code changes and the words are not there any more, a mutant says so instead of doing nothing.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Iterator

from broker.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug: in ``where`` (module:function or module:Class.method) ``old`` becomes ``new``."""

    name: str
    about: str
    where: str
    old: str
    new: str
    profile: str = "standard"


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "ack-of-any-epoch", "an ack under a superseded epoch settles what is held now",
            "broker.core.settling:decide_ack", "line = held.get(epoch)\n",
            "line = held.get(epoch) or next(iter(held.values()), None)\n",
        ),
        Mutant(
            "session-not-checked", "an older life of a subscriber may settle and stay",
            "broker.core.channel:Channel.member", "if queue.session != command.session:",
            "if False:",
        ),
        Mutant(
            "nothing-kept-for-reassign", "what is taken from a dead subscriber is not kept",
            "broker.core.settling:apply_reassigned", "line.withdraw(first)\n",
            "line.withdraw(first); del line.messages[line.head + first - line.settled - 1 :]\n",
        ),
        Mutant(
            "answer-before-commit", "what is written counts as durable before it is synced",
            "broker.journal.memory:MemoryJournal.durable", "return self._synced.get(channel, 0)",
            "return self._end(channel)",
        ),
        Mutant(
            "send-before-commit", "messages are sent before the record of it is durable",
            "simulations.world.link:SimulatedLink.sender",
            "yield self._broker.disk.when_durable(sequence)", "pass",
        ),
        Mutant(
            "attempts-forgotten-on-restart", "a restart of the broker forgets failed attempts",
            "broker.core.membership:apply_broker_started",
            "        subscription.queue.bound_delays(longest)\n",
            "        subscription.queue.bound_delays(longest)\n"
            "        for line in channel.backup.lines(subscription): line.forget_attempts()\n",
        ),
        Mutant(
            "attempts-not-counted", "a subscriber's death does not count against its messages",
            "broker.core.partition:Line.blame",
            "attempt = max(self.attempt, min(self.attempt + 1, attempts_max))",
            "attempt = self.attempt", "handlers",
        ),
        Mutant(
            "two-owners", "a partition that was handed out can be handed out again",
            "broker.core.assignment:apply_delivered",
            "subscription.queue.discard_all([line for line in lines if line.owner is None])",
            "pass",
        ),
        Mutant(
            "tail-lost-in-queue-crash", "what waited behind work in flight is not restored",
            "broker.core.membership:apply_queues_restored", "queue.settle_hunger(line)", "pass",
        ),
        Mutant(
            "queues-not-restored", "a queue crash loses the partitions that nobody held",
            "broker.core.membership:apply_queues_restored",
            "elif line.messages and not line.parked:", "elif False:",
        ),
        Mutant(
            "sequences-start-anew", "a publisher that comes back numbers from 1 again",
            "broker.core.publishing:decide_open_publisher",
            "known = bool(channel.backup.publishers.get(command.publisher))", "known = False",
        ),
        Mutant(
            "no-publisher-fence", "an older life of a publisher may still publish",
            "broker.core.publishing:decide_publish",
            "if command.epoch is not None and command.epoch != current:", "if False:",
        ),
        Mutant(
            "overtaken-calls-done", "a call that got stuck is done after newer ones",
            "broker.server.channel_host:ChannelHost._refuse_overtaken",
            "if place <= self._orders.get(publisher, []):", "if False:", "crowded",
        ),
        Mutant(
            "opened-twice", "a repeated opening fences the publisher that it came from",
            "broker.server.channel_host:ChannelHost.open_publisher",
            "if opener == instance and epoch == current:", "if False:", "network",
        ),
        Mutant(
            "backoff-outlives-restart", "a back-off that is over counts again when the clock jumps",
            "broker.core.assignment:apply_delivered", "line.not_before_ms = 0", "pass",
        ),
        Mutant(
            "ids-not-remembered", "a second message with the same id is accepted",
            "broker.core.publishing:_Sorting.take",
            "message_id in self.ids or message_id in self.channel.delivered_ids",
            "message_id in self.ids",
        ),
        Mutant(
            "lost-delivery-not-resent", "what a returning subscriber holds is not sent again",
            "broker.server.channel_host:ChannelHost._resend", "if send is not None:", "if False:",
        ),
        Mutant(
            "leases-never-end", "nobody is declared dead",
            "broker.core.membership:decide_tick", "if queue.seen_ms < deadline", "if False",
        ),
        Mutant(
            "heartbeats-do-not-count", "a living subscriber loses its lease",
            "broker.core.membership:apply_seen", "queue.seen_ms = record.at_ms", "pass", "calm",
        ),
        Mutant(
            "resumed-without-fence", "who missed that it had joined anew starts what it had lost",
            "broker.core.membership:decide_subscribe", 'reply["epoch"] = known.joined',
            'reply["epoch"] = 0', "network",
        ),
        Mutant(
            "renewed-without-fence", "who missed that it had joined anew goes on when it may ack",
            "broker.core.settling:decide_ack", '"fence": queue.joined', '"fence": 0',
        ),
        Mutant(
            "blocking-publisher-refuses", "a full channel fails messages of a patient publisher",
            "publisher.outbox:Outbox._split", "if self.refuse_when_full or lasting:", "if True:",
        ),
        Mutant(
            "started-work-handed-back", "a recall takes back messages that are being handled",
            "broker.core.settling:decide_hand_back",
            "keep = max(line.settled, min(upto, line.delivered))", "keep = line.settled",
        ),
        Mutant(
            "recall-forgets-started", "a subscriber gives back what it has started",
            "subscriber.session:Session._close", "assignment.keep_upto = assignment.started",
            "assignment.keep_upto = assignment.acked",
        ),
        Mutant(
            "no-duplicate-guard", "a subscriber handles again what it handled before its ack",
            "subscriber.session:Session._recognise",
            "if handled > assignment.done and not assignment.queued:", "if False:",
        ),
        Mutant(
            "no-session-fence", "batches from before the subscriber was given up are handled",
            "subscriber.session:Session.move_fence", "if fence > self.fence:", "if False:",
            "network",
        ),
        Mutant(
            "new-nacks-forgotten", "a nack of the new membership is dropped with those of the old",
            "simulations.world.subscriber:SimulatedSubscriber._subscribe",
            "if nack[0] not in before", "if False",
        ),
        Mutant(
            "stale-acks-confirmed", "a subscriber takes a stale ack for a good one",
            "subscriber.session:Session.confirmed", "if assignment is None or epoch in fenced:",
            "if assignment is None:", "network",
        ),
        Mutant(
            "answer-taken-for-durable", "a publisher forgets a call when it is answered",
            "publisher.outbox:Outbox.answered", 'self.durable(reply["durable"])',
            'self.durable(reply["record"])', "disk",
        ),
        Mutant(
            "unconfirmed-not-resent", "what was answered and not durable is not sent again",
            "publisher.outbox:Outbox.unknown",
            "for call in [*self._unconfirmed, *self._under_way]:",
            "for call in self._under_way:",
        ),
        Mutant(
            "retry-before-order", "what was refused goes again behind newer messages",
            "publisher.outbox:Outbox._end_retries",
            "self._waiting.extendleft(reversed(self._retries))",
            "self._waiting.extend(self._retries)",
        ),
        Mutant(
            "redriven-twice", "a redriven message stays parked as well",
            "broker.core.settling:apply_redriven", "subscription.parked.pop(key).entry",
            "subscription.parked[key].entry", "handlers",
        ),
        Mutant(
            "nack-takes-the-next", "a nack withdraws from the message after the failed one on",
            "broker.core.settling:apply_nacked", "line.withdraw(record.position)",
            "line.withdraw(record.position + 1)", "handlers",
        ),
        Mutant(
            "topic-confirms-on-send", "what is handed out counts as confirmed",
            "broker.server.topics_host:TopicsHost.look",
            "found = self._next(told, count_max, bytes_max)\n",
            "found = self._next(told, count_max, bytes_max)\n"
            "        for item in found:\n"
            "            command = c.Confirm(asked[item.topic].client, '', None, item.position)\n"
            "            self._execute(self._held[item.topic], command)\n",
            "topics",
        ),
        Mutant(
            "topic-put-done-again", "a put that comes again is done again",
            "broker.core.topics.topic:_decide_put", "if same and command.crc == client.call_crc:",
            "if same and (number := last + 1):\n            pass\n        elif False:", "topics",
        ),
        Mutant(
            "topic-late-put-done", "a put that got stuck is done after a newer one",
            "broker.server.topics_host:Held.refuse_overtaken",
            "if instance == newest_instance and order <= newest:", "if False:", "topics",
        ),
        Mutant(
            "topic-order-of-anybody", "a second directory moves the order of the first one's puts",
            "broker.server.topics_host:Held.refuse_overtaken",
            "self.topic.known(client, instance)\n", "instance = ''\n", "topics",
        ),
        Mutant(
            "topic-ticket-not-checked", "a get of an earlier subscription confirms in the new one",
            "broker.core.topics.topic:Topic.place",
            "if ticket is not None and ticket != place.ticket:", "if False:", "topics",
        ),
        Mutant(
            "topic-request-not-checked", "a late request is done after a newer one",
            "broker.server.topics_host:Held.refuse_late_request",
            "if instance == newest_instance and request < newest:", "if False:", "topics",
        ),
        Mutant(
            "topic-instance-not-checked", "two directories share a client id",
            "broker.core.topics.topic:Topic.known",
            "if found is not None and instance and found.instance and found.instance != instance:",
            "if False:", "topics",
        ),
        Mutant(
            "topic-floor-of-the-fastest", "a message is released when one subscriber has it",
            "broker.core.topics.topic:Topic.move_floor", "self.log.release(self.floor)",
            "self.log.release(floors.peekitem(-1)[0] if floors else self.log.last)", "topics",
        ),
        Mutant(
            "topic-trim-too-far", "a trim takes the first record that somebody needs as well",
            "broker.server.topics_host:TopicsHost.begin_trim",
            "base = make_early_base(held.topic, held.cut, 0, held.sequence)",
            "base = make_early_base("
            "held.topic, min(held.cut + 1, held.sequence), 0, held.sequence)",
            "topics",
        ),
        Mutant(
            "topic-trim-before-commit", "a base is written before its state is durable",
            "simulations.world.topics.broker:TopicsBroker._trim",
            "yield self.disk.when_durable(held.name, trim.upto)",
            "yield self.disk.when_durable(held.name, trim.base.sequence)", "topics",
        ),
        Mutant(
            "topic-get-before-commit", "messages are handed out before they are durable",
            "simulations.world.topics.broker:TopicsBroker._get",
            "yield self.disk.when_durable(held.name, sequence)", "pass", "topics",
        ),
        Mutant(
            "topic-put-before-commit", "a request is answered before it is durable",
            "simulations.world.topics.broker:TopicsBroker._settle",
            "yield self.disk.when_durable(held.name, sequence)", "yield 0", "topics",
        ),
        Mutant(
            "topic-stamps-restart", "stamps start anew with the broker",
            "broker.server.topics_host:TopicsHost.recover",
            "self._stamp = max(self._stamp, held.topic.stamp)", "self._stamp = 0", "topics",
        ),
        Mutant(
            "topic-born-again", "a topic that is made anew cannot be told from the one before",
            "broker.server.topics_host:TopicsHost.recover",
            "self._stamp = self._clock.now_us()\n", "self._stamp = 0\n", "topics",
        ),
        Mutant(
            "topic-merged-by-name", "several topics are read one after the other",
            "broker.server.topics_host:TopicsHost._merged",
            "heads.append((stamps[0], name, reply[\"position\"] + 1))",
            "heads.append((0, name, reply[\"position\"] + 1))", "topics",
        ),
        Mutant(
            "topic-removed-while-owed", "a topic is removed though somebody is subscribed to it",
            "broker.server.topics_host:TopicsHost._is_over", "return topic.released and ",
            "return ", "topics",
        ),
        Mutant(
            "topic-handed-out-first", "a client hands messages out before it writes them down",
            "simulations.world.topics.client:TopicsClient.get",
            "self._write_down(fresh)\n    self._hand_out(asked, fresh)\n",
            "self._hand_out(asked, fresh)\n    yield from self.step()\n"
            "    self._write_down(fresh)\n", "topics",
        ),
        Mutant(
            "topic-put-not-written-down", "a client sends a put before it is written down",
            "topics.ledger:Ledger.begin_put", "self._store.save_pending(account, call)\n", "pass\n",
            "topics",
        ),
        Mutant(
            "topic-request-not-written-down", "a client forgets its requests when it dies",
            "topics.ledger:Ledger.begin_request", "self._store.save(account)\n", "pass\n", "topics",
        ),
        Mutant(
            "topic-position-not-written-down", "a client forgets what it has got when it dies",
            "topics.ledger:Ledger.received", "self._store.save(account)\n", "pass\n", "topics",
        ),
        Mutant(
            "topic-stale-answer-taken", "an answer to a get counts though the subscription changed",
            "simulations.world.topics.client:TopicsClient._fresh",
            "if now[topic] == asked[topic]\n", "", "topics",
        ),
    )
}  # fmt: skip


@contextmanager
def applied(name: str | None) -> Iterator[Mutant | None]:
    """The product with one bug, for as long as the block lasts; with none for None."""
    if name is None:
        yield None
        return
    if name not in MUTANTS:
        raise BadRequest(f"there is no mutant {name!r}; there are: {', '.join(MUTANTS)}")
    mutant = MUTANTS[name]
    function = _find(mutant.where)
    before = function.__code__
    function.__code__ = _mutated(function, mutant)
    try:
        yield mutant
    finally:
        function.__code__ = before


def _find(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    assert isinstance(found, FunctionType), where
    return found


def _mutated(function: FunctionType, mutant: Mutant) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    old, new = textwrap.dedent(mutant.old), textwrap.dedent(mutant.new)
    if source.count(mutant.old) == 1:
        old, new = mutant.old, mutant.new
    if source.count(old) != 1:
        raise BadRequest(
            f"mutant {mutant.name} does not fit any more: {mutant.where} has {mutant.old!r} "
            f"{source.count(old)} times; adapt it to the product"
        )
    space: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    code = compile(source.replace(old, new), mutant.where, "exec", flags)
    exec(code, function.__globals__, space)
    made = space[function.__name__]
    assert made.__code__.co_freevars == function.__code__.co_freevars, mutant.where
    return made.__code__  # type: ignore[no-any-return]
