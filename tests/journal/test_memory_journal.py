"""The journal in memory: the faults that a script can put into it."""

from __future__ import annotations

import pytest
from journal_samples import contents, samples

from broker.core import records as r
from broker.core.channel import Channel
from broker.core.policy import Policy
from broker.errors import Deposed, JournalError
from broker.journal.memory import MemoryJournal


def test_without_auto_sync_nothing_is_durable_until_the_script_says_so() -> None:
    journal = MemoryJournal(auto_sync=False)
    journal.append("orders", 1, samples("orders", 1, 3))
    assert journal.durable("orders") == 0
    assert not journal.wait_durable("orders", 3, 1.0)
    assert contents(journal) == {}, "what is not durable is not read"
    journal.sync()
    assert journal.durable("orders") == 3
    assert contents(journal) == {"orders": list(enumerate(samples("orders", 1, 3), 1))}


def test_a_crash_loses_exactly_what_was_not_synced() -> None:
    journal = MemoryJournal(auto_sync=False)
    journal.append("orders", 1, samples("orders", 1, 3))
    journal.sync()
    journal.append("orders", 4, samples("orders", 4, 6))
    journal.append("billing", 1, samples("billing", 1, 1))
    journal.lose_unsynced()
    assert contents(journal) == {"orders": list(enumerate(samples("orders", 1, 3), 1))}
    assert journal.append("orders", 4, samples("orders", 4, 4)) == 4


def test_with_flush_a_crash_can_lose_what_was_answered() -> None:
    journal = MemoryJournal("flush", auto_sync=False)
    journal.append("orders", 1, samples("orders", 1, 3))
    assert journal.wait_durable("orders", 3, 1.0)
    journal.lose_unsynced()
    assert journal.durable("orders") == 0


def test_a_failed_sync_is_the_end_until_the_journal_is_opened_anew() -> None:
    journal = MemoryJournal(auto_sync=False)
    journal.append("orders", 1, samples("orders", 1, 2))
    journal.sync()
    journal.append("orders", 3, samples("orders", 3, 3))
    journal.fail_next(OSError(5, "Input/output error"))
    with pytest.raises(JournalError, match="Input/output error"):
        journal.sync()
    for call in (
        lambda: journal.append("billing", 1, samples("billing", 1, 1)),
        lambda: journal.wait_durable("orders", 3, 1.0),
        journal.sync,
    ):
        with pytest.raises(JournalError, match="Input/output error"):
            call()
    assert journal.wait_durable("orders", 2, 1.0), "what was durable before still is"
    journal.lose_unsynced()
    assert contents(journal) == {"orders": list(enumerate(samples("orders", 1, 2), 1))}


def test_with_auto_sync_the_failure_is_told_to_the_one_who_waits() -> None:
    journal = MemoryJournal()
    journal.fail_next(Deposed("channel 'orders' is served by another broker"))
    journal.append("orders", 1, samples("orders", 1, 1))
    with pytest.raises(Deposed, match="another broker"):
        journal.wait_durable("orders", 1, 1.0)


def test_a_sync_covers_what_was_written_when_it_began() -> None:
    journal = MemoryJournal(auto_sync=False)
    journal.append("orders", 1, Channel.birth("orders", Policy(), 1))
    began = journal.written()
    journal.append("orders", 3, [r.BrokerStarted(1, "boot")])
    journal.sync(began)
    assert journal.durable("orders") == 2
    journal.sync()
    assert journal.durable("orders") == 3


def test_a_crash_may_keep_some_of_what_was_not_synced() -> None:
    journal = MemoryJournal(auto_sync=False)
    journal.append("orders", 1, Channel.birth("orders", Policy(), 1))
    journal.sync()
    for number in range(3):
        journal.append("orders", 3 + number, [r.BrokerStarted(1, f"boot-{number}")])
    journal.lose_unsynced(kept=2)
    assert journal.durable("orders") == journal.written()["orders"] == 4
    assert [record.kind for _, record in journal.read("orders")][-1] == "BrokerStarted"
