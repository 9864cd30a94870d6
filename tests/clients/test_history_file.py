"""The file of a history: growing, ending, and reading what a killed process left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from broker import history
from broker.errors import BadRequest
from broker.history import HistoryFile, read

IDENTITY = {"client": "subscriber", "name": "w", "session": "s", "channel": "c"}


def test_it_grows_over_several_steps_and_is_cut_to_its_length(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path, IDENTITY)
    sizes = set()
    for number in range(30_000):
        file.append("e", f',"number":{number}')
        if number % 100 == 0:
            sizes.add(os.path.getsize(file.path))
    assert len(sizes) >= 4 and not file.failed
    file.append("long", f',"text":"{"x" * 3_000_000}"')
    file.append("last")
    file.close()
    file.append("after the end")
    file.close()
    lines = list(read(file.path))
    assert [line["n"] for line in lines] == list(range(30_002))
    assert [line["number"] for line in lines[:-2]] == list(range(30_000))
    assert len(lines[-2]["text"]) == 3_000_000 and lines[-1]["event"] == "last"


@pytest.mark.parametrize("allocated", ["posix_fallocate", "by writing"])
def test_every_byte_that_is_mapped_is_allocated_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allocated: str
) -> None:
    if allocated == "by writing":

        def refuse(*_: object) -> None:
            raise OSError(errno.EOPNOTSUPP, "not here")

        monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    file = HistoryFile(tmp_path, IDENTITY)
    for number in range(2_000):
        file.append("e", f',"number":{number}')
    found = os.stat(file.path)
    assert found.st_size > history.STEP_BYTES and found.st_blocks * 512 >= found.st_size
    file.close()
    assert len(list(read(file.path))) == 2_000


def test_when_it_cannot_grow_it_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = HistoryFile(tmp_path, IDENTITY)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(history, "_allocate", full)
    for number in range(5_000):
        file.append("e", f',"number":{number}')
    file.close()
    assert file.failed and caplog.text.count("No space left on device") == 1
    lines = list(read(file.path))
    assert [line["n"] for line in lines] == list(range(len(lines)))
    assert lines[-1]["event"] == "cut" and lines[-2]["number"] == len(lines) - 2
    with pytest.raises(BadRequest, match="No space left"):
        HistoryFile(tmp_path, IDENTITY)
    assert len(list(tmp_path.iterdir())) == 1, "the file that could not be used is gone"


def test_a_line_without_a_break_of_its_own_is_torn_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "h"
    path.write_bytes(b'{"n":0}\n{"n":1}\n{"n":2')
    assert [line["n"] for line in read(path)] == [0, 1]
    path.write_bytes(b'{"n":0}\n{"n":1,"te' + bytes(5_000))
    assert [line["n"] for line in read(path)] == [0]
    # A copy need not go from front to back: the end of a torn line may be there without its middle.
    path.write_bytes(b'{"n":0}\n{"n":1,' + bytes(20) + b'"e":1}\n' + bytes(5_000))
    assert [line["n"] for line in read(path)] == [0]
    path.write_bytes(bytes(4_096))
    assert list(read(path)) == []


def test_a_whole_line_that_is_no_object_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "h"
    for damage in (b"{n}\n", b"7\n"):
        path.write_bytes(b'{"n":0}\n' + damage)
        with pytest.raises(ValueError, match="line 1 of history"):
            list(read(path))


def test_an_open_history_can_be_read(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path, IDENTITY)
    file.append("e")
    assert [line["event"] for line in read(file.path)] == ["e"]
    file.append("f")
    assert [line["event"] for line in read(file.path)] == ["e", "f"]
    file.close()
