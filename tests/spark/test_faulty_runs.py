"""The journals of real faulty runs are what they claim to be, by the core's own oracle."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.invariants import check
from broker.core.records import RECORD_TYPES
from broker.journal.recovery import recover
from broker.journal.sqlite import SqliteJournal
from tests.spark.faulty_runs import ACTS, CHANNELS, ENDINGS, FaultyStore, plans
from tests.spark.oracle import Oracle

ATTEMPTS_UNBOUNDED = 1 << 30


def test_every_durable_kind_of_record_occurs_and_every_fault_is_played(
    faulty_store: FaultyStore,
) -> None:
    assert len(faulty_store.channels) == CHANNELS >= 24
    kinds = {kind for facts in faulty_store.channels for kind in facts["kinds"]}
    assert kinds == {kind for kind, cls in RECORD_TYPES.items() if cls.durable}
    faults = [fault for facts in faulty_store.channels for fault in facts["faults"]]
    played = {fault.partition(" (")[0] for fault in faults}
    assert played >= {*ACTS, "broker restart", *(f"ended {name}" for name in ENDINGS)}


def test_every_channel_recovers_and_owes_what_is_said_of_it(faulty_store: FaultyStore) -> None:
    journal = SqliteJournal(str(faulty_store.store))
    try:
        for facts in faulty_store.channels:
            channel, _ = recover(journal, facts["name"])
            check(channel)
            assert (channel.unsettled() == 0) == facts["drained"], facts
            parked = sum(len(group.parked) for group in channel.subscriptions_list)
            assert parked == facts["parked"], facts
            assert channel.published_total == facts["published"], facts
    finally:
        journal.close()
    assert 1 <= sum(not facts["drained"] for facts in faulty_store.channels) <= 4


def test_the_history_of_every_subscription_is_whole(faulty_store: FaultyStore) -> None:
    compared = 0
    journal = SqliteJournal(str(faulty_store.store))
    try:
        for facts in faulty_store.channels:
            oracle = Oracle(ATTEMPTS_UNBOUNDED)
            for _, record in journal.read(facts["name"]):
                oracle.watch(record)
            compared += oracle.compared
    finally:
        journal.close()
    assert compared > 1_000


def test_each_seed_has_a_mix_of_its_own() -> None:
    def mixes(seed: int) -> list[Any]:
        return [(plan.before, plan.after, plan.poison, plan.ending) for plan in plans(seed)]

    assert mixes(1) == mixes(1) != mixes(2)
    for seed in range(20):
        assert {act for before, after, *_ in mixes(seed) for act in (*before, *after)} == set(ACTS)


@pytest.mark.parametrize("poison", ["park_message", "park_partition", "block"])
def test_each_way_with_poison_is_played(faulty_store: FaultyStore, poison: str) -> None:
    named = {plan.name for plan in plans(1) if plan.poison == poison}
    faults = [fault for facts in faulty_store.channels if facts["name"] in named
              for fault in facts["faults"]]  # fmt: skip
    assert any(fault.startswith("poison") for fault in faults), faults
