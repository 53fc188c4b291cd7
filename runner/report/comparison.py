"""What changed between two runs, for a person at a terminal or in a pipe."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TextIO

from ..comparison import CHANGES, Change, Comparison, PerStep
from .columns import columns, console_for
from .text import one_line

if TYPE_CHECKING:
    from rich.console import Console

TITLES = ("change", "what", "symmetric", "fell back", "not eligible", "unknown")
STYLES: dict[Change, str] = {
    "regressed": "bold red", "unmeasured": "bold magenta", "removed": "yellow", "improved": "green",
}  # fmt: skip


def print_comparison(comparison: Comparison, file: TextIO | Console | None = None) -> None:
    """Print a line a difference, launches a step before and after, then what else changed, and a summary."""
    console = console_for(file)
    if comparison.differences:
        rows = [
            [found.change, one_line(found.place), *cells(found.before, found.after)] for found in comparison.differences
        ]
        lines = columns([list(TITLES), *rows])
        lines[0].stylize("bold")
        for line, found in zip(lines[1:], comparison.differences, strict=True):
            line.stylize(STYLES.get(found.change, ""), 0, len(found.change))
        for line in lines:
            console.print(line, soft_wrap=True)
        console.print()
    for told in beside(comparison):
        _print(console, told)
    _print(
        console, f"compared with {comparison.file}: {summary(comparison)}", "bold red" if comparison.regressed else ""
    )


def _print(console: Console, line: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(one_line(line, 4000), style=style), soft_wrap=True)


def cells(before: PerStep | None, after: PerStep | None) -> list[str]:
    """`6 → 0`, or `6` where it is the same, for each of the four groups; `–` where it is missing or not measured."""
    names = PerStep.__struct_fields__
    then = [f"{getattr(before, name):g}" if before is not None else "–" for name in names]
    now = [f"{getattr(after, name):g}" if after is not None else "–" for name in names]
    return [old if old == new else f"{old} → {new}" for old, new in zip(then, now, strict=True)]


def beside(comparison: Comparison) -> list[str]:
    """What changed beside the collectives, and how was counted, a line each."""
    lines = [f"also changed: {', '.join(map(str, comparison.versions))}"] if comparison.versions else []
    lines += [f"expected otherwise, which excuses nothing: {changed}" for changed in comparison.expectations]
    return lines + [f"note: {note}" for note in comparison.notes]


def summary(comparison: Comparison) -> str:
    """`1 regressed, 2 new, 13 as they were`, or why nothing was compared."""
    if comparison.incomparable:
        return f"incomparable: {'; '.join(comparison.incomparable)}"
    found = Counter(difference.change for difference in comparison.differences)
    told = [f"{found[change]} {change}" for change in CHANGES if found[change]]
    return ", ".join([*told, f"{comparison.same} as {'it was' if comparison.same == 1 else 'they were'}"])
