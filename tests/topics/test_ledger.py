"""The ledger alone: a client that dies before or after any step puts once and gets once.

The other side is the topic's real state machine. A step is a change that is written down, a request
that leaves, or an answer that comes: the client dies at each of them in turn.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Callable

import pytest

from broker.core.topics import Topic, TopicPolicy
from broker.core.topics import commands as c
from broker.core.topics.log import BODY
from broker.errors import PutsLost, SequenceGap
from broker.wire import call_checksum
from topics.ledger import KEPT_CALLS, Account, Ledger, PutCall

WANTED = [b"1", b"2", b"3", b"4"]


class Death(Exception):
    """The client's process ends here."""


class Steps:
    """Counts what happens, and ends the client at one of it."""

    def __init__(self, fatal: int = 0) -> None:
        self.count = 0
        self._fatal = fatal

    def __call__(self) -> None:
        self.count += 1
        if self.count == self._fatal:
            raise Death


class Disk:
    """A Store in memory; what is in ``accounts`` outlives the client."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.step: Callable[[], None] = lambda: None

    def _write(self, account: Account, pending: PutCall | None) -> None:
        self.step()
        written = deepcopy(account)
        written.pending = pending
        self.accounts[account.topic] = written
        self.step()

    def save(self, account: Account) -> None:
        self._write(account, account.pending)

    def save_pending(self, account: Account, call: PutCall) -> None:
        self._write(account, call)

    def save_answered(self, account: Account) -> None:
        self._write(account, None)


class Far:
    """The broker: one topic, and a request that can end its client on either way."""

    def __init__(self) -> None:
        self.topic = Topic("news")
        self.step: Callable[[], None] = lambda: None
        self._now_ms = 0
        self._take_in(Topic.birth("news", TopicPolicy(), 1, 0))

    def ask(self, command: c.TopicCommand) -> dict[str, Any]:
        self.step()
        self._now_ms += 1
        if isinstance(command, c.PutMessages):
            command.stamp = self.topic.stamp + 1
        if isinstance(command, c.Subscribe):
            command.ticket = self.topic.stamp + 1
        decision = self.topic.decide(command, self._now_ms)
        self._take_in(decision.records)
        self.step()
        return decision.reply

    def _take_in(self, records: list[Any]) -> None:
        for record in records:
            self.topic.apply(record)

    def put(self, call: PutCall, instance: str = "i") -> dict[str, Any]:
        crc = call_checksum(call.formats, call.bodies)
        size = sum(map(len, call.bodies))
        return self.ask(
            c.PutMessages("ann", instance, call.number, call.formats, list(call.bodies), size, crc)
        )


class Life:
    """One life of the client: a new ledger over what is on the disk."""

    def __init__(self, disk: Disk, far: Far, used: list[bytes]) -> None:
        self.ledger = Ledger(disk, deepcopy(disk.accounts))
        self.far, self.used = far, used

    def live(self, two_steps: bool) -> None:
        """Do what is left to do."""
        account = self.ledger.account("news")
        if account.pending is not None:
            self.ledger.end_put("news", self.far.put(account.pending))
        request = self.ledger.begin_request("news")
        reply = self.far.ask(c.Subscribe("ann", "i", request))
        self.ledger.end_subscribe("news", reply)
        while account.number < len(WANTED):
            call = self.ledger.begin_put("news", 0, [WANTED[account.number]])
            self.ledger.end_put("news", self.far.put(call))
            self._get(two_steps)
        self._get(two_steps)

    def _get(self, two_steps: bool) -> None:
        ((ticket, received),) = self.ledger.asked(["news"]).values()
        self.far.ask(c.Confirm("ann", "i", ticket, received))
        for position, entry in enumerate(self.far.topic.log.after(received, 9, 99), received + 1):
            if two_steps:
                self.used.append(entry[BODY])
                self.ledger.received("news", ticket, position)
            else:
                self.ledger.received("news", ticket, position)
                self.used.append(entry[BODY])


def lives(fatal: int, two_steps: bool) -> tuple[Far, list[bytes], int]:
    """A life that ends at a step, and the one after it."""
    disk, far, used = Disk(), Far(), list[bytes]()
    steps = disk.step = far.step = Steps(fatal)
    try:
        Life(disk, far, used).live(two_steps)
    except Death:
        disk.step = far.step = lambda: None
        Life(disk, far, used).live(two_steps)
    return far, used, steps.count


STEPS = lives(0, False)[2]


def test_there_are_many_steps_to_die_at() -> None:
    assert STEPS > 40


@pytest.mark.parametrize("fatal", range(1, STEPS + 1))
def test_a_client_that_dies_at_any_step_puts_everything_once_and_gets_nothing_twice(
    fatal: int,
) -> None:
    far, used, _ = lives(fatal, two_steps=False)
    assert far.topic.put_total == len(WANTED)
    # Only what was written down as received and not handed out before the death is missing.
    assert len(used) >= len(WANTED) - 1
    assert used == sorted(set(used))


@pytest.mark.parametrize("fatal", range(1, STEPS + 1))
def test_in_two_steps_nothing_is_missing_and_only_the_unconfirmed_comes_again(fatal: int) -> None:
    far, used, _ = lives(fatal, two_steps=True)
    assert far.topic.put_total == len(WANTED)
    assert sorted(set(used)) == WANTED
    assert used == sorted(used) and len(used) <= len(WANTED) + 1


def gap(last: int, born: int = 1) -> SequenceGap:
    return SequenceGap("a gap", last=last, expected=last + 1, born=born)


def answered(ledger: Ledger, count: int) -> None:
    for _ in range(count):
        call = ledger.begin_put("news", 0, [b"x"])
        ledger.end_put("news", {"number": call.last, "born": 1})


def test_what_the_broker_has_lost_is_sent_again_before_what_is_pending() -> None:
    ledger = Ledger(Disk(), {})
    answered(ledger, 4)
    pending = ledger.begin_put("news", 0, [b"y"])
    assert [call.number for call in ledger.after_gap("news", gap(last=2))] == [3, 4, 5]
    assert ledger.after_gap("news", gap(last=2))[-1] is pending


def test_what_is_not_kept_any_more_is_named_as_lost() -> None:
    ledger = Ledger(Disk(), {})
    answered(ledger, KEPT_CALLS + 5)
    ledger.begin_put("news", 0, [b"y"])
    with pytest.raises(PutsLost, match="from 6 on"):
        ledger.after_gap("news", gap(last=3))


def test_in_a_topic_that_was_made_anew_the_numbers_start_anew() -> None:
    disk = Disk()
    ledger = Ledger(disk, {})
    answered(ledger, 4)
    ledger.begin_put("news", 0, [b"y"])
    assert ledger.after_gap("news", gap(last=0, born=9)) == [PutCall(1, 0, [b"y"])]
    written = disk.accounts["news"]
    assert (written.born, written.number, written.kept) == (9, 0, [])
    assert written.pending == PutCall(1, 0, [b"y"])


def test_the_answer_of_an_older_subscription_does_not_count() -> None:
    ledger = Ledger(Disk(), {})
    ledger.end_subscribe("news", {"ticket": 5, "position": 10, "request": 1})
    assert ledger.received("news", 5, 12)
    assert not ledger.received("news", 5, 11)
    assert not ledger.received("news", 4, 20)
    assert ledger.asked(["news"]) == {"news": [5, 12]}
