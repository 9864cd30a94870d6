"""Everything is published again: by the same ids, by the same sequences, by another publisher, and
after the broker was killed.

Each message is accepted once. A copy is answered as a duplicate, is counted, and reaches nobody.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from publisher import Publisher
from simulations.stage.processes import Broker, Worker
from simulations.stage.script import Script, main
from simulations.stage.seen import count_repeated

COUNT = 10


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create()
    worker = Worker(script, "worker", broker.name_server)
    broker.joined(worker)
    publisher = script.publisher("p", broker.name_server)
    script.expect("of ten with ids, duplicates", 0, _publish_ids(publisher, COUNT))
    script.expect("of ten with sequences, accepted and duplicates", (COUNT, 0),
                  _publish_sequences(broker, COUNT))  # fmt: skip
    broker.settled(2 * COUNT)
    script.step("start", f"{COUNT} messages with ids and {COUNT} by sequence are handled")

    script.expect("the same ids again: duplicates", COUNT, _publish_ids(publisher, COUNT))
    script.expect("the same sequences again", (0, COUNT), _publish_sequences(broker, COUNT))
    script.expect("owed after the copies", 0, broker.group()["backup"])
    script.step("copies", "all of it again: nothing is accepted")

    script.expect("with one new id: duplicates", COUNT, _publish_ids(publisher, COUNT + 1))
    script.expect("with one new sequence", (1, COUNT), _publish_sequences(broker, COUNT + 1))
    broker.until(backup=0)
    script.step("copies", "all of it with one new each: the new ones are accepted")

    broker.kill9()
    broker.start()
    script.step("crash", "kill -9 of the broker; started again")
    another = script.publisher("another", broker.name_server)
    script.expect("the same ids by another publisher", COUNT + 1, _publish_ids(another, COUNT + 1))
    script.expect("the same sequences after the restart", (0, COUNT + 1),
                  _publish_sequences(broker, COUNT + 1))  # fmt: skip
    publisher.publish("last", "part").result(30.0)
    broker.until(backup=0)
    script.wait(lambda: worker.runs()[-1].body == "last", "worker has handled the last one")
    script.step("after", "copies by another publisher, after the restart: nothing is accepted")

    runs = worker.runs()
    script.expect("messages handled", 2 * COUNT + 3, len(runs))
    script.expect("messages begun more than once", 0, count_repeated(runs))
    bodies = {f"id {n}" for n in range(COUNT + 1)} | {f"number {n}" for n in range(COUNT + 1)}
    script.expect("each body once", True, {run.body for run in runs} == bodies | {"last"})
    records = broker.journal()
    by_id = sum(len(x.dropped) for x in records if isinstance(x, r.Published))
    by_sequence = sum(sum(x.counts) for x in records if isinstance(x, r.DuplicatesDropped))
    script.expect("copies in the journal, by id and by sequence", (3 * COUNT + 1, 3 * COUNT + 1),
                  (by_id, by_sequence))  # fmt: skip


def _publish_ids(publisher: Publisher, count: int) -> int:
    """How many of ten ids are answered as duplicates."""
    receipts = [publisher.publish(f"id {n}", f"part-{n % 2}", id=f"id-{n}") for n in range(count)]
    return sum(receipt.result(30.0).duplicate for receipt in receipts)


def _publish_sequences(broker: Broker, count: int) -> tuple[int, int]:
    """The plain call, always from the first sequence on."""
    bodies = [f"number {n}" for n in range(count)]
    reply = broker.call("publish", "plain", "part", bodies, first_sequence=1)
    return reply["accepted"], reply["duplicates"]


if __name__ == "__main__":
    sys.exit(main(story, "Duplicates", __doc__ or ""))
