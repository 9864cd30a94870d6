"""How commands print: tables for people, plain columns for pipes, JSON for programs.

The answer goes to stdout and everything else to stderr, so that a pipe carries answers only. On a
terminal a table is drawn by rich; into a pipe it is plain columns of any width, with no colour and
nothing cut off. Ids and bodies come from outside: they are never read as rich's markup.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any, Iterable, Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_NONE = "-"


def stdout_console() -> Console:
    """Rich on stdout; made when needed, since tests and pipes replace the stream."""
    return Console(highlight=False, markup=False, soft_wrap=True)


def stderr_console() -> Console:
    """Rich on stderr."""
    return Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


def note(text: str) -> None:
    """A line for the person at the terminal, on stderr."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens any more; that is no reason to fail


def complain(text: object) -> None:
    """The one line that tells why a command failed."""
    note("fairlead: " + " ".join(str(text).split()))


def line(text: str) -> None:
    """One line of the answer. When the reader has gone, the command is done."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        forget_stdout()
        raise typer.Exit(0) from None


def forget_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter can end without an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_json(value: Any) -> None:
    """``value`` as JSON: one line into a pipe, indented on a terminal."""
    line(to_json(value, indent=2 if sys.stdout.isatty() else None))


def to_json(value: Any, indent: int | None = None) -> str:
    """``value`` as JSON text; a body of bytes becomes ``body_base64``."""
    return json.dumps(_printable(value), ensure_ascii=False, indent=indent, default=str)


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = ((str(key), item) for key, item in value.items())
        return dict(_named(key, item) for key, item in pairs)
    if isinstance(value, (list, tuple)):
        return [_printable(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def _named(key: str, value: Any) -> tuple[str, Any]:
    suffix = "_base64" if isinstance(value, bytes) else ""
    return key + suffix, _printable(value)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    """A table; with no rows only a note saying what is not there."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        note(empty)
        return
    if not sys.stdout.isatty():
        _show_plain([list(columns), *cells])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        numeric = all(_is_number(row[index]) for row in cells)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    stdout_console().print(table)


def show_facts(title: str, facts: dict[str, object]) -> None:
    """A heading with names and values under it."""
    width = max(map(len, facts), default=0)
    line(title)
    for name, value in facts.items():
        line(f"  {name:{width}}  {_cell(value)}")


def _show_plain(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def _cell(value: object) -> str:
    """One line, whatever is in it: an id or a body may hold anything."""
    if value is None or value == "":
        return _NONE
    text = value if isinstance(value, str) else str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()


def _is_number(text: str) -> bool:
    return text == _NONE or text.replace(".", "", 1).isdigit()


def age(milliseconds: float) -> str:
    """A time span in one short word.

    >>> [age(ms) for ms in (40, 1500, 90_000, 7_200_000, 200_000_000)]
    ['40ms', '1.5s', '1.5m', '2.0h', '2.3d']
    """
    if milliseconds < 1000:
        return f"{milliseconds:.0f}ms"
    for unit, length in (("s", 60.0), ("m", 60.0), ("h", 24.0)):
        milliseconds /= 1000 if unit == "s" else 60
        if milliseconds < length:
            return f"{milliseconds:.1f}{unit}"
    return f"{milliseconds / 24:.1f}d"


def short_body(body: Any, width: int = 40) -> str:
    """The beginning of a body, for a table."""
    if isinstance(body, bytes):
        text = body.decode("utf-8", "backslashreplace")
    else:
        text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return text if len(text) <= width else text[: width - 3] + "..."
