"""Receipt: the answer to ``publish``. It knows its message's outcome once the broker has confirmed
it."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from broker.errors import BrokerError, BrokerUnavailable
from publisher.batch import Batch, follow


class Accepted(NamedTuple):
    """The message is in the channel's journal, durably; or, as a ``duplicate``, it was before.

    When the answer to a call got lost and the call was sent again, a message that was dropped for
    its id the first time is not told apart any more and counts as accepted.
    """

    sequence: int
    duplicate: bool


class Receipt:
    """One message's outcome. Cheap: it is only a place in a batch.

    ``done()`` never blocks; ``result()`` waits and raises the BrokerError if there is one.
    """

    __slots__ = ("_batch", "_index", "_changed")

    def __init__(self, batch: Batch, index: int, changed: threading.Condition) -> None:
        self._batch = batch
        self._index = index
        self._changed = changed

    def _outcome(self) -> tuple[int, bool] | BrokerError | None:
        self._batch, self._index = follow(self._batch, self._index)
        return self._batch.outcome(self._index)

    def done(self) -> bool:
        """Whether the outcome is known."""
        with self._changed:
            return self._outcome() is not None

    def result(self, timeout: float | None = 30.0) -> Accepted:
        """Wait for the outcome. Raises the error it was refused with, or BrokerUnavailable."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while (outcome := self._outcome()) is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise BrokerUnavailable(
                        f"no confirmation within {timeout} s; the message may have been accepted, "
                        "the publisher goes on trying"
                    )
                self._changed.wait(left)
        if isinstance(outcome, BrokerError):
            raise outcome
        return Accepted(*outcome)

    def error(self, timeout: float | None = 30.0) -> BrokerError | None:
        """Like :meth:`result`, but the error is returned; None means that it was accepted."""
        try:
            self.result(timeout)
        except BrokerError as error:
            return error
        return None


class Receipts:
    """The receipts of one ``publish_many``: stretches of batches, opened one by one on demand."""

    __slots__ = ("_places", "_changed")

    def __init__(
        self, places: list[tuple[Batch, int, int]], changed: threading.Condition
    ) -> None:
        self._places = places
        self._changed = changed

    def __len__(self) -> int:
        return sum(count for _, _, count in self._places)

    def __iter__(self):  # type: ignore[no-untyped-def]
        for batch, first, count in self._places:
            for index in range(first, first + count):
                yield Receipt(batch, index, self._changed)

    def result(self, timeout: float | None = 30.0) -> list[Accepted]:
        """Wait for all of them; raises the first error."""
        deadline = None if timeout is None else time.monotonic() + timeout
        accepted = []
        for receipt in self:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            accepted.append(receipt.result(left))
        return accepted
