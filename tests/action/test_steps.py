"""The action's steps from action.yml's own scripts, in an environment that has only what the runner gives."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from runner.action import _deadline
from runner.action_inputs import Inputs
from runner.result import read_result
from runner.script import STOP_SECONDS as SCRIPT_STOP_SECONDS
from runner.watch import STOP_SECONDS
from tests.github.fake import TOKEN, FakeGithub
from tests.github.shapes import event
from tests.github.test_baseline import zipped
from tests.runner.test_launch import marked_processes

from .composite import Played, command
from .conftest import Play, better

pytestmark = [pytest.mark.slow, pytest.mark.needs_program("bash")]
ALL = "traces/*.json.gz"


def test_traces_that_pass(composite: Play, workspace: Path) -> None:
    played = composite().play(traces=ALL, baseline="none", page="true", junit="reports/my junit.xml")
    assert played.statuses == {"setup": 0, "fetch": 0, "run": 0, "report": 0}, played.logs
    out = workspace / "symmem-check-out"
    assert played.outputs == {
        "verdict": "pass", "forward-coverage": "100", "backward-coverage": "0", "regressions": "0",
        "result": str(out / "result.json"), "junit": str(workspace / "reports/my junit.xml"),
        "page": str(out / "page.html"), "comment-url": "", "runner-label": "",
    }  # fmt: skip
    for name in ("result", "junit", "page"):
        assert Path(played.outputs[name]).stat().st_size > 500
    assert played.summary.startswith("## symmem-check: PASS\n")
    assert "Looked at: 2 recorded traces." in played.summary
    assert played.uploads == {
        "symmem-check": [out / "result.json"],
        "symmem-check-reports": [out / "junit.xml", out / "summary.md", out / "page.html"],
    }
    result = read_result(out / "result.json")
    assert result.script is not None
    # Steps, ranks and who issued what come from the traces alone.
    assert (result.script.ranks, result.script.steps) == (2, 2)
    assert {row.phase: row.calls_per_step for row in result.script.rows} == {"forward": 6, "backward": 6}
    assert {(one.phase, one.op) for one in result.script.fallen} == {("backward", "CopyBackward")}


def test_a_coverage_below_the_minimum_fails_and_is_reported(composite: Play) -> None:
    played = composite().play(
        traces=ALL, baseline="none", min_forward_coverage="100", min_backward_coverage="90", upload="none",
        comment_key="nightly",
    )  # fmt: skip
    assert (played.statuses["run"], played.statuses["report"]) == (1, 0)
    assert played.outputs["verdict"] == "fail"
    assert played.outputs["result"].endswith("/symmem-check-out-nightly/result.json")
    assert played.uploads == {}
    assert "::error title=symmem-check%3A fail::Backward coverage is 0 %25, and 90 %25" in played.logs["report"]
    assert "## symmem-check: FAIL" in played.summary


def test_a_wrong_input_stops_before_anything_is_fetched_or_run(composite: Play) -> None:
    played = composite().play(traces=ALL, page="yes")
    assert played.statuses == {"setup": 2}
    assert played.logs["setup"] == "::error title=symmem-check%3A setup::page: 'yes' is not one of true, false\n"
    assert "### symmem-check: no result" in played.summary and "is not one of" in played.summary
    assert set(played.outputs.values()) == {""}


def test_no_value_is_ever_code(composite: Play, workspace: Path) -> None:
    trap = f"$(touch '{workspace}/trapped')`touch '{workspace}/trapped'`\"; touch '{workspace}/trapped' #"
    played = composite().play(traces=f"{trap}\n${{{{ github.token }}}}", baseline="none")
    assert played.statuses["run"] == 2
    assert not (workspace / "trapped").exists()
    assert played.outputs["verdict"] == ""


def test_the_result_of_an_earlier_job_is_never_taken_for_this_ones(composite: Play, workspace: Path) -> None:
    first = composite().play(traces=ALL, baseline="none")
    assert first.outputs["verdict"] == "pass"
    (workspace / "symmem-check-out" / "mine.txt").write_text("not the action's")
    shutil.rmtree(workspace / "traces")
    again = composite().play(traces=ALL, baseline="none")
    assert (again.statuses["run"], again.statuses["report"]) == (2, 2)
    assert again.outputs["verdict"] == "" and again.uploads == {}
    assert "matches no trace" in again.logs["run"]
    assert "### symmem-check: no result" in again.summary and "matches no trace" in again.summary
    assert [path.name for path in (workspace / "symmem-check-out").iterdir()] == ["mine.txt"]


def test_without_gpu_or_torch_nothing_is_measured_and_that_is_said(composite: Play, workspace: Path) -> None:
    played = composite().play(baseline="none", python=sys.executable)
    assert (played.statuses["run"], played.statuses["report"]) == (3, 0)
    assert played.outputs["verdict"] == "unmeasured"
    assert "Nothing could be measured" in played.summary
    other = composite().play(script="nowhere.py", baseline="none")
    assert other.statuses["run"] == 2
    assert "script: nowhere.py: no such file in the workspace" in other.logs["run"]


def test_traces_without_gpu_events_are_unmeasured(composite: Play, workspace: Path) -> None:
    row = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
    (workspace / "cpu.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [row]}))
    played = composite().play(traces="cpu.json", baseline="none", min_forward_coverage="1")
    assert (played.statuses["run"], played.outputs["verdict"]) == (3, "unmeasured")
    assert "no GPU events" in played.summary


def test_what_a_trace_holds_can_give_the_runner_no_command(composite: Play, workspace: Path) -> None:
    for path in (workspace / "traces").iterdir():
        text = gzip.decompress(path.read_bytes()).replace(
            b'"default_pg"', b'"\\n::error::planted\\n::stop-commands::x"'
        )
        path.write_bytes(gzip.compress(text))
    played = composite().play(traces=ALL, baseline="none")
    assert played.statuses["run"] == 0
    lines = played.logs["run"].splitlines()
    found = re.fullmatch(r"::stop-commands::([0-9a-f]{32})", lines[0])
    assert found and lines[-1] == f"::{found[1]}::"
    assert not any(line.startswith("::error::planted") for line in played.logs["report"].splitlines())


# ---- with GitHub -----------------------------------------------------------------------------------------------------


def test_what_regressed_against_the_base_branch_fails_and_is_commented(
    composite: Play, github: FakeGithub, on_pull: dict[str, str], workspace: Path
) -> None:
    github.add_run(1)
    github.add_artifact(1, better(workspace / "traces"))
    played = composite(**on_pull).play(traces=ALL, token=TOKEN)
    assert played.statuses == {"setup": 0, "fetch": 0, "run": 1, "report": 0}, played.logs
    assert (played.outputs["verdict"], played.outputs["regressions"]) == ("fail", "1")
    (comment,) = github.comments
    assert played.outputs["comment-url"] == comment["html_url"]
    assert comment["body"].startswith("<!-- symmem-check key=default ")
    # Once more, with a token that may only read: told, and no other verdict.
    github.read_only = True
    again = composite(**on_pull).play(traces=ALL, token=TOKEN, fail_on="error")
    assert (again.failed, again.outputs["verdict"], again.outputs["regressions"]) == (False, "pass", "1")
    assert again.outputs["comment-url"] == ""
    assert "::notice title=symmem-check%3A comment not-posted::no comment was made" in again.logs["report"]
    assert_secret(again)
    assert_secret(played)


def assert_secret(played: Played) -> None:
    """The token is where it is needed alone, and in nothing that stays."""
    with_token = {name for name, found in played.environments.items() if TOKEN in found.values()}
    assert with_token == {"fetch", "report"}
    assert all(TOKEN not in log for log in played.logs.values())
    temp = Path(played.environments["run"]["RUNNER_TEMP"])
    left = [path for path in temp.rglob("*") if path.is_file() and "packages-" not in str(path)]
    assert left and all(TOKEN.encode() not in path.read_bytes() for path in left)


def test_a_baseline_that_is_required_and_one_that_may_not_be_read(
    composite: Play, github: FakeGithub, on_pull: dict[str, str]
) -> None:
    none = composite(**on_pull).play(traces=ALL, token=TOKEN, require_baseline="true")
    assert none.statuses == {"setup": 0, "fetch": 2, "report": 2}
    assert "### symmem-check: no result" in none.summary
    github.may_read_actions = False
    refused = composite(**on_pull).play(traces=ALL, token=TOKEN)
    assert refused.statuses["fetch"] == 2
    assert "actions: read" in refused.logs["fetch"]
    assert composite(**on_pull).play(traces=ALL, comment="false", baseline="none", token="").statuses["report"] == 0


def test_the_result_of_a_fork_is_reported_as_data(
    composite: Play, github: FakeGithub, on_pull: dict[str, str], workspace: Path, tmp_path: Path
) -> None:
    composite().play(traces=ALL, baseline="none", min_backward_coverage="90")
    ran: dict[str, Any] = event("workflow_run.completed")["workflow_run"]
    github.add_pull(7, sha=ran["head_sha"], fork=True, branch="master")
    github.add_run(ran["id"], on="pull_request", fork=True, sha=ran["head_sha"])
    github.add_artifact(ran["id"], zipped(read_result(workspace / "symmem-check-out" / "result.json")))
    payload = event("workflow_run.completed")
    payload["workflow_run"] |= {"event": "pull_request", "pull_requests": []}
    payload["workflow_run"]["head_repository"] |= {"id": 999, "full_name": "contributor/train"}
    (tmp_path / "event.json").write_text(json.dumps(payload))
    shutil.rmtree(workspace / "symmem-check-out")
    variables = on_pull | {"GITHUB_EVENT_NAME": "workflow_run", "GITHUB_EVENT_PATH": str(tmp_path / "event.json")}
    played = composite(**variables).play(mode="report", token=TOKEN, page="true")
    assert played.statuses == {"setup": 0, "fetch": 0, "report": 0}, played.logs
    assert (played.outputs["verdict"], played.outputs["backward-coverage"]) == ("fail", "0")
    assert Path(played.outputs["page"]).is_file() and Path(played.outputs["result"]).is_file()
    assert played.uploads == {}
    (comment,) = github.comments
    assert comment["issue_url"].endswith("/7")
    assert not (workspace / "symmem-check-out").exists()


# ---- a cancel --------------------------------------------------------------------------------------------------------

SUITE = """\
suite: mine
ranks: 2
steps: 2
warmup: 1
checks:
  slow: {workload: own.py:slow, deadline: 300, expect: {forward: symmetric}}
"""
OWN = """\
import time

def slow(case, pool):
    print("slow has begun", flush=True)
    time.sleep(10_000)
"""
# A machine that seems to have a GPU; the ranks run on the CPU.
ON_THE_CPU = """
from .launch import Device, PythonFacts
from .suite import Suite
describe_python = lambda python, **options: PythonFacts(torch="2.13.0", cuda="13.0", devices=[Device(0, "CPU", (9, 0))])
_plan = Suite.plan
Suite.plan = lambda self, **options: _plan(self, **{**options, "device": "cpu", "backend": "gloo"})
"""


@pytest.mark.parametrize("what", [{"suite": "suite.yaml"}, {"script": "train.py"}], ids=["suite", "script"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cancel_ends_the_ranks_and_reports_what_there_is(
    action: Path, workspace: Path, composite: Play, tmp_path: Path, number: signal.Signals, what: dict[str, str]
) -> None:
    on_cpu = shutil.copytree(action, tmp_path / "action on the CPU")
    for name in ("run.py", "script.py"):
        with (on_cpu / "runner" / name).open("a") as file:
            file.write(ON_THE_CPU)
    (workspace / "suite.yaml").write_text(SUITE)
    (workspace / "own.py").write_text(OWN)
    (workspace / "train.py").write_text(f"{OWN}\nslow(None, None)\n")
    mark = uuid.uuid4().hex
    played_action = composite(TEST_MARK=mark)
    played_action.action = on_cpu
    played = Played()
    inputs = what | {"python": sys.executable, "ranks_per_gpu": "2", "baseline": "none"}
    for step, environment, script in played_action.steps(played, inputs):
        process = subprocess.Popen(
            command(script), cwd=workspace, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        if step["id"] == "run":
            _wait(workspace / "symmem-check-out/run/starts/0/log.txt", "slow has begun", process)
            os.kill(process.pid, number)  # the entry process alone, as the runner does
            log, _ = process.communicate(timeout=120)
            assert marked_processes(mark) == []
        else:
            log, _ = process.communicate(timeout=120)
        played_action.take(played, step["id"], process.returncode, log, environment)
    assert played.statuses == {"setup": 0, "fetch": 0, "run": 128 + number, "report": 0}, played.logs
    assert played.outputs["verdict"] == "unmeasured"
    assert f"stopped by {number.name}" in played.summary
    assert "token is empty" not in played.logs["report"]  # no comment on what was cancelled


def test_the_ranks_are_given_less_time_to_end_than_the_runner_gives_us() -> None:
    """It sends SIGINT, after 7.5 s SIGTERM, and kills after 2.5 s more; the constants, since a clock would be busy too.

    https://github.com/actions/runner/blob/main/src/Runner.Sdk/ProcessInvoker.cs
    """
    assert STOP_SECONDS <= 5 and SCRIPT_STOP_SECONDS <= 5


def _wait(log: Path, text: str, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while not (log.is_file() and text in log.read_text()):
        assert time.monotonic() < until and process.poll() is None, process.communicate()
        time.sleep(0.1)


@pytest.mark.parametrize(("inputs", "ended"), [({"timeout_minutes": 0}, True), ({"timeout_minutes": 1}, False)])
def test_the_time_is_up_as_if_cancelled(
    inputs: dict[str, int], ended: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    try:
        with _deadline(Inputs(**inputs)):
            until = time.monotonic() + (60 if ended else 0.3)  # the timer is a thread that a busy machine lets wait
            while not got and time.monotonic() < until:
                time.sleep(0.05)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == ([signal.SIGTERM] if ended else [])
    assert ("timeout-minutes: 0 minutes are over" in capsys.readouterr().out) == ended
