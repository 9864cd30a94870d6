"""``create``, ``delete``, ``redrive``, ``subscription``, ``kill-queues``: what changes something.

None of them asks back: what could destroy work is refused unless an option says that it is meant.
"""

from __future__ import annotations

from typing import Annotated

import typer

from fairlead.connection import Connection
from fairlead.options import (
    DEFAULT_NAME_SERVER,
    DEFAULT_SUBSCRIPTION,
    ChannelArgument,
    JsonOption,
    NameServerOption,
    PolicyOption,
    SubscriptionOption,
    checked_name,
    checked_policy,
    option,
)
from fairlead.output import line, show_json
from fairlead.problems import UsageProblem

SubscriptionArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The subscription's name.", show_default=False)
]


def create(
    channel: ChannelArgument,
    policy: PolicyOption = None,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Make a channel.

    That it is there already is fine, unless another policy is asked for.
    """
    name, wanted = checked_name(channel), checked_policy(policy)
    settings = wanted.to_dict() if wanted is not None else None
    answer = Connection(name_server).broker("create_channel", name, settings)
    if as_json:
        show_json(answer)
    else:
        line(f"channel {channel} {'created' if answer['created'] else 'exists already'}")


def delete(
    channel: ChannelArgument,
    force: Annotated[
        bool,
        option("--force", help="Even with messages that nobody has handled."),
    ] = False,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Delete a channel and its journal.

    Refused while there are messages in it that nobody has handled, unless forced.
    """
    answer = Connection(name_server).broker("delete_channel", channel, force)
    if as_json:
        show_json(answer)
    else:
        dropped = f" with {answer['dropped']} unhandled messages" if answer["dropped"] else ""
        line(f"channel {channel} deleted{dropped}")


def redrive(
    channel: ChannelArgument,
    subscription: SubscriptionOption = DEFAULT_SUBSCRIPTION,
    publisher: Annotated[
        str | None,
        option(
            "--publisher",
            metavar="ID",
            help="Only this publisher's partition; with --partition.",
        ),
    ] = None,
    partition: Annotated[
        str | None,
        option(
            "--partition",
            "-K",
            metavar="KEY",
            help="Only this partition; with --publisher.",
        ),
    ] = None,
    drop: Annotated[
        bool,
        option("--drop", help="Give the parked messages up instead, for good."),
    ] = False,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Send what was parked on its way again.

    It is next in its partition, and its attempts are counted anew.
    """
    if (publisher is None) != (partition is None):
        raise UsageProblem(
            "a partition is named by its publisher and its id",
            "give --publisher and --partition, or neither for everything that is parked",
        )
    answer = Connection(name_server).channel(
        channel, "redrive", subscription, publisher, partition, drop
    )
    if as_json:
        show_json(answer)
        return
    counts = ", ".join(f"{name} {value}" for name, value in answer.items())
    line(f"{'dropped' if drop else 'sent on'} from channel {channel}: {counts or 'nothing'}")


def subscription_create(
    channel: ChannelArgument,
    name: SubscriptionArgument,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Make a durable group that gets everything published from now on."""
    answer = Connection(name_server).channel(channel, "create_subscription", name)
    if as_json:
        show_json(answer)
    else:
        made = "created" if answer.get("created", True) else "exists already"
        line(f"subscription {name} of channel {channel} {made}")


def subscription_delete(
    channel: ChannelArgument,
    name: SubscriptionArgument,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Delete a durable group and what it is still owed."""
    answer = Connection(name_server).channel(channel, "delete_subscription", name)
    if as_json:
        show_json(answer)
    else:
        line(f"subscription {name} of channel {channel} deleted")


def kill_queues(
    channel: ChannelArgument,
    restore_after: Annotated[
        float,
        option(
            "--restore-after",
            min=0.0,
            max=60.0,
            metavar="SECONDS",
            help="When the backup queue restores them.",
        ),
    ] = 0.5,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Crash a channel's queues, to see them restored.

    The global queue and all sub-queues; the backup queue restores them. Only with a broker that was
    started with 'fairlead up --fault-injection'.
    """
    answer = Connection(name_server).channel(channel, "kill_queues", restore_after)
    if as_json:
        show_json(answer)
    else:
        line(f"queues of channel {channel} crashed; restored in {restore_after:g} s")
