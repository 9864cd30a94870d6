"""A topic as builtin types: what a base of its journal holds.

A base that the broker makes stands before the first message that somebody is still owed, but its
state is that of a later record, ``upto``, and has no messages: nobody has to fold the journal a
second time to trim it. Whoever starts from such a base takes only the messages out of the records
up to ``upto`` (:func:`restore`), and all of what comes after it. A base that an export makes is of
the record where it stands, and has the messages that were owed there.
"""

from __future__ import annotations

from typing import Any

from broker.core.topics.policy import TopicPolicy
from broker.core.topics.records import Put, TopicRecord
from broker.core.topics.topic import Client, Place, Topic

VERSION = 1


def dump(topic: Topic, upto: int, messages: bool) -> dict[str, Any]:
    """The topic after journal record ``upto``, with or without its messages."""
    return {
        "topic": topic.name,
        "version": VERSION,
        # What is still being restored knows already what is to come.
        "upto": max(upto, topic.upto),
        "policy": topic.policy.to_dict(),
        "first": topic.log.first,
        "last": max(topic.log.last, topic.expected_last),
        "entries": topic.log.after(0, len(topic.log), 1 << 62) if messages else [],
        "born": topic.born,
        "touched_ms": topic.touched_ms,
        "stamp": topic.stamp,
        "put_total": topic.put_total,
        "confirmed_total": topic.confirmed_total,
        "clients": [[name, *client.to_list()] for name, client in topic.clients.items()],
        "places": [
            [name, place.ticket, place.joined, place.confirmed, place.request]
            for name, place in topic.places.items()
        ],
    }


def load(name: str, state: dict[str, Any]) -> Topic:
    """The topic as of the state; its messages may still be missing, see :func:`restore`."""
    if state["topic"] != name:
        raise ValueError(f"this is the state of topic {state['topic']!r}")
    topic = Topic(name, TopicPolicy.from_dict(state["policy"]))
    topic.born, topic.touched_ms, topic.stamp = (
        state["born"], state["touched_ms"], state["stamp"]
    )
    topic.put_total, topic.confirmed_total = state["put_total"], state["confirmed_total"]
    topic.log.start(state["first"], [tuple(entry) for entry in state["entries"]])
    topic.upto, topic.expected_last = state["upto"], state["last"]
    for client, *values in state["clients"]:
        topic.clients[client] = Client.from_list(values)
    for client, *values in state["places"]:
        topic.add_place(client, Place(*values))
    return topic


def restore(topic: Topic, record: TopicRecord) -> None:
    """Take the messages, and nothing else, out of a record that the state covers already."""
    if not isinstance(record, Put):
        return
    log = topic.log
    known = log.last + 1 - record.position  # released when the state was taken
    if known >= len(record.bodies):
        return
    assert known >= 0, record
    if known:
        formats = record.formats
        record = Put(
            record.at_ms, record.publisher, record.instance, record.number + known,
            record.position + known, record.stamp + known, record.crc,
            formats if isinstance(formats, int) else formats[known:], record.bodies[known:],
        )  # fmt: skip
    log.add(record)
