"""Line: how far one life of a subscription has come in one partition. State, no rules.

The state is what the records say by themselves: a delivered run ends at its last position, a nack
takes the line back to before its message. Who breaks a rule makes the line ``doubtful``; its state
is kept up all the same, since the end of a run asks what was left.
"""

from __future__ import annotations

from simulations.checkers.order import AcceptedRun, Found, Order


class Line:
    """One subscription's way through one partition."""

    __slots__ = (
        "subscription", "key", "doubtful", "touched", "settled", "delivered", "handed", "owner",
        "epoch", "epoch_max", "published_upto", "owed", "set_aside", "blocked", "failure",
        "tried_position", "tried_attempt", "tried_failed", "order",
    )  # fmt: skip

    def __init__(self, subscription: str, key: tuple[str, str]) -> None:
        self.subscription = subscription
        self.key = key
        self.doubtful = False
        self.touched = 0  # the record that spoke of it last
        # Positions: settled up to, delivered up to, handed out at any time.
        self.settled = self.delivered = self.handed = 0
        # The assignment that the last delivery made or continued.
        self.owner: str | None = None
        self.epoch = self.epoch_max = 0
        # What it is owed: sequences published for it, positions it will come to have, parked ones.
        self.published_upto = self.owed = self.set_aside = 0
        self.blocked = 0  # the position for which the whole partition is parked
        # The failure that came last: (position, attempt, or None after a crash).
        self.failure: tuple[int, int | None] | None = None
        self.tried_position: int | None = None
        self.tried_attempt = 0
        self.tried_failed = False
        self.order = Order()

    @property
    def where(self) -> str:
        """Its name for people."""
        return f"{self.subscription} {self.key[0]}/{self.key[1]}"

    @property
    def in_flight(self) -> bool:
        """Whether somebody holds messages of it."""
        return self.delivered > self.settled

    def is_held_by(self, subscriber: str, epoch: int) -> bool:
        """Whether the last delivery went to this subscriber under this epoch."""
        return self.owner == subscriber and self.epoch == epoch

    def accept(self, run: AcceptedRun) -> list[Found]:
        """Take messages that were published for it; what that shows about others."""
        sequence, first, count, stamps, _ = run
        found: list[Found] = []
        if not self.doubtful:
            if self.owed == self.settled and not self.set_aside:
                found = self.order.begin(first, self.settled)
            found += self.order.accept(run)
        self.owed += len(stamps)
        last = first + count - 1
        if last > self.published_upto:
            self.published_upto = last
        self.touched = sequence
        return found

    def settle(self, upto: int) -> None:
        """Everything up to this position has come to an end."""
        if upto > self.settled:
            self.settled = upto

    def state(self) -> str:
        """What an anomaly's text says of it."""
        return (
            f"{self.owner or 'nobody'} had epoch {self.epoch}, settled up to {self.settled}, "
            f"delivered up to {self.delivered}"
        )
