"""``fairlead export``: settled records of a store into a Parquet archive, and out of the store.

Works on the store's file, whether or not a broker has it open; no broker is asked for anything.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Callable, Iterator

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from broker.errors import JournalError
from broker.journal.archive import Exported, Progress, channels_of, export_channel
from fairlead.options import JsonOption, option
from fairlead.output import complain, note, show_json, show_table, stderr_console
from fairlead.problems import EXIT_FAILED, Problem, UsageProblem

Row = dict[str, Any]

# A bar is not redrawn for each record: that would cost more than the record.
_STEP_RECORDS = 500


StoreArgument = Annotated[
    Path, typer.Argument(metavar="STORE", help="The file of the journal.", show_default=False)
]
ArchiveOption = Annotated[
    Path,
    option(
        "--archive", metavar="DIR", show_default=False,
        help="The directory of the archive; made when it does not exist.",
    ),
]  # fmt: skip
ChannelOption = Annotated[
    list[str] | None,
    option(
        "--channel", metavar="NAME",
        help="Only this channel; may be repeated. All channels without it.",
    ),
]  # fmt: skip
TrimOption = Annotated[
    bool,
    option(
        "--trim", help="Then remove from the store what is settled and verified in the archive."
    ),
]
KeepRecordsOption = Annotated[
    int,
    option(
        "--keep-records", min=0, metavar="N",
        help="With --trim: leave at least the last N records of each channel in the store.",
    ),
]  # fmt: skip
AllOption = Annotated[
    bool,
    option(
        "--all",
        help="Archive up to the end of the journal, settled or not. Trims no more for that.",
    ),
]


def export(
    store: StoreArgument,
    archive: ArchiveOption,
    channel: ChannelOption = None,
    trim: TrimOption = False,
    keep_records: KeepRecordsOption = 0,
    everything: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Archive the settled records of a store as Parquet, and trim them with --trim.

    The broker may be running. A record is settled when every message published up to it is
    acknowledged or parked in every subscription. An export goes on where the archive ends; one that
    was interrupted is run again. The file of the store does not shrink: freed pages are used again.
    """
    if keep_records and not trim:
        raise UsageProblem("--keep-records says what --trim leaves", "give --trim too")
    if not store.is_file():
        raise Problem(f"there is no store {store}", "give the file that 'fairlead up' was given")
    if archive.exists() and not archive.is_dir():
        raise Problem(f"{archive} is no directory", "give a directory for the archive")
    names = _chosen(store, channel)
    rows: list[Row] = []
    with _bars() as bar_of:
        for name in names:
            try:
                done = export_channel(
                    store, archive, name, everything=everything, trim=trim,
                    keep_records=keep_records, progress=bar_of(name),
                )  # fmt: skip
            except JournalError as error:
                rows.append({"channel": name, "error": str(error), "code": error.code})
            else:
                rows.append(_row(done))
    _show(store, archive, rows, as_json)
    if any("error" in row for row in rows):
        raise typer.Exit(EXIT_FAILED)


def _chosen(store: Path, wanted: list[str] | None) -> list[str]:
    names = channels_of(store)
    for name in wanted or ():
        if name not in names:
            raise Problem(
                f"store {store} has no channel {name}; it has {', '.join(names) or 'none'}",
                "correct --channel",
            )
    return list(dict.fromkeys(wanted)) if wanted else names


def _row(done: Exported) -> Row:
    oldest = done.oldest
    return {
        "channel": done.channel, "first": done.first or None, "last": done.last or None,
        "records": done.archived, "files": done.files, "bytes": done.bytes,
        "trimmed": done.trimmed, "settled": done.settled, "base": done.base, "head": done.head,
        "stays": done.head - done.base, "reason": done.reason or None,
        "oldest_unsettled": None if oldest is None else {
            "record": oldest.record or None, "publisher": oldest.key.publisher,
            "partition": oldest.key.partition, "sequence": oldest.sequence,
            "subscription": oldest.subscription,
        },
    }  # fmt: skip


def _show(store: Path, archive: Path, rows: list[Row], as_json: bool) -> None:
    if as_json:
        show_json({"store": str(store), "archive": str(archive), "channels": rows})
        return
    good = [row for row in rows if "error" not in row]
    show_table(
        ["CHANNEL", "EXPORTED", "FILES", "BYTES", "TRIMMED", "STAYS", "WHY"],
        [
            [
                row["channel"], f"{row['first']}-{row['last']}" if row["records"] else None,
                row["files"], row["bytes"], row["trimmed"], row["stays"], row["reason"],
            ]
            for row in good
        ],
        "nothing was exported" if rows else f"store {store} has no channels",
    )  # fmt: skip
    for row in rows:
        if "error" in row:
            complain(f"channel {row['channel']} was not exported: {row['error']}")
    if any(row["trimmed"] for row in good):
        note("the pages that were freed are used again; the file itself does not shrink")


@contextmanager
def _bars() -> Iterator[Callable[[str], Progress]]:
    """A bar per channel and step on stderr while a person watches; else nothing."""
    if not sys.stderr.isatty():
        yield lambda name: lambda step, count, total: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Bars(*columns, console=stderr_console(), transient=True) as bars:
        yield lambda name: _bar(bars, name)


def _bar(bars: Bars, name: str) -> Progress:
    tasks: dict[str, Any] = {}
    waiting: dict[str, int] = {}

    def advance(step: str, count: int, total: int) -> None:
        if step not in tasks:
            tasks[step] = bars.add_task(f"{name}: {step}", total=total)
        waiting[step] = waiting.get(step, 0) + count
        if waiting[step] >= _STEP_RECORDS or waiting[step] >= total:
            bars.advance(tasks[step], waiting.pop(step))

    return advance
