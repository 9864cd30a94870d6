"""SubscriberHistory: what a subscriber started, finished and failed, as lines. Pure.

No file, clock or thread here: lines go through the ``append`` that is handed in, that of a
``broker.history.HistoryFile`` or ``MemoryHistory``.

Each line has the members ``client``, ``name``, ``session``, ``channel``, ``subscription``, ``n``
(dense from 0), ``at_us`` (wall clock) and ``event``. An epoch names an assignment, and with it the
partition: ``started`` says which.

- ``opened``: the first line.
- ``subscribed``: ``resumed``, ``generation``. Each time that the broker took the subscription; work
  that came with it may have begun a moment before. Epochs of another generation are others.
- ``started``: ``publisher``, ``partition``, ``epoch``, ``position``, ``sequence``, ``attempt``. In
  the file before the handler is called. A worker that takes an assignment up writes one line, for
  the first message of it, and may have gone on through the positions after that one until the next
  line about that epoch. After a message that took longer than ``SLOW_S`` the next has a line of its
  own, so only messages behind a fast one have none.
- ``finished``: ``epochs``, ``firsts``, ``counts``, ``sequence_sums``, parallel arrays, one item per
  stretch of positions. What was handled successfully since the last such line; in the file before
  the ack that covers it is sent. ``sequence_sums`` are the sums of the sequences of the messages. A
  handled message is in one such line, once: not again if it comes again and is recognised. It has
  none if the process died first, or its subscription was made anew while it was running.
- ``failed``: ``epoch``, ``position``, ``sequence``, ``attempt``, ``reason``. The handler raised,
  nacked or rejected; in the file before the nack is sent. The positions before it that were handled
  may be in a ``finished`` line after it.
- ``closed``: the last line of a clean end. The last thread of the subscriber writes it. If a
  handler outlives ``close``, that is after ``close`` has returned, and what the handler finishes,
  though nobody can acknowledge it any more, is in a ``finished`` line before. It is missing if the
  process ended first.
"""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quoted
from typing import Callable, NamedTuple

#: A message that takes longer than this gets the next one a ``started`` line of its own.
SLOW_S = 0.001


class Stretches(NamedTuple):
    """Handled positions, stretch by stretch: the members of a ``finished`` line."""

    epochs: list[int]
    firsts: list[int]
    counts: list[int]
    sequence_sums: list[int]


def subscriber_identity(
    subscriber: str, session: str, channel: str, subscription: str
) -> dict[str, str]:
    """What every line of a subscriber's history says about whose it is."""
    return {
        "client": "subscriber", "name": subscriber, "session": session, "channel": channel,
        "subscription": subscription,
    }  # fmt: skip


class SubscriberHistory:
    """Turns what a subscriber does into lines. It has no state: any thread may use it."""

    def __init__(self, append: Callable[[str, str], None]) -> None:
        self._append = append
        append("opened", "")

    def subscribed(self, resumed: bool, generation: int) -> None:
        """The broker has taken the subscription."""
        word = "true" if resumed else "false"
        self._append("subscribed", f',"resumed":{word},"generation":{generation}')

    def started(
        self, publisher: str, partition: str, epoch: int, position: int, sequence: int, attempt: int
    ) -> None:
        """The handler is about to be called."""
        self._append(
            "started",
            f',"publisher":{quoted(publisher)},"partition":{quoted(partition)},"epoch":{epoch}'
            f',"position":{position},"sequence":{sequence},"attempt":{attempt}',
        )

    def finished(self, stretches: Stretches) -> None:
        """All this was handled, and may be acknowledged from now on."""
        epochs, firsts, counts, sums = (str(column).replace(" ", "") for column in stretches)
        self._append(
            "finished",
            f',"epochs":{epochs},"firsts":{firsts},"counts":{counts},"sequence_sums":{sums}',
        )

    def failed(self, epoch: int, position: int, sequence: int, attempt: int, reason: str) -> None:
        """The handler did not succeed with a message."""
        text = reason.encode("utf-8", "replace").decode()  # an exception's text may be anything
        self._append(
            "failed",
            f',"epoch":{epoch},"position":{position},"sequence":{sequence},"attempt":{attempt}'
            f',"reason":{quoted(text)}',
        )

    def closed(self) -> None:
        """The subscriber has ended."""
        self._append("closed", "")
