"""What the processes of a story wrote down, read back: one line of JSON per fact, one clock for all
(CLOCK_MONOTONIC is the same for all processes of a machine). Nothing here talks to a broker.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Iterable, NamedTuple

from subscriber import Message

Key = tuple[str, str]


class Recorder:
    """Appends lines so that not even a kill -9 loses one that was written."""

    def __init__(self, path: str, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._who = who

    def note(self, event: str, **facts: Any) -> None:
        """Write one line, by a single system call."""
        line = {"event": event, "who": self._who, "at": time.monotonic(), **facts}
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def message(self, event: str, message: Message) -> None:
        """Write one line about a message in the handler's hands."""
        self.note(
            event, publisher=message.publisher, partition=message.partition,
            sequence=message.sequence, position=message.position, attempt=message.attempt,
            epoch=message.epoch, body=message.body if isinstance(message.body, str) else None,
        )  # fmt: skip


class Run(NamedTuple):
    """One run of a handler, as the one who ran it saw it. ``finish`` is None if it never ended:
    its process died in it, or the handler raised."""

    who: str
    publisher: str
    partition: str
    sequence: int
    position: int
    attempt: int
    epoch: int
    start: float
    finish: float | None
    body: Any

    @property
    def key(self) -> Key:
        """(publisher, partition)"""
        return (self.publisher, self.partition)


def read_notes(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a record; one that is half written is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines()
    return [json.loads(line) for line in lines]


def runs_in(notes: Iterable[dict[str, Any]]) -> list[Run]:
    """The handler's runs, in the order of their starts."""
    runs: list[Run] = []
    open_runs: dict[tuple[Any, ...], int] = {}
    for note in notes:
        if note["event"] not in ("start", "finish"):
            continue
        facts = [note["who"], *(note[name] for name in Run._fields[1:7])]
        if note["event"] == "start":
            open_runs[tuple(facts)] = len(runs)
            runs.append(Run._make([*facts, note["at"], None, note["body"]]))
        else:
            at = open_runs.pop(tuple(facts))
            runs[at] = runs[at]._replace(finish=note["at"])
    return runs


def by_key(runs: Iterable[Run]) -> dict[Key, list[Run]]:
    """The runs of each partition."""
    found: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.key].append(run)
    return dict(found)


def sequences(runs: Iterable[Run], partition: str | None = None) -> list[int]:
    """The sequences, in the order given."""
    return [run.sequence for run in runs if partition in (None, run.partition)]


def count_repeated(runs: Iterable[Run]) -> int:
    """How many messages were started more than once."""
    started = Counter((*run.key, run.sequence) for run in runs)
    return sum(times > 1 for times in started.values())


def count_disorder(runs: Iterable[Run]) -> int:
    """How often a run of a partition began before the one before it in the order of starts had
    ended, or with a smaller position (a retry may repeat it), or under an older epoch.

    A run that never ended is taken to have ended when the next one begins: who looks at crashes
    compares with the time of the crash.
    """
    wrong = 0
    for seen in by_key(sorted(runs, key=lambda run: run.start)).values():
        for before, run in zip(seen, seen[1:]):
            overlap = before.finish is not None and before.finish > run.start
            wrong += overlap or run.position < before.position or run.epoch < before.epoch
    return wrong
