"""The options that several commands share, each with its environment variable, and their parsing.

An option ``--some-thing`` is also read from ``FAIRLEAD_SOME_THING``; the command line wins. A test
walks all commands and holds every option to that.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Annotated, Any

import typer

from broker.core.policy import Policy
from broker.errors import BadRequest
from broker.wire import check_channel_name
from fairlead.problems import UsageProblem

DEFAULT_NAME_SERVER = "127.0.0.1:9090"
DEFAULT_SUBSCRIPTION = "default"


def option(name: str, *more: str, **settings: Any) -> Any:
    """A Typer option that is also read from its environment variable.

    >>> option("--name-server").envvar
    'FAIRLEAD_NAME_SERVER'
    """
    variable = name.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, *more, envvar=f"FAIRLEAD_{variable}", show_envvar=False, **settings)


class LogLevel(str, Enum):
    """How much goes to the log on stderr."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"
    critical = "critical"


NameServerOption = Annotated[
    str,
    option(
        "--name-server", metavar="HOST:PORT",
        help="Where the name server listens.",
    ),
]  # fmt: skip
JsonOption = Annotated[bool, option("--json", help="Answer as JSON on stdout.")]
PolicyOption = Annotated[
    list[str] | None,
    option(
        "--policy", metavar="KEY=VALUE",
        help="A limit or time of the channel, such as attempts_max=5; may be repeated.",
    ),
]  # fmt: skip
SubscriptionOption = Annotated[
    str,
    option(
        "--subscription", metavar="NAME",
        help="The durable group whose view it is.",
    ),
]  # fmt: skip
LimitOption = Annotated[
    int,
    option("--limit", min=1, max=10_000, help="How many rows at most."),
]
TimeoutOption = Annotated[
    float,
    option(
        "--timeout", min=0.1, metavar="SECONDS",
        help="How long to wait for an answer.",
    ),
]  # fmt: skip
LogLevelOption = Annotated[
    LogLevel,
    option(
        "--log-level", case_sensitive=False,
        help="How much to log on stderr.",
    ),
]  # fmt: skip
ChannelArgument = Annotated[
    str, typer.Argument(metavar="CHANNEL", help="The channel's name.", show_default=False)
]


def start_logging(level: LogLevel) -> None:
    """Log to stderr from ``level`` on."""
    logging.basicConfig(
        level=level.value.upper(),
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        force=True,
    )


def parse_address(text: str, option: str = "--name-server") -> tuple[str, int]:
    """Host and port out of HOST:PORT; an IPv6 host stands in brackets.

    >>> parse_address("localhost:9090"), parse_address("[::1]:0")
    (('localhost', 9090), ('::1', 0))
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise UsageProblem(
            f"{option} {text!r} is no address", f"give HOST:PORT, such as {DEFAULT_NAME_SERVER}"
        )
    return host, int(port)


def parse_policy(pairs: list[str] | None) -> dict[str, Any]:
    """A policy's settings out of KEY=VALUE words; whole numbers become numbers.

    >>> parse_policy(["attempts_max=5", "poison=block"])
    {'attempts_max': 5, 'poison': 'block'}
    """
    settings: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise UsageProblem(
                f"--policy {pair!r} is no setting", "give KEY=VALUE, such as attempts_max=5"
            )
        if key in settings:
            raise UsageProblem(f"--policy {key} is given twice", "give each setting once")
        try:
            settings[key] = int(value)
        except ValueError:
            settings[key] = value.strip()
    return settings


def checked_policy(pairs: list[str] | None) -> Policy | None:
    """The policy that KEY=VALUE words ask for; None when there are none."""
    settings = parse_policy(pairs)
    try:
        return Policy.from_dict(settings) if settings else None
    except BadRequest as error:
        raise UsageProblem(str(error), "correct --policy") from None


def checked_name(channel: str) -> str:
    """A channel's name as it may be."""
    try:
        return check_channel_name(channel)
    except BadRequest as error:
        raise UsageProblem(str(error), "choose another name") from None


def parse_headers(pairs: list[str] | None) -> dict[str, str]:
    """Headers out of NAME:VALUE words.

    >>> parse_headers(["kind: order", "trace:a:b"])
    {'kind': 'order', 'trace': 'a:b'}
    """
    headers: dict[str, str] = {}
    for pair in pairs or ():
        name, colon, value = pair.partition(":")
        if not colon or not name.strip():
            raise UsageProblem(
                f"--header {pair!r} is no header", "give NAME:VALUE, such as kind:order"
            )
        headers[name.strip()] = value.strip()
    return headers
