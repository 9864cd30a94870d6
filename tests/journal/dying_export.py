"""An export that is killed at a point of its way, as by kill -9.

Usage: dying_export.py STORE ARCHIVE POINT COUNT. It kills itself when POINT is reached for the
COUNT-th time; with files and chunks so small that there are many of each.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from broker.journal import archive, archive_parquet, sqlite_trim

POINTS = {
    "write": (archive_parquet._FileWriter, "add"),
    "before-rename": (archive_parquet, "make_directory"),
    "after-file": (archive_parquet, "_finished"),
    "verify": (archive, "fold"),
    "before-base": (archive, "write_base"),
    "after-base": (archive, "delete_rows"),
    "delete": (sqlite_trim, "_pause"),
}


def die_at(point: str, count: int) -> None:
    """Replace the function of a point by one that counts, and kills after it was called."""
    owner, name = POINTS[point]
    function = getattr(owner, name)
    calls = 0

    def counted(*args: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        before = point in ("before-rename", "before-base", "after-base", "verify")
        if before and calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **keywords)
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def main() -> None:
    store, directory, point, count = sys.argv[1:]
    archive_parquet.FILE_ROWS_MAX = 100
    sqlite_trim.CHUNK_ROWS = 50
    die_at(point, int(count))
    archive.export_channel(store, directory, "orders", trim=True)


if __name__ == "__main__":
    main()
