"""Recovery: fold a journal into the Channel, or the Topic, that it tells of.

It decides nothing and writes nothing.
"""

from __future__ import annotations

from typing import Any, Callable

from broker.core.channel import Channel
from broker.core.records import ChannelCreated
from broker.core.topics import Topic
from broker.core.topics.records import TopicCreated
from broker.core.topics.snapshot import restore
from broker.errors import JournalCorrupt, JournalGap
from broker.journal import Journal
from broker.journal.bases import machine_of

Note = Callable[[int, Any], None]


def recover(journal: Journal, name: str) -> tuple[Channel, int]:
    """The channel as its journal tells it, and the last sequence. Raises JournalCorrupt."""
    channel, sequence = _recover(journal, name, lambda sequence, record: None)
    assert isinstance(channel, Channel)
    return channel, sequence


def recover_topic(
    journal: Journal, name: str, note: Note = lambda sequence, record: None
) -> tuple[Topic, int]:
    """The topic of a journal, and the last sequence; ``note`` is told of every record."""
    topic, sequence = _recover(journal, name, note)
    assert isinstance(topic, Topic)
    if topic.upto > sequence or (topic.upto and topic.log.last < topic.expected_last):
        raise JournalCorrupt(
            f"journal of topic {topic.name} is refused: its base speaks of record {topic.upto} and "
            f"message {topic.expected_last}, but it ends at record {sequence} and message "
            f"{topic.log.last}; restore the store from a copy",
            channel=name, sequence=sequence,
        )  # fmt: skip
    return topic, sequence


def _recover(journal: Journal, name: str, note: Note) -> tuple[Channel | Topic, int]:
    """Fold what is there.

    A trimmed channel starts from the state of its base. A trim may go on meanwhile: when it takes
    away what was about to be read, the fold starts over from the newer base.
    """
    while True:
        base = journal.base(name)
        channel, sequence = machine_of(name, base), base.sequence
        try:
            for sequence, record in journal.read(name, base.sequence + 1):
                fold(channel, sequence, record)
                note(sequence, record)
        except JournalGap as error:
            # A base only moves forward, so this ends.
            if error.details.get("archived", 0) <= base.sequence:
                raise
        else:
            return channel, sequence


def fold(channel: Channel | Topic, sequence: int, record: Any) -> None:
    """Apply one record that was read back; raises JournalCorrupt when it does not follow."""
    created = TopicCreated if isinstance(channel, Topic) else ChannelCreated
    if sequence == 1 and not isinstance(record, created):
        raise JournalCorrupt(
            f"journal of channel {channel.name} is refused: sequence 1 is a {record.kind}, not the "
            "creation of the channel",
            channel=channel.name,
            sequence=1,
        )
    try:
        if isinstance(channel, Topic) and sequence <= channel.upto:
            restore(channel, record)
        else:
            channel.apply(record)
    except (AssertionError, KeyError, IndexError, AttributeError, ValueError) as error:
        raise JournalCorrupt(
            f"journal of channel {channel.name} is refused: the {record.kind} at sequence "
            f"{sequence} does not follow from what came before it ({type(error).__name__}: "
            f"{error}); restore the store from a copy",
            channel=channel.name,
            sequence=sequence,
        ) from error
