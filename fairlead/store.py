"""``fairlead journal verify``: read a store that no broker has open, and say whether it is whole.

Every channel and topic is recovered exactly as a starting broker would recover it; nothing is
served and no record is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from broker.errors import JournalError
from broker.journal.bases import is_topic
from broker.journal.recovery import recover, recover_topic
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
    """Check every record of the channels and topics in a store. Exit 1 when one is damaged.

    The broker must not be running; a copy of the store needs its -wal file beside it. Of a trimmed
    channel, the base and what follows it are checked; RECORDS counts those in the archive too. The
    topic NAME is shown as topic:NAME; UNSETTLED counts what its subscribers are owed, and ARCHIVED
    what was deleted since nobody is owed it.
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
            f"store {store} is whole and has no channels or topics",
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
        row |= _recovered_topic(journal, name) if is_topic(name) else _recovered(journal, name)
    except JournalError as error:
        sequence = error.details.get("sequence")
        return {
            **row, "messages": None, "unsettled": None, "verdict": "invalid",
            "sequence": sequence, "reason": str(error),
        }  # fmt: skip
    return {**row, "verdict": "valid"}


def _recovered(journal: SqliteJournal, name: str) -> Row:
    channel, records = recover(journal, name)
    messages, unsettled = channel.published_total, channel.unsettled()
    return {"records": records, "messages": messages, "unsettled": unsettled}


def _recovered_topic(journal: SqliteJournal, name: str) -> Row:
    """A message of a topic is settled when all that were owed it have it."""
    topic, records = recover_topic(journal, name)
    return {"records": records, "messages": topic.put_total, "unsettled": len(topic.log)}


def _show(store: Path, rows: list[Row], reason: str | None) -> None:
    whole = reason is None and all(row["verdict"] == "valid" for row in rows)
    verdict = "valid" if whole else "invalid"
    show_json({"store": str(store), "verdict": verdict, "reason": reason, "channels": rows})
