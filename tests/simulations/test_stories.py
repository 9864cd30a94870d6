"""Every story ends as it promises, leaves nothing behind, and would say so if it did not.

The stories are found, not listed: a module of ``simulations`` that is run by ``stage.script.main``
is one. They run as anybody would run them, two at a time, while the tests wait for their results.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Iterator, NamedTuple

import pytest

from tests.processes import ROOT, environment, poll

AT_A_TIME = 2
DEADLINE_S = 90.0
STORIES = sorted(
    path.stem
    for path in (ROOT / "simulations").glob("*.py")
    if "main(story" in path.read_text()
)
#: A story may say that it cannot be told where one of these is missing.
NEEDS = {"failing_fsync": "strace"}


class Told(NamedTuple):
    """How a story ended."""

    code: int
    out: str
    json: Path
    folder: Path


def tell(story: str, folder: Path, *args: object, **variables: str) -> Told:
    """Run a story to its end; its temporary folders are in ``folder``."""
    answer = folder.with_suffix(".json")
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", f"simulations.{story}", "--json", str(answer), *map(str, args)],
        cwd=ROOT, env=environment(TMPDIR=str(folder), **variables), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    return Told(done.returncode, done.stdout, answer, folder)


def running(folder: Path) -> list[int]:
    """The processes that have something to do with a folder: its name is in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def expectations(told: Told) -> dict[str, bool]:
    """Each expectation, and whether it was met."""
    answer = json.loads(told.json.read_text())
    return {item["what"]: item["good"] for item in answer["expectations"]}


@pytest.fixture(scope="module")
def tellings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Told]]]:
    """The stories that were asked for, under way."""
    chosen = [
        item.callspec.params["story"]
        for item in request.session.items
        if item.name.startswith("test_story_ends_as_expected[") and hasattr(item, "callspec")
    ]
    folder = tmp_path_factory.mktemp("stories")
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {story: pool.submit(tell, story, folder / story) for story in chosen}


@pytest.mark.parametrize("story", STORIES)
def test_story_ends_as_expected(story: str, tellings: dict[str, Future[Told]]) -> None:
    """Exit code 0, every expectation met, the table shown, no process and no folder left."""
    told = tellings[story].result(DEADLINE_S * len(STORIES))
    if told.code == 2 and story in NEEDS and shutil.which(NEEDS[story]) is None:
        pytest.skip(f"{NEEDS[story]} is not installed: {told.out.splitlines()[-1]}")
    assert told.code == 0, told.out
    assert re.search(r"what +expected +observed", told.out), told.out
    assert "verdict  as expected" in told.out
    met = expectations(told)
    assert met and all(met.values())
    assert {
        "the broker stops cleanly, its journal verifies", "anomalies in journal and histories",
    } <= set(met), "a story proves its journal"  # fmt: skip
    assert running(told.folder) == []
    assert list(told.folder.iterdir()) == [], "a story that went well leaves no folder"


def test_every_story_is_in_the_list_for_readers() -> None:
    """STORIES.md names each story, and no other."""
    named = re.findall(r"^\| `(\w+)` \|", (ROOT / "simulations" / "STORIES.md").read_text(), re.M)
    assert sorted(named) == STORIES


# A story must be able to fail.

SABOTAGES = {
    "ids are not remembered": (
        "duplicates", "the same ids again: duplicates",
        """
        from broker.core.delivered_ids import DeliveredIds
        DeliveredIds.__contains__ = lambda self, message_id: False
        """,
    ),
    "waiting messages are not put in order": (
        "out_of_order", "timestamps of one",
        """
        from broker.core.partition import Line
        def add(self, entries):
            self.messages.extend(entries)
        Line.add = add
        """,
    ),
    "a journal that tells something else": (
        "disconnect_reconnect", "anomalies in journal and histories",
        """
        from broker.journal import sqlite
        encode = sqlite.encode
        def falsified(channel, sequence, record, *rest):
            if record.kind == "Delivered":
                record.attempts[:] = [attempt + 1 for attempt in record.attempts]
            return encode(channel, sequence, record, *rest)
        sqlite.encode = falsified
        """,
    ),
}  # fmt: skip


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_story_notices_a_product_that_is_broken(sabotage: str, tmp_path: Path) -> None:
    """With a broken product the exit code is 1, and the expectation that shows it is not met."""
    story, expectation, code = SABOTAGES[sabotage]
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(textwrap.dedent(code))
    told = tell(story, tmp_path / "story", PYTHONPATH=f"{ROOT}{os.pathsep}{broken}")
    assert told.code == 1, told.out
    assert expectations(told)[expectation] is False
    assert "NOT as expected" in told.out
    assert running(told.folder) == []
    assert "kept" in told.out and list(told.folder.iterdir()), "what went wrong can be looked at"


# The frame around a story.


def tell_own(body: str, tmp_path: Path) -> Told:
    """Run a story that is written here."""
    path = tmp_path / "own.py"
    path.write_text(
        "import sys\n"
        "from simulations.demo.wait import Failure\n"
        "from simulations.stage.script import main\n"
        f"def story(script):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
        "sys.exit(main(story, 'Own', 'One of the test.'))\n"
    )
    folder = tmp_path / "own"
    folder.mkdir()
    answer = tmp_path / "own.json"
    done = subprocess.run(
        [sys.executable, str(path), "--json", str(answer)], cwd=ROOT,
        env=environment(TMPDIR=str(folder)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    return Told(done.returncode, done.stdout, answer, folder)


@pytest.mark.parametrize(
    ("body", "code", "shown"),
    [
        ("script.expect('sum', 2, 1 + 1)", 0, "as expected: 1 of 1"),
        ("script.expect('sum', 3, 1 + 1)", 1, "NOT as expected: 0 of 1"),
        ("script.expect_true('sum', 'odd', 2, False)", 1, "NOT as expected: 0 of 1"),
        ("script.cannot_tell('there is no moon')", 2, "cannot be told here: there is no moon"),
        ("raise Failure('waited in vain')", 1, "waited in vain"),
        ("script.wait(lambda: False, 'rain', lambda: 'sun', 0.1)", 1, "rain; seen: sun"),
        ("raise KeyError('a mistake')", 1, "KeyError: 'a mistake'"),
    ],
)
def test_exit_code_says_how_it_ended(body: str, code: int, shown: str, tmp_path: Path) -> None:
    """0 as expected, 1 not, or a step failed, 2 cannot be told here; the last line says which."""
    told = tell_own(body, tmp_path)
    assert (told.code, json.loads(told.json.read_text())["exit_code"]) == (code, code), told.out
    assert shown in " ".join(told.out.splitlines()[-2:]), told.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_story_leaves_nothing_running(number: int, tmp_path: Path) -> None:
    """A signal ends all processes; after a kill -9 they end by themselves, for their leash is
    cut."""
    folder = tmp_path / "story"
    folder.mkdir()
    with open(tmp_path / "out.txt", "w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "simulations.broker_kill"], cwd=ROOT,
            env=environment(TMPDIR=str(folder)), stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        # The broker, two subscribers and two publishers.
        poll(lambda: len(running(folder)) == 5, 30.0, "all processes run")
        process.send_signal(number)
        code = process.wait(30.0)
    finally:
        process.kill()
        process.wait()
    poll(lambda: not running(folder), 30.0, "all processes have ended")
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 128 + number, (tmp_path / "out.txt").read_text()
        assert list(folder.iterdir()) == []
