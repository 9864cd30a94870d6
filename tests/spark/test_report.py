"""The report: what it says, that nothing breaks out of it, and that a browser can draw it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.core import commands as c
from broker.journal.sqlite import SqliteJournal
from spark.report import COLUMNS, collect_figures, render
from spark.report.style import _DARK, _LIGHT
from spark.report.text import embedded, escaped, plain
from tests.builders import Driven
from tests.spark import browser as chromium
from tests.spark.faulty_runs import FaultyStore

pytestmark = pytest.mark.timeout(300)

EMPTY: dict[str, Any] = {
    "channels": [], "channels_left_out": {"channels": 0, "records": 0, "messages": 0},
}  # fmt: skip
HOSTILE = [
    "</script><script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=2">',
    "' onmouseover='window.hacked=3",
    "<!--<script>", "]]>", "&lt;b&gt;", "{{7*7}}${window.hacked=4}", "javascript:window.hacked=5",
    "__proto__", "constructor", "\u202eevil\u2028\u2029\ufeff", "a\x00\x07\x1b[31m",
    "x" * 5_000,
]  # fmt: skip
#: What a journal cannot hold in an id, but a verdict might.
LONE = "lone \ud800 surrogate \udfff"


def make_verdict(word: str, **more: Any) -> dict[str, Any]:
    """A verdict with one check that was made and one that was not."""
    check = {
        "name": "split-owner", "compared": 4321, "violations": 0, "offenders": [], "skipped": None,
        "definition": "Two subscribers held one partition at the same time.",
    }  # fmt: skip
    skipped = {
        "name": "unseen", "compared": 0, "violations": 0, "offenders": [],
        "skipped": "no subscriber wrote a history",
        "definition": "A message was acked that its handler never saw.",
    }  # fmt: skip
    channel = {
        "channel": "orders", "verdict": word, "upto": 98765, "records": 10, "messages": 20,
        "partitions": 3, "pending": 7, "started_at_ms": 1, "ended_at_ms": 2,
    }  # fmt: skip
    return {
        "verdict": word, "reasons": [], "store": "store.db", "archive": None, "histories": None,
        "channels": [channel], "records": 1234567, "messages": 20, "partitions": 3,
        "histories_compared": {"publishers": 2, "subscribers": 3, "lines": 456},
        "checks": [check, skipped], "seconds": 1.5, "version": "1.2.3", **more,
    }  # fmt: skip


def invalid_verdict(**words: str) -> dict[str, Any]:
    """An invalid one, with offenders."""
    verdict = make_verdict("invalid", reasons=["split-owner: 1,204 violations"])
    offender = {
        "channel": "orders", "sequence": 77, "subscription": "default", "publisher": "p",
        "partition": "k", "subscriber": "w", "first": 1, "last": 9, "detail": "epoch 2 is open",
        **words,
    }  # fmt: skip
    verdict["checks"][0].update(violations=1204, offenders=[offender])
    return verdict


class Elements(HTMLParser):
    """The tags, attributes and text of a page, as a browser's parser would split it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def shown(page: str) -> str:
    """The text of the page that needs no script, without white space in a row."""
    body = page.partition("<body>")[2].partition('<script type="application/json"')[0]
    return " ".join(" ".join(Elements(body).words).split())


def test_the_verdict_comes_first_then_what_was_compared() -> None:
    text = shown(render(invalid_verdict(), EMPTY))
    assert text.index("✗ invalid") < text.index("1,204 violations") < text.index("How much was")
    for number in ("1,234,567", "4,321", "456"):
        assert number in text


def test_a_found_anomaly_has_its_definition_and_first_offenders() -> None:
    text = shown(render(invalid_verdict(), EMPTY))
    assert "Two subscribers held one partition at the same time." in text
    assert "the first 1 of 1,204 offenders" in text and "epoch 2 is open" in text


def test_it_says_up_to_which_sequence_was_judged_and_what_was_not_checked() -> None:
    text = shown(render(make_verdict("valid"), EMPTY))
    assert "✓ valid" in text and "98,765" in text
    unchecked = text.partition("Not checked, and why")[2]
    assert "unseen no subscriber wrote a history" in unchecked


def test_an_unheard_of_verdict_is_shown_as_unknown_not_as_valid() -> None:
    text = shown(render(make_verdict("splendid"), EMPTY))
    assert "? unknown" in text and "✓ valid" not in text


def test_the_page_fetches_nothing() -> None:
    page = render(make_verdict("valid"), EMPTY)
    parsed = Elements(page)
    assert not {name for name, _ in parsed.attributes} & {"src", "href", "action", "srcset"}
    assert "default-src 'none'" in page
    assert not re.findall(r"url\(|@import|fetch\(|XMLHttp", page)
    assert set(re.findall(r"https?://[^\"'\s]+", page)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("text", [*HOSTILE, LONE], ids=range(len(HOSTILE) + 1))
def test_hostile_text_adds_no_element_and_no_attribute(text: str) -> None:
    names = ("channel", "subscription", "publisher", "partition", "subscriber", "detail")
    calm, hostile = (
        invalid_verdict(**dict.fromkeys(names, word)) for word in ("calm", text)
    )
    for verdict, word in ((calm, "calm"), (hostile, text)):
        verdict.update(store=word, archive=word, histories=word, version=word, reasons=[word])
        verdict["channels"][0]["channel"] = word
        for check in verdict["checks"]:
            check.update(name=word, definition=word)
        verdict["checks"][1]["skipped"] = word
    pages = [
        render(verdict, {**EMPTY, "note": word, word: [word]})
        for verdict, word in ((calm, "calm"), (hostile, text))
    ]
    for page in pages:
        page.encode("utf-8")
    quiet, loud = (Elements(page) for page in pages)
    assert loud.tags == quiet.tags
    assert [name for name, _ in loud.attributes] == [name for name, _ in quiet.attributes]
    assert pages[1].count("</script") == pages[0].count("</script") == 2


def test_the_json_in_the_page_is_ascii_without_angle_brackets() -> None:
    text = embedded({"a": [*HOSTILE, LONE]})
    assert text.isascii() and not set("<>&") & set(text)


def test_text_is_escaped_for_attributes_too() -> None:
    assert escaped("<a href=\"x\" id='y'>&") == "&lt;a href=&quot;x&quot; id=&#x27;y&#x27;&gt;&amp;"


def test_odd_characters_are_shown_by_their_number() -> None:
    assert plain("\u202ea\x00\ud800") == "\\u202ea\\u0000\\ud800"


def luminance(colour: str) -> float:
    """The relative luminance of #rrggbb, as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [_LIGHT, _DARK], ids=["light", "dark"])
def test_text_and_marks_stand_out_in_both_schemes(scheme: str) -> None:
    colours = dict(re.findall(r"--([\w-]+):(#[0-9a-f]{6})", scheme))
    for text in ("text", "soft", "good", "bad", "open"):
        for ground in ("ground", "panel"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for word in ("good", "bad", "open"):
        assert contrast(colours[word], colours[f"{word}-ground"]) >= 4.5, word
    for series in (f"c{i}" for i in range(8)):
        assert contrast(colours[series], colours["ground"]) >= 3, series
        assert contrast(colours[series], colours["on"]) >= 4.5, series


# In a browser.


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    """A headless Chromium for the tests of this file."""
    path = chromium.find()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium was found, and CI is set: install one (apt: chromium)")
        pytest.skip("no Chromium was found; install one (apt: chromium) to test the page in it")
    with chromium.browser(path, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def busy(spark: SparkSession, faulty_store: FaultyStore) -> dict[str, Any]:
    """The figures of real runs with real faults; the one with the most hand-overs comes first."""
    figures = collect_figures(read(spark, faulty_store.store))
    figures["channels"].sort(
        key=lambda one: -sum(row["messages"] for row in one["handovers"]["reasons"])
    )
    return figures


def read(spark: SparkSession, store: Path) -> Any:
    reader = spark.read.format("fairlead").option("verify", "false")
    return reader.option("columns", ",".join(COLUMNS)).load(str(store)).persist()


def opened(
    running: chromium.Browser, folder: Path, verdict: dict[str, Any], figures: dict[str, Any]
) -> chromium.Page:
    file = folder / "report.html"
    file.write_text(render(verdict, figures), encoding="utf-8")
    return running.open(file)


@pytest.mark.parametrize("word", ["valid", "invalid", "unknown"])
def test_a_browser_draws_the_page_without_errors_at_every_width(
    running: chromium.Browser, busy: dict[str, Any], tmp_path: Path, word: str
) -> None:
    verdict = invalid_verdict() if word == "invalid" else make_verdict(word)
    page = opened(running, tmp_path, verdict, EMPTY if word == "unknown" else busy)
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            page.look(width, scheme)
            page.screenshot(tmp_path / f"{word}-{width}-{scheme}.png")
            assert page.overflow() <= 0, (width, scheme)
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    charts = page.evaluate("document.querySelectorAll('.chart').length")
    bare = page.evaluate(
        "[...document.querySelectorAll('.chart')].filter(c => !c.querySelector('.mark'))"
        ".map(c => c.querySelector('h3').textContent)"
    )
    assert (charts, bare) == ((0, []) if word == "unknown" else (charts, []))
    assert word == "unknown" or charts >= 7
    assert page.errors == []


def test_every_channel_can_be_chosen_and_drawn(
    running: chromium.Browser, busy: dict[str, Any], tmp_path: Path
) -> None:
    page = opened(running, tmp_path, make_verdict("valid"), busy)
    for number, channel in enumerate(busy["channels"]):
        page.evaluate(
            f"document.getElementById('channel').value = {number};"
            "document.getElementById('channel').dispatchEvent(new Event('change'))"
        )
        segments = sum(len(row["segments"]) for row in channel["lanes"]["rows"])
        drawn = page.evaluate(
            "document.querySelectorAll('[aria-label=Ownership] rect.mark').length"
        )
        assert drawn == segments, channel["channel"]
    assert page.errors == []


def test_charts_have_a_title_a_description_values_on_hover_and_a_table(
    running: chromium.Browser, busy: dict[str, Any], tmp_path: Path
) -> None:
    page = opened(running, tmp_path, make_verdict("valid"), busy)
    assert page.evaluate(
        "[...document.querySelectorAll('.chart .canvas svg')].every(s =>"
        " s.getAttribute('aria-labelledby').split(' ').every(i =>"
        " document.getElementById(i).textContent.length > 3))"
    )
    text = page.evaluate(
        "(() => { const svg = document.querySelector('.chart .canvas svg');"
        " const box = svg.getBoundingClientRect();"
        " svg.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + box.width / 2,"
        " clientY: box.top + 20}));"
        " return document.querySelector('.chart .tip').innerText; })()"
    )
    assert "published:" in text and "acked:" in text and "from the start" in text
    page.evaluate("document.querySelector('.chart details').open = true")
    page.look(1280)
    rows = page.evaluate("document.querySelectorAll('.chart details tbody tr').length")
    assert rows == busy["channels"][0]["buckets"]
    assert page.errors == []


def test_the_button_turns_light_into_dark_and_back(
    running: chromium.Browser, tmp_path: Path
) -> None:
    page = opened(running, tmp_path, make_verdict("valid"), EMPTY)
    grounds = []
    for _ in range(3):
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.evaluate("document.getElementById('scheme').click()")
    assert grounds[0] == grounds[2] != grounds[1] and page.errors == []


def test_a_browser_runs_nothing_from_a_hostile_journal(
    running: chromium.Browser, spark: SparkSession, tmp_path: Path
) -> None:
    """Every id in the journal is hostile, and goes through Spark into charts, tips and tables."""
    driven = Driven(HOSTILE[0], checked=False, attempts_max=1)
    for text in HOSTILE:
        driven.subscribe(text, session="s", prefetch=3)
    for number, text in enumerate(HOSTILE * 2):
        driven.now_ms += 50
        driven.publish(text, b"1", publisher=HOSTILE[number % len(HOSTILE)])
        for who, sends in driven.dispatch().items():
            for epoch in sends[0].delivered.epochs:
                driven.now_ms += 20
                if number % 2:
                    driven.do(c.Nack("default", who, "s", epoch, 1, text))
    journal = SqliteJournal(str(tmp_path / "store.db"), durability="flush")
    last = journal.append(driven.channel.name, 1, driven.records)
    journal.wait_durable(driven.channel.name, last, timeout=20)
    journal.close()
    figures = collect_figures(read(spark, tmp_path / "store.db"))
    page = opened(running, tmp_path, invalid_verdict(detail=HOSTILE[1]), figures)
    page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
    page.look(390)
    page.screenshot(tmp_path / "hostile.png")
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.scripts.length") == 2
    assert page.evaluate("document.querySelectorAll('.chart .mark').length") > 10
    assert page.overflow() <= 0
    assert page.errors == []
