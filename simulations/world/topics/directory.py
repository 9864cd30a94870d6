"""Directory: what a simulated client keeps, with what a crash does to it.

It is the ``Store`` of a ``Ledger`` in memory. What ``save`` and ``save_pending`` return from is
safe; what ``save_answered`` notes is safe when something after it is, and until then a crash of the
machine may forget it.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from topics.ledger import Account, PutCall


class Directory:
    """The state directory of one client id; the object outlives the client's processes."""

    def __init__(self, instance: str) -> None:
        self.instance = instance
        self.life = 0
        self._safe: dict[str, Account] = {}
        self._notes: list[Account] = []  # answered, and not surely safe

    def open(self, random: Random) -> dict[str, Account]:
        """A new life begins; what was only noted is there, up to some point."""
        self.life += 1
        for account in self._notes[: random.randint(0, len(self._notes))]:
            self._safe[account.topic] = account
        self._notes.clear()
        return {topic: _copy(account) for topic, account in self._safe.items()}

    def save(self, account: Account) -> None:
        """Write down the numbers of an account."""
        self._flush()
        self._safe[account.topic] = _copy(account)

    def save_pending(self, account: Account, call: PutCall) -> None:
        """Write down a call that is about to be sent."""
        self._flush()
        self._safe[account.topic] = replace(_copy(account), pending=call)

    def save_answered(self, account: Account) -> None:
        """Note that the pending call was answered."""
        self._notes.append(_copy(account))

    def _flush(self) -> None:
        for account in self._notes:
            self._safe[account.topic] = account
        self._notes.clear()


def _copy(account: Account) -> Account:
    return replace(account, kept=list(account.kept))
