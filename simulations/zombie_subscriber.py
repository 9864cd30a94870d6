"""A subscriber is stopped (SIGSTOP) inside its second message until its lease is over, and wakes.

Its work has gone to the other one under a newer epoch. What the zombie finishes when it wakes is
acknowledged too late: the ack is stale and changes nothing, and what it had not begun it does not
begin any more. It joins anew and gets new work.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from simulations.stage.actors import hold
from simulations.stage.processes import Broker, Worker
from simulations.stage.script import Script, main
from simulations.stage.seen import count_disorder, sequences

LEASE_MS = 800


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create(lease_ms=LEASE_MS, send_timeout_ms=500, send_backoff_ms=20)
    begin, second = script.gate("begin"), script.gate("second")
    zombie = Worker(
        script, "zombie", broker.name_server, hold(begin, number=1), hold(second, number=2)
    )
    broker.joined(zombie)
    publisher = script.publisher("p", broker.name_server)
    for number in range(1, 7):
        publisher.publish(str(number), "part")
    publisher.flush(30.0)
    zombie.begun()
    other = Worker(script, "other", broker.name_server)
    broker.joined(other)
    begin.touch()
    zombie.begun(2)
    broker.until(acked_total=1)
    script.step("start", "zombie has six messages and is in its second; other is idle")

    zombie.freeze()
    second.touch()
    script.step("freeze", f"SIGSTOP; the lease is {LEASE_MS} ms")
    group = broker.settled(6)
    script.step("moved", "other has handled the rest, while zombie stands still")
    old, new = zombie.runs()[1], other.runs()[0]
    script.expect("who is subscribed meanwhile", ["other"], list(group["subscribers"]))
    script.expect("handled by other", [2, 3, 4, 5, 6], sequences(other.runs()))
    script.expect("attempt number of the second message, at other", 2, new.attempt)
    script.expect_true("its epoch at other", f"above {old.epoch}", new.epoch, new.epoch > old.epoch)
    script.expect("out of order or overlapping at other", 0, count_disorder(other.runs()))

    zombie.thaw()
    script.wait(lambda: zombie.runs()[1].finish, "zombie has finished its second message")
    broker.joined(zombie)
    script.step("thaw", "SIGCONT: zombie has finished its second message, and has joined anew")
    session = broker.group()["subscribers"]["zombie"]["session"]
    late = broker.call("ack", "zombie", session, old.epoch, 2)
    fate = {"acked": late["acked"], "stale": late["stale"]}
    script.expect("its ack under the old epoch", {"acked": 0, "stale": [old.epoch]}, fate)
    script.expect("acknowledged after it", 6, broker.group()["acked_total"])
    fenced: int = broker.group()["fenced_ack_total"]
    script.expect_true("fenced acks in the statistics", "at least 1", fenced, fenced >= 1)
    for number in range(4):
        publisher.publish(f"new {number}", f"new-{number}")
    broker.settled(10)
    fresh = sum(run.partition.startswith("new") for run in zombie.runs())
    script.step("after", f"four new messages are handled, {fresh} of them by zombie")
    script.expect("begun by zombie of the old partition", [1, 2], sequences(zombie.runs(), "part"))
    script.expect("alive at the end", True, zombie.alive)

    records = broker.journal()
    acked = [
        (first, count)
        for record in records if isinstance(record, r.Acked) and record.subscriber == "zombie"
        for key, first, count in zip(record.keys, record.firsts, record.counts)
        if key.partition == "part"
    ]  # fmt: skip
    script.expect("what it acknowledged of it: (first, count)", [(1, 1)], acked)
    stale = [x for x in records if isinstance(x, r.StaleAcked) and x.subscriber == "zombie"]
    script.expect_true("stale acks in the journal", "at least 1", len(stale), bool(stale))


if __name__ == "__main__":
    sys.exit(main(story, "Zombie subscriber", __doc__ or ""))
