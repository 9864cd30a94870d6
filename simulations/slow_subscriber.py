"""A subscriber takes too long for three messages in a row, and stands still in the fourth.

What it has not begun moves to the other one; the message that runs stays where it is and nothing
overtakes it. The slow one stays subscribed and gets new work. Nothing counts as tried twice.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from simulations.stage.actors import hold, sleep
from simulations.stage.processes import Broker, Worker, all_runs
from simulations.stage.script import Script, main
from simulations.stage.seen import count_disorder, count_repeated, sequences

LONG_MS = 300
SLOW_S = 0.35


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create(delay_ms=100, long_delay_ms=LONG_MS, long_delays_max=3)
    begin, fourth, busy = (script.gate(name) for name in ("begin", "fourth", "busy"))
    slow = Worker(
        script, "slow", broker.name_server, hold(begin, number=1),
        *(sleep(SLOW_S, number=number) for number in (1, 2, 3)), hold(fourth, number=4),
    )  # fmt: skip
    broker.joined(slow)
    publisher = script.publisher("p", broker.name_server)
    for number in range(8):
        publisher.publish(str(number), "part")
    publisher.flush(30.0)
    slow.begun()
    other = Worker(script, "other", broker.name_server, hold(busy))
    broker.joined(other)
    script.step("start", "slow has eight messages of one partition; other is idle")

    begin.touch()
    script.step("slow", f"slow takes over {SLOW_S * 1000:.0f} ms for each; {LONG_MS} is the limit")
    group = broker.until(slowed_total=1, acked_total=3, handover_total={"slow": 4})
    script.step("moved", "after three long delays its four unbegun messages were taken back")
    script.expect("begun by other while the fourth runs", [], sequences(other.runs()))
    script.expect("begun by slow", [1, 2, 3, 4], sequences(slow.runs()))
    script.expect("who is subscribed", ["other", "slow"], sorted(group["subscribers"]))

    fourth.touch()
    other.begun()
    publisher.publish("new", "new-part").result(30.0)
    slow.begun(5)
    script.step("after", "other has the rest; slow has new work")
    busy.touch()
    group = broker.settled(9)
    script.expect("of the partition, by slow", [1, 2, 3, 4], sequences(slow.runs(), "part"))
    script.expect("of the partition, by other", [5, 6, 7, 8], sequences(other.runs(), "part"))
    script.expect("new work of the slow one", "new", slow.runs()[-1].body)
    runs = all_runs(slow, other)
    script.expect("messages begun more than once", 0, count_repeated(runs))
    script.expect("out of order or overlapping", 0, count_disorder(runs))
    script.expect("attempts of all messages", {1}, {run.attempt for run in runs})

    told = [x for x in broker.journal() if isinstance(x, (r.Slowed, r.Recalled, r.Reassigned))]
    script.expect(
        "the journal tells", [("Slowed", "slow"), ("Recalled", "slow"), ("Reassigned", "slow")],
        [(record.kind, record.subscriber) for record in told[:3]],
    )  # fmt: skip
    delays = [delay for x in told[:1] if isinstance(x, r.Slowed) for delay in x.delays_ms]
    script.expect_true(
        "long delays that led to it", f"3, each at least {LONG_MS} ms", delays,
        len(delays) == 3 and min(delays) >= LONG_MS,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(story, "Slow subscriber", __doc__ or ""))
