"""A stage for each test: a broker with a store, ports and children of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Iterator

import pytest

from tests.faults.stage import Stage


@pytest.fixture
def new_stage(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Makes stages; the arguments are those of ``fairlead up``."""
    made: list[Stage] = []

    def make(*args: object, name_server: str | None = None) -> Stage:
        directory = tmp_path / f"stage-{len(made)}"
        directory.mkdir()
        made.append(Stage(directory, *args, name_server=name_server))
        return made[-1]

    yield make
    for stage in made:
        stage.close()


@pytest.fixture
def stage(new_stage: Callable[..., Stage]) -> Stage:
    """A broker that allows fault injection."""
    return new_stage("--fault-injection")
