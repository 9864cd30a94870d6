"""The processes of the demonstration: one broker, the subscribers. Started and ended here, each by
its own pid; and the calls that anybody could make to the broker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Sequence

from broker.pyro_setup import Proxy, invoke
from broker.remote.lookup import ChannelAddress
from simulations.demo.history import History, HistoryFile
from simulations.demo.wait import Failure

ROOT = Path(__file__).resolve().parents[2]
CALL_TIMEOUT_S = 10.0
END_DEADLINE_S = 15.0

#: In the folder of the demonstration: the store, and what publishers and subscribers write of
#: themselves for the audit. The demonstration's own ``.history`` files are another matter.
STORE = "fairlead.db"
CLIENT_HISTORIES = "histories"


class Child:
    """A process on a leash. What it says goes to its log; its answer to a file, if it has one.

    ``prefix`` are words before the command, as of a program that runs it and watches it.
    """

    def __init__(
        self, name: str, folder: Path, module: str, *args: object, answer: Path | None = None,
        prefix: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.name = name
        self.killed = False
        self.log = folder / f"{name}.log"
        with open(self.log, "wb") as log, open(answer or os.devnull, "wb") as told:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, *map(str, args)],
                stdin=subprocess.PIPE, stdout=told if answer else log, stderr=log, cwd=ROOT,
                env=_environment(),
                start_new_session=True,  # a Ctrl-C is for the demonstration, not for its children
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def tell(self, line: str) -> None:
        """Send it a command."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended; whoever waits for an effect will find that out

    def kill(self) -> float:
        """End it at once (SIGKILL); the time at which that was done."""
        self.killed = True
        at = time.monotonic()
        self.process.kill()
        self.process.wait(END_DEADLINE_S)
        return at

    def check(self) -> None:
        """Raise if it has ended without being told to."""
        if not self.killed and not self.alive:
            raise Failure(
                f"{self.name} ended by itself (exit code {self.process.returncode}); its log ends: "
                f"{self.tail()}"
            )

    def tail(self) -> str:
        """The end of its log."""
        return " | ".join(self.log.read_text(errors="replace").splitlines()[-8:]) or "(empty)"


class Worker(Child):
    """A subscriber process with two histories: the demonstration's own, which ``history`` reads,
    and the one that every Subscriber can write, which is for the audit.
    """

    def __init__(
        self, name: str, channel: str, name_server: str, folder: Path, seed: int
    ) -> None:
        self.channel = channel
        self._file = HistoryFile(folder / f"{name}.history", channel, name)
        super().__init__(
            name, folder, "simulations.demo.worker", name, channel, name_server, self._file.path,
            folder / CLIENT_HISTORIES, seed,
        )  # fmt: skip

    def history(self) -> History:
        """What it did up to now."""
        return self._file.read()

    def crash(self) -> History:
        """SIGKILL; what it had done."""
        at = self.kill()
        history = self.history()
        history.died_at = at
        return history


class Broker(Child):
    """``fairlead up`` on free ports, with its store in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / STORE
        self._ready_file = folder / "ready.json"
        self._proxies: dict[str, Any] = {}
        self.name_server = ""
        super().__init__(
            "broker", folder, "simulations.demo.leash", "fairlead", "up", "--store", self.store,
            "--name-server", "127.0.0.1:0", "--ready-file", self._ready_file, "--fault-injection",
        )  # fmt: skip

    def ready(self) -> bool:
        """Whether it can be reached."""
        if not self.name_server and self._ready_file.exists():
            self.name_server = json.loads(self._ready_file.read_text())["name_server"]
        return bool(self.name_server)

    def call(self, channel: str, method: str, *args: Any) -> Any:
        """A plain remote call of a channel, as any Pyro5 script could make it."""
        proxy = self._proxies.get(channel)
        if proxy is None:
            uri = ChannelAddress(channel, self.name_server, CALL_TIMEOUT_S).uri()
            proxy = self._proxies[channel] = Proxy(uri)
            proxy._pyroTimeout = CALL_TIMEOUT_S
        return invoke(proxy, method, *args)

    def statistics(self, channel: str) -> dict[str, Any]:
        """The channel in numbers."""
        found: dict[str, Any] = self.call(channel, "statistics")
        return found

    def group(self, channel: str) -> dict[str, Any]:
        """The default subscription of a channel in numbers."""
        found: dict[str, Any] = self.statistics(channel)["subscriptions"]["default"]
        return found

    def release(self) -> None:
        """Let the connections go."""
        for proxy in self._proxies.values():
            proxy._pyroRelease()


def end_all(children: list[Any], deadline_s: float = END_DEADLINE_S) -> None:
    """SIGTERM for those that run, then a SIGKILL by pid for whoever does not follow in time."""
    running: list[Child] = [child for child in children if child.alive]
    try:
        for child in running:
            child.tell("normal")
            child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + deadline_s
        for child in running:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass  # the rest is done below
    finally:
        for child in children:
            if child.alive:
                child.kill()
            _close(child.process.stdin)


def _close(stream: IO[bytes] | None) -> None:
    try:
        if stream is not None:
            stream.close()
    except OSError:
        pass  # what was still to be said has no listener


def _environment() -> dict[str, str]:
    """The variables for a child: this project first on its path, none of the user's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD_", "PYRO_"))}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "NO_COLOR": "1"}
