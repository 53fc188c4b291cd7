"""A script's run or recorded traces in JUnit XML: a test case a phase, which fails below the minimum of coverage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..judge.gate import below_minimum, ratio
from ..model import GatePhase
from ..result import Result
from ..script_result import Fallen, ScriptResult
from . import words
from .script import causes
from .text import one_line

if TYPE_CHECKING:
    from junit_xml import TestCase


def phases_that_fail(result: Result) -> list[GatePhase]:
    """The phases of a script's run that was measured and whose coverage is below what is asked for."""
    return [] if result.script is None or result.script.trouble is not None else below_minimum(result)


def script_cases(result: Result, script: ScriptResult) -> list[TestCase]:
    """A test case for each phase that was traced or asked for; what went wrong as a whole is the verdict's."""
    from junit_xml import TestCase

    below = phases_that_fail(result)
    cases = []
    for phase in words.GATE_PHASES:
        if phase not in result.coverage and phase not in below:
            continue
        fallen = [one for one in script.fallen if phase in (one.phase, _GATE.get(one.phase))]
        test = TestCase(f"{one_line(script.command[0], 200)} {phase}", script.subject, 0, stdout=_output(result, phase))
        if phase in below:
            by = result.gate.coverage_by
            told = f"{words.percent(ratio(result.coverage.get(phase), by))} by {by}"
            message = f"fail: coverage {told}, and {words.percent(result.gate.minimum[phase])} is asked for"
            test.add_failure_info(message, "\n".join([message, *map(_line, fallen), *_causes(script)]), "fail")
        cases.append(test)
    return cases


_GATE = {"recompute": "backward"}


def _line(fallen: Fallen) -> str:
    size = "unknown" if fallen.bytes is None else fallen.bytes
    place = " ".join(filter(None, (fallen.op, fallen.module and f"in {fallen.module}")))
    why = f": {fallen.cause.name}" if fallen.cause is not None else ""
    return one_line(f"fell back: {fallen.calls_per_step:g} a step of {size} bytes, {fallen.kind} {place}{why}")


def _causes(script: ScriptResult) -> list[str]:
    return [one_line(f"cause ({cause.certainty}): {cause.sentence}; do this: {cause.mend}") for cause in causes(script)]


def _output(result: Result, phase: GatePhase) -> str:
    if phase not in result.coverage:
        return ""
    found = result.coverage[phase]
    symmetric, fallback, ineligible, unknown = words.calls(found)
    facts = {
        "coverage_ratio": "" if found.ratio is None else f"{found.ratio:.4f}",
        "symmetric_calls": str(symmetric), "fallback_calls": str(fallback), "ineligible_calls": str(ineligible),
        "unknown_calls": str(unknown), "torch": result.environment.torch or "", "nccl": result.environment.nccl or "",
    }  # fmt: skip
    return "\n".join(property_lines(facts))


def property_lines(facts: Mapping[str, str]) -> list[str]:
    """The facts that are known as `[[PROPERTY|key=value]]`, a line each; a value can't end its own or begin another."""
    values = {key: one_line(value).replace("[[", "[ [").replace("]]", "] ]") for key, value in facts.items() if value}
    return [f"[[PROPERTY|{key}={value}]]" for key, value in values.items()]
