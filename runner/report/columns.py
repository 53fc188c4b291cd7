"""Columns of plain text for terminals and pipes: aligned, never cut, without lines of boxes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def console_for(file: TextIO | Console | None) -> Console:
    """`file` as a rich Console that takes text as it is; None is stdout."""
    from rich.console import Console

    if isinstance(file, Console):
        return file
    return Console(file=file, markup=False, emoji=False, highlight=False)


def columns(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> list[Text]:
    """Rows of cells as lines, two spaces between columns; those numbered in `right` are flush right.

    Width counts what a terminal shows: two places for East Asian wide characters, none for combining ones.
    """
    from rich.cells import cell_len
    from rich.text import Text

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - cell_len(cell))
            cells.append(padding + cell if number in right else cell + padding)
        lines.append(Text("  ".join(cells).rstrip()))
    return lines
