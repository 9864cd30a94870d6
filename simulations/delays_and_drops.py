"""A bad network between the broker and all of its clients, one fault after the other, under load.

Through proxies: delay with jitter, a line that is slow, answers that get lost while the requests
pass, connections that are reset in the middle, single packets that vanish. A lost answer is no
answer: the publisher sends the same sequence again, and the broker drops it as a duplicate. Nothing
is lost, nothing is accepted twice, and every partition stays in order.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

from broker.core import records as r
from simulations.stage.gateway import Gateway
from simulations.stage.processes import Broker, PublisherProcess, Worker, all_runs
from simulations.stage.proof import read_histories
from simulations.stage.proxy import BLACK_HOLE, FAIR, Weather
from simulations.stage.script import CHANNEL, Script, main
from simulations.stage.seen import count_disorder

POLICY: dict[str, Any] = {"lease_ms": 5_000, "send_timeout_ms": 1_000, "send_backoff_ms": 50}
COUNT, RATE, PARTITIONS = 700, 140.0, 8
TIMEOUT_S = 0.8
DELAY = Weather(delay_s=(0.0, 0.15))
RESETS = Weather(reset_chance=0.1)
DROPS = Weather(drop_chance=0.1)
SLOW_LINE = Weather(bytes_per_s=20_000)


def story(script: Script) -> None:
    """What happens."""
    broker = Broker(script)
    broker.create(**POLICY)
    gateway = Gateway(broker.name_server, CHANNEL, script.seed)
    script.add(gateway)
    workers = [
        Worker(script, f"worker-{number}", gateway.name_server, timeout_s=TIMEOUT_S)
        for number in (1, 2)
    ]
    broker.joined(*workers)
    source = PublisherProcess(
        script, "p", gateway.name_server, COUNT, partitions=PARTITIONS, rate=RATE, window=20,
        timeout_s=TIMEOUT_S,
    )  # fmt: skip

    def handled() -> int:
        return sum(worker.handled() for worker in workers)

    def unknown() -> int:
        lines = read_histories(script.histories)
        return sum(line["event"] == "unknown" for line in lines if line["client"] == "publisher")

    def unanswered() -> int:
        return int(broker.statistics()["published_total"]) - len(source.confirmed())

    def after(function: Callable[[], int], count: int) -> Callable[[], bool]:
        goal = function() + count
        return lambda: function() >= goal

    script.wait(after(handled, 20), "messages flow", handled)
    files = _open_files(broker)

    gateway.set(DELAY, DELAY)
    script.step("delay", "0 to 150 ms for every packet, both ways")
    script.wait(after(handled, 60), "60 more are handled", handled)

    gateway.set(SLOW_LINE, SLOW_LINE)
    script.step("slow", "20,000 bytes a second")
    script.wait(after(handled, 20), "20 more are handled", handled)

    gateway.set(FAIR, BLACK_HOLE)
    script.step("answers", "requests pass, answers get lost")
    # The publisher's window may be full of such messages already: then none is accepted any more.
    given_up = after(unknown, 1)
    script.wait(
        lambda: given_up() and unanswered() > 0, "a message is accepted whose answer is lost",
        unanswered,
    )  # fmt: skip
    gateway.heal()

    gateway.set(RESETS, RESETS)
    script.step("resets", "one packet of ten is the end of its connection")
    script.wait(after(lambda: gateway.resets, 10), "10 connections are reset", handled)

    gateway.set(DROPS, DROPS)
    before = gateway.dropped_bytes
    script.step("drops", "one packet of ten vanishes")
    script.wait(lambda: gateway.dropped_bytes > before + 500, "packets have vanished", handled)
    gateway.cut()
    gateway.heal()
    script.step("healed", f"{gateway.resets} connections reset, {gateway.dropped_bytes} bytes lost")
    source.finish()
    broker.until(backup=0)
    script.wait(
        lambda: _open_files(broker) <= files, "the broker has let go of broken connections",
        lambda: f"{_open_files(broker)} open files, {files} before",
    )  # fmt: skip

    statistics = broker.statistics()
    runs = all_runs(*workers)
    confirmed = source.confirmed()
    done = {(*run.key, run.sequence) for run in runs}
    tries = [(run.key, run.sequence, run.attempt) for run in runs]
    script.expect("confirmed", COUNT, len(confirmed))
    script.expect("accepted", COUNT, statistics["published_total"])
    script.expect("confirmed and not handled", 0, len(set(confirmed) - done))
    script.expect("handled and never confirmed", 0, len(done - set(confirmed)))
    found = statistics["dedup_dropped_total"]
    script.expect_true("sent again and dropped as duplicates", "1 or more", found, found >= 1)
    script.expect("attempts handled twice", 0, len(tries) - len(set(tries)))
    script.expect("out of order or overlapping", 0, count_disorder(runs))
    script.expect("subscribers at the end", 2, len(broker.group()["subscribers"]))
    published = [item for item in broker.journal() if isinstance(item, r.Published)]
    script.expect("epochs that published", [1], sorted({item.epoch for item in published}))


def _open_files(broker: Broker) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


if __name__ == "__main__":
    sys.exit(main(story, "Delays and drops through a TCP proxy", __doc__ or ""))
