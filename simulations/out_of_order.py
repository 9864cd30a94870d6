"""Messages are published in a shuffled order of their timestamps, and one comes too late.

A partition is handed out by timestamp, whatever the order of publishing. A message that is older
than one that was handed out already cannot be put before it: it comes next, and is recorded as
late.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from simulations.stage.actors import hold
from simulations.stage.processes import Broker, Worker
from simulations.stage.script import Script, main
from simulations.stage.seen import by_key, count_disorder, sequences

COUNT = 40
FIRST = 1_700_000_000


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create()
    publisher = script.publisher("p", broker.name_server)
    times = [FIRST + number for number in range(COUNT)]
    for partition in ("one", "two"):
        script.random.shuffle(times)
        for at in times:
            publisher.publish(str(at), partition, timestamp=float(at))
    publisher.flush(30.0)
    script.step("start", f"2 x {COUNT} messages are published, their timestamps shuffled")

    late = script.gate("late")
    # With a prefetch of 2 the partition is not handed out as a whole: the rest waits in order.
    worker = Worker(script, "worker", broker.name_server, hold(late, body=str(FIRST + 9)),
                    prefetch=2)  # fmt: skip
    script.wait(lambda: any(run.body == str(FIRST + 9) for run in worker.runs()),
                "worker is in the tenth of a partition")  # fmt: skip
    held = next(run.partition for run in worker.runs() if run.body == str(FIRST + 9))
    publisher.publish("late", held, timestamp=FIRST + 0.5).result(30.0)
    publisher.publish("in time", held, timestamp=FIRST + 20.5).result(30.0)
    script.step("late", f"worker is in the tenth of {held}; a message for between 1 and 2 comes")
    late.touch()
    group = broker.settled(2 * COUNT + 2)
    script.step("after", "all are acknowledged")

    runs = by_key(worker.runs())
    for partition in ("one", "two"):
        seen = [run.body for run in runs["p", partition]]
        stamps = [int(body) - FIRST for body in seen if body.isdigit()]
        script.expect_true(
            f"timestamps of {partition}", f"all {COUNT}, rising",
            f"all {COUNT}, rising" if stamps == list(range(COUNT)) else stamps,
            stamps == list(range(COUNT)),
        )  # fmt: skip
        found = sequences(runs["p", partition])
        script.expect_true(
            f"sequences of {partition}, against the order of publishing", "not rising",
            "rising" if found == sorted(found) else "not rising", found != sorted(found),
        )  # fmt: skip
    bodies = [run.body for run in runs["p", held]]
    script.expect_true(
        "place of the late message", "among the next after the tenth, out of turn",
        f"number {bodies.index('late') + 1} of {len(bodies)}", 10 <= bodies.index("late") <= 12,
    )  # fmt: skip
    in_time = bodies.index("in time")
    script.expect(
        "neighbours of the message that came in time", [str(FIRST + 20), str(FIRST + 21)],
        [bodies[at] for at in (in_time - 1, in_time + 1) if at < len(bodies)],
    )  # fmt: skip
    script.expect("late messages in the statistics", 1, group["late_total"])
    script.expect("out of order or overlapping", 0, count_disorder(worker.runs()))
    recorded = [len(x.late) for x in broker.journal() if isinstance(x, r.Delivered) and x.late]
    script.expect("late messages in the journal", [1], recorded)


if __name__ == "__main__":
    sys.exit(main(story, "Out-of-order messages", __doc__ or ""))
