"""A diagnosis for a person: a line a finding, what it prevents and the mend, and the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from .columns import columns, console_for
from .text import one_line

if TYPE_CHECKING:
    from rich.console import Console

    from ..doctor import Diagnosis

_STYLES = {"fine": "green", "limits": "yellow", "prevents": "bold red", "not known": "magenta"}
_VERDICT_STYLES = {True: "bold green", False: "bold red", None: "bold magenta"}


def print_diagnosis(diagnosis: Diagnosis, file: TextIO | Console | None = None) -> None:
    """Print the table, then for each finding that is not fine what is lost and what to do, then the verdict.

    On a terminal long text is wrapped; in a pipe a finding stays one line.
    """
    from rich.text import Text

    console = console_for(file)
    rows = [["subject", "state", "found"]]
    rows += [[finding.subject, finding.state, one_line(finding.found)] for finding in diagnosis.findings]
    lines = columns(rows)
    lines[0].stylize("bold")
    start = max(len(row[0]) for row in rows) + 2
    for line, finding in zip(lines[1:], diagnosis.findings, strict=True):
        line.stylize(_STYLES[finding.state], start, start + len(finding.state))
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print()
    for finding in diagnosis.findings:
        if finding.effect or finding.mend:
            parts = [finding.effect, f"do this: {finding.mend}" if finding.mend else None]
            told = "; ".join(part for part in parts if part)
            line = Text(f"{finding.subject}: {finding.state}: {one_line(told)}", style=_STYLES[finding.state])
            console.print(line, soft_wrap=not console.is_terminal)
    verdict = diagnosis.verdict
    console.print(
        Text(f"verdict: {one_line(verdict.sentence, 4000)}", style=_VERDICT_STYLES[verdict.symmetric]),
        soft_wrap=not console.is_terminal,
    )
