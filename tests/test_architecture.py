"""The shape of the code: who may import whom, what the core never touches, what is where."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("broker", "publisher", "subscriber", "topics", "fairlead", "simulations", "spark")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))

IMPURE = {
    "time", "datetime", "random", "uuid", "os", "threading", "socket", "logging", "Pyro5",
    "pyspark", "sqlite3", "secrets", "queue", "signal", "subprocess", "asyncio",
}  # fmt: skip

#: folder or file -> what it may import of the project: a module with all that is in it, or with "="
#: in front the module alone
MAY_IMPORT = {
    "broker/errors.py": (),
    "broker/core": ("broker.core", "broker.errors"),
    "broker/wire.py": ("broker.core", "broker.errors"),
    "broker/journal": ("broker.journal", "broker.core", "broker.errors"),
    "broker/history.py": ("broker.errors",),
    "broker/pyro_setup.py": ("broker.errors",),
    "broker/remote": ("broker.remote", "broker.errors", "broker.pyro_setup"),
    "broker/server": ("broker",),
    "publisher/batch.py": ("broker.errors",),
    "publisher/outbox.py": ("publisher.batch", "broker.errors"),
    "publisher/history.py": ("publisher.batch",),
    "publisher": (
        "publisher", "broker.errors", "broker.wire", "broker.core.policy", "broker.pyro_setup",
        "broker.remote", "broker",
    ),
    "subscriber/session.py": ("broker.wire", "subscriber.history"),
    "subscriber/history.py": (),
    "subscriber": (
        "subscriber", "broker.errors", "broker.wire", "broker.core.policy", "broker.pyro_setup",
        "broker.remote", "broker",
    ),
    "topics/ledger.py": ("broker.errors",),
    "topics/message.py": ("=broker", "broker.wire"),
    "topics/history.py": ("topics.ledger", "topics.message"),
    "topics": (
        "topics", "=broker", "broker.errors", "broker.wire", "broker.pyro_setup",
        "broker.remote.lookup", "broker.remote.name_server", "broker.history",
        "broker.core.message",
    ),
    # It judges what channels did, so it knows their words and their journal, never their code.
    "spark": (
        "spark", "=broker", "broker.__version__", "broker.errors", "broker.core.records",
        "broker.core.anomalies", "broker.core.message", "=broker.journal", "broker.journal.codec",
        "broker.journal.sqlite_schema", "broker.journal.archive",
    ),
    "spark/__main__.py": ("fairlead.command",),
    # The real core, host, outbox and session; never the threads and sockets around them.
    "simulations/world": (
        "simulations.world", "simulations.checkers", "=broker", "broker.errors", "broker.core",
        "broker.history", "broker.journal", "broker.wire", "broker.server.channel_host",
        "broker.server.link", "broker.server.clock", "publisher.batch", "publisher.outbox",
        "publisher.history", "subscriber.session", "subscriber.history", "subscriber.message",
        "topics.ledger", "topics.history", "topics.message", "broker.server.topics_host",
    ),
    # The other oracle: the same words, and nothing of what it judges.
    "simulations/checkers": (
        "simulations.checkers", "broker.core.records", "broker.core.anomalies",
        "broker.core.message", "broker.core.policy", "broker.errors",
        "broker.core.topics.records",
    ),
}  # fmt: skip

#: What spark may import of others; msgpack is how the journal packs its rows.
SPARKS = {"pyspark", "pyarrow", "msgpack"}

PURE = (
    "broker/core", "broker/wire.py", "publisher/batch.py", "publisher/outbox.py",
    "publisher/history.py", "subscriber/session.py", "subscriber/history.py", "topics/ledger.py",
    "topics/message.py", "topics/history.py",
)  # fmt: skip


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(path: Path) -> set[str]:
    """Every module named in an import, late and type-only ones included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def rule_of(name: str) -> tuple[str, ...] | None:
    places = [place for place in MAY_IMPORT if name == place or name.startswith(place + "/")]
    return MAY_IMPORT[max(places, key=len)] if places else None


def within(module: str, allowed: tuple[str, ...]) -> bool:
    return any(
        module == item.removeprefix("=") or module.startswith(item + ".") for item in allowed
    )


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_point_down_only(path: Path) -> None:
    allowed = rule_of(relative(path))
    if allowed is None:
        return
    ours = {name for name in imports_of(path) if name.partition(".")[0] in PACKAGES}
    wrong = sorted(name for name in ours if not within(name, allowed))
    if allowed and allowed[-1] == "broker":
        # The clients take names from the broker's root, never its core, journal or server.
        wrong += sorted(
            name
            for name in ours
            if relative(path).startswith(("publisher/", "subscriber/"))
            and within(name, ("broker.core", "broker.journal", "broker.server"))
            and not within(name, ("broker.core.policy",))
        )
    assert not wrong, f"{relative(path)} may not import {wrong}"


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if relative(p).startswith(PURE)], ids=relative
)
def test_the_pure_parts_know_no_clock_thread_or_socket(path: Path) -> None:
    used = {name.partition(".")[0] for name in imports_of(path)}
    assert not used & IMPURE


#: The campaign has processes and a clock of its own, around the worlds.
WORLD = [
    path
    for path in SOURCES
    if relative(path).startswith("simulations/world/") and path.name != "campaign.py"
]


@pytest.mark.parametrize("path", WORLD, ids=relative)
def test_a_simulated_world_is_made_of_its_seed_alone(path: Path) -> None:
    used = imports_of(path)
    assert not {name.partition(".")[0] for name in used} & (IMPURE - {"random"})
    # A Random has a seed; the functions of the module share one that nobody has set.
    assert not {name for name in used if name.startswith("random.")} - {"random.Random"}


def test_the_locks_of_channels_and_of_topics_are_taken_in_one_file_each() -> None:
    takers = [
        relative(path)
        for path in (ROOT / "broker/server").rglob("*.py")
        if "with self._lock" in path.read_text()
    ]
    assert sorted(takers) == ["broker/server/channel_host.py", "broker/server/topics_host.py"]


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_and_public_name_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{relative(path)} has no module docstring"
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{relative(path)}: {node.name} has no docstring"


def test_pyro5_is_imported_in_one_place() -> None:
    """Pyro5 reads PYRO_* variables when it is first imported; pyro_setup hides them from it."""
    importers = [relative(p) for p in SOURCES if any(m.startswith("Pyro5") for m in imports_of(p))]
    assert importers == ["broker/pyro_setup.py"]


def starting_imports_of(path: Path) -> set[str]:
    """Every package that is imported when the module is: not in functions, not for types only."""
    found: set[str] = set()
    nodes: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            nodes += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "spark").rglob("*.py")), ids=relative)
def test_spark_needs_nothing_but_pyspark_pyarrow_and_msgpack(path: Path) -> None:
    used = {name.partition(".")[0] for name in imports_of(path)}
    assert used <= {*sys.stdlib_module_names, *PACKAGES, *SPARKS}


def test_only_the_audit_command_imports_spark_and_only_when_it_is_asked_for() -> None:
    """Spark is an extra, and large: whoever does not audit neither needs it nor waits for it."""
    heavy = {"pyspark", "py4j", "spark"}
    others = [path for path in SOURCES if not relative(path).startswith("spark/")]
    users = [
        relative(path)
        for path in others
        if {name.partition(".")[0] for name in imports_of(path)} & heavy
    ]
    assert users and all(name.startswith("fairlead/audit") for name in users), users
    at_once = [relative(path) for path in others if starting_imports_of(path) & heavy]
    assert not at_once


def test_nothing_is_left_undone_in_silence() -> None:
    for path in SOURCES:
        for word in ("FIXME", "XXX", "TODO"):
            assert word not in path.read_text(), f"{relative(path)} has a {word}"


SPARK_FRAMES = sorted(
    [*(ROOT / "spark").glob("*_frame.py"), ROOT / "spark" / "frames.py"]
    + [*(ROOT / "spark" / "checks").glob("*.py"), *(ROOT / "spark" / "figures").glob("*.py")]
)
#: What would run Python per row, or bring rows to the driver.
PER_ROW = {
    "udf", "pandas_udf", "applyInPandas", "applyInArrow", "mapInPandas", "mapInArrow", "rdd",
    "foreach", "collect", "toPandas", "toLocalIterator", "toArrow", "take", "head",
}  # fmt: skip


@pytest.mark.parametrize("path", SPARK_FRAMES, ids=relative)
def test_frames_and_checks_run_no_python_per_row_and_collect_nothing(path: Path) -> None:
    nodes = ast.walk(ast.parse(path.read_text()))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert not names & PER_ROW
