"""One partition gets nine messages of ten, all of them urgent; a few others get the rest.

The hot one has a backlog that takes seconds, for its messages go one after another whatever the
number of workers. That keeps one worker busy, not the channel: the others' messages are handled
within moments of their coming, and the order of every partition is kept.
"""

from __future__ import annotations

import sys
import time

from simulations.stage.actors import sleep
from simulations.stage.processes import Broker, Worker, all_runs
from simulations.stage.script import Script, main
from simulations.stage.seen import Run, by_key, count_disorder, count_repeated

HOT_COUNT, COLD_COUNT, COLD_PARTITIONS = 900, 100, 20
WORK_S = 0.004
PACE_S = 0.005
WAIT_MS_MAX = 1_000
HOT_PRIORITY = 9


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create()
    workers = [
        Worker(script, f"worker-{number}", broker.name_server, sleep(WORK_S), prefetch=50)
        for number in (1, 2)
    ]
    broker.joined(*workers)
    publisher = script.publisher("p", broker.name_server)
    for number in range(HOT_COUNT):
        publisher.publish(f"hot {number}", "hot", priority=HOT_PRIORITY)
    publisher.flush(30.0)
    script.step("flood", f"{HOT_COUNT} urgent messages in one partition, {WORK_S * 1000:g} ms each")

    sent: dict[tuple[str, int], float] = {}
    for number in range(COLD_COUNT):
        partition, turn = f"cold-{number % COLD_PARTITIONS}", number // COLD_PARTITIONS + 1
        sent[partition, turn] = time.monotonic()
        publisher.publish(f"cold {number}", partition)
        time.sleep(PACE_S)
    script.step("trickle", f"{COLD_COUNT} plain ones in {COLD_PARTITIONS} other partitions, singly")
    broker.settled(HOT_COUNT + COLD_COUNT)

    runs = all_runs(*workers)
    hot = by_key(runs)["p", "hot"]
    cold = [run for run in runs if run.partition != "hot"]
    waits = sorted(_waited_ms(run, sent) for run in cold)
    p99 = waits[len(waits) * 99 // 100]
    ahead = sum(run.start > max(item.start for item in cold) for run in hot)
    owners = {run.who for run in hot}
    script.step("done", f"the hot partition was handled by {', '.join(sorted(owners))}")

    in_order = [run.sequence for run in hot] == list(range(1, HOT_COUNT + 1))
    script.expect("hot messages handled in order", True, in_order)
    script.expect("others handled", COLD_COUNT, len(cold))
    script.expect_true(
        "the longest waits of the others, in ms (99 of 100, the longest)",
        f"below {WAIT_MS_MAX}", f"{p99:.0f}, {waits[-1]:.0f}", p99 < WAIT_MS_MAX,
    )  # fmt: skip
    script.expect_true(
        "hot messages still to come when the last of the others was begun", "100 or more", ahead,
        ahead >= 100,
    )  # fmt: skip
    script.expect("handled twice", 0, count_repeated(runs))
    script.expect("out of order or overlapping", 0, count_disorder(runs))
    script.expect("attempts above the first", 0, sum(run.attempt > 1 for run in runs))


def _waited_ms(run: Run, sent: dict[tuple[str, int], float]) -> float:
    """From ``publish`` to the start of the handler."""
    return (run.start - sent[run.partition, run.sequence]) * 1000


if __name__ == "__main__":
    sys.exit(main(story, "A hot partition", __doc__ or ""))
