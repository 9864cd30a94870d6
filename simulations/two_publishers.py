"""Two live publishers under one id, each sure to be the only one.

The one that opened the channel last wins. The older one is told that it is fenced, by the first
call that it makes afterwards, and nothing of it is accepted from then on: what they send is never
interleaved.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from broker.errors import BrokerError
from simulations.stage.processes import Broker, PublisherProcess, Worker
from simulations.stage.script import Script, main
from simulations.stage.seen import by_key, count_disorder, count_repeated, sequences

PARTITIONS = 3
COUNT = 20_000
NEWER_COUNT = 90


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create()
    worker = Worker(script, "worker", broker.name_server)
    broker.joined(worker)

    older = PublisherProcess(
        script, "p", broker.name_server, COUNT, partitions=PARTITIONS, rate=500, window=10
    )
    script.wait(lambda: len(older.confirmed()) >= 50, "the older one is at work", older.confirmed)
    script.step("older", f"a process publishes as p; {len(older.confirmed())} are confirmed")

    newer = script.publisher("p", broker.name_server)
    script.step("newer", f"another one opens the channel as p: epoch {newer.epoch}")
    receipts = [
        newer.publish(f"newer {number}", f"p-{number % PARTITIONS}")
        for number in range(NEWER_COUNT)
    ]
    newer.flush(30.0)
    code = older.wait_end()
    log = older.tail()
    script.step("fenced", "the older process has ended by itself, with an error")
    again = newer.publish("newer, later", "p-0").error(30.0)

    accepted = broker.statistics()["published_total"]
    broker.settled(accepted)
    runs = worker.runs()
    turns = {key: _turns([run.body for run in seen]) for key, seen in by_key(runs).items()}

    script.expect_true("exit code of the older process", "not 0", code, code != 0)
    script.expect("its last words speak of PublisherFenced", True, "PublisherFenced" in log)
    script.expect("the newer one was refused", 0, sum(bool(item.error(0.0)) for item in receipts))
    script.expect("the newer one is refused later", "no", _told(again))
    script.expect("confirmed to the older one and not handled", 0, _missing(older, worker))
    script.expect(
        "partitions in which the newer one follows the older one once", PARTITIONS,
        sum(turn == ["older", "newer"] for turn in turns.values()),
    )  # fmt: skip
    script.expect("handled twice", 0, count_repeated(runs))
    script.expect("out of order or overlapping", 0, count_disorder(runs))
    script.expect("handled", accepted, len(sequences(runs)))
    epochs = [item.epoch for item in broker.journal() if isinstance(item, r.Published)]
    script.expect("epochs in the journal rise", True, epochs == sorted(epochs))
    script.expect("epochs that published", [1, 2], sorted(set(epochs)))


def _turns(bodies: list[str]) -> list[str]:
    """Who sent, whenever that changed."""
    senders = ["newer" if body.startswith("newer") else "older" for body in bodies]
    return [who for at, who in enumerate(senders) if not at or senders[at - 1] != who]


def _missing(older: PublisherProcess, worker: Worker) -> int:
    handled = {(*run.key, run.sequence) for run in worker.runs()}
    return len(set(older.confirmed()) - handled)


def _told(error: BrokerError | None) -> str:
    return "no" if error is None else error.code


if __name__ == "__main__":
    sys.exit(main(story, "Two publishers with one id", __doc__ or ""))
