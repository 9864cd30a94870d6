"""A run for people: records and lines of histories in a line each; where two states differ."""

from __future__ import annotations

from typing import Any

from broker.core import snapshot
from broker.core.channel import Channel
from broker.core.records import Record


def lasting(channel: Channel) -> Any:
    """The state of a channel without what need not survive: who was seen when."""
    state = snapshot.dump(channel)
    place = snapshot.SUB_QUEUE_FIELDS.index("seen_ms")
    for group in state["subscriptions"]:
        for queue in group["subscribers"]:
            queue["fields"][place] = 0
    return state


HIDDEN = {"lines", "columns", "entries", "at_ms", "policy"}
COMMON = {"client", "n", "at_us", "channel", "subscription"}


def shown(record: Record) -> str:
    """A record in one line, without its bodies."""
    names = [name for name in record.__slots__ if name not in HIDDEN]
    facts = ", ".join(f"{name}={_short(getattr(record, name))}" for name in names)
    return f"{record.kind}({facts})"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "[" + " ".join(map(_short, value)) + "]"
    return str(value)


def shown_line(line: dict[str, Any]) -> str:
    """A line of a history, without what all of its lines say."""
    facts = ", ".join(f"{name}={_short(line[name])}" for name in line if name not in COMMON)
    return f"{line['client']} {facts}"


def difference(left: Any, right: Any, where: str = "") -> str:
    """Where two states differ first."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in left:
            if left[key] != right.get(key):
                return difference(left[key], right.get(key), f"{where}.{key}")
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, (one, other) in enumerate(zip(left, right)):
            if one != other:
                return difference(one, other, f"{where}[{index}]")
    return f"{where}: {left!r:.200} and {right!r:.200}"
