"""The wiring of ``fairlead``: which commands there are, how they are grouped, and how they end.

``main`` is the entry point. Whatever a command raises becomes one line on stderr and an exit code
here, and only here: a traceback would tell users nothing that they can act on.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Callable, NoReturn

import typer
from typer.main import get_command

from broker import __version__
from broker.errors import BrokerError
from fairlead import (
    audit,
    chaos,
    export,
    health,
    look,
    manage,
    pub,
    simulate,
    store,
    sub,
    topic,
    up,
)
from fairlead.output import complain, line
from fairlead.problems import EXIT_FAILED, EXIT_SIGNAL, EXIT_USAGE, Problem

# Typer holds click under different names in different versions; this finds the same class in all.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

# What to do in this command's terms, where the error speaks of the programming interface.
NEXT_STEPS = {
    "fault-injection-disabled": "start it with 'fairlead up --fault-injection'",
    "subscription-not-found": "'fairlead subscription ls CHANNEL' shows those there are",
    "publisher-fenced": "give each of them its own --publisher",
    "client-elsewhere": "--take-over does that",
    "state-behind": "--take-over does that",
    "puts-lost": "'fairlead topic put --forget-lost' goes on without them",
}

EXAMPLES = """
[bold]Examples[/bold]

  fairlead up --channel orders            a broker in this terminal

  fairlead pub orders -K ann created paid two messages, handled in this order

  fairlead pub orders --key-delimiter : < lines.txt

  fairlead sub orders --format '{partition} {body}'

  fairlead sub orders --json | jq .body

  fairlead subs orders                    who holds which partition, the lag

  fairlead topic subscribe news           from now on, every message once

  fairlead topic get news --all | less    what is not read comes again

Every option is also read from a variable: --name-server from FAIRLEAD_NAME_SERVER.

Commands that read take --json. Answers go to stdout, all else to stderr.

Exit codes: 0 done, 1 not done, 2 wrong usage, 3 nothing there (topic get).
"""

app = typer.Typer(
    name="fairlead",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog=EXAMPLES,
)
subscription_app = typer.Typer(help="Make, delete and list durable groups of subscribers.")
topic_app = typer.Typer(help="Durable topics: every client gets every message once.")
journal_app = typer.Typer(help="Look into a store that no broker has open.")


def _show_version(wanted: bool) -> None:
    if wanted:
        line(f"fairlead {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def fairlead(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """A message broker that keeps every partition in order while many subscribers share the work.

    Start with [bold]fairlead up[/bold]; then, in other terminals, [bold]fairlead pub[/bold] and
    [bold]fairlead sub[/bold].
    """
    if context.invoked_subcommand is None:
        text = context.get_help()
        if text:
            line(text)


def _add(panel: str, name: str, function: Callable[..., None], *aliases: str) -> None:
    app.command(name, rich_help_panel=panel)(function)
    for alias in aliases:
        app.command(alias, hidden=True, help=f"The same as '{name}'.")(function)


_add("Run", "up", up.up)
_add("Run", "ns", up.ns)
_add("Messages", "pub", pub.pub)
_add("Messages", "sub", sub.sub)
_add("Look", "ls", look.ls, "list_queues")
_add("Look", "info", look.info)
_add("Look", "subs", look.subs, "list_consumers")
_add("Look", "parked", look.parked)
_add("Look", "ping", health.ping)
_add("Look", "check", health.check)
_add("Look", "audit", audit.audit)
_add("Manage", "create", manage.create)
_add("Manage", "delete", manage.delete)
_add("Manage", "redrive", manage.redrive)
_add("Manage", "export", export.export)
_add("Faults", "kill-queues", manage.kill_queues)
_add("Faults", "simulate", simulate.run_simulation)
_add("Faults", "chaos", chaos.chaos)
subscription_app.command("create")(manage.subscription_create)
subscription_app.command("delete")(manage.subscription_delete)
subscription_app.command("ls")(look.subscription_ls)
topic_app.command("subscribe")(topic.subscribe)
topic_app.command("unsubscribe")(topic.unsubscribe)
topic_app.command("put")(topic.put)
topic_app.command("get")(topic.get)
topic_app.command("ls")(topic.ls)
topic_app.command("info")(topic.info)
journal_app.command("verify")(store.verify)
# A group with one command stays a group, so that others can join it later.
journal_app.callback()(lambda: None)
app.add_typer(topic_app, name="topic", rich_help_panel="Messages")
app.add_typer(subscription_app, name="subscription", rich_help_panel="Manage")
app.add_typer(journal_app, name="journal", rich_help_panel="Look")


def main() -> NoReturn:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line; returns the exit code. The one place that turns failures into text."""
    try:
        code = get_command(app).main(arguments, prog_name="fairlead", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UsageError as error:
        return _usage(error)
    except Problem as problem:
        complain(problem)
        return problem.exit_code
    except BrokerError as error:
        complain(f"{error}; {NEXT_STEPS[error.code]}" if error.code in NEXT_STEPS else error)
        return EXIT_FAILED
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_SIGNAL + 2
    except OSError as error:
        complain(f"{error}; check the path and its rights")
        return EXIT_FAILED
    except Exception as error:
        if os.environ.get("FAIRLEAD_TRACEBACK"):
            traceback.print_exc()
        complain(
            f"unexpected {type(error).__name__}: {error}; this is a bug, run it again with "
            "FAIRLEAD_TRACEBACK=1 to see where"
        )
        return EXIT_FAILED


def _usage(error: Exception) -> int:
    message = getattr(error, "format_message", error.__str__)().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "fairlead"
    complain(f"{message[:1].lower()}{message[1:]}; see '{path} --help'")
    return EXIT_USAGE
