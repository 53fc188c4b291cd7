"""A training repository with a workflow, act, and a GitHub with issues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..github.shapes import HEAD, event
from .acting import Repository, copy_project, warm
from .fake_issues import FakeWithIssues


@pytest.fixture
def fake() -> Iterator[FakeWithIssues]:
    """At the end, no request and no answer may have broken GitHub's description."""
    made = FakeWithIssues()
    yield made
    made.close()
    assert made.violations == []


@pytest.fixture(scope="session")
def action(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The action as a release has it."""
    return copy_project(tmp_path_factory.mktemp("action"))


@pytest.fixture(scope="session")
def packages(action: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script that gives a job the action's packages."""
    return warm(action, tmp_path_factory.mktemp("packages"))


@pytest.fixture
def repository(fake: FakeWithIssues, action: Path, packages: Path, tmp_path: Path) -> Repository:
    return Repository(tmp_path / "with spaces", action, fake.url, tmp_path / "cache", packages)


Payload = Callable[..., dict[str, Any]]


@pytest.fixture
def payload() -> Payload:
    """An event's payload: a push, pull request 7 from a branch or a fork, a merge group, a schedule, another's run."""

    def make(name: str, *, fork: bool = False) -> dict[str, Any]:
        if name == "pull_request":
            return _pull_request(fork)
        if name == "workflow_run":
            made = event("workflow_run.completed")
            own, other = {"id": 100, "full_name": "octo/train"}, {"id": 999, "full_name": "contributor/train"}
            made["workflow_run"] |= {
                "id": 50, "run_number": 5, "event": "pull_request", "head_sha": HEAD, "head_branch": "faster",
                "path": ".github/workflows/symmem-forks.yml", "pull_requests": [],
                "repository": made["workflow_run"]["repository"] | own,
                "head_repository": made["workflow_run"]["head_repository"] | (other if fork else own),
            }  # fmt: skip
            return made
        common = {"repository": {"id": 100, "full_name": "octo/train", "default_branch": "main"}}
        more: dict[str, dict[str, Any]] = {
            "push": {"ref": "refs/heads/main"},
            "merge_group": {"merge_group": {"base_ref": "refs/heads/main", "head_ref": "refs/heads/queue/main/pr-7"}},
            "schedule": {"schedule": "17 4 * * *"},
        }
        return common | more[name]

    return make


def _pull_request(fork: bool) -> dict[str, Any]:
    made = event("pull_request.opened")
    pull = made["pull_request"]
    repository = made["repository"] | {"id": 100, "full_name": "octo/train", "default_branch": "main", "fork": False}
    other = repository | {"id": 999, "full_name": "contributor/train", "fork": True}
    pull["base"] |= {"ref": "main", "repo": repository}
    pull["head"] |= {"ref": "faster", "sha": HEAD, "repo": other if fork else repository}
    return made | {"number": 7, "repository": repository, "pull_request": pull | {"number": 7}}
