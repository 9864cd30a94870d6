"""A test of a handler with the fixture that comes with Fairlead: ``pytest examples``."""

from __future__ import annotations

from typing import Any, Callable

import pytest
from booking import book_and_note, book_once, open_bank

NAMES = ["ann", "bob", "ann"] * 10
PAYMENTS = [
    (name, {"payment": f"p{number}", "account": name, "amount": number})
    for number, name in enumerate(NAMES)
]


def bank_of(book: Callable[..., None], fairlead: Any) -> Any:
    """What ``fairlead.run`` is given: it makes processes, and the check of what they did."""

    def make() -> Any:
        bank = open_bank()

        def start() -> Any:  # a process; here it remembers nothing of its own
            def handle(message: Any) -> None:
                try:
                    book(bank, message, fairlead.crash_point)
                except BaseException:
                    bank.rollback()  # as a database does when its client dies
                    raise

            return handle

        def check() -> None:
            balances = dict(bank.execute("select name, balance from account"))
            wanted = dict.fromkeys(NAMES, 0)
            for name, payment in PAYMENTS:
                wanted[name] += payment["amount"]
            assert balances == wanted

        return start, check

    return make


def test_payments_are_booked_once(fairlead: Any) -> None:
    fairlead.run(bank_of(book_once, fairlead), PAYMENTS)


def test_the_careful_looking_handler_books_twice(fairlead: Any) -> None:
    with pytest.raises(AssertionError, match="killed inside the handler") as caught:
        fairlead.run(bank_of(book_and_note, fairlead), PAYMENTS)
    print(caught.value)  # pytest -s shows the seed, and what happened to the handler
