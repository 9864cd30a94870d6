"""``fairlead topic`` from a shell: each client gets each message once; exit codes tell why not.

Time-outs are longer than by default, since the machine that runs the tests may be busy.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from tests.command.test_up import damage
from tests.processes import (
    BrokerProcess,
    command_line,
    environment,
    free_port,
    poll,
    run_fairlead,
    start_fairlead,
)

StartBroker = Callable[..., BrokerProcess]
EMPTY = 3
#: As in the README, but for the time-outs and the port.
STORY = """
export FAIRLEAD_STATE=$PWD/clients                 # where clients keep their numbers
fairlead up --store story.db --ready-file up.json & broker=$!
until [ -e up.json ]; do sleep 0.1; done

fairlead topic subscribe news --client ann         # subscribed
fairlead topic subscribe news --client bob         # subscribed; bob leaves, for as long as he likes
seq 1 10 | fairlead topic put news --client eve    # accepted 10, refused 0

kill -9 $broker; rm up.json                        # no time to clean up
fairlead up --store story.db --ready-file up.json & broker=$!
until [ -e up.json ]; do sleep 0.1; done

fairlead topic get news --all --client ann         # 1 to 10
fairlead topic get news --all --client bob         # 1 to 10
fairlead topic get news --all --client bob         # nothing there: exit code 3
echo "exit code $?"
kill $broker
"""


class Clients:
    """The command ``fairlead topic`` of any client at one broker."""

    def __init__(self, broker: BrokerProcess, state: Path, topic: str) -> None:
        self.broker = broker
        self.state = state
        self.topic = topic

    def variables(self, client: str) -> dict[str, Any]:
        """The environment of a client."""
        return {
            "FAIRLEAD_CLIENT": client, "FAIRLEAD_STATE": str(self.state), "FAIRLEAD_TIMEOUT": "5",
        }  # fmt: skip

    def run(
        self, client: str, *words: object, **keywords: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return self.broker.run("topic", *words, **self.variables(client), **keywords)

    def start(self, client: str, *words: object, **keywords: Any) -> subprocess.Popen[bytes]:
        """Start a command and leave it running."""
        return start_fairlead(
            "topic", *words, name_server=self.broker.name_server, **self.variables(client),
            **keywords,
        )  # fmt: skip

    def shell(self, client: str, text: str) -> subprocess.CompletedProcess[str]:
        """Run a line of shell in which ``fairlead`` is the command."""
        return shell(
            text, FAIRLEAD_NAME_SERVER=self.broker.name_server, **self.variables(client)
        )

    def subscribe(self, *clients: str, topic: str = "") -> None:
        for client in clients:
            done = self.run(client, "subscribe", topic or self.topic)
            assert (done.returncode, done.stdout) == (0, "subscribed\n"), done.stderr

    def put(self, client: str, *messages: str, topic: str = "") -> None:
        done = self.run(client, "put", topic or self.topic, *messages)
        assert done.returncode == 0, done.stderr

    def get_all(self, client: str, *words: object) -> list[str]:
        done = self.run(client, "get", *(words or (self.topic,)), "--all")
        assert done.returncode in (0, EMPTY), done.stderr
        return done.stdout.splitlines()


def shell(
    text: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run lines of shell in which ``fairlead`` is the command."""
    # Not a function: in the background a function would have a shell's process id, not its own.
    command = re.sub(r"\bfairlead (?=topic|up)", shlex.join(command_line()) + " ", text)
    return subprocess.run(
        ["bash", "-c", "set -o pipefail\n" + command], capture_output=True, text=True, timeout=100,
        check=False, cwd=cwd, env=environment(**variables),
    )  # fmt: skip


@pytest.fixture
def clients(
    shared_broker: BrokerProcess, tmp_path: Path, request: pytest.FixtureRequest
) -> Clients:
    """Clients of the test's own, and a topic name of its own."""
    topic = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[:90]
    return Clients(shared_broker, tmp_path / "state", topic)


# Subscriptions.


def test_subscribing_twice_says_so(clients: Clients) -> None:
    clients.subscribe("ann")
    again = clients.run("ann", "subscribe", clients.topic)
    assert (again.returncode, again.stdout) == (0, "was subscribed before\n")


def test_unsubscribing_twice_says_so(clients: Clients) -> None:
    clients.subscribe("ann")
    outcomes = [clients.run("ann", "unsubscribe", clients.topic) for _ in range(2)]
    assert [(done.returncode, done.stdout) for done in outcomes] == [
        (0, "unsubscribed\n"), (0, "was not subscribed\n"),
    ]  # fmt: skip


def test_json_tells_what_changed(clients: Clients) -> None:
    new = clients.run("ann", "subscribe", clients.topic, "--json")
    was = clients.run("ann", "unsubscribe", clients.topic, "--json")
    expected = {"topic": clients.topic, "client": "ann"}
    assert json.loads(new.stdout) == {**expected, "new": True}
    assert json.loads(was.stdout) == {**expected, "was": True}


def test_only_what_came_after_the_subscription_is_got(clients: Clients) -> None:
    clients.put("eve", "before")
    clients.subscribe("ann")
    clients.put("eve", "after")
    assert clients.get_all("ann") == ["after"]


# Putting.


def test_every_client_gets_the_lines_of_stdin_once_and_in_order(clients: Clients) -> None:
    clients.subscribe("ann", "bob")
    lines = [f"line {number}" for number in range(2_500)]
    done = clients.run("eve", "put", clients.topic, stdin="\n".join(lines))
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("accepted 2500, refused 0 in ")
    for client in ("ann", "bob"):
        assert clients.get_all(client) == lines
        assert clients.get_all(client) == []


def test_a_file_can_be_put_by_lines_or_whole(clients: Clients, tmp_path: Path) -> None:
    clients.subscribe("ann")
    file = tmp_path / "input"
    file.write_bytes(b"one\r\n\ntwo")
    for words in ([], ["--whole"]):
        done = clients.run("eve", "put", clients.topic, "--file", file, *words)
        assert done.returncode == 0, done.stderr
    got = clients.run("ann", "get", clients.topic, "--all", "--json")
    bodies = [json.loads(line)["body"] for line in got.stdout.splitlines()]
    assert bodies == ["one", "", "two", "one\r\n\ntwo"]


def test_bytes_come_out_as_they_went_in(clients: Clients) -> None:
    clients.subscribe("ann")
    blob = bytes(range(256)) * 20
    done = clients.run("eve", "put", clients.topic, "--whole", "--binary", stdin=blob)
    assert done.returncode == 0, done.stderr
    getting = clients.start("ann", "get", clients.topic, "--raw")
    assert getting.communicate(timeout=60)[0] == blob


def test_bodies_are_text_bytes_or_json_as_asked(clients: Clients) -> None:
    clients.subscribe("ann")
    clients.put("eve", "text")
    clients.run("eve", "put", clients.topic, "--binary", "text")
    clients.run("eve", "put", clients.topic, "--json-bodies", '{"total": 3}')
    clients.run("eve", "put", clients.topic, stdin=b"\xff\n")
    got = clients.run("ann", "get", clients.topic, "--all", "--json")
    messages = [json.loads(line) for line in got.stdout.splitlines()]
    bodies = [message.get("body", message.get("body_base64")) for message in messages]
    assert bodies == ["text", "dGV4dA==", {"total": 3}, "/w=="]
    assert [message["number"] for message in messages] == [1, 2, 3, 4]


def test_a_message_that_is_refused_does_not_stop_the_others(clients: Clients) -> None:
    clients.subscribe("ann")
    lines = "one\n" + "x" * 1_100_000 + "\ntwo\n"
    done = clients.run("eve", "put", clients.topic, stdin=lines)
    assert done.returncode == 1
    assert "fairlead: line 2: " in done.stderr and "message_bytes_max" in done.stderr
    assert "accepted 2, refused 1" in done.stderr
    assert clients.get_all("ann") == ["one", "two"]


def test_a_line_that_is_no_json_is_refused_and_named(clients: Clients) -> None:
    clients.subscribe("ann")
    done = clients.run("eve", "put", clients.topic, "--json-bodies", stdin='{"a": 1}\nno\n[2]\n')
    assert done.returncode == 1
    assert "fairlead: line 2: " in done.stderr
    assert "accepted 2, refused 1" in done.stderr
    assert clients.get_all("ann") == ['{"a": 1}', "[2]"]


def test_lines_are_put_as_they_come(clients: Clients) -> None:
    """A line must not wait for the end of the input."""
    clients.subscribe("ann")
    putting = clients.start("eve", "put", clients.topic, stdin=subprocess.PIPE)
    try:
        assert putting.stdin is not None
        putting.stdin.write(b"early\n")
        putting.stdin.flush()
        got = clients.run("ann", "get", clients.topic, "--wait", "30")
        assert (got.returncode, got.stdout) == (0, "early\n"), got.stderr
        putting.stdin.close()
        assert putting.wait(30) == 0
    finally:
        end(putting)


def test_ctrl_c_ends_a_put_with_its_tally(clients: Clients) -> None:
    clients.subscribe("ann")
    putting = clients.start("eve", "put", clients.topic, stdin=subprocess.PIPE)
    try:
        assert putting.stdin is not None and putting.stderr is not None
        putting.stdin.write(b"one\nbegun")
        putting.stdin.flush()
        assert clients.run("ann", "get", clients.topic, "--wait", "30").stdout == "one\n"
        putting.send_signal(signal.SIGINT)
        assert putting.wait(30) == 130
        assert putting.stderr.read().startswith(b"accepted 1, refused 0 in ")
    finally:
        end(putting)
    assert clients.get_all("ann") == []


def test_quiet_and_json_replace_the_tally(clients: Clients) -> None:
    quiet = clients.run("eve", "put", clients.topic, "-q", "one")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    done = clients.run("eve", "put", clients.topic, "--json", "two", "three")
    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "topic": clients.topic, "client": "eve", "accepted": 2, "refused": 0, "unknown": 0,
        "go_on_from": None, "number": 3, "position": 3, "resumed": [],
    }  # fmt: skip


@pytest.fixture
def names(tmp_path: Path) -> Iterator[str]:
    """A name server in a process of its own, which answers while its broker does not."""
    ready = tmp_path / "names.json"
    process = start_fairlead("ns", "--port", free_port(), "--ready-file", ready)
    try:
        poll(ready.exists, 30.0, "the name server is up")
        yield json.loads(ready.read_text())["name_server"]
    finally:
        end(process)


def test_a_put_that_died_before_its_answer_is_settled_by_the_next_one(
    names: str, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path, name_server=names) as broker:
        clients = Clients(broker, tmp_path / "state", "news")
        clients.subscribe("ann")
        clients.put("eve", "first")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            putting = clients.start("eve", "put", "news", "second")
            state = tmp_path / "state" / "eve" / "state.db"
            poll(lambda: pending_count(state, 2), 30.0, "the put is written down")
            end(putting)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        done = clients.run("eve", "put", "news", "third")
        assert done.returncode == 0, done.stderr
        assert "a put of an earlier run to topic news, up to number 2, was sent again" in (
            done.stderr
        )
        assert clients.get_all("ann") == ["first", "second", "third"]


def test_a_put_without_an_answer_is_unknown_and_settled_later(
    names: str, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path, name_server=names) as broker:
        clients = Clients(broker, tmp_path / "state", "news")
        clients.subscribe("ann")
        putting = clients.start(
            "eve", "put", "news", "--timeout", "0.5", stdin=subprocess.PIPE
        )
        try:
            assert putting.stdin is not None and putting.stderr is not None
            putting.stdin.write(b"one\n")
            putting.stdin.flush()
            assert clients.run("ann", "get", "news", "--wait", "30").stdout == "one\n"
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                putting.stdin.write(b"two\n")
                putting.stdin.flush()
                assert putting.wait(30) == 1
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            complaint, tally = putting.stderr.read().decode().splitlines()
        finally:
            end(putting)
        assert complaint.startswith("fairlead: line 2: ") and "unknown" in complaint
        assert tally.startswith("accepted 1, refused 0, unknown 1 in ")
        assert tally.endswith("nothing from line 3 on was put")
        settled = clients.run("eve", "put", "news", "--json")
        assert settled.returncode == 0, settled.stderr
        (resumed,) = json.loads(settled.stdout)["resumed"]
        assert (resumed["topic"], resumed["number"]) == ("news", 2)
        assert clients.get_all("ann") == ["two"]


def test_a_put_that_was_never_sent_is_refused_not_unknown(tmp_path: Path) -> None:
    done = run_fairlead(
        "topic", "put", "news", "one", "two", "--json", name_server=f"127.0.0.1:{free_port()}",
        FAIRLEAD_STATE=str(tmp_path), FAIRLEAD_CLIENT="eve",
    )  # fmt: skip
    assert done.returncode == 1
    tally = json.loads(done.stdout)
    assert (tally["accepted"], tally["refused"], tally["unknown"]) == (0, 2, 0)
    assert tally["go_on_from"] == 1
    assert "surely not done" in done.stderr


def pending_count(state: Path, number: int) -> int:
    """How many calls with a number a client has written down."""
    connection = sqlite3.connect(f"file:{state}?mode=ro", uri=True)
    try:
        (found,) = connection.execute("SELECT count(*) FROM call WHERE number = ?", (number,))
    finally:
        connection.close()
    return int(found[0])


# Getting.


def test_exit_codes_tell_an_empty_topic_from_an_error(clients: Clients) -> None:
    clients.subscribe("ann")
    empty = clients.run("ann", "get", clients.topic)
    assert (empty.returncode, empty.stdout) == (EMPTY, "")
    assert empty.stderr.startswith("nothing there")
    clients.put("eve", "one", "two")
    got = clients.run("ann", "get", clients.topic)
    assert (got.returncode, got.stdout, got.stderr) == (0, "one\n", "")
    stranger = clients.run("joe", "get", clients.topic)
    assert (stranger.returncode, stranger.stdout) == (1, "")
    assert "subscribe" in stranger.stderr


def test_count_limits_what_is_got(clients: Clients) -> None:
    clients.subscribe("ann")
    clients.put("eve", *"abcde")
    got = [clients.run("ann", "get", clients.topic, "-n", "3").stdout for _ in range(2)]
    assert got == ["a\nb\nc\n", "d\ne\n"]


def test_any_reads_all_topics_in_the_order_of_acceptance(clients: Clients) -> None:
    other = clients.topic + "-other"
    clients.subscribe("ann")
    clients.subscribe("ann", topic=other)
    for number in range(6):
        clients.put("eve", str(number), topic=other if number % 3 else clients.topic)
    got = clients.run("ann", "get", "--any", "-n", "4", "--format", r"{topic}\t{body}")
    assert [line.split("\t") for line in got.stdout.splitlines()] == [
        [clients.topic, "0"], [other, "1"], [other, "2"], [clients.topic, "3"],
    ]  # fmt: skip
    assert clients.get_all("ann", "--any") == ["4", "5"]
    assert clients.get_all("ann", "--any") == []


def test_the_form_of_a_line_is_chosen(clients: Clients) -> None:
    clients.subscribe("ann")
    clients.put("eve", "hello")
    got = clients.run("ann", "get", clients.topic, "--format", "{id} {publisher} {number} {body}")
    assert got.stdout == "1 eve 1 hello\n"


def test_a_get_that_waits_ends_with_the_message(clients: Clients) -> None:
    clients.subscribe("ann")
    getting = clients.start("ann", "get", clients.topic, "--wait", "60")
    try:
        clients.put("eve", "at last")
        assert getting.stdout is not None
        assert getting.stdout.readline() == b"at last\n"
        assert getting.wait(30) == 0
    finally:
        end(getting)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_waiting_get_and_loses_nothing(clients: Clients, signum: int) -> None:
    clients.subscribe("ann")
    clients.put("eve", "one")
    getting = clients.start("ann", "get", clients.topic, "--all", "--wait", "60")
    try:
        assert getting.stdout is not None and getting.stderr is not None
        assert getting.stdout.readline() == b"one\n"
        getting.send_signal(signum)
        assert getting.wait(30) == 128 + signum
        assert (getting.stdout.read(), getting.stderr.read()) == (b"", b"")
    finally:
        end(getting)
    clients.put("eve", "two")
    assert clients.get_all("ann") == ["two"]


def test_head_loses_nothing(clients: Clients) -> None:
    """What ``head`` has not printed comes with the next get."""
    clients.subscribe("ann")
    clients.put("eve", *map(str, range(300)))
    found: list[str] = []
    for count in (1, 150, 7):
        done = clients.shell("ann", f"fairlead topic get {clients.topic} --all | head -n {count}")
        assert (done.returncode, done.stderr) == (0, "")
        found += done.stdout.splitlines()
    assert found == [str(number) for number in range(158)]
    assert clients.get_all("ann") == [str(number) for number in range(158, 300)]


def test_what_cannot_be_written_comes_again(clients: Clients) -> None:
    clients.subscribe("ann")
    clients.put("eve", "one")
    full = clients.shell("ann", f"fairlead topic get {clients.topic} > /dev/full")
    assert full.returncode == 1
    assert full.stderr.startswith("fairlead: ")
    assert full.stderr.count("\n") == 1
    assert clients.get_all("ann") == ["one"]


def test_a_get_killed_before_the_reader_took_it_gives_it_again(clients: Clients) -> None:
    clients.subscribe("ann")
    clients.put("eve", "one", "two")
    getting = clients.start("ann", "get", clients.topic, "--all")
    try:
        assert getting.stdout is not None
        poll(lambda: unread(getting.stdout), 30.0, "the message is in the pipe")
    finally:
        end(getting)
    assert clients.get_all("ann") == ["one", "two"]


def unread(stream: Any) -> bool:
    """Whether something can be read from a pipe; nothing is read."""
    return bool(select.select([stream], [], [], 0)[0])


# Who and where.


def test_a_client_id_in_use_is_refused_in_one_line(clients: Clients) -> None:
    clients.subscribe("ann")
    clients.put("eve", "one")
    getting = clients.start("ann", "get", clients.topic, "--all", "--wait", "60")
    try:
        assert getting.stdout is not None
        assert getting.stdout.readline() == b"one\n"
        second = clients.run("ann", "get", clients.topic)
        assert (second.returncode, second.stdout) == (1, "")
        assert f"process {getting.pid}" in second.stderr
        assert second.stderr.count("\n") == 1
    finally:
        end(getting)


def test_a_lost_state_directory_is_taken_over(clients: Clients, tmp_path: Path) -> None:
    clients.subscribe("ann")
    clients.put("eve", "one", "two")
    assert clients.run("ann", "get", clients.topic).stdout == "one\n"
    clients.state = tmp_path / "another"
    refused = clients.run("ann", "get", clients.topic)
    assert refused.returncode == 1
    taken = clients.run("ann", "get", clients.topic, "--all", "--take-over")
    assert taken.returncode == 0, taken.stderr
    assert taken.stdout.splitlines()[-1] == "two"
    assert clients.get_all("ann") == []


def test_each_name_server_is_asked(clients: Clients) -> None:
    addresses = f"127.0.0.1:{free_port()},{clients.broker.name_server}"
    for words in (["subscribe", clients.topic], ["put", clients.topic, "x"], ["ls"]):
        done = run_fairlead("topic", *words, name_server=addresses, **clients.variables("ann"))
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["get"], ["get", "news", "--any"], ["get", "news", "--all", "-n", "2"],
        ["get", "news", "--format", "{nonsense}"], ["get", "news", "--format", "{body"],
        ["get", "no/name"], ["subscribe", "no/name"], ["put", "no/name", "x"],
        ["put", "news", "x", "--whole"],
        ["put", "news", "--binary", "--json-bodies"], ["subscribe", "news", "--client", "a\tb"],
        ["ls", "--name-server", "127.0.0.1:1,nowhere"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_one_line_and_exit_2(words: list[str], tmp_path: Path) -> None:
    done = run_fairlead("topic", *words, FAIRLEAD_STATE=str(tmp_path / "state"))
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("fairlead: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "words",
    [["subscribe", "news"], ["unsubscribe", "news"], ["put", "news", "x"], ["ls"],
     ["info", "news"]],
    ids=" ".join,
)  # fmt: skip
def test_without_a_broker_it_says_so_in_one_line(words: list[str], tmp_path: Path) -> None:
    done = run_fairlead(
        "topic", *words, name_server=f"127.0.0.1:{free_port()}", FAIRLEAD_STATE=str(tmp_path),
        FAIRLEAD_CLIENT="ann", timeout_s=30.0,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    complaints = [line for line in done.stderr.splitlines() if line.startswith("fairlead: ")]
    assert len(complaints) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_the_history_of_a_client_is_written_where_asked(clients: Clients, tmp_path: Path) -> None:
    clients.subscribe("ann")
    clients.run("eve", "put", clients.topic, "one", "--history", tmp_path / "seen")
    (file,) = (tmp_path / "seen").iterdir()
    events = [json.loads(line)["event"] for line in file.read_text().splitlines()]
    assert events == ["opened", "tried", "answered", "closed"]


# Looking.


def test_ls_shows_topics_and_mine_what_is_owed(clients: Clients) -> None:
    clients.subscribe("owed-ann", "owed-bob")
    clients.put("eve", *"abc")
    clients.run("owed-ann", "get", clients.topic, "--all")
    (row,) = [
        row
        for row in json.loads(clients.run("owed-ann", "ls", "--json").stdout)
        if row["name"] == clients.topic
    ]
    assert (row["subscribers"], row["put_total"], row["backlog"]) == (2, 3, 3)
    mine = clients.run("owed-bob", "ls", "--mine")
    assert [line.split() for line in mine.stdout.splitlines()] == [
        ["TOPIC", "OWED", "CONFIRMED", "LAST"], [clients.topic, "3", "0", "3"],
    ]  # fmt: skip
    nobody = clients.run("joe", "ls", "--mine")
    assert (nobody.returncode, nobody.stdout) == (0, "")
    assert "subscribed to nothing" in nobody.stderr


def test_info_shows_those_furthest_behind_first(clients: Clients) -> None:
    clients.subscribe("ann", "bob")
    clients.put("eve", *"abc")
    assert clients.get_all("ann") == ["a", "b", "c"]
    lines = clients.run("ann", "info", clients.topic).stdout.splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["CLIENT", "OWED", "CONFIRMED"], ["bob", "3", "0"], ["ann", "0", "3"],
    ]  # fmt: skip
    found = json.loads(clients.run("ann", "info", clients.topic, "--limit", "1", "--json").stdout)
    assert [row["client"] for row in found["subscriptions"]] == ["bob"]
    missing = clients.run("ann", "info", "never-made")
    assert missing.returncode == 1
    assert "never-made" in missing.stderr


# The broker's side.


def test_up_makes_the_topics_that_it_is_given(start_broker: StartBroker) -> None:
    broker = start_broker("--topic", "news", "--topic", "sports", "--topic-memory", "3600")
    assert broker.ready["topics"] == ["news", "sports"]
    assert [row["name"] for row in broker.read_json("topic", "ls")] == ["news", "sports"]
    broker.stop()
    assert "news, sports" in broker.log.read_text()


def test_up_forgets_unused_topics_after_their_time(start_broker: StartBroker) -> None:
    broker = start_broker("--topic", "news", "--topic-memory", "0")
    poll(lambda: broker.read_json("topic", "ls") == [], 30.0, "the topic is forgotten")


def test_keep_topics_keeps_what_nobody_uses(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker("--topic", "kept", "--topic-memory", "0", "--keep-topics")
    clients = Clients(broker, tmp_path / "state", "news")
    clients.subscribe("ann")
    clients.put("eve", "one")
    assert clients.get_all("ann") == ["one"]
    assert [row["name"] for row in broker.read_json("topic", "ls")] == ["kept", "news"]
    # What would have been released by a tick is still there after several of them.
    assert broker.read_json("topic", "info", "news")["records"] >= 3


def test_verify_counts_what_the_subscribers_of_a_topic_are_owed(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker("--channel", "orders")
    clients = Clients(broker, tmp_path / "state", "news")
    clients.subscribe("ann", "bob")
    clients.put("eve", *"abc")
    clients.run("ann", "get", "news", "--all")
    broker.kill9()
    found = json.loads(run_fairlead("journal", "verify", broker.store, "--json").stdout)
    rows = [(row["channel"], row["messages"], row["unsettled"]) for row in found["channels"]]
    assert (found["verdict"], rows) == ("valid", [("orders", 0, 0), ("topic:news", 3, 3)])
    assert "topic:news" in run_fairlead("journal", "verify", broker.store).stdout


def test_verify_names_the_damaged_record_of_a_topic(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker("--channel", "orders")
    clients = Clients(broker, tmp_path / "state", "news")
    clients.subscribe("ann")
    clients.put("eve", "one")
    broker.stop()
    damage(broker.store)
    done = run_fairlead("journal", "verify", broker.store, "--json")
    assert done.returncode == 1
    rows = {row["channel"]: row["verdict"] for row in json.loads(done.stdout)["channels"]}
    assert rows == {"orders": "valid", "topic:news": "invalid"}


def test_two_clients_get_all_ten_once_although_the_broker_was_killed(tmp_path: Path) -> None:
    done = shell(
        STORY, cwd=tmp_path, FAIRLEAD_NAME_SERVER=f"127.0.0.1:{free_port()}", FAIRLEAD_TIMEOUT="5"
    )
    said = [line for line in done.stdout.splitlines() if re.fullmatch(r"\w+( code)?( \d+)?", line)]
    ten = [str(number) for number in range(1, 11)]
    assert said == ["subscribed", "subscribed", *ten, *ten, "exit code 3"], done.stderr
    assert "accepted 10, refused 0" in done.stderr


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process of this test at once, and close its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
