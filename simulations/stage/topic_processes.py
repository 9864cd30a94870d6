"""Who takes part in a story about topics: the broker, clients in processes of their own or in that
of the story, and a way to the broker through a proxy. Nothing here judges.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Sequence

from broker.pyro_setup import invoke
from broker.remote.name_server import NameServer
from simulations.demo.cast import Child
from simulations.demo.wait import DEADLINE_S
from simulations.stage.processes import Broker, Process
from simulations.stage.proxy import HOST, Proxy
from simulations.stage.script import HANDLES, NAMES, PUBLISHES, Script
from simulations.stage.seen import read_notes
from topics import Topics

OBJECT = "fairlead.topics"
TOPIC = "news"
#: Of clients whose time-outs are not what the story is about: the machine may be busy.
TIMEOUT_S = 5.0


class TopicBroker(Broker):
    """A broker that keeps the whole of its topics for the judge, unless ``keeps_topics`` is False;
    then it releases what nobody is owed."""

    def __init__(self, script: Script, *args: object, keeps_topics: bool = True) -> None:
        self.keeps_topics = keeps_topics
        super().__init__(script, *(("--keep-topics",) if keeps_topics else ()), *args)

    def ask(self, method: str, *args: Any) -> Any:
        """A plain remote call of ``fairlead.topics``, as any Pyro5 script could make it."""
        return invoke(self._proxy(OBJECT), method, *args)

    def topic(self, topic: str = TOPIC, clients: int = 0) -> dict[str, Any]:
        """A topic in numbers."""
        found: dict[str, Any] = self.ask("statistics", topic, clients)
        return found

    def drained(self, *topics: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait until nobody is owed anything of these topics."""
        left: dict[str, int] = {}

        def owed() -> dict[str, int]:
            left.update({topic: self.topic(topic)["backlog"] for topic in topics})
            return left

        self.script.wait(
            lambda: not any(owed().values()), "nothing is owed any more", lambda: left, deadline_s
        )


def open_client(
    script: Script, name: str, name_server: str | Sequence[str], **options: Any
) -> Topics:
    """A client inside the story's process, with a history; closed with the story."""
    options = {"timeout_s": TIMEOUT_S, "history": script.histories, **options}
    client = Topics(name, script.folder / "state", name_server=name_server, **options)
    script.at_end(client.close)
    return client


class TopicProcess(Process):
    """A client of topics in a process of its own; ``start`` begins a life of it."""

    kind = ""

    def __init__(self, script: Script, name: str, name_server: str, **settings: Any) -> None:
        super().__init__(script, name)
        self.record = script.folder / f"{name}.record"
        options = {"history": str(script.histories), **settings.pop("options", {})}
        self.settings: dict[str, Any] = {
            "name": name, "name_server": name_server, "topics": [TOPIC], "batch": 1,
            "directory": str(script.folder / "state"), "record": str(self.record), **settings,
            "options": options,
        }  # fmt: skip
        self._lives = 0

    def start(self, **changes: Any) -> None:
        """Begin a life. ``changes``: settings for this one alone."""
        self._lives += 1
        stem = f"{self.name}-{self._lives}"
        file = self.script.folder / f"{stem}.json"
        file.write_text(json.dumps({**self.settings, **changes}))
        self.child = Child(
            stem, self.script.folder, "simulations.stage.topic_actors", self.kind, file
        )
        if "die" in changes:
            self.may_end()

    def notes(self, event: str | None = None) -> list[dict[str, Any]]:
        """What it wrote down so far, in all its lives."""
        return [note for note in read_notes(self.record) if event in (None, note["event"])]

    def noted(self, event: str, count: int = 1, deadline_s: float = DEADLINE_S) -> None:
        """Wait until it has written down so many."""
        self.script.wait(
            lambda: len(self.notes(event)) >= count, f"{self.name} notes {event} {count} times",
            lambda: f"{len(self.notes(event))} times; {self.tail()}", deadline_s,
        )  # fmt: skip


class Putter(TopicProcess):
    """Puts ``count`` texts into each topic and ends; goes on in its next life if it was killed."""

    rank = PUBLISHES
    kind = "put"

    def __init__(
        self, script: Script, name: str, name_server: str, count: int, rate: float = 0.0,
        **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(script, name, name_server, count=count, rate=rate, **settings)

    def start(self, **changes: Any) -> None:
        """Begin a life; it ends by itself when all is put."""
        super().start(**changes)
        self.may_end()

    def finish(self) -> None:
        """Wait until it has put everything."""
        self.noted("done")


class Getter(TopicProcess):
    """Subscribes, and gets until it is ended."""

    rank = HANDLES
    kind = "get"

    def __init__(
        self, script: Script, name: str, name_server: str, two_steps: bool = False, **settings: Any
    ) -> None:
        settings = {"wait_s": 0.5, **settings}
        super().__init__(script, name, name_server, two_steps=two_steps, **settings)

    def messages(self) -> list[dict[str, Any]]:
        """What its application was handed."""
        return self.notes("message")

    def bodies(self, topic: str | None = None) -> list[str]:
        """The texts, in the order in which they came."""
        return [note["body"] for note in self.messages() if topic in (None, note["topic"])]


class TopicGateway:
    """A name server of its own and a proxy: the way of some clients to the topics of a broker."""

    rank = NAMES

    def __init__(self, script: Script, broker: Broker) -> None:
        self.proxy = Proxy((HOST, broker.port), seed=script.seed)
        self._names = NameServer.start_or_join(HOST, 0)
        self._names.register(OBJECT, f"PYRO:{OBJECT}@{HOST}:{self.proxy.port}")
        script.add(self)

    @property
    def name_server(self) -> str:
        """Where clients ask for the broker."""
        return f"{HOST}:{self._names.port}"

    def check(self) -> None:
        """It does not end by itself."""

    def end(self) -> None:
        """End everything."""
        self.proxy.close()
        self._names.close()


def resident_bytes(pid: int) -> int:
    """How much memory a process has that is its own and in use."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10
