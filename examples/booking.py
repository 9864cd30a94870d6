"""Two handlers that book payments into SQLite: one is wrong, one is right.

A message may come again: its subscriber died after the effect and before the ack, or the ack got
lost. A handler has to cope with that.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Callable


def open_bank() -> sqlite3.Connection:
    """A bank without money."""
    bank = sqlite3.connect(":memory:")
    bank.execute("create table account (name text primary key, balance integer not null)")
    bank.execute("create table booked (payment text primary key)")
    return bank


def _book(bank: sqlite3.Connection, payment: dict[str, Any]) -> None:
    bank.execute(
        "insert into account values (?, ?) on conflict (name) do update "
        "set balance = balance + excluded.balance",
        (payment["account"], payment["amount"]),
    )


def book_and_note(
    bank: sqlite3.Connection, message: Any, between: Callable[[], None] = lambda: None
) -> None:
    """Wrong, though it looks careful: the note that a payment was booked is a commit of its own.

    Who dies between the two has booked without a note, and books again.
    """
    payment = message.body
    known = bank.execute("select 1 from booked where payment = ?", (payment["payment"],))
    if known.fetchone():
        return
    _book(bank, payment)
    bank.commit()
    between()
    bank.execute("insert into booked values (?)", (payment["payment"],))
    bank.commit()


def book_once(
    bank: sqlite3.Connection, message: Any, between: Callable[[], None] = lambda: None
) -> None:
    """Right: the effect and the note of it are one transaction."""
    with bank:
        if message.once(bank):
            _book(bank, message.body)
            between()
