"""What every journal promises, whatever it is kept in. One suite, run over all of them."""

from __future__ import annotations

import threading

import pytest
from journal_samples import Home, contents, samples

from broker.core.records import Seen
from broker.errors import Deposed, JournalError

WAIT_S = 20.0


def test_a_new_journal_is_empty(home: Home) -> None:
    journal = home.open()
    assert journal.channels() == []
    assert journal.durable("orders") == 0
    assert list(journal.read("orders")) == []


def test_append_returns_the_last_sequence_and_read_gives_the_records_back_in_order(
    home: Home,
) -> None:
    journal = home.open()
    assert journal.append("orders", 1, samples("orders", 1, 3)) == 3
    assert journal.append("orders", 4, samples("orders", 4, 200)) == 200
    assert journal.wait_durable("orders", 200, WAIT_S)
    assert list(journal.read("orders")) == list(enumerate(samples("orders", 1, 200), 1))


def test_read_from_a_later_sequence_starts_there(home: Home) -> None:
    journal = home.open()
    journal.append("orders", 1, samples("orders", 1, 9))
    assert journal.wait_durable("orders", 9, WAIT_S)
    assert list(journal.read("orders", 4)) == list(enumerate(samples("orders", 4, 9), 4))
    assert list(journal.read("orders", 9)) == list(enumerate(samples("orders", 9, 9), 9))
    assert list(journal.read("orders", 10)) == []
    with pytest.raises(JournalError, match="start at 1"):
        list(journal.read("orders", 0))


def test_a_group_larger_than_any_statement_is_written_whole(home: Home) -> None:
    journal = home.open()
    assert journal.append("orders", 1, samples("orders", 1, 700, body_bytes=5)) == 700
    assert journal.wait_durable("orders", 700, WAIT_S)
    assert list(journal.read("orders")) == list(enumerate(samples("orders", 1, 700, 5), 1))


def test_an_append_below_the_next_sequence_learns_that_somebody_else_wrote(home: Home) -> None:
    journal = home.open()
    journal.append("orders", 1, samples("orders", 1, 3))
    with pytest.raises(Deposed, match="'orders'.* 3 exists already, the next one is 4"):
        journal.append("orders", 3, samples("orders", 3, 3))
    assert journal.append("orders", 4, samples("orders", 4, 4)) == 4, "the refusal changed nothing"


def test_an_append_beyond_the_next_sequence_is_refused_as_a_gap(home: Home) -> None:
    journal = home.open()
    with pytest.raises(JournalError, match="would leave a gap, the next journal record is 1"):
        journal.append("orders", 2, samples("orders", 2, 2))
    assert journal.append("orders", 1, samples("orders", 1, 1)) == 1


def test_an_empty_append_writes_nothing(home: Home) -> None:
    journal = home.open()
    assert journal.append("orders", 1, []) == 0
    assert journal.channels() == []


def test_a_record_that_need_not_survive_is_refused(home: Home) -> None:
    journal = home.open()
    with pytest.raises(JournalError, match="Seen is never journaled"):
        journal.append("orders", 1, [*samples("orders", 1, 1), Seen(1, "default", "worker-1")])
    assert journal.append("orders", 1, samples("orders", 1, 1)) == 1


def test_channels_are_independent_and_listed_in_order_of_creation(home: Home) -> None:
    journal = home.open()
    for channel in ("zebra", "ant", "mole"):
        journal.append(channel, 1, samples(channel, 1, 2))
    journal.append("ant", 3, samples("ant", 3, 5))
    for channel, last in (("zebra", 2), ("ant", 5), ("mole", 2)):
        assert journal.wait_durable(channel, last, WAIT_S)
        assert list(journal.read(channel)) == list(enumerate(samples(channel, 1, last), 1))
    assert journal.channels() == ["zebra", "ant", "mole"]
    assert home.open().channels() == ["zebra", "ant", "mole"]


def test_durable_rises_to_what_was_appended_and_waiting_for_the_past_returns_at_once(
    home: Home,
) -> None:
    journal = home.open()
    journal.append("orders", 1, samples("orders", 1, 5))
    assert journal.wait_durable("orders", 5, WAIT_S)
    assert journal.durable("orders") == 5
    assert journal.wait_durable("orders", 1, 0.0)


def test_waiting_for_what_was_never_appended_ends_with_its_time(home: Home) -> None:
    journal = home.open()
    journal.append("orders", 1, samples("orders", 1, 2))
    assert journal.wait_durable("orders", 2, WAIT_S)
    assert journal.wait_durable("orders", 3, 0.01) is False
    assert journal.wait_durable("unknown", 1, 0.01) is False


def test_a_reopened_journal_has_everything_and_goes_on_where_it_ended(home: Home) -> None:
    journal = home.open()
    journal.append("orders", 1, samples("orders", 1, 6))
    journal.append("billing", 1, samples("billing", 1, 2))
    journal = home.open()  # closing commits what was queued
    assert journal.durable("orders") == 6
    with pytest.raises(Deposed):
        journal.append("orders", 6, samples("orders", 6, 6))
    journal.append("orders", 7, samples("orders", 7, 9))
    journal = home.open()
    assert contents(journal) == {
        "orders": list(enumerate(samples("orders", 1, 9), 1)),
        "billing": list(enumerate(samples("billing", 1, 2), 1)),
    }


def test_a_dropped_channel_is_gone_for_good_and_can_be_made_anew(home: Home) -> None:
    journal = home.open()
    journal.append("orders", 1, samples("orders", 1, 6))
    journal.append("billing", 1, samples("billing", 1, 2))
    journal.drop("orders")
    journal.drop("unknown")
    assert journal.channels() == ["billing"]
    assert list(journal.read("orders")) == [] and journal.durable("orders") == 0
    journal = home.open()
    assert journal.channels() == ["billing"]
    assert journal.append("orders", 1, samples("orders", 1, 1)) == 1
    assert journal.wait_durable("orders", 1, WAIT_S)
    assert contents(home.open())["orders"] == list(enumerate(samples("orders", 1, 1), 1))


def test_a_closed_journal_takes_nothing_and_closing_twice_is_harmless(home: Home) -> None:
    journal = home.open()
    journal.append("orders", 1, samples("orders", 1, 1))
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.append("orders", 2, samples("orders", 2, 2))


def test_the_callers_list_may_change_after_the_append(home: Home) -> None:
    journal = home.open()
    records = samples("orders", 1, 4)
    journal.append("orders", 1, records)
    records.clear()
    assert journal.wait_durable("orders", 4, WAIT_S)
    assert len(list(journal.read("orders"))) == 4


@pytest.mark.parametrize("threads", [8])
def test_many_threads_with_a_channel_each_all_get_what_they_waited_for(
    home: Home, threads: int
) -> None:
    if home.store == "memory":
        pytest.skip("the journal in memory is for one thread")
    journal = home.open()
    wrong: list[str] = []

    def work(channel: str) -> None:
        for sequence in range(1, 101):
            journal.append(channel, sequence, samples(channel, sequence, sequence))
            if not journal.wait_durable(channel, sequence, WAIT_S):
                wrong.append(f"{channel} {sequence}")

    workers = [threading.Thread(target=work, args=(f"channel-{i}",)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    found = contents(home.open())
    assert sorted(found) == sorted(f"channel-{i}" for i in range(threads))
    for channel, records in found.items():
        assert records == list(enumerate(samples(channel, 1, 100), 1))
