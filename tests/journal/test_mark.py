"""The mark beside a store: it proves that nothing synced is gone, and can never do harm itself."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Callable

import pytest
from journal_samples import contents_at, copy_store, sample, samples

from broker.errors import JournalGap
from broker.journal.sqlite import SqliteJournal


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        ("missing", None),
        ("empty", lambda content: b""),
        ("zeros", lambda content: bytes(len(content))),
        ("garbage", lambda content: b"\xa5" * len(content)),
        ("first slot torn", lambda content: content[:20] + b"\xff" * 10 + content[30:]),
        ("second slot torn", lambda content: content[:-7]),
    ],
)
def test_a_missing_or_torn_mark_neither_refuses_nor_loses_anything(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    what: str,
    damage: Callable[[bytes], bytes] | None,
) -> None:
    path = tmp_path / "journal.db"
    journal = SqliteJournal(path)
    journal.append("orders", 1, samples("orders", 1, 9))
    journal.close()
    mark = Path(f"{path}.mark")
    if damage is None:
        mark.unlink()
    else:
        mark.write_bytes(damage(mark.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert contents_at(path) == {"orders": list(enumerate(samples("orders", 1, 9), 1))}
    warned = "is torn or damaged and is ignored" in caplog.text
    assert warned == (what in ("garbage", "first slot torn", "second slot torn"))
    # The mark is whole again afterwards and does its work.
    path.write_bytes(b"")
    with pytest.raises(JournalGap):
        SqliteJournal(path)


def test_with_one_slot_of_the_mark_torn_the_other_one_still_guards(tmp_path: Path) -> None:
    """The older slot is one write behind, so only the very last write is unguarded."""
    path, old = tmp_path / "journal.db", tmp_path / "old.db"
    journal = SqliteJournal(path)
    journal.append("orders", 1, samples("orders", 1, 2))
    journal.close()
    copy_store(path, old)
    journal = SqliteJournal(path)
    for sequence in range(3, 9):
        journal.append("orders", sequence, [sample("orders", sequence)])
        assert journal.wait_durable("orders", sequence, 20)
    journal.close()
    whole = Path(f"{path}.mark").read_bytes()
    for torn in (b"\xff" * 44 + whole[44:], whole[:-44] + b"\xff" * 44):
        Path(f"{path}.mark").write_bytes(torn)
        shutil.copyfile(old, path)
        with pytest.raises(JournalGap):
            SqliteJournal(path)
