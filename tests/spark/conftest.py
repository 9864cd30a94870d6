"""Fixtures for the tests of the audit: journals to try it on."""

from __future__ import annotations

from typing import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.session import build
from tests.spark import faulty_runs


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests: it takes seconds to start."""
    session = build("local[2]", memory="2g")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def faulty_store(tmp_path_factory: pytest.TempPathFactory) -> faulty_runs.FaultyStore:
    """Journals of real runs with real faults: 26 channels in one store, made once per session."""
    folder = tmp_path_factory.mktemp("faulty")
    return faulty_runs.make(folder, histories=str(folder / "histories"))
