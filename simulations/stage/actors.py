"""The children of a story that are ours: a subscriber that misbehaves on order, a plain Pyro5
subscriber that does nothing else, and a publisher.

``python -m simulations.stage.actors KIND SETTINGS`` with the settings as a JSON file. Each writes
down what it really saw (``seen.Recorder``) and ends when the story is gone (the demonstration's
leash). What may not live here: anything that judges. The rules that a story gives a subscriber are
made by the small functions ``hold``, ``sleep``, ``fail`` and ``end``.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

from broker.pyro_setup import Proxy, invoke, pyro_server
from broker.remote.lookup import ChannelAddress
from publisher import Publisher
from simulations.demo import leash
from simulations.stage.seen import Recorder
from subscriber import Message, Subscriber

PAUSE_S = 0.01
CONFIRM_S = 60.0

#: What a rule may name of a message; ``number`` counts the messages that this process handled.
MATCHED = ("number", "body", "partition", "sequence", "attempt")

Rule = dict[str, Any]


# The rules of a subscriber. ``which``: number=, body=, partition=, sequence=, attempt=; a message
# for which all of them are so obeys the rule. None given: every message does.


def hold(gate: Path, **which: Any) -> Rule:
    """Stand still in that message until the gate is there."""
    return {"do": "hold", "with": str(gate), **which}


def sleep(seconds: float, **which: Any) -> Rule:
    """Take that long."""
    return {"do": "sleep", "with": seconds, **which}


def fail(text: str, **which: Any) -> Rule:
    """Raise."""
    return {"do": "fail", "with": text, **which}


def end(code: int, **which: Any) -> Rule:
    """End the process in the middle of the message, without a word."""
    return {"do": "end", "with": code, **which}


class Behaviour:
    """Obeys the rules."""

    def __init__(self, rules: list[Rule]) -> None:
        self._rules = rules
        self._numbers: Iterator[int] = iter(range(1, 1 << 60))
        self._lock = threading.Lock()
        self._freed = threading.Event()

    def free(self) -> None:
        """Hold nothing back any more."""
        self._freed.set()

    def handle(self, message: Message) -> None:
        """Do what the rules say for this message, in their order."""
        with self._lock:
            number = next(self._numbers)
        for rule in self._rules:
            if all(_fact(message, number, name) == rule[name] for name in MATCHED if name in rule):
                self._obey(rule["do"], rule["with"])

    def _obey(self, what: str, value: Any) -> None:
        if what == "hold":
            while not os.path.exists(value) and not self._freed.wait(PAUSE_S):
                pass
        elif what == "sleep":
            time.sleep(value)
        elif what == "fail":
            raise ValueError(value)
        elif what == "end":
            os._exit(value)
        else:
            raise AssertionError(f"no such rule: {what}")


def _fact(message: Message, number: int, name: str) -> Any:
    return number if name == "number" else getattr(message, name)


def subscribe(settings: dict[str, Any]) -> None:
    """Handle messages until told to stop, or so many as ``count`` says."""
    recorder = Recorder(settings["record"], settings["name"])
    behaviour = Behaviour(settings["rules"])
    worker = Subscriber(
        settings["name"], settings["channel"], name_server=settings["name_server"],
        **settings["options"],
    )  # fmt: skip

    @worker.handler
    def handle(message: Message) -> None:
        recorder.message("start", message)
        behaviour.handle(message)
        recorder.message("finish", message)

    leash.hold(lambda _line: behaviour.free())
    recorder.note("joining")
    handled = worker.run(count=settings.get("count"))
    recorder.note("left", handled=handled)


@pyro_server.expose
class PlainCallback:
    """A callback object as a plain script would write it, with a fault in it."""

    def __init__(self, recorder: Recorder, fault: str) -> None:
        self._recorder = recorder
        self._fault = fault

    def receive(self, messages: list[dict[str, Any]]) -> None:
        """Take messages, or fail to."""
        seen = [[item["publisher"], item["partition"], item["sequence"]] for item in messages]
        self._recorder.note("receive", messages=seen)
        if self._fault == "raise":
            raise RuntimeError("this subscriber takes nothing")


def answer(settings: dict[str, Any]) -> None:
    """Subscribe by a plain call, and be there."""
    leash.hold(lambda _line: None)
    recorder = Recorder(settings["record"], settings["name"])
    address = ChannelAddress(settings["channel"], settings["name_server"], CONFIRM_S)
    daemon = pyro_server.Daemon(host="127.0.0.1", port=0)
    uri = daemon.register(PlainCallback(recorder, settings["fault"]))
    threading.Thread(target=daemon.requestLoop, daemon=True).start()
    with Proxy(address.uri()) as proxy:
        session = invoke(proxy, "subscribe", settings["name"], str(uri))["session"]
    recorder.note("subscribed", session=session)
    threading.Event().wait()


def publish(settings: dict[str, Any]) -> None:
    """Publish ``count`` texts over ``partitions``, ``rate`` a second, and note each confirmation.

    What is under way at a time is bounded by ``window``; a stretch is noted when it is confirmed.
    """
    leash.hold(lambda _line: None)
    name = settings["name"]
    recorder = Recorder(settings["record"], name)
    with Publisher(
        name, settings["channel"], name_server=settings["name_server"], **settings["options"]
    ) as source:
        recorder.note("opened", epoch=source.epoch)
        opened: list[tuple[str, Any]] = []
        began = time.monotonic()
        for number in range(settings["count"]):
            partition = f"{name}-{number % settings['partitions']}"
            opened.append((partition, source.publish(f"{name}:{number}", partition)))
            if len(opened) >= settings["window"]:
                _note_confirmed(recorder, opened)
            if settings["rate"]:
                time.sleep(max(0.0, began + number / settings["rate"] - time.monotonic()))
        _note_confirmed(recorder, opened)
    recorder.note("done")


def _note_confirmed(recorder: Recorder, opened: list[tuple[str, Any]]) -> None:
    confirmed = [
        (partition, receipt.result(CONFIRM_S).sequence) for partition, receipt in opened
    ]
    recorder.note("confirmed", messages=confirmed)
    opened.clear()


KINDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "subscribe": subscribe, "answer": answer, "publish": publish,
}  # fmt: skip

if __name__ == "__main__":
    KINDS[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()))
