"""Judging a run folder: the recorded run as it is, and with what can go wrong put into copies of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from runner.errors import UserError
from runner.judge.run import judge_run, read_environment, unmeasured_run
from runner.result import PhaseResult, Result
from runner.run import REPLAY
from runner.runfolder import RunFolder
from runner.suite import Suite, load_suite

Edit = Callable[[dict], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the recorded run: two ranks on one H200, every case of the default suite."""
    return Path(shutil.copytree(REPLAY, tmp_path / "run"))


@pytest.fixture
def suite() -> Suite:
    return load_suite("default").select(["all_reduce/*"])


def case_folder(folder: Path, pool: str) -> Path:
    return folder / "cases" / "all_reduce" / pool


def edit_record(folder: Path, pool: str, edit: Edit, ranks: tuple[int, ...] = (0, 1)) -> None:
    for rank in ranks:
        path = case_folder(folder, pool) / f"rank{rank}.json"
        record = json.loads(path.read_text())
        edit(record)
        path.write_text(json.dumps(record))


def take_traces_of(folder: Path, pool: str, other: str) -> None:
    """Let the case have run as another one did."""
    for rank in (0, 1):
        name = f"rank{rank}.trace.json.gz"
        shutil.copy(case_folder(folder, other) / name, case_folder(folder, pool) / name)


def judged(folder: Path, suite: Suite) -> Result:
    return judge_run(RunFolder(folder), suite)


def phase(result: Result, pool: str, name: str) -> PhaseResult:
    case = next(case for case in result.cases if case.id == f"all_reduce/{pool}")
    return next(phase for phase in case.phases if phase.phase == name)


def outcomes(result: Result, pool: str) -> tuple[str, str]:
    return phase(result, pool, "forward").outcome, phase(result, pool, "backward").outcome


def test_the_recorded_run_is_as_the_suite_expects(folder: Path, suite: Suite) -> None:
    result = judged(folder, suite)
    assert result.verdict.word == "pass"
    assert {case.id.split("/")[1]: outcomes(result, case.id.split("/")[1]) for case in result.cases} == {
        "none": ("pass", "pass"),
        "forward": ("pass", "pass"),
        "step": ("pass", "known"),
        "single-thread": ("pass", "pass"),
        "backward": ("pass", "pass"),
        "static": ("pass", "pass"),
        "unregistered": ("pass", "pass"),
        "registered-not-symmetric": ("pass", "pass"),
    }
    assert result.coverage["forward"].ratio == 1.0
    # step, single-thread, backward and static expect it; two ranks, two steps each; step falls back.
    assert (result.coverage["backward"].symmetric.calls, result.coverage["backward"].fallback.calls) == (12, 4)
    assert result.coverage["backward"].ratio == 0.75


def test_no_collective_of_a_recorded_case_is_without_phase(folder: Path, suite: Suite) -> None:
    for case in judged(folder, suite).cases:
        assert len(case.collectives) == 8, case.id
        assert {row.phase for row in case.collectives} == {"forward", "backward"}, case.id
        assert not case.notes, case.id


@pytest.mark.parametrize(
    ("pool", "name", "cause"),
    [
        ("step", "backward", "allocated-on-autograd-thread"),
        ("forward", "backward", "allocated-on-autograd-thread"),
        ("none", "forward", "outside-pool"),
        ("none", "backward", "outside-pool"),
        ("unregistered", "forward", "pool-not-registered"),
        ("registered-not-symmetric", "backward", "registered-not-symmetric"),
        ("static", "backward", None),
    ],
)
def test_causes(folder: Path, suite: Suite, pool: str, name: str, cause: str | None) -> None:
    found = phase(judged(folder, suite), pool, name).cause
    assert (found.name if found else None) == cause


def test_versions_are_those_really_loaded(folder: Path) -> None:
    environment = read_environment(RunFolder(folder))
    assert (environment.nccl, environment.nccl_built) == ("2.30.7", "2.28.9")
    assert (environment.ranks, environment.ranks_per_gpu, environment.gpu) == (2, 2, "NVIDIA H200")


def test_a_fallback_fails_the_gate(folder: Path, suite: Suite) -> None:
    take_traces_of(folder, "static", "step")
    result = judged(folder, suite)
    assert outcomes(result, "static") == ("pass", "fail")
    assert phase(result, "static", "backward").message == "all 4 collectives fell back"
    assert result.verdict.word == "fail"
    assert "all_reduce/static backward" in result.verdict.sentence


def test_a_single_rank_that_falls_back_fails_the_phase(folder: Path, suite: Suite) -> None:
    name = "rank1.trace.json.gz"
    shutil.copy(case_folder(folder, "step") / name, case_folder(folder, "static") / name)
    assert phase(judged(folder, suite), "static", "backward").message == "2 of 4 collectives fell back"


def test_a_control_that_turns_symmetric_fails(folder: Path, suite: Suite) -> None:
    take_traces_of(folder, "none", "static")
    result = judged(folder, suite)
    assert outcomes(result, "none") == ("fail", "fail")
    assert result.verdict.word == "fail"


def test_a_known_problem_that_is_gone_is_told(folder: Path, suite: Suite) -> None:
    take_traces_of(folder, "step", "single-thread")
    result = judged(folder, suite)
    assert outcomes(result, "step") == ("pass", "fixed")
    assert result.verdict.word == "pass"
    assert "known problem that is gone" in result.verdict.sentence
    known = phase(result, "step", "backward").known
    assert known is not None
    assert known.issue == "https://github.com/pytorch/pytorch/issues/167353"


def test_a_known_problem_out_of_its_bounds_fails(folder: Path, suite: Suite) -> None:
    cases = []
    for case in suite.cases:
        known = {
            name: tuple(msgspec.structs.replace(one, torch="<2.9") for one in problems)
            for name, problems in case.known.items()
        }
        cases.append(msgspec.structs.replace(case, known=known))
    bounded = msgspec.structs.replace(suite, cases=tuple(cases))
    assert outcomes(judged(folder, bounded), "step") == ("pass", "fail")


def raised(record: dict) -> None:
    record |= {"outcome": "raised", "message": "RuntimeError: no", "detail": "Traceback …", "trace": None}


def waiting(record: dict) -> None:
    record |= {"outcome": "raised", "message": "rank 1 raised; this rank was waiting", "detail": "stack", "trace": None}


def test_the_rank_that_raised_is_blamed_not_the_one_that_waited(folder: Path, suite: Suite) -> None:
    edit_record(folder, "static", waiting, (0,))
    edit_record(folder, "static", raised, (1,))
    result = judged(folder, suite)
    assert outcomes(result, "static") == ("error", "error")
    assert phase(result, "static", "forward").message == "rank 1 raised: RuntimeError: no"
    case = next(case for case in result.cases if case.id == "all_reduce/static")
    assert case.detail == "Traceback …"
    assert outcomes(result, "backward") == ("pass", "pass")


def test_wrong_values_are_an_error_though_symmetric(folder: Path, suite: Suite) -> None:
    def wrong(record: dict) -> None:
        record |= {"outcome": "wrong-values", "message": "3 of 8 values are wrong, by up to 2"}

    edit_record(folder, "static", wrong, (1,))
    result = judged(folder, suite)
    assert outcomes(result, "static") == ("error", "error")
    assert "wrong values on rank 1" in phase(result, "static", "forward").message


def test_a_lost_case_is_an_error(folder: Path, suite: Suite) -> None:
    lost = {
        "schema": 1,
        "case": "all_reduce/static",
        "start": 0,
        "outcome": "died",
        "rank": 1,
        "message": "rank 1 died",
    }
    (case_folder(folder, "static") / "lost.json").write_text(json.dumps(lost))
    result = judged(folder, suite)
    assert outcomes(result, "static") == ("error", "error")
    assert phase(result, "static", "forward").message == "rank 1 died"


def test_a_case_without_end_is_an_error(folder: Path, suite: Suite) -> None:
    def unfinished(record: dict) -> None:
        record |= {"state": "started", "outcome": None, "trace": None}

    edit_record(folder, "static", unfinished, (1,))
    assert phase(judged(folder, suite), "static", "forward").message == "rank 1 left no record of its end"


def test_a_rank_without_record_is_an_error(folder: Path, suite: Suite) -> None:
    (case_folder(folder, "static") / "rank1.json").unlink()
    assert outcomes(judged(folder, suite), "static") == ("error", "error")


def test_what_this_machine_lacks_is_incapable_and_fails_nothing(folder: Path, suite: Suite) -> None:
    def lacks(record: dict) -> None:
        record |= {"outcome": "incapable", "message": "came with torch 2.9", "trace": None}

    edit_record(folder, "static", lacks)
    result = judged(folder, suite)
    assert outcomes(result, "static") == ("incapable", "incapable")
    assert result.verdict.word == "pass"
    assert "not possible on this machine" in result.verdict.sentence


def test_controls_alone_prove_nothing(folder: Path, suite: Suite) -> None:
    def lacks(record: dict) -> None:
        record |= {"outcome": "incapable", "message": "came with torch 2.9", "trace": None}

    for pool in ("forward", "step", "single-thread", "backward", "static"):
        edit_record(folder, pool, lacks)
    result = judged(folder, suite)
    assert outcomes(result, "none") == ("pass", "pass")
    assert result.verdict.word == "unmeasured"
    assert "came with torch 2.9" in result.verdict.sentence


def test_a_broken_trace_is_an_error_that_names_it(folder: Path, suite: Suite) -> None:
    (case_folder(folder, "static") / "rank1.trace.json.gz").write_bytes(b"no trace")
    found = phase(judged(folder, suite), "static", "forward")
    assert found.outcome == "error"
    assert found.message.startswith("the trace of rank 1 can't be read: cases/all_reduce/static/rank1.trace.json.gz: ")


def test_a_trace_without_gpu_events_is_unmeasured(folder: Path, suite: Suite) -> None:
    (case_folder(folder, "static") / "rank1.trace.json.gz").write_text('{"traceEvents": []}')
    result = judged(folder, suite)
    assert outcomes(result, "static") == ("unmeasured", "unmeasured")
    assert result.verdict.word == "fail"


def test_an_empty_folder_is_refused_in_one_line(tmp_path: Path, suite: Suite) -> None:
    with pytest.raises(UserError, match=r"plan\.json"):
        judged(tmp_path, suite)


def test_a_record_of_another_kind_is_refused_with_its_place(folder: Path, suite: Suite) -> None:
    path = case_folder(folder, "static") / "rank0.json"
    path.write_text('{"case": 1}')
    with pytest.raises(UserError, match=r"static/rank0\.json.*run it again"):
        judged(folder, suite)


def test_a_run_that_could_not_begin_says_why(suite: Suite) -> None:
    result = unmeasured_run(suite, 2, 1, "no torch in /usr/bin/python3")
    assert result.verdict.word == "unmeasured"
    assert result.verdict.sentence == "Nothing could be measured: no torch in /usr/bin/python3."
    assert {phase.outcome for case in result.cases for phase in case.phases} == {"unmeasured"}
    assert result.coverage["backward"].ratio is None
