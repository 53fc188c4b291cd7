"""One phase of a case: what the suite expects, what the ranks' traces show, and the outcome of the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from ..model import Collective, Coverage
from ..result import Cause, Environment, KernelSeen, KnownProblem, Outcome, PhaseResult
from ..runfolder import Buffer, PoolRecord
from ..suite import Expectation, GatePhase, SuiteCase
from .cause import Evidence, find_cause
from .coverage import GATE_PHASES, coverage, group_of


class Trouble(NamedTuple):
    """What went wrong in a case as a whole: it can't be judged by its kernels. `sentence` is one line."""

    outcome: Outcome  # error, incapable or unmeasured
    sentence: str


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks left of one case: its collectives by rank, and the buffers of all ranks."""

    collectives: Mapping[int, Sequence[Collective]]
    buffers: Sequence[Buffer]
    pool: PoolRecord | None
    trouble: Trouble | None


def judge_phase(case: SuiteCase, phase: GatePhase, seen: Seen, environment: Environment) -> PhaseResult:
    """Judge one phase of a case; the first outcome that applies, in the order of README.md, "The words"."""
    expected = case.expect[phase]
    rows = [row for rank in seen.collectives.values() for row in rank if row.phase in GATE_PHASES[phase]]
    known = _known(case, phase, environment)
    shown = coverage(rows)
    outcome, message = _outcome(expected, phase, seen, rows, shown)
    cause = _cause(case, phase, seen, rows, environment) if outcome in ("fail", "pass") else None
    if known is not None:
        if outcome in ("fail", "error"):
            outcome, message = "known", f"{message}: a known problem"
        elif outcome == "pass" and expected == "symmetric":
            outcome, message = "fixed", f"{message}: the known problem is gone; take it out of the suite"
    return PhaseResult(
        phase=phase,
        expected=expected,
        outcome=outcome,
        message=message,
        coverage=shown,
        kernels=kernels_seen(rows),
        cause=cause,
        known=known if outcome in ("known", "fixed") else None,
    )


def _outcome(
    expected: Expectation, phase: GatePhase, seen: Seen, rows: Sequence[Collective], shown: Coverage
) -> tuple[Outcome, str]:
    if seen.trouble is not None:
        return seen.trouble.outcome, seen.trouble.sentence
    if expected == "any":
        return "pass", "not judged"
    silent = [rank for rank, own in seen.collectives.items() if not any(r.phase in GATE_PHASES[phase] for r in own)]
    if silent or not seen.collectives:
        ranks = f" of rank {', '.join(map(str, silent))}" if silent else ""
        return "unmeasured", f"no collective of {phase} in the trace{ranks}"
    return _by_kernels(expected, shown, len(rows))


def _by_kernels(expected: Expectation, shown: Coverage, total: int) -> tuple[Outcome, str]:
    """The outcome by what ran. A phase is symmetric when every eligible collective on every rank is."""
    symmetric, fallback, unknown = shown.symmetric.calls, shown.fallback.calls, shown.unknown.calls
    against = symmetric if expected == "fallback" else fallback
    if against and expected == "fallback":
        return "fail", f"{_of(symmetric, total)} symmetric, and this control must have none"
    if against:
        return "fail", f"{_of(fallback, symmetric + fallback)} fell back"
    if unknown:
        return "unmeasured", f"of {_of(unknown, total)} it can't be told whether it was symmetric"
    if expected == "fallback":
        return "pass", "not symmetric, as this control must be"
    return ("pass", "symmetric") if symmetric else ("unmeasured", "nothing ran that has a symmetric kernel")


def _of(part: int, whole: int) -> str:
    calls = "collective" if whole == 1 else "collectives"
    return f"all {whole} {calls}" if part == whole and whole > 1 else f"{part} of {whole} {calls}"


def _known(case: SuiteCase, phase: GatePhase, environment: Environment) -> KnownProblem | None:
    known = case.known.get(phase)
    if known is None or not known.applies(torch=environment.torch, nccl=environment.nccl):
        return None
    return KnownProblem(issue=known.issue, title=known.title)


def _cause(
    case: SuiteCase, phase: GatePhase, seen: Seen, rows: Sequence[Collective], environment: Environment
) -> Cause | None:
    fallen = [row for row in rows if group_of(row) in ("fallback", "ineligible")]
    buffers = [buffer for buffer in seen.buffers if buffer.phase == phase]
    op = case.axes.get("op")
    return find_cause(Evidence(fallen, buffers, op if isinstance(op, str) else None, seen.pool, environment))


def kernels_seen(rows: Sequence[Collective]) -> list[KernelSeen]:
    """The kernels of some collectives with their number of launches, most launches first."""
    counted = Counter((r.kernel, r.kind, r.mechanism, r.algorithm, r.symmetric) for r in rows)
    return [
        KernelSeen(kernel=kernel, kind=kind, mechanism=mechanism, algorithm=algorithm, symmetric=symmetric, launches=n)
        for (kernel, kind, mechanism, algorithm, symmetric), n in counted.most_common()
    ]
