"""Making, looking at and deleting channels and subscriptions, with text and with JSON."""

from __future__ import annotations

import json
import sqlite3
from typing import Callable

import pytest

from tests.command.test_up import damage
from tests.processes import BrokerProcess, poll, run_fairlead

StartBroker = Callable[..., BrokerProcess]


def test_create_ls_info_delete(start_broker: StartBroker) -> None:
    broker = start_broker()
    empty = broker.run("ls")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "no channels yet" in empty.stderr
    assert broker.run("create", "orders").stdout == "channel orders created\n"
    assert broker.run("create", "orders").stdout == "channel orders exists already\n"
    assert broker.run("pub", "orders", "hello").returncode == 0
    heading, row = broker.run("ls").stdout.splitlines()
    assert heading.split()[:3] == ["NAME", "READY", "UNACKED"]
    assert row.split()[:3] == ["orders", "1", "0"]
    assert broker.run("list_queues", "name", "messages").stdout.split() == [
        "NAME", "MESSAGES", "orders", "1",
    ]  # fmt: skip
    assert "subscription default" in broker.run("info", "orders").stdout
    kept = broker.run("delete", "orders")
    assert (kept.returncode, kept.stdout) == (1, "")
    assert "not acknowledged" in kept.stderr
    assert broker.run("delete", "orders", "--force").returncode == 0
    assert broker.read_json("ls") == []


def test_another_policy_for_a_channel_that_exists_is_refused(
    shared_broker: BrokerProcess, channel: str
) -> None:
    done = shared_broker.run("create", channel, "--policy", "attempts_max=9")
    assert done.returncode == 1
    assert "another policy" in done.stderr


@pytest.mark.parametrize("words", ["info", "subs", "parked", "redrive", "subscription ls"])
def test_an_unknown_channel_is_named(shared_broker: BrokerProcess, words: str) -> None:
    done = shared_broker.run(*words.split(), "nowhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("fairlead: there is no channel 'nowhere'")


def test_an_unknown_subscription_is_named(shared_broker: BrokerProcess, channel: str) -> None:
    done = shared_broker.run("subs", channel, "--subscription", "nowhere")
    assert done.returncode == 1
    assert "nowhere" in done.stderr


@pytest.mark.parametrize(
    "words",
    ["ls", "ls name messages", "list_queues", "ping", "check", "info {}", "subs {}",
     "list_consumers {}", "parked {}", "subscription ls {}", "redrive {}", "create {}",
     "subscription create {} late", "kill-queues {}"],
)  # fmt: skip
def test_json_is_all_there_is_on_stdout(
    shared_broker: BrokerProcess, channel: str, words: str
) -> None:
    shared_broker.run("pub", channel, "-K", "ann", "hello")
    done = shared_broker.run(*words.format(channel).split(), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    json.loads(done.stdout)
    assert done.stdout.count("\n") == 1


def test_subs_shows_partitions_as_kafka_does(shared_broker: BrokerProcess, channel: str) -> None:
    shared_broker.run("pub", channel, "-K", "ann", "1", "2", "3")
    heading, row = shared_broker.run("subs", channel).stdout.splitlines()
    assert heading.split() == [
        "PUBLISHER", "PARTITION", "OWNER", "INFLIGHT", "LAG", "OLDEST", "ATTEMPT", "STATE",
    ]  # fmt: skip
    assert row.split()[:5] == ["fairlead-pub", "ann", "-", "0", "3"]
    assert row.split()[7] == "waiting"
    found = shared_broker.read_json("subs", channel)
    assert [(each["partition"], each["owner"], each["lag"]) for each in found] == [("ann", None, 3)]


def test_ids_with_markup_are_shown_as_they_are(shared_broker: BrokerProcess, channel: str) -> None:
    shared_broker.run("pub", channel, "-K", "[bold]ann[/bold]", "hello")
    assert "[bold]ann[/bold]" in shared_broker.run("subs", channel).stdout


def test_each_subscription_gets_everything(shared_broker: BrokerProcess, channel: str) -> None:
    made = shared_broker.run("subscription", "create", channel, "audit")
    assert made.stdout == f"subscription audit of channel {channel} created\n"
    shared_broker.run("pub", channel, "hello")
    for subscription in ("default", "audit"):
        got = shared_broker.run("sub", channel, "--subscription", subscription, "--count", "1")
        assert got.stdout == "hello\n"
    names = [each["name"] for each in shared_broker.read_json("subscription", "ls", channel)]
    assert names == ["default", "audit"]
    assert shared_broker.run("subscription", "delete", channel, "audit").returncode == 0
    assert len(shared_broker.read_json("subscription", "ls", channel)) == 1


def test_ping_and_check(shared_broker: BrokerProcess, channel: str) -> None:
    assert shared_broker.read_json("ping")["pid"] == shared_broker.pid
    assert shared_broker.run("check", channel).stdout.startswith("ok: broker")
    missing = shared_broker.run("check", "nowhere")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "nowhere" in missing.stderr


# Faults.


def test_killed_queues_are_restored(shared_broker: BrokerProcess, channel: str) -> None:
    shared_broker.run("pub", channel, "one", "two")
    assert shared_broker.run("kill-queues", channel, "--restore-after", "0").returncode == 0
    poll(lambda: shared_broker.run("check").returncode == 0, 20.0, "the queues are restored")
    assert shared_broker.run("sub", channel, "--count", "2").stdout == "one\ntwo\n"


def test_kill_queues_is_refused_without_fault_injection(start_broker: StartBroker) -> None:
    broker = start_broker("--channel", "orders")
    done = broker.run("kill-queues", "orders")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--fault-injection" in done.stderr


# A store without a broker.


def test_verify_tells_what_a_store_holds(start_broker: StartBroker) -> None:
    broker = start_broker("--channel", "orders")
    broker.run("pub", "orders", "one", "two")
    in_use = run_fairlead("journal", "verify", broker.store)
    assert in_use.returncode == 1
    assert "in use" in in_use.stderr
    broker.stop()
    done = run_fairlead("journal", "verify", broker.store, "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["verdict"] == "valid"
    assert [(row["channel"], row["messages"], row["unsettled"]) for row in found["channels"]] == [
        ("orders", 2, 2)
    ]
    assert "valid" in run_fairlead("journal", "verify", broker.store).stdout


def test_verify_names_the_damaged_record(start_broker: StartBroker) -> None:
    broker = start_broker("--channel", "bills")
    broker.run("pub", "orders", "one", "two")
    broker.stop()
    damage(broker.store)
    with sqlite3.connect(broker.store) as connection:
        ((sequence,),) = connection.execute("SELECT sequence FROM records WHERE bodies NOT NULL")
    connection.close()
    done = run_fairlead("journal", "verify", broker.store)
    assert done.returncode == 1
    assert "bills" in done.stdout
    assert f"journal record {sequence} is damaged" in done.stderr
    found = json.loads(run_fairlead("journal", "verify", broker.store, "--json").stdout)
    rows = {row["channel"]: row for row in found["channels"]}
    assert found["verdict"] == "invalid"
    assert rows["bills"]["verdict"] == "valid"
    assert (rows["orders"]["verdict"], rows["orders"]["sequence"]) == ("invalid", sequence)


def test_verify_makes_no_store(tmp_path_factory: pytest.TempPathFactory) -> None:
    store = tmp_path_factory.mktemp("none") / "fairlead.db"
    done = run_fairlead("journal", "verify", store)
    assert done.returncode == 1
    assert "there is no store" in done.stderr
    assert not store.exists()
