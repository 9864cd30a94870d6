"""The ledger of a campaign: what was run and what came of it, as a part of a Markdown file.

Only the part between the two marks is written anew; what people have added around it stays.
"""

from __future__ import annotations

from pathlib import Path

from simulations.world.campaign import Tally

BEGIN = "<!-- campaign: written by fairlead simulate --ledger -->"
END = "<!-- end of campaign -->"


def write(path: Path, tally: Tally, profile: str, first: int, mutant: str | None) -> None:
    """Put the figures of a campaign into ``path``; makes the file if there is none."""
    text = path.read_text() if path.exists() else f"# Ledger\n\n{BEGIN}\n{END}\n"
    if BEGIN not in text or END not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{figures(tally, profile, first, mutant)}{END}{after}")


def figures(tally: Tally, profile: str, first: int, mutant: str | None = None) -> str:
    """The figures as Markdown."""
    speed = tally.simulated_s / tally.busy_s if tally.busy_s else 0.0
    rows = [
        ("profile", profile + (f", with the bug {mutant}" if mutant else "")),
        ("seeds", f"{tally.seeds:,} (from {first:,} on)"),
        ("simulated time", f"{tally.simulated_s / 3600:,.1f} hours"),
        ("processor time", f"{tally.busy_s / 60:,.1f} minutes"),
        ("time by the clock", f"{tally.wall_s / 60:,.1f} minutes"),
        ("speed", f"{speed:,.0f} simulated seconds per second of one core"),
        ("events", f"{tally.events:,}"),
        ("messages accepted", f"{tally.accepted:,}"),
        ("messages handled, repeats included", f"{tally.handled:,}"),
        ("journal records compared", f"{tally.records:,}"),
        ("lines of client histories compared", f"{tally.lines:,}"),
        ("faults injected", f"{sum(tally.faults.values()):,}"),
        ("anomalies found", f"{len(tally.failures):,}"),
    ]
    lines = ["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    lines += ["| fault | times |", "|---|---|"]
    lines += [f"| {kind} | {count:,} |" for kind, count in sorted(tally.faults.items())]
    lines += [""]
    if tally.failures:
        lines += ["| anomaly | seed | what |", "|---|---|---|"]
        for result in tally.failures:
            text = result.text.splitlines()[0][:160].replace("|", "/") if result.text else ""
            lines.append(f"| {result.kind} | `{result.reproduce}` | {text} |")
        lines += [""]
    return "\n".join(lines)
