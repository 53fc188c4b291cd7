"""Each example of docs/workflows.md, run by act as it stands; only what needs a GPU is put recorded traces in for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..github.shapes import HEAD
from .acting import FELL_BACK, SYMMETRIC, Repository, examples, zipped
from .conftest import Payload
from .fake_issues import FakeWithIssues

GATE, FORKS, COMMENT, TRACES, CANARY = (
    f".github/workflows/{name}.yml" for name in ("symmem", "symmem-forks", "symmem-comment", "traces", "symmem-canary")
)
pytestmark = [pytest.mark.needs_program("git"), pytest.mark.slow]
SCRIPT = "import torch\nprint('no optimizer steps here')\n"


def put(repository: Repository, path: str) -> None:
    """The example, with recorded traces in the place of a script that needs GPUs."""
    of_the_script = ("script-args: ", "python: ")
    lines = [line for line in examples()[path].splitlines() if not line.strip().startswith(of_the_script)]
    text = "\n".join(lines).replace("script: train.py", "traces: traces")
    assert "traces: traces" in text
    repository.write(path, text + "\n")


def leave_baseline(fake: FakeWithIssues, repository: Repository, workflow: str, on: str = "push") -> None:
    """What the run before left becomes the artifacts of a run on main."""
    number = len(fake.runs) + 100
    fake.add_run(number, on=on, path=workflow)
    for folder in sorted(repository.artifacts.iterdir()):
        fake.add_artifact(number, zipped(folder), name=folder.name)
        shutil.rmtree(folder)


def test_the_page_has_the_examples() -> None:
    machines = {f".github/workflows/symmem-{name}.yml" for name in ("machine", "reaper")}  # in test_machine.py
    assert set(examples()) == {GATE, FORKS, COMMENT, TRACES, CANARY} | machines


def test_the_gate_on_a_push_then_a_pull_request_that_loses_backward(
    fake: FakeWithIssues, repository: Repository, payload: Payload
) -> None:
    fake.add_run(50, path=GATE)
    fake.add_pull(7)
    put(repository, GATE)
    repository.traces(SYMMETRIC)
    pushed = repository.act("push", GATE, payload("push"))
    assert pushed.status == 0, pushed.log
    assert set(pushed.jobs.values()) == {"success"} and len(pushed.jobs) == 2
    assert (repository.artifacts / "symmem-check" / "result.json").is_file()
    assert "no comment" in pushed.log or not fake.comments
    leave_baseline(fake, repository, GATE)

    repository.traces(FELL_BACK)
    pulled = repository.act("pull_request", GATE, payload("pull_request"))
    assert pulled.status != 0
    assert "The check did not pass (failure): what is asked for does not hold" in pulled.log, pulled.log
    (comment,) = fake.comments
    assert "regressed" in comment["body"] and "symmem-check: FAIL" in comment["body"]
    assert "baseline: the result of run 101 on main" in pulled.log


@pytest.mark.parametrize("event", ["pull_request", "merge_group"])
def test_the_gate_passes_what_is_symmetric(
    event: str, fake: FakeWithIssues, repository: Repository, payload: Payload
) -> None:
    fake.add_run(50, path=GATE)
    fake.add_pull(7)
    put(repository, GATE)
    repository.traces(SYMMETRIC)
    ended = repository.act(event, GATE, payload(event))
    assert ended.status == 0, ended.log
    assert "The check passed." in ended.log
    assert len(fake.comments) == (event == "pull_request")


def test_the_gate_on_a_fork_passes_without_a_comment(
    fake: FakeWithIssues, repository: Repository, payload: Payload
) -> None:
    fake.read_only = True
    fake.add_run(50, path=GATE)
    fake.add_pull(7, fork=True)
    put(repository, GATE)
    repository.traces(SYMMETRIC)
    ended = repository.act("pull_request", GATE, payload("pull_request", fork=True))
    assert ended.status == 0, ended.log
    assert fake.comments == [] and "the token may not write one" in ended.log


def test_the_gate_with_the_example_as_it_stands_fails_where_nothing_can_be_measured(
    fake: FakeWithIssues, repository: Repository, payload: Payload
) -> None:
    """There is no /opt/train/bin/python here."""
    fake.add_run(50, path=GATE)
    fake.add_pull(7)
    repository.write(GATE, examples()[GATE])
    repository.write("train.py", SCRIPT)
    ended = repository.act("pull_request", GATE, payload("pull_request"))
    assert ended.status != 0
    assert "/opt/train/bin/python" in ended.log
    assert "::error title=symmem-check gate::" in ended.log or "The check did not pass (failure)" in ended.log


@pytest.mark.parametrize(("name", "status"), [(SYMMETRIC, 0), (FELL_BACK, 1)])
def test_traces_from_a_step_before(
    name: str, status: int, fake: FakeWithIssues, repository: Repository, payload: Payload
) -> None:
    fake.add_run(50, path=TRACES)
    fake.add_pull(7)
    repository.write(TRACES, examples()[TRACES])
    repository.traces(name, "recorded")
    repository.write("train_with_profiler.sh", '#!/bin/sh\nmkdir -p "$1" && cp recorded/* "$1/"\n')
    (repository.folder / "train_with_profiler.sh").chmod(0o755)
    ended = repository.act("pull_request", TRACES, payload("pull_request"))
    assert ended.status == status, ended.log
    (comment,) = fake.comments
    assert f"symmem-check: {'FAIL' if status else 'PASS'}" in comment["body"]


@pytest.mark.parametrize("fork", [False, True], ids=["branch", "fork"])
def test_the_pair_for_forks(fork: bool, fake: FakeWithIssues, repository: Repository, payload: Payload) -> None:
    fake.read_only = True
    fake.add_run(50, on="pull_request", branch="faster", fork=fork, sha=HEAD, path=FORKS)
    fake.add_pull(7, fork=fork)
    put(repository, FORKS)
    repository.write(COMMENT, examples()[COMMENT])
    repository.traces(FELL_BACK)
    first = repository.act("pull_request", FORKS, payload("pull_request", fork=fork))
    assert first.status != 0 and fake.comments == [] and fake.calls("POST") == []
    for folder in sorted(repository.artifacts.iterdir()):
        fake.add_artifact(50, zipped(folder), name=folder.name)

    fake.read_only = False
    second = repository.act("workflow_run", COMMENT, payload("workflow_run", fork=fork), GITHUB_RUN_ID="60")
    assert second.status == 0, second.log
    (comment,) = fake.comments
    assert f"sha={HEAD} run=5 attempt=1" in comment["body"] and "symmem-check: FAIL" in comment["body"]
    assert ("The result was made by the fork's own code." in comment["body"]) == fork


def test_the_comment_job_is_skipped_for_a_push(fake: FakeWithIssues, repository: Repository, payload: Payload) -> None:
    repository.write(COMMENT, examples()[COMMENT])
    of_push = payload("workflow_run")
    of_push["workflow_run"]["event"] = "push"
    ended = repository.act("workflow_run", COMMENT, of_push)
    assert ended.status == 0 and fake.asked == [] and "success" not in ended.jobs.values()


def test_a_canary_over_three_nights(fake: FakeWithIssues, repository: Repository, payload: Payload) -> None:
    fake.add_run(50, on="schedule", path=CANARY)
    text = examples()[CANARY].replace("script: train.py", "traces: ${{ matrix.row }}").replace(
        "          python: ${{ matrix.python }}\n", ""
    )  # fmt: skip
    repository.write(CANARY, text)

    def night(nightly: str) -> tuple[int, str]:
        repository.traces(SYMMETRIC, "stable")
        repository.traces(nightly, "nightly")
        ended = repository.act("schedule", CANARY, payload("schedule"))
        return ended.status, ended.log

    status, log = night(SYMMETRIC)
    assert status == 0, log
    assert fake.issues == []
    left = {"canary-nightly", "canary-stable", "symmem-check-nightly", "symmem-check-stable"}
    assert {folder.name for folder in repository.artifacts.iterdir()} == left
    leave_baseline(fake, repository, CANARY, on="schedule")

    status, log = night(FELL_BACK)
    assert status != 0
    (issue,) = fake.issues
    assert "rows=nightly -->" in issue["body"] and "| `nightly` | `backward" in issue["body"]
    assert not (repository.artifacts / "symmem-check-nightly").exists()  # a bad night is nobody's baseline
    leave_baseline(fake, repository, CANARY, on="schedule")

    status, log = night(SYMMETRIC)
    assert status == 0, log
    assert (issue["state"], issue["state_reason"]) == ("closed", "completed")
    assert Path(repository.artifacts / "symmem-check-nightly" / "result.json").is_file()
