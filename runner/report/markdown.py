"""A Result as GitHub Markdown, for the step summary and for a comment, from templates/summary.md.j2."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..model import Coverage, GatePhase
from ..result import FAILING, CaseResult, KernelSeen, PhaseResult, Result
from . import comparison, limits, script, words
from .text import Markdown, code, fence, issue_link, markdown

if TYPE_CHECKING:
    import jinja2

_IN_RESULT = "result.json has all of it"


def summary_markdown(result: Result, *, glossary: str | None = None) -> str:
    """The step summary: the verdict first, then coverage, cases, causes with their mends, and the rest folded.

    `glossary` is where the words are explained, as a link that works where the summary is shown. What GitHub would not
    take is left out, the least important first, and the summary says so.
    """
    more: dict[str, Any] = {
        "details": [case for case in result.cases if case.detail],
        "controls": list(_controls(result)),
        "kernels": list(_kernels(result)),
    }
    return limits.fitted(_document(result, glossary, **more), limits.SUMMARY_LIMIT, limits.utf8_bytes, _IN_RESULT)


def comment_markdown(
    result: Result,
    *,
    marker: str,
    sha: str,
    run_url: str | None = None,
    fork: bool = False,
    glossary: str | None = None,
) -> str:
    """A pull request's comment: as the summary, with its cases folded and without kernels, controls and tracebacks.

    `marker` is its first line, which nobody sees; `sha` the commit that ran, `run_url` the run's page. `fork` tells
    the reader that a fork's own code made the result. Without `glossary` the words are no links.
    """
    run = f"[its run]({run_url})" if run_url and limits.is_plain_url(run_url) else "its run"
    about = f"Of commit {markdown(sha[:12], 12)}; {run} has the summary with kernels and tracebacks."
    if fork:
        about += " The result was made by the fork's own code."
    where = f"the summary of {run} has all of it"
    document = _document(result, glossary, fold=True, marker=Markdown(marker), comment=Markdown(about))
    return limits.fitted(document, limits.COMMENT_LIMIT, limits.characters, where)


def _document(result: Result, glossary: str | None, *, fold: bool = False, **more: Any) -> str:
    """The rendered template, still with the marks of limits.py."""
    from ..judge.bandwidth import conclusion, size_name

    alone = result.environment.ranks_per_gpu == 1
    bandwidth = [row for case in result.cases for row in case.bandwidth] if alone else []
    kinds = dict.fromkeys(row.kind for row in bandwidth)
    common: dict[str, Any] = {
        "result": result,
        "term": lambda word: Markdown(f"[{word}]({glossary})" if glossary else word),
        "phases": words.phases_of(result),
        "told": words.to_tell(result),
        "notes": words.notes(result),
        "bandwidth": bandwidth,
        "conclusions": [sentence for kind in kinds if (sentence := conclusion(kind, bandwidth))],
        "size_name": size_name,
        "words": words,
        "script_words": script,
        "comparison": comparison,
        "tables": _tables(result, fold),
        "marker": None,
        "comment": None,
        "details": [],
        "controls": [],
        "kernels": [],
    }
    return _templates().get_template("summary.md.j2").render(common | more)


def _tables(result: Result, fold: bool) -> list[tuple[str | None, list[CaseResult]]]:
    """The cases in tables, each with the title it is folded under: what changed or fails stays open, on top.

    Without a baseline to tell what changed, all are shown, unless `fold` asks for those only that fail.
    """
    compared = result.baseline is not None and not result.baseline.incomparable
    if not compared and not fold:
        return [(None, result.cases)]
    changed = {found.case for found in result.baseline.differences} if result.baseline is not None else set()
    top = [case for case in result.cases if case.id in changed or not _weight(case)]
    rest = [case for case in result.cases if case.id not in changed and _weight(case)]
    number = f"{len(rest)} case{'s' * (len(rest) != 1)}"
    title = f"{number} as before" if compared else f"All {number}" if not top else f"{number} more"
    return [(None, top), (title, rest)]


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
    templates.globals |= {"part": limits.part, "item": limits.item, "foot": limits.FOOT}
    templates.filters |= {
        "cell": _cell,
        "code": code,
        "dictsort_phases": _by_phase,
        "fence": fence,
        "issue_link": issue_link,
        "weight": _weight,
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


def _weight(case: CaseResult) -> int:
    """How soon a case's row is left out where not all have room: those that fail the gate last."""
    outcomes = {phase.outcome for phase in case.phases}
    return 0 if outcomes & FAILING else 1 if outcomes - {"pass"} else 2


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
