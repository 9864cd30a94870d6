"""Ledger: the pure half of a topic client. What it knows, and what it must write down before when.

No thread, clock, socket or file lives here. A ``Ledger`` works on an ``Account`` per topic and
hands every change to a ``Store`` before it returns: whoever goes on after that may rely on it. The
order of things is what makes put and get happen exactly once:

- A put is written down, bodies and all, before it is sent. A client that dies before the answer
  sends the same call again when it is back, and the broker recognises it.
- What came with a get is written down as received before it is handed out. The next get says so,
  and only that makes the broker forget it. In the two-step form it is written down when the user
  confirms it.
- A request about a subscription has a number, written down before it is sent, so that a late copy
  of it is not done after a newer one.

The last puts that were answered are kept for a while: a broker that has lost some of them, after a
power cut with durability flush, refuses the next number and names the last one that it has, and
they are sent again from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Sequence

from broker.errors import BrokerError, PutsLost, SequenceGap

#: How many calls, and bytes of bodies, are kept after they were answered.
KEPT_CALLS = 16
KEPT_BYTES = 1 << 20


class PutCall(NamedTuple):
    """Messages that are put by one call, the first of them with ``number``."""

    number: int
    formats: Sequence[int] | int
    bodies: Sequence[bytes]

    @property
    def last(self) -> int:
        """The number of the last message."""
        return self.number + len(self.bodies) - 1


@dataclass(slots=True)
class Account:
    """What a client knows of one topic."""

    topic: str
    born: int = 0  # of the topic that the numbers are of; 0: not known yet
    number: int = 0  # of the last message that was answered
    request: int = 0  # of the last request about the subscription
    ticket: int = 0  # of the subscription; 0: not subscribed
    position: int = 0  # the last message received
    pending: PutCall | None = None  # sent, perhaps, and not answered
    kept: list[PutCall] = field(default_factory=list)  # the last ones that were answered


class Store(Protocol):
    """Where accounts are kept; each call returns when the change is safe."""

    def save(self, account: Account) -> None:
        """Write down the numbers of an account: all but ``pending`` and ``kept``."""
        ...

    def save_pending(self, account: Account, call: PutCall) -> None:
        """Write down a call that is about to be sent, with the account's numbers."""
        ...

    def save_answered(self, account: Account) -> None:
        """Note that ``pending`` was answered. Need not be safe: it would be sent again."""
        ...


class Ledger:
    """The accounts of one client. Its methods are called one at a time."""

    def __init__(self, store: Store, accounts: dict[str, Account]) -> None:
        self._store = store
        self.accounts = accounts

    def account(self, topic: str) -> Account:
        """What is known of a topic; a new one knows nothing."""
        found = self.accounts.get(topic)
        if found is None:
            found = self.accounts[topic] = Account(topic)
        return found

    def subscribed(self) -> list[str]:
        """The topics that the client is subscribed to."""
        return [account.topic for account in self.accounts.values() if account.ticket]

    # Puts.

    def begin_put(
        self, topic: str, formats: Sequence[int] | int, bodies: Sequence[bytes]
    ) -> PutCall:
        """A new call, written down. The one before it must have been answered."""
        account = self.account(topic)
        assert account.pending is None, "a put is not answered yet"
        call = PutCall(account.number + 1, formats, bodies)
        self._store.save_pending(account, call)
        account.pending = call
        return call

    def end_put(self, topic: str, reply: dict[str, Any]) -> None:
        """The pending call was accepted, now or before."""
        account = self.account(topic)
        call = account.pending
        assert call is not None and reply["number"] == call.last
        account.born, account.number, account.pending = reply["born"], call.last, None
        account.kept.append(call)
        size = 0
        for index in range(len(account.kept) - 1, -1, -1):
            size += sum(map(len, account.kept[index].bodies))
            if size > KEPT_BYTES or len(account.kept) - index > KEPT_CALLS:
                del account.kept[: index + 1]
                break
        self._store.save_answered(account)

    def drop_put(self, topic: str) -> None:
        """The pending call was refused for good, and is not to be sent again."""
        account = self.account(topic)
        account.pending = None
        self._store.save(account)

    def after_gap(self, topic: str, error: SequenceGap) -> list[PutCall]:
        """The broker's last number is below ours: what to send now, the pending call last.

        Raises PutsLost if that is not there any more.
        """
        account = self.account(topic)
        pending, last = account.pending, int(error.details["last"])
        assert pending is not None
        if error.details["born"] != account.born:
            # The topic was removed, since nobody had used it for long, and made anew.
            account.born, account.number, account.kept = error.details["born"], last, []
            account.pending = PutCall(last + 1, pending.formats, pending.bodies)
            self._store.save_pending(account, account.pending)
            return [account.pending]
        again = [call for call in account.kept if call.last > last]
        if not again or again[0].number != last + 1:
            raise PutsLost(
                f"topic {topic} has lost messages that this client had put: it has numbers up to "
                f"{last}, and was told of all up to {account.number}. The client keeps only the "
                f"last ones, from {again[0].number if again else account.number + 1} on; put the "
                "missing ones again yourself, after forget_put",
                last=last, number=account.number,
            )  # fmt: skip
        return [*again, pending]

    # Subscriptions.

    def begin_request(self, topic: str) -> int:
        """The number of a request about the subscription, written down."""
        account = self.account(topic)
        account.request += 1
        self._store.save(account)
        return account.request

    def end_subscribe(self, topic: str, reply: dict[str, Any]) -> None:
        """The client is subscribed. If it was before, its own position counts."""
        account = self.account(topic)
        if account.ticket != reply["ticket"]:
            account.ticket, account.position = reply["ticket"], reply["position"]
        account.request = max(account.request, reply["request"])
        self._store.save(account)

    def end_unsubscribe(self, topic: str) -> None:
        """The client is not subscribed any more."""
        account = self.account(topic)
        account.ticket = account.position = 0
        self._store.save(account)

    # Gets.

    def asked(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """What a get says of each topic: [ticket, last position received]."""
        return {topic: self._place(self.account(topic)) for topic in topics}

    @staticmethod
    def _place(account: Account) -> list[int]:
        return [account.ticket, account.position]

    def received(self, topic: str, ticket: int, position: int) -> bool:
        """Write down that everything up to a position is the client's.

        False if that changes nothing: it is older, or of a subscription that has ended.
        """
        account = self.account(topic)
        if ticket != account.ticket or position <= account.position:
            return False
        account.position = position
        self._store.save(account)
        return True

    def taken_over(self, topic: str, reply: dict[str, Any]) -> None:
        """Go on from what the broker knows, instead of from what was lost."""
        account = self.account(topic)
        account.born, account.number, account.request = (
            reply["born"], reply["number"], reply["request"]
        )
        account.ticket, account.position = reply.get("ticket", 0), reply.get("position", 0)
        account.pending, account.kept = None, []
        self._store.save(account)


def is_final(error: BrokerError) -> bool:
    """Whether a put was surely not done, and trying again is of no use."""
    return error.definite and not error.retriable
