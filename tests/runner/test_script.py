"""A script's run judged: recorded traces of real training on H200s in the place of what the ranks would have left."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from rich.console import Console

from runner.cli import main
from runner.errors import UserError
from runner.judge.baseline_sides import why_no_baseline
from runner.judge.gate import gated
from runner.judge.script import judge_script
from runner.plan import Case, Plan, write_plan
from runner.report.junit import junit_xml
from runner.report.markdown import summary_markdown
from runner.report.terminal import print_run_table
from runner.result import Gate, Result, read_result, write_result
from runner.runfolder import RunFolder
from runner.script_result import ScriptResult
from runner.suite import GatePhase

H200 = Path(__file__).resolve().parents[1] / "data" / "traces" / "h200"
POOL = {"set_up": "script", "allocator": "register_mem_pool", "segments": 3, "registered": "symmetric"}
STEPS = 2


def folder_of(out: Path, name: str, **changes: Any) -> RunFolder:
    """A run folder whose two ranks left the traces called `name`; `changes` are made to rank 1's record."""
    case = Case(id="script", folder="cases/script", workload="train.py", axes={}, deadline=60.0)
    write_plan(Plan(ranks=2, cases=[case]), out / "plan.json")
    place = out / case.folder
    place.mkdir(parents=True)
    end(out, "finished")
    for rank in range(2):
        trace = f"rank{rank}.trace.json.gz"
        shutil.copy(H200 / f"{name}_r{rank}.json.gz", place / trace)
        facts = {"optimizer": "AdamW", "seen": 5, "traced": STEPS, "modules": ["Gpt"], "ended": 10.0 + rank}
        record = {"case": "script", "rank": rank, "start": 0, "state": "done", "outcome": "ok", "trace": trace}
        record |= {"pool": POOL, "script": facts} | (changes if rank == 1 else {})
        (place / f"rank{rank}.json").write_text(json.dumps(record))
    return RunFolder(out)


def end(out: Path, ended: str, message: str | None = None) -> None:
    (out / "starts/0").mkdir(parents=True, exist_ok=True)
    status = 0 if ended == "finished" else 1
    (out / "starts/0/end.json").write_text(json.dumps({"exit_status": status, "ended": ended, "message": message}))


def asked() -> ScriptResult:
    return ScriptResult(command=["train.py", "--lr", "1"], ranks=2, steps=STEPS, warmup=3)


def judged(out: Path, name: str, changes: dict[str, Any] | None = None, **minimum: float) -> Result:
    result = judge_script(folder_of(out, name, **(changes or {})), asked())
    return gated(result, Gate(minimum=cast("dict[GatePhase, float]", minimum)))


def test_a_backward_that_lost_the_pool_is_told_with_the_op_that_issued_it(tmp_path: Path) -> None:
    result = judged(tmp_path, "train_tp_pool")
    script = result.script
    assert script is not None
    assert [(row.phase, row.kind, row.dtype, row.group_size, row.calls_per_step) for row in script.rows] == [
        ("forward", "all_reduce", "bfloat16", 2, 6.0), ("backward", "all_reduce", "bfloat16", 2, 6.0),
    ]  # fmt: skip
    assert [row.coverage.ratio for row in script.rows] == [1.0, 0.0]
    assert [(one.bytes, one.calls_per_step, one.op) for one in script.fallen] == [(2097152, 6.0, "CopyBackward")]
    cause = script.fallen[0].cause
    assert cause is not None
    assert (cause.name, cause.certainty) == ("symmetric-in-forward-only", "likely")
    assert result.looks_at == "your script train.py"
    assert result.verdict.word == "pass"
    assert "forward 100 %, backward 0 %" in result.verdict.sentence


def test_the_buffers_watched_make_the_cause_certain(tmp_path: Path) -> None:
    buffer = {"kind": "all_reduce", "role": "in-place", "dtype": "bfloat16", "bytes": 2097152}
    inside = buffer | {"phase": "forward", "thread": "main", "in_pool": True, "registration": "symmetric"}
    outside = buffer | {"phase": "backward", "thread": "autograd", "in_pool": False, "registration": "none"}
    result = judged(tmp_path, "train_tp_pool", {"buffers": [inside, outside]})
    assert result.script is not None
    cause = result.script.fallen[0].cause
    assert cause is not None
    assert (cause.name, cause.certainty) == ("allocated-on-autograd-thread", "certain")


def test_a_script_without_a_pool_is_told_so(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "train_tp_none")
    for rank in range(2):
        path = tmp_path / f"cases/script/rank{rank}.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"pool": POOL | {"allocator": None, "registered": "none"}}))
    result = judge_script(folder, asked())
    assert result.script is not None
    assert {one.cause.name for one in result.script.fallen if one.cause} == {"pool-not-registered"}


def test_most_bytes_come_first_and_fsdp_is_known_by_its_windows(tmp_path: Path) -> None:
    script = judged(tmp_path, "train_fsdp2_default").script
    assert script is not None
    sizes = [(one.bytes or 0) * one.calls_per_step for one in script.fallen]
    assert sizes == sorted(sizes, reverse=True)
    assert {one.op for one in script.fallen if one.kind == "reduce_scatter"} == {
        "FSDP::post_backward_reduce (0)", "FSDP::post_backward_reduce (1)",
    }  # fmt: skip
    assert {one.cause.name for one in script.fallen if one.cause} == {"communication-memory-not-symmetric"}


@pytest.mark.parametrize(("least", "word"), [(0.0, "pass"), (0.01, "fail")])
def test_a_minimum_is_a_gate(tmp_path: Path, least: float, word: str) -> None:
    assert judged(tmp_path, "train_tp_pool", forward=1.0, backward=least).verdict.word == word


def test_a_minimum_fails_where_nothing_eligible_ran(tmp_path: Path) -> None:
    """DDP communicates in backward only, so forward has no coverage."""
    result = judged(tmp_path, "x2_ddp_hook", forward=0.0)
    assert result.verdict.word == "fail"
    assert "n/a" in result.verdict.sentence


def raised(message: str, ended: float) -> dict[str, Any]:
    return {"outcome": "raised", "message": message, "detail": f"Traceback\n{message}", "script": {"ended": ended}}


@pytest.mark.parametrize(
    ("changes", "word", "told"),
    [
        (raised("ValueError: bad loss", 1.0), "fail", "rank 1: ValueError: bad loss"),
        ({"outcome": "incapable", "message": "no optimizer step was seen"}, "unmeasured", "no optimizer step was seen"),
        ({"state": "started", "outcome": None}, "fail", "rank 1 left no record of its end"),
    ],
)
def test_a_rank_in_trouble(tmp_path: Path, changes: dict[str, Any], word: str, told: str) -> None:
    result = judged(tmp_path, "train_tp_pool", changes)
    assert result.verdict.word == word
    assert told in result.verdict.sentence
    assert result.script is not None
    assert told in (result.script.trouble or "")


def test_the_rank_that_raised_first_is_blamed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "train_tp_pool", **raised("ValueError: bad loss", 1.0))
    path = tmp_path / "cases/script/rank0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | raised("RuntimeError: connection closed", 2.0)))
    assert "bad loss" in judge_script(folder, asked()).verdict.sentence


def test_a_rank_that_was_killed_fails_the_run(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "train_tp_pool")
    end(tmp_path, "died", "rank 1 was killed by SIGSEGV")
    result = judge_script(folder, asked())
    assert (result.verdict.word, result.verdict.sentence) == (
        "fail",
        "The script failed: rank 1 was killed by SIGSEGV.",
    )


@pytest.mark.parametrize(
    ("traced", "verdict"),
    [
        (True, ("fail", "The script failed: stopped by SIGTERM while it ran.")),
        (False, ("unmeasured", "Nothing could be measured: stopped by SIGTERM while it ran.")),
    ],
)
def test_a_script_that_was_stopped_is_judged_by_what_it_left(
    tmp_path: Path, traced: bool, verdict: tuple[str, str]
) -> None:
    """Even where a rank has recorded an end by now: that may be of being stopped."""
    folder = folder_of(tmp_path, "train_tp_pool", **raised("SystemExit: 143", 1.0), trace=None)
    if not traced:
        path = tmp_path / "cases/script/rank0.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"trace": None}))
    end(tmp_path, "stopped", "stopped by SIGTERM while it ran")
    result = judge_script(folder, asked())
    assert (result.verdict.word, result.verdict.sentence) == verdict
    assert result.script is not None
    assert {row.phase: row.calls_per_step for row in result.script.rows} == (
        {"forward": 3.0, "backward": 3.0} if traced else {}
    )
    assert why_no_baseline(result) == "is of a run that was interrupted"


def test_a_broken_trace_fails_the_run(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "train_tp_pool")
    (tmp_path / "cases/script/rank1.trace.json.gz").write_text("no trace")
    result = judge_script(folder, asked())
    assert result.verdict.word == "fail"
    assert "the trace of rank 1 can't be read: cases/script/rank1.trace.json.gz" in result.verdict.sentence


def test_a_record_cannot_name_a_trace_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="names a trace elsewhere"):
        judged(tmp_path, "train_tp_pool", {"trace": "../../secret"})


def test_the_result_is_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    result = judged(tmp_path / "run", "train_tp_pool", backward=0.9)
    write_result(result, tmp_path / "result.json")
    assert read_result(tmp_path / "result.json") == result


def test_the_terminal_shows_rows_what_fell_back_and_the_mend(tmp_path: Path) -> None:
    console = Console(record=True, width=300, force_terminal=False, file=(tmp_path / "shown").open("w"))
    print_run_table(judged(tmp_path, "train_tp_pool"), console)
    lines = console.export_text().splitlines()
    assert any(line.split()[:4] == ["backward", "all_reduce", "bfloat16", "default_pg"] for line in lines)
    assert any("12582912" in line and "CopyBackward" in line for line in lines)
    assert any(line.startswith("symmetric-in-forward-only (likely): ") and "do this: " in line for line in lines)
    assert "coverage backward: 0 % (0 of 12 calls)" in lines


def test_the_summary_has_the_same(tmp_path: Path) -> None:
    text = summary_markdown(judged(tmp_path, "train_tp_pool", backward=0.9))
    assert text.startswith("## symmem-check: FAIL\n")
    assert "`train.py --lr 1`, 2 ranks, 2 steps after 3 to warm up, told by `AdamW`." in text
    assert "| 12582912 | 6 | 2097152 | backward | all_reduce | bfloat16 | CopyBackward |" in text
    assert "**symmetric-in-forward-only** (likely)" in text


def test_junit_has_a_test_case_a_phase_and_fails_the_one_below_its_minimum(tmp_path: Path) -> None:
    root = ElementTree.fromstring(junit_xml(judged(tmp_path, "train_tp_pool", forward=1.0, backward=0.9)))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert set(cases) == {"train.py forward", "train.py backward"}
    assert cases["train.py forward"].find("failure") is None
    failure = cases["train.py backward"].find("failure")
    assert failure is not None
    assert "CopyBackward" in (failure.text or "")


def test_junit_shows_a_script_that_failed(tmp_path: Path) -> None:
    root = ElementTree.fromstring(junit_xml(judged(tmp_path, "train_tp_pool", raised("ValueError: bad loss", 1.0))))
    assert [case.get("name") for case in root.iter("testcase") if case.find("failure") is not None] == ["verdict"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--script", "no-such-file.py"], "no-such-file.py: no such file"),
        (["--script", __file__, "--suite", "full"], "--suite can't go with --script"),
        (["--steps", "3"], "--steps belong to a training script"),
        (["--", "--lr", "1"], "arguments after -- belong to a training script"),
    ],
)
def test_flags_that_do_not_go_together(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_without_a_gpu_it_is_unmeasured_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"error": "torch sees no GPU"}\'\n')
    python.chmod(0o755)
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(1)\n")
    out = tmp_path / "out"
    arguments = ["run", "--python", str(python), "--out", str(out), "--script", str(script), "--", "--suite", "x"]
    assert main(arguments) == 3
    assert "Nothing could be measured: torch sees no GPU" in capsys.readouterr().out
    result = read_result(out / "result.json")
    assert result.script is not None
    assert result.script.command == [str(script), "--suite", "x"]
