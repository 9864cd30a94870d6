"""A message whose handler always raises, in the middle of a partition; and one that does so once.

The poison is tried three times in its place, with a growing pause, and nothing of its partition
overtakes it. Then it is parked with the reason, the partition goes on, and no other partition has
waited for it. Redriven once the handler is mended, it is handled after all.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from simulations.stage.actors import fail
from simulations.stage.processes import Broker, Worker, all_runs
from simulations.stage.script import Script, main
from simulations.stage.seen import by_key

ATTEMPTS_MAX = 3
BACKOFF_MS = 200
BODIES = ["one", "poison", "three", "flaky", "five"]
OTHERS = 20


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create(attempts_max=ATTEMPTS_MAX, backoff_ms=BACKOFF_MS)
    worker = Worker(
        script, "worker", broker.name_server,
        fail("this one cannot be handled", body="poison"), fail("not now", body="flaky", attempt=1),
    )  # fmt: skip
    broker.joined(worker)
    broker.call("publish", "p", "bad", BODIES)
    for number in range(OTHERS):
        broker.call("publish", "p", f"good-{number % 4}", [f"good {number}"])
    script.step("start", f"five messages in one partition, {OTHERS} in four others")
    settled = len(BODIES) + OTHERS - 1
    group = broker.until(parked=1, backup=0, acked_total=settled)
    parked = broker.call("parked")
    script.step("parked", f"{parked[0]['body']}: {parked[0]['reason']}")

    runs = by_key(worker.runs())
    tried = [(run.body, run.attempt) for run in runs["p", "bad"]]
    starts = [run.start for run in runs["p", "bad"] if run.body == "poison"]
    pauses = [round((after - before) * 1000) for before, after in zip(starts, starts[1:])]
    ended = max(run.start for key, seen in runs.items() if key[1] != "bad" for run in seen)

    worker.end()
    mended = Worker(script, "mended", broker.name_server)
    broker.joined(mended)
    script.step("mended", "the worker is replaced by one that can handle it; redrive")
    broker.call("redrive")
    broker.until(parked=0, backup=0, acked_total=settled + 1)

    script.expect(
        "the partition, with attempts",
        [("one", 1), ("poison", 1), ("poison", 2), ("poison", 3), ("three", 1), ("flaky", 1),
         ("flaky", 2), ("five", 1)],
        tried,
    )  # fmt: skip
    script.expect_true(
        "pauses before the attempts, in ms", f"at least {BACKOFF_MS} and {2 * BACKOFF_MS}", pauses,
        len(pauses) == 2 and pauses[0] >= BACKOFF_MS and pauses[1] >= 2 * BACKOFF_MS,
    )  # fmt: skip
    script.expect(
        "parked: body, attempts", [("poison", ATTEMPTS_MAX)],
        [(row["body"], row["attempt"]) for row in parked],
    )  # fmt: skip
    script.expect(
        "the reason is the handler's own", True,
        "ValueError: this one cannot be handled" in parked[0]["reason"],
    )  # fmt: skip
    script.expect("failures counted", ATTEMPTS_MAX + 1, group["nacked_total"])
    script.expect(
        "other partitions waited for the third attempt", False, bool(ended > starts[-1])
    )
    script.expect("handled once mended", ["poison"], [run.body for run in mended.runs()])
    runs_all = all_runs(worker, mended)
    script.expect("handled twice", 0, _finished_twice([(run.key, run.sequence) for run in runs_all
                                                        if run.finish is not None]))  # fmt: skip
    kinds = [type(item) for item in broker.journal() if isinstance(item, (r.Parked, r.Redriven))]
    script.expect("in the journal", ["Parked", "Redriven"], [kind.__name__ for kind in kinds])


def _finished_twice(messages: list[object]) -> int:
    return len(messages) - len(set(messages))


if __name__ == "__main__":
    sys.exit(main(story, "Poison message that raises", __doc__ or ""))
