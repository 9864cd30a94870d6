"""The children of a story about topics: one that puts and one that gets.

``python -m simulations.stage.topic_actors KIND SETTINGS`` with the settings as a JSON file. Each
may be killed at any moment and started again with the same settings: it goes on from its state
directory. Each writes down what its application saw (``seen.Recorder``), into one record over all
its lives. ``die`` in the settings ends the process (SIGKILL) at a chosen point; see ``POINTS``.
Nothing here judges.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable

from broker.errors import BrokerError
from simulations.demo import leash
from simulations.stage.seen import Recorder, read_notes
from topics import Receipt, TopicMessage, Topics

PAUSE_S = 0.01

#: Where a process can be told to die, with the number of the put or the id of the message there.
WRITTEN = "written"  # the put is written down, and not sent
ANSWERED = "answered"  # the put is answered, and that is not written down
CAME = "came"  # the message has come, and is not written down as received
KEPT = "kept"  # it is written down, and the application has not seen it
SHOWN = "shown"  # two steps: the application has it and has done nothing with it
HANDLED = "handled"  # two steps: the application has handled it and not confirmed it
POINTS = (WRITTEN, ANSWERED, CAME, KEPT, SHOWN, HANDLED)

Settings = dict[str, Any]


class Fate:
    """When this process ends, if it does."""

    def __init__(self, settings: Settings) -> None:
        self._point: str
        self._number: int
        self._point, self._number = settings.get("die") or ("", 0)

    def reached(self, point: str, *numbers: int) -> None:
        """End the process here if that is its fate; nothing is cleaned up."""
        if point == self._point and self._number in numbers:
            os.kill(os.getpid(), signal.SIGKILL)

    def follow(self, client: Topics) -> None:
        """Be there at the points that lie inside the client."""
        puts, gets = client._puts, client._gets
        request, accepted, keep = puts._request, puts._accepted, gets._keep

        def requested(topic: str, call: Any, again: bool) -> Any:
            self.reached(WRITTEN, call.number)
            return request(topic, call, again)

        def told(topic: str, call: Any, reply: Any) -> Any:
            self.reached(ANSWERED, call.number)
            return accepted(topic, call, reply)

        def kept(messages: list[TopicMessage]) -> None:
            ids = [message.id for message in messages]
            self.reached(CAME, *ids)
            keep(messages)
            self.reached(KEPT, *ids)

        for owner, name, function in (
            (puts, "_request", requested), (puts, "_accepted", told), (gets, "_keep", kept),
        ):  # fmt: skip
            setattr(owner, name, function)


def opened(settings: Settings, recorder: Recorder) -> tuple[Topics, Fate]:
    """The client with its state directory."""
    fate = Fate(settings)
    client = Topics(
        settings["name"], settings["directory"], name_server=settings["name_server"],
        **settings["options"],
    )  # fmt: skip
    fate.follow(client)
    recorder.note("opened")
    return client, fate


def attempt(recorder: Recorder, what: Callable[[], Any]) -> Any:
    """What comes of it; None after an error that will pass, which is noted."""
    try:
        return what()
    except BrokerError as error:
        recorder.note("error", code=error.code, text=str(error))
        if not error.retriable:
            raise
        time.sleep(PAUSE_S)
        return None


def put(settings: Settings) -> None:
    """Put the texts "NAME:1" ... "NAME:COUNT" into each topic, by calls of ``batch``.

    The number of a message is its place in what this client puts, so what the client has written
    down says where to go on, whatever happened before. ``rate``: calls a second, 0 for all at once.
    """
    leash.hold(lambda _line: None)
    recorder = Recorder(settings["record"], settings["name"])
    client, _ = opened(settings, recorder)
    count = settings["count"]
    while left := [topic for topic in settings["topics"] if _number(client, topic) < count]:
        for topic in left:
            _note_put(recorder, attempt(recorder, lambda: _put_next(client, topic, settings)))  # noqa: B023
        if settings["rate"]:
            time.sleep(1.0 / settings["rate"])
    recorder.note("done")
    client.close()


def _put_next(client: Topics, topic: str, settings: Settings) -> list[Receipt]:
    account = client._opened.account(topic)
    if account.pending is not None:
        return client.resume()
    first = account.number + 1
    last = min(account.number + settings["batch"], settings["count"])
    texts = [f"{settings['name']}:{number}" for number in range(first, last + 1)]
    return [client.put_many(topic, texts)]


def _number(client: Topics, topic: str) -> int:
    return int(client._opened.account(topic).number)


def _note_put(recorder: Recorder, receipts: list[Receipt] | None) -> None:
    for receipt in receipts or ():
        recorder.note(
            "put", topic=receipt.topic, number=receipt.number, position=receipt.position,
            again=receipt.again,
        )  # fmt: skip


def get(settings: Settings) -> None:
    """Subscribe to the topics, and get from all of them as one line until the process is ended.

    ``two_steps``: receive, handle, confirm. The application keeps its own books of what it has
    handled, and what comes again after a crash is confirmed without being handled again.
    """
    leash.hold(lambda _line: None)
    recorder = Recorder(settings["record"], settings["name"])
    handled = _handled(Path(settings["record"]))
    client, fate = opened(settings, recorder)
    for topic in settings["topics"]:
        while topic not in client.subscriptions():
            attempt(recorder, lambda: client.subscribe(topic))  # noqa: B023
    recorder.note("subscribed")
    take = client.receive_any if settings["two_steps"] else client.get_any_many
    while True:
        messages = attempt(recorder, lambda: take(settings["batch"], settings["wait_s"]))
        for message in messages or ():
            fate.reached(SHOWN, message.id)
            if not settings["two_steps"]:
                _note_message(recorder, message)
                continue
            if message.id > handled.get(message.topic, 0):
                _note_message(recorder, message)
                handled[message.topic] = message.id
            else:
                recorder.note("again", topic=message.topic, id=message.id)
            fate.reached(HANDLED, message.id)
            client.confirm(message)


def _note_message(recorder: Recorder, message: TopicMessage) -> None:
    recorder.note(
        "message", topic=message.topic, id=message.id, stamp=message.stamp, body=message.body,
        publisher=message.publisher, number=message.number,
    )  # fmt: skip


def _handled(record: Path) -> dict[str, int]:
    """What the application has handled in earlier lives."""
    notes = [note for note in read_notes(record) if note["event"] == "message"]
    return {note["topic"]: note["id"] for note in notes}


KINDS: dict[str, Callable[[Settings], None]] = {"put": put, "get": get}

if __name__ == "__main__":
    KINDS[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))
