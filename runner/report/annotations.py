"""A Result as annotations: GitHub's workflow commands, a line each, for a step's output.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from ..result import FAILING, Outcome, Result
from . import words
from .text import one_line

Level = Literal["error", "warning", "notice"]

MOST_A_LEVEL = 10
"""GitHub shows so many of each type a step, and drops the others in silence; a composite action is one step."""
LONGEST_MESSAGE = 4096
"""Characters; the runner cuts what is longer."""

_WARNING: frozenset[Outcome] = frozenset({"regressed", "fail", "error", "unmeasured", "fixed"})
_SILENT: frozenset[Outcome] = frozenset({"pass"})


class Annotation(NamedTuple):
    """One annotation: its level, a title, a message, the file it belongs to where there is one, and what to do."""

    level: Level
    title: str
    message: str
    file: str | None = None
    mend: str | None = None


def annotation_lines(result: Result, *, failing: Collection[Outcome] = FAILING) -> list[str]:
    """The lines to print: an error for each finding that fails the gate, a warning or notice for the others.

    `failing` are the outcomes that fail it. No level has more than GitHub shows; the last one says how many more.
    """
    found = [*_verdict(result, failing), *_regressed(result, failing), *_findings(result, failing), *_causes(result)]
    levels: tuple[Level, ...] = ("error", "warning", "notice")
    return [command(one) for level in levels for one in _bounded([one for one in found if one.level == level])]


def command(annotation: Annotation) -> str:
    """One workflow command, of one line whatever the texts hold. The mend is shown on a line of its own."""
    title = one_line(f"symmem-check: {annotation.title}", 200)
    properties = [f"title={_property(title)}"]
    if annotation.file is not None:
        properties.insert(0, f"file={_property(one_line(annotation.file, 500))}")
    mend = f"\nDo this: {one_line(annotation.mend)}" if annotation.mend else ""
    message = one_line(annotation.message, LONGEST_MESSAGE - len(mend)) + mend
    return f"::{annotation.level} {','.join(properties)}::{_data(message)}"


def _verdict(result: Result, failing: Collection[Outcome]) -> list[Annotation]:
    """The verdict where it does not hold: its reason may stand in no case, such as a coverage below its minimum."""
    if result.verdict.word == "pass":
        return []
    level: Level = "error" if result.verdict.word == "fail" or "unmeasured" in failing else "warning"
    return [Annotation(level, result.verdict.word, result.verdict.sentence, _script(result))]


def _regressed(result: Result, failing: Collection[Outcome]) -> list[Annotation]:
    """What a script lost against its baseline; a case's loss is among the findings."""
    level: Level = "error" if "regressed" in failing else "warning"
    lost = [one for one in result.baseline.regressed if one.case is None] if result.baseline is not None else []
    return [Annotation(level, "regressed", f"{one.place}: {one.sentence}", _script(result)) for one in lost]


def _findings(result: Result, failing: Collection[Outcome]) -> list[Annotation]:
    found = []
    for told in words.to_tell(result):
        outcome = told.phase.outcome
        if outcome in _SILENT:
            continue
        level: Level = "error" if outcome in failing else "warning" if outcome in _WARNING else "notice"
        places = words.places(told, result)
        if places is None:
            where = f"all {len(result.cases)} cases"
        else:
            more = f" and {len(places) - 8} more" if len(places) > 8 else ""
            where = ", ".join(f"{case} {phases}" for case, phases in places[:8]) + more
        known = f" Known upstream: {told.phase.known.issue}" if told.phase.known else ""
        found.append(Annotation(level, outcome, f"{where}: {told.finding}.{known}", mend=told.mend))
    return found


def _causes(result: Result) -> list[Annotation]:
    """Why collectives of the user's own script fell back; the gate is on their coverage, so none is an error."""
    from .script import causes

    if result.script is None:
        return []
    return [
        Annotation("warning", cause.name, cause.sentence, _script(result), cause.mend)
        for cause in causes(result.script)
    ]


def _script(result: Result) -> str | None:
    """The script's file where it is the repository's, so that the annotation stands in the pull request's files."""
    # Of recorded traces the command is their names, and they are in no repository.
    command = result.script.command if result.script is not None and not result.script.recorded else []
    if not command or command[0].startswith("/") or ".." in command[0].split("/"):
        return None
    return command[0]


def _bounded(found: Sequence[Annotation]) -> list[Annotation]:
    if len(found) <= MOST_A_LEVEL:
        return list(found)
    shown = list(found[: MOST_A_LEVEL - 1])
    more = len(found) - len(shown)
    return [*shown, Annotation(found[0].level, f"{more} more", f"{more} more of these are in the step summary.")]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
