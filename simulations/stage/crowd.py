"""A crowd: many subscribers in one process, told to join all at once.

``python -m simulations.stage.crowd SETTINGS`` with the settings as a JSON file. ``pull``: plain
subscribers that fetch, all over one connection, in the manner of a script without Fairlead;
``push``: real Subscriber objects. All of them join when the file ``go`` is there, and handle until
they are told to stop; then they leave. What each saw goes into one record, under its own name.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from broker.errors import BrokerError
from broker.pyro_setup import Proxy, invoke
from broker.remote.lookup import ChannelAddress
from simulations.demo import leash
from simulations.demo.cast import Child, end_all
from simulations.stage.script import CHANNEL, HANDLES, Script
from simulations.stage.seen import Recorder, Run, read_notes, runs_in
from subscriber import Message, Subscriber

PAUSE_S = 0.01
IDLE_S = 0.3
TIMEOUT_S = 30.0
PREFETCH = 10


class Crowd:
    """A process with many subscribers, as a member of a script."""

    rank = HANDLES

    def __init__(
        self, script: Script, name: str, name_server: str, go: Path, kind: str, count: int
    ) -> None:
        self.names = [f"{name}-{number}" for number in range(count)]
        self._record = script.folder / f"{name}.record"
        file = script.folder / f"{name}.json"
        settings = {
            "names": self.names, "name_server": name_server, "channel": CHANNEL, "kind": kind,
            "go": str(go), "record": str(self._record), "history": str(script.histories),
        }  # fmt: skip
        file.write_text(json.dumps(settings))
        self._child = Child(name, script.folder, "simulations.stage.crowd", file)
        script.add(self)

    def check(self) -> None:
        """Raise if it has ended without being told to."""
        self._child.check()

    def tail(self) -> str:
        """The end of its log."""
        return self._child.tail()

    def notes(self, event: str) -> list[dict[str, Any]]:
        """What was written down so far."""
        return [note for note in read_notes(self._record) if note["event"] == event]

    def runs(self) -> list[Run]:
        """What its subscribers handled."""
        return runs_in(read_notes(self._record))

    def leave(self) -> None:
        """Let all of them leave; does not wait."""
        self._child.killed = True
        self._child.tell("normal")

    def end(self) -> None:
        """Let all leave, and end it."""
        self._child.killed = True
        end_all([self._child])


# In the process itself.


def pull(settings: dict[str, Any], recorder: Recorder, stop: threading.Event) -> None:
    """One connection; each subscriber in its turn: subscribe, then fetch, note, acknowledge."""
    sessions: dict[str, str] = {}
    received = dict.fromkeys(settings["names"], 0)
    address = ChannelAddress(settings["channel"], settings["name_server"], TIMEOUT_S)
    with Proxy(address.uri()) as proxy:
        proxy._pyroTimeout = TIMEOUT_S
        for name in settings["names"]:
            asked = time.monotonic()
            answer = invoke(proxy, "subscribe", name, None, PREFETCH)
            sessions[name] = answer["session"]
            recorder.note("joined", who=name, seconds=time.monotonic() - asked)
        while not stop.is_set():
            before = sum(received.values())
            for name, session in sessions.items():
                received[name] = _fetch(proxy, recorder, name, session, received[name])
            if sum(received.values()) == before:
                stop.wait(IDLE_S)  # to look is not free for the broker
        for name, session in sessions.items():
            invoke(proxy, "leave", name, session)


def _fetch(proxy: Any, recorder: Recorder, name: str, session: str, received: int) -> int:
    """What waits for one subscriber; the number of the batch."""
    answer = invoke(proxy, "fetch", name, session, PREFETCH, 0.0, received)
    if answer["number"] == received:
        return received
    for message in answer["messages"]:
        facts = {key: message[key] for key in Run._fields[1:7]}
        recorder.note("start", **{**facts, "who": name, "body": None})
        recorder.note("finish", **{**facts, "who": name})
        invoke(proxy, "ack", name, session, message["epoch"], message["position"])
    return int(answer["number"])


def push(settings: dict[str, Any], recorder: Recorder, stop: threading.Event) -> None:
    """A thread for each to join, so that they do it at once; then they live by themselves."""
    joined: list[Subscriber] = []

    def join(name: str) -> None:
        worker = Subscriber(
            name, settings["channel"], name_server=settings["name_server"], prefetch=PREFETCH,
            timeout_s=TIMEOUT_S, history=settings["history"],
        )  # fmt: skip

        @worker.handler
        def handle(message: Message) -> None:
            facts = {key: getattr(message, key) for key in Run._fields[1:7]}
            recorder.note("start", **{**facts, "who": name, "body": None})
            recorder.note("finish", **{**facts, "who": name})

        asked = time.monotonic()
        try:
            worker.start()
        except BrokerError as error:
            recorder.note("refused", who=name, code=error.code)
            return
        joined.append(worker)
        recorder.note("joined", who=name, seconds=time.monotonic() - asked)

    _in_threads([lambda name=name: join(name) for name in settings["names"]])
    stop.wait()
    _in_threads([worker.close for worker in joined])


def _in_threads(functions: list[Any]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(settings: dict[str, Any]) -> None:
    """Wait for the word, join, handle, leave."""
    stop = threading.Event()
    leash.hold(lambda line: stop.set() if line == "normal" else None)
    recorder = Recorder(settings["record"], "crowd")
    recorder.note("waiting")
    while not os.path.exists(settings["go"]) and not stop.is_set():
        time.sleep(PAUSE_S)
    {"pull": pull, "push": push}[settings["kind"]](settings, recorder, stop)
    recorder.note("left")


if __name__ == "__main__":
    import signal

    # The word to stop comes through the leash, just before the signal.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    main(json.loads(Path(sys.argv[1]).read_text()))
