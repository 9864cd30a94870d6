"""The question of an audit, what was found of each channel and topic, and the verdict that follows.

Plain data: no frame and no session here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker import __version__
from broker.core.anomalies import INVALID, UNKNOWN, VALID
from spark import scan, topic_frame


@dataclass(frozen=True)
class Question:
    """What is to be audited."""

    place: scan.Place
    channel: str | None = None
    histories: str | None = None
    drained: bool = False
    """The run is over: what is neither settled nor parked by now counts as unseen."""
    more_columns: tuple[str, ...] = ()
    """Further columns of the records, for who draws them afterwards."""


@dataclass
class Channel:
    """What was found of one channel, or of one topic: its name then has the prefix of a topic."""

    name: str
    expected: scan.Extent
    known_upto: int
    records: int = 0
    first: int = 0
    last: int = 0
    messages: int = 0
    partitions: int = 0
    pending: int = 0
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    fault_at: int | None = None
    fault: str | None = None
    born: int | None = None
    """Of a topic: tells it from an earlier one of that name."""
    violations: int = 0
    compared: dict[str, int] = field(default_factory=dict)

    @property
    def is_topic(self) -> bool:
        """It is a topic."""
        return topic_frame.is_topic(self.name)

    @property
    def title(self) -> str:
        """What it is called in a sentence."""
        if self.is_topic:
            return f"topic {self.name.removeprefix(topic_frame.PREFIX)!r}"
        return f"channel {self.name!r}"

    @property
    def arrived(self) -> int:
        """How much there is that reached somebody: without it nothing is proved."""
        return self.compared.get("Confirmed" if self.is_topic else "Delivered", 0)

    @property
    def is_trimmed(self) -> bool:
        """Records at its beginning are elsewhere."""
        return self.expected.first > 1

    @property
    def judged_upto(self) -> int:
        """The last record that is judged: the one before the first fault."""
        return self.expected.last if self.fault_at is None else self.fault_at - 1

    @property
    def verdict(self) -> str:
        """Of this channel alone."""
        if self.violations:
            return INVALID
        return VALID if self.arrived and not self.is_trimmed else UNKNOWN


@dataclass
class Verdict:
    """The answer: valid, invalid or unknown, and how much was compared."""

    question: Question
    channels: list[Channel]
    reasons: list[str]
    checks: list[dict[str, Any]]
    histories: dict[str, int]
    seconds: float

    @property
    def verdict(self) -> str:
        """Invalid as soon as one thing is wrong; valid only if something was compared."""
        if any(channel.violations for channel in self.channels):
            return INVALID
        judged = [channel for channel in self.channels if channel.verdict == VALID]
        return VALID if judged and not self.reasons else UNKNOWN

    def to_dict(self) -> dict[str, Any]:
        """Everything, in values that JSON can carry."""
        place = self.question.place
        return {
            "verdict": self.verdict, "reasons": self.reasons, "store": place.store,
            "archive": place.archive, "histories": self.question.histories,
            "drained": self.question.drained,
            "records": sum(item.records for item in self.channels),
            "messages": sum(item.messages for item in self.channels),
            "partitions": sum(item.partitions for item in self.channels),
            "channels": [_channel_dict(item) for item in self.channels],
            "histories_compared": self.histories, "checks": self.checks,
            "seconds": round(self.seconds, 2), "version": __version__,
        }  # fmt: skip


def _channel_dict(channel: Channel) -> dict[str, Any]:
    return {
        "channel": channel.name, "verdict": channel.verdict, "upto": channel.judged_upto,
        "records": channel.records, "messages": channel.messages,
        "partitions": channel.partitions, "pending": channel.pending,
        "violations": channel.violations, "fault": channel.fault,
        "started_at_ms": channel.started_at_ms, "ended_at_ms": channel.ended_at_ms,
    }  # fmt: skip


_TRIMMED = "were trimmed; give the archive they are in (--archive)"
_RELEASED = (
    "were released, since everybody had their messages; what is left was judged, and of the rest "
    "nothing is proved (unless --archive has it)"
)


def reasons_against(channels: dict[str, Channel], question: Question) -> list[str]:
    """Why the verdict cannot be valid, apart from anomalies."""
    reasons: list[str] = []
    if not channels:
        reasons.append(
            "there is no channel"
            + (f" {question.channel!r}" if question.channel else "")
            + " in it: nothing was compared"
        )
    for channel in channels.values():
        if channel.is_trimmed:
            reasons.append(
                f"{channel.title} begins at record {channel.expected.first}: the ones before it "
                + (_RELEASED if channel.is_topic else _TRIMMED)
            )
        elif not channel.violations and not channel.arrived:
            done = "confirmed" if channel.is_topic else "delivered"
            reasons.append(f"nothing of {channel.title} was {done}: nothing to compare")
    return reasons
