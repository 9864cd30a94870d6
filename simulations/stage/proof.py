"""The two expectations that every story ends with: the journal that the broker left is whole, and
neither in it nor in the clients' histories is an anomaly.

``anomalies_of`` is the only place that knows the judge of channels, ``topic_proof`` that of topics.
Topics are judged by the whole of their journals; a store whose broker has released some of that
(``keeps_topics`` is False) is judged by the topics that are whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable

from broker.core.anomalies import VALID
from broker.core.records import Record
from broker.errors import BrokerError
from broker.history import read
from broker.journal.bases import TOPIC_PREFIX, is_topic
from broker.journal.recovery import recover, recover_topic
from broker.journal.sqlite import SqliteJournal
from simulations.checkers import Judge
from simulations.stage.topic_proof import topic_anomalies

if TYPE_CHECKING:
    from simulations.stage.script import Script, Store

ANOMALIES = "anomalies in journal and histories"  # the expectation that is the judge's verdict
SHOWN_MAX = 3  # anomalies that are told in full; more do not help

Numbered = list[tuple[int, Any]]  # records of a channel or of a topic


def prove(script: Script) -> list[dict[str, Numbered]]:
    """Judge every store of the story; the records of those that are whole, channel by channel. All
    brokers must have ended.

    A process that had to be killed at the end would otherwise go unnoticed; it is told as well.
    """
    if script.forced:
        script.expect("processes that did not end when they were asked to", [], script.forced)
    lines = list(read_histories(script.histories))
    found = []
    for store in script.stores:
        journals = _expect_whole(script, store)
        if journals is not None:
            _expect_no_anomaly(
                script, journals, lines, getattr(store, "keeps_topics", True)
            )
            found.append(journals)
    return found


def read_journal(store: Path, channel: str) -> list[Record]:
    """The records of one channel in a store that no broker has open."""
    return [record for _, record in _read_all(store, [channel])[channel]]


def _expect_whole(script: Script, store: Store) -> dict[str, Numbered] | None:
    """Every channel recovers as it would in a starting broker; the records, if so."""
    try:
        journals = _read_all(store.store, None)
        count, observed = sum(map(len, journals.values())), ""
    except BrokerError as error:
        journals, count, observed = None, 0, f"invalid: {error}"
    if store.exit_code not in (0, None):
        observed = f"{observed} the broker ended with exit code {store.exit_code}".strip()
    script.expect_true(
        "the broker stops cleanly, its journal verifies", "valid",
        observed or f"valid, {count:,} records", count > 0 and not observed,
    )  # fmt: skip
    return journals


def _read_all(store: Path, channels: list[str] | None) -> dict[str, Numbered]:
    journal = SqliteJournal(str(store))
    try:
        names = journal.channels() if channels is None else channels
        for name in names:
            (recover_topic if is_topic(name) else recover)(journal, name)
        return {name: list(journal.read(name)) for name in names}
    finally:
        journal.close()


def read_histories(folder: Path) -> Iterable[dict[str, Any]]:
    """The lines of all histories in a folder, one history after the other."""
    for path in sorted(folder.glob("*.jsonl")):  # a client that was killed early leaves others
        yield from read(path)


def _expect_no_anomaly(
    script: Script, journals: dict[str, Numbered], lines: list[dict[str, Any]], keeps_topics: bool
) -> None:
    topics = {
        name.removeprefix(TOPIC_PREFIX): journals[name] for name in journals if is_topic(name)
    }
    of_topics = [line for line in lines if line["client"] == "topic"]
    found: list[str] = []
    compared = sum(map(len, topics.values())) + len(of_topics)
    if compared:
        found += topic_anomalies(topics, of_topics, script.drained, keeps_topics)
    for channel, records in journals.items():
        if not is_topic(channel):
            heard = [
                line for line in lines if line["channel"] == channel and line["client"] != "topic"
            ]
            compared += len(records) + len(heard)
            found += [f"{channel}: {text}" for text in anomalies_of(records, heard, script.drained)]
    more = f"; and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
    observed = "; ".join(found[:SHOWN_MAX]) + more
    script.expect_true(
        ANOMALIES, "none",
        observed or f"none in {compared:,} records and lines", compared > 0 and not observed,
    )  # fmt: skip


def anomalies_of(records: Numbered, lines: list[dict[str, Any]], drained: bool) -> list[str]:
    """What is wrong with one channel's journal and its clients' histories, in words.

    Nothing found is not enough: a judge to whom nothing was shown, or a history with lines missing,
    proves nothing, and that is told like an anomaly.
    """
    judge = Judge()
    for sequence, record in records:
        judge.watch(sequence, record)
    for line in lines:
        judge.hear(line)
    found = [str(anomaly) for anomaly in judge.finish(drained)]
    if not found and judge.verdict() != VALID:
        found.append(f"{judge.verdict()}: of {judge.compared} too little could be compared")
    return found
