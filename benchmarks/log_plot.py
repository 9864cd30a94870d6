"""Panels of log-log lines as an SVG for light and for dark paper. Only drawing lives here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Callable

PANEL_WIDTH, PANEL_HEIGHT = 400, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 64, 40, 48
HEADER, FOOTER = 34, 26

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2937 }
.paper { fill: #ffffff } .title { font-weight: 600; font-size: 14px } .faint { fill: #5b6472 }
.grid { stroke: #d7dce3 } .linear { stroke: #5b6472; stroke-dasharray: 4 4; fill: none }
.line { stroke: #1d4ed8; stroke-width: 2; fill: none } .dot { fill: #1d4ed8 }
.value { paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb } .paper { fill: #111827 } .faint { fill: #a3acba }
.grid { stroke: #374151 } .linear { stroke: #a3acba }
.line { stroke: #8ab4ff } .dot { fill: #8ab4ff }
.value { stroke: #111827 } }
"""


@dataclass(frozen=True)
class Panel:
    """One line over one axis; ``linear`` adds the line of exact proportion through its start."""

    title: str
    points: list[tuple[float, float]]
    label: Callable[[float], str]
    linear: bool = False


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis over whole decades."""

    low: int
    high: int
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def decades(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _axis(values: list[float], start: float, end: float) -> _Axis:
    low = math.floor(math.log10(min(values)))
    return _Axis(low, max(low + 1, math.ceil(math.log10(max(values)))), start, end)


def power_of_ten(value: float) -> str:
    """1e6 as 10⁶: how a decade of the lower axis is written."""
    digits = str(round(math.log10(value)))
    return "10" + digits.translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def draw(title: str, x_title: str, note: str, panels: list[Panel]) -> str:
    """The whole picture."""
    width, height = PANEL_WIDTH * len(panels), PANEL_HEIGHT + HEADER + FOOTER
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        _text(16, 24, title, "title"),
        _text(16, height - 10, note, "faint"),
    ]
    for index, panel in enumerate(panels):
        parts.append(f'<g transform="translate({index * PANEL_WIDTH} {HEADER})">')
        parts += [*_panel(panel, x_title), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, x_title: str) -> list[str]:
    across = _axis([x for x, _ in panel.points], LEFT, PANEL_WIDTH - RIGHT)
    up = _axis([y for _, y in panel.points], PANEL_HEIGHT - BOTTOM, TOP)
    parts = [_text(LEFT, 24, panel.title)]
    for value in across.decades():
        x = across.at(value)
        parts.append(_segment("grid", [(x, TOP), (x, PANEL_HEIGHT - BOTTOM)]))
        parts.append(_text(x, PANEL_HEIGHT - BOTTOM + 18, power_of_ten(value), "faint", "middle"))
    for value in up.decades():
        y = up.at(value)
        parts.append(_segment("grid", [(LEFT, y), (PANEL_WIDTH - RIGHT, y)]))
        parts.append(_text(LEFT - 8, y + 4, panel.label(value), "faint", "end"))
    middle = (LEFT + PANEL_WIDTH - RIGHT) / 2
    parts.append(_text(middle, PANEL_HEIGHT - 12, x_title, "faint", "middle"))
    if panel.linear and len(panel.points) > 1:
        parts += _linear(panel, across, up)
    places = [(across.at(x), up.at(y)) for x, y in panel.points]
    parts.append(_segment("line", places))
    for (x, y), (_, value) in zip(places, panel.points):
        parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
        # Right below a line that rises there is room; but not on the axis.
        above = y > PANEL_HEIGHT - BOTTOM - 24
        place = (x, y - 12, "middle") if above else (x + 6, y + 20, "start")
        parts.append(_text(place[0], place[1], panel.label(value), "value", place[2]))
    return parts


def _linear(panel: Panel, across: _Axis, up: _Axis) -> list[str]:
    """Exact proportion from the first point on, as far as the panel reaches."""
    (x0, y0), (x1, _) = panel.points[0], panel.points[-1]
    factor = min(x1 / x0, 10.0**up.high / y0)
    end = (across.at(x0 * factor), up.at(y0 * factor))
    return [
        _segment("linear", [(across.at(x0), up.at(y0)), end]),
        _text(end[0] - 8, end[1] - 8, "linear", "faint", "end"),
    ]


def _segment(kind: str, points: list[tuple[float, float]]) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{kind}" points="{places}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
