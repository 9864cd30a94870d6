"""Fixtures of the journal's tests: each kind of journal behind one way of opening and reopening."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest
from journal_samples import Home


@pytest.fixture(params=["sqlite-fsync", "sqlite-flush", "memory-fsync", "memory-flush"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    store, durability = request.param.split("-")
    home = Home(store, durability, tmp_path / "journal.db")
    yield home
    if home.journal is not None:
        home.journal.close()
