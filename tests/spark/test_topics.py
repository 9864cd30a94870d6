"""The audit of topics: good ones are valid, each planted fault is found by its name alone."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Callable

import pytest
from pyspark.sql import SparkSession

from broker.core.anomalies import ANOMALIES, TOPIC_ANOMALIES
from broker.core.topics import records as t
from broker.journal import bases
from broker.journal.archive import export_channel
from broker.journal.recovery import recover_topic
from broker.journal.sqlite import SqliteJournal
from broker.server.service import Service, Settings
from fairlead.command import run
from spark import checks, scan, topic_frame
from spark.audit import Question
from tests.spark import planted, planted_topics
from tests.spark.test_audit import judge as verdict_of
from tests.spark.test_audit import named
from tests.spark.test_planted import Found, judge
from topics import Topics

pytestmark = pytest.mark.timeout(300)

#: What one audit of a channel and a topic costs with Spark 4.3: without histories, and with them.
#: As measured; a frame that is made twice shows here.
JOBS_MAX = (21, 56)


def journal(name: str) -> str:
    return bases.TOPIC_PREFIX + name


def write(path: Path, *stories: planted_topics.Story, **channels: planted.Records) -> Path:
    """A store of topics and channels."""
    written = {journal(told.topic.name): planted_topics.records_of(told) for told in stories}
    planted.write_store(path, {**channels, **written})
    return path


def row_of(verdict: dict[str, Any], name: str) -> dict[str, Any]:
    (row,) = [item for item in verdict["channels"] if item["channel"] == name]
    return row


@pytest.fixture(scope="module")
def journals(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One store: good topics and a good channel, damaged topics, and one topic per plant."""
    path = tmp_path_factory.mktemp("topics") / "store.db"
    stories = [planted_topics.story(name) for name in ("good", "damaged", "hole", "cut-short")]
    stories.append(planted_topics.story("open", drained=False))
    for name, (_, plant) in planted_topics.JOURNAL_PLANTS.items():
        stories.append(planted_topics.planted(name, plant))
    write(path, *stories, orders=planted.good())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "UPDATE records SET at_ms = at_ms + 1 WHERE channel = 'topic:damaged' AND sequence = 9"
        )
        connection.execute("DELETE FROM records WHERE channel = 'topic:hole' AND sequence = 9")
        connection.execute("DELETE FROM records WHERE channel = 'topic:cut-short' AND sequence > 8")
        connection.commit()
    return judge(spark, Question(scan.Place(str(path), None)))


def test_the_prefix_is_that_of_the_journal() -> None:
    assert topic_frame.PREFIX == bases.TOPIC_PREFIX
    assert topic_frame.is_topic("topic:orders") and not topic_frame.is_topic("orders")


def test_good_topics_beside_a_good_channel_are_valid(
    journals: tuple[dict[str, Any], Found],
) -> None:
    verdict, found = journals
    for name, pending in (("topic:good", 0), ("topic:open", 7 + 3), ("orders", 4)):
        assert found[name] == set()
        row = row_of(verdict, name)
        assert (row["verdict"], row["pending"]) == ("valid", pending), name
    assert row_of(verdict, "topic:good")["messages"] == 14


@pytest.mark.parametrize("name", planted_topics.JOURNAL_PLANTS)
def test_a_fault_in_the_journal_of_a_topic_is_found_by_its_name_alone(
    journals: tuple[dict[str, Any], Found], name: str
) -> None:
    assert journals[1][journal(name)] == {planted_topics.JOURNAL_PLANTS[name][0]}


@pytest.mark.parametrize("name", ["damaged", "hole", "cut-short"])
def test_a_damaged_or_missing_record_of_a_topic_is_named_and_what_follows_is_not_judged(
    journals: tuple[dict[str, Any], Found], name: str
) -> None:
    verdict, found = journals
    assert found[journal(name)] == {"log-integrity"}
    row = row_of(verdict, journal(name))
    assert (row["verdict"], row["upto"]) == ("invalid", 8)


def test_every_anomaly_of_topics_is_planted_in_journals_and_in_histories() -> None:
    for plants in (planted_topics.JOURNAL_PLANTS, planted_topics.HISTORY_PLANTS):
        assert {name for name, _ in plants.values()} == TOPIC_ANOMALIES
    ours = {check.anomaly for check in checks.ALL if check.frame.startswith("topic_")}
    assert ours == TOPIC_ANOMALIES < set(ANOMALIES)


@pytest.fixture(scope="module")
def with_histories(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Drained topics with the histories of their clients; one fault in each but the good ones.

    "anew" was removed once and made anew: the folder has histories of the old one, too.
    """
    folder = tmp_path_factory.mktemp("histories")
    stories = [planted_topics.story("good"), planted_topics.story("anew", born=50)]
    for name, (_, plant) in planted_topics.HISTORY_PLANTS.items():
        stories.append(planted_topics.planted(name, plant))
    for told in (*stories, planted_topics.story("anew", born=1)):
        planted_topics.write_histories(folder / "clients", told)
    channel = planted.good("orders", drained=True)
    files = planted.good_histories(channel, "orders")
    planted.write_histories(folder / "clients", files, "orders")
    path = write(folder / "store.db", *stories, orders=channel)
    place = scan.Place(str(path), None)
    return judge(spark, Question(place, None, str(folder / "clients"), drained=True))


@pytest.mark.parametrize("name", ["topic:good", "topic:anew", "orders"])
def test_good_histories_agree_with_a_good_topic(
    with_histories: tuple[dict[str, Any], Found], name: str
) -> None:
    verdict, found = with_histories
    assert found[name] == set()
    assert row_of(verdict, name)["verdict"] == "valid"


def test_what_was_compared_of_topics_is_counted(
    with_histories: tuple[dict[str, Any], Found],
) -> None:
    verdict, _ = with_histories
    assert verdict["histories_compared"]["topic_clients"] == 4
    rows = {check["name"]: check for check in verdict["checks"]}
    for name in TOPIC_ANOMALIES:
        assert rows[name]["compared"] > 100
        assert rows[name]["skipped"] is rows[name]["partly"] is None


@pytest.mark.parametrize("name", planted_topics.HISTORY_PLANTS)
def test_a_fault_in_the_histories_of_a_topic_is_found_by_its_name_alone(
    with_histories: tuple[dict[str, Any], Found], name: str
) -> None:
    assert with_histories[1][journal(name)] == {planted_topics.HISTORY_PLANTS[name][0]}


def live(folder: Path, name_server: str, restart: Callable[[], None]) -> None:
    """Three clients over two topics, with a restart of the broker, a second subscription, a second
    life, one and two steps, one topic and all."""

    def client(name: str) -> Topics:
        return Topics(
            name, folder / "state", name_server=name_server, timeout_s=5.0,
            history=folder / "histories",
        )  # fmt: skip

    with client("ann") as ann, client("bob") as bob, client("eve") as eve:
        for reader in (ann, bob):
            for topic in ("news", "sport"):
                reader.subscribe(topic)
        for number in range(30):
            eve.put_many(("news", "sport")[number * 7 % 3 % 2], [f"{number}-{n}" for n in range(3)])
            if number % 3 == 0:
                ann.put("news", f"ann-{number}")
                ann.get_any_many(5)
            if number == 15:
                restart()
                bob.unsubscribe("sport")
                bob.subscribe("sport")
        while bob.get_many("news", 4):
            pass
        while messages := ann.receive_any(7):
            for message in messages:
                ann.confirm(message)
    with client("bob") as bob:
        bob.put("sport", "again")
        while bob.get_any_many(50):
            pass
    with client("ann") as ann:
        assert [message.body for message in ann.get_many("sport", 5)] == ["again"]


def test_what_real_clients_and_a_real_broker_wrote_is_valid(
    spark: SparkSession, tmp_path: Path
) -> None:
    service = Service(
        Settings(store=str(tmp_path / "real.db"), name_server_port=0, keep_topics=True)
    ).start()
    address = f"{service.names.host}:{service.names.port}"

    def restart() -> None:
        nonlocal service
        port = service.names.port
        service.close()
        service = Service(
            Settings(store=str(tmp_path / "real.db"), name_server_port=port, keep_topics=True)
        ).start()

    live(tmp_path, address, restart)
    service.close()
    place = scan.Place(str(tmp_path / "real.db"), None)
    verdict, found = judge(
        spark, Question(place, None, str(tmp_path / "histories"), drained=True)
    )
    assert found == {"topic:news": set(), "topic:sport": set()}
    assert verdict["verdict"] == "valid" and verdict["reasons"] == []
    rows = {check["name"]: check["compared"] for check in verdict["checks"]}
    assert all(rows[name] > 100 for name in TOPIC_ANOMALIES)


# Topics that were released in part, and what proves nothing.


def trimmed_store(path: Path, told: planted_topics.Story, upto: int) -> Path:
    """A store whose topic has a base at its record ``upto``, and nothing before it."""
    write(path, told)
    name = journal(told.topic.name)
    with closing(SqliteJournal(path)) as store:
        topic, last = recover_topic(store, name)
        with closing(sqlite3.connect(path)) as connection:
            select = "SELECT checksum FROM records WHERE channel = ? AND sequence = ?"
            (checksum,) = connection.execute(select, (name, upto)).fetchone()
    base = bases.make_early_base(topic, upto, checksum, last)
    with closing(sqlite3.connect(path)) as connection:
        values = (name, *base, bases.state_checksum(name, base))
        connection.execute("INSERT INTO bases VALUES (?, ?, ?, ?, ?)", values)
        connection.execute("DELETE FROM records WHERE sequence <= ?", (upto,))
        connection.commit()
    return path


@pytest.mark.parametrize("upto", [1, 4, 9, 14, 20])
def test_a_topic_whose_beginning_was_released_is_judged_and_is_not_valid(
    spark: SparkSession, tmp_path: Path, upto: int
) -> None:
    told = planted_topics.story("good")
    planted_topics.write_histories(tmp_path / "clients", told)
    path = trimmed_store(tmp_path / "store.db", told, upto)
    place = scan.Place(str(path), None)
    verdict = verdict_of(spark, Question(place, None, str(tmp_path / "clients"), drained=True))
    assert named(verdict) == {}
    assert verdict["verdict"] == row_of(verdict, "topic:good")["verdict"] == "unknown"
    (reason,) = verdict["reasons"]
    assert reason.startswith(f"topic 'good' begins at record {upto + 1}") and "released" in reason


@pytest.mark.parametrize(
    "plant", ["confirmed-hole", "confirmed-again", "accepted-again", "got-other", "told-elsewhere"]
)
def test_a_fault_after_what_was_released_is_found(
    spark: SparkSession, tmp_path: Path, plant: str
) -> None:
    plants = {**planted_topics.JOURNAL_PLANTS, **planted_topics.HISTORY_PLANTS}
    name, change = plants[plant]
    told = planted_topics.story("good")
    trimmed_store(tmp_path / "sound.db", told, 9)
    change(told.records, told.files)
    planted_topics.write_histories(tmp_path / "clients", told)
    write(tmp_path / "store.db", told)
    take_base(tmp_path / "sound.db", tmp_path / "store.db", 9)
    place = scan.Place(str(tmp_path / "store.db"), None)
    verdict = verdict_of(spark, Question(place, None, str(tmp_path / "clients")))
    assert set(named(verdict)) >= {name} and verdict["verdict"] == "invalid"
    assert set(named(verdict)) <= TOPIC_ANOMALIES


def take_base(source: Path, target: Path, upto: int) -> None:
    """The records up to the base are the same in both."""
    with closing(sqlite3.connect(source)) as connection:
        (row,) = connection.execute("SELECT * FROM bases").fetchall()
    with closing(sqlite3.connect(target)) as connection:
        connection.execute("INSERT INTO bases VALUES (?, ?, ?, ?, ?)", row)
        connection.execute("DELETE FROM records WHERE sequence <= ?", (upto,))
        connection.commit()


def test_an_archive_makes_a_trimmed_topic_whole(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "store.db", planted_topics.story("good"))
    done = export_channel(path, tmp_path / "archive", "topic:good", trim=True)
    assert done.trimmed
    place = scan.Place(str(path), str(tmp_path / "archive"))
    verdict = verdict_of(spark, Question(place))
    assert verdict["verdict"] == "valid" and verdict["reasons"] == []


def test_a_topic_of_which_nothing_was_confirmed_is_unknown(
    spark: SparkSession, tmp_path: Path
) -> None:
    told = planted_topics.Story("quiet")
    told.put("ann", "", None, [b"nobody hears it"])
    path = write(tmp_path / "store.db", told, orders=planted.good())
    verdict = verdict_of(spark, Question(scan.Place(str(path), None)))
    assert verdict["verdict"] == "unknown"
    assert verdict["reasons"] == ["nothing of topic 'quiet' was confirmed: nothing to compare"]


def test_without_topics_their_checks_are_said_to_be_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = write(tmp_path / "store.db", orders=planted.good())
    verdict = verdict_of(spark, Question(scan.Place(str(path), None)))
    assert verdict["verdict"] == "valid"
    skipped = {row["name"] for row in verdict["checks"] if row["skipped"] == "there is no topic"}
    assert skipped == TOPIC_ANOMALIES


# A topic alone, a client that cannot be compared, the command, the cost.


def test_one_topic_can_be_judged_alone(spark: SparkSession, tmp_path: Path) -> None:
    """With its histories; what is wrong with another topic or with a channel is left out."""
    _, plant = planted_topics.HISTORY_PLANTS["got-other"]
    bad, good = planted_topics.planted("bad", plant), planted_topics.story("good")
    for told in (bad, good):
        planted_topics.write_histories(tmp_path / "clients", told)
    _, spoil = planted.JOURNAL_PLANTS["stolen-ack"]
    path = write(tmp_path / "store.db", bad, good, orders=spoil(planted.good()))
    place, clients = scan.Place(str(path), None), str(tmp_path / "clients")
    found = {
        name: verdict_of(spark, Question(place, name, clients))
        for name in ("topic:good", "topic:bad", "orders")
    }
    assert {name: verdict["verdict"] for name, verdict in found.items()} == {
        "topic:good": "valid", "topic:bad": "invalid", "orders": "invalid"
    }  # fmt: skip
    assert set(named(found["topic:bad"])) == {"exactly-once-get"}
    assert set(named(found["orders"])) == {"fenced-ack"}
    assert found["orders"]["histories_compared"]["lines"] == 0
    for row in found["topic:good"]["checks"]:
        assert (row["skipped"] is None) == (row["name"] in TOPIC_ANOMALIES | {"log-integrity"})


def test_a_client_of_which_a_life_has_no_history_is_not_compared(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What it did in that life is not in its lines: that is no fault."""
    told = planted_topics.story("good")
    for client in ("ann", "bob"):
        lines = told.files.pop((client, client + "-1", 1))
        for line in lines:
            line["session"] = "3"
        told.files[client, client + "-1", 3] = lines[:1]
    planted_topics.write_histories(tmp_path / "clients", told)
    path = write(tmp_path / "store.db", told)
    question = Question(scan.Place(str(path), None), None, str(tmp_path / "clients"))
    verdict = verdict_of(spark, question)
    assert named(verdict) == {} and verdict["verdict"] == "valid"


def test_a_put_after_the_histories_were_read_is_no_fault(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal grows between the two readings; histories are older than its end."""
    told = planted_topics.story("good")
    planted_topics.write_histories(tmp_path / "clients", told)
    records = planted_topics.records_of(told)
    ann = planted_topics.of(records, t.Put, "ann")
    bob = planted_topics.of(records, t.Confirmed, "bob")
    assert ann.instance
    last = planted_topics.nth(records, t.Put)
    put = t.Put(9_000, "ann", ann.instance, ann.number + 1, last.position + 1, 900, 1, 0, [b"new"])
    confirmed = t.Confirmed(9_001, "bob", bob.ticket, last.position + 1, 1)
    planted.write_store(tmp_path / "store.db", {"topic:good": [*records, put, confirmed]})
    place = scan.Place(str(tmp_path / "store.db"), None)
    real, seen = scan.extents, []

    def older(*arguments: Any) -> list[scan.Extent]:
        seen.append(1)
        found = real(*arguments)
        return found if len(seen) > 1 else [found[0]._replace(last=len(records))]

    question = Question(place, None, str(tmp_path / "clients"))
    assert set(named(verdict_of(spark, question))) == {"exactly-once-put", "topic-completeness"}
    monkeypatch.setattr("spark.scan.extents", older)
    assert named(verdict_of(spark, question)) == {}


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``fairlead audit`` in this process, on the session that is there already."""

    @contextmanager
    def lent(*_: object) -> Any:
        yield spark

    monkeypatch.setattr("spark.session.quiet", lent)
    return lambda *arguments: run(["audit", *map(str, arguments)])


def test_the_command_judges_topics_and_draws_only_channels(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = planted_topics.story("good")
    planted_topics.write_histories(tmp_path / "clients", told)
    path = write(tmp_path / "good.db", told, orders=planted.good())
    report = tmp_path / "report.html"
    assert command(path, "--histories", tmp_path / "clients", "--report", report) == 0
    shown = capsys.readouterr().out
    assert "topic:good" in shown and "4 clients of topics" in shown
    assert "topic:good" in report.read_text() and "exactly-once-get" in report.read_text()
    name, plant = planted_topics.JOURNAL_PLANTS["confirmed-hole"]
    bad = planted_topics.planted("bad", plant)
    assert command(write(tmp_path / "bad.db", bad), "--json") == 1
    checks_made = json.loads(capsys.readouterr().out)["checks"]
    (found,) = [row for row in checks_made if row["violations"]]
    assert found["name"] == name
    (offender,) = found["offenders"]
    assert (offender["subscriber"], offender["first"], offender["last"]) == ("bob", 12, 14)


def test_the_number_of_spark_jobs_with_topics_and_histories_is_pinned(
    spark: SparkSession, tmp_path: Path
) -> None:
    told = planted_topics.story("good")
    planted_topics.write_histories(tmp_path / "clients", told)
    path = write(tmp_path / "store.db", told, orders=planted.good())
    counts = []
    for group, histories in (("without", None), ("with", str(tmp_path / "clients"))):
        spark.sparkContext.setJobGroup(group, group)
        try:
            verdict_of(spark, Question(scan.Place(str(path), None), None, histories))
        finally:
            spark.sparkContext.setJobGroup("", "")
        counts.append(len(spark.sparkContext.statusTracker().getJobIdsForGroup(group)))
    assert 0 < counts[0] <= JOBS_MAX[0] and 0 < counts[1] <= JOBS_MAX[1], counts
