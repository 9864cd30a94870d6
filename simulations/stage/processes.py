"""The processes of a story: the broker, the name server, subscribers and publishers.

Each is on the demonstration's leash, so it ends when the story is killed, and is a member of the
script, so it ends with the story; each is ended by its own pid. What a broker answers is asked here
by plain remote calls. Nothing here judges.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Sequence

from broker.core.records import Record
from broker.pyro_setup import Proxy, invoke
from broker.remote.lookup import ChannelAddress, parse_address
from broker.remote.name_server import NameServer
from simulations.demo.cast import Child, end_all
from simulations.demo.wait import DEADLINE_S, Failure
from simulations.stage.actors import Rule
from simulations.stage.proof import read_journal
from simulations.stage.script import CHANNEL, HANDLES, NAMES, PUBLISHES, SERVES, Script
from simulations.stage.seen import Run, read_notes, runs_in

HOST = "127.0.0.1"
CALL_TIMEOUT_S = 10.0

# Below the range that systems hand out by themselves: there a client that calls a dead broker's
# port again and again could be given that very port, and would keep the broker from coming back.
PORTS = range(12_000, 32_000)


def free_port() -> int:
    """A TCP port on loopback that nothing listens on. Not by the seed: stories run side by side."""
    for _ in range(200):
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise Failure(f"no free port between {PORTS.start} and {PORTS.stop}")


class Process:
    """A member of a script that is one child process at a time."""

    rank = SERVES

    def __init__(self, script: Script, name: str) -> None:
        self.script = script
        self.name = name
        self.child: Child | None = None
        self.exit_code: int | None = None  # of its last ending by SIGTERM, or by itself
        script.add(self)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.child is not None and self.child.alive

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._running().process.pid

    def _running(self) -> Child:
        if self.child is None:
            raise Failure(f"{self.name} is not running")
        return self.child

    def tail(self) -> str:
        """The end of its log."""
        return "(not started)" if self.child is None else self.child.tail()

    def check(self) -> None:
        """Raise if it has ended without being told to."""
        if self.child is not None:
            self.child.check()

    def may_end(self) -> None:
        """Its own end is no failure from now on."""
        self._running().killed = True

    def wait_end(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait until it has ended by itself; the exit code."""
        child = self._running()
        self.may_end()
        self.script.wait(lambda: not child.alive, f"{self.name} has ended", child.tail, deadline_s)
        self.exit_code = child.process.returncode
        return self.exit_code

    def kill9(self) -> None:
        """End it at once, as a power cut would; nothing is cleaned up."""
        child = self._running()
        child.killed = True
        if child.alive:
            os.kill(self.pid, signal.SIGKILL)
        child.kill()

    def freeze(self) -> None:
        """SIGSTOP, and wait until it has taken effect: it stands still as it is.

        The signal is only on its way when ``kill`` returns, and a thread that runs on another core
        goes on until it comes. A broker behind a prefix is no child of ours and is not waited for.
        """
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        if pid == self._running().process.pid:
            self.script.wait(
                lambda: not self.alive or os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG),
                f"{self.name} stands still",
            )

    def thaw(self) -> None:
        """SIGCONT: it goes on."""
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """SIGTERM, and SIGKILL if it does not follow; nothing if it has ended."""
        child = self.child
        if child is None:
            return
        if child.alive:
            child.killed = True
            self.thaw()
            end_all([child])
            self.exit_code = child.process.returncode
            if self.exit_code == -signal.SIGKILL:
                self.script.forced.append(self.name)
        else:
            end_all([child])


class NameServerProcess(Process):
    """``fairlead ns`` on one port, also when it is started again."""

    rank = NAMES

    def __init__(self, script: Script, name: str = "name-server") -> None:
        super().__init__(script, name)
        self.port = free_port()
        self.address = f"{HOST}:{self.port}"
        self._starts = 0
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.end()
        self._starts += 1
        self.child = Child(
            f"{self.name}-{self._starts}", self.script.folder, "simulations.demo.leash",
            "fairlead", "ns", "--port", self.port,
        )  # fmt: skip
        names = NameServer(HOST, self.port)
        self.script.wait(names.answers, "the name server answers", self.tail)

    def registered(self) -> set[str]:
        """The names that it knows."""
        return set(NameServer(HOST, self.port).registered())


class Broker(Process):
    """``fairlead up`` with fault hooks, on fixed free ports; up when the constructor returns.

    ``args``: more of its options. ``name_server``: join that one instead of starting one inside.
    ``store``: another file for the journal. ``prefix``: words before the command.
    """

    rank = SERVES

    def __init__(
        self,
        script: Script,
        *args: object,
        name: str = "broker",
        name_server: str | None = None,
        port: int | None = None,
        store: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(script, name)
        self.store = store or script.folder / f"{name}.db"
        self.port = port or free_port()
        self.name_server = name_server or f"{HOST}:{free_port()}"
        self.args = args
        self.prefix = tuple(prefix)
        self.ready: dict[str, Any] = {}
        self._ready_file = script.folder / f"{name}.ready.json"
        self._starts = 0
        self._proxies: dict[tuple[int, str], Any] = {}
        script.stores.append(self)
        self.start()

    # Life.

    def start(self) -> None:
        """Start it on its store and ports, and wait until it can be reached."""
        self.launch()
        self.ready = self.script.wait(self._read_ready, "the broker can be reached", self.tail)

    def launch(self) -> None:
        """Start it, and do not wait."""
        if self.alive:
            raise Failure(f"{self.name} runs already")
        self.end()
        self._ready_file.unlink(missing_ok=True)
        self.ready, self.exit_code = {}, None
        self._forget()
        self._starts += 1
        self.child = Child(
            f"{self.name}-{self._starts}", self.script.folder, "simulations.demo.leash",
            "fairlead", "up", "--store", self.store, "--port", self.port,
            "--name-server", self.name_server, "--ready-file", self._ready_file,
            "--fault-injection", *self.args, prefix=self.prefix,
        )  # fmt: skip

    def stop(self) -> int:
        """End it by SIGTERM; the exit code."""
        self._running()
        self.end()
        assert self.exit_code is not None
        return self.exit_code

    def end(self) -> None:
        """SIGTERM, if it runs."""
        self._forget()
        super().end()

    @property
    def pid(self) -> int:
        """The process id of the broker itself, also behind a prefix."""
        found: int = self.ready.get("pid") or self._running().process.pid
        return found

    def _read_ready(self) -> dict[str, Any] | None:
        if not self._ready_file.exists():
            return None
        found: dict[str, Any] = json.loads(self._ready_file.read_text())
        return found

    def _forget(self) -> None:
        for (thread, _), proxy in self._proxies.items():
            if thread == threading.get_ident():
                proxy._pyroRelease()
        self._proxies.clear()

    # Calls.

    def create(self, channel: str = CHANNEL, **policy: Any) -> None:
        """Make a channel with the given limits and times."""
        self.call_broker("create_channel", channel, policy)

    def call(self, method: str, *args: Any, channel: str = CHANNEL, **keywords: Any) -> Any:
        """A plain remote call of a channel, as any Pyro5 script could make it."""
        proxy = self._proxy(f"channel.{channel}")
        return invoke(proxy, method, *args, **keywords)

    def call_broker(self, method: str, *args: Any) -> Any:
        """A plain remote call of the broker object."""
        return invoke(self._proxy("fairlead.broker"), method, *args)

    def _proxy(self, name: str) -> Any:
        """A proxy belongs to one thread."""
        place = (threading.get_ident(), name)
        if place not in self._proxies:
            proxy = Proxy(NameServer(*parse_address(self.name_server)).lookup(name))
            proxy._pyroTimeout = CALL_TIMEOUT_S
            self._proxies[place] = proxy
        return self._proxies[place]

    def uri(self, channel: str = CHANNEL) -> str:
        """Where the name server says that the channel is."""
        return ChannelAddress(channel, self.name_server, CALL_TIMEOUT_S).uri()

    def statistics(self, channel: str = CHANNEL) -> dict[str, Any]:
        """The channel in numbers."""
        found: dict[str, Any] = self.call("statistics", channel=channel)
        return found

    def group(self, channel: str = CHANNEL, subscription: str = "default") -> dict[str, Any]:
        """A subscription in numbers."""
        found: dict[str, Any] = self.statistics(channel)["subscriptions"][subscription]
        return found

    # Waiting.

    def until(
        self, channel: str = CHANNEL, deadline_s: float = DEADLINE_S, **wanted: Any
    ) -> dict[str, Any]:
        """Wait until the default subscription shows these numbers; all of its numbers."""
        shown: dict[str, Any] = {}

        def reached() -> dict[str, Any] | None:
            group = self.group(channel)
            shown.update({name: group[name] for name in wanted})
            return group if shown == wanted else None

        return self.script.wait(reached, f"{channel} shows {wanted}", lambda: shown, deadline_s)

    def settled(
        self, count: int, channel: str = CHANNEL, deadline_s: float = DEADLINE_S
    ) -> dict[str, Any]:
        """Wait until so many are acknowledged and nothing is owed."""
        return self.until(channel, deadline_s, acked_total=count, backup=0)

    def joined(self, *workers: Worker | PlainWorker) -> None:
        """Wait until these subscribers are known to the broker."""
        names = {(worker.channel, worker.name) for worker in workers}

        def missing() -> list[str]:
            return [name for where, name in names if name not in self.group(where)["subscribers"]]

        self.script.wait(lambda: not missing(), f"{len(names)} subscribers have joined", missing)

    def journal(self, channel: str = CHANNEL) -> list[Record]:
        """End the clients and this broker, and read what it has written."""
        self.script.end(HANDLES)
        self.end()
        return read_journal(self.store, channel)


class _Actor(Process):
    """A child of ``actors`` with its settings and its record."""

    def __init__(self, script: Script, kind: str, settings: dict[str, Any]) -> None:
        name = settings["name"]
        super().__init__(script, name)
        self.channel: str = settings["channel"]
        self.options: dict[str, Any] = {"history": str(script.histories), **settings["options"]}
        stem = f"{name}.{kind}.{len(list(script.folder.glob(f'{name}.{kind}.*.json'))) + 1}"
        self.record = script.folder / f"{stem}.record"
        file = script.folder / f"{stem}.json"
        file.write_text(
            json.dumps({**settings, "options": self.options, "record": str(self.record)})
        )
        self.child = Child(stem, script.folder, "simulations.stage.actors", kind, file)

    def notes(self, event: str | None = None) -> list[dict[str, Any]]:
        """What it wrote down so far."""
        return [note for note in read_notes(self.record) if event in (None, note["event"])]


class Worker(_Actor):
    """A subscriber process with the behaviour that ``rules`` give it (see ``actors``).

    ``count``: leave after so many. Other options are those of Subscriber: prefetch, concurrency ...
    It has a history unless ``history=None`` is given. It may not have joined yet when the
    constructor returns: ``broker.joined(worker)`` waits for that.
    """

    rank = HANDLES

    def __init__(
        self,
        script: Script,
        name: str,
        name_server: str,
        *rules: Rule,
        channel: str = CHANNEL,
        count: int | None = None,
        **options: Any,
    ) -> None:
        settings = {
            "name": name, "channel": channel, "name_server": name_server, "rules": rules,
            "count": count, "options": options,
        }  # fmt: skip
        super().__init__(script, "subscribe", settings)
        if count is not None:
            self.may_end()

    def runs(self) -> list[Run]:
        """Its handler's runs, in the order of their starts."""
        return runs_in(read_notes(self.record))

    def begun(self, count: int = 1) -> list[Run]:
        """Wait until its handler has begun so many messages; all of them."""
        self.script.wait(
            lambda: len(self.runs()) >= count, f"{self.name} is in its message number {count}",
            lambda: f"{len(self.runs())} begun",
        )  # fmt: skip
        return self.runs()

    def handled(self) -> int:
        """How many messages it has finished. Cheap, also when they are many."""
        found = self.record.read_bytes() if self.record.exists() else b""
        return found.count(b'{"event": "finish"')


class PlainWorker(_Actor):
    """A plain Pyro5 subscriber that never acknowledges. ``fault``: its callback will "raise", or
    take what it is given and stay "silent"."""

    rank = HANDLES

    def __init__(
        self, script: Script, name: str, name_server: str, fault: str, channel: str = CHANNEL
    ) -> None:
        settings = {
            "name": name, "channel": channel, "name_server": name_server, "fault": fault,
            "options": {},
        }  # fmt: skip
        super().__init__(script, "answer", settings)

    def calls(self) -> list[list[Any]]:
        """What each call of its callback carried: (publisher, partition, sequence) of each."""
        return [note["messages"] for note in self.notes("receive")]


class PublisherProcess(_Actor):
    """A process that publishes ``count`` texts over ``partitions`` and notes what was confirmed.

    The bodies are "NAME:0", "NAME:1" ..., the partitions "NAME-0", "NAME-1" ... in turn. ``rate``:
    messages a second, 0 for as many as go.
    """

    rank = PUBLISHES

    def __init__(
        self,
        script: Script,
        name: str,
        name_server: str,
        count: int,
        channel: str = CHANNEL,
        partitions: int = 4,
        rate: float = 0.0,
        window: int = 200,
        **options: Any,
    ) -> None:
        self.count = count
        settings = {
            "name": name, "channel": channel, "name_server": name_server, "count": count,
            "partitions": partitions, "rate": rate, "window": window, "options": options,
        }  # fmt: skip
        super().__init__(script, "publish", settings)
        self.may_end()

    def confirmed(self) -> Counter[tuple[str, str, int]]:
        """(publisher, partition, sequence) of what the broker has confirmed, each as often as it
        was."""
        return Counter(
            (self.name, partition, sequence)
            for note in self.notes("confirmed")
            for partition, sequence in note["messages"]
        )

    def done(self) -> bool:
        """Whether it has published everything and got every confirmation."""
        if not self.alive and not self.notes("done"):
            raise Failure(f"{self.name} ended before it was done; its log ends: {self.tail()}")
        return bool(self.notes("done"))

    def finish(self) -> None:
        """Wait until it is done."""
        self.script.wait(self.done, f"{self.name} has published all", lambda: len(self.confirmed()))


def all_runs(*workers: Worker) -> list[Run]:
    """Everything that these subscribers saw, by the time of the start."""
    return sorted((run for worker in workers for run in worker.runs()), key=lambda run: run.start)
