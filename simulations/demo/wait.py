"""Waiting without guessing: ask until it is so, up to a deadline, and say what was seen instead."""

from __future__ import annotations

import time
from typing import Callable, TypeVar

INTERVAL_S = 0.02
DEADLINE_S = 30.0

Found = TypeVar("Found")


class Failure(Exception):
    """The demonstration cannot go on; the text says what was waited for and what was seen."""


def wait_until(
    condition: Callable[[], Found | None],
    what: str,
    seen: Callable[[], str],
    deadline_s: float = DEADLINE_S,
    meanwhile: Callable[[], None] = lambda: None,
) -> Found:
    """Ask until ``condition`` answers something true, and return that.

    ``meanwhile`` is called between two questions and may raise. Raises Failure at the deadline.
    """
    deadline = time.monotonic() + deadline_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise Failure(f"waited {deadline_s:g} s in vain: {what}; seen: {seen()}")
        meanwhile()
        time.sleep(INTERVAL_S)
    return found
