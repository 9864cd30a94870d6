"""One Spark session, with the settings that the pipeline relies on and the source registered."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from typing import Iterator

from pyspark import StorageLevel
from pyspark.sql import SparkSession

from broker.errors import BrokerError

#: The heap of a local Spark; what does not fit goes to temporary files.
DRIVER_MEMORY = "6g"


#: Of what is kept: on disk when memory is short. A journal is read from its store only once.
STORAGE = StorageLevel.MEMORY_AND_DISK

#: Below this many records plans are interpreted.
SMALL_RECORDS = 100_000
#: About how many records a task sorts the runs of.
RECORDS_PER_TASK = 25_000


class SparkMissing(BrokerError):
    """Spark cannot run here: Java is missing."""

    code = "spark-missing"


def build(master: str | None = None, memory: str = DRIVER_MEMORY) -> SparkSession:
    """The running session if there is one (spark-submit has made it), else a local one.

    ``master`` is Spark's: ``local[*]`` unless it is given here or by spark-submit.
    """
    active = SparkSession.getActiveSession()
    if active is None and "SPARK_HOME" not in os.environ:
        require_java()
    # Workers must be the same Python, wherever the shell would find another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("fairlead")
    if active is None:
        # Under spark-submit the gateway exists and its own settings win.
        if master is not None or "PYSPARK_GATEWAY_PORT" not in os.environ:
            builder = builder.master(master or "local[*]")
        builder = builder.config("spark.driver.memory", memory)
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    from spark.source import FairleadSource

    session.dataSource.register(FairleadSource)
    return session


@contextmanager
def quiet(master: str | None = None, memory: str = DRIVER_MEMORY) -> Iterator[SparkSession]:
    """A session that is stopped in the end, whose Java keeps its notices to itself.

    Java inherits the standard error of the moment when it is started; what it says there goes to a
    file, which is shown if Spark does not start.
    """
    with tempfile.TemporaryFile("w+b") as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            session = build(master, memory)
        except SparkMissing:
            raise
        except Exception as error:
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip()
            raise SparkMissing(f"Spark does not start: {error}. It said: {said[-2000:]}") from error
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        try:
            yield session
        finally:
            session.stop()


def fit(session: SparkSession, records: int) -> None:
    """Fit the plans to the size of the journal.

    Compiling a plan takes longer than interpreting it over a small journal, and each of many empty
    tasks costs as much as a full one.
    """
    small = records < SMALL_RECORDS
    session.conf.set("spark.sql.codegen.wholeStage", str(not small).lower())
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN" if small else "FALLBACK")
    tasks = max(2, min(256, records // RECORDS_PER_TASK))
    session.conf.set("spark.sql.shuffle.partitions", str(tasks))


def require_java() -> None:
    """Raise SparkMissing with one sentence that says what to install."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") or (home and os.path.exists(os.path.join(home, "bin", "java"))):
        return
    raise SparkMissing(
        "Spark needs Java 17 or newer, and no java was found: install a JRE (Debian, Ubuntu: "
        "sudo apt install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"
    )


SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # Plans are fitted to the journal's size by ``fit``. Adaptive execution would plan the whole of
    # a large union anew after each of its stages, and make a job of each.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    # A window keeps the rows of one partition key; beyond this they go to disk.
    "spark.sql.windowExec.buffer.in.memory.threshold": "65536",
    "spark.sql.windowExec.buffer.spill.threshold": "1000000",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
}
