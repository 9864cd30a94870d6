"""Attempts, and what becomes of a message that has none left: parking, and the way back from it."""

from __future__ import annotations

from typing import Iterator

from broker.core.records import ChannelCreated, Parked, Redriven
from simulations.checkers.anomaly import Findings
from simulations.checkers.line import Line
from simulations.checkers.lives import Lives


class Attempts:
    """delivery-limit; no-resurrection of what is parked or redriven."""

    def __init__(self, findings: Findings, lives: Lives) -> None:
        self._findings = findings
        self._lives = lives
        self._attempts_max: int | None = None

    def created(self, sequence: int, record: ChannelCreated) -> None:
        """How often a message may be tried is part of the channel's policy."""
        if record.policy.get("poison") != "block":
            self._attempts_max = record.policy.get("attempts_max")

    def of_delivery(self, line: Line, first: int, attempt: int) -> Iterator[tuple[str, str]]:
        """A nack is followed by the next attempt, a loss by the same or the next one."""
        most = self._attempts_max
        if most is not None and attempt > most:
            expected = f"at most {most}"
        elif line.tried_position == first:
            tried = line.tried_attempt
            if line.tried_failed and attempt != tried + 1:
                expected = f"{tried + 1} after a nack"
            elif not line.tried_failed and not tried <= attempt <= tried + 1:
                expected = f"{tried} or {tried + 1} after a loss"
            elif attempt < 1:
                expected = "1 or more"
            else:
                return
        elif attempt < 1 or (attempt > 1 and first > line.handed):
            expected = "1, as it was never tried"
        else:
            return
        yield "delivery-limit", f"attempt {attempt} at position {first}, expected {expected}"

    def parked(self, sequence: int, record: Parked) -> None:
        """Only the head of a line is parked, when nobody holds it and it has just failed."""
        life = self._lives.of(record.subscription)
        line = life.line(record.key)
        first = record.position
        if not line.doubtful:
            self._lives.doubt(line, sequence, _unfit_to_park(line, first, record.attempt))
        life.parked.add((record.key, first))
        if record.scope == "message":
            line.settle(first)
            line.delivered = first
            line.set_aside += 1
        elif record.scope == "partition":
            line.blocked = first
        line.failure = None
        line.touched = sequence

    def redriven(self, sequence: int, record: Redriven) -> None:
        """What is parked goes back to its line, or is given up; nothing else does."""
        life = self._lives.of(record.subscription)
        line = life.line(record.key)
        positions = record.positions
        for position in positions:
            if (record.key, position) not in life.parked:
                text = f"position {position} was redriven, but it was not parked"
                self._findings.report("no-resurrection", sequence, text, line.where)
            life.parked.discard((record.key, position))
        if record.dropped:
            _give_up(line, positions)
        else:
            if not line.doubtful:
                if line.owed == line.settled and not line.set_aside:
                    # Only what was never parked can begin a line.
                    self._lives.report(line, line.order.begin(None, line.settled))
                self._lives.report(line, line.order.redrive(sequence, positions))
            line.owed += len(positions)
            line.set_aside -= len(positions)
        line.blocked = 0
        line.tried_position = None
        line.touched = sequence


def of_nack(line: Line, first: int, attempt: int) -> list[tuple[str, str]]:
    """A message fails as the attempt that it was given as."""
    if line.tried_position != first or attempt == line.tried_attempt:
        return []
    text = f"nacked at {first} as attempt {attempt}, expected {line.tried_attempt}, as it was given"
    return [("delivery-limit", text)]


def _unfit_to_park(line: Line, first: int, attempt: int) -> Iterator[tuple[str, str]]:
    if first <= line.settled:
        yield "no-resurrection", f"parked at {first} when settled up to {line.settled}"
    elif line.in_flight or first != line.settled + 1:
        yield "delivery-limit", f"parked at {first} while {line.state()}"
    else:
        failure = line.failure
        if failure is None or failure[0] != first or failure[1] not in (None, attempt):
            yield "delivery-limit", f"parked at {first} as attempt {attempt}, which has not failed"


def _give_up(line: Line, positions: list[int]) -> None:
    """A partition that was parked whole loses the message for which it was."""
    blocked = line.blocked
    gives_up = blocked > line.settled and blocked in positions
    line.set_aside += gives_up - len(positions)
    if gives_up:
        line.settle(blocked)
        line.delivered = blocked
