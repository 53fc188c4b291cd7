"""A Result as one HTML file that asks for nothing from anywhere, from templates/page.html.j2 and its neighbours."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..comparison import CHANGES, Change, Difference
from ..errors import UserError
from ..judge.bandwidth import conclusion, size_name
from ..model import Amount, Coverage, GatePhase
from ..result import CaseResult, Outcome, PhaseResult, Result
from . import script, words
from .page_timeline import timeline
from .text import cut, is_issue_url, issue_name, one_line

if TYPE_CHECKING:
    import jinja2

_TEMPLATES = Path(__file__).parent / "templates"
# A traceback or a list as long as these is read in result.json, where it is whole.
_DETAIL, _ROWS = 8_000, 200

SIGNS: dict[Outcome, str] = {
    "regressed": "↓", "fail": "✕", "error": "!", "unmeasured": "?", "fixed": "★", "known": "≈", "incapable": "–",
    "pass": "✓",
}  # fmt: skip
"""A sign for each outcome, so that none is told by colour alone."""

CHANGE_SIGNS: dict[Change, str] = {
    "regressed": "↓", "unmeasured": "?", "removed": "–", "changed": "≠", "new": "+", "improved": "↑",
}  # fmt: skip

LETTERS: dict[str, tuple[str, str]] = {
    "nccl-symmetric": ("S", "NCCL symmetric kernel"), "nccl-copy-engine": ("C", "NCCL copy engine (symmetric)"),
    "torch-symm-mem": ("T", "PyTorch symmetric memory"), "nvshmem": ("V", "NVSHMEM (symmetric)"),
    "library-symmetric": ("L", "a library's symmetric kernel"), "rccl-symmetric": ("S", "RCCL symmetric kernel"),
    "nccl": ("G", "NCCL general kernel"), "rccl": ("G", "RCCL general kernel"),
    "peer-mapped": ("P", "peer-mapped memory"), "unknown": ("?", "unknown kernel"),
}  # fmt: skip
"""The letter of each mechanism in the timeline, and its name in the legend."""


class Part(NamedTuple):
    """One part of a coverage bar: its group, where it begins and how wide it is, in percent, and its launches."""

    group: str
    start: float
    width: float
    number: int


def write_page(result: Result, path: Path) -> None:
    """Write the page of `result` to `path`, in UTF-8. Raises UserError where it can't be written."""
    try:
        path.write_text(page_html(result), encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{path}: the page can't be written ({error.strerror or error}); give --page FILE") from None


def page_html(result: Result) -> str:
    """The page: verdict, coverage, what to know, the cases with their timelines, the script, and the environment.

    It is one HTML document with its style, script and data inside; its content security policy lets it load nothing.
    """
    style, *scripts = (_asset(name) for name in ("page.css", "page.js", "page.parts.js", "page.timeline.js"))
    timelines = [timeline(case, cases=len(result.cases), hosts=result.environment.hosts) for case in result.cases]
    data = {"letters": LETTERS, "timelines": timelines}
    return (
        _templates()
        .get_template("page.html.j2")
        .render(
            result=result,
            policy=_policy(style, scripts),
            style=style,
            scripts=scripts,
            data=_json(data),
            drawn=[one is not None for one in timelines],
            phases=words.phases_of(result),
            told=words.to_tell(result),
            notes=words.notes(result),
            outcomes=_outcomes(result),
            pools=_pools(result),
            opened=_worth_opening(result, timelines),
            differences=_differences(result),
            **_bandwidth(result),
            change_signs=CHANGE_SIGNS,
            letters=LETTERS,
            signs=SIGNS,
            script=script,
            words=words,
            rows=_ROWS,
        )
    )


def _asset(name: str) -> str:
    text = (_TEMPLATES / name).read_text(encoding="utf-8")
    return f"\n{text.strip()}\n"


def _policy(style: str, scripts: list[str]) -> str:
    """Nothing but the page's own style and scripts, told by their hashes. https://www.w3.org/TR/CSP3/"""
    run = " ".join(map(_hash, scripts))
    return (
        f"default-src 'none'; script-src {run}; style-src {_hash(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(data: object) -> str:
    """JSON that may stand in an HTML script element: in ASCII, and without the characters that could end it."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.cache
def _templates() -> jinja2.Environment:
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=_cleaned,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "amount": size_name,
        "by_phase": _by_phase,
        "cut": functools.partial(_lines, limit=_DETAIL),
        "facts": lambda case: list(_facts(case)),
        "is_issue_url": is_issue_url,
        "issue_name": issue_name,
        "outcomes_of": lambda case: {phase.phase: phase.outcome for phase in case.phases},
        "parts": _parts,
    }
    return templates


def _cleaned(value: Any) -> Any:
    """What the template puts out: on one line and without control characters; the template escapes it then."""
    return one_line(value, 2000) if type(value) is str else value


class _Lines(str):
    """Cleaned text whose lines stay lines; it is still escaped."""

    __slots__ = ()


def _lines(text: str, limit: int) -> _Lines:
    return _Lines(cut(text, limit))


def _by_phase(coverage: dict[GatePhase, Coverage]) -> list[tuple[GatePhase, Coverage]]:
    return [(phase, coverage[phase]) for phase in words.GATE_PHASES if phase in coverage]


def _parts(found: Coverage) -> list[Part]:
    """The parts of a coverage bar, by launches, those that are there."""
    named = (
        ("symmetric", found.symmetric), ("fallback", found.fallback), ("ineligible", found.ineligible),
        ("unknown", found.unknown),
    )  # fmt: skip
    amounts: list[tuple[str, Amount]] = [(name, amount) for name, amount in named if amount.calls > 0]
    total = sum(amount.calls for _, amount in amounts)
    parts: list[Part] = []
    start = 0.0
    for name, amount in amounts:
        width = 100 * amount.calls / total
        parts.append(Part(name, round(start, 3), round(width, 3), amount.calls))
        start += width
    return parts


def _outcomes(result: Result) -> list[tuple[Outcome, int]]:
    """The outcomes that are there, the worst first, each with its number of phases."""
    found = Counter(phase.outcome for case in result.cases for phase in case.phases)
    return [(outcome, found[outcome]) for outcome in words.WORST_FIRST if found[outcome]]


def _differences(result: Result) -> list[Difference]:
    """What differs from the baseline, the worst first."""
    found = result.baseline.differences if result.baseline is not None else []
    return sorted(found, key=lambda one: CHANGES.index(one.change))


def _bandwidth(result: Result) -> dict[str, Any]:
    """What was measured of time and bandwidth, where that means something, and a sentence for each kind."""
    alone = result.environment.ranks_per_gpu == 1
    rows = [row for case in result.cases for row in case.bandwidth] if alone else []
    told = (conclusion(kind, rows) for kind in dict.fromkeys(row.kind for row in rows))
    return {"bandwidth": rows, "conclusions": [sentence for sentence in told if sentence]}


def _pools(result: Result) -> list[str]:
    """The pool set-ups of the cases, in their order."""
    return list(dict.fromkeys(str(case.axes["pool"]) for case in result.cases if "pool" in case.axes))


def _worth_opening(result: Result, timelines: list[Any]) -> int | None:
    """The number of the case that is open at first: the worst one, of those the first with a timeline."""

    def rank(phase: PhaseResult) -> int:
        return words.WORST_FIRST.index(phase.outcome)

    ranked = [
        (min(map(rank, case.phases)), timelines[number] is None, number)
        for number, case in enumerate(result.cases)
        if case.phases
    ]
    return min(ranked)[2] if ranked else None


def _facts(case: CaseResult) -> Iterator[tuple[str, str]]:
    """What is known of a case beside its phases, as name and value."""
    for name, value in case.axes.items():
        yield name, size_name(value) if name == "size" and isinstance(value, int) else str(value)
    if case.configuration != "default":
        yield "configuration", case.configuration
    if case.pool is not None:
        registered = {"symmetric": "symmetric", "plain": "yes, but not symmetric", "none": "no"}
        yield "registered with NCCL", registered[case.pool.registered]
        yield "allocator", case.pool.allocator or "torch's default"
        yield "segments", str(case.pool.segments)
    if case.values is not None:
        yield "values", f"{case.values.wrong} of {case.values.checked} wrong"
    if case.witnessed:
        yield "NCCL's own log", "disagrees" if case.witness else "agrees"
    if case.seconds is not None:
        yield "took", f"{case.seconds:.1f} s"
