"""What a canary has to tell: the results of its rows, put together by cause, each of which gets one issue."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from .comparison import Difference
from .report import words
from .report.text import issue_name, one_line
from .result import CaseResult, PhaseResult, Result

Kind = Literal["worse", "fixed", "no-result"]
NO_RESULT = "no-result"


class Row(NamedTuple):
    """One row of the canary's matrix and what it left; None where it left no result, which `trouble` may explain."""

    name: str
    result: Result | None
    trouble: str | None = None


class Finding(NamedTuple):
    """One thing that a row shows: where, what, and how it differs from the last good canary where it was there."""

    row: str
    place: str
    outcome: str
    sentence: str
    mend: str | None = None
    difference: Difference | None = None


class Side(NamedTuple):
    """A version in the last good canary (None where nothing was compared or it isn't known) and now."""

    row: str
    name: str
    before: str | None
    after: str


class Topic(NamedTuple):
    """One cause, and so one issue. `about` is its name in the issue's marker, `link` a known problem's address."""

    kind: Kind
    about: str
    title: str
    findings: list[Finding]
    sides: list[Side]
    link: str | None = None

    @property
    def rows(self) -> list[str]:
        """The rows it was found in, in the matrix's order."""
        return list(dict.fromkeys(finding.row for finding in self.findings))


def topics(rows: Sequence[Row]) -> list[Topic]:
    """What the rows show, a topic for each cause: changes for worse first, then known problems that are gone."""
    found: dict[tuple[Kind, str], Topic] = {}
    for row in rows:
        for topic in _of_row(row):
            key = (topic.kind, topic.about)
            known = found.setdefault(key, topic._replace(findings=[], sides=[]))
            known.findings.extend(topic.findings)
            known.sides.extend(side for side in topic.sides if side not in known.sides)
    order: tuple[Kind, ...] = ("worse", "no-result", "fixed")
    return sorted(found.values(), key=lambda topic: order.index(topic.kind))


def was_judged(row: Row) -> bool:
    """Whether a row's result can show that something is good again: all of it was measured."""
    if row.result is None or row.result.verdict.word not in ("pass", "fail"):
        return False
    phases = (phase for case in row.result.cases for phase in case.phases)
    broken = any(phase.outcome in ("error", "unmeasured") for phase in phases)
    return not broken and (row.result.script is None or row.result.script.trouble is None)


def sides(row: Row) -> list[Side]:
    """The versions that a row ran with, and those of the last good canary."""
    if row.result is None:
        return []
    baseline = row.result.baseline
    then = {changed.name: changed for changed in baseline.versions} if baseline is not None else {}
    now = [("PyTorch", "torch"), ("NCCL", "nccl"), ("CUDA", "cuda"), ("driver", "driver"), ("GPU", "gpu")]
    told = []
    for name, field in now:
        value = getattr(row.result.environment, field)
        changed = then.pop(name, None)
        if value is not None:
            before = changed.before if changed is not None else value if baseline is not None else None
            told.append(Side(row.name, name, before, changed.after if changed is not None else value))
    return told + [Side(row.name, one.name, one.before, one.after) for one in then.values()]


def _of_row(row: Row) -> Iterator[Topic]:
    if row.result is None:
        sentence = row.trouble or "its job ended before the check could write one, or did not start"
        missing = Finding(row.name, "the whole run", "no result", sentence)
        yield Topic("no-result", NO_RESULT, "A row of the canary left no result", [missing], [])
        return
    versions = sides(row)
    some = False
    for cause, finding in _worse(row.name, row.result):
        some = True
        yield Topic("worse", slug(cause), one_line(_TITLES.get(cause, f"Fell back: {cause}"), 120), [finding], versions)
    if not some and row.result.verdict.word != "pass":
        word = row.result.verdict.word
        whole = Finding(row.name, "the whole run", word, row.result.verdict.sentence)
        cause = "gate" if word == "fail" else word
        yield Topic("worse", slug(cause), _TITLES.get(cause, f"The verdict is {word}"), [whole], versions)
    for case, phase in _phases(row.result):
        if phase.outcome == "fixed" and phase.known is not None:
            link = phase.known.issue
            name = issue_name(link)
            gone = Finding(row.name, _place(case, phase), "fixed", words.finding(case, phase))
            yield Topic(
                "fixed", slug(f"fixed-{name}"), one_line(f"Fixed upstream: {name}", 120), [gone], versions, link
            )


_TITLES: Mapping[str, str] = {
    "regressed": "No longer symmetric, for a reason that isn't known",
    "fail": "Not as the suite expects, for a reason that isn't known",
    "error": "A case raises, hangs or gives wrong values",
    "unmeasured": "Nothing, or not everything, could be measured",
    "gate": "The gate does not hold",
}


def _worse(row: str, result: Result) -> Iterator[tuple[str, Finding]]:
    """What fails the gate, each with its cause's name, or its outcome where no cause is known."""
    failing = set(result.gate.fail_on)
    lost = result.baseline.regressed if result.baseline is not None else []
    by_phase = {(one.case, one.phase): one for one in lost if one.case is not None}
    for case, phase in _phases(result):
        if phase.outcome in failing:
            cause = phase.cause if phase.outcome in ("regressed", "fail") else None
            mend = cause.mend if cause is not None else None
            told = words.finding(case, phase)
            difference = by_phase.get((case.id, phase.phase))
            finding = Finding(row, _place(case, phase), phase.outcome, told, mend, difference)
            yield cause.name if cause is not None else phase.outcome, finding
    for one in lost if "regressed" in failing else []:
        if one.case is None:
            name, mend = _script_cause(result, one)
            yield name, Finding(row, one.place, "regressed", one.sentence, mend, one)


def _script_cause(result: Result, lost: Difference) -> tuple[str, str | None]:
    """Why a script's collectives fell back, where that is known of those with the most bytes."""
    for fallen in result.script.fallen if result.script is not None else []:
        same = (fallen.phase, fallen.kind, fallen.group, fallen.group_size, fallen.dtype)
        if fallen.cause is not None and same == (lost.phase, lost.kind, lost.group, lost.group_size, lost.dtype):
            return fallen.cause.name, fallen.cause.mend
    return "regressed", None


def _phases(result: Result) -> Iterator[tuple[CaseResult, PhaseResult]]:
    return ((case, phase) for case in result.cases for phase in case.phases)


def _place(case: CaseResult, phase: PhaseResult) -> str:
    return f"{case.id} {phase.phase}"


def slug(text: str) -> str:
    """A name for a marker: letters, digits, dots and dashes, 64 at most, whatever the text holds."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:64] or "unnamed"
