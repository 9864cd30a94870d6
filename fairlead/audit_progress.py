"""How far an audit is: the step it is at, and how many of Spark's tasks are done.

A thread asks Spark twice a second. On a terminal this is a bar; elsewhere each step is one line.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fairlead.output import note, stderr_console

POLL_S = 0.5


class Steps:
    """The steps of one audit, shown on stderr."""

    def __init__(self, first: str) -> None:
        console = stderr_console()
        self._bar: Progress | None = None
        self._step: TaskID | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(),
                TextColumn("{task.completed:.0f}/{task.total:.0f} tasks"), TimeElapsedColumn(),
                console=console, transient=True,
            )  # fmt: skip
        self._began = time.monotonic()
        self._first = first
        self._session: Any = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Steps:
        if self._bar is not None:
            self._bar.start()
        self.begin(self._first)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
        if self._bar is not None:
            self._bar.stop()

    def begin(self, text: str) -> None:
        """The next step."""
        if self._bar is None:
            note(f"[{time.monotonic() - self._began:5.1f} s] {text} ...")
            return
        if self._step is not None:
            self._bar.remove_task(self._step)
        self._step = self._bar.add_task(text, total=1)

    def follow(self, session: Any) -> None:
        """Watch the tasks of this session."""
        if self._bar is None:
            return
        self._session = session
        self._thread = threading.Thread(target=self._watch, name="audit-progress", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Watch no more: the session is about to end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self._thread = None

    def _watch(self) -> None:
        tracker = self._session.sparkContext.statusTracker()
        while not self._stop.wait(POLL_S):
            try:
                stages = [tracker.getStageInfo(item) for item in tracker.getActiveStageIds()]
            except Exception:
                return  # Spark has gone; whoever asked it for work will hear why
            active = [stage for stage in stages if stage is not None]
            total = sum(stage.numTasks for stage in active)
            if self._bar is not None and self._step is not None and total:
                done = sum(stage.numCompletedTasks for stage in active)
                self._bar.update(self._step, completed=done, total=total)
