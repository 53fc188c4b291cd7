"""The table of a run, as a person sees it at a terminal and a program in a pipe."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given, settings
from rich.console import Console

from runner.report import words
from runner.report.terminal import print_run_table
from runner.result import Result

from .factory import CAUSE, ISSUE, KNOWN, case, coverage, filled_with, first_light, harmful, phase, result


def piped(of: Result) -> str:
    file = io.StringIO()
    print_run_table(of, file)
    return file.getvalue()


def shown(of: Result, width: int, **more: Any) -> str:
    file = io.StringIO()
    print_run_table(of, Console(file=file, force_terminal=True, width=width, markup=False, highlight=False, **more))
    return file.getvalue()


def test_a_pipe_gets_plain_lines_of_any_width() -> None:
    assert piped(first_light()) == (
        "case                                 forward                outcome  backward               outcome\n"
        "all_reduce/none                      fell back RING_LL      pass     fell back RING_LL      pass\n"
        "all_reduce/step                      symmetric RSxLD_AGxST  pass     fell back RING_LL      known\n"
        "all_reduce/static                    symmetric RSxLD_AGxST  pass     symmetric RSxLD_AGxST  pass\n"
        "all_reduce/registered-not-symmetric  fell back RING_LL      pass     fell back RING_LL      pass\n"
        "\n"
        "all_reduce/step backward: known: fell back, because the buffer lies outside the pool; do this: enter the pool "
        "inside the Function's backward; known upstream: pytorch#167353, "
        "use_mem_pool holds for the calling thread only\n"
        f"note: {words.SHARED_GPU}\n"
        "coverage forward: 100 % (8 of 8 calls)\n"
        "coverage backward: 50 % (4 of 8 calls)\n"
        "verdict: pass: All 8 phases are as expected (1 with a known problem).\n"
    )


def test_a_narrow_terminal_gets_a_line_a_phase() -> None:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown(first_light(), 80))
    assert plain.splitlines()[:4] == [
        "case                                 phase     ran as                 outcome",
        "all_reduce/none                      forward   fell back RING_LL      pass",
        "all_reduce/none                      backward  fell back RING_LL      pass",
        "all_reduce/step                      forward   symmetric RSxLD_AGxST  pass",
    ]
    assert max(map(len, plain.splitlines())) <= 80


def test_a_wide_terminal_gets_a_line_a_case_in_colour() -> None:
    line = shown(first_light(), 120).splitlines()[2]
    assert line.endswith("\x1b[33mknown\x1b[0m") and "\x1b[32mpass\x1b[0m" in line
    assert "\x1b[" not in shown(first_light(), 120, color_system=None)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_an_id_is_never_cut(width: int) -> None:
    long = case("a" * 60, phase("forward", symmetric=1))
    assert "all_reduce/" + "a" * 60 in shown(result(long), width)


def test_columns_stand_below_each_other_with_wide_characters() -> None:
    lines = piped(result(case("中中", phase("forward", symmetric=1)), case("abcd", phase("forward", symmetric=1))))
    first, second = lines.splitlines()[1:3]
    assert first.startswith("all_reduce/中中  symmetric") and second.startswith("all_reduce/abcd  symmetric")


@pytest.mark.parametrize("outcome", ["regressed", "fail", "error", "unmeasured", "known", "fixed", "incapable"])
def test_what_needs_attention_is_told(outcome: Any) -> None:
    told = piped(result(case("a", phase("backward", outcome, message="it is so"))))
    assert f"\nall_reduce/a backward: {outcome}: it is so\n" in told


def test_a_phase_that_is_not_judged_is_a_dash() -> None:
    line = piped(result(case("a", phase("backward", symmetric=1)))).splitlines()[1]
    assert line.split() == ["all_reduce/a", "-", "-", "symmetric", "RSxLD_AGxST", "pass"]


def test_one_reason_for_all_is_told_once() -> None:
    phases = [phase(name, "unmeasured", message="no torch") for name in ("forward", "backward")]
    cases = [case(str(number), *phases) for number in range(9)]
    assert "\nall 9 cases: unmeasured: no torch\n" in piped(result(*cases, word="unmeasured"))
    told = piped(result(*cases, case("a", phase("forward", symmetric=1)), word="unmeasured"))
    assert told.count("no torch") == 1
    assert "all_reduce/3 forward and backward and 5 more: unmeasured: no torch\n" in told


def test_a_replay_is_told_first() -> None:
    assert piped(result(replay=True)).startswith(words.REPLAY + "\n")


def test_an_issue_is_named() -> None:
    told = piped(result(case("a", phase("backward", "known", fallback=1, cause=CAUSE, known=KNOWN))))
    assert "pytorch#167353" in told and ISSUE not in told


def test_nothing_eligible_is_no_percentage() -> None:
    told = piped(result(coverage={"forward": coverage(), "backward": coverage(0, 0, 2)}))
    assert "coverage forward: n/a (nothing was measured)\n" in told
    assert "coverage backward: n/a (nothing eligible ran; 2 not eligible)\n" in told


@settings(deadline=None)
@given(harmful)
def test_no_text_commands_the_terminal_or_makes_a_line(text: str) -> None:
    out = piped(filled_with(text))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800-\udfff]", out)
    assert len(out.split("\n")) == len(piped(filled_with("plain")).split("\n"))
    assert out.count("\nverdict: fail") == 1
