"""State: what a topic client keeps in its directory, and the lock that keeps others out of it.

``state.db`` is SQLite in WAL mode with ``synchronous=FULL``: what ``save`` and ``save_pending``
return from has reached the disk. ``save_answered`` may skip the sync; what it says outlives the
process, and a client that loses it with the machine only asks again.

The table ``call`` has the puts that a client may have to send again. One with a number above that
of its topic is pending, the others were answered.

After the first error of the disk nothing more is written or read: the memory of this process may
be ahead of the file by then, and only opening the directory anew puts that right. No request is
made here, and no decision; the file is used by one thread at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence, TypeVar
from urllib.parse import quote
from zlib import crc32

import msgpack  # type: ignore[import-untyped]

from broker.errors import BrokerError
from topics.ledger import Account, PutCall

ENVIRONMENT = "FAIRLEAD_STATE"
FORMAT = 1
NAME_CHARS_MAX = 120

_SCHEMA = """
CREATE TABLE IF NOT EXISTS own (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS account (
    topic TEXT PRIMARY KEY, born INTEGER NOT NULL, number INTEGER NOT NULL,
    request INTEGER NOT NULL, ticket INTEGER NOT NULL, position INTEGER NOT NULL,
    crc INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS call (
    topic TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (topic, number)
);
"""

Result = TypeVar("Result")


class StateUnusable(BrokerError):
    """A client's state directory cannot be used: another process has it, or it is damaged."""

    code = "state-unusable"
    definite = False


def state_directory(client: str, base: str | os.PathLike[str] | None = None) -> Path:
    """The directory of a client id: below ``base``, $FAIRLEAD_STATE or the user's own place."""
    if base is None:
        base = os.environ.get(ENVIRONMENT) or "~/.local/state/fairlead/topics"
    name = quote(client, safe="")
    if name.startswith("."):
        name = "%2E" + name[1:]  # or the id ".." would be a directory of somebody else
    if len(name) > NAME_CHARS_MAX:
        name = name[:NAME_CHARS_MAX] + "-" + hashlib.sha256(client.encode()).hexdigest()[:16]
    return Path(base).expanduser() / name


class State:
    """The state directory of one client, opened: nobody else may have it until ``close``."""

    def __init__(self, directory: Path, client: str) -> None:
        self.directory = directory
        self.path = directory / "state.db"
        self.instance = ""
        self.life = 0
        self._failed = ""
        self._stored: dict[str, set[int]] = {}  # the numbers in the table ``call``
        self._together = False
        self._lock = self._locked(client)
        try:
            self._db = self._guarded(self._connect)
            self._guarded(lambda: self._begin_life(client))
        except BaseException:
            os.close(self._lock)
            raise

    def _locked(self, client: str) -> int:
        path = self.directory / "lock"
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateUnusable(
                f"state directory {self.directory} of client {client} cannot be used: "
                f"{error.strerror}; name a directory in which this process may write"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(lock, 20, 0).decode(errors="replace").strip()
            os.close(lock)
            who = "this process" if holder == str(os.getpid()) else f"process {holder or '?'}"
            raise StateUnusable(
                f"client {client} is in use already, by {who}: it has the state directory "
                f"{self.directory}. Close it there, choose another client id, or use one Topics "
                "for all topics and threads"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        return lock

    def _connect(self) -> sqlite3.Connection:
        # The lock is ours, so nobody is waited for.
        db = sqlite3.connect(
            self.path, timeout=0.0, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            ((found,),) = db.execute("PRAGMA quick_check(1)").fetchall()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            db.executescript(_SCHEMA)
        except BaseException:
            db.close()
            raise
        return db

    def _begin_life(self, client: str) -> None:
        own = dict(self._db.execute("SELECT key, value FROM own"))
        if not own:
            own = {"format": str(FORMAT), "client": client, "instance": secrets.token_hex(8)}
        if own.get("format") != str(FORMAT) or own.get("client") != client:
            self._db.close()
            raise StateUnusable(
                f"state directory {self.directory} is refused: it has format {own.get('format')} "
                f"of client {own.get('client')}, and format {FORMAT} of client {client} is asked "
                "for; name another directory"
            )
        self.instance = own["instance"]
        self.life = int(own.get("life", "0")) + 1
        own["life"] = str(self.life)
        with self._transaction():
            self._db.executemany("INSERT OR REPLACE INTO own VALUES (?, ?)", own.items())

    def accounts(self) -> dict[str, Account]:
        """Everything that is written down."""
        return self._guarded(self._read)

    def _read(self) -> dict[str, Account]:
        found = {}
        for *row, crc in self._db.execute("SELECT * FROM account ORDER BY topic"):
            _check(row, crc)
            found[row[0]] = Account(*row)
        for topic, number, body, crc in self._db.execute(
            "SELECT * FROM call ORDER BY topic, number"
        ):
            _check([topic, number, body], crc)
            formats, bodies = msgpack.unpackb(body)
            account, call = found[topic], PutCall(number, formats, bodies)
            if number > account.number:
                account.pending = call
            else:
                account.kept.append(call)
            self._stored.setdefault(topic, set()).add(number)
        return found

    # The Store of a Ledger.

    def save(self, account: Account) -> None:
        """Write down the numbers of an account, and let go the calls that it has not any more."""
        self._guarded(lambda: self._save(account, account.pending, None))

    def save_pending(self, account: Account, call: PutCall) -> None:
        """Write down a call that is about to be sent, with the account's numbers."""
        self._guarded(lambda: self._save(account, call, call))

    def save_answered(self, account: Account) -> None:
        """Note that the pending call was answered; without waiting for the disk."""
        self._guarded(lambda: self._save_lazily(account))

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is saved in here is safe when this ends, at the cost of one.

        Also after an exception: what was saved until then is in the ledger, too.
        """
        self._guarded(lambda: self._db.execute("BEGIN IMMEDIATE"))
        self._together = True
        try:
            yield
        finally:
            self._together = False
            self._guarded(lambda: self._db.execute("COMMIT"))

    def _save_lazily(self, account: Account) -> None:
        self._db.execute("PRAGMA synchronous=NORMAL")
        try:
            self._save(account, None, None)
        finally:
            self._db.execute("PRAGMA synchronous=FULL")

    def _save(self, account: Account, pending: PutCall | None, new: PutCall | None) -> None:
        wanted = {call.number for call in account.kept}
        if pending is not None:
            wanted.add(pending.number)
        row = [
            account.topic, account.born, account.number, account.request, account.ticket,
            account.position,
        ]  # fmt: skip
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO account VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, _crc(row))
            )
            self._drop_calls(account.topic, wanted)
            if new is not None:
                self._add_call(account.topic, new)

    def _add_call(self, topic: str, call: PutCall) -> None:
        row = [topic, call.number, msgpack.packb([call.formats, call.bodies])]
        self._db.execute("INSERT OR REPLACE INTO call VALUES (?, ?, ?, ?)", (*row, _crc(row)))
        self._stored.setdefault(topic, set()).add(call.number)

    def _drop_calls(self, topic: str, wanted: set[int]) -> None:
        stored = self._stored.get(topic, set())
        for number in stored - wanted:
            self._db.execute("DELETE FROM call WHERE topic = ? AND number = ?", (topic, number))
            stored.discard(number)

    # Care.

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._together:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _guarded(self, work: Callable[[], Result]) -> Result:
        """Do something with the file; its first error is the last thing that happens to it."""
        self.refuse_failed()
        try:
            return work()
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
            self._failed = f"{type(error).__name__}: {error}"
            raise StateUnusable(
                f"state file {self.path} cannot be used: {self._failed}. If its disk is in order, "
                "the file is damaged: put it back from a copy, or remove the directory and open "
                "the client with take_over, to go on from what the broker knows"
            ) from error

    def refuse_failed(self) -> None:
        """Raise if the file had an error before."""
        if self._failed:
            raise StateUnusable(
                f"state directory {self.directory} is not used any more after an error "
                f"({self._failed}); see to its disk, and open the client anew"
            )

    def close(self) -> None:
        """Let the directory go. Closing twice is fine."""
        if self._lock < 0:
            return
        try:
            self._db.close()
        finally:
            os.close(self._lock)
            self._lock = -1


def _crc(row: Sequence[Any]) -> int:
    """SQLite itself does not notice when a number in its file has changed."""
    return crc32(repr(row).encode())


def _check(row: Sequence[Any], crc: int) -> None:
    if _crc(row) != crc:
        raise ValueError(f"the row of topic {row[0]!r:.120} does not have its checksum")
