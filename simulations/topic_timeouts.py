"""The broker stands still (SIGSTOP). A client tries three times, 100 ms each, and then says so.

The error tells what is known: of a put, that its outcome is unknown and that it stays written down;
of a get, that nothing is lost. When the broker goes on, the put is there once. With two addresses,
of which the first is dead, the second is found.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Callable

from broker.errors import BrokerError
from simulations.stage.processes import HOST, free_port
from simulations.stage.script import Script, main
from simulations.stage.topic_processes import TOPIC, TopicBroker, open_client

TRIES, TIMEOUT_S = 3, 0.1
SLACK_S = 1.0  # the machine may be busy


def story(script: Script) -> None:
    """What happens."""
    broker = TopicBroker(script)
    with open_client(script, "client", broker.name_server) as client:
        client.subscribe(TOPIC)
    client = open_client(script, "client", broker.name_server, timeout_s=TIMEOUT_S, tries=TRIES)
    script.wait(lambda: _told(lambda: client.get(TOPIC))[0] == "done", "the client is connected")
    broker.freeze()
    script.step("still", "the broker stands still")
    words = ("outcome is unknown", "stays written down", f"{TRIES} tries of {TIMEOUT_S:g} s")
    _expect_told(script, "put", lambda: client.put(TOPIC, "once"), words)
    _expect_told(script, "get", lambda: client.get(TOPIC), ("surely not done", "nothing is lost"))
    _expect_told(script, "unsubscribe", lambda: client.unsubscribe(TOPIC), ("repeat unsubscribe",))
    client.close()
    broker.thaw()
    script.step("on", "the broker goes on")

    addresses = [f"{HOST}:{free_port()}", broker.name_server]
    client = open_client(script, "client", addresses, timeout_s=5.0)
    client.subscribe(TOPIC)
    receipts = client.resume()
    script.expect("puts that were settled by resume", 1, len(receipts))
    found = [message.body for message in client.get_many(TOPIC, 10)]
    script.expect("got", ["once"], found)
    script.expect("messages in the topic", 1, broker.topic()["put_total"])
    began = time.monotonic()
    client.put(TOPIC, "twice")
    seconds = time.monotonic() - began
    script.expect_true("the first of two addresses is dead: a put takes", f"below {SLACK_S} s",
                       f"{seconds:.2f} s", seconds < SLACK_S)  # fmt: skip
    client.get(TOPIC)
    client.get(TOPIC)


def _told(what: Callable[[], Any]) -> tuple[str, float]:
    began = time.monotonic()
    try:
        what()
        text = "done"
    except BrokerError as error:
        text = str(error)
    return text, time.monotonic() - began


def _expect_told(
    script: Script, name: str, what: Callable[[], Any], words: tuple[str, ...]
) -> None:
    text, seconds = _told(what)
    script.expect_true(f"{name}: the error says", ", ".join(words), text,
                       all(word in text for word in words))  # fmt: skip
    least = TRIES * TIMEOUT_S
    script.expect_true(
        f"{name}: {TRIES} tries take", f"{least:.1f} s and not much more", f"{seconds:.2f} s",
        least * 0.9 <= seconds <= least + SLACK_S,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(story, "Topics: time-outs", __doc__ or ""))
