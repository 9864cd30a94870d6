"""The only reader of time on the broker's side.

Milliseconds since 1970 that never run backwards: the wall clock is read once, at the start, and the
monotonic clock is added to it. A jump of the wall clock moves no lease, no back-off and no order.
"""

from __future__ import annotations

import time


class Clock:
    """Reads the time."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        """The time for decisions and records."""
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000

    def now_us(self) -> int:
        """The timestamp of a message whose publisher gave none."""
        return (time.monotonic_ns() + self._offset_ns) // 1_000
