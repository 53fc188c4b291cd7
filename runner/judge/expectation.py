"""One phase of a case: what the suite expects, what the ranks' traces show, and the outcome of the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from ..model import Collective, Coverage, Expectation, GatePhase, Kind
from ..nccl_log import LogFacts
from ..result import Cause, Environment, KernelSeen, KnownProblem, Outcome, PhaseResult
from ..runfolder import Buffer, PoolRecord
from ..suite import Known, SuiteCase
from .cause import Evidence, find_cause
from .coverage import GATE_PHASES, coverage, group_of


class Trouble(NamedTuple):
    """What went wrong in a case as a whole: it can't be judged by its kernels. `sentence` is one line."""

    outcome: Outcome  # error, incapable or unmeasured
    sentence: str


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks left of one case: its collectives by rank, the buffers of all ranks, and NCCL's log, if any."""

    collectives: Mapping[int, Sequence[Collective]]
    buffers: Sequence[Buffer]
    pool: PoolRecord | None
    trouble: Trouble | None
    log: LogFacts | None = None


class Judged(NamedTuple):
    """The outcome of a phase, or of one kind in it, with the known problem that it goes by."""

    outcome: Outcome
    message: str
    known: Known | None = None


def judge_phase(case: SuiteCase, phase: GatePhase, seen: Seen, environment: Environment) -> PhaseResult:
    """Judge one phase of a case; the first outcome that applies, in the order of README.md, "The words"."""
    rows = [row for rank in seen.collectives.values() for row in rank if row.phase in GATE_PHASES[phase]]
    kinds = case.kinds.get(phase, {})
    if kinds and seen.trouble is None:
        judged = _judge_kinds(case, phase, seen, environment)
    else:
        known = _known(case, phase, None, environment)
        judged = _by_known(*_outcome(case.expect[phase], phase, None, seen), case.expect[phase], known)
    causes = judged.outcome in ("fail", "pass", "known", "fixed") and seen.trouble is None
    return PhaseResult(
        phase=phase,
        expected=case.expect[phase],
        kinds=kinds,
        outcome=judged.outcome,
        message=judged.message,
        coverage=coverage(rows),
        kernels=kernels_seen(rows),
        cause=_cause(case, phase, seen, rows, environment) if causes else None,
        known=KnownProblem(issue=judged.known.issue, title=judged.known.title) if judged.known else None,
    )


def _judge_kinds(case: SuiteCase, phase: GatePhase, seen: Seen, environment: Environment) -> Judged:
    """Judge each kind by its own expectation. The worst stands for the phase: no other kind may hide a failure."""
    parts: dict[Kind, Judged] = {}
    for kind, expected in case.kinds[phase].items():
        outcome, message = _outcome(expected, phase, kind, seen)
        known = _known(case, phase, kind, environment)
        if known is not None and known.kind is None and outcome == "pass":
            known = None  # a problem of no kind in particular is gone only where it is gone from all of them
        parts[kind] = _by_known(outcome, message, expected, known)
    worst = min(parts.values(), key=lambda part: _WORST_FIRST.index(part.outcome))
    told = "; ".join(f"{kind}: {part.message}" for kind, part in parts.items())
    if worst.outcome != "pass":
        return Judged(worst.outcome, told, worst.known)
    known = _known(case, phase, None, environment)
    return _by_known("pass", told, case.expect[phase], known if known and known.kind is None else None)


_WORST_FIRST: tuple[Outcome, ...] = ("error", "fail", "unmeasured", "incapable", "known", "fixed", "pass")


def _by_known(outcome: Outcome, message: str, expected: Expectation, known: Known | None) -> Judged:
    if known is not None and outcome in ("fail", "error"):
        return Judged("known", f"{message}: a known problem", known)
    if known is not None and outcome == "pass" and expected == "symmetric":
        return Judged("fixed", f"{message}: the known problem is gone; take it out of the suite", known)
    return Judged(outcome, message)


def _outcome(expected: Expectation, phase: GatePhase, kind: Kind | None, seen: Seen) -> tuple[Outcome, str]:
    """The outcome of a phase or, with a `kind`, of that kind's collectives in it, before known problems."""
    if seen.trouble is not None:
        return seen.trouble.outcome, seen.trouble.sentence
    if expected == "any":
        return "pass", "not judged"
    judged = {
        rank: [row for row in own if row.phase in GATE_PHASES[phase] and kind in (None, row.kind)]
        for rank, own in seen.collectives.items()
    }
    silent = [rank for rank, own in judged.items() if not own]
    if silent or not judged:
        ranks = f" of rank {', '.join(map(str, silent))}" if silent else ""
        return "unmeasured", f"no {kind or 'collective'} of {phase} in the trace{ranks}"
    rows = [row for own in judged.values() for row in own]
    return _by_kernels(expected, coverage(rows), len(rows))


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


def _known(case: SuiteCase, phase: GatePhase, kind: Kind | None, environment: Environment) -> Known | None:
    """The first known problem of these versions; with a `kind`, the first that may explain that kind."""
    for known in case.known.get(phase, ()):
        of_kind = kind is None or known.kind in (None, kind)
        if of_kind and known.applies(torch=environment.torch, nccl=environment.nccl):
            return known
    return None


def _cause(
    case: SuiteCase, phase: GatePhase, seen: Seen, rows: Sequence[Collective], environment: Environment
) -> Cause | None:
    fallen = [row for row in rows if group_of(row) in ("fallback", "ineligible")]
    buffers = [buffer for buffer in seen.buffers if buffer.phase == phase]
    op = case.axes.get("op")
    return find_cause(
        Evidence(
            collectives=fallen,
            buffers=buffers,
            op=op if isinstance(op, str) else None,
            pool=seen.pool,
            environment=environment,
            # A communication hook reduces in buffers of its own, not in those of DDP.
            workload=None if case.axes.get("buckets") == "hook" else case.workload,
            symmetric=[row for own in seen.collectives.values() for row in own if row.symmetric],
            log=seen.log,
        )
    )


def kernels_seen(rows: Sequence[Collective]) -> list[KernelSeen]:
    """The kernels of some collectives with their number of launches, most launches first."""
    counted = Counter((r.kernel, r.kind, r.mechanism, r.algorithm, r.symmetric) for r in rows)
    return [
        KernelSeen(kernel=kernel, kind=kind, mechanism=mechanism, algorithm=algorithm, symmetric=symmetric, launches=n)
        for (kernel, kind, mechanism, algorithm, symmetric), n in counted.most_common()
    ]
