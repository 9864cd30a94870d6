"""Verdict and figures to one HTML file. Pure: no Spark, no file, no clock.

The verdict, the checks and the channels are written here, so they can be read without JavaScript.
The charts are drawn in the browser by ``script.py`` from the figures, which stand in the page as
JSON. A content security policy lets nothing run but that script, and nothing be fetched at all.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from spark.report.script import SCRIPT
from spark.report.style import STYLE
from spark.report.text import embedded, escaped, number

_MARKS = {"valid": "✓", "invalid": "✗", "unknown": "?"}
_MEANING = {
    "valid": "Everything that was compared agrees.",
    "invalid": "At least one check found a violation.",
    "unknown": "Too little could be compared to say that the journal is valid.",
}
_OFFENDER = (
    "channel", "sequence", "subscription", "publisher", "partition", "subscriber", "first", "last",
    "detail",
)  # fmt: skip


def render(verdict: dict[str, Any], figures: dict[str, Any]) -> str:
    """The whole page."""
    word = _word(verdict.get("verdict"))
    body = "\n".join(
        (
            _top(verdict), _verdict(verdict, word), _compared(verdict), _checks(verdict),
            _skipped(verdict), _channels(verdict), _FIGURES, _foot(verdict),
        )
    )  # fmt: skip
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{word}: audit of {escaped(verdict.get('store'))}</title>\n"
        f"<style>{STYLE}</style>\n</head>\n<body>\n<div class=\"page\">\n{body}\n</div>\n"
        f'<script type="application/json" id="figures">{embedded(figures)}</script>\n'
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


_FIGURES = """<section id="charts" aria-label="Figures"></section>
<noscript><p>The charts need JavaScript; everything above does not.</p></noscript>"""


def _word(value: object) -> str:
    return value if isinstance(value, str) and value in _MARKS else "unknown"


def _top(verdict: dict[str, Any]) -> str:
    read = [f"store <code class=name>{escaped(verdict.get('store'))}</code>"]
    for name in ("archive", "histories"):
        if verdict.get(name):
            read.append(f"{name} <code class=name>{escaped(verdict[name])}</code>")
    return (
        f"<header><div><h1>Fairlead audit</h1><p class=soft>{', '.join(read)}</p></div>"
        '<button id="scheme" type="button" hidden>Light or dark</button></header>'
    )


def _verdict(verdict: dict[str, Any], word: str) -> str:
    reasons = "".join(f"<li>{escaped(reason)}</li>" for reason in verdict.get("reasons") or ())
    return (
        f'<section class="verdict {word}" aria-label="Verdict">'
        f'<div class="word"><span aria-hidden="true">{_MARKS[word]}</span> {word}</div>'
        f"<p>{_MEANING[word]}</p>{f'<ul>{reasons}</ul>' if reasons else ''}</section>"
    )


def _compared(verdict: dict[str, Any]) -> str:
    told = verdict.get("histories_compared") or {}
    checks = verdict.get("checks") or []
    tiles = (
        ("records read", verdict.get("records", 0)),
        ("messages", verdict.get("messages", 0)),
        ("partitions", verdict.get("partitions", 0)),
        ("channels", len(verdict.get("channels") or ())),
        ("checks made", sum(not check.get("skipped") for check in checks)),
        ("comparisons", sum(check.get("compared") or 0 for check in checks)),
        ("violations", sum(check.get("violations") or 0 for check in checks)),
        ("publisher histories", told.get("publishers", 0)),
        ("subscriber histories", told.get("subscribers", 0)),
        ("history lines", told.get("lines", 0)),
    )
    cells = "".join(f"<div><dt>{name}</dt><dd>{number(n)}</dd></div>" for name, n in tiles)
    return f'<h2>How much was compared</h2><dl class="tiles">{cells}</dl>'


def _table(heads: Sequence[tuple[str, str]], rows: Iterable[Iterable[str]], label: str) -> str:
    head = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind in heads)
    kinds = [kind for _, kind in heads]
    body = "".join(
        "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds, row))
        + "</tr>"
        for row in rows
    )  # fmt: skip
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _checks(verdict: dict[str, Any]) -> str:
    made = [check for check in verdict.get("checks") or () if not check.get("skipped")]
    if not made:
        return '<h2>Anomalies</h2><p class="none">No check was made.</p>'
    made.sort(key=lambda check: -(check.get("violations") or 0))
    rows = [
        (
            f"<code class=name>{escaped(check.get('name'))}</code>",
            _found(check.get("violations") or 0), number(check.get("compared") or 0),
            escaped(check.get("definition")),
        )
        for check in made
    ]  # fmt: skip
    heads = (("anomaly", "key"), ("found", "n"), ("compared", "n"), ("definition", "text wide"))
    offenders = "".join(_offenders(check) for check in made if check.get("violations"))
    return f"<h2>Anomalies</h2>{_table(heads, rows, 'Anomalies')}{offenders}"


def _found(violations: int) -> str:
    if not violations:
        return '<span class="word-valid">✓ none</span>'
    return f'<strong class="word-invalid">✗ {number(violations)}</strong>'


def _offenders(check: dict[str, Any]) -> str:
    offenders = check.get("offenders") or []
    used = [name for name in _OFFENDER if any(one.get(name) is not None for one in offenders)]
    numbers = ("sequence", "first", "last")
    heads = [
        (name, "n" if name in numbers else "text wide" if name == "detail" else "text")
        for name in used
    ]
    rows = [[number(one.get(name)) for name in used] for one in offenders]
    total = check["violations"]
    few = f"the first {len(rows)} of {total:,}" if len(rows) < total else f"all {total:,}"
    return (
        f'<details open><summary><code class=name>{escaped(check.get("name"))}</code>: '
        f"{few} offenders</summary>{_table(heads, rows, 'Offenders')}</details>"
    )


def _skipped(verdict: dict[str, Any]) -> str:
    skipped = [check for check in verdict.get("checks") or () if check.get("skipped")]
    title = "<h2>Not checked, and why</h2>"
    if not skipped:
        return f"{title}<p>Every check that this version knows was made.</p>"
    rows = [
        (
            f"<code class=name>{escaped(check.get('name'))}</code>",
            escaped(check["skipped"]), escaped(check.get("definition")),
        )
        for check in skipped
    ]  # fmt: skip
    heads = (("anomaly", "key"), ("why not", "text wide"), ("definition", "text wide"))
    return title + _table(heads, rows, "Not checked")


def _channels(verdict: dict[str, Any]) -> str:
    names = ("upto", "records", "messages", "partitions", "pending")
    rows = []
    for one in verdict.get("channels") or ():
        word = _word(one.get("verdict"))
        rows.append(
            [
                f"<span class=name>{escaped(one.get('channel'))}</span>",
                f'<strong class="word-{word}">{_MARKS[word]} {word}</strong>',
                *(number(one.get(name)) for name in names),
            ]
        )
    if not rows:
        return '<h2>Judged up to</h2><p class="none">The journal has no channel.</p>'
    heads = (
        ("channel", "text"), ("verdict", "key"), ("judged up to sequence", "n"), ("records", "n"),
        ("messages", "n"), ("partitions", "n"), ("still pending", "n"),
    )  # fmt: skip
    return (
        "<h2>Judged up to</h2><p class=soft>What the journal holds after these sequences was not "
        f'looked at.</p><div class="tall">{_table(heads, rows, "Channels")}</div>'
    )


def _foot(verdict: dict[str, Any]) -> str:
    seconds = verdict.get("seconds")
    took = f"{seconds:,.1f} s" if isinstance(seconds, (int, float)) else "an unknown time"
    return (
        f'<footer class="soft small"><p>Made by fairlead {escaped(verdict.get("version"))} in '
        f"{took}. This file needs no network and no other file.</p></footer>"
    )
