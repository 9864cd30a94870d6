"""The network of one subscriber and one publisher becomes a black hole: everything is swallowed,
nothing is closed. Later it heals.

For the broker the subscriber is silent, though its connections stand: its lease ends, and the other
one goes on with its partition. The message that the lost one finishes meanwhile is not acknowledged
twice. The publisher knows nothing of its message's fate, and sends it again when it can. Healed,
both are back at work by themselves. Connections that never say a word keep nobody out.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

from broker.core import records as r
from broker.core.records import Record
from publisher import Publisher
from simulations.stage.actors import hold
from simulations.stage.gateway import Gateway
from simulations.stage.processes import HOST, Broker, Worker, all_runs
from simulations.stage.proxy import BLACK_HOLE
from simulations.stage.script import CHANNEL, Script, main
from simulations.stage.seen import sequences

LEASE_MS = 1_000
POLICY: dict[str, Any] = {"lease_ms": LEASE_MS, "send_timeout_ms": 500, "send_backoff_ms": 50}
NOTICED_S_MAX = 5.0
SILENT_COUNT = 50


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create(**POLICY)
    gateway = Gateway(broker.name_server, CHANNEL, script.seed)
    script.add(gateway)
    second = script.gate("second")
    lost = Worker(script, "lost", gateway.name_server, hold(second, number=2), timeout_s=1.0)
    broker.joined(lost)
    publisher = script.publisher("p", gateway.name_server, timeout_s=1.0)
    for number in range(6):
        publisher.publish(str(number), "part")
    publisher.flush(30.0)
    lost.begun(2)
    other = Worker(script, "other", broker.name_server)
    broker.joined(other)
    broker.call("publish", "w", "warm", ["warm"])
    broker.until(acked_total=2)
    threads = _threads(broker)
    script.step("before", "lost is in its second message of six; other has handled another one")

    gateway.set(BLACK_HOLE, BLACK_HOLE)
    began = time.monotonic()
    receipt = publisher.publish("into the hole", "hole")
    script.step("hole", "everything from and to lost and the publisher is swallowed")
    other.begun(2)
    retried = other.runs()[1]
    noticed_s = retried.start - began
    broker.settled(7)
    script.step("moved", f"other has begun after {noticed_s:.1f} s, and handled the rest")
    second.touch()
    script.wait(lambda: lost.handled() == 2, "lost has finished its message, too late")
    open_then = not receipt.done()

    gateway.heal()
    script.step("healed", f"{gateway.dropped_bytes} bytes were swallowed; packets pass again")
    sequence = receipt.result(30.0).sequence
    broker.joined(lost)
    broker.settled(8)
    spent_s = _with_silent_peers(script, broker)
    _work_for_all(script, publisher, lost)
    broker.settled(broker.statistics()["published_total"])
    script.wait(
        lambda: _threads(broker) <= threads, "the broker has let go of what was half open",
        lambda: f"{_threads(broker)} threads, {threads} before",
    )  # fmt: skip

    part = [run for run in all_runs(lost, other) if run.partition == "part"]
    script.expect_true(
        "seconds until other has begun", f"below {NOTICED_S_MAX:g} (lease {LEASE_MS / 1000:g})",
        f"{noticed_s:.1f}", noticed_s < NOTICED_S_MAX,
    )  # fmt: skip
    script.expect("begun by lost", [1, 2], sequences(lost.runs(), "part"))
    script.expect("handled by other, in order", list(range(2, 7)), sequences(part)[2:])
    script.expect("attempt of the first of them", 2, retried.attempt)
    script.expect("bytes were swallowed", True, gateway.dropped_bytes > 0)
    script.expect("the publisher's message was open in the hole", True, open_then)
    script.expect("its sequence once healed", 1, sequence)
    script.expect_true(
        f"seconds for a new client beside {SILENT_COUNT} silent ones", "below 2", f"{spent_s:.2f}",
        spent_s < 2.0,
    )  # fmt: skip
    left = _threads(broker)
    script.expect_true("threads of the broker", f"{threads} or fewer", left, left <= threads)
    _expect_of_journal(script, broker.journal())


def _expect_of_journal(script: Script, records: list[Record]) -> None:
    acked = [
        (first, count)
        for item in records
        if isinstance(item, r.Acked) and item.subscriber == "lost"
        for key, first, count in zip(item.keys, item.firsts, item.counts)
        if key.partition == "part"
    ]
    script.expect("acknowledged by lost, in the journal: position, count", [(1, 1)], acked)
    gone = next(item for item in records if isinstance(item, r.SubscriberLeft))
    script.expect_true(
        "why lost was given up", "expired or crashed", gone.reason,
        gone.subscriber == "lost" and gone.reason in ("expired", "crashed"),
    )  # fmt: skip


def _with_silent_peers(script: Script, broker: Broker) -> float:
    """How long a new client's first call takes while others have connected and say nothing."""
    silent = [socket.create_connection((HOST, broker.port), 5.0) for _ in range(SILENT_COUNT)]
    script.step("silent", f"{SILENT_COUNT} connections are opened, and nothing is said on them")
    try:
        began = time.monotonic()
        new = script.publisher("new", broker.name_server)
        new.publish("hello", "hello").result(30.0)
        spent_s = time.monotonic() - began
        new.close()
    finally:
        for peer in silent:
            peer.close()
    broker.settled(9)
    return spent_s


def _work_for_all(script: Script, publisher: Publisher, lost: Worker) -> None:
    """Publish, each time into a new partition, until lost has handled something again."""
    numbers = iter(range(1 << 30))

    def at_work() -> bool:
        publisher.publish("new", f"new-{next(numbers)}").result(30.0)
        return lost.handled() > 2

    script.wait(at_work, "lost is at work again", lost.tail)


def _threads(broker: Broker) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/task"))


if __name__ == "__main__":
    sys.exit(main(story, "Half-open connections", __doc__ or ""))
