"""The action end to end in act, from a caller's workflow that has `uses: org/symmem-check@v1`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.result import read_result
from tests.github.fake import REPOSITORY, TOKEN, FakeGithub
from tests.github.shapes import EVENTS, event

from .conftest import better

ACT = Path(sys.executable).with_name("act")
pytestmark = [pytest.mark.slow, pytest.mark.needs_program("git"), pytest.mark.timeout(600)]

UPLOAD = """\
name: stands in for actions/upload-artifact
description: Copies the files to a folder.
inputs:
  name: {description: The artifact's, required: true}
  path: {description: Files, a line each, required: true}
  if-no-files-found: {description: Not looked at}
  overwrite: {description: Not looked at}
runs:
  using: composite
  steps:
    - shell: bash
      env:
        NAME: ${{ inputs.name }}
        FILES: ${{ inputs.path }}
      run: |
        mkdir -p "$ARTIFACTS/$NAME"
        while IFS= read -r file; do cp -r "$file" "$ARTIFACTS/$NAME/"; done <<<"$FILES"
"""


@dataclass
class Acted:
    """How act ended: its status, what it printed, and the artifacts' folder."""

    status: int
    log: str
    artifacts: Path

    def outputs(self, job: str) -> dict[str, str]:
        """The action's outputs as the job's last step has printed them."""
        lines = [line for line in self.log.splitlines() if f"/{job}]" in line and "OUTPUTS={" in line]
        return json.loads(lines[-1].split("OUTPUTS=", 1)[1])


class Caller:
    """A training repository with a workflow, and act to run it."""

    def __init__(self, project: Path, action: Path, folder: Path) -> None:
        self.action, self.folder = action, folder
        self.repository = folder / "train"
        (self.repository / ".github" / "workflows").mkdir(parents=True)
        stub = folder / "upload"
        stub.mkdir()
        (stub / "action.yml").write_text(UPLOAD)
        document = yaml.safe_load((project / "action.yml").read_text())
        (upload,) = {step["uses"] for step in document["runs"]["steps"] if "uses" in step}
        self.local = [f"org/symmem-check@v1={action}", f"{upload}={stub}"]

    def workflow(self, on: str, **jobs: list[dict[str, Any]]) -> None:
        """Write the workflow. Each job begins with a checkout and ends by printing the outputs of step `check`."""
        last = {
            "if": "always()", "env": {"ALL": "${{ toJSON(steps.check.outputs) }}"},
            "run": 'echo "OUTPUTS=$(echo "$ALL" | tr -d "\\n")"',
        }  # fmt: skip
        first = {"uses": "actions/checkout@v5"}
        made = {name: {"runs-on": "ubuntu-latest", "steps": [first, *steps, last]} for name, steps in jobs.items()}
        (self.repository / ".github/workflows/gate.yml").write_text(yaml.safe_dump({"on": on, "jobs": made}))
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.example"]
        for command in (["init", "--quiet", "-b", "main"], ["add", "-A"], ["commit", "--quiet", "-m", "first"]):
            subprocess.run([*git, *command], cwd=self.repository, check=True)

    def start(self, event: str, payload: Path | None = None, **environment: str) -> subprocess.Popen[str]:
        command = [str(ACT), event, "-W", ".github/workflows/gate.yml", "--no-cache-server"]
        command += ["-P", "ubuntu-latest=-self-hosted", "-s", f"GITHUB_TOKEN={TOKEN}"]
        command += ["-e", str(payload)] if payload else []
        variables = {"ARTIFACTS": str(self.folder / "artifacts"), "GITHUB_REPOSITORY": REPOSITORY, **environment}
        command += [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        command += [word for local in self.local for word in ("--local-repository", local)]
        own = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache")}
        return subprocess.Popen(
            command, cwd=self.repository, env=own, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def act(self, event: str, payload: Path | None = None, **environment: str) -> Acted:
        """Run the workflow for an event."""
        process = self.start(event, payload, **environment)
        log, _ = process.communicate(timeout=500)
        return Acted(process.returncode, log, self.folder / "artifacts")


@pytest.fixture
def caller(project: Path, action: Path, workspace: Path, tmp_path: Path) -> Caller:
    made = Caller(project, action, tmp_path)
    shutil.copytree(workspace / "traces", made.repository / "traces")
    return made


def use(name: str = "check", **inputs: str) -> dict[str, Any]:
    """A step that uses the action."""
    return {"uses": "org/symmem-check@v1", "id": name, "with": {k.replace("_", "-"): v for k, v in inputs.items()}}


def test_a_push_passes_and_leaves_its_result_and_one_that_falls_short_fails(caller: Caller) -> None:
    first = use("first", traces="traces/*.json.gz", baseline="none", comment_key="first", upload="all")
    second = use(traces="traces/*.json.gz", baseline="none", min_backward_coverage="90", page="true")
    caller.workflow("push", gate=[first, second])
    acted = caller.act("push")
    assert acted.status == 1, acted.log
    outputs = acted.outputs("gate")
    assert (outputs["verdict"], outputs["forward-coverage"], outputs["backward-coverage"]) == ("fail", "100", "0")
    left = {path.name: sorted(file.name for file in path.iterdir()) for path in acted.artifacts.iterdir()}
    assert left == {
        "symmem-check": ["result.json"], "symmem-check-first": ["result.json"],
        "symmem-check-reports": ["junit.xml", "page.html", "summary.md"],
        "symmem-check-first-reports": ["junit.xml", "summary.md"],
    }  # fmt: skip
    words = [
        read_result(acted.artifacts / name / "result.json").verdict.word
        for name in sorted(left)
        if len(left[name]) == 1
    ]
    assert words == ["fail", "pass"]
    assert "🏁  Job failed" in acted.log
    assert TOKEN not in acted.log


def test_a_pull_request_is_held_against_the_base_branch_and_gets_its_comment(
    caller: Caller, github: FakeGithub
) -> None:
    github.add_run(1, on="pull_request", branch="faster")  # act's own run always has this number
    github.add_run(9, branch=event("pull_request.opened")["pull_request"]["base"]["ref"])
    github.add_artifact(9, better(caller.repository / "traces"))
    caller.workflow("pull_request", gate=[use(traces="traces/*.json.gz")])
    acted = caller.act("pull_request", EVENTS / "pull_request.opened.json", GITHUB_API_URL=github.url)
    assert acted.status == 1, acted.log
    outputs = acted.outputs("gate")
    assert (outputs["verdict"], outputs["regressions"]) == ("fail", "1"), acted.log
    (comment,) = github.comments
    assert outputs["comment-url"] == comment["html_url"]
    assert comment["issue_url"].endswith("/2")
    assert TOKEN not in acted.log


def test_a_cancelled_job_fails_and_leaves_no_result_that_could_be_a_baseline(caller: Caller) -> None:
    """act kills the step at once, where GitHub sends SIGINT first: see test_steps.py for that."""
    slow = "while os.getppid() == parent:\n    time.sleep(0.1)\n"
    slow = f"import os, time\nparent = os.getppid()\nopen(os.environ['BEGUN'], 'a').close()\n{slow}"
    (caller.repository / "python").write_text(f"#!{sys.executable}\n{slow}")
    (caller.repository / "python").chmod(0o755)
    begun = caller.folder / "begun"
    caller.workflow("push", gate=[use(python="./python", baseline="none")])
    process = caller.start("push", BEGUN=str(begun))
    until = time.monotonic() + 120
    while not begun.exists():
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    log, _ = process.communicate(timeout=240)
    assert process.returncode != 0
    assert "Job succeeded" not in log
    assert not (caller.folder / "artifacts").exists()
