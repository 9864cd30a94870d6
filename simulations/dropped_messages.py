"""Messages get lost on both sides: one on its way to the broker, others at subscribers that drop
what they are given or never say what became of it.

A message that is missing makes a gap in its publisher's numbers: what comes after it is refused,
with the number that is expected. A subscriber that refuses a call three times, and one that gives
no sign of life, are inactive; all that they were given goes to the others, in order.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from broker.errors import SequenceGap
from simulations.stage.processes import Broker, PlainWorker, Worker
from simulations.stage.script import Script, main
from simulations.stage.seen import by_key, count_disorder, sequences

LEASE_MS = 1_000
PARTITIONS = ("one", "two", "three", "four")


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create(lease_ms=LEASE_MS, sends_max=3, send_backoff_ms=20)
    broker.call("publish", "gap", "part", ["1", "2", "3"], first_sequence=1)
    expected = _publish_after_a_gap(broker)
    script.step("dropped", f"number 4 got lost on its way; 5 is refused, {expected} is expected")
    script.expect("the number that is expected when 5 comes without 4", 4, expected)
    reply = broker.call("publish", "gap", "part", ["4", "5"], first_sequence=4)
    script.expect("accepted when both are sent", 2, reply["accepted"])
    drain = Worker(script, "first", broker.name_server, count=5)
    script.expect("exit code of the subscriber that took them", 0, drain.wait_end())
    script.expect("handled, in order", list("12345"), [run.body for run in drain.runs()])
    broker.until(consumers=0, acked_total=5)

    raising = PlainWorker(script, "raising", broker.name_server, "raise")
    silent = PlainWorker(script, "silent", broker.name_server, "silent")
    broker.joined(raising, silent)
    for name in PARTITIONS:
        broker.call("publish", "p", name, [f"{name} {number}" for number in range(5)])
    script.wait(lambda: len(raising.calls()) == 3, "raising was called three times")
    script.wait(silent.calls, "silent was given something")
    script.step("dropped", "raising refuses every call; silent takes messages and says nothing")
    good = Worker(script, "good", broker.name_server)
    group = broker.settled(25)
    script.step("after", "everything is acknowledged by good")

    calls = raising.calls()
    script.expect("calls of the one that raises, all the same", (3, 1),
                  (len(calls), len({str(call) for call in calls})))  # fmt: skip
    script.expect("who is subscribed", ["good"], list(group["subscribers"]))
    script.expect(
        "sequences of each partition at good", {name: [1, 2, 3, 4, 5] for name in PARTITIONS},
        {key[1]: sequences(runs) for key, runs in sorted(
            by_key(good.runs()).items(), key=lambda item: PARTITIONS.index(item[0][1]))},
    )  # fmt: skip
    script.expect("out of order or overlapping", 0, count_disorder(good.runs()))
    left = {x.subscriber: x.reason for x in broker.journal() if isinstance(x, r.SubscriberLeft)}
    script.expect(
        "why they left, in the journal", {"raising": "crashed", "silent": "expired"},
        {name: left.get(name) for name in ("raising", "silent")},
    )  # fmt: skip


def _publish_after_a_gap(broker: Broker) -> int | None:
    try:
        broker.call("publish", "gap", "part", ["5"], first_sequence=5)
    except SequenceGap as gap:
        expected: int = gap.details["expected"]
        return expected
    return None


if __name__ == "__main__":
    sys.exit(main(story, "Dropped messages", __doc__ or ""))
