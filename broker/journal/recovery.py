"""Recovery: fold a channel's journal into a Channel. It decides nothing and writes nothing."""

from __future__ import annotations

from broker.core.channel import Channel
from broker.core.records import ChannelCreated, Record
from broker.errors import JournalCorrupt, JournalGap
from broker.journal import Journal
from broker.journal.bases import start_of


def recover(journal: Journal, name: str) -> tuple[Channel, int]:
    """The channel as its journal tells it, and the last sequence. Raises JournalCorrupt.

    A trimmed channel starts from the state of its base. A trim may go on meanwhile: when it takes
    away what was about to be read, the fold starts over from the newer base.
    """
    while True:
        base = journal.base(name)
        channel, sequence = start_of(name, base), base.sequence
        try:
            for sequence, record in journal.read(name, base.sequence + 1):
                fold(channel, sequence, record)
        except JournalGap as error:
            # A base only moves forward, so this ends.
            if error.details.get("archived", 0) <= base.sequence:
                raise
        else:
            return channel, sequence


def fold(channel: Channel, sequence: int, record: Record) -> None:
    """Apply one record that was read back; raises JournalCorrupt when it does not follow."""
    if sequence == 1 and not isinstance(record, ChannelCreated):
        raise JournalCorrupt(
            f"journal of channel {channel.name} is refused: sequence 1 is a {record.kind}, not the "
            "creation of the channel",
            channel=channel.name,
            sequence=1,
        )
    try:
        channel.apply(record)
    except (AssertionError, KeyError, IndexError, AttributeError, ValueError) as error:
        raise JournalCorrupt(
            f"journal of channel {channel.name} is refused: the {record.kind} at sequence "
            f"{sequence} does not follow from what came before it ({type(error).__name__}: "
            f"{error}); restore the store from a copy",
            channel=channel.name,
            sequence=sequence,
        ) from error
