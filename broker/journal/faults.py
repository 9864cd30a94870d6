"""The wording of what can be wrong with a journal, the same for every store. Nothing else."""

from __future__ import annotations

from typing import Any

from broker.errors import Deposed, JournalCorrupt, JournalError, JournalGap


def corrupt(channel: Any, sequence: Any, reason: str) -> JournalCorrupt:
    """A record is there, but it is not what was written."""
    return JournalCorrupt(
        f"channel {channel!r}: journal record {sequence} is damaged: {reason}",
        channel=channel, sequence=sequence, reason=reason,
    )  # fmt: skip


def gap(channel: str, sequence: int, reason: str) -> JournalGap:
    """A record is not there."""
    return JournalGap(
        f"channel {channel!r}: journal record {sequence} is missing: {reason}",
        channel=channel, sequence=sequence, reason=reason,
    )  # fmt: skip


def mismatch(channel: str, expected: int, following: int) -> JournalError:
    """An append expects to write another sequence than the one that follows."""
    if expected < following:
        return Deposed(
            f"channel {channel!r}: journal record {expected} exists already, the next one is "
            f"{following}: somebody else writes to this channel. Stop serving it",
            channel=channel, expected=expected, next=following,
        )  # fmt: skip
    return JournalError(
        f"channel {channel!r}: an append at {expected} would leave a gap, the next journal record "
        f"is {following}. Nothing was written",
        channel=channel, expected=expected, next=following,
    )  # fmt: skip
