"""A subscriber is killed inside its fourth message of five, with the fifth in its buffer.

What was acknowledged stays done; the message it died in and the one after it go to the other
subscriber, in order, under a newer epoch, the first of them as a second attempt.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from simulations.stage.actors import hold
from simulations.stage.processes import Broker, Worker, all_runs
from simulations.stage.script import Script, main
from simulations.stage.seen import count_disorder, sequences

LEASE_MS = 1_000


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create(lease_ms=LEASE_MS)
    script.step("start", f"a broker; who gives no sign of life for {LEASE_MS} ms is dead")

    begin, never = script.gate("begin"), script.gate("never")
    victim = Worker(
        script, "victim", broker.name_server, hold(begin, number=1), hold(never, number=4)
    )
    broker.joined(victim)
    publisher = script.publisher("p", broker.name_server)
    for number in range(5):
        publisher.publish(str(number), "part")
    publisher.flush(30.0)
    victim.begun()
    other = Worker(script, "other", broker.name_server)
    broker.joined(other)
    begin.touch()
    victim.begun(4)
    broker.until(acked_total=3)
    script.step("before", "victim has handled three of five and is in the fourth; other is idle")

    idle = len(other.runs())
    victim.kill9()
    script.step("crash", "kill -9 of victim")
    group = broker.settled(5)
    script.step("after", "all five are acknowledged")

    died_in, retried = victim.runs()[-1], other.runs()[0]
    script.expect("given to other before the crash", 0, idle)
    script.expect("sequences that victim began", [1, 2, 3, 4], sequences(victim.runs()))
    script.expect("sequences that other handled", [4, 5], sequences(other.runs()))
    script.expect("attempt number of the message it died in, at other", 2, retried.attempt)
    script.expect_true(
        "epoch of that message at other", f"above {died_in.epoch}", retried.epoch,
        retried.epoch > died_in.epoch,
    )  # fmt: skip
    script.expect("messages handed over", {"crash": 2}, group["handover_total"])
    script.expect("who is subscribed", ["other"], list(group["subscribers"]))
    script.expect("out of order or overlapping", 0, count_disorder(all_runs(victim, other)))
    left = next(record for record in broker.journal() if isinstance(record, r.SubscriberLeft))
    script.expect_true(
        "why victim left, in the journal", "expired or crashed", left.reason,
        left.subscriber == "victim" and left.reason in ("expired", "crashed"),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(story, "Crashed subscriber", __doc__ or ""))
