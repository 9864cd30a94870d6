"""What the subscribers really did, read back from their history files. Only data, no judgement.

Times are of the monotonic clock, which is one and the same for all processes of a machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Key = tuple[str, str]
MessageId = tuple[str, str, int]


class Run(NamedTuple):
    """One run of a handler. ``finish`` is None if it never came to its end."""

    subscriber: str
    publisher: str
    partition: str
    sequence: int
    attempt: int
    epoch: int
    start: float
    finish: float | None
    copy: bool = False

    @property
    def key(self) -> Key:
        """(publisher, partition)"""
        return (self.publisher, self.partition)

    @property
    def message(self) -> MessageId:
        """(publisher, partition, sequence)"""
        return (self.publisher, self.partition, self.sequence)


class Given(NamedTuple):
    """A message that arrived in a subscriber's buffer under an epoch."""

    message: MessageId
    epoch: int
    position: int
    attempt: int
    at: float


class Recall(NamedTuple):
    """A subscriber was asked for an assignment back and keeps it up to a position."""

    epoch: int
    upto: int
    at: float


@dataclass
class History:
    """All that one subscriber process saw and did."""

    channel: str
    subscriber: str
    runs: list[Run] = field(default_factory=list)
    given: dict[tuple[MessageId, int], Given] = field(default_factory=dict)
    recalls: dict[int, Recall] = field(default_factory=dict)
    died_at: float | None = None  # when it was killed
    left: bool = False  # it said good-bye
    _open: dict[tuple[MessageId, int], int] = field(default_factory=dict)

    def take(self, note: dict[str, Any]) -> None:
        """Take one line of the file in."""
        event = note["event"]
        if event == "received":
            self._take_received(note)
        elif event == "recalled":
            for epoch, upto in zip(note["epochs"], note["uptos"]):
                self.recalls.setdefault(epoch, Recall(epoch, upto, note["at"]))
        elif event == "left":
            self.left = True
        else:
            self._take_run(event, note)

    def _take_received(self, note: dict[str, Any]) -> None:
        for epoch, publisher, partition, position, sequence, count, attempt in note["runs"]:
            for step in range(count):
                message = (publisher, partition, sequence + step)
                # Only the first message of a run can have been tried before. What is sent again
                # under the same epoch is the same delivery.
                given = Given(message, epoch, position + step, 1 if step else attempt, note["at"])
                self.given.setdefault((message, epoch), given)

    def _take_run(self, event: str, note: dict[str, Any]) -> None:
        message = (note["publisher"], note["partition"], note["sequence"])
        place = (message, note["epoch"])
        if event == "start":
            self._open[place] = len(self.runs)
            self.runs.append(
                Run(
                    self.subscriber, *message, note["attempt"], note["epoch"], note["at"], None,
                    note["copy"],
                )
            )  # fmt: skip
        else:
            index = self._open.pop(place)
            self.runs[index] = self.runs[index]._replace(finish=note["at"])

    @property
    def in_hand(self) -> list[Run]:
        """What the handler has begun and not finished."""
        return [self.runs[index] for index in self._open.values()]

    @property
    def unstarted(self) -> int:
        """How many messages wait in its buffer."""
        return len(self.given.keys() - self._started()) - len(self.given_back())

    def given_back(self) -> list[Given]:
        """What arrived in its buffer and was recalled before the handler began with it.

        The position alone does not tell: a subscriber that has settled all of an assignment does
        not know it any more, and answers a recall that comes too late with position 0.
        """
        started, recalls = self._started(), self.recalls
        return [
            given
            for place, given in self.given.items()
            if given.epoch in recalls
            and given.position > recalls[given.epoch].upto
            and place not in started
        ]

    def _started(self) -> set[tuple[MessageId, int]]:
        return {(run.message, run.epoch) for run in self.runs}

    def finished(self) -> set[MessageId]:
        """The messages that the handler has finished."""
        return {run.message for run in self.runs if run.finish is not None}

    def longer_than(self, seconds: float) -> list[Run]:
        """The finished runs that took at least so long, in the order of their ends."""
        runs = [run for run in self.runs if run.finish and run.finish - run.start >= seconds]
        return sorted(runs, key=lambda run: run.finish or 0.0)


class HistoryFile:
    """A history file that is still being written: each ``read`` takes in what is new."""

    def __init__(self, path: Path, channel: str, subscriber: str) -> None:
        self.path = path
        self._history = History(channel, subscriber)
        self._offset = 0

    def read(self) -> History:
        """Everything up to now; a line that is half written is left for the next time."""
        if self.path.exists():
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._offset += len(whole) + 1
                for line in whole.split(b"\n"):
                    self._history.take(json.loads(line))
        return self._history
