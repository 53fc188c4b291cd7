"""A Result as GitHub Markdown for the step summary, from templates/summary.md.j2."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model import Coverage
from ..result import CaseResult, KernelSeen, PhaseResult, Result
from ..suite import GatePhase
from . import script, words
from .text import Markdown, code, fence, issue_link, markdown

if TYPE_CHECKING:
    import jinja2

GLOSSARY = "README.md#the-words"
# GitHub throws away a summary above 1 MiB, the whole of it; result.json has every traceback.
_DETAILS = 20


def summary_markdown(result: Result, *, glossary: str = GLOSSARY) -> str:
    """The step summary: the verdict first, then coverage, cases, causes with their mends, and the rest folded.

    `glossary` is where the words are explained, as a link that works where the summary is shown.
    """
    document = (
        _templates()
        .get_template("summary.md.j2")
        .render(
            result=result,
            glossary=Markdown(glossary),
            phases=words.phases_of(result),
            told=words.to_tell(result),
            notes=words.notes(result),
            details=[case for case in result.cases if case.detail][:_DETAILS],
            controls=list(_controls(result)),
            kernels=list(_kernels(result)),
            words=words,
            script_words=script,
        )
    )
    return document.rstrip("\n") + "\n"


@functools.cache
def _templates() -> jinja2.Environment:
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        # HTML's escaping would not do for Markdown, so each value is escaped on its way out instead.
        autoescape=False,
        finalize=_escaped,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {
        "cell": _cell,
        "code": code,
        "dictsort_phases": _by_phase,
        "fence": fence,
        "issue_link": issue_link,
        "where": _where,
    }
    return templates


def _escaped(value: Any) -> str:
    return value if isinstance(value, Markdown) else markdown(str(value))


def _by_phase(coverage: dict[GatePhase, Coverage]) -> list[tuple[GatePhase, Coverage]]:
    return [(phase, coverage[phase]) for phase in words.GATE_PHASES if phase in coverage]


def _cell(phase: PhaseResult | None) -> Markdown:
    """One phase of a case: `pass: symmetric `RSxLD_AGxST``; what is no plain pass is bold."""
    if phase is None:
        return Markdown("not judged")
    outcome = f"**{phase.outcome}**" if phase.outcome != "pass" else "pass"
    if words.is_control(phase):
        outcome = "pass (control)"
    if not any(words.calls(phase.coverage)):
        return Markdown(outcome)
    kernels = ", ".join(code(label, 80) for label in words.labels(phase.kernels))
    return Markdown(f"{outcome}: {markdown(words.how_it_ran(phase))} {kernels}".strip())


def _where(told: words.Told, result: Result) -> Markdown:
    """The cases and phases that a finding is about: the first eight, and how many more."""
    places = words.places(told, result)
    if places is None:
        return Markdown(f"all {len(result.cases)} cases")
    more = f" and {len(places) - 8} more" if len(places) > 8 else ""
    return Markdown(", ".join(f"{code(id)} {phases}" for id, phases in places[:8]) + more)


def _controls(result: Result) -> Iterator[tuple[CaseResult, PhaseResult]]:
    for case in result.cases:
        for phase in case.phases:
            if words.is_control(phase):
                yield case, phase


def _kernels(result: Result) -> Iterator[tuple[CaseResult, PhaseResult, KernelSeen]]:
    for case in result.cases:
        for phase in case.phases:
            for seen in phase.kernels:
                yield case, phase, seen
