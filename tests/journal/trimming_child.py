"""A process that exports and trims one channel over and over, until its stdin is closed.

Usage: trimming_child.py STORE ARCHIVE CHANNEL. Each line of its output is the base after a trim.
"""

from __future__ import annotations

import select
import sys

from broker.journal.archive import export_channel


def main() -> None:
    store, archive, channel = sys.argv[1:]
    while not select.select([sys.stdin], [], [], 0)[0]:
        print(export_channel(store, archive, channel, trim=True).base, flush=True)


if __name__ == "__main__":
    main()
