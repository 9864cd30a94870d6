"""The script of a story: its folder, its screen, what it expects, its end and its exit code.

``main`` runs a story. Whatever the story starts is a ``Member`` of its script and is ended by it,
in the order of the ranks, however the story ends. The processes themselves are in ``processes``,
the two expectations that every story ends with in ``proof``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Protocol

from rich import box
from rich.table import Table
from rich.text import Text

from broker.errors import BrokerError
from publisher import Publisher
from simulations.demo.screen import Screen
from simulations.demo.wait import DEADLINE_S, Failure, Found, wait_until
from simulations.stage import proof

CHANNEL = "orders"
HISTORIES = "histories"
PUBLISHER_END_S = 3.0

WRONG = 1
NOT_KNOWN = 2

#: In this order members end: who publishes, who handles, brokers, name servers.
PUBLISHES, HANDLES, SERVES, NAMES = range(4)


class CannotTell(Exception):
    """The story cannot be told on this machine; the text says what is missing."""


class Interrupted(BaseException):
    """A signal asks for the end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Member(Protocol):
    """Somebody who takes part in a story."""

    rank: int

    def check(self) -> None:
        """Raise Failure if it has ended without being told to."""

    def end(self) -> None:
        """End it, if it is not ended; may be called again."""


class Store(Protocol):
    """What the proof wants of a broker: the file, and the exit code of the last stop."""

    store: Path
    exit_code: int | None


@dataclass
class Expectation:
    """What was expected, what was observed, and whether that is good."""

    what: str
    expected: str
    observed: str
    good: bool


class _OpenPublisher:
    """A publisher inside the story's own process, as a member."""

    rank = PUBLISHES

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def check(self) -> None:
        """It cannot end by itself."""

    def end(self) -> None:
        """Close it; what is not confirmed by then stays open."""
        self._publisher.close(PUBLISHER_END_S)


class Script:
    """One performance of a story.

    ``drained``: whether nothing may be owed at the end; a story that leaves messages behind on
    purpose sets it to False.
    """

    def __init__(self, folder: Path, seed: int, screen: Screen) -> None:
        self.folder = folder
        self.seed = seed
        self.random = random.Random(seed)
        self.screen = screen
        self.drained = True
        self.steps: list[tuple[float, str, str]] = []
        self.expectations: list[Expectation] = []
        self.stores: list[Store] = []
        self.forced: list[str] = []  # who did not follow SIGTERM at the end and was killed
        self._members: list[Member] = []
        self._gates: list[Path] = []
        self._at_end: list[Callable[[], None]] = []

    # What the story tells.

    def step(self, topic: str, text: str) -> None:
        """Show one line."""
        self.steps.append((round(self.screen.seconds, 1), topic, text))
        self.screen.step(topic, text)

    def expect(self, what: str, expected: Any, observed: Any) -> bool:
        """Note what should be equal; whether it is."""
        return self.expect_true(what, _shown(expected), observed, bool(expected == observed))

    def expect_true(self, what: str, expected: str, observed: Any, good: bool) -> bool:
        """Note an expectation in words, what was observed, and whether that is good."""
        self.expectations.append(Expectation(what, expected, _shown(observed), good))
        return good

    def cannot_tell(self, reason: str) -> None:
        """End the story with exit code 2: something that it needs is not here."""
        raise CannotTell(reason)

    # Who takes part.

    def add(self, member: Member) -> None:
        """End this one with the story, and look after it while waiting."""
        self._members.append(member)

    def at_end(self, function: Callable[[], None]) -> None:
        """Call this after all members have ended, the last one first."""
        self._at_end.append(function)

    def publisher(
        self, name: str, name_server: str, channel: str = CHANNEL, **options: Any
    ) -> Publisher:
        """A publisher inside this process, with a history; closed with the story."""
        options.setdefault("history", self.histories)
        made = Publisher(name, channel, name_server=name_server, **options)
        self.add(_OpenPublisher(made))
        return made

    def gate(self, name: str) -> Path:
        """A file that handlers wait for. ``touch`` it to let them go on; the end does, too."""
        path = self.folder / f"gate-{name}"
        self._gates.append(path)
        return path

    @property
    def histories(self) -> Path:
        """The folder of what publishers and subscribers write of themselves."""
        path = self.folder / HISTORIES
        path.mkdir(exist_ok=True)
        return path

    # Waiting.

    def wait(
        self,
        condition: Callable[[], Found | None],
        what: str,
        seen: Callable[[], Any] = lambda: "not so",
        deadline_s: float = DEADLINE_S,
    ) -> Found:
        """Ask until it is so, with an eye on the members. Raises Failure at the deadline."""

        def shown() -> str:
            return str(seen())

        def meanwhile() -> None:
            for member in self._members:
                member.check()
            self.screen.progress(what, shown)

        try:
            return wait_until(condition, what, shown, deadline_s, meanwhile)
        finally:
            self.screen.quiet()

    # The end.

    def end(self, upto: int = NAMES) -> None:
        """End the members up to that rank; the rest goes on. May be called again."""
        for gate in self._gates:
            gate.touch()
        ending = sorted(
            (member for member in self._members if member.rank <= upto), key=lambda m: m.rank
        )
        _call_all([member.end for member in ending])

    def close(self) -> None:
        """End everything, however far the story came."""
        functions, self._at_end = self._at_end[::-1], []
        _call_all([self.end, *functions])


def _call_all(functions: list[Callable[[], None]]) -> None:
    """Call each, also if one before it raised."""
    if functions:
        try:
            functions[0]()
        finally:
            _call_all(functions[1:])


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    return f"{value:,}" if isinstance(value, int) else str(value)


# How a story is run.


def main(story: Callable[[Script], None], title: str, about: str) -> int:
    """Run a story; the exit code is 0 only if everything is as expected."""
    options = _options(title, about)
    catch_signals()
    screen = Screen()
    screen.console.print(Text(title, style="bold"))
    screen.console.print(Text(about, style="dim"), soft_wrap=True)
    folder = Path(tempfile.mkdtemp(prefix="fairlead-story-"))
    code = WRONG
    try:
        code = _run(story, Script(folder, options.seed, screen), options)
    except Interrupted as interrupted:
        code = 128 + interrupted.number
    finally:
        if options.keep or code == WRONG:
            screen.step("kept", f"store, logs and histories are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _run(
    story: Callable[[Script], None], script: Script, options: argparse.Namespace
) -> int:
    code, reason = WRONG, ""
    try:
        code, reason = _tell(story, script)
        show_expectations(script)
        script.step(*_verdict(script, code, reason))
    finally:
        _write(script, options, code, reason)
    return code


def _tell(story: Callable[[Script], None], script: Script) -> tuple[int, str]:
    """Let it happen; the exit code, and why it is not 0 if that is not in the expectations."""
    try:
        try:
            story(script)
            script.step("end", "ending all processes; reading the journal and the histories")
        finally:
            script.close()
        proof.prove(script)
    except CannotTell as reason:
        return NOT_KNOWN, str(reason)
    except (Failure, BrokerError) as error:
        return WRONG, str(error)
    except Interrupted as interrupted:
        script.screen.quiet()
        script.step("stop", f"{signal.Signals(interrupted.number).name}: all processes are ended")
        raise
    except Exception as error:
        script.screen.quiet()
        traceback.print_exc()
        return WRONG, f"{type(error).__name__}: {error}"
    return (0 if all(item.good for item in script.expectations) else WRONG), ""


def _verdict(script: Script, code: int, reason: str) -> tuple[str, str]:
    if code == NOT_KNOWN:
        return "unknown", f"this story cannot be told here: {reason}"
    if reason:
        return "FAILED", reason
    good = sum(item.good for item in script.expectations)
    whole = "as expected" if code == 0 else "NOT as expected"
    return "verdict", f"{whole}: {good} of {len(script.expectations)} expectations are met"


def show_expectations(script: Script) -> None:
    """Print what was expected and what was observed."""
    if not script.expectations:
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    for name in ("what", "expected", "observed"):
        table.add_column(name, overflow="fold")
    for item in script.expectations:
        table.add_row(
            script.screen.mark(item.good), Text(item.what), Text(item.expected),
            Text(item.observed, style="" if item.good else "bold red"),
        )  # fmt: skip
    script.screen.console.print()
    script.screen.console.print(table)
    script.screen.console.print()


def _write(script: Script, options: argparse.Namespace, code: int, reason: str) -> None:
    if options.json is not None:
        whole = {
            "story": options.story, "ok": code == 0, "exit_code": code, "reason": reason,
            "seed": script.seed, "seconds": round(script.screen.seconds, 1),
            "steps": script.steps, "expectations": [asdict(item) for item in script.expectations],
        }  # fmt: skip
        options.json.write_text(json.dumps(whole, indent=2) + "\n")


def _options(title: str, about: str) -> argparse.Namespace:
    name = Path(sys.argv[0]).stem
    parser = argparse.ArgumentParser(
        prog=f"python -m simulations.{name}",
        description=f"{title}. {about}",
        epilog="Exit code: 0 all is as expected; 1 something is not, or a step failed; 2 the story "
        "cannot be told on this machine, or wrong usage; 128 + the signal's number when "
        "interrupted.",
    )
    parser.add_argument("--seed", type=int, default=1, help="what is drawn by lot (default: 1)")
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder with store, logs and histories"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write what was expected and observed there"
    )
    options = parser.parse_args()
    options.story = name
    path = options.json
    if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
        parser.error(f"{path} cannot be written: name a file in a folder where you may write")
    return options


def catch_signals() -> None:
    """From now on a signal that asks for the end raises Interrupted."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(number)
