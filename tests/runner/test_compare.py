"""`symmem-check compare` from its command line: results and folders of recorded traces."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.cli import main
from runner.judge.run import judge_run
from runner.result import Result, write_result
from runner.run import REPLAY
from runner.runfolder import RunFolder
from runner.suite import load_suite
from runner.trace.collectives import read_collectives
from tests.runner.judge.test_gate import script
from tests.runner.judge.test_run import take_traces_of

H200 = Path(__file__).resolve().parents[1] / "data" / "traces" / "h200"


def folder_of(to: Path, name: str) -> str:
    """A folder with the recorded traces of both ranks of a training."""
    to.mkdir()
    for rank in (0, 1):
        shutil.copy(H200 / f"{name}_r{rank}.json.gz", to)
    return str(to)


def saved(to: Path, result: Result) -> str:
    write_result(result, to)
    return str(to)


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    """Exit status, lines of output without those that are empty, and what was told."""
    status = main(["compare", *arguments])
    seen = capsys.readouterr()
    return status, [" ".join(line.split()) for line in seen.out.splitlines() if line], seen.err


def test_traces_that_lost_the_pool_regressed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = folder_of(tmp_path / "base", "train_tp_pool"), folder_of(tmp_path / "head", "train_tp_none")
    status, lines, _ = compared(capsys, base, head)
    assert status == 1
    assert lines == [
        "change what symmetric fell back not eligible unknown",
        "regressed forward all_reduce bfloat16 in group default_pg of 2 ranks 6 → 0 0 → 6 0 0",
        f"compared with {base}: 1 regressed, 1 as it was",
    ]
    status, lines, _ = compared(capsys, head, base)
    assert (status, lines[-1]) == (0, f"compared with {head}: 1 improved, 1 as it was")
    status, lines, _ = compared(capsys, base, base)
    assert (status, lines) == (0, [f"compared with {base}: 2 as they were"])


def test_json_is_one_object_with_every_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = folder_of(tmp_path / "base", "train_tp_pool"), folder_of(tmp_path / "head", "train_tp_none")
    assert main(["compare", "--format", "json", base, head]) == 1
    found = json.loads(capsys.readouterr().out)
    (difference,) = found["differences"]
    assert difference == {
        "change": "regressed", "case": None, "phase": "forward", "kind": "all_reduce", "group": "default_pg",
        "group_size": 2, "dtype": "bfloat16",
        "before": {"symmetric": 6.0, "fallback": 0.0, "ineligible": 0.0, "unknown": 0.0},
        "after": {"symmetric": 0.0, "fallback": 6.0, "ineligible": 0.0, "unknown": 0.0},
        "sentence": "6 of 6 calls a step symmetric in the baseline; now 0 of 6 calls a step symmetric, 6 fell back",
    }  # fmt: skip
    assert (found["same"], found["incomparable"]) == (1, [])


def without_a_step(path: Path, step: int) -> None:
    """Take out of a trace a step and all that the GPU did for it."""
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    events = content["traceEvents"]
    (mark,) = (e for e in events if e.get("name") == f"ProfilerStep#{step}" and e.get("cat") == "user_annotation")
    begin, end = mark["ts"], mark["ts"] + mark["dur"]
    launches = {
        event["args"]["correlation"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and begin <= event["ts"] < end
    }
    content["traceEvents"] = [
        event
        for event in events
        # The GPU is behind: in the time of a step it still works for the one before.
        if (event.get("args", {}).get("correlation") not in launches if event.get("cat") == "kernel"
            else event.get("ph") != "X" or not begin <= event["ts"] < end)
    ]  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps(content).encode()))


def test_another_number_of_steps_is_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = folder_of(tmp_path / "base", "train_tp_pool"), folder_of(tmp_path / "head", "train_tp_pool")
    for rank in (0, 1):
        path = Path(head) / f"train_tp_pool_r{rank}.json.gz"
        steps = {
            int(event["name"].split("#")[1])
            for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
            if str(event.get("name")).startswith("ProfilerStep#")
        }
        assert len(steps) > 1
        without_a_step(path, max(steps))
    assert [len(read_collectives(next(Path(folder).iterdir())).collectives) for folder in (base, head)] == [12, 6]
    status, lines, _ = compared(capsys, base, head)
    assert (status, lines) == (0, [f"compared with {base}: 2 as they were"])


def test_a_missing_trace_is_told_and_never_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = folder_of(tmp_path / "base", "train_tp_pool"), folder_of(tmp_path / "head", "train_tp_none")
    (Path(head) / "train_tp_none_r1.json.gz").unlink()
    status, lines, told = compared(capsys, base, head)
    assert (status, lines) == (2, [])
    assert told == f"symmem-check: {base} has 2 traces and {head} has 1; give those of the same ranks\n"


def test_another_number_of_ranks_is_incomparable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, head = folder_of(tmp_path / "base", "train_tp_pool"), folder_of(tmp_path / "head", "train_tp_none")
    for path in Path(head).iterdir():
        content = json.loads(gzip.decompress(path.read_bytes()))
        content["distributedInfo"]["world_size"] = 4
        path.write_bytes(gzip.compress(json.dumps(content).encode()))
    status, lines, _ = compared(capsys, base, head)
    assert (status, lines) == (0, [f"compared with {base}: incomparable: ranks: 2 in the baseline, 4 here"])


@pytest.fixture
def recorded() -> Result:
    return judge_run(RunFolder(REPLAY), load_suite("default").select(["all_reduce/*"]))


def test_two_results_by_file_or_output_folder(
    tmp_path: Path, recorded: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(REPLAY, tmp_path / "run"))
    take_traces_of(folder, "static", "step")
    base = saved(tmp_path / "base.json", recorded)
    worse = judge_run(RunFolder(folder), load_suite("default").select(["all_reduce/*"]))
    newer = msgspec.structs.replace(worse.environment, torch="2.12.0+cu130")
    saved(tmp_path / "result.json", msgspec.structs.replace(worse, environment=newer))
    status, lines, _ = compared(capsys, base, str(tmp_path))
    assert status == 1
    assert lines == [
        "change what symmetric fell back not eligible unknown",
        "regressed all_reduce/static backward 2 → 0 0 → 2 0 0",
        "also changed: PyTorch 2.11.0+cu130 → 2.12.0+cu130",
        f"compared with {base}: 1 regressed, 15 as they were",
    ]


def test_a_script_with_more_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = saved(tmp_path / "base.json", script(symmetric=12, steps=2))
    assert compared(capsys, base, saved(tmp_path / "head.json", script(symmetric=18, steps=3)))[0] == 0
    assert compared(capsys, base, saved(tmp_path / "head.json", script(symmetric=12, fallback=6, steps=3)))[0] == 1


def test_what_cannot_be_compared_is_told_in_one_line(
    tmp_path: Path, recorded: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = saved(tmp_path / "suite.json", recorded)
    own = saved(tmp_path / "script.json", script(symmetric=4))
    replay = saved(tmp_path / "replay.json", msgspec.structs.replace(recorded, replay=True))
    traces = folder_of(tmp_path / "traces", "train_tp_pool")
    broken = tmp_path / "broken"
    shutil.copytree(traces, broken)
    (broken / "train_tp_pool_r1.json.gz").write_bytes(b"\x1f\x8b\x08no")
    empty = tmp_path / "empty.json"
    empty.write_text('{"traceEvents": []}')
    newer = tmp_path / "newer.json"
    newer.write_text('{"schema": 2, "tool": "symmem-check"}')
    cases = [
        (suite, own, 2, "is of a suite, and this run is of a script"),
        (suite, traces, 2, "suite.json is a result and "),
        (traces, suite, 2, "suite.json is a result and "),
        (replay, suite, 2, "so it is no baseline"),
        (traces, str(broken), 2, "train_tp_pool_r1.json.gz"),
        (traces, str(tmp_path / "none"), 2, "none"),
        (str(tmp_path / "none.json"), suite, 2, "none.json: no such file"),
        (traces, str(empty), 3, "no collective was found"),
        (str(newer), suite, 2, "newer.json: has result schema 2"),
    ]
    for base, head, status, told in cases:
        seen, lines, error = compared(capsys, base, head)
        assert (seen, lines) == (status, []), (base, head)
        assert told in error.splitlines()[-1], (base, head)


def test_a_head_where_nothing_was_measured_is_no_success(
    tmp_path: Path, recorded: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = msgspec.structs.replace(
        recorded, verdict=msgspec.structs.replace(recorded.verdict, word="unmeasured", sentence="Nothing: no GPU.")
    )
    base, head = saved(tmp_path / "base.json", recorded), saved(tmp_path / "head.json", nothing)
    status, _, told = compared(capsys, base, head)
    assert (status, "has the verdict unmeasured (Nothing: no GPU)" in told) == (3, True)
