"""Handlers stand still for 300 ms in three of twenty messages: longer than the limit for a delay,
far shorter than the limit for a long one.

Each of these delays is in the journal and in the statistics, at its position. Nothing changes hands
for them: a subscriber that is slow now and then keeps its work.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from simulations.stage.actors import sleep
from simulations.stage.processes import Broker, Worker, all_runs
from simulations.stage.script import Script, main
from simulations.stage.seen import count_disorder, count_repeated

COUNT = 20
DELAY_MS = 250
SLOW_S = 0.3
SLOW = ("3", "8", "15")


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create(delay_ms=DELAY_MS, long_delay_ms=5_000, long_delays_max=3)
    rules = [sleep(SLOW_S, body=body) for body in SLOW]
    pair = [Worker(script, name, broker.name_server, *rules) for name in ("left", "right")]
    broker.joined(*pair)
    script.step("start", f"two subscribers; a delay is {DELAY_MS} ms, a long one 5 s")

    publisher = script.publisher("p", broker.name_server)
    for number in range(COUNT):
        publisher.publish(str(number), f"part-{number % 2}")
    publisher.flush(30.0)
    script.step("flow", f"{COUNT} messages; {SLOW_S * 1000:.0f} ms each for {', '.join(SLOW)}")
    group = broker.settled(COUNT)
    script.step("after", "all are acknowledged")

    runs = all_runs(*pair)
    # By the handlers' own clocks: on a busy machine a message may take longer than it was told to.
    slow = {(run.partition, run.position) for run in runs
            if run.finish is not None and run.finish - run.start >= DELAY_MS / 1000}  # fmt: skip
    script.expect("messages handled", COUNT, len(runs))
    script.expect("messages begun more than once", 0, count_repeated(runs))
    script.expect("out of order or overlapping", 0, count_disorder(runs))
    script.expect("delays in the statistics", len(slow), group["delays_total"])
    script.expect("long delays", 0, group["long_delays_total"])
    script.expect("messages handed over", {}, group["handover_total"])
    script.expect("messages sent again", 0, group["redelivered_total"])

    records = broker.journal()
    flagged = {
        (record.keys[run].partition, position): delay_ms
        for record in records if isinstance(record, r.Acked)
        for run, position, delay_ms in record.delays
    }  # fmt: skip
    asked = {(run.partition, run.position) for run in runs if run.body in SLOW}
    script.expect_true(
        "delays in the journal, by position", f"{sorted(slow)}", sorted(flagged),
        set(flagged) == slow and asked <= slow,
    )  # fmt: skip
    moved = [x for x in records if isinstance(x, (r.Reassigned, r.Recalled, r.Slowed, r.Nacked))]
    script.expect("recalls, reassignments and retries in the journal", 0, len(moved))


if __name__ == "__main__":
    sys.exit(main(story, "Small interruptions", __doc__ or ""))
