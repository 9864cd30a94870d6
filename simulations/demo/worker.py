"""One subscriber process of the demonstration. It handles, and writes down what it really did.

``python -m simulations.demo.worker SUBSCRIBER CHANNEL NAME_SERVER HISTORY AUDITED SEED``. Each fact
is one JSON line in the file HISTORY, written by a single system call: what was written before a
SIGKILL is there. Beside it, and unknown to it, the Subscriber writes its usual history into the
folder AUDITED. Three words on standard input change how the handler behaves: ``hold`` (stand still
inside the next message), ``slow SECONDS`` (take that long for each), ``normal``. Nothing here
judges; see ``check``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from typing import Any

from simulations.demo import leash
from subscriber import Message, Subscriber

PREFETCH = 200
WORK_S = (0.001, 0.003)


class Recorder:
    """Appends facts to the history file."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, event: str, **facts: Any) -> None:
        """Write one line."""
        line = {"event": event, "at": time.monotonic(), **facts}
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def message(self, event: str, message: Message) -> None:
        """Write one line about a message in the handler's hands."""
        self.note(
            event, publisher=message.publisher, partition=message.partition,
            sequence=message.sequence, attempt=message.attempt, epoch=message.epoch,
            copy=bool(message.body.get("copy")),
        )  # fmt: skip


class RecordingSubscriber(Subscriber):
    """Also writes down what arrives in its buffer, and what it is asked to give back."""

    def __init__(self, recorder: Recorder, subscriber: str, channel: str, **options: Any) -> None:
        super().__init__(subscriber, channel, **options)
        self._recorder = recorder

    def received(self, batch: dict[str, Any]) -> None:
        """Note what has arrived, run by run."""
        publishers = batch["publishers"]
        counts = batch["counts"]
        names = [publishers] * len(counts) if isinstance(publishers, str) else publishers
        attempts = batch["attempts"] or [1] * len(counts)
        runs = zip(
            batch["epochs"], names, batch["partitions"], batch["firsts"], batch["sequences"],
            counts, attempts,
        )  # fmt: skip
        self._recorder.note("received", runs=[list(run) for run in runs])

    def recalled(self, epochs: list[int], uptos: list[int]) -> None:
        """Note what is given back."""
        self._recorder.note("recalled", epochs=list(epochs), uptos=uptos)


class Mood:
    """How the handler behaves: as it should, slow, or standing still."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self._free = threading.Event()
        self._free.set()
        self._slow_s = 0.0

    def obey(self, line: str) -> None:
        """Take a command."""
        word, _, value = line.partition(" ")
        if word == "hold":
            self._free.clear()
        elif word == "slow":
            self._slow_s = float(value)
        elif word == "normal":
            self._slow_s = 0.0
            self._free.set()

    def work(self) -> None:
        """Take the time that a message takes."""
        self._free.wait()
        time.sleep(self._slow_s or self._random.uniform(*WORK_S))


def main(
    subscriber: str, channel: str, name_server: str, history: str, audited: str, seed: str
) -> None:
    """Handle messages until told to stop."""
    recorder = Recorder(history)
    mood = Mood(f"{seed}/{subscriber}")
    worker = RecordingSubscriber(
        recorder, subscriber, channel, name_server=name_server, prefetch=PREFETCH, history=audited
    )

    @worker.handler
    def handle(message: Message) -> None:
        recorder.message("start", message)
        mood.work()
        recorder.message("finish", message)

    leash.hold(mood.obey)
    handled = worker.run()
    recorder.note("left", handled=handled)


if __name__ == "__main__":
    main(*sys.argv[1:])
