"""A Result as JUnit XML that Jenkins, GitHub's reporters and other readers take without loss.

The profile is the one of Jenkins' schema junit-10.xsd, the strictest that all of them read:
https://github.com/jenkinsci/xunit-plugin/blob/master/src/main/resources/org/jenkinsci/plugins/xunit/types/model/xsd/junit-10.xsd
A test case can't have properties there, so facts stand in its output as `[[PROPERTY|key=value]]`. The extended
profile has them as properties too, for readers such as junitparser; the other readers pass over those.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from ..judge.gate import below_minimum
from ..result import FAILING, CaseResult, PhaseResult, Result
from . import words
from .script_junit import phases_that_fail, property_lines, script_cases
from .text import cut, issue_name, one_line

if TYPE_CHECKING:
    from junit_xml import TestCase

_NAME = 250
_MESSAGE = 1000
_PROPERTY = re.compile(r"^\[\[PROPERTY\|(\w+)=(.*)\]\]$", re.MULTILINE)
_TAKEN = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"},
    "testcase": {"name", "classname", "time"},
}


def junit_xml(result: Result, *, extended: bool = False) -> str:
    """The Result as an XML document, in ASCII: a suite for each check, a test case for each case and phase.

    `fail` and `regressed` are failures, `error` and `unmeasured` errors, `known` and `incapable` skipped with the
    reason, `fixed` and `pass` pass. A verdict that no test case shows gets one of its own, so that no reader takes
    a run that failed, or ran nothing, for a success. `extended` adds properties to the test cases, which Jenkins'
    schema refuses.
    """
    from junit_xml import TestSuite, to_xml_report_string

    suites: dict[str, list[TestCase]] = {}
    for case in result.cases:
        suites.setdefault(case.check, []).extend(_test_cases(result, case))
    if result.script is not None:
        suites[result.script.subject] = script_cases(result, result.script)
    own = _verdict_case(result)
    if own is not None:
        suites.setdefault("verdict", []).append(own)
    timestamp = re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", result.created)
    document = to_xml_report_string(
        [
            TestSuite(one_line(check, _NAME), cases, timestamp=timestamp and timestamp.group())
            for check, cases in suites.items()
        ],
        prettyprint=False,
    )
    return _strict(document, extended=extended)


def _strict(document: str, *, extended: bool) -> str:
    """The document without the attributes that the schema does not know, and with times as it wants them."""
    root = ElementTree.fromstring(document)
    root.set("name", "symmem-check")
    for element in root.iter():
        taken = _TAKEN.get(element.tag)
        if taken is None:
            continue
        for name in set(element.attrib) - taken:
            del element.attrib[name]
        element.set("time", f"{float(element.get('time', 0)):.3f}")
        if extended and element.tag == "testcase":
            _add_properties(element)
    ElementTree.indent(root)
    # All in ASCII and no encoding named: the same in whatever encoding it is written or read.
    body: bytes = ElementTree.tostring(root, encoding="us-ascii", xml_declaration=False)
    return f'<?xml version="1.0"?>\n{body.decode()}\n'


def _add_properties(test: ElementTree.Element) -> None:
    """Put the facts of the test case's output before all else in it, where a property belongs."""
    found = _PROPERTY.findall(test.findtext("system-out", ""))
    if found:
        properties = ElementTree.Element("properties")
        for name, value in found:
            ElementTree.SubElement(properties, "property", name=name, value=value)
        test.insert(0, properties)


def _test_cases(result: Result, case: CaseResult) -> Iterator[TestCase]:
    from junit_xml import TestCase

    # The phases of a case run together, so its time is shared among them and adds up.
    seconds = case.seconds if case.seconds is not None and math.isfinite(case.seconds) and case.seconds >= 0 else 0.0
    for phase in case.phases:
        test = TestCase(
            f"{one_line(case.id, _NAME)} {phase.phase}",
            one_line(case.check, _NAME),
            min(seconds, 1e9) / len(case.phases),
            stdout=_output(result, case, phase),
        )
        _set_outcome(test, case, phase)
        yield test
    if not case.phases:
        test = TestCase(one_line(case.id, _NAME), one_line(case.check, _NAME), min(seconds, 1e9))
        if case.trouble is not None:
            test.add_error_info(one_line(case.trouble, _MESSAGE), cut(case.detail or ""))
        yield test


def _set_outcome(test: TestCase, case: CaseResult, phase: PhaseResult) -> None:
    message = one_line(f"{phase.outcome}: {words.finding(case, phase)}", _MESSAGE)
    body = _body(case, phase)
    if phase.outcome in ("fail", "regressed"):
        test.add_failure_info(message, body, phase.outcome)
    elif phase.outcome in ("error", "unmeasured"):
        test.add_error_info(message, body, phase.outcome)
    elif phase.outcome in ("known", "incapable"):
        known = phase.known
        if known is not None:
            message = one_line(f"{message}; known: {issue_name(known.issue)}, {known.title} ({known.issue})", _MESSAGE)
        test.add_skipped_info(message, body)


def _body(case: CaseResult, phase: PhaseResult) -> str:
    """What was expected and seen, the evidence and the mend, a line each."""
    lines = [f"expected: {phase.expected}", f"seen: {one_line(words.ran_as(phase))}"]
    lines += [f"kernel: {_launches(seen.launches)} {one_line(seen.kernel or 'copy engine')}" for seen in phase.kernels]
    lines.append(f"message: {one_line(phase.message)}")
    if phase.cause is not None:
        lines.append(f"cause ({phase.cause.certainty}): {one_line(phase.cause.sentence)}")
        lines += [f"evidence: {one_line(evidence)}" for evidence in phase.cause.evidence]
        lines.append(f"do this: {one_line(phase.cause.mend)}")
    if phase.known is not None:
        lines.append(f"known: {one_line(phase.known.issue)} {one_line(phase.known.title)}")
    if case.trouble is not None:
        lines.append(f"trouble: {one_line(case.trouble)}")
    if case.detail is not None and phase.outcome == "error":
        lines += ["", cut(case.detail)]
    return "\n".join(lines)


def _launches(number: int) -> str:
    return f"{number} {'launch' if number == 1 else 'launches'} of"


def _output(result: Result, case: CaseResult, phase: PhaseResult) -> str:
    """The facts of a test case, one property a line, after a loud line if a known problem is gone."""
    lines = []
    if phase.outcome == "fixed":
        known = phase.known
        lines.append(one_line(f"FIXED: {phase.message}" + (f" ({known.issue})" if known is not None else "")))
    about = result.environment
    ratio = phase.coverage.ratio
    facts = {
        "outcome": phase.outcome,
        "expected": phase.expected,
        "ran": words.how_it_ran(phase),
        "kernels": ", ".join(words.labels(phase.kernels)),
        "coverage_ratio": "" if ratio is None or not math.isfinite(ratio) else f"{ratio:.4f}",
        "symmetric_calls": str(phase.coverage.symmetric.calls),
        "fallback_calls": str(phase.coverage.fallback.calls),
        "torch": about.torch or "",
        "nccl": about.nccl or "",
        "gpu": about.gpu or "",
        "ranks": str(about.ranks),
        "ranks_per_gpu": str(about.ranks_per_gpu),
        "replay": "true" if result.replay else "",
    }
    lines += property_lines(facts)
    lines += [f"note: {one_line(note)}" for note in (*case.notes, *case.witness)]
    return "\n".join(lines)


def _shown(result: Result) -> bool:
    """Whether the test cases show by themselves all that a verdict that is no pass says."""
    if result.script is not None:
        lost = result.baseline is not None and result.baseline.regressed
        return bool(phases_that_fail(result)) and not lost
    outcomes = {phase.outcome for case in result.cases for phase in case.phases}
    return bool(outcomes & FAILING) and not below_minimum(result)


def _verdict_case(result: Result) -> TestCase | None:
    """The verdict as a test case, where the others would let a reader think that all is well."""
    from junit_xml import TestCase

    if result.verdict.word == "pass" or _shown(result):
        return None
    test = TestCase("verdict", "verdict")
    message = one_line(f"{result.verdict.word}: {result.verdict.sentence}", _MESSAGE)
    if result.verdict.word == "fail":
        test.add_failure_info(message, message, "fail")
    elif result.verdict.word == "unmeasured":
        test.add_error_info(message, message, "unmeasured")
    else:
        test.add_skipped_info(message)
    return test
