"""The gate: a Result held against its baseline, the outcomes that fail, and the coverage asked for; the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from ..comparison import Comparison, Difference
from ..errors import UserError
from ..model import Coverage, GatePhase
from ..result import CaseResult, Gate, Outcome, PhaseResult, Result, Verdict
from ..script_result import subject_of, with_article
from .baseline import compare
from .baseline_sides import side_of_result, why_not_comparable
from .coverage import GATE_PHASES, coverage
from .expectation import kernels_seen

_WORST_FIRST: tuple[Outcome, ...] = ("regressed", "error", "fail", "unmeasured", "known", "incapable", "fixed", "pass")
_PLURAL: dict[Outcome, str] = {
    "regressed": "regressed",
    "error": "ended in an error",
    "fail": "failed",
    "unmeasured": "not measured",
    "known": "with a known problem",
    "incapable": "not possible on this machine",
    "fixed": "with a known problem that is gone",
    "pass": "passed",
}


def gated(result: Result, gate: Gate, baseline: Result | None = None, file: str = "") -> Result:
    """The Result with its comparison to `baseline`, read from `file`, and the verdict that the gate gives.

    Raises UserError where one is of a script and the other of a suite.
    """
    result = msgspec.structs.replace(result, gate=gate)
    if baseline is not None and why_not_comparable(result) is None:
        result = with_comparison(result, compare_results(baseline, result, file))
    return msgspec.structs.replace(result, verdict=verdict(result))


def compare_results(base: Result, head: Result, file: str) -> Comparison:
    """Compare two Results; `file` is the baseline's name. Raises UserError where they have no keys in common."""
    if (base.script is None) != (head.script is None):
        kinds = [with_article(subject_of(result.script)) for result in (base, head)]
        raise UserError(f"{file}: is of {kinds[0]}, and this run is of {kinds[1]}; compare runs of the same")
    judged = [(case.id, phase.phase) for result in (base, head) for case in result.cases for phase in case.phases]
    return compare(side_of_result(base, file, judged), side_of_result(head, "", judged))


def with_comparison(result: Result, comparison: Comparison) -> Result:
    """The Result with the comparison in it: a phase that regressed has that outcome, whatever the suite expects."""
    regressed = {(found.case, found.phase): found for found in comparison.regressed}
    versions = ", ".join(map(str, comparison.versions))
    cases = []
    for case in result.cases:
        phases = [
            _regressed(phase, found, versions) if (found := regressed.pop((case.id, phase.phase), None)) else phase
            for phase in case.phases
        ]
        phases += [
            _regressed(_unjudged(case, gate), found, versions)
            for gate in GATE_PHASES
            if (found := regressed.pop((case.id, gate), None))
        ]
        cases.append(msgspec.structs.replace(case, phases=phases))
    return msgspec.structs.replace(result, baseline=comparison, cases=cases)


def _regressed(phase: PhaseResult, found: Difference, versions: str) -> PhaseResult:
    also = f" (also changed: {versions})" if versions else ""
    message = f"{found.sentence}{also}"
    if phase.outcome in ("incapable", "known"):
        message += f": {phase.message}"
    return msgspec.structs.replace(phase, outcome="regressed", message=message)


def _unjudged(case: CaseResult, gate: GatePhase) -> PhaseResult:
    """A phase that the baseline's suite judged and this one's no longer does, by what ran in it."""
    rows = [row for row in case.collectives if row.phase in GATE_PHASES[gate]]
    return PhaseResult(
        phase=gate, expected="any", outcome="pass", message="", coverage=coverage(rows), kernels=kernels_seen(rows)
    )


# ---- the verdict -----------------------------------------------------------------------------------------------------


def verdict(result: Result) -> Verdict:
    """The verdict on a Result by its own gate; that of a script that did not come to its end stands as it is."""
    if result.script is not None:
        return result.verdict if result.script.trouble is not None else _of_script(result, result.script.subject)
    return _of_cases(result)


def ratio(found: Coverage | None, by: str) -> float | None:
    """Symmetric / (symmetric + fallback), from 0 to 1, by calls or by bytes; None where nothing eligible ran."""
    if found is None or by == "calls":
        return found.ratio if found is not None else None
    eligible = found.symmetric.bytes + found.fallback.bytes
    return found.symmetric.bytes / eligible if eligible else None


def below_minimum(result: Result) -> list[GatePhase]:
    """The phases whose coverage is below what the gate asks for; nothing eligible is below any minimum."""
    by = result.gate.coverage_by
    seen = {phase: ratio(result.coverage.get(phase), by) for phase in result.gate.minimum}
    return [p for p, least in result.gate.minimum.items() if (found := seen[p]) is None or found < least]


def _of_cases(result: Result) -> Verdict:
    """Fail if any outcome is in `fail_on` or a coverage is too low, unmeasured if none could be measured."""
    phases = [(case, phase) for case in result.cases for phase in case.phases]
    outcomes = Counter(phase.outcome for _, phase in phases)
    failing = [outcome for outcome in _WORST_FIRST if outcome in result.gate.fail_on and outcomes[outcome]]
    wanted = [phase for _, phase in phases if phase.expected == "symmetric"] or [phase for _, phase in phases]
    # Controls alone prove nothing: without one phase that ought to be symmetric the check has not looked.
    measured = any(phase.outcome not in ("unmeasured", "incapable") for phase in wanted)
    if not measured and failing in ([], ["unmeasured"]):
        why = next((case.trouble for case in result.cases if case.trouble), "no collective was traced")
        return Verdict("unmeasured", f"Nothing could be measured: {why}.")
    reasons = []
    if failing:
        counted = ", ".join(f"{outcomes[outcome]} {_PLURAL[outcome]}" for outcome in failing)
        first = next(
            f"{case.id} {phase.phase}: {phase.message}"
            for outcome in failing
            for case, phase in phases
            if phase.outcome == outcome
        )
        reasons.append(f"of {len(phases)} phases {counted}; first {first}")
    reasons += _too_low(result)
    if reasons:
        return _fail(reasons)
    also = [f"{outcomes[o]} {_PLURAL[o]}" for o in _WORST_FIRST if outcomes[o] and o != "pass"]
    also += _beside(result)
    rest = f" ({', '.join(also)})" if also else ""
    return Verdict("pass", f"{_as_expected(len(phases), outcomes)}{rest}.")


def _as_expected(total: int, outcomes: Counter[Outcome]) -> str:
    left = sum(outcomes[outcome] for outcome in ("regressed", "error", "fail", "unmeasured"))
    if left:
        return f"{total - left} of {total} phases are as expected, and the gate does not fail for the others"
    return f"All {total} phases are as expected"


def _of_script(result: Result, subject: str) -> Verdict:
    """Without a minimum and a baseline, a script passes that ran and was measured, and so do traces."""
    lost = result.baseline.regressed if result.baseline is not None else []
    reasons = []
    if lost and "regressed" in result.gate.fail_on:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        reasons.append(f"regressed: {lost[0].place}: {lost[0].sentence}{more}")
    reasons += _too_low(result)
    if reasons:
        return _fail(reasons)
    by = result.gate.coverage_by
    told = ", ".join(
        f"{phase} {_percent(ratio(found, by))}" for phase, found in result.coverage.items() if phase != "optimizer"
    )
    asked = "as much as is asked for" if result.gate.minimum else "no minimum is asked for"
    rest = "".join(f"; {beside}" for beside in ([f"{len(lost)} regressed"] if lost else []) + _beside(result))
    return Verdict("pass", f"Coverage of your {subject}: {told}; {asked}{rest}.")


def _too_low(result: Result) -> Sequence[str]:
    by = result.gate.coverage_by
    return [
        f"{phase} coverage is {_percent(ratio(result.coverage.get(phase), by))}{' of bytes' if by == 'bytes' else ''}, "
        f"and {_percent(result.gate.minimum[phase])} is asked for"
        for phase in below_minimum(result)
    ]


def _fail(reasons: Sequence[str]) -> Verdict:
    sentence = "; ".join(reasons)
    return Verdict("fail", f"{sentence[:1].upper()}{sentence[1:].removesuffix('.')}.")


def _beside(result: Result) -> list[str]:
    """What a person must know of the comparison beside a pass."""
    found = result.baseline
    if found is None:
        return []
    if found.incomparable:
        return [f"not comparable with the baseline: {'; '.join(found.incomparable)}"]
    removed = sum(difference.change == "removed" for difference in found.differences)
    told = [f"{removed} of the baseline no longer there"] if removed else []
    return ["nothing regressed against the baseline", *told] if not found.regressed else told


def _percent(value: float | None) -> str:
    """Rounded down, so that 100 % means all."""
    return "n/a (nothing eligible ran)" if value is None else f"{int(value * 1000 + 1e-9) / 10:g} %"
