"""Recorded traces, judged without a run: every report calls them traces, and none speaks of a script."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from runner.action_traces import judge_traces
from runner.compare import read_baseline
from runner.errors import UserError
from runner.judge.baseline_sides import why_no_baseline
from runner.judge.gate import compare_results, gated
from runner.report.annotations import annotation_lines
from runner.report.junit import junit_xml
from runner.report.markdown import comment_markdown, summary_markdown
from runner.report.page import page_html
from runner.report.terminal import print_run_table
from runner.result import Gate, Result, read_result, write_result
from runner.traces import read_traces

from .factory import first_light

H200 = Path(__file__).resolve().parents[2] / "data" / "traces" / "h200"


def judged(name: str = "train_tp_pool_r*", **minimum: float) -> Result:
    patterns = (str(H200 / f"{name}.json.gz"),)
    found = judge_traces(patterns, read_traces(patterns, warn=lambda line: None))
    return gated(found, Gate(minimum={phase: least for phase, least in minimum.items() if phase == "backward"}))


@pytest.fixture(scope="module")
def passed() -> Result:
    return judged()


def terminal(result: Result) -> str:
    file = io.StringIO()
    print_run_table(result, file)
    return file.getvalue()


def page(result: Result) -> str:
    """What a reader sees of the page, without its style and code."""
    return re.sub(r"<(style|script)\b.*?</\1>|<[^>]*>", "", page_html(result), flags=re.DOTALL)


DOORS: dict[str, Callable[[Result], str]] = {
    "terminal": terminal,
    "summary": summary_markdown,
    "comment": lambda result: comment_markdown(result, marker="<!-- m -->", sha="a" * 40),
    "page": page,
    "junit": junit_xml,
    "annotations": lambda result: "\n".join(annotation_lines(result)),
    "verdict": lambda result: result.verdict.sentence,
    "looks at": lambda result: result.looks_at,
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("least", [0.0, 0.9])
def test_no_report_speaks_of_a_script(door: str, least: float) -> None:
    told = DOORS[door](judged(backward=least)).lower().replace("drawn by a script", "")
    assert told and "script" not in told


def test_the_verdict_and_the_terminal(passed: Result) -> None:
    told = "Coverage of your traces: forward 100 %, backward 0 %; no minimum is asked for."
    assert (passed.verdict.word, passed.verdict.sentence) == ("pass", told)
    assert terminal(passed).splitlines()[-1] == f"verdict: pass: {told}"


def test_the_summary_and_the_comment(passed: Result) -> None:
    text = summary_markdown(passed)
    assert "### Your traces\n" in text
    assert "train_tp_pool_r*.json.gz`, 2 ranks, 2 steps.\n" in text
    assert re.search(r"^\| traces \| `traces \(", text, re.MULTILINE)
    assert "Looked at: 2 recorded traces." in text
    assert judged("train_tp_pool_r0").looks_at == "1 recorded trace"


def test_the_page(passed: Result) -> None:
    document = page_html(passed)
    assert '<h2 id="script">The traces</h2>' in document
    assert "2 steps traced on each of 2 ranks.</p>" in document
    assert "Their collectives</h3>" in document
    assert "<dt>traces</dt>" in document


def test_junit() -> None:
    root = ElementTree.fromstring(junit_xml(judged(backward=0.9)))
    assert [suite.get("name") for suite in root.iter("testsuite")] == ["traces"]
    assert {case.get("classname") for case in root.iter("testcase")} == {"traces"}


def test_annotations_stand_at_no_file() -> None:
    lines = annotation_lines(judged(backward=0.9))
    assert lines and not any("file=" in line for line in lines)


def test_a_result_of_traces_is_still_one_after_writing_and_reading(passed: Result, tmp_path: Path) -> None:
    write_result(passed, tmp_path / "result.json")
    again = read_result(tmp_path / "result.json")
    assert again == passed
    assert again.script is not None and again.script.subject == "traces"


def test_traces_that_show_nothing_are_no_baseline(tmp_path: Path) -> None:
    (tmp_path / "cpu.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    patterns = (str(tmp_path / "cpu.json"),)
    empty = judge_traces(patterns, read_traces(patterns, warn=lambda line: None))
    assert empty.verdict.word == "unmeasured"
    assert (why_no_baseline(empty) or "").startswith("is of traces that show nothing (the traces have no GPU events; ")


def test_a_baseline_of_something_else_is_told_before_the_run(passed: Result, tmp_path: Path) -> None:
    write_result(first_light(), tmp_path / "suite.json")
    write_result(passed, tmp_path / "traces.json")
    with pytest.raises(UserError, match="is of a suite, and this run is of traces; give another one"):
        read_baseline(tmp_path / "suite.json", of="traces")
    with pytest.raises(UserError, match="is of traces, and this run is of a suite; give another one"):
        read_baseline(tmp_path / "traces.json", of="suite")
    assert read_baseline(tmp_path / "traces.json", of="script") == passed  # both are compared by the same key


def test_a_comparison_with_a_suite_names_both(passed: Result) -> None:
    with pytest.raises(UserError, match=r"base\.json: is of a suite, and this run is of traces; compare runs of the"):
        compare_results(first_light(), passed, "base.json")
    with pytest.raises(UserError, match=r"base\.json: is of traces, and this run is of a suite"):
        compare_results(passed, first_light(), "base.json")
