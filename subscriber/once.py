"""``message.once``: a partition's position beside the user's rows, in the user's own transaction.

Works with any DB-API connection to SQLite or PostgreSQL. The one table, ``fairlead_once``, holds
one row per partition; it is made at the first use. It commits nothing: that is the user's
business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.errors import StaleAssignment

if TYPE_CHECKING:
    from subscriber.message import Message

_TABLE = """
create table if not exists fairlead_once (
    channel text not null, subscription text not null, generation bigint not null,
    publisher text not null, partition_id text not null,
    position bigint not null, epoch bigint not null,
    primary key (channel, subscription, generation, publisher, partition_id)
)
"""

_UPSERT = """
insert into fairlead_once
    (channel, subscription, generation, publisher, partition_id, position, epoch)
values ({0}, {0}, {0}, {0}, {0}, {0}, {0})
on conflict (channel, subscription, generation, publisher, partition_id) do update
set position = excluded.position, epoch = excluded.epoch
where fairlead_once.position < excluded.position and fairlead_once.epoch <= excluded.epoch
"""

_LOOK = """
select epoch from fairlead_once
where channel = {0} and subscription = {0} and generation = {0} and publisher = {0}
    and partition_id = {0}
"""


def record_once(connection: Any, message: Message) -> bool:
    """Whether the message's position is new here; it is recorded if so."""
    mark = "?" if type(connection).__module__.partition(".")[0] == "sqlite3" else "%s"
    where = (
        message.channel, message.subscription, message.generation, message.publisher,
        message.partition,
    )  # fmt: skip
    cursor = connection.cursor()
    try:
        try:
            new = _upsert(cursor, mark, where, message)
        except Exception as error:
            if "fairlead_once" not in str(error):
                raise
            # The table is missing. PostgreSQL has aborted the transaction by this, so the caller
            # starts it anew; make_table lets a program do it ahead of time.
            if mark != "?":
                raise
            cursor.execute(_TABLE)
            new = _upsert(cursor, mark, where, message)
        if new:
            return True
        cursor.execute(_LOOK.format(mark), where)
        row = cursor.fetchone()
        if row is not None and row[0] > message.epoch:
            raise StaleAssignment(
                f"message {message.publisher}/{message.partition} sequence {message.sequence} of "
                f"channel {message.channel} came under epoch {message.epoch}, but epoch {row[0]} "
                "has written here since: the partition belongs to another subscriber; roll back"
            )
        return False
    finally:
        cursor.close()


def make_table(connection: Any) -> None:
    """Create the table ahead of time; needed once per PostgreSQL database."""
    cursor = connection.cursor()
    try:
        cursor.execute(_TABLE)
    finally:
        cursor.close()


def _upsert(cursor: Any, mark: str, where: tuple[Any, ...], message: Message) -> bool:
    cursor.execute(_UPSERT.format(mark), (*where, message.position, message.epoch))
    return int(cursor.rowcount) > 0
