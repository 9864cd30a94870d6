"""``fairlead audit``: Spark replays a journal and says whether every promise was kept.

Thin: what is checked lives in ``spark``. This file reads the options, shows progress, prints the
verdict and chooses the exit code. Spark is imported only here and only when it is asked for.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.audit_progress import Steps
from fairlead.options import JsonOption, option
from fairlead.output import complain, line, note, show_json, show_table
from fairlead.problems import Problem

if TYPE_CHECKING:
    from spark.audit import Question

EXIT_CODES = {"valid": 0, "invalid": 1, "unknown": 2}

StoreArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="STORE", show_default=False,
        help="The file of the journal; a broker may be using it. Not needed with --archive.",
    ),
]  # fmt: skip
ArchiveOption = Annotated[
    Path | None,
    option(
        "--archive", metavar="DIR", show_default=False,
        help="The archive that 'fairlead export' wrote; read together with STORE as one journal.",
    ),
]  # fmt: skip
HistoriesOption = Annotated[
    Path | None,
    option(
        "--histories", metavar="DIR", show_default=False,
        help="The folder with the histories of publishers, subscribers and clients of topics: the "
        "journal is then checked against what they saw.",
    ),
]  # fmt: skip
ChannelOption = Annotated[
    str | None,
    option(
        "--channel", metavar="NAME", show_default=False,
        help="Only this channel; of a topic, topic: and its name.",
    ),
]  # fmt: skip
DrainedOption = Annotated[
    bool,
    option(
        "--drained",
        help="The run is over: what is neither settled nor parked by now is unseen, and every "
        "subscription to a topic must have confirmed all.",
    ),
]
ReportOption = Annotated[
    Path | None,
    option(
        "--report", metavar="FILE.html", show_default=False,
        help="Also write a page with the verdict, charts and who owned what when.",
    ),
]  # fmt: skip
MasterOption = Annotated[
    str | None,
    option(
        "--master", metavar="URL", show_default=False,
        help="Spark's master; local[*] without it. Under spark-submit it is spark-submit's.",
    ),
]  # fmt: skip
MemoryOption = Annotated[
    str, option("--memory", metavar="SIZE", help="What a local Spark may use, as in 4g.")
]


def audit(
    store: StoreArgument = None,
    archive: ArchiveOption = None,
    histories: HistoriesOption = None,
    channel: ChannelOption = None,
    drained: DrainedOption = False,
    as_json: JsonOption = False,
    report: ReportOption = None,
    master: MasterOption = None,
    memory: MemoryOption = "6g",
) -> None:
    """Replay a journal with Spark and prove that order and delivery held.

    The exit code is the verdict: 0 valid, 1 invalid, 2 unknown. Unknown is also what could not be
    read, and a channel or topic of which nothing was delivered or confirmed. A journal that is
    still being written is judged up to where it ended when the audit looked.
    """
    try:
        verdict = _judge(store, archive, histories, channel, drained, report, master, memory)
    except Exception as error:
        # Whatever went wrong: exit code 1 would say that the journal is.
        if os.environ.get("FAIRLEAD_TRACEBACK"):
            traceback.print_exc()
        reason = str(error) or type(error).__name__
        if as_json:
            show_json({"verdict": "unknown", "reasons": [reason]})
        complain(reason)
        raise typer.Exit(EXIT_CODES["unknown"]) from None
    if as_json:
        show_json(verdict)
    else:
        _show(verdict)
    raise typer.Exit(EXIT_CODES[verdict["verdict"]])


def _judge(
    store: Path | None,
    archive: Path | None,
    histories: Path | None,
    channel: str | None,
    drained: bool,
    report: Path | None,
    master: str | None,
    memory: str,
) -> dict[str, Any]:
    _check_paths(store, archive, histories, report)
    try:
        from spark import scan
        from spark.audit import Question
    except ImportError as error:
        raise Problem(
            f"the audit needs Spark, which is not installed ({error})",
            "pip install 'fairlead[spark]'",
        ) from None
    place = scan.Place(_text(store), _text(archive))
    question = Question(place, channel, _text(histories), drained, _drawn(report))
    return _with_spark(question, report, master, memory)


def _drawn(report: Path | None) -> tuple[str, ...]:
    if report is None:
        return ()
    from spark.report import COLUMNS

    return tuple(COLUMNS)


def _check_paths(
    store: Path | None, archive: Path | None, histories: Path | None, report: Path | None
) -> None:
    if store is None and archive is None:
        raise Problem("there is nothing to audit", "give STORE, --archive DIR or both")
    if store is not None and not store.is_file():
        raise Problem(f"there is no store {store}", "give the file that 'fairlead up' was given")
    for path, what in ((archive, "an archive"), (histories, "histories")):
        if path is not None and not path.is_dir():
            raise Problem(f"{path} is no directory", f"give a directory with {what}")
    if histories is not None and not any(histories.glob("*.jsonl")):
        raise Problem(
            f"there is no history in {histories}",
            "give the folder that the clients were given as history=, or leave --histories out",
        )
    if report is not None and not report.absolute().parent.is_dir():
        raise Problem(f"there is no folder for {report}", "make it first")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _with_spark(
    question: Question, report: Path | None, master: str | None, memory: str
) -> dict[str, Any]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from spark.audit import audit as judge
    from spark.session import quiet

    with Steps("starting Spark") as steps, quiet(master, memory) as session:
        steps.follow(session)
        try:
            outcome = judge(session, question, steps.begin)
            verdict = outcome.verdict.to_dict()
            if report is not None:
                steps.begin("drawing the report")
                _write_report(report, verdict, outcome.drawn)
            outcome.release()
        except (PySparkException, Py4JError) as error:
            raise _problem(error) from error
        finally:
            steps.leave()
    return verdict


def _write_report(path: Path, verdict: dict[str, Any], records: Any) -> None:
    """Draw the page. The verdict stands, whatever becomes of its picture."""
    from spark.report import collect_figures, render

    try:
        page = render(verdict, collect_figures(records))
        path.write_text(page, encoding="utf-8")
    except Exception as error:
        complain(f"the report could not be written to {path}: {error}; the verdict stands")
    else:
        note(f"the report is in {path}")


def _problem(error: Exception) -> Problem:
    """What a failure of Spark means to who asked: the store cannot be read, or Spark gave up."""
    lines = [text.strip() for text in str(error).splitlines() if text.strip()]
    telling = [text for text in lines if "RuntimeError: " in text]
    if telling:
        reason = telling[-1].partition("RuntimeError: ")[2]
        return Problem(f"the journal cannot be read: {reason}", "then audit again")
    found = (lines or [type(error).__name__])[0]
    return Problem(
        f"Spark failed: {found}",
        "give it more memory (--memory) or more room for temporary files (TMPDIR)",
    )


def _show(verdict: dict[str, Any]) -> None:
    line(f"verdict: {verdict['verdict']}")
    for reason in verdict["reasons"]:
        line(f"  {reason}")
    line(
        f"compared: {verdict['records']:,} records, {verdict['messages']:,} messages, "
        f"{verdict['partitions']:,} partitions" + _histories(verdict["histories_compared"])
    )
    show_table(
        ["CHANNEL", "VERDICT", "JUDGED UP TO", "RECORDS", "MESSAGES", "PARTITIONS", "PENDING"],
        [
            [row[key] for key in ("channel", "verdict", "upto", "records", "messages",
                                  "partitions", "pending")]
            for row in verdict["channels"]
        ],
        "there is no channel",
    )  # fmt: skip
    line("")
    show_table(
        ["ANOMALY", "COMPARED", "FOUND", "NOT CHECKED, OR ONLY IN PART"],
        [
            [row["name"], row["compared"], row["violations"], row["skipped"] or row["partly"]]
            for row in verdict["checks"]
        ],
        "nothing was checked",
    )
    for row in verdict["checks"]:
        if row["violations"]:
            _show_offenders(row)
    line(f"verdict: {verdict['verdict']} in {verdict['seconds']} s")


def _histories(heard: dict[str, int]) -> str:
    if not heard["lines"]:
        return "; no histories"
    topics = f", {heard['topic_clients']} clients of topics" if heard["topic_clients"] else ""
    return (
        f"; histories of {heard['publishers']} publishers and {heard['subscribers']} subscribers"
        f"{topics}, {heard['lines']:,} lines"
    )


def _show_offenders(row: dict[str, Any]) -> None:
    line("")
    line(f"{row['name']}: {row['definition']}")
    for item in row["offenders"]:
        names = ("channel", "sequence", "subscription", "publisher", "partition", "subscriber")
        place = ", ".join(f"{name} {item[name]}" for name in names if item[name] is not None)
        line(f"  {place}: {item['detail']}")
    more = row["violations"] - len(row["offenders"])
    if more:
        line(f"  and {more:,} more")
