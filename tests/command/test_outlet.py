"""``fairlead.outlet``: a message counts as written when the reader has taken it out of the pipe."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Iterator

import pytest

from fairlead.outlet import Outlet


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    """The reading and the writing end; a test that closes one takes it out of the list."""
    ends = list(os.pipe())
    yield ends
    for end in ends:
        os.close(end)


def test_what_was_read_is_taken(pipe: list[int]) -> None:
    outlet = Outlet(pipe[1], lambda: False)
    reader = threading.Thread(target=os.read, args=(pipe[0], 100))
    reader.start()
    assert outlet.write(b"one\n")
    assert not outlet.reader_gone
    reader.join()


def test_what_is_left_in_the_pipe_by_a_reader_that_ends_is_not_taken(pipe: list[int]) -> None:
    outlet = Outlet(pipe[1], lambda: False)

    def read_a_part() -> None:
        os.read(pipe[0], 2)
        os.close(pipe.pop(0))

    reader = threading.Thread(target=read_a_part)
    reader.start()
    assert not outlet.write(b"one\n")
    assert outlet.reader_gone
    reader.join()


def test_without_a_reader_nothing_is_taken_and_nothing_is_raised(pipe: list[int]) -> None:
    outlet = Outlet(pipe[1], lambda: False)
    assert outlet.look()
    os.close(pipe.pop(0))
    assert not outlet.look()
    assert not outlet.write(b"one\n")


def test_waiting_for_a_reader_ends_when_it_is_over(pipe: list[int]) -> None:
    answers = iter([False, False, True])
    outlet = Outlet(pipe[1], lambda: next(answers))
    assert not outlet.write(b"one\n")
    assert list(answers) == []
    assert not outlet.reader_gone


def test_a_message_larger_than_the_pipe_is_written_whole(pipe: list[int]) -> None:
    outlet = Outlet(pipe[1], lambda: False)
    found: list[bytes] = []

    def read_all() -> None:
        while sum(map(len, found)) < 300_000:
            found.append(os.read(pipe[0], 10_000))

    reader = threading.Thread(target=read_all)
    reader.start()
    assert outlet.write(b"x" * 300_000)
    reader.join()
    assert b"".join(found) == b"x" * 300_000


def test_a_full_pipe_does_not_hold_it_when_it_is_over(pipe: list[int]) -> None:
    answers = iter([False, False, True])
    outlet = Outlet(pipe[1], lambda: next(answers))
    assert not outlet.write(b"x" * 300_000)
    assert not outlet.reader_gone


def test_in_a_file_what_is_written_is_taken(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    try:
        assert Outlet(fd, lambda: True).write(b"one\n")
    finally:
        os.close(fd)
    assert (tmp_path / "out").read_bytes() == b"one\n"
