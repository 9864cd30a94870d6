"""``fairlead topic``: subscribe, unsubscribe, put, get, ls, info.

What lives here: the options, what is said about the outcome, the exit codes. The insides of put and
get are in ``topic_put`` and ``topic_get``; numbers, state and repetitions are ``topics.Topics``'
business.
"""

from __future__ import annotations

import getpass
import os
import socket
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.core.topics import TopicPolicy
from broker.errors import BadRequest, BrokerUnavailable, ChannelNotFound
from broker.pyro_setup import Proxy, invoke
from broker.server.service import TOPICS_NAME
from broker.wire import check_id, check_name
from fairlead.connection import Connection
from fairlead.options import (
    DEFAULT_NAME_SERVER,
    JsonOption,
    LimitOption,
    LogLevel,
    LogLevelOption,
    option,
    parse_address,
    start_logging,
)
from fairlead.output import forget_stdout, line, note, show_facts, show_json, show_table
from fairlead.problems import EXIT_FAILED, EXIT_SIGNAL, Problem, UsageProblem
from fairlead.pub import Interrupt
from fairlead.topic_get import FIELDS, Getting, formatter, to_json_line, to_raw
from fairlead.topic_input import Shape
from fairlead.topic_put import Tally, open_input, put_all, refuse_mixture, resume
from topics import Topics

EXIT_EMPTY = 3
READING_TIMEOUT_S = 5.0

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)
]
ClientOption = Annotated[
    str | None,
    option(
        "--client", metavar="ID", show_default=False,
        help="Who asks: each client gets every message once.  \\[default: user@host]",
    ),
]  # fmt: skip
StateOption = Annotated[
    Path | None,
    option(
        "--state", metavar="DIR", show_default=False,
        help="Where clients keep their numbers, each in a directory of its own.  "
        "\\[default: ~/.local/state/fairlead/topics]",
    ),
]  # fmt: skip
NameServersOption = Annotated[
    list[str] | None,
    option(
        "--name-server", metavar="HOST:PORT", show_default=False,
        help="Where name servers listen; may be repeated, or a list with commas.  "
        f"\\[default: {DEFAULT_NAME_SERVER}]",
    ),
]  # fmt: skip
TryTimeoutOption = Annotated[
    float,
    option(
        "--timeout", min=0.01, max=60.0, metavar="SECONDS",
        help="How long one try waits for its answer.",
    ),
]  # fmt: skip
TriesOption = Annotated[
    int, option("--tries", min=1, max=1000, help="How often a request is tried.")
]
HistoryOption = Annotated[
    str | None,
    option(
        "--history", metavar="DIR",
        help="Write what this client saw to a file of its own in this directory.",
    ),
]  # fmt: skip
TakeOverOption = Annotated[
    bool,
    option(
        "--take-over",
        help="Go on with this --client from what the broker knows: its directory is lost.",
    ),
]  # fmt: skip


def subscribe(
    topic: TopicArgument,
    client: ClientOption = None,
    state: StateOption = None,
    name_server: NameServersOption = None,
    timeout: TryTimeoutOption = 0.1,
    tries: TriesOption = 3,
    history: HistoryOption = None,
    take_over: TakeOverOption = False,
    as_json: JsonOption = False,
    log_level: LogLevelOption = LogLevel.critical,
) -> None:
    """Get every message that is put from now on.

    The subscription is durable: the client may be away for long. Doing it again changes nothing.
    """
    _checked(topic)
    way = Way(client, state, name_server, timeout, tries, history, take_over)
    start_logging(log_level)
    with way.open() as known:
        new = known.subscribe(topic)
    if as_json:
        show_json({"topic": topic, "client": way.client, "new": new})
    else:
        line("subscribed" if new else "was subscribed before")


def unsubscribe(
    topic: TopicArgument,
    client: ClientOption = None,
    state: StateOption = None,
    name_server: NameServersOption = None,
    timeout: TryTimeoutOption = 0.1,
    tries: TriesOption = 3,
    history: HistoryOption = None,
    take_over: TakeOverOption = False,
    as_json: JsonOption = False,
    log_level: LogLevelOption = LogLevel.critical,
) -> None:
    """Get nothing more, also not what waits for the client now."""
    _checked(topic)
    way = Way(client, state, name_server, timeout, tries, history, take_over)
    start_logging(log_level)
    with way.open() as known:
        was = known.unsubscribe(topic)
    if as_json:
        show_json({"topic": topic, "client": way.client, "was": was})
    else:
        line("unsubscribed" if was else "was not subscribed")


def put(
    topic: TopicArgument,
    messages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MESSAGE",
            show_default=False,
            help="The messages; without any, each line of --file or stdin is one.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        option("--file", metavar="FILE", help="Read from there; - is stdin.", show_default=False),
    ] = None,
    whole: Annotated[bool, option("--whole", help="The input is one message, not lines.")] = False,
    binary: Annotated[
        bool, option("--binary", help="Bodies are bytes, also where they could be text.")
    ] = False,
    json_bodies: Annotated[bool, option("--json-bodies", help="Bodies are JSON.")] = False,
    forget_lost: Annotated[
        bool,
        option(
            "--forget-lost",
            help="Go on although the broker has lost puts that this client does not have any more.",
        ),
    ] = False,
    quiet: Annotated[bool, option("--quiet", "-q", help="No tally on stderr.")] = False,
    client: ClientOption = None,
    state: StateOption = None,
    name_server: NameServersOption = None,
    timeout: TryTimeoutOption = 0.1,
    tries: TriesOption = 3,
    history: HistoryOption = None,
    take_over: TakeOverOption = False,
    as_json: JsonOption = False,
    log_level: LogLevelOption = LogLevel.critical,
) -> None:
    """Put messages, from arguments, a file or stdin.

    Exit 0 when all were accepted. A put that an earlier run left without an answer is settled
    first. What was sent is done once, however often it has to be sent.
    """
    refuse_mixture(messages, file, whole, binary, json_bodies)
    way = Way(client, state, name_server, timeout, tries, history, take_over)
    start_logging(log_level)
    tally = Tally(_checked(topic), way.client, Shape(binary, json_bodies), bool(messages) or whole)
    interrupt = Interrupt()
    with way.open() as known:
        if forget_lost:
            known.forget_put(topic)
        tally.resumed = resume(known)
        try:
            with open_input(messages, file, whole, interrupt) as found:
                put_all(known, tally, found, interrupt)
        except KeyboardInterrupt:
            pass  # while it waited for input; the tally says what was done
    if as_json:
        show_json(tally.to_dict())
    elif not quiet:
        note(tally.text())
    if interrupt.signum is not None:
        raise typer.Exit(EXIT_SIGNAL + interrupt.signum)
    if tally.failed:
        raise typer.Exit(EXIT_FAILED)


def get(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="The topic's name.", show_default=False),
    ] = None,
    any_topic: Annotated[
        bool, option("--any", help="Of all topics of the client, in the order of acceptance.")
    ] = False,
    count: Annotated[
        int | None,
        option("--count", "-n", min=1, show_default=False, help="So many at most.  \\[default: 1]"),
    ] = None,
    everything: Annotated[bool, option("--all", help="All that is there.")] = False,
    wait: Annotated[
        float,
        option(
            "--wait",
            min=0.0,
            metavar="SECONDS",
            help="How long to wait for the next message when nothing is there.",
        ),
    ] = 0.0,
    form: Annotated[
        str,
        option(
            "--format",
            metavar="TEXT",
            help=f"The form of a line, with {{NAME}} for: {', '.join(FIELDS)}.",
        ),
    ] = "{body}",
    raw: Annotated[
        bool, option("--raw", help="The bodies as they are, with nothing between them.")
    ] = False,
    client: ClientOption = None,
    state: StateOption = None,
    name_server: NameServersOption = None,
    timeout: TryTimeoutOption = 0.1,
    tries: TriesOption = 3,
    history: HistoryOption = None,
    take_over: TakeOverOption = False,
    as_json: JsonOption = False,
    log_level: LogLevelOption = LogLevel.critical,
) -> None:
    """Print the next message and confirm it. Exit 0: got something; 3: nothing there; 1: error.

    A message is confirmed, and never comes again, when it is written; in a pipe, when the reader
    has taken it. What was not confirmed comes with the next get.
    """
    if (topic is None) != any_topic:
        raise UsageProblem("a get reads one topic or all", "give either TOPIC or --any")
    name = None if topic is None else _checked(topic)
    if everything and count is not None:
        raise UsageProblem("--all and --count exclude each other", "leave one of them out")
    to_text = to_raw if raw else to_json_line if as_json else formatter(form)
    way = Way(client, state, name_server, timeout, tries, history, take_over)
    start_logging(log_level)
    limit = sys.maxsize if everything else count or 1
    with way.open() as known:
        getting = Getting(known, name, to_text)
        try:
            getting.run(limit, wait)
        finally:
            getting.confirm()
    _end_get(getting, way.client)


def _end_get(getting: Getting, client: str) -> None:
    if getting.outlet.reader_gone:
        forget_stdout()
        return
    if getting.interrupt.signum is not None:
        raise typer.Exit(EXIT_SIGNAL + getting.interrupt.signum)
    if not getting.taken:
        note(f"nothing there for client {client}")
        raise typer.Exit(EXIT_EMPTY)


def ls(
    mine: Annotated[
        bool, option("--mine", help="The topics of the client, and what waits for it.")
    ] = False,
    client: ClientOption = None,
    name_server: NameServersOption = None,
    timeout: TryTimeoutOption = READING_TIMEOUT_S,
    tries: TriesOption = 1,
    as_json: JsonOption = False,
) -> None:
    """List the topics.

    OWED counts what the client has not confirmed, as far as the broker knows.
    """
    way = Way(client, None, name_server, timeout, tries)
    rows = way.ask("overview")
    if mine:
        confirmed = way.ask("subscriptions", way.client)
        rows = [
            {
                "name": row["name"], "client": way.client, "position": confirmed[row["name"]],
                "last": row["last"], "owed": max(0, row["last"] - confirmed[row["name"]]),
            }
            for row in rows
            if row["name"] in confirmed
        ]  # fmt: skip
    if as_json:
        show_json(rows)
    elif mine:
        _show_columns(
            {"name": "TOPIC", "owed": "OWED", "position": "CONFIRMED", "last": "LAST"}, rows,
            f"client {way.client} is subscribed to nothing; 'fairlead topic subscribe TOPIC' does",
        )  # fmt: skip
    else:
        _show_columns(
            {
                "name": "TOPIC", "subscribers": "SUBSCRIBERS", "backlog": "BACKLOG",
                "backlog_bytes": "BYTES", "put_total": "PUT", "clients": "CLIENTS",
            },
            rows,
            "no topics yet; the first subscribe or put makes one",
        )  # fmt: skip


def _show_columns(headings: dict[str, str], rows: list[dict[str, Any]], empty: str) -> None:
    cells = [[row[name] for name in headings] for row in rows]
    show_table(list(headings.values()), cells, empty)


def info(
    topic: TopicArgument,
    limit: LimitOption = 10,
    name_server: NameServersOption = None,
    timeout: TryTimeoutOption = READING_TIMEOUT_S,
    tries: TriesOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Show a topic in numbers, and the subscribers that are furthest behind."""
    way = Way(None, None, name_server, timeout, tries)
    found = way.ask("statistics", _checked(topic), limit)
    if as_json:
        show_json(found)
        return
    usual = TopicPolicy().to_dict()
    policy = [f"{name}={value}" for name, value in found["policy"].items() if usual[name] != value]
    hidden = ("name", "policy", "subscriptions")
    facts = {name: value for name, value in found.items() if name not in hidden}
    facts["policy"] = ", ".join(policy) or "as usual"
    show_facts(f"topic {topic}", facts)
    line("")
    _show_columns(
        {"client": "CLIENT", "owed": "OWED", "position": "CONFIRMED"}, found["subscriptions"],
        "nobody is subscribed: what is put is kept for nobody",
    )  # fmt: skip


# From options to a client.


class Way:
    """Who asks, whom, and how patiently."""

    def __init__(
        self,
        client: str | None,
        state: Path | None,
        name_server: list[str] | None,
        timeout_s: float,
        tries: int,
        history: str | None = None,
        take_over: bool = False,
    ) -> None:
        self.client = _checked_client(client or _usual_client())
        self._state = state
        self._addresses = parse_addresses(name_server)
        self._timeout_s, self._tries = timeout_s, tries
        self._history, self._take_over = history, take_over

    def open(self) -> Topics:
        """The client; it has its state directory to itself until it is closed."""
        return Topics(
            self.client, self._state, name_server=self._addresses, timeout_s=self._timeout_s,
            tries=self._tries, history=self._history, take_over=self._take_over,
        )  # fmt: skip

    def ask(self, method: str, *args: Any) -> Any:
        """What the broker answers to a question that needs no state directory."""
        failure: Exception | None = None
        for _ in range(self._tries):
            for address in self._addresses:
                try:
                    return self._ask(address, method, *args)
                except (Problem, BrokerUnavailable) as error:
                    failure = failure or error
        assert failure is not None
        raise failure

    def _ask(self, address: str, method: str, *args: Any) -> Any:
        connection = Connection(address, self._timeout_s)
        try:
            uri = connection.names.lookup(TOPICS_NAME)
        except ChannelNotFound:
            raise Problem(
                f"no broker with topics is registered at the name server {address}",
                "start one with 'fairlead up'",
            ) from None
        with Proxy(uri) as proxy:
            proxy._pyroTimeout = self._timeout_s
            return invoke(proxy, method, *args)


def parse_addresses(words: list[str] | None) -> list[str]:
    """Addresses out of words that may be lists with commas.

    >>> parse_addresses(["a:1,b:2", "c:3"])
    ['a:1', 'b:2', 'c:3']
    """
    found = [part.strip() for word in words or () for part in word.split(",") if part.strip()]
    for address in found:
        parse_address(address)
    return found or [DEFAULT_NAME_SERVER]


def _usual_client() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"[:200]


def _checked_client(client: str) -> str:
    try:
        return check_id(client, "client id")
    except BadRequest as error:
        raise UsageProblem(str(error), "choose another --client") from None


def _checked(topic: str) -> str:
    try:
        return check_name(topic, "topic name")
    except BadRequest as error:
        raise UsageProblem(str(error), "choose another name") from None
