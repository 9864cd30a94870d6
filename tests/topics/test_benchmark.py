"""The benchmark of topics runs, and tells what it is there for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_it_measures_puts_and_gets_and_gives_ratios() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/topics.py"), "--quick", "--json"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result["ratios"]) == {
        "put with 100 absent subscribers to 1", "put over 20 topics to 1",
        "client: put of 100 to put of 1",
    }  # fmt: skip
    assert all(row["low"] <= row["median"] <= row["high"] for row in result["rates"].values())
    assert {"client: get of 1", "client: get of 100", "put, 100 absent"} <= set(result["rates"])
