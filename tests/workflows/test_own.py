"""This repository's own workflows: what they say of each other, and each run by act."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from .acting import (
    FELL_BACK,
    PATH,
    PROGRAMS,
    PROJECT,
    SYMMETRIC,
    TRACES,
    Repository,
    copy_project,
    examples,
    pins,
    yaml_files,
)
from .conftest import Payload
from .fake_issues import FakeWithIssues
from .mirror import OWN, WORKFLOW, mirrored

WORKFLOWS = PROJECT / ".github" / "workflows"
ACTS = [pytest.mark.needs_program("git"), pytest.mark.slow]


def load(text: str) -> dict[str, Any]:
    """A workflow; YAML 1.1 has its `on` for a boolean."""
    loaded: dict[Any, Any] = yaml.safe_load(text)
    return {"on" if name is True else name: value for name, value in loaded.items()}


def all_workflows() -> dict[str, dict[str, Any]]:
    own = {file.name: load(file.read_text(encoding="utf-8")) for file in sorted(WORKFLOWS.glob("*.yml"))}
    return own | {f"example {Path(path).name}": load(text) for path, text in examples().items()}


def test_every_foreign_action_is_pinned_to_one_commit_by_its_whole_sha() -> None:
    texts = [file.read_text(encoding="utf-8") for file in yaml_files()]
    named = [use for text in texts for use in re.findall(r"^ *(?:- )?uses:\s*(\S+)", text, re.MULTILINE)]
    foreign = [use for use in named if not use.startswith(("./", "org/symmem-check"))]
    assert foreign and all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", use) for use in foreign)
    names = [name for name, _ in pins(yaml_files())]
    assert sorted(names) == sorted(set(names)), "one commit an action"


@pytest.mark.parametrize("name", sorted({*all_workflows()} - {WORKFLOW.name}))
def test_permissions_are_written_out_job_by_job(name: str) -> None:
    workflow = all_workflows()[name]
    assert workflow["permissions"] == {}
    assert all("permissions" in job for job in workflow["jobs"].values())


def test_the_reusable_workflow_asks_no_caller_for_a_right_that_only_some_machines_need() -> None:
    """GitHub refuses a call whose job grants less than a job in it asks for, even one that is skipped."""
    workflow = all_workflows()[WORKFLOW.name]
    assert "permissions" not in workflow
    asked = {name: job.get("permissions") for name, job in workflow["jobs"].items()}
    read = {"contents": "read", "actions": "read", "pull-requests": "write"}
    assert asked == {"start": None, "check": read, "stop": None, "gate": {}}
    with_secrets = {name for name, job in workflow["jobs"].items() if "secrets." in json.dumps(job)}
    assert with_secrets == {"start", "stop"}
    for name in with_secrets:  # whose code runs there is this project's alone
        steps = workflow["jobs"][name]["steps"]
        assert [step["uses"].partition("@")[0] for step in steps if "uses" in step] == [
            "aws-actions/configure-aws-credentials", "org/symmem-check",
        ]  # fmt: skip


def test_the_reusable_workflows_own_inputs_are_told() -> None:
    call = yaml.safe_load(WORKFLOW.read_text())[True]["workflow_call"]
    page = (PROJECT / "docs" / "workflows.md").read_text().partition("## The reusable workflow's own inputs")[2]
    rows = re.findall(r"^\| `([a-z-]+)`( \(secret\))? \|", page.partition("\n## ")[0], re.MULTILINE)
    action = yaml.safe_load((PROJECT / "action.yml").read_text())["inputs"]
    own = [name for name in call["inputs"] if name not in action or name in OWN]
    assert [name for name, secret in rows if not secret] == own
    assert [name for name, secret in rows if secret] == [name for name in call["secrets"] if name != "token"]


def test_the_reusable_workflow_has_the_actions_inputs() -> None:
    """Otherwise: python tests/workflows/mirror.py"""
    text = WORKFLOW.read_text(encoding="utf-8")
    action = yaml.safe_load((PROJECT / "action.yml").read_text(encoding="utf-8"))
    assert mirrored(text, action) == text
    workflow = load(text)
    inputs = set(workflow["on"]["workflow_call"]["inputs"])
    more = {
        "runs-on",
        "gate-runs-on",
        "machine",
        "machine-key",
        "allow-no-capacity",
        "environment",
        "start-environment",
        "aws-role",
        "aws-region",
    }
    assert inputs == set(action["inputs"]) - OWN | more
    (step,) = [step for step in workflow["jobs"]["check"]["steps"] if step.get("id") == "check"]
    assert set(step["with"]) == set(action["inputs"]) - OWN


def test_the_examples_inputs_are_there() -> None:
    known = {
        "org/symmem-check@v1": yaml.safe_load((PROJECT / "action.yml").read_text("utf-8"))["inputs"],
        "org/symmem-check/.github/actions/canary@v1": yaml.safe_load(
            (PROJECT / ".github/actions/canary/action.yml").read_text("utf-8")
        )["inputs"],
        "org/symmem-check/.github/workflows/symmem-check.yml@v1": load(WORKFLOW.read_text("utf-8"))["on"][
            "workflow_call"
        ]["inputs"],
    }  # fmt: skip
    seen = set()
    for text in examples().values():
        jobs = load(text)["jobs"].values()
        for step in [*jobs, *(step for job in jobs for step in job.get("steps", []))]:
            if step.get("uses") in known:
                seen.add(step["uses"])
                assert set(step.get("with", {})) <= set(known[step["uses"]])
    assert seen == set(known)


@pytest.mark.parametrize("name", ["canary.yml", "example symmem-canary.yml"])
def test_the_canarys_issues_are_told_of_all_its_rows(name: str) -> None:
    jobs = all_workflows()[name]["jobs"]
    rows = [row["row"] for row in jobs["check"]["strategy"]["matrix"]["include"]]
    (told,) = [step["with"]["rows"] for step in jobs["issues"]["steps"] if "rows" in step.get("with", {})]
    assert told.split(",") == rows
    assert "issues" not in jobs["check"]["permissions"], "the job with the GPU only reads"


@pytest.mark.parametrize(
    ("start", "capacity", "result", "verdict", "status", "told"),
    [
        ("skipped", "", "success", "pass", 0, "The check passed."),
        ("success", "", "success", "pass", 0, "The check passed."),
        ("skipped", "", "success", "", 1, "no verdict"),
        ("skipped", "", "failure", "fail", 1, "does not hold"),
        ("success", "", "failure", "fail", 1, "does not hold"),
        ("skipped", "", "failure", "unmeasured", 1, "nothing could be measured"),
        ("skipped", "", "failure", "", 1, "no verdict"),
        ("skipped", "", "cancelled", "", 1, "was cancelled"),
        ("skipped", "", "skipped", "", 1, "was skipped"),
        ("failure", "", "skipped", "", 1, "no machine could be started"),
        ("cancelled", "", "skipped", "", 1, "the start of the machine was cancelled"),
        ("failure", "no-capacity", "skipped", "", 1, "there was no capacity"),
        ("failure", "", "success", "pass", 1, "no machine could be started"),
        ("cancelled", "", "success", "pass", 1, "the start of the machine was cancelled"),
    ],
)
def test_the_gate_holds_for_a_pass_alone(
    start: str, capacity: str, result: str, verdict: str, status: int, told: str
) -> None:
    done = gate(START=start, CAPACITY=capacity, RESULT=result, VERDICT=verdict, ALLOWED="false")
    assert done.returncode == status and told in done.stdout
    assert done.stdout.startswith("::error ") == bool(status)


@pytest.mark.parametrize(("capacity", "status"), [("no-capacity", 0), ("", 1)])
def test_allow_no_capacity_passes_that_one_case_and_says_so(capacity: str, status: int) -> None:
    done = gate(START="failure", CAPACITY=capacity, RESULT="skipped", VERDICT="", ALLOWED="true")
    assert done.returncode == status
    assert done.stdout.startswith("::error " if status else "::warning title=symmem-check gate::Nothing was checked")


def gate(**environment: str) -> subprocess.CompletedProcess[str]:
    (step,) = load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["gate"]["steps"]
    environment |= {"PATH": os.environ["PATH"]}
    return subprocess.run(
        ["bash", "-e", "-c", step["run"]], env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip


@pytest.mark.parametrize(
    ("machine", "runs_on", "started", "label", "told"),
    [
        ("false", "gpu", "", "", ""),
        ("true", "", "2", "symmem-1", ""),
        ("true", "", "1", "symmem-1", "the machine of attempt 1 is gone, and this is attempt 2: re-run all jobs"),
        ("true", "", "2", "", "the job start told no label, so this is not its machine"),
        ("false", "", "", "", "neither runs-on nor machine is given"),
    ],
)
def test_the_check_tells_why_it_is_on_no_gpu(machine: str, runs_on: str, started: str, label: str, told: str) -> None:
    step = load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]["check"]["steps"][0]
    environment = {"PATH": os.environ["PATH"], "GITHUB_RUN_ATTEMPT": "2"}
    environment |= {"MACHINE": machine, "RUNS_ON": runs_on, "STARTED_IN": started, "LABEL": label}
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, told in done.stdout) == (bool(told), True)


@pytest.mark.parametrize("path", sorted(examples()))
def test_the_linters_find_nothing_in_an_example(path: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(examples()[path], encoding="utf-8")
    (tmp_path / ".github" / "actionlint.yaml").write_text("self-hosted-runner: {labels: [gpu]}\n", encoding="utf-8")
    (tmp_path / ".git").mkdir()
    _clean(str(PROGRAMS / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows", str(file))
    config = tmp_path / ".github" / "actionlint.yaml"
    _clean(str(PROGRAMS / "actionlint"), "-config-file", str(config), str(file))
    zizmor = [
        str(PROGRAMS / "zizmor"),
        "--offline",
        "--no-progress",
        "--config",
        str(PROJECT / ".github" / "zizmor.yml"),
    ]
    done = subprocess.run(
        [*zizmor, "--format", "json", str(file)], capture_output=True, text=True, check=False
    )  # fmt: skip
    # workflow_run is dangerous with the code of the other run, and the example takes none of it.
    meant = {"dangerous-triggers"} if path.endswith("symmem-comment.yml") else set()
    assert {finding["ident"] for finding in json.loads(done.stdout)} == meant


def _clean(*command: str) -> None:
    done = subprocess.run(command, env=os.environ | {"PATH": PATH}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def own(repository: Repository) -> Repository:
    """This repository, as far as its workflows need it."""
    copy_project(repository.folder)
    for name in (SYMMETRIC, FELL_BACK):
        for file in sorted(TRACES.glob(f"{name}_r*.json.gz")):
            to = repository.folder / file.relative_to(PROJECT)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, to)
    repository.write(".ci/run", "#!/bin/sh\necho all tests of this repository\n")
    (repository.folder / ".ci" / "run").chmod(0o755)
    return repository


class TestActs:
    pytestmark = ACTS

    @pytest.mark.parametrize("fork", [False, True], ids=["branch", "fork"])
    def test_ci(self, fork: bool, own: Repository, fake: FakeWithIssues, payload: Payload) -> None:
        fake.add_run(50, path=".github/workflows/ci.yml")
        ended = own.act("pull_request", ".github/workflows/ci.yml", payload("pull_request", fork=fork))
        assert ended.status == 0, ended.log
        assert "good: pass 100; bad: failure fail 0" in ended.log
        assert ended.log.count("all tests of this repository\n") >= 5
        assert ended.jobs.get("gpu") != "success"  # no variable names a runner

    def test_a_forks_code_gets_on_no_gpu(self, own: Repository, fake: FakeWithIssues, payload: Payload) -> None:
        given = ("--var", "SYMMEM_CHECK_GPU_LABEL=gpu", "--job", "gpu")
        pulled = payload("pull_request", fork=True)
        ended = own.act("pull_request", ".github/workflows/ci.yml", pulled, *given)
        assert ended.status == 0 and "Install PyTorch" not in ended.log

    def test_the_canary_without_a_gpu(self, own: Repository, fake: FakeWithIssues, payload: Payload) -> None:
        ended = own.act("schedule", ".github/workflows/canary.yml", payload("schedule"))
        assert ended.status == 0, ended.log
        assert fake.asked == [] and "success" not in ended.jobs.values()

    def test_the_canary_tells_where_nothing_could_be_measured(
        self, own: Repository, fake: FakeWithIssues, payload: Payload
    ) -> None:
        """With a Python that has no torch in the place of its four, and so one row that can't be measured."""
        path = ".github/workflows/canary.yml"
        fake.add_run(50, on="schedule", path=path)
        text = (own.folder / path).read_text(encoding="utf-8")
        text = re.sub(r"pip\" install --quiet \$TORCH", 'pip" --version', text)
        text = re.sub(r"          - row: nightly\n.*?(?=    steps:)", "", text, count=1, flags=re.DOTALL)
        text = text.replace("rows: stable,nightly,stable-nccl-newest,nightly-nccl-newest", "rows: stable")
        text = text.replace('nccl: "2.30.7"', 'nccl: ""')
        own.write(path, text)
        ended = own.act("schedule", path, payload("schedule"), "--var", "SYMMEM_CHECK_GPU_LABEL=gpu")
        assert ended.status != 0
        (issue,) = fake.issues
        assert issue["title"] in (
            "symmem-check canary: A row of the canary left no result",
            "symmem-check canary: Nothing, or not everything, could be measured",
        )
        assert "rows=stable -->" in issue["body"]

    @pytest.mark.parametrize("released", [False, True], ids=["new", "released already"])
    def test_a_release(
        self, released: bool, own: Repository, fake: FakeWithIssues, payload: Payload, tmp_path: Path
    ) -> None:
        path = ".github/workflows/release.yml"
        fake.add_run(50, path=path)
        version = re.search(r'__version__ = "(.*)"', (own.folder / "runner/__init__.py").read_text("utf-8"))
        assert version is not None
        tag = f"v{version[1]}"
        own.write("CHANGELOG.md", f"# Changelog\n\n## [{version[1]}] - 2026-12-01\n\n- Something new.\n")
        # What the sdist and the wheel are made of has tests of its own; here they are only two files.
        text = (own.folder / path).read_text(encoding="utf-8")
        build = re.search(r"          python -m venv .*?--outdir dist\n", text, re.DOTALL)
        assert build is not None
        own.write(path, text.replace(build[0], "          mkdir dist && touch dist/it.whl dist/it.tar.gz\n"))
        calls = tmp_path / "calls"
        programs = tmp_path / "bin"
        programs.mkdir()
        view = "exit 0" if released else "exit 1"
        (programs / "gh").write_text(
            f'#!/bin/sh\necho "$*" >>{calls}\ncase "$*" in "release view"*) {view};; *git/ref/tags/v0) exit 0;; '
            "*git/ref/*) exit 1;; esac\n"
        )
        (programs / "gh").chmod(0o755)
        own.git("add", "--all")
        own.git("commit", "--quiet", "--message", "all")
        own.git("update-ref", "refs/remotes/origin/main", "HEAD")
        own.git("tag", tag)
        commit = own.git("rev-parse", "HEAD").strip()
        pushed = payload("push") | {"ref": f"refs/tags/{tag}"}
        ended = own.act(
            "push", path, pushed, commit=False, GITHUB_REF_NAME=tag, GITHUB_REF=f"refs/tags/{tag}",
            PATH=f"{programs}:{PATH}",
        )  # fmt: skip
        told = calls.read_text().splitlines()
        if released:
            assert ended.status != 0 and told == [f"release view {tag}"]
            return
        assert ended.status == 0, ended.log
        assert "attested " in ended.log and "all tests of this repository" in ended.log
        assert told[1].startswith(
            f"release create {tag} --verify-tag --title {tag} --notes-file notes/notes.md dist/it."
        )
        moves = [line for line in told if "--method" in line]
        assert moves == [
            f"api --method PATCH repos/octo/train/git/refs/tags/v0 -f sha={commit} -F force=true",
            f"api --method POST repos/octo/train/git/refs -f ref=refs/tags/v0.1 -f sha={commit}",
        ]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", PROJECT / ".github" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("tag", "others", "moving"),
    [
        ("v1.2.3", ["v1.2.3"], ["v1", "v1.2"]),
        ("v1.2.4", ["v1.3.0", "v1.2.3", "v1.2"], ["v1.2"]),
        ("v1.2.3", ["v1.2.10", "v1.10.0"], []),
        ("v1.10.0", ["v1.9.9", "v2.0.0", "v1", "vx"], ["v1", "v1.10"]),
    ],
)
def test_the_moving_tags_never_go_back(release: ModuleType, tag: str, others: list[str], moving: list[str]) -> None:
    assert release.moving(tag, others) == moving


@pytest.mark.parametrize("tag", ["1.2.3", "v1.2", "v1.2.3-rc1", "v01.2.3", "v1.2.3\n", "v1.2.3; id"])
def test_what_is_no_release(release: ModuleType, tag: str) -> None:
    assert release.version_of(tag) is None


def test_the_notes_are_the_changelogs_section(release: ModuleType) -> None:
    text = (
        "## [Unreleased]\n\n- next\n\n## [1.2.3] - 2026-12-01\n\n### Added\n\n- a\n\n## [1.2.2] - 2026-11-01\n\n- b\n"
    )
    assert release.notes_of(text, "1.2.3") == "### Added\n\n- a"
    assert release.notes_of(text, "1.2.2") == "- b"
    assert release.notes_of(text, "1.2") == release.notes_of(text, "Unreleased") == ""
