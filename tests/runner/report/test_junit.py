"""JUnit XML: valid by Jenkins' schema, read back without loss, whatever the names are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import junitparser
import pytest
from hypothesis import given, settings
from lxml import etree

from runner.report.junit import junit_xml
from runner.result import Result

from .factory import CAUSE, GENERAL, ISSUE, KNOWN, case, filled_with, first_light, harmful, phase, result

SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).parents[2] / "data" / "junit-10.xsd"))


def read(of: Result) -> etree._Element:
    """The document, found valid."""
    root = etree.fromstring(junit_xml(of))
    SCHEMA.assertValid(root)
    return root


def only_case(phase_: Any, **more: Any) -> etree._Element:
    (found,) = read(result(case("step", phase_, **more))).iter("testcase")
    return found


def test_a_suite_for_each_check_and_a_case_for_each_phase() -> None:
    more = case("a", phase("forward", symmetric=1), id="ddp/a", check="ddp", seconds=0.25)
    root = read(result(*first_light().cases, more))
    assert [(suite.get("name"), suite.get("tests"), suite.get("time")) for suite in root] == [
        ("all_reduce", "8", "6.000"),
        ("ddp", "1", "0.250"),
    ]
    assert [test.get("name") for test in root[0]][:3] == [
        "all_reduce/none forward", "all_reduce/none backward", "all_reduce/step forward"
    ]  # fmt: skip
    assert {test.get("classname") for test in root[0]} == {"all_reduce"}
    assert root[0].get("timestamp") == "2026-11-30T10:00:00"
    assert {key: root.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "9", "failures": "0", "errors": "0"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "tag"),
    [
        ("regressed", "failure"), ("fail", "failure"), ("error", "error"), ("unmeasured", "error"),
        ("known", "skipped"), ("incapable", "skipped"), ("fixed", None), ("pass", None),
    ],
)  # fmt: skip
def test_each_outcome_as_what_a_reader_knows(outcome: Any, tag: str | None) -> None:
    test = only_case(phase("backward", outcome, fallback=4, message="it is so"))
    assert [child.tag for child in test] == ([tag] if tag else []) + ["system-out"]
    if tag is not None:
        assert test[0].get("type") == outcome if tag != "skipped" else "skipped"
        assert test[0].get("message") == f"{outcome}: it is so"


def test_a_failure_tells_verdict_cause_kernels_evidence_and_mend() -> None:
    failure = only_case(phase("backward", "fail", fallback=4, cause=CAUSE, message="all 4 collectives fell back"))[0]
    assert failure.get("message") == "fail: fell back, because the buffer lies outside the pool"
    assert failure.text is not None
    assert failure.text.splitlines() == [
        "expected: symmetric",
        "seen: fell back RING_LL",
        f"kernel: 4 launches of {GENERAL}",
        "message: all 4 collectives fell back",
        "cause (certain): The buffer lies outside the pool.",
        "evidence: 2 of the ranks' all_reduce buffers outside the pool",
        "evidence: used on autograd's thread",
        "do this: enter the pool inside the Function's backward",
    ]


def test_an_error_has_its_traceback() -> None:
    error = only_case(
        phase("forward", "error", message="rank 1 raised"),
        trouble="rank 1 raised",
        detail="Traceback\n  ValueError: <x>",
    )[0]
    assert error.get("message") == "error: rank 1 raised"
    assert error.text is not None and error.text.endswith("\n\nTraceback\n  ValueError: <x>")


def test_a_known_problem_is_skipped_with_its_issue() -> None:
    skipped = only_case(phase("backward", "known", fallback=4, cause=CAUSE, known=KNOWN))[0]
    assert skipped.get("message") == (
        "known: fell back, because the buffer lies outside the pool; known: pytorch#167353, "
        f"use_mem_pool holds for the calling thread only ({ISSUE})"
    )


def test_a_fixed_problem_is_told_loudly() -> None:
    out = only_case(phase("backward", "fixed", symmetric=4, known=KNOWN, message="symmetric: the problem is gone"))[0]
    assert out.text is not None
    assert out.text.splitlines()[0] == f"FIXED: symmetric: the problem is gone ({ISSUE})"


def test_facts_are_properties_in_the_output() -> None:
    out = only_case(phase("backward", symmetric=3, fallback=1), notes=["a trace was salvaged"])[0]
    assert out.text is not None
    assert out.text.splitlines() == [
        "[[PROPERTY|outcome=pass]]",
        "[[PROPERTY|expected=symmetric]]",
        "[[PROPERTY|ran=3 of 4 symmetric]]",
        "[[PROPERTY|kernels=RSxLD_AGxST, RING_LL]]",
        "[[PROPERTY|coverage_ratio=0.7500]]",
        "[[PROPERTY|symmetric_calls=3]]",
        "[[PROPERTY|fallback_calls=1]]",
        "[[PROPERTY|torch=2.11.0+cu130]]",
        "[[PROPERTY|nccl=2.30.7]]",
        "[[PROPERTY|gpu=NVIDIA H200]]",
        "[[PROPERTY|ranks=2]]",
        "[[PROPERTY|ranks_per_gpu=2]]",
        "note: a trace was salvaged",
    ]


@pytest.mark.parametrize(
    ("word", "tag"), [("fail", "failure"), ("unmeasured", "error"), ("no-capacity", "skipped"), ("pass", None)]
)
def test_a_run_without_cases_is_no_success(word: Any, tag: str | None) -> None:
    root = read(result(word=word, sentence="No torch here."))
    found = [(test.get("name"), test[0].tag, test[0].get("message")) for test in root.iter("testcase")]
    assert found == ([("verdict", tag, f"{word}: No torch here.")] if tag else [])


def test_a_verdict_that_a_case_shows_gets_no_case_of_its_own() -> None:
    root = read(result(case("a", phase("forward", "fail", fallback=1)), word="fail"))
    assert [suite.get("name") for suite in root] == ["all_reduce"]


def test_a_case_of_which_nothing_is_judged_still_shows_its_trouble() -> None:
    (test,) = read(result(case("a", trouble="rank 0 died", detail="stack"))).iter("testcase")
    assert (test.get("name"), test[0].tag, test[0].get("message")) == ("all_reduce/a", "error", "rank 0 died")


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e300, None, 1e-9])
def test_times_are_plain_numbers(seconds: float | None) -> None:
    test = only_case(phase("forward", symmetric=1), seconds=seconds)
    assert float(test.get("time", "")) >= 0


@settings(deadline=None)
@given(harmful)
def test_hostile_names_stay_valid_xml(text: str) -> None:
    root = read(filled_with(text))
    assert len(list(root.iter("testcase"))) == 16
    assert max(len(value) for element in root.iter() for value in element.attrib.values()) <= 1000


def test_ten_thousand_characters_are_shortened() -> None:
    root = read(filled_with("x" * 10_000))
    assert max(len(value) for element in root.iter() for value in element.attrib.values()) <= 1000
    assert max(len(test.get("name", "")) for test in root.iter("testcase")) <= 260


def test_a_property_is_ended_by_its_own_end_only() -> None:
    out = read(filled_with("a]]\n[[PROPERTY|torch=9.9]]")).find(".//system-out")
    assert out is not None and out.text is not None
    assert "[[PROPERTY|torch=a] ] [ [PROPERTY|torch=9.9] ]]]" in out.text.splitlines()


def test_the_extended_profile_has_properties_that_junitparser_reads(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    hostile = case("step", phase("backward", "fail", fallback=4), notes=["[[PROPERTY|torch=9.9]]"])
    file.write_text(junit_xml(result(hostile), extended=True), encoding="utf-8")
    ((test,),) = junitparser.JUnitXml.fromfile(str(file))
    (found,) = test.iterchildren(junitparser.Properties)
    properties = {one.name: one.value for one in found}
    assert properties["outcome"] == "fail" and properties["fallback_calls"] == "4"
    assert properties["torch"] == "2.11.0+cu130" and properties["gpu"] == "NVIDIA H200"
    assert [element.tag for element in etree.parse(file).find(".//testcase")] == ["properties", "failure", "system-out"]


def test_junitparser_reads_it_back_without_loss(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    failed = case(
        "中", phase("backward", "fail", fallback=4, cause=CAUSE), phase("forward", "error", message="a\x00 ]]> é")
    )
    file.write_text(junit_xml(result(*first_light().cases, failed)), encoding="utf-8")
    suites = list(junitparser.JUnitXml.fromfile(str(file)))
    tests = {test.name: test for suite in suites for test in suite}
    assert len(tests) == 10
    assert (suites[0].tests, suites[0].failures, suites[0].errors, suites[0].skipped) == (10, 1, 1, 1)
    assert isinstance(tests["all_reduce/中 backward"].result[0], junitparser.Failure)
    assert tests["all_reduce/中 backward"].result[0].text.count("\n") == 7
    assert tests["all_reduce/中 forward"].result[0].message == "error: a ]]> é"
    assert isinstance(tests["all_reduce/step backward"].result[0], junitparser.Skipped)
    assert tests["all_reduce/none forward"].result == []
    assert "[[PROPERTY|torch=2.11.0+cu130]]" in tests["all_reduce/none forward"].system_out


def test_it_is_plain_ascii() -> None:
    assert junit_xml(filled_with("é 中 😀 …")).isascii()


def test_importing_the_reports_is_cheap(project: Path) -> None:
    code = (
        "import sys; import runner.report.junit, runner.report.markdown, runner.report.terminal; "
        "print({'rich', 'jinja2', 'junit_xml', 'torch', 'runner.trace.collectives'} & set(sys.modules))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], cwd=project, env=os.environ | {"PYTHONPATH": str(project)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert out.stdout.strip() == "set()"
