"""A process that does one thing to a store while no file may grow beyond a size.

Usage: full_disk_child.py STORE BYTES STEP; STEP is "base" (write a base with a large state for
channel orders) or "open". Prints the kind and the text of the JournalError that it gets.
"""

from __future__ import annotations

import resource
import sys

from broker.errors import JournalError
from broker.journal.bases import Base
from broker.journal.sqlite import SqliteJournal
from broker.journal.sqlite_reader import read_limits
from broker.journal.sqlite_trim import write_base


def main() -> None:
    path, size, step = sys.argv[1:]
    _, head = read_limits(path, "orders")
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), resource.RLIM_INFINITY))
    try:
        if step == "base":
            write_base(path, "orders", Base(head.sequence, head.checksum, b"x" * 3_000_000))
        else:
            SqliteJournal(path)
    except JournalError as error:
        print(type(error).__name__, error)


if __name__ == "__main__":
    main()
