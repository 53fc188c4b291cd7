"""The client: patience with rate limits and broken connections, and a token that nobody sees."""

from __future__ import annotations

import logging
import pickle
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from runner.github.client import ApiError, Client, RateLimited, Uncertain
from runner.github.model import Comment, PullRequest
from runner.github.settings import GithubSettings, Token

from .conftest import QuickClock
from .fake import REPOSITORY, TOKEN, FakeGithub, Fault

COMMENTS = f"/repos/{REPOSITORY}/issues/7/comments"
PULL = f"/repos/{REPOSITORY}/pulls/7"


@pytest.fixture
def client(github: FakeGithub, clock: QuickClock) -> Client:
    github.add_pull()
    return Client(github.url, Token(TOKEN), clock=clock)


@pytest.mark.parametrize(
    ("status", "headers", "message", "waits"),
    [
        (403, {"Retry-After": "7"}, "You have exceeded a secondary rate limit.", 7),
        (429, {"Retry-After": "7"}, "Too many requests", 7),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000020"}, "API rate limit exceeded", 21),
        (403, {}, "You have exceeded a secondary rate limit. Please wait a few minutes", 60),
        (429, {}, "Too many requests", 60),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_rate_limit_is_waited_for(
    github: FakeGithub, client: Client, clock: QuickClock, method: str, status: int, headers: dict[str, str],
    message: str, waits: float,
) -> None:  # fmt: skip
    github.faults.append(Fault(method, "", status=status, headers=headers, message=message))
    if method == "GET":
        assert client.get(PULL, PullRequest).number == 7
    else:
        assert client.post(COMMENTS, {"body": "x"}, Comment).body == "x"
        assert len(github.comments) == 1
    assert clock.waits == [waits]


def test_the_same_refusal_is_waited_for_longer_each_time(github: FakeGithub, client: Client, clock: QuickClock) -> None:
    github.faults.append(Fault("GET", "", times=2, status=403, message="secondary rate limit"))
    client.get(PULL, PullRequest)
    assert clock.waits == [60, 120]


def test_patience_ends(github: FakeGithub, client: Client, clock: QuickClock) -> None:
    headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(clock.time) + 3000)}
    github.faults.append(Fault("GET", "", status=403, headers=headers, message="API rate limit exceeded"))
    with pytest.raises(RateLimited, match="asks to wait for 3001 s: API rate limit exceeded"):
        client.get(PULL, PullRequest)
    assert clock.waits == []


def test_a_refusal_without_a_limit_is_not_tried_again(github: FakeGithub, client: Client, clock: QuickClock) -> None:
    github.read_only = True
    with pytest.raises(ApiError, match="answered 403: Resource not accessible by integration") as caught:
        client.post(COMMENTS, {"body": "x"}, Comment)
    assert caught.value.status == 403 and clock.waits == [] and len(github.asked) == 1


@pytest.mark.parametrize("fault", [{"status": 500}, {"status": 502}, {"status": 503}, {"drop": "before"}])
def test_reads_are_tried_again(github: FakeGithub, client: Client, clock: QuickClock, fault: dict[str, object]) -> None:
    github.faults.append(Fault("GET", "", times=3, **fault))  # type: ignore[arg-type]
    assert client.get(PULL, PullRequest).number == 7
    assert len(github.asked) == 4 and 0 < sum(clock.waits) < 60


def test_an_answer_that_breaks_off_is_asked_for_again(github: FakeGithub, client: Client) -> None:
    github.faults.append(Fault("GET", "", times=2, drop="body"))
    assert client.get(PULL, PullRequest).number == 7


def test_reads_are_not_tried_for_ever(github: FakeGithub, client: Client) -> None:
    github.faults.append(Fault("GET", "", times=99, status=502))
    with pytest.raises(ApiError, match="answered 502"):
        client.get(PULL, PullRequest)
    assert len(github.asked) == 4


@pytest.mark.parametrize("fault", [{"status": 502}, {"drop": "before"}, {"drop": "after"}])
def test_a_post_is_never_sent_twice_unseen(github: FakeGithub, client: Client, fault: dict[str, object]) -> None:
    github.faults.append(Fault("POST", "", **fault))  # type: ignore[arg-type]
    with pytest.raises(Uncertain):
        client.post(COMMENTS, {"body": "x"}, Comment)
    assert len(github.asked) == 1


def test_503_says_when_to_come_back(github: FakeGithub, client: Client, clock: QuickClock) -> None:
    github.faults.append(Fault("GET", "", status=503, headers={"Retry-After": "9"}))
    client.get(PULL, PullRequest)
    assert clock.waits == [9]


def test_writes_are_a_second_apart(github: FakeGithub, client: Client, clock: QuickClock) -> None:
    for _ in range(3):
        client.post(COMMENTS, {"body": "x"}, Comment)
        clock.time += 0.25
    assert clock.waits == [0.75, 0.75]


def test_a_server_that_does_not_answer_is_given_up(github: FakeGithub, clock: QuickClock) -> None:
    github.add_pull()
    github.answer = lambda asked: time.sleep(2) or (404, {}, {})  # type: ignore[method-assign]
    client = Client(github.url, Token(TOKEN), clock=clock, timeout=(1, 0.1))
    with pytest.raises(ApiError, match="timed out"):
        client.get(PULL, PullRequest)


def test_nobody_listens(clock: QuickClock) -> None:
    client = Client("http://127.0.0.1:9", Token(TOKEN), clock=clock)
    with pytest.raises(ApiError, match=r"GET to 127\.0\.0\.1 failed: ConnectionError: .*refused") as caught:
        client.get(PULL, PullRequest)
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("answer", [b"{", b"[]", b'{"number": "7"}', b"\xff", b"[" * 100_000])
def test_an_answer_of_another_form_is_one_clear_error(github: FakeGithub, client: Client, answer: bytes) -> None:
    with pytest.raises(ApiError, match="answered something unexpected"):
        client._decoded(answer, PullRequest, PULL)


def test_pages_end(github: FakeGithub, client: Client) -> None:
    for number in range(250):
        github.add_comment(str(number))
    pages = list(client.pages(COMMENTS, list[Comment]))
    assert [len(page) for page in pages] == [100, 100, 50]
    assert len({comment.id for page in pages for comment in page}) == 250


def test_a_next_page_elsewhere_does_not_see_the_token(github: FakeGithub, client: Client) -> None:
    github.blobs[1] = b"[]"
    answer = github.answer
    link = {"Link": f'<{github.blob_url}/1>; rel="next"'}
    github.answer = lambda asked: (200, link, answer(asked)[2])  # type: ignore[method-assign]
    assert list(client.pages(COMMENTS, list[Comment])) == [[], []]
    assert "Authorization" not in github.elsewhere[0].headers


def test_a_download_goes_elsewhere_without_the_token(
    github: FakeGithub, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    github.add_run(1)
    artifact = github.add_artifact(1, b"content" * 1000)
    github.faults.append(Fault("GET", "^/blob", drop="body"))
    client.download(f"/repos/{REPOSITORY}/actions/artifacts/{artifact['id']}/zip", tmp_path / "a.zip", 10**6)
    assert (tmp_path / "a.zip").read_bytes() == b"content" * 1000
    assert len(github.elsewhere) == 2
    assert all("Authorization" not in asked.headers for asked in github.elsewhere)
    assert github.asked[-1].headers["Authorization"] == f"Bearer {TOKEN}"


def test_a_download_has_a_limit(github: FakeGithub, client: Client, tmp_path: Path) -> None:
    github.add_run(1)
    artifact = github.add_artifact(1, bytes(3 * 2**20))
    with pytest.raises(ApiError, match="larger than 2 MiB"):
        client.download(f"/repos/{REPOSITORY}/actions/artifacts/{artifact['id']}/zip", tmp_path / "a.zip", 2 * 2**20)


def test_a_write_follows_no_redirect_to_another_host(github: FakeGithub, client: Client) -> None:
    elsewhere = {"Location": f"{github.blob_url}/1"}
    github.faults.append(Fault("POST", "", status=307, headers=elsewhere))
    with pytest.raises(ApiError, match="was redirected"):
        client.post(COMMENTS, {"body": "x"}, Comment)
    assert github.elsewhere == []


def test_a_renamed_repository_is_followed(github: FakeGithub, client: Client) -> None:
    new = {"Location": f"{github.url}{COMMENTS}"}
    github.faults += [Fault("POST", "", status=307, headers=new), Fault("GET", "", status=301, headers=new)]
    assert client.post(COMMENTS, {"body": "x"}, Comment).body == "x"
    assert client.get(COMMENTS, list[Comment])[0].body == "x"


def test_the_token_is_seen_nowhere(
    github: FakeGithub, client: Client, settings: Callable[..., GithubSettings], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = settings()
    errors: list[BaseException] = []
    faults = [
        Fault("GET", "", status=401, message=f"bad credentials Bearer {TOKEN}"),
        Fault("GET", "", status=403, message=f"rate limit of {TOKEN}", headers={"Retry-After": "9999"}),
        Fault("POST", "", drop="before"),
    ]
    for fault in faults:
        github.faults.append(fault)
        with pytest.raises(ApiError) as caught:
            if fault.method == "GET":
                client.get(PULL, PullRequest)
            else:
                client.post(COMMENTS, {"body": "x"}, Comment)
        errors.append(caught.value)
    told = [repr(client), repr(made), str(made), repr(made.token), f"{made.token}", caplog.text, repr(client.__dict__)]
    told += ["".join(traceback.format_exception(error)) for error in errors] + [repr(error) for error in errors]
    assert all(TOKEN not in text for text in told)
    assert all(error.__cause__ is None and error.__suppress_context__ for error in errors[2:])
    assert "***" in str(errors[0])
    assert github.asked[-1].headers["Authorization"].endswith(TOKEN)
    with pytest.raises(TypeError):
        pickle.dumps(made.token)
    with pytest.raises(TypeError):
        msgspec.json.encode(made)
