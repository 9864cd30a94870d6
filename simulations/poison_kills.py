"""A message that ends the process of whoever handles it: no error, no ack, just gone.

Nothing reports the attempt, and it counts all the same: after three deaths the message is parked
with that reason instead of killing workers for ever. The messages behind it are handled in order,
and they have not used up attempts of their own in a process that never came to them.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from simulations.stage.actors import end, hold
from simulations.stage.processes import Broker, Worker, all_runs
from simulations.stage.script import Script, main
from simulations.stage.seen import count_disorder

ATTEMPTS_MAX = 3
LEASE_MS = 700
EXIT_CODE = 9


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create(attempts_max=ATTEMPTS_MAX, lease_ms=LEASE_MS)
    broker.call("publish", "p", "part", ["one", "poison", "three", "four"])
    broker.call("publish", "p", "elsewhere", ["a", "b"])
    script.step("start", "six messages wait; the second of one partition kills its process")

    dead: list[Worker] = []
    codes: list[int] = []
    for life in range(1, ATTEMPTS_MAX + 1):
        name, gate = f"worker-{life}", script.gate(f"death-{life}")
        rules = [hold(gate, body="poison"), end(EXIT_CODE, body="poison")]
        dead.append(Worker(script, name, broker.name_server, *rules))
        _wait_for_acks(script, broker, dead)
        gate.touch()
        codes.append(dead[-1].wait_end())
        script.step("death", f"worker-{life} is gone: exit code {codes[-1]}")
    survivor = Worker(script, "survivor", broker.name_server, end(EXIT_CODE, body="poison"))
    group = broker.until(parked=1, backup=0)
    parked = broker.call("parked")
    script.step("parked", parked[0]["reason"])

    runs = all_runs(*dead, survivor)
    script.expect("exit codes of the dead", [EXIT_CODE] * ATTEMPTS_MAX, codes)
    script.expect(
        "attempts at the poison", [1, 2, 3], [run.attempt for run in runs if run.body == "poison"]
    )
    script.expect("the survivor lives", True, survivor.alive)
    script.expect(
        "the survivor handled of the partition", ["three", "four"],
        [run.body for run in survivor.runs() if run.partition == "part"],
    )  # fmt: skip
    script.expect(
        "begun behind the poison before it was parked", [],
        [run.body for worker in dead for run in worker.runs() if run.body in ("three", "four")],
    )
    script.expect(
        "parked: sequence, attempts", [(2, ATTEMPTS_MAX)],
        [(row["sequence"], row["attempt"]) for row in parked],
    )  # fmt: skip
    script.expect("the reason speaks of the death", True, "died" in parked[0]["reason"])
    script.expect("acknowledged", 5, group["acked_total"])
    script.expect("out of order or overlapping", 0, count_disorder(runs))
    gone = [item for item in broker.journal() if isinstance(item, r.SubscriberLeft)]
    script.expect(
        "found dead in the journal", [f"worker-{life}" for life in range(1, ATTEMPTS_MAX + 1)],
        [item.subscriber for item in gone if item.reason in ("crashed", "expired")],
    )  # fmt: skip


def _wait_for_acks(script: Script, broker: Broker, workers: list[Worker]) -> None:
    """Wait until the last one is in the poison, and all that they finished is acknowledged: what
    was not would come again, which is as it should be, and another story."""
    script.wait(
        lambda: any(run.body == "poison" for run in workers[-1].runs()),
        f"{workers[-1].name} is in the poison", workers[-1].tail,
    )  # fmt: skip
    finished = sum(worker.handled() for worker in workers)
    broker.until(acked_total=finished)


if __name__ == "__main__":
    sys.exit(main(story, "Poison message that kills its process", __doc__ or ""))
