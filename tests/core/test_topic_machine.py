"""Random lives of a topic against a model that is too simple to be wrong: a list per client."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.core.topics import Topic
from broker.core.topics.snapshot import dump, load, restore
from broker.errors import NumberReused, SequenceGap
from tests.core.test_topic import Driven, state

CLIENTS = st.sampled_from(["ann", "bob", "eve"])


class TopicLife(RuleBasedStateMachine):
    """The model: what each subscriber is still owed, and the calls of each publisher."""

    def __init__(self) -> None:
        super().__init__()
        self.driven = Driven()
        self.owed: dict[str, list[bytes]] = {}
        self.calls: dict[str, list[tuple[int, list[bytes]]]] = {}
        self.serial = 0

    @rule(client=CLIENTS)
    def subscribe(self, client: str) -> None:
        new = self.driven.subscribe(client)["new"]
        assert new == (client not in self.owed)
        self.owed.setdefault(client, [])

    @rule(client=CLIENTS)
    def unsubscribe(self, client: str) -> None:
        assert self.driven.unsubscribe(client)["was"] == (client in self.owed)
        self.owed.pop(client, None)

    @rule(client=CLIENTS, count=st.integers(1, 4))
    def put(self, client: str, count: int) -> None:
        bodies = [b"%d" % (self.serial + index) for index in range(count)]
        self.serial += count
        calls = self.calls.setdefault(client, [])
        number = calls[-1][0] + len(calls[-1][1]) if calls else 1
        assert not self.driven.put(client, *bodies, number=number)["again"]
        calls.append((number, bodies))
        for line in self.owed.values():
            line += bodies

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def repeat_the_last_put(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.calls)))
        number, bodies = self.calls[client][-1]
        assert self.driven.put(client, *bodies, number=number)["again"]

    @precondition(lambda self: any(len(calls) > 1 for calls in self.calls.values()))
    @rule(data=st.data())
    def an_older_put_is_refused(self, data: st.DataObject) -> None:
        several = [client for client, calls in self.calls.items() if len(calls) > 1]
        client = data.draw(st.sampled_from(sorted(several)))
        number, bodies = data.draw(st.sampled_from(self.calls[client][:-1]))
        try:
            self.driven.put(client, *bodies, number=number)
        except NumberReused:
            return
        raise AssertionError("it was taken")

    @rule(client=CLIENTS, ahead=st.integers(1, 5))
    def a_number_that_skips_is_refused(self, client: str, ahead: int) -> None:
        calls = self.calls.get(client)
        last = calls[-1][0] + len(calls[-1][1]) - 1 if calls else 0
        try:
            self.driven.put(client, b"x", number=last + 1 + ahead)
        except SequenceGap as error:
            assert error.details["last"] == last
            return
        raise AssertionError("it was taken")

    @precondition(lambda self: self.owed)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.owed)))
        count = data.draw(st.integers(0, len(self.owed[client])))
        place = self.driven.topic.places[client]
        self.driven.confirm(client, place.confirmed + count, place.ticket)
        del self.owed[client][:count]

    @rule()
    def restart(self) -> None:
        """From the journal, or from a base as the broker makes it."""
        topic, records = self.driven.topic, self.driven.records
        replayed = Topic("news")
        for record in records:
            replayed.apply(record)
        assert state(replayed) == state(topic)
        made = load("news", dump(topic, len(records), messages=False))
        for record in records:
            position = getattr(record, "position", 0)
            if position + len(getattr(record, "bodies", ())) > made.log.first:
                restore(made, record)
        assert state(made) == state(topic)
        self.driven.topic = made
        made.upto = made.expected_last = 0

    @invariant()
    def everybody_is_owed_what_the_model_says(self) -> None:
        topic = self.driven.topic
        for client, line in self.owed.items():
            assert self.driven.owed(client) == line
        longest = max(map(len, self.owed.values()), default=0)
        assert len(topic.log) == longest, "one copy, of what the slowest one is owed"
        assert topic.log.size == sum(
            len(body) for line in self.owed.values() if len(line) == longest for body in line
        ) // max(1, sum(len(line) == longest for line in self.owed.values()))


TestTopicLife = TopicLife.TestCase
TestTopicLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
