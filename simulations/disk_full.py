"""The disk of the store runs full under load; later somebody makes room.

A write that does not fit is a failed write: the broker stops and says so, nobody gets an ok for
what is not stored, and half a record is never seen. On the full disk it does not come up again.
Once there is room it does, with every answered message, and its clients go on by themselves.

The disk is a small one of the story's own (tmpfs in a mount namespace) where that may be made;
elsewhere a limit to the size of the broker's files takes its place.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Protocol

from simulations.stage.processes import Broker, Worker
from simulations.stage.script import Script, main
from simulations.stage.seen import count_disorder, count_repeated
from simulations.stage.writers import Writers

WRITERS = 3
BODY_BYTES = 20_000
DISK_BYTES, FREE_BYTES = 24 << 20, 4 << 20
PAGE_BYTES = 4096
NAMESPACE = "SIMULATIONS_NAMESPACE"


class Disk(Protocol):
    """Where the store is, and how room runs out and comes back."""

    folder: Path
    words: str
    reason: str  # what the broker's log must say

    def limit(self, broker: Broker) -> None:
        """Little room from now on."""

    def free(self) -> None:
        """Room again."""

    def leave(self, broker: Broker) -> None:
        """The end: what is to be kept must be in the story's own folder."""


def story(script: Script) -> None:
    """What happens."""
    disk: Disk = SmallDisk(script) if os.environ.get(NAMESPACE) else FileLimit(script)
    script.step("start", f"the store is on {disk.words}")
    broker = Broker(script, store=disk.folder / "fairlead.db")
    script.at_end(lambda: disk.leave(broker))
    broker.create()
    worker = Worker(script, "worker", broker.name_server)
    broker.joined(worker)
    disk.limit(broker)
    broker.may_end()
    writers = Writers(script, broker, WRITERS, BODY_BYTES)
    writers.start()
    code = broker.wait_end()
    writers.wait_failed()
    reason = _reason(broker, disk)
    before = writers.confirmed
    script.step("full", f"after {before} confirmed messages the broker ends: {reason}")
    script.expect_true("confirmed before", "more than 10", before, before > 10)
    script.expect_true("the broker stopped by itself", "exit code not 0", code, code != 0)
    script.expect_true("its last words", disk.reason, reason or "another reason", bool(reason))
    told = [books.error.code for books in writers.books if books.error is not None]
    script.expect_true(
        "what the writers were told", "an error each", sorted(set(told)), len(told) == WRITERS
    )
    if isinstance(disk, SmallDisk):
        _start_on_full_disk(script, broker, disk)

    disk.free()
    broker.start()
    after = writers.next_sequences()
    script.step("room", "there is room again; the broker is started on the same store")
    writers.expect_recovered(after)
    writers.repeat(after)
    broker.settled(writers.confirmed)
    runs = worker.runs()
    script.expect("handled", writers.confirmed, len({(*run.key, run.sequence) for run in runs}))
    script.expect("handled twice by the worker, which lived on", 0, count_repeated(runs))
    script.expect("out of order or overlapping", 0, count_disorder(runs))


def _start_on_full_disk(script: Script, broker: Broker, disk: SmallDisk) -> None:
    """Try to start it while there is no room."""
    # What the broker let go of when it ended, its write-ahead log say, somebody else takes.
    disk.fill()
    broker.launch()
    code = broker.wait_end()
    reason = _reason(broker, disk)
    script.step("full", f"started on the full disk it ends again, with exit code {code}")
    script.expect_true("start on the full disk", "exit code not 0", code, code != 0)
    script.expect_true("its last words then", disk.reason, reason or "others", bool(reason))


def _reason(broker: Broker, disk: Disk) -> str:
    """What the broker said of the disk; empty if it did not."""
    log = broker.child.log.read_text(errors="replace") if broker.child else ""
    return disk.reason if disk.reason in log else ""


class SmallDisk:
    """A tmpfs of its own, most of it taken by a file that has nothing to do with the broker."""

    words = f"a disk of {DISK_BYTES >> 20} MB, of which {FREE_BYTES >> 20} MB will be free"
    reason = "the disk is full"

    def __init__(self, script: Script) -> None:
        self.folder = script.folder / "disk"
        self.folder.mkdir()
        self._other = self.folder / "other.bin"
        _mount(self.folder)

    def limit(self, broker: Broker) -> None:
        """Fill most of it."""
        free = os.statvfs(self.folder)
        taken = free.f_bavail * free.f_frsize - FREE_BYTES
        self._other.write_bytes(bytes(taken))

    def fill(self) -> None:
        """Take all that is left, to the last page."""
        try:
            with self._other.open("ab", buffering=0) as other:
                for _ in range(DISK_BYTES // PAGE_BYTES):
                    other.write(bytes(PAGE_BYTES))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def free(self) -> None:
        """Remove the other file."""
        self._other.unlink()

    def leave(self, broker: Broker) -> None:
        """Copy the store to where others can see it too, and unmount."""
        self._other.unlink(missing_ok=True)
        for path in self.folder.glob("fairlead.db*"):
            shutil.copy(path, broker.script.folder)
        broker.store = broker.script.folder / "fairlead.db"
        subprocess.run(["umount", str(self.folder)], check=True)


class FileLimit:
    """Files of the broker may not grow beyond a size (RLIMIT_FSIZE), as long as it runs."""

    words = f"a disk without limits; the broker's files may have {FREE_BYTES >> 20} MB"
    reason = "disk I/O error"

    def __init__(self, script: Script) -> None:
        self.folder = script.folder

    def limit(self, broker: Broker) -> None:
        """Set the limit of the running broker."""
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (FREE_BYTES, resource.RLIM_INFINITY))

    def free(self) -> None:
        """The limit ended with the broker."""

    def leave(self, broker: Broker) -> None:
        """The store is where it should be."""


def _mount(folder: Path) -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True
    )


def _enter_namespace() -> None:
    """Run this script anew in user and mount namespaces of its own, if that can be done: there it
    may mount, nobody else sees it, and it ends with the script."""
    if os.environ.get(NAMESPACE):
        return
    words = ["unshare", "--user", "--map-root-user", "--mount"]
    with tempfile.TemporaryDirectory() as folder:
        probe = [*words, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
        try:
            tried = subprocess.run(probe, capture_output=True, check=False, timeout=30.0)
        except OSError:
            return
    if not tried.returncode:
        os.environ[NAMESPACE] = "1"
        script = [sys.executable, "-m", "simulations.disk_full", *sys.argv[1:]]
        os.execvp(words[0], [*words, *script])


if __name__ == "__main__":
    _enter_namespace()
    sys.exit(main(story, "Disk full", __doc__ or ""))
