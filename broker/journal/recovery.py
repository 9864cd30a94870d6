"""Recovery: fold a channel's journal into a Channel. It decides nothing and writes nothing."""

from __future__ import annotations

from broker.core.channel import Channel
from broker.core.records import ChannelCreated
from broker.errors import JournalCorrupt
from broker.journal import Journal


def recover(journal: Journal, name: str) -> tuple[Channel, int]:
    """The channel as its journal tells it, and the last sequence. Raises JournalCorrupt."""
    channel = Channel(name)
    sequence = 0
    for sequence, record in journal.read(name):
        if sequence == 1 and not isinstance(record, ChannelCreated):
            raise JournalCorrupt(
                f"journal of channel {name} is refused: sequence 1 is a {record.kind}, not the "
                "creation of the channel",
                channel=name,
                sequence=1,
            )
        try:
            channel.apply(record)
        except (AssertionError, KeyError, IndexError, AttributeError, ValueError) as error:
            raise JournalCorrupt(
                f"journal of channel {name} is refused: the {record.kind} at sequence {sequence} "
                f"does not follow from what came before it ({type(error).__name__}: {error}); "
                "restore the store from a copy",
                channel=name,
                sequence=sequence,
            ) from error
    return channel, sequence
