"""Makes honest journals of any size: the real core on a virtual clock, the real codec and schema.

A ``Load`` is what happens on one channel: publishers send batches, subscribers take and settle
them, and now and then something goes wrong, in turns through every fault of ``_FAULTS``, so that
every kind of record occurs. Each record is what ``Channel.decide`` made of a command, and is
applied before the next one is decided. What may not live here: a record that the core did not
decide, a real clock, or anything that grows with the number of messages.

    python -m benchmarks.journals STORE --messages 1e7 [--seed 7] [--interleaved]

The same seed and shape give the same records. Only the id of the store differs: it is random.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import Any, Callable, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from broker.core import commands as c  # noqa: E402
from broker.core.channel import DEFAULT_SUBSCRIPTION, Channel  # noqa: E402
from broker.core.message import FORMAT_BYTES, Columns, make_entries  # noqa: E402
from broker.core.policy import Policy  # noqa: E402
from broker.core.records import Recalled, Record  # noqa: E402
from broker.core.sub_queue import SubQueue  # noqa: E402
from broker.journal.codec import CHECKSUM_START, COLUMNS, Row, encode  # noqa: E402
from broker.journal.sqlite_schema import create  # noqa: E402

CHANNEL = "orders"
#: Where the virtual clock starts: some second of the year 2025.
START_MS = 1_760_000_000_000
#: Batches between two dispatches; each subscriber gets one delivery out of them.
BATCHES_PER_STEP: Final = 4
ROWS_PER_WRITE = 2_000
BODIES = 4_096
SPLITS = 64
BATCHES_PER_SHUFFLE = 500
#: Times of the virtual clock that fit its 100 messages a millisecond: a step takes 4 ms.
POLICY = Policy(
    delay_ms=5, long_delay_ms=10, recall_after_ms=10, backoff_ms=2, backoff_ms_max=50,
    lease_ms=2_000,
)  # fmt: skip

_INSERT = f"INSERT INTO records VALUES ({', '.join('?' * len(COLUMNS))})"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a journal looks like. ``messages`` is rounded up to whole batches.

    ``runs`` is how many partitions a batch touches, ``fault_every`` the messages between two faults
    (0: none), ``lag_every`` those between two spells in which the subscribers fall behind.
    """

    messages: int = 1_000_000
    partitions: int = 1_000
    publishers: int = 4
    subscribers: int = 8
    batch: int = 100
    runs: int = 8
    prefetch: int = 500
    messages_per_ms: int = 100
    fault_every: int = 4_000
    lag_every: int = 200_000
    seed: int = 1

    def __post_init__(self) -> None:
        each = self.partitions // max(1, self.publishers)
        if min(self.messages, self.publishers, self.subscribers, self.runs) < 1:
            raise ValueError("messages, publishers, subscribers and runs must be at least 1")
        if not self.runs <= min(self.batch, each):
            raise ValueError(
                f"a batch of {self.batch} messages cannot touch {self.runs} partitions of one "
                f"publisher, which has {each}; give fewer --runs or more --partitions"
            )


class StoreWriter:
    """Appends the records of one channel to a new store, in large transactions."""

    def __init__(self, path: str) -> None:
        create(path)
        self._connection = sqlite3.connect(path, isolation_level=None)
        # A store in the making is thrown away if the machine fails: nothing of it is synced.
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA cache_size = -16384")
        self._checksum = CHECKSUM_START
        self._rows: list[Row] = []
        self.records = 0

    def append(self, record: Record) -> None:
        """Take the channel's next record."""
        self.records += 1
        row = encode(CHANNEL, self.records, record, self._checksum)
        self._checksum = row[8]
        self._rows.append(row)
        if len(self._rows) >= ROWS_PER_WRITE:
            self._write()

    def _write(self) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(_INSERT, self._rows)
        self._connection.execute("COMMIT")
        self._rows.clear()

    def close(self) -> None:
        """Write what is left and give the store the mode that a broker expects."""
        with closing(self._connection):
            self._write()
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA journal_mode = WAL")


class Source:
    """One publisher: its partitions, the next sequence of each, and its epoch."""

    def __init__(self, name: str, partitions: int, random_: random.Random) -> None:
        self.name = name
        self.epoch = 0
        self.sequences = {f"customer-{number}": 1 for number in range(partitions)}
        self._random = random_
        self._order: list[str] = []
        self._left = 0

    def pick(self, count: int) -> list[str]:
        """Some of the partitions, each once."""
        if not self._left:
            # A stretch of a shuffled circle costs less than a sample for each batch.
            names = list(self.sequences)
            self._random.shuffle(names)
            self._order, self._left = names + names, BATCHES_PER_SHUFFLE
        self._left -= 1
        start = self._random.randrange(len(self.sequences))
        return self._order[start : start + count]

    def take(self, names: list[str], counts: list[int]) -> list[int]:
        """Use up the next sequences of these partitions; the first of each."""
        firsts = list(map(self.sequences.__getitem__, names))
        self.sequences.update(zip(names, map(add, firsts, counts)))
        return firsts


class Load:
    """A channel, those who use it, and what happens to them, step by step."""

    def __init__(self, shape: Shape, append: Callable[[Record], None]) -> None:
        self.shape = shape
        self.random = random.Random(shape.seed)
        self.published = 0
        self.pending_max = 0
        self._append = append
        self._extra_ms = 0
        self._steps = 0
        self._lag_until = 0
        self._slow: str | None = None
        self._fault_at = shape.fault_every
        self._faults: list[str] = []
        self._later: list[tuple[int, Callable[[], None]]] = []
        self._sessions = 0
        self._ids = 0
        self.channel = Channel(CHANNEL, POLICY)
        for record in Channel.birth(CHANNEL, POLICY, START_MS):
            self._take(record)
        each = shape.partitions // shape.publishers
        self.sources = [Source(f"p{i}", each, self.random) for i in range(shape.publishers)]
        for source in self.sources:
            self._open(source)
        #: What each subscriber holds: epoch of the assignment -> last position it was given.
        self.held: dict[tuple[str, str], dict[int, int]] = {}
        for number in range(shape.subscribers):
            self._join(f"worker-{number}")
        self._make_columns()

    def _make_columns(self) -> None:
        """Bodies and run lengths to draw from: making them per message would cost the most."""
        pool = [self.random.randbytes(self.random.randint(16, 32)) for _ in range(BODIES)]
        self._bodies = pool + pool[: self.shape.batch]
        self._splits = [self._split() for _ in range(SPLITS)]

    def _split(self) -> list[int]:
        cuts = sorted(self.random.sample(range(1, self.shape.batch), self.shape.runs - 1))
        return [high - low for low, high in zip([0, *cuts], [*cuts, self.shape.batch])]

    # The way of a command.

    @property
    def now_ms(self) -> int:
        """The virtual clock: the messages published so far, and the pauses that faults made."""
        return START_MS + self.published // self.shape.messages_per_ms + self._extra_ms

    def _take(self, record: Record) -> None:
        if record.durable:
            self._append(record)
        self.channel.apply(record)

    def _do(self, command: c.Command) -> c.Decision:
        decision = self.channel.decide(command, self.now_ms)
        for record in decision.records:
            self._append(record)
            self.channel.apply(record)
        return decision

    def _queue(self, member: tuple[str, str]) -> SubQueue:
        return self.channel.subscriptions[member[0]].subscribers[member[1]]

    def _look_again(self) -> None:
        """After a fault: what the subscribers hold is what they were left with."""
        self.held = {
            (group.name, name): {epoch: line.delivered for epoch, line in queue.held.items()}
            for group in self.channel.subscriptions_list
            for name, queue in group.subscribers.items()
        }

    # Steps.

    def run(self, progress: Callable[[int], None] = lambda published: None) -> None:
        """Everything, to the last message settled."""
        while self.published < self.shape.messages:
            self.step()
            if self._steps % 256 == 0:
                progress(self.published)
        self._drain()
        progress(self.published)

    def step(self) -> None:
        """Some batches in, a dispatch, acks; and a fault when it is time for one."""
        self._steps += 1
        for _ in range(BATCHES_PER_STEP):
            if self.published < self.shape.messages:
                self._publish()
        self._dispatch()
        self.pending_max = max(self.pending_max, self.channel.unsettled())
        if self._later and self._later[0][0] <= self._steps:
            self._later.pop(0)[1]()
            self._look_again()
        # A fault may publish one batch more; the last ones would end beyond the number asked for.
        if self.shape.fault_every and self._fault_at <= self.published < self.shape.messages:
            self._fault_at += self.shape.fault_every
            self._fault()
        if self._steps >= self._lag_until:
            self._settle()
            self._perhaps_lag()

    def _publish(self, timestamp_us: int | None = None, **more: Any) -> c.Publish:
        """The next batch of the publisher whose turn it is; ``more`` are further columns."""
        shape, draw = self.shape, self.random
        source = self.sources[(self.published // shape.batch) % shape.publishers]
        counts = self._splits[draw.randrange(SPLITS)]
        names = source.pick(len(counts))
        firsts = source.take(names, counts)
        start = draw.randrange(BODIES)
        bodies = self._bodies[start : start + shape.batch]
        ends = map(add, firsts, counts)
        sequences = [at for run in map(range, firsts, ends) for at in run]
        stamp = self.now_ms * 1_000 if timestamp_us is None else timestamp_us
        priorities, extras = more.get("priorities"), more.get("extras")
        columns = Columns(stamp, sequences, priorities, FORMAT_BYTES, bodies, extras)
        command = c.Publish(
            source.name, source.epoch, names, firsts, counts,
            make_entries(sequences, bodies, stamp, priorities, FORMAT_BYTES, extras),
            sum(map(len, bodies)), max(priorities or (0,)), extras is not None, columns,
        )  # fmt: skip
        self._do(command)
        self.published += shape.batch
        return command

    def _dispatch(self) -> None:
        held = self.held
        for send in self._do(_DISPATCH).sends:
            record = send.delivered
            ends = map(add, record.firsts, record.counts)
            mine = held[send.subscription, send.subscriber]
            mine.update(zip(record.epochs, [end - 1 for end in ends]))

    def _settle(self) -> None:
        """Everybody has handled everything that was there, except the one that is slow."""
        for (subscription, name), mine in self.held.items():
            if mine and name != self._slow:
                session = self._queue((subscription, name)).session
                self._do(c.Ack(subscription, name, session, list(mine), list(mine.values())))
                mine.clear()

    def _perhaps_lag(self) -> None:
        """Now and then nobody acknowledges for a while, and the backlog grows."""
        per_step = self.shape.batch * BATCHES_PER_STEP
        if self.shape.lag_every and self.random.random() < per_step / self.shape.lag_every:
            self._lag_until = self._steps + self.random.randint(5, 50)

    def _drain(self) -> None:
        """The end: everything that was begun comes to its end, and all is settled."""
        self._lag_until = 0
        while self._later:
            self._later.pop(0)[1]()
            self._look_again()
        self._slow = None
        self._do(c.Redrive(DEFAULT_SUBSCRIPTION))
        while self.channel.unsettled():
            self._extra_ms += 1
            self._dispatch()
            self._settle()

    # Who is there.

    def _open(self, source: Source) -> None:
        source.epoch = self._do(c.OpenPublisher(source.name)).reply["epoch"]

    def _join(self, name: str, subscription: str = DEFAULT_SUBSCRIPTION) -> None:
        self._sessions += 1
        session = f"session-{self._sessions}"
        self._do(c.Subscribe(subscription, name, session, self.shape.prefetch, ""))
        self.held[subscription, name] = {}

    def _leave(self, name: str, reason: str, subscription: str = DEFAULT_SUBSCRIPTION) -> None:
        queue = self._queue((subscription, name))
        self._do(c.Leave(subscription, name, queue.session, reason))

    def _after(self, steps: int, what: Callable[[], None]) -> None:
        self._later.append((self._steps + steps, what))
        self._later.sort(key=lambda item: item[0])

    # Faults. Each is the core's own answer to a command that a client or the broker may send.

    def _fault(self) -> None:
        """The next one; each round brings every one of them once, in a new order."""
        if not self._faults:
            self._faults = sorted(_FAULTS)
            self.random.shuffle(self._faults)
        _FAULTS[self._faults.pop()](self)
        self._look_again()

    def _worker(self) -> tuple[SubQueue, list[int]]:
        """A subscriber, and the epochs that it holds."""
        group = self.channel.subscriptions[DEFAULT_SUBSCRIPTION]
        queues = [queue for queue in group.subscribers.values() if queue.subscriber != self._slow]
        queue = self.random.choice([queue for queue in queues if queue.held] or queues)
        return queue, list(queue.held)

    def _nack_one(self, final: bool = False) -> tuple[SubQueue, int, int] | None:
        """Some message of some subscriber fails; who it was, and the assignment that ended."""
        queue, epochs = self._worker()
        if not epochs:
            return None
        epoch = self.random.choice(epochs)
        line = queue.held[epoch]
        position = self.random.randint(line.settled + 1, line.delivered)
        upto = line.delivered
        self._do(
            c.Nack(
                DEFAULT_SUBSCRIPTION, queue.subscriber, queue.session, epoch, position,
                "poison" if final else "handler failed", None, final,
            )
        )  # fmt: skip
        return queue, epoch, upto

    def _park(self) -> None:
        self._nack_one(final=True)
        drop = self.random.random() < 0.5
        self._after(5, lambda: self._redrive(drop))

    def _redrive(self, drop: bool) -> None:
        self._do(c.Redrive(DEFAULT_SUBSCRIPTION, None, drop))

    def _stale_ack(self) -> None:
        """An ack that was under way when its assignment ended by a nack."""
        nacked = self._nack_one()
        if nacked is not None:
            queue, epoch, upto = nacked
            member = (DEFAULT_SUBSCRIPTION, queue.subscriber, queue.session)
            self._do(c.Ack(*member, [epoch], [upto]))

    def _crash(self) -> None:
        name = self._worker()[0].subscriber
        self._leave(name, "crashed")
        self._after(3, lambda: self._join(name))

    def _leave_for_a_while(self) -> None:
        name = self._worker()[0].subscriber
        self._leave(name, "left")
        self._after(10, lambda: self._join(name))

    def _replace(self) -> None:
        self._join(self._worker()[0].subscriber)

    def _join_late(self) -> None:
        """One more subscriber: others are asked to share, and hand back what they have not begun;
        it crashes or leaves later."""
        name, reason = "late-joiner", self.random.choice(("left", "crashed"))
        if name in self.channel.subscriptions[DEFAULT_SUBSCRIPTION].subscribers:
            return
        self._join(name)
        self._answer_recalls(self._do(c.Tick()))
        self._after(6, lambda: self._leave(name, reason))

    def _answer_recalls(self, decision: c.Decision) -> None:
        for record in decision.records:
            if not isinstance(record, Recalled):
                continue
            queue = self._queue((record.subscription, record.subscriber))
            begun = [
                self.random.randint(queue.held[epoch].settled, queue.held[epoch].delivered)
                for epoch in record.epochs
            ]
            member = (record.subscription, record.subscriber, queue.session)
            self._do(c.HandBack(*member, list(record.epochs), begun))

    def _slow_down(self) -> None:
        """One subscriber settles nothing for some steps; then its long delays are noticed."""
        if self._slow is not None:
            return
        queue = self._worker()[0]
        self._slow = queue.subscriber
        self._after(5, lambda: self._end_slow(queue))

    def _end_slow(self, queue: SubQueue) -> None:
        self._slow = None
        member = (DEFAULT_SUBSCRIPTION, queue.subscriber)
        if member not in self.held or self._queue(member) is not queue:
            return
        done = [(epoch, line.delivered) for epoch, line in list(queue.held.items())[:3]]
        waited_ms = 5 * BATCHES_PER_STEP * self.shape.batch // self.shape.messages_per_ms
        delays = [[epoch, upto, waited_ms] for epoch, upto in done]
        epochs, uptos = [epoch for epoch, _ in done], [upto for _, upto in done]
        self._answer_recalls(self._do(c.Ack(*member, queue.session, epochs, uptos, delays)))

    def _kill_queues(self) -> None:
        self._do(c.KillQueues())
        self._extra_ms += 20
        self._do(c.RestoreQueues())

    def _restart(self) -> None:
        """The broker goes down and up; everybody comes back with what it holds."""
        self._extra_ms += 300
        self._do(c.Start(f"{self.random.getrandbits(64):016x}"))
        for group in self.channel.subscriptions_list:
            for name, queue in group.subscribers.items():
                self._do(c.Subscribe(group.name, name, queue.session, queue.prefetch, ""))

    def _resend(self) -> None:
        """The answer to a publish got lost: the same batch comes again."""
        self._do(self._publish())

    def _reopen(self) -> None:
        self._open(self.random.choice(self.sources))

    def _second_subscription(self) -> None:
        """A group is made, has a subscriber for a while, and is deleted while it is owed work."""
        name = "observers"
        if name in self.channel.subscriptions:
            return
        self._do(c.CreateSubscription(name))
        self._after(2, lambda: self._join("observer", name))
        self._after(8, lambda: self._leave("observer", "left", name))
        self._after(12, lambda: _ignore(self._do(c.DeleteSubscription(name))))

    def _late_batch(self) -> None:
        """Messages that are older than what was handed out before them."""
        self._publish(timestamp_us=(self.now_ms - self.random.randint(50, 500)) * 1_000)

    def _urgent_batch(self) -> None:
        self._publish(priorities=self.random.choices((0, 0, 0, 5, 9), k=self.shape.batch))

    def _known_ids(self) -> None:
        """A batch with ids that users chose; some of them twice."""
        extras = []
        for _ in range(self.shape.batch):
            self._ids += self.random.random() < 0.9
            extras.append({"id": f"order-{self._ids}"})
        self._publish(extras=extras)


def _ignore(decision: c.Decision) -> None:
    """The answer is not needed."""


_DISPATCH: Final = c.Dispatch()

_FAULTS: dict[str, Callable[[Load], Any]] = {
    "nack": Load._nack_one, "park": Load._park, "stale ack": Load._stale_ack,
    "crash": Load._crash, "leave": Load._leave_for_a_while, "replace": Load._replace,
    "late joiner": Load._join_late, "slow subscriber": Load._slow_down,
    "queue crash": Load._kill_queues, "broker restart": Load._restart, "resend": Load._resend,
    "reopened publisher": Load._reopen, "second subscription": Load._second_subscription,
    "late messages": Load._late_batch, "urgent messages": Load._urgent_batch,
    "known ids": Load._known_ids,
}  # fmt: skip


def generate(
    path: str | Path, shape: Shape, progress: Callable[[int], None] = lambda published: None
) -> dict[str, Any]:
    """Make the store ``path``, which must not exist; what it cost and what is in it.

    It gets its name when it is whole, so a store that is there was never half made.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists; remove it, or give another name")
    making = path.with_name(path.name + ".making")
    making.unlink(missing_ok=True)
    gc.collect()
    gc.set_threshold(50_000, 20, 50)  # as the broker does: messages are tuples without cycles
    began = time.perf_counter()
    writer = StoreWriter(str(making))
    load = Load(shape, writer.append)
    load.run(progress)
    writer.close()
    seconds = time.perf_counter() - began
    os.replace(making, path)
    size = path.stat().st_size
    return {
        "store": str(path),
        "messages": load.published,
        "messages_kept": load.channel.published_total,
        "records": writer.records,
        "partitions": sum(1 for _ in load.channel.backup.partitions()),
        "seconds": round(seconds, 3),
        "messages_per_second": round(load.published / seconds),
        "bytes_per_message": round(size / load.published, 1),
        "store_bytes": size,
        "pending_max": load.pending_max,
        "peak_memory_bytes": _peak_memory(),
    }


def _peak_memory() -> int:
    """The most that this process has held.

    Not ``ru_maxrss`` where there is another way: it starts with what the parent held at the fork.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) * 1024


def generate_with_bar(path: str | Path, shape: Shape) -> dict[str, Any]:
    """The same with a progress bar on stderr, if that is a terminal."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"),
        TimeRemainingColumn(),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(str(path), total=shape.messages)
        return generate(path, shape, lambda published: bar.update(task, completed=published))


def whole(text: str) -> int:
    """A whole number that may be written as 1e7."""
    number = float(text)
    if number < 0 or number != int(number):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return int(number)


def main() -> None:
    """The command line: one store, and a JSON object about it on stdout."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.journals", description=__doc__)
    parser.add_argument("store", metavar="STORE", type=Path)
    for name in (
        "messages", "partitions", "publishers", "subscribers", "batch", "runs", "prefetch",
        "messages_per_ms", "fault_every", "lag_every", "seed",
    ):  # fmt: skip
        default = Shape.__dataclass_fields__[name].default
        parser.add_argument("--" + name.replace("_", "-"), type=whole, default=default)
    parser.add_argument(
        "--interleaved", action="store_true", help="each message of a batch has its own partition"
    )
    options = vars(parser.parse_args())
    store, interleaved = options.pop("store"), options.pop("interleaved")
    if interleaved:
        options["runs"] = options["batch"]
    try:
        print(json.dumps(generate_with_bar(store, Shape(**options)), indent=2))
    except (ValueError, FileExistsError) as error:
        sys.exit(f"journals: {error}")


if __name__ == "__main__":
    main()
