"""A client that dies by SIGKILL at each of its steps in turn, and lives on after it.

``python -m tests.topics.dying_client NAME_SERVER DIRECTORY``: for step n = 1, 2, ... a client of
its own subscribes to two topics, puts into them and gets from them, one in one step, the other in
two. It dies at its n-th step and does the rest in a second life. What it has used goes to
``used-<n>.jsonl`` before anything else happens. It ends when a client got to its end unharmed.

A step is each side of every change of the state file and of every request.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import topics.requests as requests
from tests.topics.stage import TIMEOUT_S
from topics import TopicMessage, Topics
from topics.state import State

PUTS = 3
STEPS_MAX = 500


def die_at(fatal: int) -> None:
    """End this process at a step."""
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        if count == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    invoke, guarded = requests.invoke, State._guarded

    def stepping_invoke(*args: Any) -> Any:
        step()
        answer = invoke(*args)
        step()
        return answer

    def stepping_guarded(self: State, work: Any) -> Any:
        step()
        done = guarded(self, work)
        step()
        return done

    requests.invoke = stepping_invoke
    State._guarded = stepping_guarded  # type: ignore[method-assign]


def live(name_server: str, directory: Path, step: int) -> None:
    """Do what is left to do."""
    used = os.open(directory / f"used-{step}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def use(message: TopicMessage) -> None:
        os.write(used, (json.dumps([message.topic, message.id, message.body]) + "\n").encode())

    one, two = f"one-{step}", f"two-{step}"
    with Topics(
        f"c{step}", directory / "state", name_server=name_server, timeout_s=TIMEOUT_S,
        history=directory / "histories",
    ) as client:  # fmt: skip
        client.resume()
        for topic in (one, two):
            client.subscribe(topic)
            while (number := client._opened.account(topic).number) < PUTS:
                client.put(topic, number + 1)
        while (message := client.get(one)) is not None:
            use(message)
        while received := client.receive(two):
            use(received[0])
            client.confirm(received[0])


def in_child(name_server: str, directory: Path, step: int, fatal: int) -> bool:
    """Whether a life got to its end."""
    child = os.fork()
    if not child:
        try:
            die_at(fatal)
            live(name_server, directory, step)
        except BaseException as error:
            print(f"step {step}: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit(f"the client of step {step} failed")
    return os.WIFEXITED(status)


def main(name_server: str, directory: Path) -> None:
    """All steps."""
    for step in range(1, STEPS_MAX):
        if in_child(name_server, directory, step, step):
            print(step, flush=True)
            return
        assert in_child(name_server, directory, step, 0)
    raise SystemExit("there is no end of steps")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
