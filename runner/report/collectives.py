"""The collectives of traces as a table for a person, or as CSV for a spreadsheet."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from ..model import PHASES, Collective, Coverage, Phase
from . import words
from .columns import columns, console_for
from .text import one_line, spreadsheet

if TYPE_CHECKING:
    from rich.console import Console

    from ..trace.collectives import TraceFile

_TITLES = [
    "rank", "step", "phase", "kind", "mechanism", "symmetric", "dtype", "bytes", "group", "kernel", "launches", "calls"
]  # fmt: skip
_NUMBERS = (0, 1, 7, 10, 11)
_SYMMETRIC = {True: "yes", False: "no", None: "unknown"}


def print_collectives_table(
    files: Sequence[TraceFile], coverage: Mapping[Phase, Coverage], file: TextIO | Console | None = None
) -> None:
    """Print each file's collectives, alike ones as one row, then coverage by phase, to `file` (stdout if None).

    Alike are those that differ in step and time only: `step` tells which steps, `launches` how many there were, and
    `calls` how many calls they served. Nothing is cut.
    """
    console = console_for(file)
    for trace in files:
        _print_line(console, f"{trace.file}: {_about(trace)}", "bold")
        if trace.salvaged is not None:
            _print_line(console, f"salvaged: {trace.salvaged}", "yellow")
        if trace.collectives:
            for number, line in enumerate(columns([_TITLES, *_merged(trace.collectives)], right=_NUMBERS)):
                line.stylize("bold" if number == 0 else "")
                console.print(line, soft_wrap=True)
        console.print()
    for phase in PHASES:
        if phase in coverage and any(words.calls(coverage[phase])):
            found = coverage[phase]
            _print_line(console, f"coverage {phase}: {words.percent(found.ratio)} ({words.coverage_counts(found)})")


def write_collectives_csv(files: Iterable[TraceFile], file: TextIO) -> None:
    """Write one row a collective, after a row of names: `file`, then the fields of Collective; null is empty.

    Text that a spreadsheet would run as a formula gets a quote before it.
    """
    fields = Collective.__struct_fields__
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["file", *fields])
    for trace in files:
        for collective in trace.collectives:
            writer.writerow([spreadsheet(trace.file), *(_csv_cell(getattr(collective, name)) for name in fields)])


def _csv_cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return spreadsheet(value) if isinstance(value, str) else value


def _print_line(console: Console, line: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(one_line(line, 4000), style=style), soft_wrap=True)


def _about(trace: TraceFile) -> str:
    number = len(trace.collectives)
    parts = [f"{number} collective{'' if number == 1 else 's'}"]
    if trace.rank is not None:
        of = f" of {trace.world_size}" if trace.world_size is not None else ""
        parts.append(f"rank {trace.rank}{of}")
    if trace.gpu_rows == 0:
        parts.append("no GPU events, so nothing is known of them")
    if trace.one_rank_calls:
        parts.append(f"{trace.one_rank_calls} calls to a group of one rank, which communicate nothing")
    if trace.barrier_calls:
        parts.append(f"{trace.barrier_calls} barriers")
    return "; ".join(parts)


def _merged(collectives: Iterable[Collective]) -> list[list[str]]:
    """A row for each sort of collective, in the order in which they first ran."""
    alike: dict[tuple[str, ...], list[Collective]] = {}
    for one in collectives:
        group = one.group or "?"
        if one.group_size is not None:
            group += f" ({one.group_size})"
        key = (
            "?" if one.rank is None else str(one.rank),
            one.phase, one.kind, one.mechanism, _SYMMETRIC[one.symmetric], one.dtype or "?",
            "?" if one.bytes is None else _size(one.bytes), group, words.kernel_label(one.kernel, one.algorithm),
        )  # fmt: skip
        alike.setdefault(key, []).append(one)
    rows = []
    for (rank, *rest), found in alike.items():
        calls = sum(one.calls for one in found)
        cells = [rank, _steps(found), *rest, str(len(found)), str(calls)]
        rows.append([one_line(cell, 120) for cell in cells])
    return rows


def _steps(collectives: Iterable[Collective]) -> str:
    """The steps as people write them: `0-2,5`; `?` for those without."""
    steps = {one.step for one in collectives}
    runs: list[list[int]] = []
    for step in sorted(step for step in steps if step is not None):
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    told = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ",".join(told + ["?"] * (None in steps))


def _size(number: int) -> str:
    """Bytes exactly, in the largest binary unit that leaves a whole number."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if number and number % unit == 0:
            return f"{number // unit} {name}"
    return f"{number} B"
