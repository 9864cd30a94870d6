"""Whole lives of channels, for the tests of trimming and archiving only. No test lives here."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

from broker.core import commands as c
from broker.core.channel import Channel
from broker.core.records import Record
from broker.errors import BrokerError
from broker.journal.bases import Base, make_base
from broker.journal.codec import CHECKSUM, CHECKSUM_START, encode
from broker.journal.sqlite import SqliteJournal
from tests.builders import Driven, publish_command

START_MS = 1_700_000_000_000


class Life(Driven):
    """A channel that is published to and worked on, with what happens in such a life."""

    def __init__(self, seed: int = 1, name: str = "orders", step_ms: int = 60_000) -> None:
        super().__init__(name, checked=False, attempts_max=2, lease_ms=10**9, backoff_ms=1)
        self.rng = random.Random(seed)
        self.now_ms = START_MS
        self.step_ms = step_ms
        self.subscribe("worker-1", 50)

    def try_(self, command: c.Command) -> c.Decision | None:
        try:
            return self.do(command)
        except BrokerError:
            return None

    def live(self, records: int) -> Life:
        """Go on until there are so many records."""
        while len(self.records) < records:
            self.now_ms += self.rng.randrange(self.step_ms)
            for _ in range(self.rng.randint(1, 3)):
                self.send(f"customer-{self.rng.randrange(12)}", self.rng.randint(1, 4))
            if self.rng.random() < 0.05:
                self.try_(c.Subscribe("default", "worker-2", "worker-2-1", 5, ""))
            if self.rng.random() < 0.03:
                self.try_(c.Leave("default", "worker-2", "worker-2-1", "crashed"))
            if self.rng.random() < 0.02:
                self.try_(c.OpenPublisher("billing"))
            self.work(nack=0.1)
        return self

    def send(self, partition: str, count: int, publisher: str = "billing") -> None:
        first = self.channel.next_sequences(publisher, [partition])[0]
        bodies = [self.rng.randbytes(self.rng.randint(0, 60)) for _ in range(count)]
        stamps = [self.now_ms * 1000 + i for i in range(count)]
        self.do(publish_command(publisher, {partition: (first, bodies)}, None, stamps))

    def work(self, nack: float = 0.0) -> None:
        """Give out what waits and settle most of it."""
        for sends in self.dispatch().values():
            for send in sends:
                record = send.delivered
                session = send.subscriber + "-1"
                for epoch, first, count in zip(record.epochs, record.firsts, record.counts):
                    last = first + count - 1
                    command: c.Command = c.Ack(
                        send.subscription, send.subscriber, session, [epoch], [last]
                    )
                    if self.rng.random() < nack:
                        command = c.Nack(
                            send.subscription, send.subscriber, session, epoch, first, "test", 0
                        )
                    self.try_(command)

    def settle_all(self) -> Life:
        """Until nothing waits any more."""
        while self.channel.unsettled():
            self.now_ms += 1_000
            self.work()
        return self


def replay(name: str, records: list[Record]) -> Channel:
    """The fold of records as they are read back."""
    channel = Channel(name)
    for record in records:
        for field in ("lines", "columns"):
            if hasattr(record, field):
                setattr(record, field, None)
        channel.apply(record)
    return channel


def checksums(name: str, records: list[Record]) -> list[int]:
    """The chain's checksum at each sequence, from 0 on."""
    found = [CHECKSUM_START]
    for sequence, record in enumerate(records, 1):
        found.append(encode(name, sequence, record, found[-1])[CHECKSUM])
    return found


def base_at(name: str, records: list[Record], sequence: int) -> Base:
    """The base that a trim up to ``sequence`` writes."""
    return make_base(
        replay(name, records[:sequence]), sequence, checksums(name, records[:sequence])[-1]
    )


def write_store(path: Path, *lives: Driven) -> Path:
    """A closed store with the journals of some lives."""
    journal = SqliteJournal(path)
    for life in lives:
        name = life.channel.name
        journal.append(name, journal.durable(name) + 1, life.records[journal.durable(name) :])
    journal.close()
    return path


def rows_in(path: Path, channel: str = "orders") -> list[tuple[Any, ...]]:
    """The rows of a channel as they stand in the table, checked by nobody."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(
            "SELECT * FROM records WHERE channel = ? ORDER BY sequence", (channel,)
        ).fetchall()
    finally:
        connection.close()


def alter(path: Path, statement: str) -> None:
    """Do something to a store that nobody should."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(statement)
    connection.close()
