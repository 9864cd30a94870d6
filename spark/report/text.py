"""Text from anywhere into HTML and into the page's JSON. Ids come from strangers. Pure."""

from __future__ import annotations

import html
import json
import unicodedata
from typing import Any

#: Beyond this an id or a reason is cut in the text of the page.
LENGTH_MAX = 500


def plain(value: object) -> str:
    """The value as text that every file can hold: odd characters are shown by their number.

    >>> plain("a\\ud800b\\x00")
    'a\\\\ud800b\\\\u0000'
    """
    text = value if isinstance(value, str) else str(value)
    if len(text) > LENGTH_MAX:
        text = text[: LENGTH_MAX - 1] + "…"
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    # Controls, lone surrogates and characters that turn the direction of the text around.
    if unicodedata.category(character) in ("Cc", "Cs", "Cf", "Zl", "Zp") and character != "\n":
        return f"\\u{ord(character):04x}"
    return character


def escaped(value: object) -> str:
    """The value as HTML text or attribute; None is a dash."""
    return "–" if value is None else html.escape(plain(value), quote=True)


def number(value: object) -> str:
    """A whole number with thousands set apart; anything else as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escaped(value)


def embedded(value: Any) -> str:
    """JSON that cannot end the script element it stands in, in plain ASCII."""
    text = json.dumps(_plain_deep(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain_deep(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, dict):
        return {plain(key): _plain_deep(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_deep(item) for item in value]
    return value
