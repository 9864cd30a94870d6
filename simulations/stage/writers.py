"""Threads that publish by plain remote calls until the broker fails them, and keep books on it.

For the stories in which the store fails: each writer waits for every answer before the next call,
so at the failure each has exactly one call of which nobody knows the outcome.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from broker.errors import BrokerError
from simulations.stage.processes import Broker
from simulations.stage.script import Script


@dataclass
class Books:
    """What one writer was told: answered with ok up to ``confirmed``, then ``error``."""

    publisher: str
    confirmed: int = 0
    error: BrokerError | None = None


class Writers:
    """``count`` of them, each with a partition of its own; ``size`` is the length of a body."""

    def __init__(self, script: Script, broker: Broker, count: int, size: int) -> None:
        self._script = script
        self._broker = broker
        self._size = size
        self.books = [Books(f"writer-{number}") for number in range(count)]
        self._threads = [
            threading.Thread(target=self._write, args=(books,), daemon=True)
            for books in self.books
        ]

    @property
    def confirmed(self) -> int:
        """How many messages were answered with ok."""
        return sum(books.confirmed for books in self.books)

    def start(self) -> None:
        """Begin to publish."""
        for thread in self._threads:
            thread.start()

    def wait_failed(self) -> None:
        """Wait until each has been failed."""
        self._script.wait(
            lambda: not any(thread.is_alive() for thread in self._threads),
            "every writer has been failed", lambda: f"{self.confirmed} confirmed",
        )  # fmt: skip

    def _write(self, books: Books) -> None:
        while books.error is None:
            try:
                self._publish(books, books.confirmed + 1)
                books.confirmed += 1
            except BrokerError as error:
                books.error = error

    def _publish(self, books: Books, sequence: int) -> bool:
        """Publish one message; whether it was a duplicate."""
        body = f"{sequence} ".ljust(self._size, ".")
        reply = self._broker.call("publish", books.publisher, "part", [body], sequence)
        return bool(reply["duplicates"])

    def next_sequences(self) -> list[int]:
        """What the broker expects next of each."""
        return [
            self._broker.call("next_sequences", books.publisher, ["part"])[0]
            for books in self.books
        ]

    def expect_recovered(self, after: list[int]) -> None:
        """Nothing that was answered is lost, and nobody was told that the open call surely failed
        unless it did. ``after``: what is next after the recovery; before ``repeat``."""
        expect = self._script.expect
        present = [upto - 1 - books.confirmed for books, upto in zip(self.books, after)]
        expect("writers of which an answered message is missing", 0, sum(n < 0 for n in present))
        expect("writers with more than the one open call", 0, sum(n > 1 for n in present))
        definite = sum(
            books.error is not None and books.error.definite and n > 0
            for books, n in zip(self.books, present)
        )
        expect("told that it surely failed, and it is there", 0, definite)

    def repeat(self, after: list[int]) -> None:
        """Each repeats the open call under the same sequence, and learns what became of it."""
        wanted = ["duplicate" if upto > books.confirmed + 1 else "accepted"
                  for books, upto in zip(self.books, after)]  # fmt: skip
        told = []
        for books in self.books:
            try:
                known = self._publish(books, books.confirmed + 1)
                told.append("duplicate" if known else "accepted")
                books.confirmed += 1
            except BrokerError as error:
                told.append(error.code)
        self._script.expect(
            "the open call repeated: a duplicate if it was there, else accepted", wanted, told
        )
