"""``fairlead journal verify``: read a store that no broker has open, and say whether it is whole.

Every channel is recovered exactly as a starting broker would recover it; nothing is served and no
record is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from broker.errors import JournalError
from broker.journal.recovery import recover
from broker.journal.sqlite import SqliteJournal
from fairlead.options import JsonOption
from fairlead.output import complain, show_json, show_table
from fairlead.problems import EXIT_FAILED, Problem

Row = dict[str, Any]


def verify(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="The file of the journal.", show_default=False)
    ],
    as_json: JsonOption = False,
) -> None:
    """Check every record of every channel in a store. Exit 1 when one is damaged or missing.

    The broker must not be running; a copy of the store needs its -wal file beside it. Of a trimmed
    channel, the base and what follows it are checked; RECORDS counts those in the archive too.
    """
    if not store.is_file():
        raise Problem(f"there is no store {store}", "give the file that 'fairlead up' was given")
    rows: list[Row] = []
    try:
        journal = SqliteJournal(store)
        try:
            rows = [_verified(journal, name) for name in journal.channels()]
        finally:
            journal.close()
    except JournalError as error:
        if not as_json:
            raise
        _show(store, rows, str(error))
        raise typer.Exit(EXIT_FAILED) from None
    if as_json:
        _show(store, rows, None)
    else:
        show_table(
            ["CHANNEL", "RECORDS", "ARCHIVED", "MESSAGES", "UNSETTLED", "VERDICT"],
            [
                [row[key] for key in ("channel", "records", "archived", "messages", "unsettled",
                                      "verdict")]
                for row in rows
            ],
            f"store {store} is whole and has no channels",
        )
    damaged = [row for row in rows if row["verdict"] != "valid"]
    for row in damaged:
        if not as_json:
            complain(f"{row['reason']}; restore the store from a copy")
    if damaged:
        raise typer.Exit(EXIT_FAILED)


def _verified(journal: SqliteJournal, name: str) -> Row:
    row: Row = {"channel": name, "records": journal.durable(name), "archived": None}
    try:
        row["archived"] = journal.base(name).sequence
        channel, row["records"] = recover(journal, name)
    except JournalError as error:
        sequence = error.details.get("sequence")
        return {
            **row, "messages": None, "unsettled": None, "verdict": "invalid",
            "sequence": sequence, "reason": str(error),
        }  # fmt: skip
    return {
        **row, "messages": channel.published_total, "unsettled": channel.unsettled(),
        "verdict": "valid",
    }  # fmt: skip


def _show(store: Path, rows: list[Row], reason: str | None) -> None:
    whole = reason is None and all(row["verdict"] == "valid" for row in rows)
    verdict = "valid" if whole else "invalid"
    show_json({"store": str(store), "verdict": verdict, "reason": reason, "channels": rows})
