"""A broker inside the test, and clients of it. What may not live here: what a test checks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from broker.core.topics import TopicPolicy
from broker.history import read
from broker.server.service import Service, Settings
from tests.processes import HOST, free_port
from topics import TopicMessage, Topics

#: Longer than the default: whether a busy machine is in time is not what is tested.
TIMEOUT_S = 3.0


class Stage:
    """One broker with its store, which can end and come back, also with an older store."""

    def __init__(self, directory: Path, **limits: int) -> None:
        self.directory = directory
        self.name_server = f"{HOST}:{free_port()}"
        self._policy = TopicPolicy(**limits)
        self._clients: list[Topics] = []
        self.service: Service | None = None
        self.start()

    def start(self) -> None:
        """Start the broker, on the store that is there."""
        self.service = Service(
            Settings(
                store=str(self.directory / "fairlead.db"), topic_policy=self._policy,
                name_server_port=int(self.name_server.partition(":")[2]),
            )
        ).start()  # fmt: skip

    def stop(self) -> None:
        """End the broker."""
        if self.service is not None:
            self.service.close()
            self.service = None

    def save_store(self) -> None:
        """Copy the store of the broker, which must be stopped."""
        for path in self.directory.glob("fairlead.db*"):
            shutil.copy(path, self.directory / f"saved-{path.name}")

    def put_back_store(self) -> None:
        """What the broker has written since ``save_store`` is lost, as in a power cut."""
        for path in self.directory.glob("fairlead.db*"):
            path.unlink()
        for path in self.directory.glob("saved-*"):
            shutil.copy(path, self.directory / path.name.removeprefix("saved-"))

    def client(self, name: str, **options: Any) -> Topics:
        """A client that is closed with the stage."""
        options = {"timeout_s": TIMEOUT_S, "name_server": self.name_server, **options}
        base = options.pop("directory", self.directory / "state")
        made = Topics(name, base, **options)
        self._clients.append(made)
        return made

    def lines(self, name: str, life: int = 1) -> list[dict[str, Any]]:
        """The history of a client's life."""
        (path,) = (self.directory / "histories").glob(f"topic-{name}-{life}-*.jsonl")
        return list(read(path))

    def close(self) -> None:
        """End all."""
        for client in self._clients:
            client.close()
        self.stop()


def bodies(messages: list[TopicMessage]) -> list[Any]:
    """What was put, as the subscriber sees it."""
    return [message.body for message in messages]
