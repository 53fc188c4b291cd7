"""The GitHub side from the command line, with the variables and the real payloads that Actions gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.cli import main
from runner.result import Result, read_result, write_result

from ..runner.report.factory import first_light, result
from .fake import REPOSITORY, TOKEN, FakeGithub
from .shapes import EVENTS, WORKFLOW, event
from .test_baseline import named, zipped

PULL = event("pull_request.opened")["pull_request"]


@pytest.fixture
def actions(github: FakeGithub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variables of a job on a pull request."""
    variables = {
        "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": github.url,
        "GITHUB_SERVER_URL": "https://github.com", "GITHUB_EVENT_NAME": "pull_request", "GITHUB_RUN_ID": "50",
        "GITHUB_EVENT_PATH": str(EVENTS / "pull_request.opened.json"), "GITHUB_RUN_NUMBER": "5",
        "GITHUB_RUN_ATTEMPT": "1", "GITHUB_SHA": "d" * 40, "GITHUB_BASE_REF": "main", "GITHUB_REF_NAME": "2/merge",
        "GITHUB_WORKFLOW_REF": f"{REPOSITORY}/{WORKFLOW}@refs/pull/2/merge", "GITHUB_REF_TYPE": "branch",
        "GITHUB_ACTION_REPOSITORY": "org/symmem-check", "GITHUB_ACTION_REF": "v1",
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    github.add_pull(2, sha=PULL["head"]["sha"])


Report = Callable[..., int]


@pytest.fixture
def report(actions: None, tmp_path: Path) -> Report:
    def call(of: Result, *flags: str) -> int:
        write_result(of, tmp_path / "result.json")
        return main(["report", str(tmp_path / "result.json"), *flags])

    return call


def test_report_comments_and_keeps_the_verdicts_status(
    github: FakeGithub, report: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(result(word="fail", sentence="It fell back."), "--comment", "--annotations") == 1
    (comment,) = github.comments
    assert comment["body"].startswith(f"<!-- symmem-check key=default sha={PULL['head']['sha']} run=5 attempt=1 -->\n")
    assert "](https://github.com/org/symmem-check/blob/v1/README.md#the-words)" in comment["body"]
    out, err = capsys.readouterr()
    assert "::error title=symmem-check%3A fail::It fell back." in out.splitlines()
    assert f"comment created: {comment['html_url']}" in err
    assert TOKEN not in out + err


def test_a_token_that_may_only_read_is_a_notice_and_no_failure(
    github: FakeGithub, report: Report, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    github.read_only = True
    assert report(first_light(), "--comment", "--annotations", "--markdown", str(tmp_path / "summary.md")) == 0
    notices = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::notice ")]
    assert notices[-1].startswith("::notice title=symmem-check%3A comment not-posted::no comment was made, since")
    assert github.comments == []
    assert "org/symmem-check/blob/v1/README.md#the-words" in (tmp_path / "summary.md").read_text()


def test_fetch_writes_the_baseline(
    github: FakeGithub, actions: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    github.add_run(1)
    github.add_artifact(1, zipped(named("on main")))
    assert main(["fetch", "baseline", "--out", str(tmp_path / "base")]) == 0
    out, err = capsys.readouterr()
    assert read_result(Path(out.strip())).verdict.sentence == "on main"
    assert "the result of run 1 on main" in err


def test_fetch_without_any(github: FakeGithub, actions: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "baseline"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "nothing is compared" in err
    assert main(["fetch", "baseline", "--require-baseline"]) == 2
    github.may_read_actions = False
    assert main(["fetch", "baseline"]) == 2
    assert "permissions: actions: read" in capsys.readouterr().err


def test_the_two_steps_for_a_fork(
    github: FakeGithub, actions: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a `workflow_run`, fetch the other run's result, then comment where the API says that it belongs."""
    ran: dict[str, Any] = event("workflow_run.completed")["workflow_run"]
    github.add_pull(7, sha=ran["head_sha"], fork=True, branch="master")
    github.add_run(ran["id"], on="pull_request", fork=True, sha=ran["head_sha"])
    github.add_artifact(ran["id"], zipped(named("from the fork")))
    payload = event("workflow_run.completed")
    payload["workflow_run"] |= {"event": "pull_request", "pull_requests": []}
    payload["workflow_run"]["head_repository"] |= {"id": 999, "full_name": "contributor/train"}
    (tmp_path / "event.json").write_text(json.dumps(payload))
    monkeypatch.setenv("GITHUB_EVENT_NAME", "workflow_run")
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(tmp_path / "event.json"))
    assert main(["fetch", "result", "--out", str(tmp_path / "other")]) == 0
    assert main(["report", str(tmp_path / "other" / "result.json"), "--comment"]) == 0
    (comment,) = github.comments
    assert comment["issue_url"].endswith("/7") and "from the fork" in comment["body"]
    assert f"sha={ran['head_sha']} run=163 attempt=1" in comment["body"]
