"""A publisher is killed while it publishes, comes back under its id, and sends old sequences again.

The new life gets a newer epoch and goes on after the last sequence that the broker has: no gap, no
second copy. What is sent once more under an old sequence is answered as a duplicate, what is ahead
is refused and told what is expected, and the old epoch is fenced.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from broker.core import records as r
from broker.errors import BrokerError
from simulations.stage.processes import Broker, PublisherProcess, Worker
from simulations.stage.script import Script, main
from simulations.stage.seen import by_key, count_disorder, count_repeated

PARTITIONS = 4
FIRST_LIFE, SECOND_LIFE = 5_000, 200
BEFORE_THE_KILL = 100


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create()
    worker = Worker(script, "worker", broker.name_server)
    broker.joined(worker)

    first = PublisherProcess(
        script, "p", broker.name_server, FIRST_LIFE, partitions=PARTITIONS, rate=1_000, window=20
    )
    script.wait(
        lambda: len(first.confirmed()) >= BEFORE_THE_KILL,
        f"{BEFORE_THE_KILL} messages are confirmed", lambda: len(first.confirmed()),
    )  # fmt: skip
    first.kill9()
    told = first.confirmed()
    script.step("crash", f"kill -9 of the publisher after {len(told)} confirmed messages")

    second = PublisherProcess(
        script, "p", broker.name_server, SECOND_LIFE, partitions=PARTITIONS, window=20
    )
    second.finish()
    told += second.confirmed()
    epochs = [life.notes("opened")[0]["epoch"] for life in (first, second)]
    script.step("restart", f"the same id again: epoch {epochs[1]}, {SECOND_LIFE} more confirmed")

    answers = _old_sequences(script, broker)
    broker.settled(broker.statistics()["published_total"])
    runs = worker.runs()
    handled = Counter((*run.key, run.sequence) for run in runs)
    whole = {
        key: [run.sequence for run in seen] == list(range(1, len(seen) + 1))
        for key, seen in by_key(runs).items()
    }

    script.expect("epochs of the two lives", [1, 2], epochs)
    script.expect("confirmed twice", 0, sum(times > 1 for times in told.values()))
    script.expect("confirmed and not handled", 0, len(set(told) - set(handled)))
    script.expect("handled twice", 0, count_repeated(runs))
    script.expect("out of order or overlapping", 0, count_disorder(runs))
    script.expect(
        "partitions handled from 1 on without a gap", f"{PARTITIONS + 1} of {PARTITIONS + 1}",
        f"{sum(whole.values())} of {len(whole)}",
    )  # fmt: skip
    for what, (expected, observed) in answers.items():
        script.expect(what, expected, observed)
    dropped = [item for item in broker.journal() if isinstance(item, r.DuplicatesDropped)]
    script.expect("duplicates in the journal", [3, 1], [sum(item.counts) for item in dropped[-2:]])


def _old_sequences(script: Script, broker: Broker) -> dict[str, tuple[Any, Any]]:
    """Publish by plain calls, as a script would that lost count; what was expected and answered."""
    script.step("old", "plain calls: sequences 1 to 3 twice, then 3 and 4, then 6, then as epoch 1")
    old_epoch, epoch_now = (broker.call("open_publisher", "plain")["epoch"] for _ in range(2))

    def publish(first: int, count: int, epoch: int = epoch_now) -> dict[str, Any]:
        bodies = [f"again {first + number}" for number in range(count)]
        reply: dict[str, Any] = broker.call("publish", "plain", "again", bodies, first, epoch)
        return reply

    def counts(reply: dict[str, Any]) -> tuple[int, int]:
        return reply["accepted"], reply["duplicates"]

    def refusal(first: int, epoch: int = epoch_now) -> str:
        try:
            return str(publish(first, 1, epoch))
        except BrokerError as error:
            return f"{error.code}, expected {error.details.get('expected', '-')}"

    fresh = counts(publish(1, 3))
    before = broker.statistics()["published_total"]
    found = {
        "1 to 3 for the first time: accepted, duplicates": ((3, 0), fresh),
        "1 to 3 again: accepted, duplicates": ((0, 3), counts(publish(1, 3))),
        "3 and 4: accepted, duplicates": ((1, 1), counts(publish(3, 2))),
        "6 when 5 is next": ("sequence-gap, expected 5", refusal(6)),
        "5 under the old epoch": ("publisher-fenced, expected -", refusal(5, old_epoch)),
    }
    accepted = broker.statistics()["published_total"] - before
    return {**found, "accepted by the four calls after the first": (1, accepted)}


if __name__ == "__main__":
    sys.exit(main(story, "Publisher restart with an old sequence", __doc__ or ""))
