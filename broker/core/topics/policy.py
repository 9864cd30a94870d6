"""TopicPolicy: the limits of one topic, with units in the names."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Mapping

from broker.errors import BadRequest


@dataclass(frozen=True, slots=True)
class TopicPolicy:
    """What a topic may hold, and what a call may carry.

    >>> TopicPolicy(backlog_count_max=1000).backlog_count_max
    1000
    """

    backlog_count_max: int = 1_000_000
    backlog_bytes_max: int = 1 << 30
    subscriber_count_max: int = 100_000
    client_count_max: int = 1_000_000
    message_bytes_max: int = 1 << 20
    batch_count_max: int = 10_000
    batch_bytes_max: int = 8 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or not 0 < value < 1 << 62:
                raise BadRequest(
                    f"{field.name}={value!r:.60} is refused: it must be a whole number above 0"
                )

    def to_dict(self) -> dict[str, int]:
        """As builtin types, for the wire and for the journal."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TopicPolicy:
        """The inverse; an unknown limit is refused, a missing one has its default."""
        unknown = sorted(set(values) - {field.name for field in fields(cls)}, key=str)
        if unknown:
            known = ", ".join(field.name for field in fields(cls))
            raise BadRequest(f"a topic has no limit {unknown[0]!r:.60}; it has {known}")
        return cls(**values)
