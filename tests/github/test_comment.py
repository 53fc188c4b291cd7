"""The comment on a pull request, as a conversation with GitHub."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from runner.github.comment import CommentOutcome, post_comment
from runner.github.settings import GithubSettings
from runner.result import Result

from ..runner.report.factory import first_light, result
from .conftest import QuickClock, pull_payload
from .fake import REPOSITORY, TOKEN, FakeGithub, Fault
from .shapes import HEAD, event

Make = Callable[..., GithubSettings]
OLDER, NEWER = "1" * 40, "2" * 40


@pytest.fixture
def post(settings: Make, clock: QuickClock) -> Callable[..., CommentOutcome]:
    def call(of: Result | None = None, **more: Any) -> CommentOutcome:
        return post_comment(of or first_light(), settings(**more), clock=clock)

    return call


Post = Callable[..., CommentOutcome]


def writes(github: FakeGithub) -> list[str]:
    return [one.method for one in github.asked if one.method != "GET"]


def test_the_first_run_makes_the_comment(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    outcome = post()
    assert outcome.action == "created" and outcome.notice is None
    (comment,) = github.comments
    assert outcome.url == comment["html_url"]
    lines = comment["body"].splitlines()
    assert lines[:2] == [f"<!-- symmem-check key=default sha={HEAD} run=5 attempt=1 -->", "## symmem-check: PASS"]
    assert "[its run](https://github.com/octo/train/actions/runs/50)" in comment["body"]
    assert "fork" not in comment["body"]


def test_the_next_run_changes_it_in_place(github: FakeGithub, post: Post) -> None:
    pull = github.add_pull()
    post()
    pull["head"]["sha"] = NEWER
    outcome = post(result(word="fail", sentence="It fell back."), head=NEWER, run_number=6)
    assert outcome.action == "updated" and writes(github) == ["POST", "PATCH"]
    (body,) = github.bodies()
    assert f"sha={NEWER} run=6" in body and "## symmem-check: FAIL" in body


def test_an_unchanged_one_is_left_alone(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    post()
    github.comments[0]["body"] = github.comments[0]["body"].replace("\n", "\r\n") + "\r\n"
    assert post().action == "unchanged"
    assert writes(github) == ["POST"]


def test_it_is_found_behind_130_others(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    for number in range(130):
        github.add_comment(f"chatter {number}", author="octocat")
    post()
    assert post(result(), run_number=6).action == "updated"
    assert len(github.comments) == 131
    pages = [one.query["page"][0] for one in github.asked if "page" in one.query]
    assert set(pages) == {"2"}


def test_someone_elses_copy_of_the_marker_is_not_touched(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    forged = github.add_comment(f"<!-- symmem-check key=default sha={HEAD} run=999 attempt=1 -->\nmine", "octocat")
    assert post().action == "created"
    assert forged["body"].endswith("mine") and len(github.comments) == 2
    assert post(result(), run_number=6).action == "updated"
    assert forged["body"].endswith("mine") and len(github.comments) == 2


def test_each_key_has_its_own(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    for key in ("h100", "b200", "h100"):
        post(comment_key=key)
    assert len(github.comments) == 2 and writes(github) == ["POST", "POST"]


def test_duplicates_are_removed(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    for run in (1, 3, 2):
        github.add_comment(f"<!-- symmem-check key=default sha={OLDER} run={run} attempt=1 -->\nold")
    first = github.comments[0]["id"]
    assert post().action == "updated"
    assert [comment["id"] for comment in github.comments] == [first]
    assert "run=5" in github.bodies()[0]


@pytest.mark.parametrize("later", ["run=6 attempt=1", "run=5 attempt=2"])
def test_an_older_run_never_overwrites_a_newer_ones(github: FakeGithub, post: Post, later: str) -> None:
    github.add_pull()
    github.add_comment(f"<!-- symmem-check key=default sha={HEAD} {later} -->\nnewer")
    outcome = post()
    assert outcome.action == "outdated" and outcome.notice is not None and "moved on" in outcome.notice
    assert github.bodies()[0].endswith("newer") and writes(github) == []


def test_a_run_of_an_older_commit_leaves_the_comment_alone(github: FakeGithub, post: Post) -> None:
    """Also where the newer commit's run bears a lower number, as one of another workflow may."""
    github.add_pull(sha=NEWER)
    github.add_comment(f"<!-- symmem-check key=default sha={NEWER} run=1 attempt=1 -->\nnewer")
    assert post(head=OLDER).action == "outdated"
    assert github.bodies()[0].endswith("newer") and writes(github) == []


@pytest.mark.parametrize("later", ["", "run=5", "run=6"])
def test_two_runs_that_race_leave_one_comment_of_the_newer(github: FakeGithub, settings: Make, later: str) -> None:
    github.add_pull(sha=NEWER)
    both = [settings(head=OLDER, run_number=5), settings(head=NEWER, run_number=6)]
    met = github.meeting = threading.Barrier(2, action=lambda: setattr(github, "meeting", None))
    if later:
        github.faults.append(Fault("POST", "comments", status=429, headers={"Retry-After": "1"}, holds=later))
    threads = [threading.Thread(target=post_comment, args=(first_light(), one)) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert met.n_waiting == 0
    (body,) = github.bodies()
    assert f"sha={NEWER} run=6" in body
    assert len(github.calls("POST")) == (3 if later else 2)


def test_an_apps_token_learns_its_name_from_its_first_comment(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    github.author = "our-gate[bot]"
    assert post().action == "created"
    assert post(result(), run_number=6).action == "updated"
    assert len(github.comments) == 1 and "run=6" in github.bodies()[0]


def test_a_persons_token_asks_who_it_is(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    github.login = github.author = "octocat"
    post()
    assert post(result(), run_number=6).action == "updated"
    assert writes(github) == ["POST", "PATCH"]


def test_a_token_that_may_only_read_makes_a_notice(github: FakeGithub, post: Post) -> None:
    github.add_pull(fork=True)
    github.read_only = True
    outcome = post()
    assert outcome.action == "not-posted" and github.comments == []
    assert outcome.notice is not None
    assert "pull-requests: write" in outcome.notice and "step summary has all of it" in outcome.notice


def test_a_push_has_no_pull_request(github: FakeGithub, post: Post) -> None:
    outcome = post(event="push", payload=event("push"), pull_request=None)
    assert outcome.notice == "no comment was made: the event push belongs to no pull request"
    assert github.asked == []


@pytest.mark.parametrize("drop", ["before", "after", "body"])
def test_a_connection_that_breaks_makes_no_second_comment(github: FakeGithub, post: Post, drop: str) -> None:
    github.add_pull()
    github.faults.append(Fault("POST", "comments", drop=drop))
    outcome = post()
    assert outcome.action == ("created" if drop == "before" else "unchanged")
    assert len(github.comments) == 1


def test_a_bad_gateway_is_tried_again(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    github.faults += [Fault("GET", "comments", times=2, status=502), Fault("POST", "comments", times=2, status=502)]
    assert post().action == "created"
    assert len(github.comments) == 1 and writes(github) == ["POST"] * 3


def test_a_github_that_is_down_makes_a_notice(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    github.faults += [Fault("POST", "comments", times=99, status=503)]
    outcome = post()
    assert outcome.action == "not-posted" and outcome.notice is not None and "503" in outcome.notice


def test_a_comment_that_vanishes_meanwhile_is_made_again(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    post()
    github.faults.append(Fault("PATCH", "comments", status=404))
    gone = github.comments[0]["id"]
    answer = github.answer

    def and_delete(asked: Any) -> Any:
        if len(github.asked) > 1 and asked.method == "GET" and github.asked[-2].method == "PATCH":
            github.comments = [one for one in github.comments if one["id"] != gone]
        return answer(asked)

    github.answer = and_delete  # type: ignore[method-assign]
    assert post(result(), run_number=6).action == "created"
    assert len(github.comments) == 1


def workflow_run(on: str = "pull_request", sha: str = HEAD, fork: bool = True, **more: Any) -> dict[str, Any]:
    """The payload that a `workflow_run` for a fork's pull request has: it names no pull request."""
    payload = event("workflow_run.completed")
    repository = {"id": 999, "full_name": "contributor/train"} if fork else {"id": 100, "full_name": REPOSITORY}
    payload["workflow_run"] |= {
        "id": 40, "event": on, "head_sha": sha, "head_branch": "faster", "run_number": 8, "run_attempt": 2,
        "head_repository": repository, "pull_requests": [],
    }  # fmt: skip
    payload["workflow_run"] |= more
    return payload


def after_run(**more: Any) -> dict[str, Any]:
    return {"event": "workflow_run", "payload": workflow_run(**more), "pull_request": None, "sha": "d" * 40}


def test_workflow_run_comments_for_a_fork(github: FakeGithub, post: Post) -> None:
    github.add_pull(5, sha=OLDER, fork=True, branch="other")
    github.add_pull(7, fork=True)
    assert post(**after_run()).action == "created"
    (comment,) = github.comments
    assert comment["issue_url"].endswith("/issues/7")
    assert f"sha={HEAD} run=8 attempt=2" in comment["body"]
    assert "actions/runs/40" in comment["body"] and "made by the fork's own code" in comment["body"]


def test_workflow_run_comments_for_a_branch_of_the_repository(github: FakeGithub, post: Post) -> None:
    github.add_pull(7)
    assert post(**after_run(fork=False)).action == "created"
    assert any(path.endswith(f"/commits/{HEAD}/pulls") for path in github.calls("GET"))


@pytest.mark.parametrize(
    ("pull", "told"),
    [
        ({"sha": NEWER, "fork": True}, "it has newer commits"),
        ({"fork": True, "state": "closed"}, "no open pull request has its commit"),
        ({"fork": False}, "no open pull request has its commit"),
    ],
)
def test_a_number_that_does_not_fit_the_commit_is_refused(
    github: FakeGithub, post: Post, pull: dict[str, Any], told: str
) -> None:
    """The number may come from the fork's own run, so it is believed only where the API says the same."""
    github.add_pull(7, **pull)
    named = {"pull_requests": [pull_payload(HEAD)]}
    for more in (after_run(**named), after_run() | {"pull_request": 7}):
        outcome = post(**more)
        assert outcome.action == "not-posted" and outcome.notice is not None and told in outcome.notice
    assert github.comments == []


def test_two_pull_requests_of_one_commit_are_not_guessed_between(github: FakeGithub, post: Post) -> None:
    github.add_pull(7, fork=True)
    github.add_pull(8, fork=True, base="stable")
    outcome = post(**after_run())
    assert outcome.notice is not None and "#7 and #8" in outcome.notice
    assert post(**after_run() | {"pull_request": 8}).action == "created"


def test_a_run_that_no_pull_request_started(github: FakeGithub, post: Post) -> None:
    outcome = post(**after_run(on="push"))
    assert outcome.notice is not None and "started by push" in outcome.notice and github.asked == []


def test_on_github_enterprise(settings: Make, clock: QuickClock) -> None:
    fake = FakeGithub(prefix="/api/v3")
    try:
        fake.add_pull()
        for _ in range(101):
            fake.add_comment("chatter", author="octocat")
        made = settings(api_url=f"{fake.url}/".rstrip("/"), server_url="https://github.example.com")
        assert post_comment(first_light(), made, clock=clock).action == "created"
        assert "https://github.example.com/octo/train/actions/runs/50" in fake.bodies()[-1]
        assert fake.violations == []
    finally:
        fake.close()


def test_a_body_of_any_size_is_taken(github: FakeGithub, post: Post) -> None:
    from ..runner.report.factory import case, phase

    github.add_pull()
    many = [case(f"p{n}", phase("forward", "fail", fallback=4, message=f"no {n} " + "😀" * 200)) for n in range(900)]
    assert post(result(*many, word="fail")).action == "created"
    (body,) = github.bodies()
    assert 60_000 < len(body.encode("utf-16-le")) // 2 <= 65_536


def test_every_request_tells_who_asks_and_which_version(github: FakeGithub, post: Post) -> None:
    github.add_pull()
    post()
    for asked in github.asked:
        assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
        assert asked.headers["X-GitHub-Api-Version"] == "2022-11-28"
        assert asked.headers["User-Agent"].startswith("symmem-check/")
        assert asked.headers["Accept"] == "application/vnd.github+json"
