"""The page's style sheet: one string. Colours are named once, for light and for dark.

Text reaches a contrast of 4.5 to 1 on its ground in both schemes, marks 3 to 1; the eight series
colours are told apart with any of the common kinds of colour blindness, and lines by dashes, too.
"""

from __future__ import annotations

_LIGHT = """
--ground:#ffffff; --panel:#f5f7f9; --line:#d5dbe1; --grid:#e6eaee; --text:#1b2229; --soft:#515c67;
--good:#0a6b42; --bad:#b3221f; --open:#7a5200; --good-ground:#e4f4ec; --bad-ground:#fbe9e8;
--open-ground:#fbf2dd; --c0:#0b66b0; --c1:#b8500a; --c2:#007a63; --c3:#9c3f88; --c4:#7d6300;
--c5:#4a4fb5; --c6:#b12440; --c7:#56626d; --on:#ffffff; --shade:#dfe5ea;
"""
_DARK = """
--ground:#12171c; --panel:#1a2128; --line:#36414b; --grid:#28313a; --text:#e6ebef; --soft:#a7b2bc;
--good:#5fd39d; --bad:#ff8d87; --open:#f0c060; --good-ground:#12301f; --bad-ground:#3a1a1a;
--open-ground:#33280f; --c0:#5db3f5; --c1:#f0904c; --c2:#3ecfae; --c3:#dd8fcb; --c4:#dfc04c;
--c5:#a3a8ff; --c6:#ff7d8b; --c7:#aab4bd; --on:#10151a; --shade:#2b353e;
"""

_RULES = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
.page { max-width: 1180px; margin: 0 auto; padding: 20px 24px 60px; }
h1 { font-size: 20px; margin: 0; } h2 { font-size: 18px; margin: 40px 0 8px; }
h3 { font-size: 15px; margin: 0 0 2px; }
p { margin: 4px 0 10px; max-width: 80ch; } .soft { color: var(--soft); }
.small { font-size: 13px; } code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }
.name { overflow-wrap: anywhere; unicode-bidi: isolate; }
header { display: flex; gap: 16px; justify-content: space-between; align-items: start; }
button { white-space: nowrap; }
button, select { font: inherit; font-size: 13px; color: var(--text); background: var(--panel);
  border: 1px solid var(--line); border-radius: 4px; padding: 4px 10px; max-width: 100%; }
:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
.verdict { display: grid; grid-template-columns: auto 1fr; gap: 4px 16px; margin: 16px 0;
  padding: 14px 18px; border: 1px solid; border-left-width: 8px; border-radius: 4px; }
.verdict .word { font-size: 28px; font-weight: 700; line-height: 1.2; }
.verdict ul { grid-column: 1 / -1; margin: 4px 0 0; padding-left: 20px; overflow-wrap: anywhere; }
.verdict p { margin: 0; align-self: center; }
.valid { color: var(--good); border-color: var(--good); background: var(--good-ground); }
.invalid { color: var(--bad); border-color: var(--bad); background: var(--bad-ground); }
.unknown { color: var(--open); border-color: var(--open); background: var(--open-ground); }
.verdict p, .verdict li { color: var(--text); }
.word-valid { color: var(--good); } .word-invalid { color: var(--bad); }
.word-unknown { color: var(--open); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(128px, 1fr)); gap: 1px;
  padding: 1px; margin: 12px 0; }
.tiles div { background: var(--panel); padding: 8px 12px; outline: 1px solid var(--line); }
.tiles dt { font-size: 12px; color: var(--soft); } .tiles dl { margin: 0; }
.tiles dd { margin: 0; font-size: 18px; font-variant-numeric: tabular-nums; font-weight: 600; }
.scroll { overflow-x: auto; margin: 8px 0; max-width: 100%; }
.tall { max-height: 420px; overflow-y: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums;
  width: 100%; }
th { text-align: left; color: var(--soft); font-weight: 600; background: var(--panel); }
th, td { padding: 4px 10px; border-bottom: 1px solid var(--grid); vertical-align: top; }
td.key { white-space: nowrap; }
td.n, th.n { text-align: right; white-space: nowrap; }
td.text { overflow-wrap: anywhere; min-width: 14ch; }
#charts table { width: auto; min-width: min(100%, 380px); } td.wide { min-width: 30ch; }
details { margin: 6px 0; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }
.chart { position: relative; margin: 14px 0 22px; break-inside: avoid; }
.chart svg { display: block; overflow: visible; touch-action: pan-y; }
.chart text { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
.chart text.label { fill: var(--text); font-size: 12px; }
.chart text.on { fill: var(--on); font-size: 10px; font-weight: 600; }
.chart .grid { stroke: var(--grid); } .chart .axis { stroke: var(--line); }
.chart .cross { stroke: var(--text); stroke-width: 1; opacity: .5; pointer-events: none; }
.chart .event { stroke: var(--soft); stroke-dasharray: 2 3; }
.chart .ended { stroke: var(--text); stroke-width: 2; }
.chart .present { fill: var(--shade); }
.chart .outer { fill: none; stroke: var(--grid); }
.series { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.s1 { stroke-dasharray: 7 3; } .s2 { stroke-dasharray: 2 2.5; }
.s3 { stroke-dasharray: 9 3 2 3; } .s4 { stroke-dasharray: 4 2; } .s5 { stroke-dasharray: 1 3; }
.s6 { stroke-dasharray: 12 4; } .s7 { stroke-dasharray: 6 2 1 2 1 2; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; font-size: 12px; margin: 2px 0 4px;
  padding: 0; list-style: none; } .legend svg { display: inline-block; vertical-align: middle; }
.tip { position: absolute; pointer-events: none; z-index: 2; background: var(--ground);
  border: 1px solid var(--line); border-radius: 4px; padding: 6px 10px; font-size: 12px;
  box-shadow: 0 2px 8px rgb(0 0 0 / .18); max-width: 300px; overflow-wrap: anywhere;
  font-variant-numeric: tabular-nums; white-space: pre-line; }
.bar { display: inline-block; height: 9px; background: var(--c0); vertical-align: baseline; }
.barcell { white-space: nowrap; min-width: 130px; }
.picker { display: flex; flex-wrap: wrap; gap: 10px; align-items: baseline; margin: 6px 0; }
.none { color: var(--soft); padding: 10px 0; }
@media (max-width: 560px) { .page { padding: 14px 14px 40px; } h2 { margin-top: 30px; }
  .verdict { grid-template-columns: 1fr; } }
@media print { .page { max-width: none; padding: 0; } button, .picker select { display: none; }
  .tall { max-height: none; overflow: visible; } h2 { break-after: avoid; } }
"""


def _series() -> str:
    return "".join(
        f".s{i} {{ stroke: var(--c{i}); }} .f{i} {{ fill: var(--c{i}); }}\n" for i in range(8)
    )


STYLE = (
    f":root {{ color-scheme: light; {_LIGHT} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{\n"
    f":root {{ color-scheme: dark; {_DARK} }} }}\n"
    f'@media screen {{ :root[data-scheme="light"] {{ color-scheme: light; {_LIGHT} }}\n'
    f':root[data-scheme="dark"] {{ color-scheme: dark; {_DARK} }} }}\n'
    f"{_RULES}{_series()}"
)
