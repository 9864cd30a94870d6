"""The disk fails one fsync (EIO) under load, and only one: the next would succeed again.

A sync that succeeds after one that failed proves nothing, so the broker stops at once: nobody who
waits for that commit gets an ok, and nothing is accepted afterwards. Started again it reads what is
really there: every answered message, each open call either whole or not at all.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from simulations.stage.processes import Broker, Worker
from simulations.stage.script import Script, main
from simulations.stage.seen import count_disorder, count_repeated
from simulations.stage.writers import Writers

WRITERS = 4
# Counted for each thread by itself: opening a store takes eleven, a commit of the journal one.
FAILING_CALL = 60
SYNCS = "fsync,fdatasync"


def story(script: Script) -> None:
    """What happens."""
    trace = script.folder / "strace.txt"
    prefix = _strace(script, trace)
    broker = Broker(script, prefix=prefix)
    broker.create()
    script.step("start", f"a broker under strace; one sync, the {FAILING_CALL}th, will fail")
    worker = Worker(script, "worker", broker.name_server)
    broker.joined(worker)
    broker.may_end()
    writers = Writers(script, broker, WRITERS, size=100)
    writers.start()
    code = broker.wait_end()
    writers.wait_failed()
    told = [books.error.code for books in writers.books if books.error is not None]
    script.step("fsync", f"EIO; after {writers.confirmed} confirmed messages the broker has ended")
    log = broker.child.log.read_text(errors="replace") if broker.child else ""
    syncs = [line for line in trace.read_text().splitlines() if "sync" in line]

    broker.prefix = ()
    broker.start()
    after = writers.next_sequences()
    script.step("restart", "the broker is started again, without strace, on the same store")
    writers.expect_recovered(after)
    writers.repeat(after)
    broker.settled(writers.confirmed)
    runs = worker.runs()

    script.expect("syncs that failed", 1, sum("(INJECTED)" in line for line in syncs))
    script.expect("syncs of the journal after it", 0, _syncs_after_failure(syncs))
    script.expect_true("the broker stopped by itself", "exit code not 0", code, code != 0)
    script.expect("its log names the failure", True, "disk I/O error" in log)
    script.expect_true(
        "what the writers were told", "nothing that is definite", sorted(set(told)),
        len(told) == WRITERS and not any(b.error and b.error.definite for b in writers.books),
    )  # fmt: skip
    script.expect("handled", writers.confirmed, len({(*run.key, run.sequence) for run in runs}))
    script.expect("handled twice by the worker, which lived on", 0, count_repeated(runs))
    script.expect("out of order or overlapping", 0, count_disorder(runs))


def _strace(script: Script, trace: Path) -> list[str]:
    """The words before the broker's command, if strace can be used here."""
    found = shutil.which("strace")
    if found is None:
        script.cannot_tell("strace is not installed; install it to tell this story")
    # -D: the broker stays our own child, strace watches from aside.
    words = [
        str(found), "-D", "-f", "-qq", "-o", str(trace), "-e", f"trace={SYNCS}",
        "-e", f"inject={SYNCS}:error=EIO:when={FAILING_CALL}",
    ]  # fmt: skip
    tried = subprocess.run([*words, "true"], capture_output=True, check=False, timeout=30.0)
    if tried.returncode:
        reason = tried.stderr.decode(errors="replace").strip().splitlines()
        script.cannot_tell(f"strace may not trace here: {reason[-1] if reason else 'no reason'}")
    return words


def _syncs_after_failure(syncs: list[str]) -> int:
    failed = next((at for at, line in enumerate(syncs) if "(INJECTED)" in line), len(syncs))
    return len(syncs[failed + 1 :])


if __name__ == "__main__":
    sys.exit(main(story, "Failing fsync", __doc__ or ""))
