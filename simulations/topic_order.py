"""Four publishers put into three topics at the same time; three clients read all of them as one.

Whoever reads several topics together sees one order, the same for all: that of the acceptance. In
it the messages of a publisher to a topic are in the order in which it has put them, and a client
that reads only some of the topics sees the same order with the others left out.
"""

from __future__ import annotations

import sys
from typing import Any

from simulations.stage.script import Script, main
from simulations.stage.topic_processes import Getter, Putter, TopicBroker

TOPICS = ["news", "sport", "weather"]
COUNT = 60  # of each publisher, into each topic
PUBLISHERS = ["p1", "p2", "p3", "p4"]


def story(script: Script) -> None:
    """What happens."""
    broker = TopicBroker(script)
    where = broker.name_server
    readers = {
        "all-1": Getter(script, "all-1", where, topics=TOPICS, batch=7),
        "all-2": Getter(script, "all-2", where, topics=TOPICS, batch=50),
        "all-3": Getter(script, "all-3", where, topics=TOPICS, batch=5, two_steps=True),
        "some": Getter(script, "some", where, topics=TOPICS[:2], batch=10),
    }
    for reader in readers.values():
        reader.start()
    for reader in readers.values():
        reader.noted("subscribed")
    script.step("start", "three clients read three topics as one, a fourth reads two of them")

    sources = [Putter(script, name, where, COUNT, topics=TOPICS, batch=3) for name in PUBLISHERS]
    for source in sources:
        source.start()
    for source in sources:
        source.finish()
    broker.drained(*TOPICS)
    script.step("after", "all is put, and nobody is owed anything")

    lines = {name: _line(reader) for name, reader in readers.items()}
    total = COUNT * len(PUBLISHERS) * len(TOPICS)
    first = lines["all-1"]
    script.expect("messages that each of three clients has got", [total] * 3,
                  [len(lines[name]) for name in ("all-1", "all-2", "all-3")])  # fmt: skip
    script.expect("the order of all-2 is that of all-1", True, lines["all-2"] == first)
    script.expect("the order of all-3, in two steps, is that of all-1", True,
                  lines["all-3"] == first)  # fmt: skip
    script.expect(
        "the order of some is the same, with a topic left out", True,
        lines["some"] == [item for item in first if item[1] in TOPICS[:2]],
    )  # fmt: skip
    stamps = [stamp for stamp, _, _ in first]
    script.expect("messages out of the order of acceptance", 0, _falls(stamps))
    script.expect("publishers whose messages to a topic are not in their order", 0,
                  sum(_lane(first, name, topic) != [f"{name}:{n}" for n in range(1, COUNT + 1)]
                      for name in PUBLISHERS for topic in TOPICS))  # fmt: skip
    mixed = sum(a != b for (_, a, _), (_, b, _) in zip(first, first[1:]))
    script.expect_true("changes from one topic to another in that order", "10 or more", mixed,
                       mixed >= 10)  # fmt: skip


def _line(reader: Getter) -> list[tuple[int, str, Any]]:
    return [(note["stamp"], note["topic"], note["body"]) for note in reader.messages()]


def _falls(stamps: list[int]) -> int:
    return sum(after <= before for before, after in zip(stamps, stamps[1:]))


def _lane(line: list[tuple[int, str, Any]], publisher: str, topic: str) -> list[str]:
    return [body for _, name, body in line if name == topic and body.startswith(f"{publisher}:")]


if __name__ == "__main__":
    sys.exit(main(story, "Topics: one order for all", __doc__ or ""))
