"""The columns of a journal in Spark: names, types, and which of them a reader must work for.

One row is one record. The columns of the store's row come first; what is packed in its ``runs``
follows under the names of :mod:`broker.core.records`, as arrays with one item per run, and of
:mod:`broker.core.topics.records`. The journal of a topic is called ``topic:`` and its name. Only
the description lives here: no reading, no session.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
)

_LONG, _TEXT, _FLAG, _BYTES = LongType(), StringType(), BooleanType(), BinaryType()
_ARROW: dict[DataType, pa.DataType] = {
    _LONG: pa.int64(), _TEXT: pa.string(), _FLAG: pa.bool_(), _BYTES: pa.binary(),
}  # fmt: skip


class Column(NamedTuple):
    """One column of the frame."""

    name: str
    type: DataType
    arrow: pa.DataType
    about: str


def _scalar(name: str, kind: DataType, about: str) -> Column:
    return Column(name, kind, _ARROW[kind], about)


def _array(name: str, item: DataType, about: str) -> Column:
    return Column(name, ArrayType(item), pa.list_(_ARROW[item]), about)


COLUMNS: Final = (
    _scalar("channel", _TEXT, "the channel; of a topic: topic: and its name"),
    _scalar("sequence", _LONG, "the record's place in the channel's journal: 1, 2, 3 ..."),
    _scalar("kind", _TEXT, "what happened"),
    _scalar("at_ms", _LONG, "when, by the broker's clock"),
    _scalar("publisher", _TEXT, "of kinds that have one publisher; Put: the client"),
    _scalar("subscriber", _TEXT, "who was given, acknowledged, left ...; the client of a topic"),
    _scalar("subscription", _TEXT, "the group"),
    _scalar("count", _LONG, "how many messages the record speaks of"),
    _scalar("intact", _FLAG, "the checksum continues that of the record before; NULL: not known"),
    _scalar("epoch", _LONG, "the publisher's epoch; of Nacked: the assignment's"),
    _scalar(
        "position", _LONG, "Nacked, Parked: the message's position in its line; Put: of the first "
        "message in the topic; TopicSubscribed, TopicUnsubscribed: the last one that is not owed",
    ),
    _scalar("attempt", _LONG, "Nacked, Parked: which attempt it was"),
    _scalar("not_before_ms", _LONG, "Nacked: when the message is tried again"),
    _scalar("size", _LONG, "Published: bytes of the bodies"),
    _scalar("priority", _LONG, "Published: the highest one"),
    _scalar("prefetch", _LONG, "Subscribed: how many messages the subscriber takes at a time"),
    _scalar("callback", _TEXT, "Subscribed, Resumed: where it is called; empty: it pulls"),
    _scalar("can_recall", _FLAG, "Subscribed: whether it hands back what it has not started"),
    _scalar("session", _TEXT, "tells the lives of a subscriber apart"),
    _scalar("reason", _TEXT, "why it was taken back, parked, nacked, or why somebody left"),
    _scalar("scope", _TEXT, "Parked: message or partition"),
    _scalar("boot", _TEXT, "BrokerStarted: tells the lives of a broker apart"),
    _scalar("policy", _TEXT, "ChannelCreated, TopicCreated: the policy, as JSON"),
    _scalar("given_up", _FLAG, "Redriven: the messages were dropped for good"),
    _scalar("number", _LONG, "Put: the first message's place in what its client put"),
    _scalar("stamp", _LONG, "Put, TopicCreated: the place among all that the topics have accepted"),
    _scalar("crc", _LONG, "Put: the checksum of the call"),
    _scalar("first", _LONG, "Confirmed: the position of the first message"),
    _scalar("ticket", _LONG, "of a topic: tells a client's subscriptions apart"),
    _scalar("request", _LONG, "TopicSubscribed, TopicUnsubscribed: the number of the request"),
    _scalar("instance", _TEXT, "the state directory of a topic's client; empty: it has none"),
    _array("partitions", _TEXT, "of each run"),
    _array("publishers", _TEXT, "of each run; one item when it is the same for all"),
    _array("firsts", _LONG, "first sequence (Published ...) or position (Delivered ...) of a run"),
    _array("counts", _LONG, "messages in each run"),
    _array("sequences", _LONG, "Delivered: the sequence of each run's first message"),
    _array("epochs", _LONG, "of each run's assignment"),
    _array("attempts", _LONG, "Delivered: of each run's first message"),
    _array("uptos", _LONG, "StaleAcked: the positions that came too late"),
    _array("positions", _LONG, "Redriven: what was parked"),
    _array("late", _LONG, "Delivered: indexes of messages older than one handed out before"),
    _array("dropped", _LONG, "Published: indexes of messages whose id was known"),
    _array("kept", _LONG, "Published: messages of each run that are kept; NULL: all of them"),
    _array("offsets", _LONG, "Published, Delivered: the index of each run's first message"),
    _array("delays_ms", _LONG, "Slowed: the delays that were too long"),
    _array("timestamps", _LONG, "Published: microseconds, of the kept messages; one item if equal"),
    _array("priorities", _LONG, "Published: of the kept messages; NULL: all of them 0"),
    _array("oldest", _LONG, "Published: the lowest timestamp of each run; NULL: nothing is kept"),
    _array("newest", _LONG, "Published: the highest timestamp of each run; NULL: nothing is kept"),
    _array("rising", _FLAG, "Published: whether the timestamps of a run never fall"),
    Column(
        "delays", ArrayType(ArrayType(_LONG)), pa.list_(pa.list_(pa.int64())),
        "Acked: [run index, position, milliseconds] of slow messages",
    ),
    _scalar("bodies_crc", _LONG, "Published, Put: CRC-32 over the joined bodies"),
    _array("ids", _TEXT, "Published: the id that the user chose, of the kept messages"),
    _array("formats", _LONG, "Published, Put: of the kept messages; one item if equal"),
    _array("bodies", _BYTES, "Published, Put: of the kept messages"),
    _array("headers", _TEXT, "Published: as JSON, of the kept messages"),
)  # fmt: skip

BY_NAME: Final = {column.name: column for column in COLUMNS}

#: What a frame has unless it is asked for more: all that is cheap, and no message contents.
DEFAULT: Final = tuple(
    column.name
    for column in COLUMNS
    if column.name not in {"bodies_crc", "ids", "formats", "bodies", "headers"}
)


def struct(names: tuple[str, ...]) -> StructType:
    """The Spark schema of these columns, in this order."""
    return StructType([StructField(name, BY_NAME[name].type) for name in names])


def arrow(names: tuple[str, ...]) -> pa.Schema:
    """The same as an Arrow schema."""
    return pa.schema([(name, BY_NAME[name].arrow) for name in names])
