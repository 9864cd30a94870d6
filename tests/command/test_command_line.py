"""The command line as a whole: help, options and variables, usage errors. No broker is needed."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from typing import Any, Iterator

import pytest
from typer.main import get_command

import fairlead
from broker import __version__
from fairlead.command import app
from tests.processes import free_port, run_fairlead

NO_VARIABLE = {"--help", "--version", "--install-completion", "--show-completion"}


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the tree with the words that call it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*path, name))


COMMANDS = dict(walk(get_command(app)))


def test_the_commands_are_these() -> None:
    assert {" ".join(path) for path in COMMANDS if path} == {
        "up", "ns", "pub", "sub", "ls", "list_queues", "info", "subs", "list_consumers", "parked",
        "ping", "check", "audit", "create", "delete", "redrive", "export", "kill-queues",
        "chaos", "simulate",
        "journal", "journal verify",
        "subscription", "subscription create", "subscription delete", "subscription ls",
        "topic", "topic subscribe", "topic unsubscribe", "topic put", "topic get", "topic ls",
        "topic info",
    }  # fmt: skip


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_has_its_environment_variable(path: tuple[str, ...]) -> None:
    for parameter in COMMANDS[path].params:
        names = [name for name in parameter.opts if name.startswith("--")]
        if not names or names[0] in NO_VARIABLE:
            continue
        expected = "FAIRLEAD_" + names[0].removeprefix("--").replace("-", "_").upper()
        assert parameter.envvar == expected, f"{' '.join(path)} {names[0]}"


READING = [
    "ls", "info", "subs", "parked", "ping", "check", "journal verify", "subscription ls",
    "list_queues", "list_consumers", "sub", "export", "topic get", "topic ls", "topic info",
]  # fmt: skip


@pytest.mark.parametrize("path", READING)
def test_every_reading_command_takes_json(path: str) -> None:
    options = [name for each in COMMANDS[tuple(path.split())].params for name in each.opts]
    assert "--json" in options


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_of_every_command_says_something(path: tuple[str, ...]) -> None:
    assert COMMANDS[path].help or path == ()
    for parameter in COMMANDS[path].params:
        assert parameter.help, f"{' '.join(path)} {parameter.name} is not explained"


@pytest.mark.parametrize("path", [(), ("up",), ("pub",), ("subscription", "create")])
def test_help_is_shown_by_the_real_command(path: tuple[str, ...]) -> None:
    done = run_fairlead(*path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: fairlead" in done.stdout


def test_the_first_page_shows_groups_examples_and_rules() -> None:
    bare, asked = run_fairlead(), run_fairlead("--help")
    assert bare.returncode == 0
    assert bare.stdout.split() == asked.stdout.split()
    for expected in ("Run", "Messages", "Look", "Manage", "Faults", "Examples", "FAIRLEAD_NAME"):
        assert expected in asked.stdout
    assert "list_queues" not in asked.stdout


def test_version() -> None:
    assert run_fairlead("--version").stdout == f"fairlead {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["info"],
        ["up", "--nonsense"],
        ["up", "--durability", "never"],
        ["up", "--port", "70000"],
        ["up", "--policy", "attempts_max"],
        ["up", "--policy", "attempts_max=0"],
        ["up", "--policy", "no_such_limit=1"],
        ["up", "--channel", "no/such/name"],
        ["up", "--name-server", "nowhere"],
        ["up", "--host", "0.0.0.0"],
        ["create", "with space"],
        ["create", "orders", "--policy", "poison=maybe"],
        ["redrive", "orders", "--publisher", "p"],
        ["pub", "orders", "--id", "i", "one", "two"],
        ["pub", "orders", "-H", "no-colon", "one"],
        ["sub", "orders", "--format", "{nonsense}"],
        ["sub", "orders", "--format", "{body"],
        ["sub", "orders", "--count", "0"],
        ["ls", "no_such_column"],
        ["ls", "--name-server", "127.0.0.1:port"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_2(words: list[str]) -> None:
    done = run_fairlead(*words, name_server="" if "--name-server" in words else "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("fairlead: ")
    assert done.stderr.count("\n") == 1
    assert ";" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["ls"], ["info", "orders"], ["subs", "orders"], ["parked", "orders"], ["ping"], ["check"],
        ["create", "orders"], ["delete", "orders"], ["redrive", "orders"],
        ["subscription", "ls", "orders"], ["subscription", "create", "orders", "late"],
        ["kill-queues", "orders"], ["pub", "orders", "hello"], ["sub", "orders"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_without_a_broker_it_says_so_at_once(words: list[str]) -> None:
    done = run_fairlead(*words, name_server=f"127.0.0.1:{free_port()}", timeout_s=20.0)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("fairlead: no name server answers at 127.0.0.1:")
    assert "fairlead up" in done.stderr
    assert done.stderr.count("\n") == 1


def test_check_answers_in_json_also_when_there_is_no_broker() -> None:
    done = run_fairlead("check", "--json", name_server=f"127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert '"ok": false' in done.stdout
    assert done.stderr == ""


def test_a_host_that_others_can_reach_needs_a_word_more() -> None:
    done = run_fairlead("up", "--host", "192.0.2.1")
    assert done.returncode == 2
    assert "no authentication" in done.stderr
    assert "--allow-remote" in done.stderr


def test_the_examples_in_the_docstrings_hold() -> None:
    for module in pkgutil.iter_modules(fairlead.__path__, "fairlead."):
        if not module.name.endswith("__main__"):
            assert doctest.testmod(importlib.import_module(module.name)).failed == 0, module.name
