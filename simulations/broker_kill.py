"""The broker is killed twice under load (kill -9) and started again on the same store.

Two publisher processes and two subscriber processes live through it by themselves. Whatever a
publisher was told is accepted is handled; nothing is handled twice, and every partition in order.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from simulations.stage.processes import Broker, PublisherProcess, Worker, all_runs
from simulations.stage.script import Script, main
from simulations.stage.seen import by_key, count_disorder, count_repeated, sequences

COUNT = 4_000  # of each publisher
RATE = 2_000.0
PARTITIONS = 8
KILL_AT = (800, 2_500)  # messages handled


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create()
    crew = [Worker(script, f"worker-{number}", broker.name_server) for number in (1, 2)]
    broker.joined(*crew)
    sources = [
        PublisherProcess(script, name, broker.name_server, COUNT, partitions=PARTITIONS, rate=RATE)
        for name in ("p1", "p2")
    ]
    script.step("start", f"two publishers, two subscribers, {2 * COUNT:,} messages are to come")

    def handled() -> int:
        return sum(worker.handled() for worker in crew)

    for mark in KILL_AT:
        script.wait(lambda: handled() > mark, f"{mark} are handled", handled)  # noqa: B023
        busy = sum(not source.notes("done") for source in sources)
        broker.kill9()
        script.step("crash", f"kill -9 after {handled():,} messages; {busy} publishers are at work")
        # Both as a rule; on a busy machine one may get far ahead of the other and be done.
        script.expect_true(
            f"publishers at work at the kill after {mark:,}", "at least 1", busy, busy >= 1
        )
        broker.start()
        script.step("restart", "the broker is back on its store")
    for source in sources:
        source.finish()
    broker.settled(2 * COUNT)
    script.step("after", "every message is acknowledged")

    confirmed = [identity for source in sources for identity in source.confirmed().elements()]
    runs = all_runs(*crew)
    handled_ids = {(*run.key, run.sequence) for run in runs if run.finish is not None}
    script.expect("messages confirmed to the publishers", 2 * COUNT, len(confirmed))
    script.expect("confirmed and not handled", 0, len(set(confirmed) - handled_ids))
    script.expect("handled and not confirmed", 0, len(handled_ids - set(confirmed)))
    script.expect("messages begun more than once", 0, count_repeated(runs))
    script.expect("out of order or overlapping", 0, count_disorder(runs))
    broken = [key for key, seen in by_key(runs).items()
              if sequences(seen) != list(range(1, len(seen) + 1))]  # fmt: skip
    script.expect("partitions whose sequences are not 1, 2, 3 ...", [], broken)
    script.expect("subscribers that are still at work", 2, sum(worker.alive for worker in crew))
    starts = [record for record in broker.journal() if isinstance(record, r.BrokerStarted)]
    script.expect("restarts in the journal", len(KILL_AT), len(starts))


if __name__ == "__main__":
    sys.exit(main(story, "Broker kill -9 under load", __doc__ or ""))
