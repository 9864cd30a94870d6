"""Durable topics in one file: ``python examples/topics.py`` starts a broker of its own and uses it.

Two clients subscribe and one goes away; what is put meanwhile waits for it, also over a restart of
the broker. In a program of yours only the lines with ``Topics`` are needed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    # This file is called like the package: look for that in the project, not beside this file.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from broker.server.service import Service, Settings
from topics import Topics


def start(directory: str, port: int) -> Service:
    """A broker with its store in a directory."""
    store = str(Path(directory) / "fairlead.db")
    return Service(Settings(store=store, name_server_port=port)).start()


def main() -> None:
    """The story."""
    with tempfile.TemporaryDirectory() as directory:
        broker = start(directory, 0)
        port = broker.names.port
        address = f"127.0.0.1:{port}"

        def client(name: str) -> Topics:
            return Topics(name, directory, name_server=address, timeout_s=2.0)

        with client("ann") as ann, client("bob") as bob:
            print("ann subscribes:", ann.subscribe("news"), " bob:", bob.subscribe("news"))
        # Both are away now.
        with client("carl") as carl:
            print("carl puts:", [carl.put("news", f"item {n}").position for n in (1, 2, 3)])
        broker.close()
        broker = start(directory, port)
        with client("ann") as ann:
            print("ann gets:", [message.body for message in ann.get_many("news", 10)])
            print("and then:", ann.get("news"))
        with client("bob") as bob:
            for message in bob.receive("news", 10):
                print("bob uses:", message.body)
                bob.confirm(message)
        broker.close()


if __name__ == "__main__":
    main()
