"""Real processes for tests: a broker with its store and ports, the command line, a way to wait.

What lives here: ``BrokerProcess``, ``run_fairlead``, ``start_fairlead``, ``free_port``, ``poll``.
What may not: anything that knows what a test checks. Every process is ended by its own pid.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, TypeVar

ROOT = Path(__file__).resolve().parent.parent
START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 20.0
INTERVAL_S = 0.02
HOST = "127.0.0.1"

# Below the range that systems hand out by themselves: there a client that calls a dead broker's
# port again and again could be given that very port, and would keep the broker from coming back.
PORTS = range(12_000, 32_000)

Found = TypeVar("Found")


def poll(condition: Callable[[], Found | None], deadline_s: float, what: str) -> Found:
    """Ask until ``condition`` answers something true, and return it; fail after ``deadline_s``."""
    deadline = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s:g} s: {what} (last answer {found!r})")
        time.sleep(INTERVAL_S)


def free_port() -> int:
    """A TCP port on loopback that nothing listens on."""
    for _ in range(200):
        port = random.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port between {PORTS.start} and {PORTS.stop}")


def environment(**more: str) -> dict[str, str]:
    """The variables for a child: this project first on its path, none of the caller's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD_", "PYRO_"))}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", **more}


def command_line(*args: object) -> list[str]:
    """How ``fairlead`` is called with the Python that runs the tests."""
    return [sys.executable, "-m", "fairlead", *map(str, args)]


def run_fairlead(
    *args: object,
    name_server: str = "",
    stdin: str | bytes = b"",
    timeout_s: float = 60.0,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; ``variables`` are added to its environment."""
    if name_server:
        variables["FAIRLEAD_NAME_SERVER"] = name_server
    done = subprocess.run(
        command_line(*args),
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True, env=environment(**variables), timeout=timeout_s, check=False,
    )  # fmt: skip
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def start_fairlead(
    *args: object,
    name_server: str = "",
    stdin: Any = subprocess.DEVNULL,
    stdout: Any = subprocess.PIPE,
    stderr: Any = subprocess.PIPE,
    **variables: str,
) -> subprocess.Popen[bytes]:
    """Start one command and leave it running; the caller ends it."""
    if name_server:
        variables["FAIRLEAD_NAME_SERVER"] = name_server
    return subprocess.Popen(
        command_line(*args), stdin=stdin, stdout=stdout, stderr=stderr,
        env=environment(**variables),
    )  # fmt: skip


class BrokerProcess:
    """``fairlead up`` in a process of its own, with its store, ready file and log in ``directory``.

    It is up when the constructor returns. ``restart`` keeps the store and the name server's port,
    so that clients find it again. ``name_server``: join that one instead of starting one inside.
    """

    def __init__(
        self, directory: Path, *args: object, name_server: str | None = None, **variables: str
    ) -> None:
        self.directory = Path(directory)
        self.store = self.directory / "fairlead.db"
        self.ready_file = self.directory / "ready.json"
        self.log = self.directory / "broker.log"
        self.name_server = name_server or f"{HOST}:{free_port()}"
        self.ready: dict[str, Any] = {}
        self._args = args
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    # Life.

    def start(self) -> None:
        """Start it and wait until it is reachable; fail with its log when it ends instead."""
        assert self._process is None, "the broker is running already"
        self.ready_file.unlink(missing_ok=True)
        with open(self.log, "ab") as log:
            self._process = start_fairlead(
                "up", "--store", self.store, "--name-server", self.name_server,
                "--ready-file", self.ready_file, *self._args,
                stdout=log, stderr=log, **self._variables,
            )  # fmt: skip
        try:
            self.ready = poll(self._read_ready, START_DEADLINE_S, "the broker is up")
        except BaseException:
            self.kill9()
            raise

    def stop(self) -> int:
        """Ask it to end (SIGTERM), wait for that, and return its exit code."""
        return self.end(signal.SIGTERM)

    def end(self, signum: int) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(signum)
        return self.wait()

    def wait(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """Wait until it has ended by itself, and return its exit code."""
        assert self._process is not None, "the broker is not running"
        try:
            code = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill9()
            text = f"the broker did not end in {deadline_s} s; {self.tail()}"
            raise AssertionError(text) from None
        self._process = None
        return code

    def kill9(self) -> None:
        """End it at once, as a power cut would end it; nothing is cleaned up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self, *args: object) -> BrokerProcess:
        """Start it again, after stopping it if it runs; with other arguments if some are given."""
        self.stop()
        if args:
            self._args = args
        self.start()
        return self

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self.kill9()

    # Looking.

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def run(self, *args: object, **keywords: Any) -> subprocess.CompletedProcess[str]:
        """Run a command against this broker."""
        return run_fairlead(*args, name_server=self.name_server, **keywords)

    def read_json(self, *args: object) -> Any:
        """What a reading command answers with ``--json``."""
        done = self.run(*args, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def tail(self, lines: int = 30) -> str:
        """The end of its log, for the text of a failure."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "its log ends:\n" + "\n".join(text.splitlines()[-lines:])

    def _read_ready(self) -> dict[str, Any] | None:
        if not self.alive:
            raise AssertionError(f"the broker ended before it was up; {self.tail()}")
        if not self.ready_file.exists():
            return None
        found: dict[str, Any] = json.loads(self.ready_file.read_text())
        return found
