"""Gets whose answers get lost, and whose client is killed before and after it writes them down.

What was not written down as received comes again; what was does not, and nothing is skipped. One
gap is the caller's own: killed after the writing down and before it has looked at the message. The
form in two steps closes it: what was not confirmed comes again.
"""

from __future__ import annotations

import sys

from simulations.stage.proxy import BLACK_HOLE
from simulations.stage.script import Script, main
from simulations.stage.topic_actors import CAME, HANDLED, KEPT, SHOWN
from simulations.stage.topic_processes import (
    TOPIC,
    Getter,
    TopicBroker,
    TopicGateway,
    open_client,
)

COUNT = 60


def story(script: Script) -> None:
    """What happens."""
    broker = TopicBroker(script)
    gateway = TopicGateway(script, broker)
    one = Getter(script, "one-step", gateway.name_server)
    two = Getter(script, "two-steps", gateway.name_server, two_steps=True)
    for reader, point, number in ((one, CAME, 5), (two, SHOWN, 5)):
        reader.start(die=(point, number))
        reader.noted("subscribed")
    source = open_client(script, "source", broker.name_server)
    source.put_many(TOPIC, [str(number) for number in range(1, 31)])
    one.wait_end()
    two.wait_end()
    script.step("killed", "both before the fifth message is written down")
    one.start(die=(KEPT, 10))
    two.start(die=(HANDLED, 10))
    one.wait_end()
    two.wait_end()
    script.step("killed", "one after it is written down, the other after it is handled")
    one.start()
    two.start()
    for reader, count in ((one, 29), (two, 30)):
        reader.noted("message", count)

    gateway.proxy.set(down=BLACK_HOLE)
    source.put_many(TOPIC, [str(number) for number in range(31, COUNT + 1)])
    for reader in (one, two):
        reader.noted("error")
    lost = gateway.proxy.count.dropped_bytes
    gateway.proxy.heal()
    script.step("answers", "answers of gets got lost, until both clients said so")
    for reader, count in ((one, COUNT - 1), (two, COUNT)):
        reader.noted("message", count)
    broker.drained(TOPIC)

    wanted = [str(number) for number in range(1, COUNT + 1)]
    script.expect_true("bytes of answers lost", "1 or more", lost, lost > 0)
    script.expect("one step: all but the one between writing down and the application",
                  True, one.bodies() == [body for body in wanted if body != "10"])  # fmt: skip
    script.expect("two steps: all", True, two.bodies() == wanted)
    script.expect("two steps: came again, and was not handled again", [10],
                  [note["id"] for note in two.notes("again")])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(story, "Topics: each get once", __doc__ or ""))
