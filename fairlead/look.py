"""``ls``, ``info``, ``subs``, ``parked``: what a broker's channels hold and who works on it.

They only read. The numbers come from ``broker.server.statistics``; with ``--json`` they are shown
under the names that they have there.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, Callable

import typer

from broker.core.policy import Policy
from fairlead.connection import Connection
from fairlead.options import (
    DEFAULT_NAME_SERVER,
    DEFAULT_SUBSCRIPTION,
    ChannelArgument,
    JsonOption,
    LimitOption,
    NameServerOption,
    SubscriptionOption,
)
from fairlead.output import age, line, short_body, show_facts, show_json, show_table
from fairlead.problems import UsageProblem

Row = dict[str, Any]


def _over_subscriptions(name: str) -> Callable[[Row], object]:
    return lambda channel: sum(group[name] for group in channel["subscriptions"].values())


# By the names that rabbitmqctl list_queues has, where it has one.
COLUMNS: dict[str, Callable[[Row], object]] = {
    "name": lambda channel: channel["channel"],
    "messages": _over_subscriptions("backup"),
    "messages_ready": _over_subscriptions("messages_ready"),
    "messages_unacknowledged": _over_subscriptions("messages_unacknowledged"),
    "consumers": _over_subscriptions("consumers"),
    "partitions": lambda channel: channel["partitions"],
    "publishers": lambda channel: channel["publishers"],
    "subscriptions": lambda channel: len(channel["subscriptions"]),
    "parked": _over_subscriptions("parked"),
    "published_total": lambda channel: channel["published_total"],
    "state": lambda channel: "queues down" if channel["queues_down"] else "running",
}
SHOWN = ("name", "messages_ready", "messages_unacknowledged", "consumers", "partitions", "parked",
         "published_total", "state")  # fmt: skip

HEADINGS = {"messages_ready": "READY", "messages_unacknowledged": "UNACKED",
            "published_total": "PUBLISHED"}  # fmt: skip


def ls(
    columns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COLUMN",
            show_default=False,
            help=f"What to show, of: {', '.join(COLUMNS)}.",
        ),
    ] = None,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """List the channels.

    Counts of messages are sums over the channel's subscriptions.
    """
    chosen = columns or list(SHOWN)
    unknown = [name for name in chosen if name not in COLUMNS]
    if unknown:
        raise UsageProblem(
            f"there is no column {unknown[0]!r}", f"the columns are {', '.join(COLUMNS)}"
        )
    channels = Connection(name_server).broker("overview")
    rows = [{name: COLUMNS[name](channel) for name in chosen} for channel in channels]
    if as_json:
        show_json(rows if columns else [{**row, **channel} for row, channel in zip(rows, channels)])
        return
    show_table(
        [HEADINGS.get(name, name.upper()) for name in chosen],
        [list(row.values()) for row in rows],
        "no channels yet; 'fairlead create NAME' makes one",
    )


def info(
    channel: ChannelArgument,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Show a channel with its subscriptions and subscribers."""
    found = Connection(name_server).channel(channel, "statistics")
    if as_json:
        show_json(found)
        return
    facts: dict[str, object] = {
        name: value
        for name, value in found.items()
        if name not in ("channel", "policy", "subscriptions", "queues_down")
    }
    facts["state"] = COLUMNS["state"](found)
    facts["policy"] = _unusual(found["policy"])
    show_facts(f"channel {channel}", facts)
    for name, group in found["subscriptions"].items():
        line("")
        _show_subscription(name, group)


def _unusual(policy: dict[str, object]) -> str:
    usual = Policy().to_dict()
    unusual = [f"{key}={value}" for key, value in policy.items() if usual.get(key) != value]
    return ", ".join(unusual) or "as usual"


def _show_subscription(name: str, group: Row) -> None:
    subscribers = group["subscribers"]
    facts = {key: value for key, value in group.items() if key != "subscribers"}
    reasons = ", ".join(f"{reason} {count}" for reason, count in facts["handover_total"].items())
    facts["handover_total"] = reasons or 0
    show_facts(f"subscription {name}", facts)
    if not subscribers:
        line("  no subscribers: its messages wait")
        return
    show_table(
        ["SUBSCRIBER", "UNACKNOWLEDGED", "PREFETCH", "PARTITIONS", "DELIVERED", "ACKED", "SEEN"],
        [
            [
                subscriber, one["unacknowledged"], one["prefetch"], one["partitions"],
                one["delivered_total"], one["acked_total"],
                "away" if one["away"] else age(one["seen_ms_ago"]) + " ago",
            ]
            for subscriber, one in subscribers.items()
        ],
        "",
    )  # fmt: skip


def subs(
    channel: ChannelArgument,
    subscription: SubscriptionOption = DEFAULT_SUBSCRIPTION,
    limit: LimitOption = 100,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Show partitions with work: owner, in flight, lag.

    LAG counts the messages that are not settled, INFLIGHT those of them that are with the owner,
    OLDEST is the age of the first of them, ATTEMPT its number of attempts so far.
    """
    rows = Connection(name_server).channel(channel, "partitions", subscription, limit)
    if as_json:
        show_json(rows)
        return
    show_table(
        ["PUBLISHER", "PARTITION", "OWNER", "INFLIGHT", "LAG", "OLDEST", "ATTEMPT", "STATE"],
        [
            [
                row["publisher"], row["partition"], row["owner"], row["in_flight"], row["lag"],
                age(row["oldest_ms"]), row["attempt"], _partition_state(row),
            ]
            for row in rows
        ],
        f"no partition of subscription {subscription} has work",
    )  # fmt: skip


def _partition_state(row: Row) -> str:
    if row["parked"]:
        return "parked"
    return "assigned" if row["owner"] else "waiting"


def parked(
    channel: ChannelArgument,
    subscription: SubscriptionOption = DEFAULT_SUBSCRIPTION,
    limit: LimitOption = 100,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Show what was set aside because it failed, and why.

    'fairlead redrive' sends it on its way again.
    """
    rows = Connection(name_server).channel(channel, "parked", subscription, limit)
    if as_json:
        show_json(rows)
        return
    now_ms = time.time() * 1000
    show_table(
        ["SCOPE", "PUBLISHER", "PARTITION", "SEQUENCE", "ATTEMPT", "PARKED", "REASON", "BODY"],
        [
            [
                row["scope"], row["publisher"], row["partition"], row.get("sequence"),
                row.get("attempt"), _since(row.get("parked_at_ms"), now_ms), row["reason"],
                short_body(row["body"]) if "body" in row else None,
            ]
            for row in rows
        ],
        f"nothing is parked in subscription {subscription}",
    )  # fmt: skip


def _since(at_ms: int | None, now_ms: float) -> str | None:
    return None if at_ms is None else age(max(0.0, now_ms - at_ms)) + " ago"


def subscription_ls(
    channel: ChannelArgument,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """List the subscriptions of a channel."""
    groups = Connection(name_server).channel(channel, "statistics")["subscriptions"]
    if as_json:
        show_json([{"name": name, **group} for name, group in groups.items()])
        return
    show_table(
        ["SUBSCRIPTION", "READY", "UNACKNOWLEDGED", "CONSUMERS", "PARKED", "ACKED"],
        [
            [
                name, group["messages_ready"], group["messages_unacknowledged"],
                group["consumers"], group["parked"], group["acked_total"],
            ]
            for name, group in groups.items()
        ],
        f"channel {channel} has no subscriptions; what is published to it is kept for nobody",
    )  # fmt: skip
