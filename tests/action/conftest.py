"""The action as a release has it, with its environment made once, and a workspace with recorded traces."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from runner.action_traces import judge_traces
from runner.result import Result
from runner.traces import read_traces
from tests.github.fake import REPOSITORY, FakeGithub
from tests.github.shapes import EVENTS, WORKFLOW, event
from tests.github.test_baseline import zipped

from .composite import Composite

TRACES = "train_tp_ckpt_pool_r*.json.gz"
"""Two ranks; forward all symmetric, backward all fallen back."""


@pytest.fixture(scope="session")
def action(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What of the repository the action needs, in a path with a space; nothing else of the checkout is there."""
    folder = tmp_path_factory.mktemp("action") / "symmem check"
    for name in ("runner", "checks"):
        shutil.copytree(project / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "requirements").mkdir()
    for name in ("action.yml", "requirements/action.txt"):
        shutil.copyfile(project / name, folder / name)
    return folder


def load_start(folder: Path) -> ModuleType:
    """runner/action_start.py of an action's folder, as a module."""
    spec = importlib.util.spec_from_file_location("action_start", folder / "runner" / "action_start.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def made(action: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RUNNER_TEMP, with a space in its path, where the action's packages are there from an earlier step."""
    temp = tmp_path_factory.mktemp("runner") / "my temp"
    temp.mkdir()
    load_start(action).packages(temp)
    return temp


@pytest.fixture
def workspace(project: Path, tmp_path: Path) -> Path:
    """A training repository with two traces."""
    folder = tmp_path / "my workspace"
    (folder / "traces").mkdir(parents=True)
    for path in (project / "tests" / "data" / "traces" / "h200").glob(TRACES):
        shutil.copyfile(path, folder / "traces" / path.name)
    return folder


Play = Callable[..., Composite]


@pytest.fixture
def composite(action: Path, workspace: Path, made: Path) -> Play:
    """The action in the workspace, with more variables of the runner."""

    def make(**environment: str) -> Composite:
        return Composite(action, workspace, made, **environment)

    return make


@pytest.fixture
def github() -> Iterator[FakeGithub]:
    """A GitHub with the pull request of the event. At the end, nothing may have broken its description."""
    fake = FakeGithub()
    fake.add_pull(2, sha=event("pull_request.opened")["pull_request"]["head"]["sha"])
    yield fake
    fake.close()
    assert fake.violations == []


@pytest.fixture
def on_pull(github: FakeGithub) -> dict[str, str]:
    """The runner's variables in a job on that pull request."""
    return {
        "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_API_URL": github.url, "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_EVENT_NAME": "pull_request", "GITHUB_RUN_ID": "50", "GITHUB_RUN_NUMBER": "5",
        "GITHUB_EVENT_PATH": str(EVENTS / "pull_request.opened.json"), "GITHUB_RUN_ATTEMPT": "1",
        "GITHUB_SHA": "d" * 40, "GITHUB_BASE_REF": "main", "GITHUB_REF_NAME": "2/merge", "GITHUB_REF_TYPE": "branch",
        "GITHUB_WORKFLOW_REF": f"{REPOSITORY}/{WORKFLOW}@refs/pull/2/merge",
    }  # fmt: skip


def better(traces: Path) -> bytes:
    """The artifact of a run of the workspace's traces in which backward had been symmetric too."""
    patterns = (str(traces),)
    document = json.loads(msgspec.json.encode(judge_traces(patterns, read_traces(patterns, warn=lambda line: None))))
    forward, backward = (row["coverage"] for row in document["script"]["rows"])
    assert (forward["ratio"], backward["ratio"]) == (1.0, 0.0)
    backward["symmetric"], backward["fallback"], backward["ratio"] = backward["fallback"], backward["symmetric"], 1.0
    return zipped(msgspec.convert(document, Result))
