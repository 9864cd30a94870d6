"""The state directory: what is saved outlives kill -9, one process has it, damage is said."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from tests.processes import ROOT, environment
from topics.ledger import Account, Ledger, PutCall
from topics.state import State, StateUnusable, state_directory


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    made = State(tmp_path / "ann", "ann")
    yield made
    made.close()


def again(state: State) -> dict[str, Account]:
    """What a new life reads."""
    state.close()
    new = State(state.directory, "ann")
    try:
        return new.accounts()
    finally:
        new.close()


def test_everything_of_an_account_comes_back(state: State) -> None:
    ledger = Ledger(state, state.accounts())
    ledger.end_subscribe("news", {"ticket": 7, "position": 3, "request": 2})
    first = ledger.begin_put("news", [0, 1], [b"\0\xff", b"two"])
    ledger.end_put("news", {"number": 2, "born": 4})
    second = ledger.begin_put("news", 2, [b"{}"])
    ledger.received("news", 7, 5)
    assert again(state) == {
        "news": Account("news", 4, 2, 2, 7, 5, second, [first]),
    }


def test_a_put_that_is_dropped_or_numbered_anew_leaves_nothing_behind(state: State) -> None:
    ledger = Ledger(state, state.accounts())
    ledger.begin_put("a", 0, [b"x"])
    ledger.drop_put("a")
    account = Account("b", 4, 9, pending=PutCall(1, 0, [b"y"]))
    state.save_pending(Account("b", 1, 9), PutCall(10, 0, [b"y"]))
    account.number = 0
    assert account.pending is not None
    state.save_pending(account, account.pending)
    found = again(state)
    assert found["a"] == Account("a")
    assert found["b"] == account


def test_each_opening_is_a_new_life_of_the_same_instance(tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        state = State(tmp_path / "ann", "ann")
        seen.append((state.instance, state.life))
        state.close()
    assert [life for _, life in seen] == [1, 2, 3]
    assert len({instance for instance, _ in seen}) == 1


def test_a_second_opening_is_refused_until_the_first_is_closed(state: State) -> None:
    with pytest.raises(StateUnusable, match="in use already, by this process"):
        State(state.directory, "ann")
    state.close()
    State(state.directory, "ann").close()


def test_the_directory_of_another_client_is_refused(state: State) -> None:
    state.close()
    with pytest.raises(StateUnusable, match="of client ann, and format 1 of client bob"):
        State(state.directory, "bob")


SAVING = """
import sys
from pathlib import Path
from topics.ledger import Ledger
from topics.state import State
state = State(Path(sys.argv[1]), "ann")
ledger = Ledger(state, state.accounts())
account = ledger.account("news")
while True:
    call = account.pending or ledger.begin_put("news", 0, [b"%d" % (account.number + 1)])
    print(call.number, flush=True)
    ledger.end_put("news", {"number": call.number, "born": 1})
"""


@pytest.mark.parametrize("lines", [1, 2, 40, 333])
def test_what_was_saved_outlives_kill_9(tmp_path: Path, lines: int) -> None:
    last = 0
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVING, tmp_path / "ann"], stdout=subprocess.PIPE, text=True,
            env=environment(), cwd=ROOT,
        )  # fmt: skip
        assert child.stdout is not None
        for _ in range(lines):
            line = child.stdout.readline()
        with pytest.raises(StateUnusable, match=f"in use already, by process {child.pid}"):
            State(tmp_path / "ann", "ann")
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate()
        last = int((rest.splitlines() or [line])[-1])
        state = State(tmp_path / "ann", "ann")
        account = state.accounts()["news"]
        state.close()
        newest = account.pending.number if account.pending is not None else account.number
        assert newest >= last and account.number >= newest - 1
        if account.pending is not None:
            assert account.pending.bodies == [b"%d" % newest]


def test_a_damaged_file_is_a_clear_error(state: State) -> None:
    state.save_pending(Account("news", 1, 5), PutCall(6, 0, [b"x" * 5000]))
    state.close()
    size = os.path.getsize(state.path)
    with open(state.path, "r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * (size - 100))
    with pytest.raises(StateUnusable, match="put it back from a copy, or remove the directory"):
        State(state.directory, "ann")


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "ann").mkdir()
    (tmp_path / "ann" / "state.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StateUnusable, match="not a database"):
        State(tmp_path / "ann", "ann")
    # The lock is free again.
    (tmp_path / "ann" / "state.db").unlink()
    State(tmp_path / "ann", "ann").close()


@pytest.mark.parametrize(
    "change",
    ["UPDATE account SET position = 9", "UPDATE call SET number = 7", "DELETE FROM account"],
)
def test_a_number_that_has_changed_is_noticed(state: State, change: str) -> None:
    state.save_pending(Account("news", 1, 5, 2, 3, 4), PutCall(6, 0, [b"x"]))
    state.close()
    with sqlite3.connect(state.path) as db:
        db.execute(change)
    db.close()
    new = State(state.directory, "ann")
    with pytest.raises(StateUnusable, match="ValueError|KeyError"):
        new.accounts()
    new.close()


def test_after_an_error_of_the_disk_nothing_more_is_written(state: State) -> None:
    state.save(Account("news", position=1))
    state._db.execute("PRAGMA query_only=ON")
    with pytest.raises(StateUnusable, match="readonly"):
        state.save(Account("news", position=2))
    state._db.execute("PRAGMA query_only=OFF")
    with pytest.raises(StateUnusable, match="not used any more after an error"):
        state.save(Account("news", position=3))
    assert again(state)["news"].position == 1


def test_saves_together_are_safe_together(state: State) -> None:
    with state.together():
        state.save(Account("a", position=1))
        state.save(Account("b", position=2))
        with sqlite3.connect(state.path) as db:
            assert db.execute("SELECT count(*) FROM account").fetchone() == (0,)
        db.close()
    assert {name: account.position for name, account in again(state).items()} == {"a": 1, "b": 2}


@pytest.mark.parametrize("client", ["..", ".", "a/b", "é" * 200, "x" * 200, "a b"])
def test_the_directory_of_any_client_id_is_one_below_the_base(tmp_path: Path, client: str) -> None:
    found = state_directory(client, tmp_path)
    assert found.parent == tmp_path and found.name not in (".", "..")
    State(found, client).close()
    assert found.is_dir()


def test_the_base_is_taken_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLEAD_STATE", str(tmp_path))
    assert state_directory("ann") == tmp_path / "ann"
    monkeypatch.delenv("FAIRLEAD_STATE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_directory("ann") == tmp_path / ".local/state/fairlead/topics/ann"
