"""What was found, and where it is gathered. No rule lives here."""

from __future__ import annotations

from dataclasses import dataclass

from broker.core.anomalies import ANOMALIES


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One violation.

    ``sequence`` is the record's, or the number of the line in its client's history; ``text`` says
    what was expected and what was seen; ``where`` names the line or client, if it is about one.
    ``subject`` is "progress" if the line is not judged any further after it, "order" if it is about
    single messages of a line, and otherwise empty.
    """

    name: str
    sequence: int
    text: str
    where: str = ""
    subject: str = ""

    def __post_init__(self) -> None:
        assert self.name in ANOMALIES, self.name

    def __str__(self) -> str:
        place = f" in {self.where}" if self.where else ""
        return f"{self.name} at {self.sequence}{place}: {self.text}"


class Findings:
    """The anomalies of one run in the order in which they were found."""

    __slots__ = ("all",)

    def __init__(self) -> None:
        self.all: list[Anomaly] = []

    def report(
        self, name: str, sequence: int, text: str, where: str = "", subject: str = ""
    ) -> None:
        """Add one."""
        self.all.append(Anomaly(name, sequence, text, where, subject))
