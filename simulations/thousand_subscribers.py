"""A thousand subscribers join one channel at once, while a publisher is at work; more work follows.

All are let in, and one more is refused with the limit that it met. Each partition has one owner at
a time, nothing is handled twice or out of order, and the work is spread over the crowd; then all
leave. Most of them fetch, many over one connection; a tenth are Subscriber objects that are called.
"""

from __future__ import annotations

import sys

from broker.core import records as r
from broker.errors import BrokerError
from simulations.stage.crowd import Crowd
from simulations.stage.processes import Broker, PublisherProcess
from simulations.stage.script import Script, main
from simulations.stage.seen import count_disorder, count_repeated

PULL_CROWDS, PULL_COUNT = 3, 300
PUSH_CROWDS, PUSH_COUNT = 2, 50
TOGETHER = PULL_CROWDS * PULL_COUNT + PUSH_CROWDS * PUSH_COUNT
DURING, AFTER = 500, 500  # messages, each in a partition of its own
MESSAGES = DURING + AFTER
JOIN_S_MAX = 20.0


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create(subscriber_count_max=TOGETHER)
    go = script.gate("go")
    plan = [("pull", PULL_CROWDS, PULL_COUNT), ("push", PUSH_CROWDS, PUSH_COUNT)]
    crowds = [
        Crowd(script, f"{kind}-{number}", broker.name_server, go, kind, count)
        for kind, processes, count in plan
        for number in range(processes)
    ]
    script.wait(
        lambda: all(crowd.notes("waiting") for crowd in crowds), "the crowd stands at the door"
    )
    script.step("start", f"{TOGETHER} subscribers in {len(crowds)} processes wait for the word")
    source = PublisherProcess(
        script, "p", broker.name_server, DURING, partitions=DURING, rate=500
    )
    script.wait(source.confirmed, "messages flow")
    go.touch()

    def joined() -> int:
        return len(broker.group()["subscribers"])

    script.wait(lambda: joined() == TOGETHER, f"{TOGETHER} have joined", joined)
    script.step("joined", f"{joined()} subscribers; {_threads(broker)} threads in the broker")
    refusal = _one_more(broker)
    source.finish()
    names = [f"later-{number}" for number in range(AFTER)]
    script.publisher("later", broker.name_server).publish_many([b"later"] * AFTER, names)
    broker.settled(MESSAGES)
    runs = [run for crowd in crowds for run in crowd.runs()]
    notes = [note for crowd in crowds for note in crowd.notes("joined")]
    spent = max(note["at"] for note in notes) - min(n["at"] - n["seconds"] for n in notes)
    script.step("work", f"{MESSAGES} messages handled by {len({run.who for run in runs})} of them")
    for crowd in crowds:
        crowd.leave()
    left = broker.until(consumers=0)

    script.expect("joined", TOGETHER, len({note["who"] for note in notes}))
    script.expect("refused", 0, sum(len(crowd.notes("refused")) for crowd in crowds))
    script.expect_true(
        "seconds from the first to the last", f"below {JOIN_S_MAX:g}", f"{spent:.1f}",
        spent < JOIN_S_MAX,
    )  # fmt: skip
    script.expect("one more", f"limit-reached, names {TOGETHER}, may try again", refusal)
    script.expect("handled", MESSAGES, len({(*run.key, run.sequence) for run in runs}))
    script.expect("handled twice", 0, count_repeated(runs))
    script.expect("out of order or overlapping", 0, count_disorder(runs))
    busy = len({run.who for run in runs})
    script.expect_true("subscribers that got work", "100 or more", busy, busy >= 100)
    script.expect("subscribed after all have left", 0, len(left["subscribers"]))
    gone = [item.reason for item in broker.journal() if isinstance(item, r.SubscriberLeft)]
    script.expect("how they left", {"left": TOGETHER}, {key: gone.count(key) for key in set(gone)})


def _one_more(broker: Broker) -> str:
    """What the one is told for whom there is no room."""
    try:
        broker.call("subscribe", "one-more")
    except BrokerError as error:
        names = "names" if str(TOGETHER) in str(error) else "does not name"
        again = "may" if error.retriable else "may not"
        return f"{error.code}, {names} {TOGETHER}, {again} try again"
    return "joined"


def _threads(broker: Broker) -> int:
    with open(f"/proc/{broker.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


if __name__ == "__main__":
    sys.exit(main(story, "A thousand subscribers joining at once", __doc__ or ""))
