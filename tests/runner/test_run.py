"""`symmem-check run` from its command line to its reports, with real ranks: on the CPU where there is no GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest

from runner.plan import Case, Configuration, Plan
from runner.run import Progress
from runner.watch import CaseProgress
from tests.runner.test_launch import REPOSITORY, marked_processes

SUITE = """\
suite: mine
ranks: 2
steps: 2
warmup: 1
configurations:
  zero-cta: {env: {NCCL_CTA_POLICY: "2"}}
checks:
  good: {workload: own.py:good, deadline: 60, configuration: zero-cta, expect: {forward: symmetric}}
  slow: {workload: own.py:slow, deadline: 300, expect: {forward: symmetric}}
  never: {workload: own.py:good, deadline: 60, expect: {forward: symmetric}}
"""
OWN = """
    import time
    import torch
    import torch.distributed as dist

    def good(case, pool):
        case.run(lambda: dist.all_reduce(torch.ones(8)))
        case.check(torch.ones(8), torch.ones(8, dtype=torch.float64), tolerance=0.0)

    def slow(case, pool):
        print("slow has begun", flush=True)
        time.sleep(10_000)
    """
# The whole command, with the CPU in place of the GPUs that it would else look for.
ON_THE_CPU = f"""
    import sys
    sys.path.insert(0, {str(REPOSITORY)!r})
    import runner.run
    from runner.cli import main
    from runner.launch import Device, PythonFacts, describe_python
    from runner.suite import Suite

    def with_a_gpu(python, **options):
        if options.get("thorough"):
            return describe_python(python, **options)
        return PythonFacts(torch="2.13.0", cuda="13.0", devices=[Device(0, "a CPU", (9, 0))])

    plan = Suite.plan
    runner.run.describe_python = with_a_gpu
    Suite.plan = lambda self, **options: plan(self, **{{**options, "device": "cpu", "backend": "gloo"}})
    sys.exit(main(sys.argv[1:]))
    """


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a suite and workloads of its own, and the command that is run in it."""
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "own.py").write_text(textwrap.dedent(OWN))
    (tmp_path / "command.py").write_text(textwrap.dedent(ON_THE_CPU))
    return tmp_path


def command(repository: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        str(repository / "command.py"),
        *("run", "--suite", "suite.yaml", "--out", "out", "--python", sys.executable, *arguments),
    ]


def result_in(repository: Path) -> dict:
    return json.loads((repository / "out" / "result.json").read_text())


def run_in(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(repository, *arguments), cwd=repository, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_only_one_configuration_is_run_and_told(repository: Path) -> None:
    done = run_in(repository, "--only", "good", "--ranks", "3", "--ranks-per-gpu", "3")
    assert done.returncode == 3, done.stderr  # no GPU events on a CPU
    lines = done.stderr.splitlines()
    assert lines[0] == "1 cases, 3 ranks on 1 × a CPU, torch 2.13.0"
    assert lines[1] == "configuration zero-cta: NCCL_CTA_POLICY=2"
    assert lines[2].startswith("[1/1] good done, ")
    result = result_in(repository)
    (case,) = result["cases"]
    assert (case["id"], case["configuration"], case["trouble"]) == (
        "good",
        "zero-cta",
        "no GPU events in the trace of rank 0: is CUPTI in use elsewhere?",
    )
    assert "configuration zero-cta: NCCL_CTA_POLICY=2" in result["notes"]
    # The only configuration that came up tells the run's environment too.
    assert result["environment"]["variables"]["NCCL_CTA_POLICY"] == "2"
    assert result["environment"]["ranks"] == 3
    assert set(result["seconds"]) == {"describe", "run", "judge"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_judged_and_written(repository: Path, number: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        command(repository), cwd=repository, env={**os.environ, "TEST_MARK": mark}, stderr=subprocess.PIPE, text=True
    )
    log = repository / "out" / "run" / "starts" / "1" / "log.txt"
    until = time.monotonic() + 120
    while not (log.is_file() and "slow has begun" in log.read_text()):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert told.splitlines()[-1] == (f"symmem-check: interrupted by {number.name}; reports of what was done are in out")
    assert marked_processes(mark) == []
    result = result_in(repository)
    assert {case["id"]: case["trouble"] for case in result["cases"]} == {
        "good": "no GPU events in the trace of rank 0: is CUPTI in use elsewhere?",
        "slow": f"stopped by {number.name} while it ran",
        "never": "not run: interrupted",
    }
    assert {phase["outcome"] for case in result["cases"] for phase in case["phases"]} == {"unmeasured"}
    assert "the run was interrupted: 1 of 3 cases were not run" in result["notes"]
    assert [start["ended"] for start in result["starts"]] == ["finished", "stopped"]
    assert (repository / "out" / "junit.xml").is_file() and (repository / "out" / "summary.md").is_file()


def test_a_workload_that_is_not_there_is_told_before_torch_is_looked_for(repository: Path) -> None:
    (repository / "own.py").unlink()
    done = run_in(repository, "--python", str(repository / "no-python"))
    assert done.returncode == 2 and "checks.good.workload: there is no file 'own.py'" in done.stderr


@pytest.mark.slow
def test_a_torch_that_cannot_be_imported_is_unmeasured_with_its_reason(repository: Path) -> None:
    broken = repository / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    python = repository / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={broken.parent} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = run_in(repository, "--python", str(python))
    assert done.returncode == 3, done.stderr
    assert "[1/3] good died, 0.0 s: torchrun ended with status 1: OSError: libcudart.so.13" in done.stderr
    assert "fresh process group" not in done.stderr
    result = result_in(repository)
    assert result["verdict"]["word"] == "unmeasured"
    assert "torch can't be imported: OSError: libcudart.so.13" in result["verdict"]["sentence"]


def test_a_configuration_is_told_when_it_changes_and_only_then() -> None:
    told: list[str] = []
    plan = Plan(ranks=2, configurations={"mine": Configuration(env={"A": "1"}, symm_mem_backend="CUDA")}, cases=[])
    progress = Progress(plan, told.append)
    for index, configuration in enumerate(["default", "mine", "mine", "default"]):
        progress(CaseProgress(f"case{index}", index, 4, "done", "ok", None, 1.0, configuration))
    assert told == [
        "[1/4] case0 done, 1.0 s",
        "configuration mine: A=1, symm_mem backend CUDA",
        "[2/4] case1 done, 1.0 s",
        "[3/4] case2 done, 1.0 s",
        "configuration default: nothing changed",
        "[4/4] case3 done, 1.0 s",
    ]


def test_a_start_holds_one_configuration_and_the_rest_waits_in_order() -> None:
    def case(name: str, configuration: str) -> Case:
        return Case(id=name, folder=f"cases/{name}", workload="w", axes={}, deadline=1.0, configuration=configuration)

    mixed = [case("a", "mine"), case("b", "default"), case("c", "mine"), case("d", "default")]
    own = Configuration(env={"A": "1"})
    plan = Plan(ranks=2, configurations={"mine": own, "other": Configuration(env={"B": "2"})}, cases=mixed)
    assert [case.id for case in plan.in_order_of_running()] == ["a", "c", "b", "d"]
    first = plan.part(plan.in_order_of_running(), start=0)
    assert ([case.id for case in first.cases], first.configurations, first.configuration) == (
        ["a", "c"],
        {"mine": own},
        own,
    )
    rest = plan.part([mixed[1], mixed[3]], start=1)
    assert (rest.start, [case.id for case in rest.cases], rest.configurations) == (1, ["b", "d"], {})
    assert rest.configuration == Configuration()
