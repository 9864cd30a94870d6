"""What a command costs with all the processes that it starts: time, processor, memory.

Reads ``/proc`` of Linux. Memory is the proportional set size (PSS) summed over the tree: a page
that several of them share counts once in all. What may not live here: what the command does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
INTERVAL_S = 0.2
#: The share of the time that sampling itself may take: a large process is slow to look at.
SAMPLING_SHARE = 0.1
LEFTOVERS_S = 10.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# The fields of /proc/<pid>/stat after the name in brackets, counted from 0.
_STATE, _PARENT, _SESSION, _USER, _SYSTEM = 0, 1, 3, 11, 12


@dataclass
class Cost:
    """What one run cost. ``memory_bytes`` and ``resident_bytes`` are the highest sums seen.

    ``cpu_seconds`` is what was last seen of each process, so it lacks less than one interval of
    each; ``samples`` tells how often the tree was looked at, ``processes`` how many it had at most.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    resident_bytes: int = 0
    processes: int = 0
    samples: int = 0
    code: int = 0
    out: str = ""
    error: str = ""
    _cpu: dict[int, float] = field(default_factory=dict, repr=False)


def measure(command: list[str], timeout_s: float, env: dict[str, str] | None = None) -> Cost:
    """Run a command to its end and watch its tree; raises TimeoutError, and ends it, if it is late.

    It gets a session of its own: so what has lost its parent still is found.
    """
    cost = Cost()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=error, env=env,
            start_new_session=True,
        )  # fmt: skip
        try:
            usage = _watch(process, cost, began, timeout_s)
        finally:
            _end(process.pid)
        cost.code = process.returncode
        cost.cpu_seconds = max(sum(cost._cpu.values()), usage)
        for name, file in (("out", out), ("error", error)):
            file.seek(0)
            setattr(cost, name, file.read().decode(errors="replace"))
    return cost


def _watch(process: subprocess.Popen[bytes], cost: Cost, began: float, timeout_s: float) -> float:
    """Sample until the process has ended; the processor time that the system counted for it."""
    while True:
        looked = time.perf_counter()
        _sample(process.pid, cost)
        pause_s = max(INTERVAL_S, (time.perf_counter() - looked) / SAMPLING_SHARE)
        wake = time.perf_counter() + pause_s
        while time.perf_counter() < wake:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                cost.seconds = time.perf_counter() - began
                process.returncode = os.waitstatus_to_exitcode(status)
                return usage.ru_utime + usage.ru_stime
            if time.perf_counter() - began > timeout_s:
                raise TimeoutError(f"not done within {timeout_s:g} s: {' '.join(process.args)}")  # type: ignore[arg-type]
            time.sleep(0.01)


def _sample(root: int, cost: Cost) -> None:
    tree = _tree(root)
    memory = resident = 0
    for pid, cpu in tree.items():
        cost._cpu[pid] = max(cpu, cost._cpu.get(pid, 0.0))
        own, pss = _memory(pid)
        resident += own
        memory += pss
    cost.memory_bytes = max(cost.memory_bytes, memory)
    cost.resident_bytes = max(cost.resident_bytes, resident)
    cost.processes = max(cost.processes, len(tree))
    cost.samples += 1


def _tree(root: int) -> dict[int, float]:
    """The processes of the session of ``root`` and all descendants, with their cpu seconds."""
    found: dict[int, tuple[int, int, float]] = {}
    for name in os.listdir(PROC):
        if name.isdigit():
            fields = _stat(int(name))
            if fields and fields[_STATE] not in "ZX":
                cpu = (int(fields[_USER]) + int(fields[_SYSTEM])) / TICKS_PER_S
                found[int(name)] = int(fields[_PARENT]), int(fields[_SESSION]), cpu
    tree = {pid for pid, (_, session, _) in found.items() if session == root or pid == root}
    while more := {pid for pid, (up, _, _) in found.items() if up in tree} - tree:
        tree |= more
    return {pid: found[pid][2] for pid in tree}


def _stat(pid: int) -> list[str]:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return []  # it has ended meanwhile
    # The name stands in brackets and may hold anything, brackets and spaces too.
    return text.rpartition(")")[2].split()


def _memory(pid: int) -> tuple[int, int]:
    """Resident and proportional bytes; the first for both where the second cannot be read."""
    resident = _kilobytes(pid, "status", "VmRSS:")
    return resident, _kilobytes(pid, "smaps_rollup", "Pss:") or resident


def _kilobytes(pid: int, file: str, field_: str) -> int:
    try:
        for line in (PROC / str(pid) / file).read_text().splitlines():
            if line.startswith(field_):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # it has ended meanwhile, or is another user's
    return 0


def _end(root: int) -> None:
    """Wait for what outlives the command for a moment; what stays is ended, each by its pid."""
    deadline = time.perf_counter() + LEFTOVERS_S
    timed_out = (PROC / str(root)).exists()
    while (left := _tree(root)) and not timed_out and time.perf_counter() < deadline:
        time.sleep(0.05)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it was quicker
    if timed_out:
        os.waitpid(root, 0)
