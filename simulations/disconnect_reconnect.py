"""A subscriber leaves after one of five messages, the publisher closes as well, and both return.

The four messages that were not begun go back to their partition without counting as tried, and wait
while nobody is there. The publisher goes on with its numbers where it was, under a newer epoch; the
subscriber, back under its old name, gets everything that waits, in order.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from simulations.stage.processes import Broker, Worker, all_runs
from simulations.stage.script import Script, main
from simulations.stage.seen import count_disorder, sequences

HALF = 5


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create()
    publisher = script.publisher("p", broker.name_server)
    for number in range(HALF):
        publisher.publish(str(number), "part")
    publisher.flush(30.0)
    first_epoch = publisher.epoch
    publisher.close()
    script.step("start", f"a publisher has published {HALF} messages and is closed")

    first = Worker(script, "worker", broker.name_server, count=1)
    code = first.wait_end()
    group = broker.until(consumers=0, acked_total=1)
    script.step("leave", "worker has handled one message and left")
    script.expect("exit code of the subscriber that left", 0, code)
    script.expect("messages that wait while nobody is there", HALF - 1, group["messages_ready"])
    script.expect("messages handed over", {"left": HALF - 1}, group["handover_total"])

    publisher = script.publisher("p", broker.name_server)
    receipts = [publisher.publish(str(HALF + number), "part") for number in range(HALF)]
    numbers = [receipt.result(30.0).sequence for receipt in receipts]
    script.step("return", f"the publisher is back; its next messages have the numbers {numbers}")
    script.expect("epoch of the publisher that is back", first_epoch + 1, publisher.epoch)
    script.expect("its sequences go on", list(range(HALF + 1, 2 * HALF + 1)), numbers)

    second = Worker(script, "worker", broker.name_server)
    broker.settled(2 * HALF)
    script.step("return", "worker is back and has handled everything")
    script.expect("sequences of its first life", [1], sequences(first.runs()))
    script.expect(
        "sequences of its second life", list(range(2, 2 * HALF + 1)), sequences(second.runs())
    )
    script.expect("attempts of all messages", {1}, {run.attempt for run in second.runs()})
    script.expect("out of order or overlapping", 0, count_disorder(all_runs(first, second)))
    lives = {record.session for record in broker.journal() if isinstance(record, r.Subscribed)}
    script.expect("lives of the subscriber in the journal", 2, len(lives))


if __name__ == "__main__":
    sys.exit(main(story, "Disconnect and reconnect", __doc__ or ""))
