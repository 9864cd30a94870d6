"""The benchmark of the audit, tried with a stand-in: what it measures, compares and draws."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks.audit import growth, plot
from benchmarks.process_tree import measure
from tests.processes import ROOT, environment, poll

#: Answers what a real audit would; a grandchild holds 64 MB for a while.
STAND_IN = """
import json, sqlite3, subprocess, sys
hold = "import time; held = bytearray(b'x') * (64 << 20); time.sleep(0.8)"
subprocess.run([sys.executable, "-c", hold], check=True)
c = sqlite3.connect(sys.argv[1])
records, = c.execute("SELECT count(*) FROM records").fetchone()
messages, = c.execute("SELECT sum(count) FROM records WHERE kind = 'Published'").fetchone()
print(json.dumps({"verdict": VERDICT, "records": records, "messages": messages,
                  "partitions": 1000}))
"""


def benchmark(
    directory: Path, verdict: str = "valid", stand_in: str = STAND_IN
) -> subprocess.CompletedProcess[str]:
    """Run it over two small sizes with a stand-in for the audit."""
    script = directory / "stand_in.py"
    script.write_text(stand_in.replace("VERDICT", repr(verdict)))
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.audit", "--sizes", "1e5,2e5", "--stores",
         str(directory / "stores"), "--json", str(directory / "result.json"), "--plot",
         str(directory / "plot.svg"), "--command", f"{sys.executable} {script}"],
        capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip


def test_it_reports_time_and_memory_of_each_size_and_draws_them(tmp_path: Path) -> None:
    done = benchmark(tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert json.loads(done.stdout) == result
    assert [row["messages"] for row in result["rows"]] == [100_000, 200_000]
    for row in result["rows"]:
        assert row["seconds"] > 0.8 and row["verdict"] == "valid"
        assert 64 << 20 < row["peak_memory_bytes"] <= row["peak_resident_bytes"]
        assert row["processes_max"] == 2
        assert row["messages_per_second"] == pytest.approx(row["messages"] / row["seconds"], 0.01)
    (step,) = result["growth"]
    assert step["size_ratio"] == 2.0
    drawn = ElementTree.parse(tmp_path / "plot.svg").getroot()
    assert drawn.tag.endswith("svg") and "prefers-color-scheme: dark" in (
        ElementTree.tostring(drawn, encoding="unicode")
    )


def test_a_journal_that_is_there_is_used_again(tmp_path: Path) -> None:
    assert benchmark(tmp_path).returncode == 0
    stores = sorted((tmp_path / "stores").glob("*.db"))
    made = [path.stat().st_mtime_ns for path in stores]
    assert len(made) == 2
    assert benchmark(tmp_path).returncode == 0
    assert [path.stat().st_mtime_ns for path in stores] == made


def test_an_audit_that_is_not_valid_or_saw_less_fails_the_benchmark(tmp_path: Path) -> None:
    wrong = benchmark(tmp_path, verdict="unknown")
    assert wrong.returncode == 1 and "verdict is 'unknown', not 'valid'" in wrong.stderr
    less = benchmark(tmp_path, stand_in=STAND_IN.replace("count(*)", "count(*) - 1"))
    assert less.returncode == 1 and "records is" in less.stderr
    silent = benchmark(tmp_path, stand_in="import sys; sys.exit('no spark here')")
    assert silent.returncode == 1 and "no spark here" in silent.stderr
    assert not (tmp_path / "result.json").exists()


def rows(*points: tuple[int, float, int]) -> list[dict[str, Any]]:
    return [
        {"messages": messages, "seconds": seconds, "peak_memory_bytes": memory}
        for messages, seconds, memory in points
    ]


def test_growth_says_how_time_and_memory_follow_the_size() -> None:
    linear, quadratic = growth(
        rows((10**6, 10.0, 10**9), (10**7, 100.0, 2 * 10**9), (10**8, 10_000.0, 2 * 10**9))
    )
    assert (linear["time_per_size"], linear["time_exponent"], linear["memory_ratio"]) == (1, 1, 2)
    assert (quadratic["time_per_size"], quadratic["time_exponent"]) == (10.0, 2.0)


def test_a_larger_value_is_drawn_higher_and_further_right() -> None:
    picture = plot(
        {"cores": 2, "python": "3.11", "rows": rows((10**6, 9.0, 10**9), (10**8, 700.0, 2 * 10**9))}
    )
    dots = [
        (float(dot.get("cx", 0)), float(dot.get("cy", 0)))
        for dot in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}circle")
    ]
    assert len(dots) == 4
    for left, right in (dots[:2], dots[2:]):
        assert left[0] < right[0] and left[1] > right[1]


def test_shared_memory_counts_once_in_the_whole_tree() -> None:
    """Three forked children share their parent's pages: resident sums count them four times."""
    script = """
import os, time
held = bytearray(os.urandom(1 << 20)) * 64
for _ in range(3):
    if not os.fork():
        sum(held[::4096]); time.sleep(0.8); os._exit(0)
for _ in range(3): os.wait()
"""
    cost = measure([sys.executable, "-c", script], 30.0)
    assert cost.code == 0 and cost.processes == 4
    assert 64 << 20 < cost.memory_bytes < 130 << 20
    assert cost.resident_bytes > 200 << 20


HOLD = "import time; held = bytearray(b'x') * (64 << 20); time.sleep(0.8)"
START = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', HOLD])"


@pytest.mark.parametrize(
    "script",
    [
        "subprocess.Popen([sys.executable, '-c', HOLD], start_new_session=True).wait()",
        "subprocess.run([sys.executable, '-c', START]); time.sleep(1)",
    ],
    ids=["in a session of its own", "without its parent"],
)
def test_a_process_of_the_command_is_found(script: str) -> None:
    names = f"import subprocess, sys, time; HOLD = {HOLD!r}; START = 'HOLD = ' + repr(HOLD) + '; '"
    cost = measure([sys.executable, "-c", f"{names} + {START!r}; {script}"], 30.0)
    assert cost.code == 0, cost.error
    assert cost.memory_bytes > 64 << 20


def test_processor_time_of_all_children_is_counted() -> None:
    burn = "import time\\nwhile time.process_time() < 0.5: pass"
    script = f"""
import subprocess, sys
for child in [subprocess.Popen([sys.executable, "-c", "{burn}"]) for _ in range(2)]: child.wait()
"""
    cost = measure([sys.executable, "-c", script], 30.0)
    assert 1.0 <= cost.cpu_seconds < 2.0


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    hang = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hang!r}])"
    with pytest.raises(TimeoutError, match="not done within 1 s"):
        measure([sys.executable, "-c", script], 1.0)
    child = Path("/proc") / note.read_text() / "stat"
    assert poll(lambda: not child.exists(), 5.0, "the child of the late command is gone")
