"""SubQueue: what one subscriber has been given and has not settled. No choice is made here."""

from __future__ import annotations

from broker.core.partition import Line


class SubQueue:
    """One subscriber of a subscription: its window, the lines it holds, and when it was last seen.

    ``held`` maps the epoch of each assignment to its line: an epoch that is not in it is stale.
    """

    __slots__ = (
        "subscriber", "session", "prefetch", "callback", "can_recall", "held", "hungry", "pressing",
        "unsettled", "away", "trial", "progress_ms",
        "given", "joined", "seen_ms", "long_delays", "delivered_total", "acked_total",
    )  # fmt: skip

    def __init__(
        self,
        subscriber: str,
        session: str,
        prefetch: int,
        callback: str,
        can_recall: bool,
        seen_ms: int,
    ) -> None:
        self.subscriber = subscriber
        self.session = session
        self.prefetch = prefetch
        self.callback = callback
        self.can_recall = can_recall
        self.held: dict[int, Line] = {}
        # The held lines that have more messages waiting than were handed out.
        self.hungry: dict[Line, None] = {}
        # Those of them with an urgent message among the waiting ones.
        self.pressing: dict[Line, None] = {}
        self.unsettled = 0
        self.away = False  # not heard of since the broker started: holds on, but gets nothing new
        self.trial: Line | None = None  # handled alone: nothing else is given meanwhile
        self.progress_ms = seen_ms  # the last ack, or the first message after having none
        self.joined = 0  # the newest epoch when it joined: all of its own are newer
        self.given = 0  # the epoch of the newest assignment: the longest unserved comes first
        self.seen_ms = seen_ms
        self.long_delays: list[tuple[int, int]] = []  # (at_ms, delay_ms), the window only
        self.delivered_total = 0
        self.acked_total = 0

    def __repr__(self) -> str:
        return (
            f"<SubQueue {self.subscriber} held={len(self.held)} unsettled={self.unsettled}"
            f"/{self.prefetch}>"
        )

    @property
    def room(self) -> int:
        """How many more messages the subscriber may be given."""
        if self.trial is not None or self.away:
            return 0
        return self.prefetch - self.unsettled

    def settle_hunger(self, line: Line) -> None:
        """Note whether a held line could be topped up."""
        if line.owner is self and not line.recalled and line.waiting > 0:
            self.note_hunger(line)
        else:
            self.forget_hunger(line)

    def note_hunger(self, line: Line) -> None:
        """A held line has more to come."""
        self.hungry[line] = None
        if line.level:
            self.pressing[line] = None
        elif self.pressing:
            self.pressing.pop(line, None)

    def forget_hunger(self, line: Line) -> None:
        """The line is not to be topped up any more."""
        self.hungry.pop(line, None)
        if self.pressing:
            self.pressing.pop(line, None)
