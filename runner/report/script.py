"""What a script's run or recorded traces showed, for a terminal: the collectives, those that fell back, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..findings import Cause
from ..script_result import Fallen, ScriptResult, ScriptRow
from . import words
from .columns import columns
from .text import one_line

if TYPE_CHECKING:
    from rich.console import Console

ROW_TITLES = (
    "phase", "kind", "dtype", "group", "ranks", "calls/step",
    "symmetric", "fell back", "not eligible", "unknown", "ran as",
)  # fmt: skip
FALLEN_TITLES = ("bytes/step", "calls/step", "bytes", "phase", "kind", "dtype", "op", "module", "cause")
SHOWN = 20


def print_script(console: Console, script: ScriptResult) -> None:
    """Print the rows of the collectives, then those that fell back, most bytes first, with causes and mends."""
    if script.rows:
        _print(console, [list(ROW_TITLES), *map(row_cells, script.rows)], right=range(4, 10))
    if script.fallen:
        console.print("fell back, most bytes first:", style="bold", soft_wrap=True)
        shown = script.fallen[:SHOWN]
        _print(console, [list(FALLEN_TITLES), *map(fallen_cells, shown)], right=range(3))
        if more := left_out(script):
            console.print(f"and {more} more, in result.json", soft_wrap=True)
    for cause in causes(script):
        told = f"{cause.name} ({cause.certainty}): {cause.sentence}; do this: {cause.mend}"
        console.print(one_line(told, 4000), soft_wrap=True)


def left_out(script: ScriptResult) -> int:
    """How many of the collectives that fell back are not shown."""
    return max(0, len(script.fallen) - SHOWN) + script.more_fallen


def row_cells(row: ScriptRow) -> list[str]:
    """A row's cells, in the order of ROW_TITLES."""
    return [
        row.phase, row.kind, row.dtype or "unknown", one_line(row.group or "unknown", 60),
        "unknown" if row.group_size is None else str(row.group_size), f"{row.calls_per_step:g}",
        *map(str, words.calls(row.coverage)), one_line(", ".join(words.labels(row.kernels)), 80),
    ]  # fmt: skip


def fallen_cells(fallen: Fallen) -> list[str]:
    """The cells of one entry that fell back, in the order of FALLEN_TITLES."""
    size = fallen.bytes
    return [
        "unknown" if size is None else f"{size * fallen.calls_per_step:.0f}", f"{fallen.calls_per_step:g}",
        "unknown" if size is None else str(size), fallen.phase, fallen.kind, fallen.dtype or "unknown",
        one_line(fallen.op or "-", 80), one_line(fallen.module or "-", 120), fallen.cause.name if fallen.cause else "-",
    ]  # fmt: skip


def causes(script: ScriptResult) -> list[Cause]:
    """The causes of what fell back, each once, in its order."""
    return list({fallen.cause.name: fallen.cause for fallen in reversed(script.fallen) if fallen.cause}.values())[::-1]


def _print(console: Console, cells: list[list[str]], right: range) -> None:
    for number, line in enumerate(columns(cells, right=right)):
        line.stylize("bold" if number == 0 else "")
        console.print(line, soft_wrap=True)
    console.print()
