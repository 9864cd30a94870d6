"""Child processes that misbehave on order: a subscriber, a plain Pyro5 subscriber, a publisher.

Each is started as ``python -m tests.faults.workers KIND SETTINGS`` with its settings as JSON, and
appends what it really saw to a file, one JSON line at a time, by a single unbuffered write: what
was written before a kill -9 is there. What may not live here: anything that judges.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

from broker.pyro_setup import Proxy, invoke, pyro_server
from broker.remote.lookup import ChannelAddress
from publisher import Publisher
from subscriber import Message, Subscriber

PAUSE_S = 0.01


class Recorder:
    """Appends lines to a file so that not even a kill -9 loses one that was written."""

    def __init__(self, path: str, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._who = who

    def note(self, event: str, **facts: Any) -> None:
        """Write one line."""
        line = {"event": event, "who": self._who, "at": time.monotonic(), **facts}
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def message(self, event: str, message: Message) -> None:
        """Write one line about a message."""
        self.note(
            event, publisher=message.publisher, partition=message.partition,
            sequence=message.sequence, position=message.position, attempt=message.attempt,
            epoch=message.epoch, body=message.body if isinstance(message.body, str) else None,
        )  # fmt: skip


def wait_for(path: str) -> None:
    """Stand still until a file exists: how a test holds a handler back."""
    while not os.path.exists(path):
        time.sleep(PAUSE_S)


def subscriber(settings: dict[str, Any]) -> None:
    """A Fairlead subscriber. All of these may be set, each by the number of the message handled:

    ``hold`` {"3": file}: stand still in the third until the file exists; ``sleep_s``: in each;
    ``sleep`` {"3": seconds}; ``exit_on``: a body at which the process ends at once; ``count``:
    leave after so many.
    """
    recorder = Recorder(settings["record"], settings["name"])
    worker = Subscriber(
        settings["name"], settings["channel"], name_server=settings["name_server"],
        **settings.get("options", {}),
    )  # fmt: skip
    hold, sleep = settings.get("hold", {}), settings.get("sleep", {})
    sleep_s, exit_on = settings.get("sleep_s", 0.0), settings.get("exit_on")
    numbers = iter(range(1, 1 << 60))

    @worker.handler
    def handle(message: Message) -> None:
        number = str(next(numbers))
        recorder.message("start", message)
        if exit_on is not None and message.body == exit_on:
            os._exit(9)
        if number in hold:
            wait_for(hold[number])
        pause_s = sleep.get(number, sleep_s)
        if pause_s:
            time.sleep(pause_s)
        recorder.message("finish", message)

    def note_stopping() -> None:
        while not worker.stopping:
            time.sleep(PAUSE_S)
        recorder.note("stopping")

    threading.Thread(target=note_stopping, daemon=True).start()
    recorder.note("joining")
    handled = worker.run(count=settings.get("count"))
    recorder.note("left", handled=handled)


@pyro_server.expose
class PlainCallback:
    """A callback object as a plain script would write it, with a fault in it."""

    def __init__(self, recorder: Recorder, fault: str, seconds: float) -> None:
        self._recorder = recorder
        self._fault = fault
        self._seconds = seconds

    def receive(self, messages: list[dict[str, Any]]) -> None:
        """Take messages, or fail to."""
        seen = [[item["publisher"], item["partition"], item["sequence"]] for item in messages]
        self._recorder.note("receive", messages=seen)
        if self._fault == "raise":
            raise RuntimeError("this subscriber takes nothing")
        if self._fault == "hang":
            time.sleep(self._seconds)


def plain(settings: dict[str, Any]) -> None:
    """A plain subscriber that never acknowledges: ``fault`` is raise, hang or silent."""
    recorder = Recorder(settings["record"], settings["name"])
    address = ChannelAddress(settings["channel"], settings["name_server"], 5.0)
    daemon = pyro_server.Daemon(host="127.0.0.1", port=0)
    callback = PlainCallback(recorder, settings["fault"], settings.get("seconds", 0.0))
    uri = daemon.register(callback)
    threading.Thread(target=daemon.requestLoop, daemon=True).start()
    with Proxy(address.uri()) as proxy:
        answer = invoke(proxy, "subscribe", settings["name"], str(uri))
    recorder.note("subscribed", session=answer["session"])
    wait_for(settings["until"])


def publisher(settings: dict[str, Any]) -> None:
    """Publishes ``count`` texts over ``partitions``; notes every confirmation, in stretches."""
    name, partitions = settings["name"], settings["partitions"]
    recorder = Recorder(settings["record"], name)
    with Publisher(
        name, settings["channel"], name_server=settings["name_server"],
        **settings.get("options", {}),
    ) as source:  # fmt: skip
        recorder.note("opened", epoch=source.epoch)
        opened: list[tuple[str, Any]] = []
        for number in range(settings["count"]):
            partition = f"{name}-{number % partitions}"
            opened.append((partition, source.publish(f"{name}:{number}", partition)))
            if len(opened) >= settings.get("window", 200):
                _note_confirmed(recorder, opened)
            if settings.get("sleep_s"):
                time.sleep(settings["sleep_s"])
        _note_confirmed(recorder, opened)
    recorder.note("done")


def _note_confirmed(recorder: Recorder, opened: list[tuple[str, Any]]) -> None:
    confirmed = [(partition, receipt.result(60.0).sequence) for partition, receipt in opened]
    recorder.note("confirmed", messages=confirmed)
    opened.clear()


KINDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "subscriber": subscriber, "plain": plain, "publisher": publisher,
}  # fmt: skip

if __name__ == "__main__":
    KINDS[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))
