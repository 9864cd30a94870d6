"""``fairlead up`` and ``fairlead ns``: run a broker or a name server until somebody ends it.

What lives here: the checks before the start, the banner, the ready file, and the life of the
process from its first signal handler to its exit code. What a broker is made of is in
``broker.server.service``.
"""

from __future__ import annotations

import ipaddress
import json
import os
import queue
import signal
import threading
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from broker.core.policy import Policy
from broker.errors import BadRequest, BrokerError
from broker.remote.name_server import NameServer
from broker.server.service import BROKER_NAME, Service, Settings
from broker.wire import check_name
from fairlead.connection import Connection
from fairlead.options import (
    DEFAULT_NAME_SERVER,
    LogLevel,
    LogLevelOption,
    PolicyOption,
    checked_name,
    checked_policy,
    option,
    parse_address,
    start_logging,
)
from fairlead.output import note, stdout_console
from fairlead.problems import Problem, UsageProblem

NAME_SERVER_PORT = 9090
TOPIC_MEMORY_S = 7 * 86_400.0
TOPIC_MEMORY_S_MAX = 100 * 365 * 86_400.0


class Durability(str, Enum):
    """When a publish is answered."""

    fsync = "fsync"
    flush = "flush"


HostOption = Annotated[
    str,
    option(
        "--host",
        help="The address to listen on, as clients can reach it.",
    ),
]  # fmt: skip
AllowRemoteOption = Annotated[
    bool,
    option(
        "--allow-remote",
        help="Allow a --host that other machines can reach. There is no authentication.",
    ),
]  # fmt: skip
ReadyFileOption = Annotated[
    Path | None,
    option(
        "--ready-file", metavar="FILE", show_default=False,
        help="Write a JSON description there once reachable; removed at the end.",
    ),
]  # fmt: skip


def up(
    store: Annotated[
        Path,
        option(
            "--store",
            metavar="FILE",
            help="The file of the journal; made if it is not there.",
        ),
    ] = Path("fairlead.db"),
    durability: Annotated[
        Durability,
        option(
            "--durability",
            help="Answer a publish after the disk's sync, or after the write alone.",
        ),
    ] = Durability.fsync,
    host: HostOption = "127.0.0.1",
    port: Annotated[
        int,
        option(
            "--port",
            min=0,
            max=65_535,
            help="The port of the channels; 0 takes a free one.",
        ),
    ] = 0,
    name_server: Annotated[
        str | None,
        option(
            "--name-server",
            metavar="HOST:PORT",
            help="The name server to join; started here if none answers.  "
            f"\\[default: the host, port {NAME_SERVER_PORT}]",
        ),
    ] = None,
    channel: Annotated[
        list[str] | None,
        option(
            "--channel",
            metavar="NAME",
            help="A channel to make if it is not there; may be repeated.",
        ),
    ] = None,
    policy: PolicyOption = None,
    topic: Annotated[
        list[str] | None,
        option(
            "--topic",
            metavar="NAME",
            help="A topic to make if it is not there; may be repeated. The first subscribe or put "
            "makes one, too.",
        ),
    ] = None,
    keep_topics: Annotated[
        bool,
        option(
            "--keep-topics",
            help="Keep in the store what all subscribers of a topic have, for an audit.",
        ),
    ] = False,
    topic_memory: Annotated[
        float,
        option(
            "--topic-memory",
            min=0.0,
            max=TOPIC_MEMORY_S_MAX,
            metavar="SECONDS",
            help="How long a topic is remembered that nobody is subscribed to and nobody uses.",
        ),
    ] = TOPIC_MEMORY_S,
    clients_max: Annotated[
        int,
        option(
            "--clients-max",
            min=1,
            help="How many clients may be connected at a time.",
        ),
    ] = 256,
    allow_remote: AllowRemoteOption = False,
    fault_injection: Annotated[
        bool,
        option(
            "--fault-injection",
            help="Let anybody crash the queues, for tests and demonstrations.",
        ),
    ] = False,
    log_level: LogLevelOption = LogLevel.warning,
    ready_file: ReadyFileOption = None,
) -> None:
    """Run a broker, and a name server if there is none.

    Everything accepted is in the store before it is answered; started again with the same store,
    the broker goes on where it was. Ctrl-C or SIGTERM ends it cleanly.
    """
    address = parse_address(name_server or f"{_bracketed(host)}:{NAME_SERVER_PORT}")
    _refuse_exposure("--host", host, allow_remote)
    _refuse_exposure("--name-server", address[0], allow_remote)
    settings = Settings(
        store=str(store),
        durability=durability.value,
        host=host,
        port=port,
        name_server_host=address[0],
        name_server_port=address[1],
        clients_max=clients_max,
        fault_injection=fault_injection,
        channels=[checked_name(name) for name in channel or ()],
        policy=checked_policy(policy) or Policy(),
        topics=[_checked_topic(name) for name in topic or ()],
        keep_topics=keep_topics,
        remember_s=topic_memory,
    )
    _refuse_missing_directory(store)
    start_logging(log_level)
    _remove(ready_file)
    life = Life()
    try:
        _refuse_second_broker(*address)
        service = Service(settings)
        _start(service)
    except KeyboardInterrupt:
        note("stopped before the broker was up")
        raise typer.Exit(0) from None
    try:
        life.run_until(service.stopped)
        described = service.describe()
        _write_ready(ready_file, described)
        _show_broker(described, service.names.owned)
        life.wait()
        if service.failure is None:
            note("stopping; Ctrl-C again ends it at once")
    finally:
        _remove(ready_file)
        service.close()
    if service.failure is not None:
        raise Problem(
            f"the broker stopped because it failed: {service.failure}",
            "nothing that was answered is lost; start it again to recover from the store",
        )


def ns(
    host: HostOption = "127.0.0.1",
    port: Annotated[
        int,
        option("--port", min=0, max=65_535, help="0 takes a free one."),
    ] = NAME_SERVER_PORT,
    allow_remote: AllowRemoteOption = False,
    log_level: LogLevelOption = LogLevel.warning,
    ready_file: ReadyFileOption = None,
) -> None:
    """Run a name server alone, for brokers to join.

    It is a Pyro5 name server: pyro5-nsc works with it.
    """
    _refuse_exposure("--host", host, allow_remote)
    start_logging(log_level)
    _remove(ready_file)
    life = Life()
    try:
        names = NameServer.start_or_join(host, port)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    if not names.owned:
        raise Problem(
            f"a name server answers already at {host}:{port}", "use that one, or choose a --port"
        )
    try:
        life.run_until(None)
        where = f"{_bracketed(names.host)}:{names.port}"
        _write_ready(ready_file, {"name_server": where, "pid": os.getpid()})
        joining = f"fairlead up --name-server {where}"
        _show("name server", {"name server": where, "brokers": joining})
        life.wait()
    finally:
        _remove(ready_file)
        names.close()


class Life:
    """From the first signal handler to the end.

    Before ``run_until`` a signal interrupts the start with KeyboardInterrupt. After it, the first
    signal makes ``wait`` return and the second ends the process at once. A handler may run while
    this thread holds any lock, so all it does is to put a word into a queue that is made for that.
    """

    def __init__(self) -> None:
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, _interrupt)

    def run_until(self, stopped: threading.Event | None) -> None:
        """From now on a signal ends ``wait``, and so does ``stopped``."""
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._on_signal)
        if stopped is not None:
            threading.Thread(target=self._watch, args=(stopped,), daemon=True).start()

    def wait(self) -> None:
        """Wait for the first reason to end.

        Looking up now and then: the system may hand a signal to any thread, Python runs its handler
        only in this one, and a wait without a limit would not notice that there is one to run.
        """
        while True:
            try:
                return self._ended.get(timeout=0.5)
            except queue.Empty:
                continue

    def _watch(self, stopped: threading.Event) -> None:
        stopped.wait()
        self._ended.put(None)

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)
        self._ended.put(None)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _start(service: Service) -> None:
    try:
        service.start()
    except OSError as error:
        settings = service.settings
        raise Problem(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}",
            "choose another --host or --port, or stop what uses it",
        ) from None


# What is refused before anything is opened.


def _checked_topic(name: str) -> str:
    try:
        return check_name(name, "topic name")
    except BadRequest as error:
        raise UsageProblem(str(error), "choose another name") from None


def _refuse_exposure(name: str, host: str, allowed: bool) -> None:
    if host in ("", "0.0.0.0", "::"):
        raise UsageProblem(
            f"{name} {host!r} names no place that clients could be sent to",
            "give the address or host name under which they reach this machine",
        )
    if not allowed and not _is_loopback(host):
        raise UsageProblem(
            f"{name} {host} can be reached from other machines, and there is no authentication "
            "or encryption: whoever reaches it may publish, read and delete",
            "add --allow-remote if you trust that network, or stay on 127.0.0.1",
        )


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _refuse_missing_directory(store: Path) -> None:
    if not store.absolute().parent.is_dir():
        raise Problem(
            f"the directory of --store {store} does not exist", "make it, or choose another file"
        )


def _refuse_second_broker(host: str, port: int) -> None:
    """Two brokers at one name server would take each other's names away."""
    if not port or not NameServer(host, port).answers():
        return
    connection = Connection(f"{_bracketed(host)}:{port}", timeout_s=2.0)
    if BROKER_NAME not in connection.names.registered(BROKER_NAME):
        return
    try:
        other = connection.broker("ping")
    except BrokerError:
        return  # its entry was left behind; ours takes its place
    raise Problem(
        f"a broker (pid {other['pid']}, store {other['store']}) runs already at the name server "
        f"{connection.name_server}",
        "stop it first, or give this one a name server of its own with --name-server HOST:PORT",
    )


# What is shown.


def _show_broker(described: dict[str, Any], owned: bool) -> None:
    channels = described["channels"]
    name_server = described["name_server"]
    elsewhere = "" if name_server == DEFAULT_NAME_SERVER else f" --name-server {name_server}"
    name = channels[0] if channels else "NAME"
    facts = {
        "name server": f"{name_server} ({'in this process' if owned else 'joined'})",
        "channels at": described["front"],
        "store": f"{described['store']} ({described['durability']})",
        "channels": _listed(channels)
        or "none yet; the first publish or 'fairlead create NAME' makes one",
        "try": f"fairlead pub {name} hello{elsewhere}\nfairlead sub {name}{elsewhere}",
        "stop": f"Ctrl-C, or kill {described['pid']}",
    }
    if described["topics"]:
        facts["topics"] = _listed(described["topics"])
    if described["fault_injection"]:
        facts["faults"] = "anybody may crash the queues (--fault-injection)"
    _show(f"broker {described['version']}", facts)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if names[8:] else "")


def _show(title: str, facts: dict[str, str]) -> None:
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(Text(name, style="dim"), Text(value, overflow="fold"))
    console = stdout_console()
    with suppress(OSError):  # a broker runs on when nobody reads its banner
        if console.is_terminal:
            console.print(Panel(table, title=f"fairlead {title}", title_align="left", expand=False))
        else:
            print(f"fairlead {title} is up")
            for name, value in facts.items():
                print(f"  {name + ':':13}{value.replace(chr(10), '; ')}", flush=True)


# The ready file.


def _write_ready(path: Path | None, described: dict[str, Any]) -> None:
    """Write it beside its place and move it there: who sees it sees all of it."""
    if path is None:
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(described) + "\n")
        beside.replace(path)
    except OSError as error:
        raise Problem(
            f"cannot write --ready-file {path}: {error.strerror}", "choose another place"
        ) from None


def _remove(path: Path | None) -> None:
    if path is not None:
        with suppress(OSError):
            path.unlink()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
