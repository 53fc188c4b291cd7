"""`baseline: auto`: which result is taken, which are not, and archives that mean harm."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.errors import UserError
from runner.github.archive import extract_result
from runner.github.artifacts import base_branch, fetch_result, find_baseline
from runner.github.client import ApiError
from runner.github.settings import GithubSettings
from runner.result import Result, StartResult, read_result

from ..runner.report.factory import first_light, result
from .conftest import QuickClock
from .fake import FakeGithub, Fault
from .shapes import event
from .test_comment import after_run

Make = Callable[..., GithubSettings]


def zipped(of: Result | None = None, name: str = "result.json", **others: bytes) -> bytes:
    """An output folder as upload-artifact makes it."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, msgspec.json.encode(of or first_light()))
        for other, content in others.items():
            archive.writestr(f"run/{other}", content)
    return target.getvalue()


def named(sentence: str) -> Result:
    return result(sentence=sentence)


@pytest.fixture
def find(settings: Make, clock: QuickClock) -> Callable[..., str | None]:
    """Find the baseline: the sentence of its verdict, or None."""

    def call(said: list[str] | None = None, **more: Any) -> str | None:
        path = find_baseline(settings(**more), tell=(said if said is not None else []).append, clock=clock)
        return None if path is None else read_result(path).verdict.sentence

    return call


Find = Callable[..., "str | None"]


def test_the_newest_of_the_base_branch_is_taken(github: FakeGithub, find: Find, tmp_path: Path) -> None:
    for run, sentence in ((1, "old"), (2, "new")):
        github.add_run(run)
        github.add_artifact(run, zipped(named(sentence), trace=b"x" * 1000), created_at=f"2026-11-0{run}T00:00:00Z")
    said: list[str] = []
    assert find(said) == "new"
    assert said == ["baseline: the result of run 2 on main"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["baseline.json"]
    assert "Authorization" not in github.elsewhere[0].headers


@pytest.mark.parametrize("conclusion", ["failure", "cancelled", "success"])
@pytest.mark.parametrize("on", ["push", "schedule", "workflow_dispatch"])
def test_the_runs_verdict_does_not_matter(github: FakeGithub, find: Find, on: str, conclusion: str) -> None:
    github.add_run(1, on=on, conclusion=conclusion, path=".github/workflows/gate.yml@refs/heads/main")
    github.add_artifact(1, zipped(result(word="fail", sentence="It fails.")))
    assert find() == "It fails."


@pytest.mark.parametrize(
    "run",
    [
        {"on": "pull_request"},
        {"on": "pull_request_target"},
        {"on": "workflow_run"},
        {"branch": "other"},
        {"fork": True},
        {"fork": True, "on": "pull_request"},
        {"path": ".github/workflows/other.yml"},
        {"path": ".github/workflows/gate.yml.yml"},
    ],
    ids=str,
)
def test_a_run_of_other_code_is_no_baseline(github: FakeGithub, find: Find, run: dict[str, Any]) -> None:
    """Above all a fork's, whose branch may be called main too."""
    github.add_run(1)
    github.add_artifact(1, zipped(named("good")), created_at="2026-01-01T00:00:00Z")
    github.add_run(2, **run)
    github.add_artifact(2, zipped(named("poisoned")), created_at="2026-12-01T00:00:00Z")
    assert find() == "good"
    assert len(github.elsewhere) == 1


def test_list_and_run_must_both_name_this_repository(github: FakeGithub, find: Find) -> None:
    github.add_run(2, fork=True)
    poisoned = github.add_artifact(2, zipped())
    poisoned["workflow_run"]["head_repository_id"] = poisoned["workflow_run"]["repository_id"]
    assert find() is None
    github.add_run(3)
    github.add_artifact(3, zipped())["workflow_run"]["head_repository_id"] = 999
    assert find() is None and github.elsewhere == []


def test_its_own_run_expired_and_other_artifacts_are_no_baseline(github: FakeGithub, find: Find) -> None:
    github.add_run(50)
    github.add_artifact(50, zipped(named("own")))
    github.add_run(1)
    github.add_artifact(1, zipped(), expired=True)
    github.add_artifact(1, zipped(), name="symmem-check-b200")
    github.add_artifact(1, zipped(), size_in_bytes=2**40)
    assert find() is None
    assert github.elsewhere == []
    github.add_artifact(1, zipped(named("b200")), name="symmem-check-b200")
    assert find(artifact="symmem-check-b200") == "b200"


STOPPED = StartResult(number=0, cases=[], ended="stopped")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (zipped(result(replay=True)), "replay"),
        (zipped(result(word="unmeasured")), "unmeasured"),
        (zipped(result(word="no-capacity")), "no-capacity"),
        (zipped(result(starts=[STOPPED])), "interrupted"),
        (zipped(name="other.json"), "no result.json"),
        (b"PK\x03\x04 nothing", "no zip file"),
        (zipped()[:-30], "no zip file"),
    ],
)
def test_what_is_no_complete_result_is_passed_over(github: FakeGithub, find: Find, content: bytes, told: str) -> None:
    github.add_run(1)
    github.add_artifact(1, zipped(named("whole")), created_at="2026-01-01T00:00:00Z")
    github.add_artifact(1, content, created_at="2026-12-01T00:00:00Z")
    said: list[str] = []
    assert find(said) == "whole"
    assert "was passed over" in said[0] and told in said[0]


def test_an_artifact_that_is_gone_by_now_is_passed_over(github: FakeGithub, find: Find) -> None:
    github.add_run(1)
    github.add_artifact(1, zipped(named("whole")), created_at="2026-01-01T00:00:00Z")
    gone = github.add_artifact(1, zipped(), created_at="2026-12-01T00:00:00Z")
    del github.blobs[gone["id"]]
    assert find() == "whole"


def test_a_run_that_was_deleted_is_passed_over(github: FakeGithub, find: Find) -> None:
    github.add_run(1)
    github.add_artifact(1, zipped())
    del github.runs[1]
    assert find() is None
    with pytest.raises(UserError, match="does not know run 50"):
        find(workflow=None)


def test_only_some_are_tried(github: FakeGithub, find: Find) -> None:
    github.add_run(1)
    for _ in range(30):
        github.add_artifact(1, b"broken")
    assert find() is None
    assert len(github.elsewhere) == 10


def test_it_is_found_on_a_later_page(github: FakeGithub, find: Find) -> None:
    github.add_run(1)
    github.add_artifact(1, zipped(named("far")))
    github.add_run(2, branch="faster", on="pull_request")
    for _ in range(230):
        github.add_artifact(2, b"")
    assert find() == "far"
    assert len(github.elsewhere) == 1


def test_none_is_a_warning_or_an_error(github: FakeGithub, find: Find, tmp_path: Path) -> None:
    said: list[str] = []
    assert find(said) is None
    assert said == [
        "baseline: no run of .github/workflows/gate.yml on main has left a complete result in an artifact "
        "'symmem-check', so nothing is compared"
    ]
    with pytest.raises(UserError, match="leave out --require-baseline"):
        find(require_baseline=True)
    assert not (tmp_path / "out" / "baseline.json").exists()


@pytest.mark.parametrize("at", ["list", "run", "zip"])
def test_a_token_that_may_not_read_artifacts_is_an_error(github: FakeGithub, find: Find, at: str) -> None:
    github.add_run(1)
    github.add_artifact(1, zipped())
    path = {"list": "artifacts$", "run": "runs/1$", "zip": "zip$"}[at]
    github.faults.append(Fault("GET", path, status=403, message="Resource not accessible by integration"))
    with pytest.raises(UserError, match="permissions: actions: read"):
        find()


def test_a_github_that_is_down_is_no_missing_baseline(github: FakeGithub, find: Find) -> None:
    github.faults.append(Fault("GET", "artifacts", times=9, status=502))
    with pytest.raises(ApiError, match="502"):
        find()


def test_the_workflow_is_asked_for_where_no_variable_tells_it(github: FakeGithub, find: Find) -> None:
    github.add_run(50, on="pull_request", branch="faster")
    github.add_run(1)
    github.add_artifact(1, zipped(named("found")))
    assert find(workflow=None) == "found"


@pytest.mark.parametrize(
    ("payload", "branch"),
    [("pull_request.opened", "master"), ("push", "master"), ("merge_group.checks_requested", "main")],
)
def test_the_base_branch_as_real_events_tell_it(settings: Make, payload: str, branch: str) -> None:
    assert base_branch(settings(payload=event(payload), base_branch=None, branch="feature")) == branch
    assert base_branch(settings(payload=event(payload), base_branch="stable")) == "stable"


def test_without_an_event_the_branch_is_its_own(settings: Make) -> None:
    nothing = {"repository": None}
    assert base_branch(settings(payload=nothing, base_branch=None, branch="main")) == "main"
    with pytest.raises(UserError, match="--base-branch"):
        base_branch(settings(payload=nothing, base_branch=None, branch=None))


def test_the_result_of_the_run_before(github: FakeGithub, settings: Make, clock: QuickClock) -> None:
    github.add_run(40, on="pull_request", fork=True)
    github.add_artifact(40, zipped(named("older")), created_at="2026-01-01T00:00:00Z")
    github.add_artifact(40, zipped(named("newer")), created_at="2026-02-01T00:00:00Z")
    github.add_run(41)
    github.add_artifact(41, zipped(named("another run's")), created_at="2026-03-01T00:00:00Z")
    assert read_result(fetch_result(settings(**after_run()), clock=clock)).verdict.sentence == "newer"


def test_the_run_before_left_nothing(github: FakeGithub, settings: Make, clock: QuickClock) -> None:
    github.add_run(40, on="pull_request", fork=True)
    with pytest.raises(UserError, match="run 40 has left no artifact"):
        fetch_result(settings(**after_run()), clock=clock)
    with pytest.raises(UserError, match="starts on workflow_run"):
        fetch_result(settings(), clock=clock)
    github.may_read_actions = False
    with pytest.raises(UserError, match="actions: read"):
        fetch_result(settings(**after_run()), clock=clock)


def archive(tmp_path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    path = tmp_path / "artifact.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members:
            target.writestr(name, content)
    return path


def link(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


def test_a_members_name_is_no_path(tmp_path: Path) -> None:
    """Whatever it is called, its content goes where the caller says."""
    for name in ("../../result.json", "/tmp/result.json", "a/../../result.json"):
        to = tmp_path / "inside" / "result.json"
        to.parent.mkdir(exist_ok=True)
        extract_result(archive(tmp_path, (name, b"{}")), to)
        assert to.read_bytes() == b"{}"
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["artifact.zip", "inside", "result.json"]


def test_the_one_nearest_to_the_top_is_taken(tmp_path: Path) -> None:
    members = [("a/result.json", b"deep"), ("result.json", b"top"), ("a/b/result.json", b"deeper")]
    extract_result(archive(tmp_path, *members), tmp_path / "taken")
    assert (tmp_path / "taken").read_bytes() == b"top"


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([(link("result.json"), b"/etc/passwd")], "is a link"),
        ([("a/result.json", b"{}"), ("b/result.json", b"{}")], "has 2 result.json"),
        ([], "has no result.json"),
        ([("result.json", bytes(3 * 2**20))], "unpacks to more than 1 MiB"),
    ],
)
def test_an_archive_that_means_harm(tmp_path: Path, members: list[tuple[Any, bytes]], told: str) -> None:
    with pytest.raises(UserError, match=told):
        extract_result(archive(tmp_path, *members), tmp_path / "taken", limit=2**20)


def test_a_size_that_lies_is_not_believed(tmp_path: Path) -> None:
    path = archive(tmp_path, ("result.json", bytes(3 * 2**20)))
    content, real = path.read_bytes(), (3 * 2**20).to_bytes(4, "little")
    assert content.count(real) == 2
    path.write_bytes(content.replace(real, (100).to_bytes(4, "little")))
    with pytest.raises(UserError):
        extract_result(path, tmp_path / "taken", limit=2**20)
    assert (tmp_path / "taken").stat().st_size <= 2**20


def test_a_list_of_members_that_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path, ("result.json", b"{}"), *((f"run/{n}", b"") for n in range(3000)))
    extract_result(path, tmp_path / "taken")
    monkeypatch.setattr("runner.github.archive.MOST_MEMBERS", 3000)
    with pytest.raises(UserError, match="has 3001 files"):
        extract_result(path, tmp_path / "taken")
    monkeypatch.setattr("runner.github.archive.LARGEST_DIRECTORY", 100_000)
    with pytest.raises(UserError, match="list of files is too long"):
        extract_result(path, tmp_path / "taken")


def test_an_encrypted_or_strangely_packed_one(tmp_path: Path) -> None:
    content = archive(tmp_path, ("result.json", b"{}")).read_bytes()
    at = content.index(b"PK\x01\x02")
    for offset, value in ((8, 1), (10, 99)):
        altered = bytearray(content)
        altered[at + offset] = value
        (tmp_path / "altered.zip").write_bytes(altered)
        with pytest.raises(UserError):
            extract_result(tmp_path / "altered.zip", tmp_path / "taken")
