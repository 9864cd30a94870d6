"""``message.once``: an effect happens once, although its message may come twice."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from broker.errors import StaleAssignment
from subscriber import Message, make_table
from subscriber.session import Assignment


def message(
    position: int, epoch: int = 1, partition: str = "a", generation: int = 1
) -> Message:
    assignment = Assignment(epoch, "p", partition, position)
    item: Any = (position, 1, 0, position, 0, 0, b"x", None)
    return Message(assignment, item, ("orders", "default", generation))


@pytest.fixture
def database(tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(tmp_path / "user.db")
    connection.execute("create table effects (position integer)")
    connection.commit()
    return connection


def effect(connection: sqlite3.Connection, incoming: Message) -> None:
    if incoming.once(connection):
        connection.execute("insert into effects values (?)", (incoming.position,))
    connection.commit()


def test_a_message_that_comes_again_has_no_second_effect(database: sqlite3.Connection) -> None:
    for position in (1, 2, 2, 1, 3):
        effect(database, message(position))
    assert database.execute("select position from effects").fetchall() == [(1,), (2,), (3,)]


def test_partitions_are_told_apart(database: sqlite3.Connection) -> None:
    assert message(1, partition="a").once(database)
    assert message(1, partition="b").once(database)


def test_a_rolled_back_effect_may_happen_again(database: sqlite3.Connection) -> None:
    make_table(database)
    database.commit()
    assert message(1).once(database)
    database.rollback()
    assert message(1).once(database)


def test_a_zombie_may_not_write_after_its_successor(database: sqlite3.Connection) -> None:
    assert message(1, epoch=5).once(database)
    with pytest.raises(StaleAssignment):
        message(2, epoch=4).once(database)


def test_a_subscription_that_was_made_again_starts_anew(database: sqlite3.Connection) -> None:
    assert message(1, epoch=5, generation=1).once(database)
    assert message(1, epoch=2, generation=2).once(database)


def test_a_redelivery_under_a_newer_epoch_is_recognised(database: sqlite3.Connection) -> None:
    assert message(1, epoch=1).once(database)
    assert not message(1, epoch=2).once(database)
