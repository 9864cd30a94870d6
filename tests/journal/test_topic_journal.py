"""Journals of topics: rows, recovery, archive and trim, in the same store as channels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.core.policy import Policy
from broker.core.topics import Topic
from broker.core.topics import records as r
from broker.core.topics.snapshot import dump
from broker.errors import JournalCorrupt
from broker.journal.archive import export_channel, verify
from broker.journal.bases import make_early_base
from broker.journal.codec import CHECKSUM_START, decode, encode
from broker.journal.memory import MemoryJournal
from broker.journal.recovery import recover, recover_topic
from broker.journal.sqlite import SqliteJournal
from broker.server.channel_host import ChannelHost
from broker.server.clock import Clock
from tests.core.test_topic import Driven, scene

RECORDS = [
    r.TopicCreated(1, "news", 7, {"backlog_count_max": 5}),
    r.Put(2, "p", "instance", 4, 9, 11, 12345, 0, [b"a", b"", b"\xff"]),
    r.Put(2, "p", "", 4, 9, 11, 12345, [0, 1], [b"a", b"{}"]),
    r.TopicSubscribed(3, "ann", "instance", 1, 12, 9),
    r.TopicUnsubscribed(4, "ann", 2, 12, 9, 0),
    r.Confirmed(5, "ann", 12, 10, 3),
    r.ClientTakenOver(6, "ann", "other"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind)
def test_a_record_is_read_back_as_it_was(record: r.TopicRecord) -> None:
    row = encode("topic:news", 3, record, CHECKSUM_START)
    assert decode(row, CHECKSUM_START) == record


def test_every_kind_of_record_is_covered() -> None:
    assert {record.kind for record in RECORDS} == set(r.TOPIC_RECORD_TYPES)


def test_a_row_with_formats_that_do_not_fit_its_bodies_is_damaged() -> None:
    record = r.Put(2, "p", "", 4, 9, 11, 12345, [0, 1, 2], [b"a", b"b"])
    with pytest.raises(JournalCorrupt, match="3 formats"):
        decode(encode("topic:news", 3, record, CHECKSUM_START), CHECKSUM_START)


def state(topic: Topic) -> Any:
    """All of a topic, as builtin types."""
    return dump(topic, 0, messages=True) | {"upto": 0}


def written(path: Path, driven: Driven) -> None:
    """A store with the topic's journal, beside that of a channel."""
    journal = SqliteJournal(str(path))
    ChannelHost.create("orders", Policy(), journal, Clock(), lambda error: None).close()
    journal.append("topic:news", 1, driven.records)
    journal.close()


def test_a_topic_is_recovered_beside_a_channel(tmp_path: Path) -> None:
    driven = scene()
    written(tmp_path / "store.db", driven)
    journal = SqliteJournal(str(tmp_path / "store.db"))
    topic, sequence = recover_topic(journal, "topic:news")
    assert sequence == len(driven.records) and state(topic) == state(driven.topic)
    assert recover(journal, "orders")[0].name == "orders"
    journal.close()


def test_a_topics_journal_must_begin_with_its_creation() -> None:
    journal = MemoryJournal()
    journal.append("topic:news", 1, scene().records[1:])
    journal.sync()
    with pytest.raises(JournalCorrupt, match="not the creation"):
        recover_topic(journal, "topic:news")


def test_records_that_do_not_follow_are_refused() -> None:
    records = scene().records
    del records[4]
    journal = MemoryJournal()
    journal.append("topic:news", 1, records)
    journal.sync()
    with pytest.raises(JournalCorrupt, match="does not follow"):
        recover_topic(journal, "topic:news")


def test_a_base_whose_state_is_ahead_of_the_journals_end_is_refused() -> None:
    """As when a store was put back to an older copy, with the base of a newer one."""
    driven = scene()
    journal = MemoryJournal()
    journal.append("topic:news", 1, driven.records)
    journal.sync()
    upto = len(driven.records) + 5
    checksum = journal.checksum("topic:news", 2)
    journal.trim("topic:news", make_early_base(driven.topic, 2, checksum, upto))
    with pytest.raises(JournalCorrupt, match="its base speaks of"):
        recover_topic(journal, "topic:news")


@pytest.mark.parametrize("trimmed_before", [False, True])
def test_what_nobody_is_owed_is_archived_and_trimmed(
    tmp_path: Path, trimmed_before: bool
) -> None:
    """By ``fairlead export``, also after the broker has trimmed by itself."""
    pytest.importorskip("pyarrow")
    driven = scene()
    path, archive = tmp_path / "store.db", tmp_path / "archive"
    written(path, driven)
    if trimmed_before:
        export_channel(path, archive, "topic:news", everything=True)
        journal = SqliteJournal(str(path))
        base = make_early_base(
            driven.topic, 3, journal.checksum("topic:news", 3), len(driven.records)
        )
        assert journal.trim("topic:news", base) == 3
        journal.close()
    done = export_channel(path, archive, "topic:news", trim=True)
    first = driven.topic.log.first
    put = next(
        index
        for index, record in enumerate(driven.records, 1)
        if isinstance(record, r.Put) and record.position + len(record.bodies) > first
    )
    assert done.base == done.settled == put - 1
    assert done.oldest is not None and done.oldest.record == put
    assert done.oldest.subscription == "bob", "who is furthest behind"
    assert verify(archive, "topic:news").sequence >= put - 1
    journal = SqliteJournal(str(path))
    topic, sequence = recover_topic(journal, "topic:news")
    assert sequence == len(driven.records) and state(topic) == state(driven.topic)
    assert journal.base("topic:news").sequence == put - 1
    journal.close()
