"""The action's inputs: each is handed over, defaults agree, a wrong one is named with what is allowed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.action_inputs import PREFIX, Inputs, read_inputs
from runner.errors import UserError
from runner.result import Gate

TOKENS = {"token", "runner-token"}
MACHINE = "provider: ssh"


@pytest.fixture(scope="module")
def document(project: Path) -> dict[str, Any]:
    return yaml.safe_load((project / "action.yml").read_text(encoding="utf-8"))


@pytest.fixture
def read(document: dict[str, Any]):
    """Read inputs that differ from action.yml's defaults."""

    def call(**given: str) -> Inputs:
        values = {name: about["default"] for name, about in document["inputs"].items() if name not in TOKENS}
        values |= {"has-runner-token": "false"} | {name.replace("_", "-"): value for name, value in given.items()}
        return read_inputs({PREFIX + name.upper().replace("-", "_"): value for name, value in values.items()})

    return call


def test_the_defaults_of_action_yml_are_those_of_an_empty_input(document: dict[str, Any], read) -> None:
    empty = {name.replace("-", "_"): " " for name in document["inputs"] if name not in TOKENS}
    assert read() == read(**empty) == Inputs()


def test_action_yml_hands_every_input_over_once_and_the_tokens_to_the_steps_without_code(
    document: dict[str, Any],
) -> None:
    setup, *others = (step for step in document["runs"]["steps"] if "run" in step)
    handed = {name: f"${{{{ inputs.{name} }}}}" for name in document["inputs"] if name not in TOKENS}
    handed["has-runner-token"] = "${{ inputs.runner-token != '' }}"
    assert setup["env"] == {PREFIX + name.upper().replace("-", "_"): value for name, value in handed.items()}
    tokens = {step["id"]: [name for name, value in step["env"].items() if "token" in value] for step in others}
    assert tokens == {
        "machine": ["SYMMEM_CHECK_RUNNER_TOKEN"], "fetch": ["GITHUB_TOKEN"], "run": [], "report": ["GITHUB_TOKEN"],
    }  # fmt: skip


def test_every_input_and_output_is_described(document: dict[str, Any]) -> None:
    for about in [*document["inputs"].values(), *document["outputs"].values()]:
        assert re.search(r"\w.*\.$", about["description"])
    assert all("default" in about for about in document["inputs"].values())
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in [*document["inputs"], *document["outputs"]])


def test_all_that_may_be_asked_for(read) -> None:
    suite = read(
        suite="full", only="all_reduce/st*\n\n  ddp/*  \n", ranks="8", ranks_per_gpu="2", python="/opt/my python",
        launcher="slurm", nccl="2.30.7", witness="true", timeout_minutes="90",
        baseline="base/result.json", require_baseline="true",
        fail_on="regressed, error", min_forward_coverage="90", min_backward_coverage="87.5 %", coverage_by="bytes",
        junit="a/b.xml", page="true", comment="false", comment_key="h200", upload="all",
    )  # fmt: skip
    assert suite == Inputs(
        suite="full", only=("all_reduce/st*", "ddp/*"), ranks=8, ranks_per_gpu=2, python="/opt/my python",
        launcher="slurm", nccl="2.30.7", witness=True, timeout_minutes=90,
        baseline="base/result.json", require_baseline=True,
        gate=Gate(fail_on=("error", "regressed"), minimum={"forward": 0.9, "backward": 0.875}, coverage_by="bytes"),
        junit="a/b.xml", page=True, comment=False, comment_key="h200", upload="all",
    )  # fmt: skip
    assert (suite.artifact, suite.out.name) == ("symmem-check-h200", "symmem-check-out-h200")
    script = read(script="train.py", script_args="--name 'two words' --x=$HOME\n--y `id`")
    assert script.script_args == ("--name", "two words", "--x=$HOME", "--y", "`id`")
    assert read(traces="a b/*.json\nc").traces == ("a b/*.json", "c")
    start = read(mode="start", machine=f"\n{MACHINE}\n", machine_key="two-nodes", has_runner_token="true")
    assert (start.mode, start.machine, start.machine_key) == ("start", MACHINE, "two-nodes")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"mode": "begin"}, "mode: 'begin' is not one of check, report, start, stop, reap"),
        ({"mode": "start", "has_runner_token": "true"}, "mode: start needs machine: YAML that says"),
        ({"mode": "stop", "machine": MACHINE}, "mode: stop needs runner-token: one that may register runners"),
        (
            {"mode": "start", "machine": MACHINE, "has_runner_token": "true", "suite": "full"},
            "suite can't go with mode: start",
        ),
        ({"machine_key": "A", "mode": "start"}, "machine-key: 'A' is no key; give up to 20 small letters"),
        ({"has_runner_token": "true"}, "runner-token has no place in mode: check"),
        ({"has_runner_token": "true", "mode": "report"}, "runner-token has no place in mode: report"),
        ({"machine": MACHINE}, "machine and machine-key can't go with mode: check"),
        ({"page": "yes"}, "page: 'yes' is not one of true, false"),
        ({"comment": "True"}, "comment: 'True' is not one of true, false"),
        ({"upload": "everything"}, "upload: 'everything' is not one of none, reports, all"),
        ({"coverage_by": "time"}, "coverage-by: 'time' is not one of calls, bytes"),
        ({"ranks": "two"}, "ranks: 'two' is no whole number"),
        ({"ranks_per_gpu": "0"}, "ranks-per-gpu: 0 is less than 1"),
        ({"timeout_minutes": "0.5"}, "timeout-minutes: '0.5' is no whole number"),
        ({"timeout_minutes": "10000"}, "timeout-minutes: 10000 is more than 8640 minutes"),
        ({"min_forward_coverage": "120"}, "min-forward-coverage: 120 is not between 0 and 100"),
        ({"min_backward_coverage": "nan"}, "min-backward-coverage: nan is not between 0 and 100"),
        ({"fail_on": "regression"}, "fail-on: 'regression' is no outcome that may fail; these are: regressed"),
        ({"launcher": "mpi"}, "launcher: 'mpi' is not one of torchrun, slurm"),
        ({"launcher": "slurm", "script": "t.py"}, "launcher can't go with script"),
        ({"launcher": "slurm", "traces": "t"}, "launcher can't go with traces"),
        ({"witness": "maybe"}, "witness: 'maybe' is not one of true, false"),
        ({"witness": "true", "traces": "t"}, "witness can't go with traces"),
        ({"comment_key": "a b"}, "comment-key: 'a b' is no key"),
        ({"comment_key": "../x"}, "comment-key: '../x' is no key"),
        ({"script": "t.py", "script_args": "'a"}, "script-args: can't be split into words"),
        ({"script": "t.py", "suite": "full"}, "suite can't go with script"),
        ({"script": "t.py", "traces": "t"}, "script can't go with traces"),
        ({"traces": "t", "ranks": "2", "python": "p"}, "ranks and python can't go with traces"),
        ({"script_args": "--x"}, "script-args are a script's"),
        ({"mode": "report", "suite": "full"}, "suite can't go with mode: report"),
        ({"mode": "report", "min_forward_coverage": "1"}, "min-…-coverage can't go with mode: report"),
        ({"baseline": "none", "require_baseline": "true"}, "require-baseline: true can't go with baseline: none"),
    ],
)
def test_a_wrong_input_is_named_with_what_is_allowed(read, given: dict[str, str], told: str) -> None:
    with pytest.raises(UserError) as raised:
        read(**given)
    assert str(raised.value).startswith(told)


def test_an_input_that_is_not_handed_over_is_no_default(read) -> None:
    with pytest.raises(UserError, match="SYMMEM_CHECK_INPUT_MIN_FORWARD_COVERAGE is not set"):
        read_inputs({"INPUT_MIN-FORWARD-COVERAGE": "90", "INPUT_MODE": "check"})
