"""``fairlead pub`` and ``fairlead sub`` in shell pipes: what goes in comes out, in order."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from typing import Callable

import pytest

from tests.processes import BrokerProcess, command_line, environment, poll, start_fairlead

StartBroker = Callable[..., BrokerProcess]


def shell(broker: BrokerProcess, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which ``fairlead`` is the command."""
    command = f'fairlead() {{ {shlex.join(command_line())} "$@"; }}\nset -o pipefail\n{line}'
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False,
        env=environment(FAIRLEAD_NAME_SERVER=broker.name_server),
    )  # fmt: skip


def test_lines_go_in_and_come_out_in_order(shared_broker: BrokerProcess, channel: str) -> None:
    done = shell(
        shared_broker,
        f"seq 1 2000 | fairlead pub {channel} && fairlead sub {channel} --count 2000 | cat",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(number) for number in range(1, 2001)]
    assert done.stderr.startswith("accepted 2000, duplicates 0, refused 0")


def test_keys_before_a_delimiter_are_partitions(shared_broker: BrokerProcess, channel: str) -> None:
    lines = "ann:created\nbob:created:twice\nann:paid\nno delimiter\n"
    done = shared_broker.run("pub", channel, "--key-delimiter", ":", "-K", "rest", stdin=lines)
    assert done.returncode == 0, done.stderr
    got = shared_broker.run("sub", channel, "--count", "4", "--format", r"{partition}\t{body}")
    by_key: dict[str, list[str]] = {}
    for line in got.stdout.splitlines():
        key, _, body = line.partition("\t")
        by_key.setdefault(key, []).append(body)
    assert by_key == {
        "ann": ["created", "paid"], "bob": ["created:twice"], "rest": ["no delimiter"],
    }  # fmt: skip


def test_two_commands_one_after_the_other_keep_their_order(
    shared_broker: BrokerProcess, channel: str
) -> None:
    for word in ("created", "paid", "sent"):
        assert shared_broker.run("pub", channel, "-K", "ann", word).returncode == 0
    got = shared_broker.run("sub", channel, "--count", "3", "--format", "{sequence} {body}")
    assert got.stdout == "1 created\n2 paid\n3 sent\n"


def test_json_shows_every_field(shared_broker: BrokerProcess, channel: str) -> None:
    done = shared_broker.run(
        "pub", channel, '{"total": 3}', "--json-bodies", "-K", "ann", "-p", "5",
        "-H", "kind: order", "--id", "order-1", "--publisher", "billing",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    got = shared_broker.run("sub", channel, "--count", "1", "--json")
    message = json.loads(got.stdout)
    assert message.pop("timestamp") > 1_600_000_000
    assert message == {
        "publisher": "billing", "partition": "ann", "sequence": 1, "position": 1,
        "epoch": message["epoch"], "attempt": 1, "priority": 5, "id": "order-1",
        "headers": {"kind": "order"}, "body": {"total": 3},
    }  # fmt: skip


def test_what_is_no_text_travels_as_bytes(shared_broker: BrokerProcess, channel: str) -> None:
    assert shared_broker.run("pub", channel, stdin=b"\xff\xfe\r\n\n").returncode == 0
    got = shared_broker.run("sub", channel, "--count", "2", "--json")
    first, second = map(json.loads, got.stdout.splitlines())
    assert first["body_base64"] == "//4="
    assert second["body"] == ""


def test_a_second_message_with_an_id_is_a_duplicate(
    shared_broker: BrokerProcess, channel: str
) -> None:
    assert "accepted 1, duplicates 0" in shared_broker.run("pub", channel, "a", "--id", "x").stderr
    again = shared_broker.run("pub", channel, "a", "--id", "x")
    assert again.returncode == 0
    assert again.stderr.startswith("accepted 0, duplicates 1, refused 0")


def test_a_line_that_is_no_json_is_refused_and_named(
    shared_broker: BrokerProcess, channel: str
) -> None:
    done = shared_broker.run("pub", channel, "--json-bodies", stdin='{"a": 1}\nnonsense\n[2]\n')
    assert done.returncode == 1
    assert "fairlead: line 2: " in done.stderr
    assert "accepted 2, duplicates 0, refused 1" in done.stderr


def test_a_full_channel_refuses_and_says_so(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.run("create", "small", "--policy", "pending_count_max=3")
    done = broker.run("pub", "small", "--on-full", "refuse", "1", "2", "3", "4", "5")
    assert done.returncode == 1
    assert "full" in done.stderr
    assert "accepted 3, duplicates 0, refused 2" in done.stderr
    assert broker.run("sub", "small", "--count", "3").stdout == "1\n2\n3\n"


def test_no_create_leaves_a_missing_channel_missing(shared_broker: BrokerProcess) -> None:
    done = shared_broker.run("pub", "never-made", "--no-create", "hello")
    assert done.returncode == 1
    assert "there is no channel 'never-made'" in done.stderr


def test_quiet_says_nothing(shared_broker: BrokerProcess, channel: str) -> None:
    done = shared_broker.run("pub", channel, "-q", "hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_pub_after_a_flush(
    shared_broker: BrokerProcess, channel: str, signum: signal.Signals
) -> None:
    publishing = start_fairlead(
        "pub", channel, name_server=shared_broker.name_server, stdin=subprocess.PIPE
    )
    assert publishing.stdin is not None
    publishing.stdin.write(b"one\ntwo\n")
    publishing.stdin.flush()
    poll(lambda: waiting(shared_broker, channel) == 2, 20.0, "two messages are in the channel")
    publishing.send_signal(signum)
    _, complaints = publishing.communicate(timeout=20)
    assert publishing.returncode == 128 + signum
    assert complaints.decode().startswith("accepted 2, duplicates 0, refused 0 in ")


def test_pub_waits_for_a_broker_that_restarts(start_broker: StartBroker) -> None:
    broker = start_broker("--channel", "orders")
    publishing = start_fairlead(
        "pub", "orders", name_server=broker.name_server, stdin=subprocess.PIPE
    )
    assert publishing.stdin is not None
    publishing.stdin.write(b"one\n")
    publishing.stdin.flush()
    poll(lambda: waiting(broker, "orders") == 1, 20.0, "the first message is in the channel")
    broker.kill9()
    publishing.stdin.write(b"two\nthree\n")
    publishing.stdin.flush()
    broker.restart()
    _, complaints = publishing.communicate(timeout=60)
    assert publishing.returncode == 0, complaints
    assert complaints.decode().startswith("accepted 3, duplicates 0, refused 0")
    assert broker.run("sub", "orders", "--count", "3").stdout == "one\ntwo\nthree\n"


# Subscribing.


def test_sub_prints_each_message_as_it_comes_and_ends_on_a_signal(
    shared_broker: BrokerProcess, channel: str
) -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):
        reading = start_fairlead("sub", channel, name_server=shared_broker.name_server)
        assert reading.stdout is not None
        shared_broker.run("pub", channel, "hello")
        assert reading.stdout.readline() == b"hello\n"
        reading.send_signal(signum)
        _, complaints = reading.communicate(timeout=20)
        assert (reading.returncode, complaints) == (0, b"")
    assert waiting(shared_broker, channel) == 0


def test_sub_ends_when_nothing_comes(shared_broker: BrokerProcess, channel: str) -> None:
    shared_broker.run("pub", channel, "hello")
    got = shared_broker.run("sub", channel, "--idle", "0.2")
    assert (got.returncode, got.stdout, got.stderr) == (0, "hello\n", "")


def test_count_takes_no_more_than_asked_for(shared_broker: BrokerProcess, channel: str) -> None:
    shared_broker.run("pub", channel, "1", "2", "3", "4", "5")
    assert shared_broker.run("sub", channel, "--count", "2").stdout == "1\n2\n"
    assert shared_broker.run("sub", channel, "--count", "3").stdout == "3\n4\n5\n"


def test_a_closed_pipe_ends_sub_and_hands_the_rest_back(
    shared_broker: BrokerProcess, channel: str
) -> None:
    count = 50_000
    lines = "".join(f"{number}\n" for number in range(1, count + 1))
    assert shared_broker.run("pub", channel, stdin=lines).returncode == 0
    done = shell(shared_broker, f"fairlead sub {channel} | head -n 1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    left = waiting(shared_broker, channel)
    assert 0 < left < count
    rest = shared_broker.run("sub", channel, "--count", left)
    assert rest.stdout.split() == [str(number) for number in range(count - left + 1, count + 1)]


def test_a_reader_that_goes_while_nothing_comes_ends_sub(
    shared_broker: BrokerProcess, channel: str
) -> None:
    reader, writer = os.pipe()
    reading = start_fairlead(
        "sub", channel, "--subscriber", "w", name_server=shared_broker.name_server, stdout=writer
    )
    os.close(writer)
    poll(lambda: consumers(shared_broker, channel) == 1, 20.0, "the subscriber is there")
    os.close(reader)
    _, complaints = reading.communicate(timeout=20)
    assert (reading.returncode, complaints) == (0, b"")
    assert consumers(shared_broker, channel) == 0


def test_two_subscribers_share_the_partitions(shared_broker: BrokerProcess, channel: str) -> None:
    lines = "".join(f"key-{number % 20}:{number}\n" for number in range(400))
    shared_broker.run("pub", channel, "--key-delimiter", ":", stdin=lines)
    readers = [
        start_fairlead("sub", channel, "--idle", "1", "--prefetch", "20", "--concurrency", "2",
                       "--format", "{partition} {body}", name_server=shared_broker.name_server)
        for _ in range(2)
    ]  # fmt: skip
    outputs = [reader.communicate(timeout=60)[0].decode().splitlines() for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0]
    assert sorted(outputs[0] + outputs[1]) == sorted(lines.replace(":", " ").splitlines())


def test_parked_messages_are_shown_and_redriven(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.run("create", "orders", "--policy", "attempts_max=1")
    broker.run("pub", "orders", "-K", "ann", "poison", "cure")
    park_first(broker, "orders")
    rows = broker.read_json("parked", "orders")
    assert [(row["scope"], row["partition"], row["body"]) for row in rows] == [
        ("message", "ann", "poison")
    ]
    assert "poison" in broker.run("parked", "orders").stdout
    sent = broker.run("redrive", "orders", "--publisher", "fairlead-pub", "--partition", "ann")
    assert (sent.returncode, sent.stdout) == (
        0, "sent on from channel orders: partitions 1, messages 1\n",
    )  # fmt: skip
    assert broker.read_json("parked", "orders") == []
    assert broker.run("sub", "orders", "--count", "2").stdout == "poison\ncure\n"


def test_parked_messages_can_be_given_up(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.run("create", "orders", "--policy", "attempts_max=1")
    broker.run("pub", "orders", "poison")
    park_first(broker, "orders")
    assert "dropped" in broker.run("redrive", "orders", "--drop").stdout
    assert broker.read_json("parked", "orders") == []
    assert waiting(broker, "orders") == 0


def park_first(broker: BrokerProcess, channel: str) -> None:
    """Take the first message as a plain Pyro5 script would, and refuse it for good."""
    script = f"""
import Pyro5.api
host, port = "{broker.name_server}".split(":")
channel = Pyro5.api.locate_ns(host, int(port)).lookup("channel.{channel}")
with Pyro5.api.Proxy(channel) as proxy:
    session = proxy.subscribe("w", None, 1)["session"]
    message = proxy.fetch("w", session, 1, 5.0)["messages"][0]
    proxy.nack("w", session, message["epoch"], message["position"], "it is poison", 0.0, True)
    proxy.leave("w", session)
"""
    python = command_line()[0]
    subprocess.run([python, "-c", script], check=True, timeout=30, env=environment())


def waiting(broker: BrokerProcess, channel: str) -> int:
    """How many messages of the channel are not acknowledged."""
    return int(broker.read_json("info", channel)["subscriptions"]["default"]["backup"])


def consumers(broker: BrokerProcess, channel: str) -> int:
    """How many subscribers the channel has."""
    return int(broker.read_json("info", channel)["subscriptions"]["default"]["consumers"])
