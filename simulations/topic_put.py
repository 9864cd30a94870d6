"""Puts whose answers get lost, whose client is killed in the middle, and whose broker forgets.

The client sends the same call again, after a lost answer and after its own death, and the broker
recognises it. A number that skips is refused with the last one received. A broker whose store was
put back to an earlier state asks for what it misses, and the client sends it again. Whatever
happens, each message is there once, in order.
"""

from __future__ import annotations

import shutil
import sys

from broker.errors import BrokerError
from simulations.stage.proxy import BLACK_HOLE
from simulations.stage.script import Script, main
from simulations.stage.topic_actors import ANSWERED, WRITTEN
from simulations.stage.topic_processes import (
    TOPIC,
    Getter,
    Putter,
    TopicBroker,
    TopicGateway,
    open_client,
)

COUNT = 120
LOST_COUNT = 5


def story(script: Script) -> None:
    """What happens."""
    broker = TopicBroker(script, "--durability", "flush")
    gateway = TopicGateway(script, broker)
    reader = Getter(script, "reader", broker.name_server, batch=20)
    reader.start()
    reader.noted("subscribed")

    source = Putter(script, "source", gateway.name_server, COUNT, rate=80.0)
    source.start(die=(WRITTEN, 10))
    source.wait_end()
    source.start(die=(ANSWERED, 20))
    source.wait_end()
    script.step("deaths", "kill -9 before number 10 was sent, and with the answer to 20 in hand")
    source.start()
    source.noted("put", 30)
    gateway.proxy.set(down=BLACK_HOLE)
    source.noted("error")
    gateway.proxy.heal()
    script.step("answers", "requests pass, answers get lost, until the client says so")
    source.noted("put", 60)
    source.kill9()
    script.step("kill", "kill -9 in the middle of puts")
    source.start()
    source.finish()
    broker.drained(TOPIC)
    wanted = [f"source:{number}" for number in range(1, COUNT + 1)]
    script.expect("got, in order, each once", True, reader.bodies() == wanted)
    again = sum(note["again"] for note in source.notes("put"))
    script.expect_true("calls that the broker had already", "2 or more", again, again >= 2)
    _gap(script, broker)
    reader.kill9()
    _put_back(script, broker)


def _gap(script: Script, broker: TopicBroker) -> None:
    try:
        broker.ask("put", TOPIC, "source", ["z"], COUNT + 7)
        told = "accepted"
    except BrokerError as error:
        told = f"{error.code}, last {error.details.get('last')}"
    wanted = f"sequence-gap, last {COUNT}"
    script.expect(f"number {COUNT + 7} after {COUNT} is refused with", wanted, told)


def _put_back(script: Script, broker: TopicBroker) -> None:
    """What a power cut can do to a store that is flushed and not synced."""
    client = open_client(script, "careful", broker.name_server)
    client.subscribe("other")
    client.put("other", "1")
    broker.stop()
    earlier = script.folder / "earlier.db"
    shutil.copy(broker.store, earlier)
    broker.start()
    for number in range(2, 2 + LOST_COUNT):
        client.put("other", str(number))
    broker.kill9()
    for path in script.folder.glob(f"{broker.store.name}-*"):
        path.unlink()
    shutil.copy(earlier, broker.store)
    broker.start()
    script.step("put back", f"the broker has lost {LOST_COUNT} puts that it had answered")
    receipt = client.put("other", "last")
    script.expect("position of the next put", LOST_COUNT + 2, receipt.position)
    found = [message.body for message in client.get_many("other", 100)]
    client.get("other")
    wanted = [str(number) for number in range(1, LOST_COUNT + 2)] + ["last"]
    script.expect("got: what was lost was sent again", wanted, found)


if __name__ == "__main__":
    sys.exit(main(story, "Topics: each put once", __doc__ or ""))
