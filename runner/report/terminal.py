"""A Result for a person at a terminal, or in a pipe: a table, what needs attention, coverage, verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from ..model import GatePhase
from ..result import FAILING, CaseResult, Result
from . import words
from .collectives import print_collectives_table, write_collectives_csv
from .columns import columns, console_for
from .comparison import print_comparison
from .script import print_script
from .text import issue_name, one_line

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_collectives_table", "print_run_table", "write_collectives_csv"]

_STYLES = {
    "pass": "green", "fixed": "bold green", "known": "yellow", "incapable": "yellow",
    "unmeasured": "bold magenta", "no-capacity": "bold magenta",
}  # fmt: skip
_BAD = "bold red"
_LOUD = FAILING | {"fixed"}


def print_run_table(result: Result, file: TextIO | Console | None = None) -> None:
    """Print a line a case, then what needs attention, coverage and verdict, to `file` (stdout if None).

    On a terminal too narrow for that, the table has a line for each case and phase. Ids are never cut, and in a pipe
    nothing is wrapped or coloured.
    """
    console = console_for(file)
    if result.replay:
        _print(console, words.REPLAY, style="bold")
    if result.cases:
        _print_table(console, result)
    if result.script is not None:
        print_script(console, result.script)
    if result.baseline is not None:
        print_comparison(result.baseline, console)
    for told in words.to_tell(result):
        _print(
            console, _sentence(told, result), style=_style(told.phase.outcome) if told.phase.outcome in _LOUD else ""
        )
    for note in words.notes(result):
        _print(console, f"note: {note}")
    for phase in words.GATE_PHASES:
        if phase in result.coverage:
            found = result.coverage[phase]
            before = result.baseline.coverage.get(phase) if result.baseline is not None else None
            was = f"; the baseline had {words.percent(before.ratio)}" if before is not None else ""
            _print(console, f"coverage {phase}: {words.percent(found.ratio)} ({words.coverage_counts(found)}{was})")
    verdict = result.verdict
    _print(console, f"verdict: {verdict.word}: {one_line(verdict.sentence)}", style=_style(verdict.word))


def _print(console: Console, line: str, style: str = "") -> None:
    from rich.text import Text

    # Out of a terminal one finding stays one line, to be found by grep.
    console.print(Text(one_line(line, 4000), style=style), soft_wrap=not console.is_terminal)


def _style(word: str) -> str:
    return _STYLES.get(word, _BAD)


def _print_table(console: Console, result: Result) -> None:
    phases = words.phases_of(result)
    wide = [["case", *(title for phase in phases for title in (phase, "outcome"))]]
    wide += [[one_line(case.id), *(cell for phase in phases for cell in _cells(case, phase))] for case in result.cases]
    lines = columns(wide)
    if console.is_terminal and max(line.cell_len for line in lines) > console.width:
        narrow = [["case", "phase", "ran as", "outcome"]]
        narrow += [[one_line(case.id), phase, *_cells(case, phase)] for case in result.cases for phase in phases]
        lines = columns(narrow)
    lines[0].stylize("bold")
    for line in lines[1:]:
        for outcome in words.WORST_FIRST:
            line.highlight_regex(rf"(?<=  ){outcome}(?= |$)", _style(outcome))
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print()


def _cells(case: CaseResult, name: GatePhase) -> list[str]:
    phase = words.phase_of(case, name)
    return ["-", "-"] if phase is None else [one_line(words.ran_as(phase), 80), phase.outcome]


def _sentence(told: words.Told, result: Result) -> str:
    """`all_reduce/step backward: fell back, because …; do this: …`"""
    places = words.places(told, result)
    if places is None:
        where = f"all {len(result.cases)} cases"
    else:
        where = ", ".join(map(" ".join, places[:4])) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
    sentence = f"{where}: {told.phase.outcome}: {told.finding}"
    if told.mend:
        sentence += f"; do this: {told.mend}"
    known = told.phase.known
    if known is not None:
        sentence += f"; known upstream: {issue_name(known.issue)}, {known.title}"
    return sentence
