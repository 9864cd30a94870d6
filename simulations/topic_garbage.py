"""A subscriber is away, its messages pile up; it returns, or it leaves for good.

One copy of each message is kept until the last one who is owed it has it. Then the rows of the
store are released, the broker uses the memory again for the next backlog (it need not hand it back
to the system), and a topic that nobody uses is removed.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

from simulations.stage.script import Script, main
from simulations.stage.topic_processes import (
    TOPIC,
    TopicBroker,
    open_client,
    resident_bytes,
)

CALLS = 60
BATCH = 4
SIZE = 100_000  # of a message: 24 MB wait each time
MEMORY_S = 1
ROWS_MAX = 25  # of records that are left: what was written since the last release
SLACK_BYTES = CALLS * BATCH * SIZE // 4  # a backlog that were not released would be four times it


def story(script: Script) -> None:
    """What happens."""
    broker = TopicBroker(script, "--topic-memory", MEMORY_S, keeps_topics=False)
    source = open_client(script, "source", broker.name_server)
    reader = open_client(script, "reader", broker.name_server)
    witness = open_client(script, "witness", broker.name_server)
    witness.subscribe("witness")  # this topic stays whole
    held: list[int] = []
    for way in ("returns", "unsubscribes"):
        reader.subscribe(TOPIC)
        before = resident_bytes(broker.pid)
        for _ in range(CALLS):
            source.put_many(TOPIC, [b"x" * SIZE] * BATCH)
        rows, grown = _rows(broker), resident_bytes(broker.pid) - before
        script.step("backlog", f"{CALLS * BATCH} messages wait, {rows} rows, {grown >> 20} MB more")
        script.expect(f"waiting before it {way}", CALLS * BATCH, broker.topic()["backlog"])
        script.expect_true(f"rows before it {way}", f"{CALLS} or more", rows, rows >= CALLS)
        if way == "returns":
            got = 0
            while messages := reader.get_many(TOPIC, 50):
                got += len(messages)
            script.expect("got when it returns", CALLS * BATCH, got)
        else:
            reader.unsubscribe(TOPIC)
        script.wait(lambda: _rows(broker) <= ROWS_MAX, "rows are released", lambda: _rows(broker))
        held.append(resident_bytes(broker.pid))
    script.wait(lambda: TOPIC not in broker.ask("topics"), "the topic is removed")
    script.expect_true(
        "memory of the broker after the second backlog", "no more than after the first",
        f"{held[1] >> 20} MB, {held[0] >> 20} before", held[1] <= held[0] + SLACK_BYTES,
    )  # fmt: skip
    script.expect("topics that are left", ["witness"], broker.ask("topics"))
    script.expect("rows of the topic that is gone", 0, _rows(broker))


def _rows(broker: TopicBroker) -> int:
    with closing(sqlite3.connect(f"file:{broker.store}?mode=ro", uri=True)) as db:
        query = "SELECT count(*) FROM records WHERE channel = ?"
        return int(db.execute(query, (f"topic:{TOPIC}",)).fetchone()[0])


if __name__ == "__main__":
    sys.exit(main(story, "Topics: what nobody is owed is released", __doc__ or ""))
