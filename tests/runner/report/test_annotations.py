"""Annotations: what the runner reads back from the lines, its limits, and names that mean harm."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from runner.comparison import Comparison, Difference, PerStep
from runner.report.annotations import annotation_lines
from runner.result import Result
from runner.script_result import Fallen, ScriptResult

from .factory import CAUSE, KNOWN, case, filled_with, first_light, harmful, phase, result

_LINE = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


def read(lines: list[str]) -> list[tuple[str, dict[str, str], str]]:
    """Level, properties and message as actions/runner reads a command (src/Runner.Common/ActionCommand.cs)."""
    found = []
    for line in lines:
        match = _LINE.fullmatch(line)
        assert match, line
        properties = dict(one.split("=", 1) for one in match[2].split(","))
        found.append((match[1], {name: _back(text) for name, text in properties.items()}, _back(match[3])))
    return found


def _back(text: str) -> str:
    for escaped, char in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(escaped, char)
    return text


def one(outcome: Any, **more: Any) -> Result:
    return result(case("a", phase("backward", outcome, fallback=4, **more)), word="pass")


@pytest.mark.parametrize(
    ("outcome", "level"),
    [
        ("regressed", "error"), ("fail", "error"), ("error", "error"), ("unmeasured", "error"),
        ("fixed", "warning"), ("known", "notice"), ("incapable", "notice"),
    ],
)  # fmt: skip
def test_a_level_for_each_outcome(outcome: Any, level: str) -> None:
    ((found, properties, _),) = read(annotation_lines(one(outcome)))
    assert found == level and properties == {"title": f"symmem-check: {outcome}"}


def test_a_pass_is_quiet() -> None:
    assert annotation_lines(result(case("a", phase("forward", symmetric=4)))) == []


def test_what_does_not_fail_the_gate_is_no_error() -> None:
    assert read(annotation_lines(one("unmeasured"), failing={"regressed"}))[0][0] == "warning"
    assert read(annotation_lines(one("known"), failing={"known"}))[0][0] == "error"


def test_it_tells_where_what_why_and_what_to_do() -> None:
    ((_, _, message),) = read(annotation_lines(first_light()))
    assert message == (
        "all_reduce/step backward: fell back, because the buffer lies outside the pool. "
        f"Known upstream: {KNOWN.issue}\nDo this: enter the pool inside the Function's backward"
    )


def test_a_verdict_that_fails_is_always_an_error() -> None:
    found = read(annotation_lines(result(word="fail", sentence="Backward coverage is 40 %, below 90 %.")))
    assert found == [("error", {"title": "symmem-check: fail"}, "Backward coverage is 40 %, below 90 %.")]


@pytest.mark.parametrize("number", [10, 11, 500])
def test_no_level_has_more_than_github_shows(number: int) -> None:
    cases = [case(f"{n}", phase("forward", "fail", message=f"no {n}")) for n in range(number)]
    cases += [case(f"k{n}", phase("forward", "known", message=f"no {n}")) for n in range(number)]
    found = read(annotation_lines(result(*cases)))
    levels = [level for level, _, _ in found]
    assert levels == ["error"] * 10 + ["notice"] * 10
    more = f"{number - 9} more of these are in the step summary."
    assert (found[9][2] == more) == (number > 10) and (found[19][2] == more) == (number > 10)


def test_a_script_is_annotated_at_its_file() -> None:
    fallen = Fallen(
        phase="backward", kind="all_reduce", group="dp", group_size=2, dtype="bfloat16", bytes=8, calls_per_step=1,
        op=None, module=None, kernel=None, cause=CAUSE,
    )  # fmt: skip
    for file, wanted in (("train/main.py", "train/main.py"), ("/home/x.py", None), ("../x.py", None)):
        script = ScriptResult(command=[file], ranks=2, steps=1, warmup=1, fallen=[fallen, fallen])
        (found,) = read(annotation_lines(result(script=script)))
        assert found[0] == "warning" and found[1].get("file") == wanted
        assert found[2] == f"{CAUSE.sentence}\nDo this: {CAUSE.mend}"


def test_what_a_script_lost_is_an_error() -> None:
    lost = Difference(
        change="regressed", phase="backward", kind="all_reduce", group="dp", group_size=8, dtype="bfloat16",
        before=PerStep(4, 0, 0, 0), after=PerStep(0, 4, 0, 0), sentence="4 of 4 were symmetric, and none is",
    )  # fmt: skip
    better = msgspec.structs.replace(lost, change="improved")
    script = ScriptResult(command=["train.py"], ranks=2, steps=1, warmup=1)
    of = result(script=script, baseline=Comparison(file="base.json", differences=[lost, better]))
    place = "backward all_reduce bfloat16 in group dp of 8 ranks"
    assert read(annotation_lines(of)) == [
        ("error", {"file": "train.py", "title": "symmem-check: regressed"}, f"{place}: {lost.sentence}")
    ]
    assert read(annotation_lines(of, failing=set()))[0][0] == "warning"


def test_a_message_is_cut_at_4096_characters() -> None:
    long = "x" * 10_000
    ((_, _, message),) = read(annotation_lines(one("fail", message=long)))
    assert len(message) == 4096 and message.endswith("…")
    ((_, _, message),) = read(annotation_lines(one("error", message=long, cause=CAUSE)))
    assert len(message) == 4096 and message.endswith(f"…\nDo this: {CAUSE.mend}")


def test_percent_colon_and_comma_are_escaped() -> None:
    (line,) = annotation_lines(result(word="fail", sentence="100%0A::error::x, y: z"))
    assert line == "::error title=symmem-check%3A fail::100%250A::error::x, y: z"


@settings(deadline=None)
@given(harmful)
def test_no_text_makes_a_second_command(text: str) -> None:
    lines = annotation_lines(filled_with(text))
    assert lines
    for line in lines:
        assert line.splitlines() == [line]
        assert re.match("::(error|warning|notice) title=symmem-check%3A ", line)
        line.encode()
    read(lines)
