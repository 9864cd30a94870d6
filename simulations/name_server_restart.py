"""The name server is killed, is away for a while, and comes back with an empty memory.

Whoever is connected goes on without it. The broker registers its names again by itself, and new
clients find it.
"""

from __future__ import annotations

import sys

from simulations.stage.processes import Broker, NameServerProcess, Worker, all_runs
from simulations.stage.script import Script, main
from simulations.stage.seen import count_disorder

NAMES = {"fairlead.broker", "channel.orders"}


def story(script: Script) -> None:
    """What happens."""
    names = NameServerProcess(script)
    broker = Broker(script, "--channel", "orders", name_server=names.address)
    publisher = script.publisher("p", broker.name_server)
    worker = Worker(script, "worker", broker.name_server)
    broker.joined(worker)
    publisher.publish("before", "part").result(30.0)
    broker.settled(1)
    script.step("start", "a name server of its own; a message went through the broker")

    names.kill9()
    script.step("crash", "kill -9 of the name server")
    for number in range(20):
        publisher.publish(f"without {number}", "part").result(30.0)
    broker.settled(21)
    script.step("without", "twenty messages went through without a name server")
    script.expect("handled without a name server", 20, len(worker.runs()) - 1)

    names.start()
    script.wait(lambda: names.registered() >= NAMES, "the broker has registered again",
                names.registered)  # fmt: skip
    script.step("restart", "the name server is back, and knows the broker and its channel again")
    script.expect("names at the new one", NAMES, names.registered() & NAMES)
    newcomer = Worker(script, "newcomer", broker.name_server)
    broker.joined(newcomer)
    fresh = script.publisher("fresh", broker.name_server)
    receipt = fresh.publish("after", "part").result(30.0)
    script.expect("sequence of a new publisher's first message", 1, receipt.sequence)
    publisher.publish("last", "part").result(30.0)
    broker.settled(23)
    script.step("after", "a new publisher and a new subscriber have found the broker")

    runs = all_runs(worker, newcomer)
    expected = ["before", *(f"without {number}" for number in range(20)), "last"]
    script.expect_true(
        "the first publisher's messages, in order", "all 22", f"{len(runs) - 1} of 22",
        [run.body for run in runs if run.publisher == "p"] == expected,
    )  # fmt: skip
    script.expect("out of order or overlapping", 0, count_disorder(runs))
    script.expect("attempts of all messages", {1}, {run.attempt for run in runs})
    subscribers = sorted(broker.group()["subscribers"])
    script.expect("who is subscribed", ["newcomer", "worker"], subscribers)


if __name__ == "__main__":
    sys.exit(main(story, "Name server restart", __doc__ or ""))
