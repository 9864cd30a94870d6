"""How the demonstration shows itself while it runs: one line per step; on a terminal, a moving line
with what is being waited for. Into a pipe go plain lines and nothing else.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Callable, Iterator

from rich.console import Console
from rich.status import Status
from rich.text import Text

PIPE_WIDTH = 130
PROGRESS_INTERVAL_S = 0.25
STYLES = {"crash": "red", "slow": "yellow", "queues": "magenta", "copies": "cyan", "audit": "blue"}


class Screen:
    """Where it is shown, and the clock that the lines carry."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, markup=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, markup=False, width=PIPE_WIDTH)
        self.began = time.monotonic()
        self.parts: dict[str, float] = {}
        self._status: Status | None = None
        self._shown_at = 0.0

    @property
    def seconds(self) -> float:
        """The time since the beginning."""
        return time.monotonic() - self.began

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of this block under that name, also if it fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.parts[name] = self.parts.get(name, 0.0) + time.monotonic() - began

    def show_parts(self) -> None:
        """One line: how many seconds each part took."""
        spent = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts.items())
        self.step("seconds", f"{spent}; together {sum(self.parts.values()):.1f}")

    def mark(self, good: bool) -> Text:
        """A check mark or a cross, in letters where the terminal has no others."""
        signs = ("✔", "✘") if self.console.encoding.lower().startswith("utf") else ("ok", "NO")
        return Text(signs[0], style="green") if good else Text(signs[1], style="bold red")

    def step(self, topic: str, text: str) -> None:
        """One line: when, what about, what."""
        line = Text().append(f"{self.seconds:5.1f} s  ", style="dim")
        line.append(f"{topic:9}", style=STYLES.get(topic, "bold")).append(text)
        self.console.print(line, soft_wrap=True)

    def progress(self, what: str, seen: Callable[[], str]) -> None:
        """On a terminal: what is being waited for, and how it stands."""
        now = time.monotonic()
        if not self.console.is_terminal or now - self._shown_at < PROGRESS_INTERVAL_S:
            return
        self._shown_at = now
        text = Text(f"{what} ... {seen()}", style="dim", overflow="ellipsis", no_wrap=True)
        if self._status is None:
            self._status = self.console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def quiet(self) -> None:
        """The wait is over."""
        if self._status is not None:
            self._status.stop()
            self._status = None
