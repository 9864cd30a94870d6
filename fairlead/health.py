"""``ping`` and ``check``: is a broker there, and is it well. For people, scripts and containers."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from broker.errors import BrokerError
from fairlead.connection import CHANNEL_PREFIX, Connection
from fairlead.options import DEFAULT_NAME_SERVER, JsonOption, NameServerOption, TimeoutOption
from fairlead.output import line, show_json
from fairlead.problems import EXIT_FAILED, Problem


def ping(
    timeout: TimeoutOption = 5.0,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Ask the broker who it is and how fast it answers."""
    connection = Connection(name_server, timeout)
    started = time.monotonic()
    answer = connection.broker("ping")
    answer["round_trip_ms"] = round((time.monotonic() - started) * 1000, 3)
    if as_json:
        show_json(answer)
    else:
        line(
            f"broker {answer['version']} (pid {answer['pid']}) at {answer['front']} answers in "
            f"{answer['round_trip_ms']:.1f} ms; {len(answer['channels'])} channels in "
            f"{answer['store']}"
        )


def check(
    channels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CHANNEL", show_default=False, help="Channels that have to be there."
        ),
    ] = None,
    timeout: TimeoutOption = 5.0,
    name_server: NameServerOption = DEFAULT_NAME_SERVER,
    as_json: JsonOption = False,
) -> None:
    """Exit 0 when broker and channels are well, else 1.

    For the health checks of containers.
    """
    try:
        answer = _checked(Connection(name_server, timeout), channels or [])
    except (Problem, BrokerError) as error:
        if not as_json:
            raise
        show_json({"ok": False, "reason": str(error)})
        raise typer.Exit(EXIT_FAILED) from None
    if as_json:
        show_json({"ok": True, **answer})
    else:
        line(f"ok: broker {answer['version']} (pid {answer['pid']}), {answer['channels']} channels")


def _checked(connection: Connection, wanted: list[str]) -> dict[str, Any]:
    described = connection.broker("ping")
    there = described["channels"]
    missing = [name for name in wanted if name not in there]
    if missing:
        raise Problem(
            f"channel {missing[0]} is not there", f"'fairlead create {missing[0]}' makes it"
        )
    names = connection.names.registered(CHANNEL_PREFIX)
    lost = [name for name in there if CHANNEL_PREFIX + name not in names]
    if lost:
        raise Problem(
            f"channel {lost[0]} is not registered at the name server {connection.name_server}",
            "the broker registers it again within seconds; check again",
        )
    down = [each["channel"] for each in connection.broker("overview") if each["queues_down"]]
    if down:
        raise Problem(f"the queues of channel {down[0]} are down", "they are being restored")
    return {"version": described["version"], "pid": described["pid"], "channels": len(there)}
