"""A process to be killed: it appends samples to a store and prints what it was told is durable.

Usage: appending_child.py PATH DURABILITY CHECKPOINT_BYTES. Each line of its output is
"channel sequence". Two threads write a channel each, so that groups form.
"""

from __future__ import annotations

import os
import sys
import threading

from journal_samples import samples

from broker.journal.sqlite import SqliteJournal


def write(journal: SqliteJournal, channel: str, batch: int) -> None:
    sequence = journal.durable(channel)
    while True:
        last = journal.append(
            channel, sequence + 1, samples(channel, sequence + 1, sequence + batch)
        )
        if not journal.wait_durable(channel, last, timeout=30):
            os._exit(3)
        sequence = last
        # One write of a short line to a pipe is not torn.
        os.write(1, f"{channel} {sequence}\n".encode())


def main() -> None:
    path, durability, checkpoint_bytes = sys.argv[1:]
    journal = SqliteJournal(
        path,
        durability,  # type: ignore[arg-type]
        checkpoint_bytes=int(checkpoint_bytes),
    )
    threads = [
        threading.Thread(target=write, args=(journal, channel, batch))
        for channel, batch in (("orders", 1), ("billing", 7))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
