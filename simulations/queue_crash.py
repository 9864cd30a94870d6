"""The global queue and all sub-queues crash twice: with five unprocessed messages, and with none.

While the backup queue restores them, publishing is refused as retriable, and a Publisher rides it
out by itself. What was unprocessed comes once, in order; what was processed never comes again.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from broker.errors import QueuesDown
from simulations.stage.actors import hold
from simulations.stage.processes import Broker, Worker, all_runs
from simulations.stage.script import Script, main
from simulations.stage.seen import count_disorder, count_repeated

DOWN_S = 0.8


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create()
    publisher = script.publisher("p", broker.name_server)
    for number in range(5):
        publisher.publish(str(number), f"part-{number % 2}")
    publisher.flush(30.0)
    restored = script.gate("restored")
    holder = Worker(script, "holder", broker.name_server, hold(restored))
    holder.begun()
    broker.until(messages_ready=0)
    script.step("start", "five messages are with a subscriber, which is in the first of them")

    killed = broker.call("kill_queues", DOWN_S)["killed"]
    down = broker.group()
    script.step("crash", f"all queues are gone, with {killed} messages; the backup has them")
    script.expect("messages in the queues that crashed", 5, killed)
    script.expect(
        "in backup, global queue, sub-queues", (5, 0, 0),
        (down["backup"], down["global_queue"], down["sub_queues"]),
    )  # fmt: skip
    script.expect("a plain publish meanwhile", "refused, retriable", _publish_plainly(broker))
    receipts = [publisher.publish(str(number), f"part-{number % 2}") for number in range(5, 10)]
    errors = [receipt.error(30.0) for receipt in receipts]
    script.step("restored", "the publisher waited, and its five messages are accepted")
    script.expect("errors of the Publisher's messages", [None] * 5, errors)
    script.expect("in the backup after the restoration", 10, broker.group()["backup"])

    restored.touch()
    broker.settled(10)
    other = Worker(script, "other", broker.name_server)
    broker.joined(other)
    runs = all_runs(holder, other)
    script.step("after", "all ten are acknowledged")
    script.expect("messages handled", {str(n) for n in range(10)}, {run.body for run in runs})
    script.expect("messages begun more than once", 0, count_repeated(runs))
    script.expect("out of order or overlapping", 0, count_disorder(runs))

    killed = broker.call("kill_queues", 0.2)["killed"]
    script.step("crash", "all queues are gone again, with nothing in them")
    script.wait(lambda: not broker.statistics()["queues_down"], "the queues are restored")
    publisher.publish("10", "part-0").result(30.0)
    broker.settled(11)
    script.expect("messages in the queues at the second crash", 0, killed)
    again = len(all_runs(holder, other)) - len(runs)
    script.expect("handled after it: the new message only", 1, again)
    records = broker.journal()
    # A line goes back to where its assignment says it is: who lives is sent nothing twice.
    sent = sum(sum(record.counts) for record in records if isinstance(record, r.Delivered))
    script.expect("messages sent, by the journal", 11, sent)
    script.expect(
        "crashes and restorations in the journal", ([5, 0], [5, 0]),
        ([x.count for x in records if isinstance(x, r.QueuesKilled)],
         [x.count for x in records if isinstance(x, r.QueuesRestored)]),
    )  # fmt: skip


def _publish_plainly(broker: Broker) -> str:
    try:
        broker.call("publish", "plain", "part", ["refused"])
    except QueuesDown as error:
        return "refused, retriable" if error.retriable and error.definite else "refused for good"
    return "accepted"


if __name__ == "__main__":
    sys.exit(main(story, "Queue crash", __doc__ or ""))
