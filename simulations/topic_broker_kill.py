"""The broker is killed several times (kill -9) under puts and gets, and started on the same store.

Both sides go on by themselves; every message is got once, in order. Then the same in small: two
clients subscribe, one goes away, ten messages are put, the broker is killed and started again, and
both get all ten once.
"""

from __future__ import annotations

import sys

from simulations.stage.script import Script, main
from simulations.stage.topic_processes import TOPIC, Getter, Putter, TopicBroker, open_client

COUNT = 300
RATE = 200.0
KILL_AT = (40, 100, 160)  # messages got
SMALL = "small"


def story(script: Script) -> None:
    """What happens."""
    broker = TopicBroker(script)
    one = Getter(script, "one-step", broker.name_server, batch=5)
    two = Getter(script, "two-steps", broker.name_server, two_steps=True)
    for reader in (one, two):
        reader.start()
        reader.noted("subscribed")
    source = Putter(script, "source", broker.name_server, COUNT, rate=RATE)
    source.start()
    for mark in KILL_AT:
        one.noted("message", mark)
        broker.kill9()
        script.expect(f"at the kill after {mark}: the publisher is at work", [],
                      source.notes("done"))  # fmt: skip
        script.step("crash", f"kill -9 after {len(one.messages())} messages")
        broker.start()
    source.finish()
    broker.drained(TOPIC)
    script.step("after", "all is put and got")
    wanted = [f"source:{number}" for number in range(1, COUNT + 1)]
    script.expect("one step: all, in order, each once", True, one.bodies() == wanted)
    script.expect("two steps: all, in order, each once", True, two.bodies() == wanted)
    _small(script, broker)


def _small(script: Script, broker: TopicBroker) -> None:
    ann = open_client(script, "ann", broker.name_server)
    bob = open_client(script, "bob", broker.name_server)
    for client in (ann, bob):
        client.subscribe(SMALL)
    bob.close()
    wanted = [f"message {number}" for number in range(1, 11)]
    for text in wanted:
        ann.put(SMALL, text)
    broker.kill9()
    broker.start()
    script.step("small", "ten messages, one client away, kill -9, and both are back")
    bob = open_client(script, "bob", broker.name_server)
    for name, client in (("ann", ann), ("bob", bob)):
        found = [message.body for message in client.get_many(SMALL, 100)]
        script.expect(f"{name} gets all ten once", True, found == wanted)
        script.expect(f"{name} gets nothing more", None, client.get(SMALL))


if __name__ == "__main__":
    sys.exit(main(story, "Topics: broker kill -9", __doc__ or ""))
