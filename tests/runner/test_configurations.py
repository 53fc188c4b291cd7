"""Launch configurations in real runs: a start of the ranks each, with its own environment, also when judged."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from runner.judge.run import judge_run
from runner.launch import ranks_environment
from runner.plan import Case, Configuration, Plan
from runner.result import CaseResult, Result
from runner.run import REPLAY
from runner.runfolder import RunFolder
from runner.suite import load_suite
from tests.runner.test_launch import Run, bad_case, probe

LAZY = Configuration(env={"NCCL_CTA_POLICY": "2", "TORCH_NCCL_X": "of the plan"})


def in_configuration(case: Case, configuration: str, **needs: str | bool) -> Case:
    return msgspec.structs.replace(
        case, id=f"{configuration}/{case.id}", folder=f"cases/{configuration}/{case.id}", configuration=configuration,
        needs={name.replace("_", "-"): bound for name, bound in needs.items()},
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two configurations and the default, mixed, with a case that breaks the process group of one."""
    cases = [
        in_configuration(bad_case("raises"), "lazy"),
        in_configuration(bad_case("good"), "default"),
        in_configuration(bad_case("good"), "lazy"),
        in_configuration(probe("none"), "default", torch=">=99", ranks=">=2"),
        in_configuration(bad_case("good"), "symm"),
        in_configuration(probe("none"), "lazy", torch=">=2.0", own_gpu=True),
    ]
    plan = Plan(
        ranks=2, device="cpu", backend="gloo", cases=cases,
        configurations={"lazy": LAZY, "symm": Configuration(symm_mem_backend="CUDA")},
    )  # fmt: skip
    environment = {**os.environ, "TORCH_NCCL_X": "of the caller", "NCCL_CALLER": "1"}
    return Run(tmp_path_factory.mktemp("run") / "run", plan, environment=environment)


@pytest.mark.slow
class TestOneRunWithThreeConfigurations:
    def test_each_configuration_has_starts_of_its_own(self, run: Run) -> None:
        probe_id = "all_reduce/none/bfloat16/sum"
        assert [start.cases for start in run.starts] == [
            ["lazy/raises"],
            ["lazy/good", f"lazy/{probe_id}"],
            ["default/good", f"default/{probe_id}"],
            ["symm/good"],
        ]
        assert [start.end.ended for start in run.starts] == ["restart", "finished", "finished", "finished"]
        assert run.starts[0].end.message == "2 of 3 cases left for a fresh start of the ranks"
        ends = [told for told in run.told if told.state != "started"]
        assert [told.index for told in ends] == list(range(6))
        assert [told.configuration for told in ends] == ["lazy"] * 3 + ["default"] * 2 + ["symm"]

    def test_a_start_has_the_variables_of_its_configuration_only(self, run: Run) -> None:
        seen = [run.folder.environments(number)[1].env for number in run.folder.starts()]
        assert [env.get("NCCL_CTA_POLICY") for env in seen] == ["2", "2", None, None]
        assert [env["TORCH_NCCL_X"] for env in seen] == ["of the plan"] * 2 + ["of the caller"] * 2
        assert {env["NCCL_CALLER"] for env in seen} == {"1"}
        plans = [run.folder.plan_of(number) for number in run.folder.starts()]
        assert [list(plan.configurations) for plan in plans if plan] == [["lazy"], ["lazy"], [], ["symm"]]

    def test_a_case_without_what_it_needs_is_incapable_in_words(self, run: Run) -> None:
        import importlib.metadata

        name = "default/all_reduce/none/bfloat16/sum"
        assert run.outcomes(name) == ["incapable", "incapable"]
        (told,) = set(run.messages(name))
        assert told is not None and told.startswith("needs torch >= 99; this is ")
        assert importlib.metadata.version("torch").split("+")[0] in told
        assert (
            run.messages("lazy/all_reduce/none/bfloat16/sum")
            == ["needs a GPU for each rank; this run is on the cpu"] * 2
        )
        assert run.outcomes("default/good") == run.outcomes("lazy/good") == ["ok", "ok"]

    def test_a_backend_that_this_machine_cannot_have_is_told_for_its_cases_alone(self, run: Run) -> None:
        assert run.outcomes("symm/good") == ["incapable", "incapable"]
        assert run.messages("symm/good")[0] == "the symm_mem backend CUDA needs a GPU, and this run is on the cpu"


@pytest.mark.slow
def test_a_configuration_that_never_comes_up_costs_only_its_own_cases(tmp_path: Path) -> None:
    broken = Configuration(env={"PYTHONPATH": str(tmp_path)})
    (tmp_path / "torch.py").write_text("raise SystemExit('a broken torch')")
    cases = [in_configuration(bad_case(name), "broken") for name in ("good", "raises")]
    cases.append(in_configuration(bad_case("good"), "default"))
    plan = Plan(ranks=2, device="cpu", backend="gloo", cases=cases, configurations={"broken": broken})
    run = Run(tmp_path / "run", plan)
    assert [start.end.ended for start in run.starts] == ["died", "finished"]
    for case in cases[:2]:
        lost = run.folder.lost(case)
        assert lost is not None and "a broken torch" in lost.message
    assert run.outcomes("default/good") == ["ok", "ok"]


def test_a_configuration_goes_before_the_caller_and_the_caller_before_what_a_shared_gpu_needs() -> None:
    case = in_configuration(bad_case("good"), "lazy")
    plan = Plan(ranks=2, ranks_per_gpu=2, cases=[case], configurations={"lazy": Configuration(env={"A": "plan"})})
    variables = ranks_environment(plan, {"A": "caller", "NCCL_NVLS_ENABLE": "2", "B": "caller"})
    assert (variables["A"], variables["B"], variables["NCCL_NVLS_ENABLE"]) == ("plan", "caller", "2")
    assert variables["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"


@pytest.fixture
def two_starts(tmp_path: Path) -> Path:
    """The recorded run, with one of its cases as if it had run in a second start that has windows switched off."""
    folder = Path(shutil.copytree(REPLAY, tmp_path / "run"))
    plan = json.loads((folder / "plan.json").read_text())
    for case in plan["cases"]:
        if case["id"] == "all_reduce/none":
            case["configuration"] = "no-windows"
            part = {**plan, "cases": [case], "start": 1}
    plan["configurations"] = part["configurations"] = {"no-windows": {"env": {"NCCL_WIN_ENABLE": "0"}}}
    (folder / "plan.json").write_text(json.dumps(plan))
    shutil.copytree(folder / "starts" / "0", folder / "starts" / "1")
    (folder / "starts" / "1" / "plan.json").write_text(json.dumps(part))
    for rank in (0, 1):
        path = folder / "starts" / "1" / f"rank{rank}.json"
        environment = json.loads(path.read_text())
        environment["env"]["NCCL_WIN_ENABLE"] = "0"
        path.write_text(json.dumps(environment))
        record = folder / "cases" / "all_reduce" / "none" / f"rank{rank}.json"
        record.write_text(json.dumps({**json.loads(record.read_text()), "start": 1}))
    return folder


def judged(folder: Path) -> tuple[Result, dict[str, CaseResult]]:
    result = judge_run(RunFolder(folder), load_suite("default").select(["all_reduce/*"]))
    return result, {case.id.removeprefix("all_reduce/"): case for case in result.cases}


def test_a_case_is_judged_by_the_environment_of_its_own_start(two_starts: Path) -> None:
    result, cases = judged(two_starts)
    causes = {
        name: [phase.cause.name if phase.cause else None for phase in case.phases] for name, case in cases.items()
    }
    assert causes["none"] == ["switched-off", "switched-off"]
    assert causes["unregistered"] == ["pool-not-registered"] * 2
    assert (cases["none"].configuration, cases["none"].start) == ("no-windows", 1)
    assert (cases["static"].configuration, cases["static"].start) == ("default", 0)
    # What the run ran in is the default configuration's, though another start came later.
    assert "NCCL_WIN_ENABLE" not in result.environment.variables
    assert "configuration no-windows: NCCL_WIN_ENABLE=0" in result.notes
    assert [start.cases for start in result.starts][1] == ["all_reduce/none"]


def test_without_a_default_configuration_the_last_start_tells_the_environment(two_starts: Path) -> None:
    for rank in (0, 1):
        (two_starts / "starts" / "0" / f"rank{rank}.json").unlink()
    result, _ = judged(two_starts)
    assert result.environment.variables["NCCL_WIN_ENABLE"] == "0"
    assert result.environment.torch is not None


def test_an_interrupted_run_is_judged_as_far_as_it_came(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(REPLAY, tmp_path / "run"))
    end = {"schema": 1, "exit_status": -15, "ended": "stopped", "message": "stopped by SIGINT"}
    (folder / "starts" / "0" / "end.json").write_text(json.dumps(end))
    for name, start, message in (
        ("static", None, "not run: interrupted"),
        ("backward", 0, "stopped by SIGINT while it ran"),
    ):
        lost = {"case": f"all_reduce/{name}", "start": start, "outcome": "stopped", "rank": None, "message": message}
        (folder / "cases" / "all_reduce" / name / "lost.json").write_text(json.dumps(lost))
    result, cases = judged(folder)
    assert [phase.outcome for name in ("static", "backward") for phase in cases[name].phases] == ["unmeasured"] * 4
    assert [phase.outcome for phase in cases["single-thread"].phases] == ["pass", "pass"]
    assert result.verdict.word == "fail"
    assert "the run was interrupted: 1 of 8 cases were not run" in result.notes


def test_a_run_recorded_before_there_were_configurations_still_reads(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(REPLAY, tmp_path / "run"))
    plan = json.loads((folder / "plan.json").read_text())
    del plan["configurations"]
    for case in plan["cases"]:
        del case["configuration"], case["needs"]
    (folder / "plan.json").write_text(json.dumps(plan))
    result = judge_run(RunFolder(folder), load_suite("default").select(["all_reduce/*"]))
    assert {case.configuration for case in result.cases} == {"default"}
    assert not any(note.startswith("configuration ") for note in result.notes)
