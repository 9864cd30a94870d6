"""Every limit and every time of a channel, with units in the names. Nothing else may hold a limit.

A policy is fixed when the channel is created and written into the channel's first record, so that
a replay uses the limits that were in force.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from broker.errors import BadRequest

POISON_CHOICES = ("park_message", "park_partition", "block")
OVERFLOW_CHOICES = ("refuse", "block")
VALUE_MAX = 10**15


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits and times of one channel.

    >>> Policy(pending_count_max=1000).pending_count_max
    1000
    """

    # What a channel holds.
    pending_count_max: int = 1_000_000
    pending_bytes_max: int = 1 << 30
    partition_count_max: int = 1_000_000
    subscription_count_max: int = 64
    subscriber_count_max: int = 1_000
    parked_count_max: int = 10_000
    dedup_window_count_max: int = 100_000
    overflow: str = "refuse"

    # What a call carries.
    message_bytes_max: int = 1 << 20
    batch_count_max: int = 10_000
    batch_bytes_max: int = 8 << 20
    headers_bytes_max: int = 16 << 10
    priority_max: int = 255

    # What a subscriber is given at once.
    prefetch_count_max: int = 20_000
    run_count_max: int = 256

    # When a subscriber is dead, and when it is slow.
    lease_ms: int = 10_000
    sends_max: int = 3
    send_timeout_ms: int = 5_000
    send_backoff_ms: int = 200
    delay_ms: int = 250
    long_delay_ms: int = 2_000
    long_delays_max: int = 3
    long_delay_window_ms: int = 60_000
    recall_after_ms: int = 200

    # What happens to a message that fails.
    attempts_max: int = 3
    backoff_ms: int = 100
    backoff_ms_max: int = 30_000
    poison: str = "park_message"

    # How long urgency may keep others waiting: each such time waited counts as one priority step.
    ageing_ms: int = 1_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "poison":
                _choose(field.name, value, POISON_CHOICES)
            elif field.name == "overflow":
                _choose(field.name, value, OVERFLOW_CHOICES)
            elif type(value) is not int or not 1 <= value <= VALUE_MAX:
                raise BadRequest(
                    f"policy {field.name}={value!r:.60} is refused: it must be a whole number from "
                    f"1 to {VALUE_MAX}",
                    field=field.name,
                )

    @classmethod
    def from_dict(cls, values: dict[str, Any] | None) -> Policy:
        """A policy from plain values; an unknown name is an error that lists the known ones."""
        if values is not None and not isinstance(values, dict):
            raise BadRequest(f"a policy is a dict of settings, not {type(values).__name__}")
        values = dict(values or {})
        known = {field.name for field in fields(cls)}
        unknown = sorted(str(name) for name in values if name not in known)
        if unknown:
            raise BadRequest(
                f"policy has no setting {', '.join(map(repr, unknown))}; "
                f"the settings are: {', '.join(sorted(known))}",
                unknown=unknown,
            )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The policy as plain values."""
        return asdict(self)

    def backoff(self, attempt: int) -> int:
        """How long the retry that follows attempt number ``attempt`` waits, in milliseconds."""
        return min(self.backoff_ms << min(attempt - 1, 20), self.backoff_ms_max)


def _choose(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise BadRequest(
            f"policy {name}={value!r} is refused: it must be one of {', '.join(choices)}",
            field=name,
        )
