"""The leash of a child process: when the demonstration is gone, its children end by themselves.

A child's standard input is a pipe that only the demonstration holds. Lines that come through it are
commands; its end, however it came about, is an order to stop: first asked for, then carried out.
``python -m simulations.demo.leash MODULE ARGUMENT...`` runs a module that knows nothing of this
(``fairlead``) on such a leash.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from typing import Callable

ASK_COUNT = 4
ASK_INTERVAL_S = 4.0


def hold(on_line: Callable[[str], None]) -> None:
    """Pass the lines of standard input to ``on_line``; at its end, end this process."""
    threading.Thread(target=_follow, args=(on_line,), name="leash", daemon=True).start()


def _follow(on_line: Callable[[str], None]) -> None:
    # Not sys.stdin: its lock, held by a thread that waits, would spoil the end of the interpreter.
    rest = b""
    while data := os.read(0, 4096):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            on_line(line.decode())
    on_line("normal")
    main = threading.main_thread().ident
    assert main is not None
    for _ in range(ASK_COUNT):
        # To the main thread itself: a signal that another thread takes does not wake it up.
        signal.pthread_kill(main, signal.SIGTERM)
        time.sleep(ASK_INTERVAL_S)
    os._exit(1)


if __name__ == "__main__":
    hold(lambda _line: None)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
