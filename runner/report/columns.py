"""Columns of plain text for terminals and pipes: aligned, never cut, without lines of boxes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from .text import inert

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def console_for(file: TextIO | Console | None) -> Console:
    """`file` as a rich Console that takes text as it is; None is stdout. In a pipe no line is a workflow command."""
    from rich.console import Console

    if isinstance(file, Console):
        return file
    output = file or sys.stdout
    if not output.isatty():
        output = cast("TextIO", _Inert(output))

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to the command line: rich would end with status 1, which says that the gate does not hold."""
            raise BrokenPipeError

    return Quiet(file=cast("IO[str]", output), markup=False, emoji=False, highlight=False)


class _Inert:
    """A text stream through which nothing passes for a workflow command; each write begins a line."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(inert(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


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
