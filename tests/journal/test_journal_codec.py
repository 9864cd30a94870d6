"""The codec gives back what it was given, and never gives back anything else."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_samples import sample, samples

from broker.core.message import PartitionKey, make_entries
from broker.core.records import (
    RECORD_TYPES,
    Acked,
    Published,
    Seen,
    SubscriptionCreated,
    message_count,
)
from broker.errors import JournalCorrupt, JournalError
from broker.journal import codec

INTS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=12)
KEYS = st.builds(PartitionKey, TEXTS, TEXTS)
JSON = st.recursive(
    st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | TEXTS | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: INTS,
    str: TEXTS,
    bool: st.booleans(),
    PartitionKey: KEYS,
    dict[str, Any]: st.dictionaries(TEXTS, JSON, max_size=4),
    list[int]: st.lists(INTS, max_size=5),
    list[str]: st.lists(TEXTS, max_size=5),
    list[PartitionKey]: st.lists(KEYS, max_size=5),
    list[list[int]]: st.lists(st.lists(INTS, min_size=3, max_size=3), max_size=3),
}
#: These are summed into the column ``count``.
SMALL_COUNTS = st.lists(st.integers(0, 2**31), max_size=5)


@st.composite
def published(draw: st.DrawFn) -> Published:
    counts = draw(st.lists(st.integers(0, 4), max_size=5))
    firsts = [draw(st.integers(1, 2**62)) for _ in counts]
    total = sum(counts)
    dropped = sorted(draw(st.sets(st.integers(0, total - 1)))) if total else []
    used = [first + i for first, count in zip(firsts, counts) for i in range(count)]
    kept = [sequence for index, sequence in enumerate(used) if index not in dropped]

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=len(kept), max_size=len(kept)))

    extras = st.none() | st.dictionaries(st.sampled_from(["id", "headers"]), JSON, min_size=1)
    return Published(
        draw(INTS), draw(TEXTS), draw(INTS), [draw(TEXTS) for _ in counts], firsts, counts, dropped,
        draw(INTS), draw(INTS), draw(st.booleans()),
        make_entries(
            kept, column(st.binary(max_size=20)), column(INTS), column(st.integers(-3, 3)),
            column(st.integers(0, 2)), column(extras),
        ),
    )  # fmt: skip


def records_of(kind: str) -> st.SearchStrategy[Any]:
    cls = RECORD_TYPES[kind]
    if cls is Published:
        return published()
    hints = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.name != "lines"]
    return st.builds(
        cls, **{n: SMALL_COUNTS if n == "counts" else BY_TYPE[hints[n]] for n in names}
    )


def strictly_equal(left: Any, right: Any) -> bool:
    """Equal, with equal types all the way down: == takes a tuple subclass or True for 1."""
    if type(left) is not type(right):
        return False
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(strictly_equal, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(strictly_equal(left[k], right[k]) for k in left)
    return bool(left == right)


@pytest.mark.parametrize("kind", [kind for kind, cls in RECORD_TYPES.items() if cls.durable])
def test_every_kind_of_record_comes_back_equal_with_the_same_types(kind: str) -> None:
    @settings(max_examples=60, deadline=None)
    @given(records_of(kind), st.integers(1, 2**40), st.integers(0, 2**32 - 1))
    def round_trip(record: Any, sequence: int, previous: int) -> None:
        row = codec.encode("orders", sequence, record, previous)
        back = codec.decode(row, previous)
        assert back == record
        for field in dataclasses.fields(record):
            if field.name != "lines":
                assert strictly_equal(getattr(back, field.name), getattr(record, field.name))

    round_trip()


def test_columns_that_people_ask_for_are_real_and_the_runs_are_readable_by_name() -> None:
    record = Acked(
        7, "default", "worker-1",
        [PartitionKey("billing", "a"), PartitionKey("billing", "b")], [1, 5], [4, 2], [9, 9], [],
    )  # fmt: skip
    row = dict(zip(codec.COLUMNS, codec.encode("orders", 3, record, 0)))
    assert (row["channel"], row["sequence"], row["kind"], row["at_ms"]) == ("orders", 3, "Acked", 7)
    assert (row["publisher"], row["subscriber"], row["subscription"]) == (
        None, "worker-1", "default",
    )  # fmt: skip
    assert row["count"] == message_count(record) == 6
    assert row["bodies"] is None
    assert msgpack.unpackb(row["runs"]) == {
        "publishers": "billing", "partitions": ["a", "b"],
        "firsts": [1, 5], "counts": [4, 2], "epochs": [9, 9], "delays": [],
    }  # fmt: skip


def test_bodies_are_apart_from_the_runs_and_come_last() -> None:
    record = sample("orders", 2)
    assert isinstance(record, Published)
    row = codec.encode("orders", 2, record, 0)
    body = record.entries[0][4]
    assert codec.COLUMNS[-1] == "bodies"
    assert body in row[codec.BODIES] and body not in row[codec.RUNS]  # type: ignore[operator]


def test_the_looked_up_lines_are_not_encoded() -> None:
    record = sample("orders", 2)
    record.lines = [object()]  # type: ignore[union-attr]
    back = codec.decode(codec.encode("orders", 2, record, 0), 0)
    assert back.lines is None and back == record  # type: ignore[union-attr]


def test_a_lone_surrogate_in_a_header_survives() -> None:
    entries = make_entries([1], [b"x"], [5], extras=[{"headers": {"\ud800": "\udfff"}}])
    record = Published(1, "p", 1, ["a"], [1], [1], [], 1, 0, False, entries)
    assert codec.decode(codec.encode("orders", 1, record, 0), 0) == record


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(Seen(1, "default", "worker-1"), id="not-durable"),
        pytest.param(
            Published(1, "p", 1, ["a"], [1], [2], [], 1, 0, False, make_entries([1], [b"x"], [5])),
            id="fewer-entries-than-counts",
        ),
        pytest.param(
            Published(1, "p", 1, ["a"], [1], [1], [], 1, 0, False, make_entries([2], [b"x"], [5])),
            id="other-sequences-than-firsts",
        ),
        pytest.param(
            Published(1, "p", 1, ["a"], [1], [1], [], 1, 0, False, make_entries([1], [{1}], [5])),  # type: ignore[list-item]
            id="a-body-that-msgpack-does-not-know",
        ),
        pytest.param(SubscriptionCreated(1, "\ud800"), id="a-surrogate-in-a-column"),
    ],
)
def test_what_could_not_be_read_back_is_refused_before_it_is_written(record: Any) -> None:
    with pytest.raises(JournalError, match="'orders': record 9 .* cannot be encoded"):
        codec.encode("orders", 9, record, 0)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_change_of_any_column_is_noticed_and_named(data: st.DataObject) -> None:
    sequence = data.draw(st.integers(1, 12))
    row = list(codec.encode("orders", sequence, sample("orders", sequence), 77))
    index = data.draw(st.integers(0, len(row) - 1))
    old = row[index]
    if isinstance(old, bytes):
        at = data.draw(st.integers(0, len(old) - 1))
        new: Any = old[:at] + bytes([old[at] ^ (1 << data.draw(st.integers(0, 7)))]) + old[at + 1 :]
    elif isinstance(old, int):
        new = old ^ (1 << data.draw(st.integers(0, 31)))
    else:
        new = data.draw(st.none() | TEXTS | INTS | st.binary(max_size=4))
    if new == old:
        return
    row[index] = new
    with pytest.raises(JournalCorrupt) as caught:
        codec.decode(row, 77)
    assert repr(row[codec.CHANNEL]) in str(caught.value)
    assert f"record {row[codec.SEQUENCE]!s} " in str(caught.value)


def test_a_row_after_another_predecessor_is_noticed() -> None:
    row = codec.encode("orders", 2, sample("orders", 2), 77)
    with pytest.raises(JournalCorrupt, match="checksum"):
        codec.decode(row, 78)


@pytest.mark.parametrize(
    ("kind", "runs", "reason"),
    [
        ("Invented", msgpack.packb({}), "unknown kind 'Invented'"),
        ("BrokerStarted", msgpack.packb({"boot": "b", "extra": 1}), "wrong fields"),
        ("BrokerStarted", msgpack.packb({}), "wrong fields"),
        ("BrokerStarted", msgpack.packb([1]), "a map was expected"),
        ("BrokerStarted", b"\xc1", "cannot be decoded"),
        ("BrokerStarted", b"", "cannot be decoded"),
        ("BrokerStarted", msgpack.packb({"boot": "b"}) + b"\0", "cannot be decoded"),
    ],
)
def test_a_row_of_another_make_is_refused_with_the_reason(
    kind: str, runs: bytes, reason: str
) -> None:
    """The checksum is right here: somebody wrote this on purpose, or with another version."""
    head = ("orders", 4, kind, 1, None, None, None, 0)
    row = (*head, codec.checksum(0, head, runs, None), runs, None)
    with pytest.raises(JournalCorrupt, match=reason) as caught:
        codec.decode(row, 0)
    assert caught.value.details["channel"] == "orders"
    assert caught.value.details["sequence"] == 4


def test_the_samples_of_the_other_tests_cover_several_kinds() -> None:
    assert len({record.kind for record in samples("orders", 1, 20)}) >= 5
