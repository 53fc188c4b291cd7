"""The server that stands in for GitHub sees what breaks GitHub's description, or the other tests would show nothing."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from .fake import REPOSITORY, FakeGithub

COMMENTS = f"/repos/{REPOSITORY}/issues/7/comments"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", COMMENTS, {}),
        ("POST", COMMENTS, {"body": 7}),
        ("POST", f"/repos/{REPOSITORY}/issues/seven/comments", {"body": "x"}),
        ("GET", f"{COMMENTS}?per_page=many", None),
        ("GET", f"/repos/{REPOSITORY}/pulls?state=ajar&head=octo:x", None),
        ("PUT", COMMENTS, {"body": "x"}),
        ("GET", "/no/such/call", None),
    ],
)
def test_a_request_that_github_does_not_take_is_a_violation(method: str, path: str, body: Any) -> None:
    fake = FakeGithub()
    try:
        assert requests.request(method, fake.url + path, json=body, timeout=60).status_code == 422
        assert fake.violations and method in fake.violations[0]
    finally:
        fake.close()


@pytest.mark.parametrize("field", ["id", "user", "created_at"])
def test_an_answer_that_github_would_not_give_is_a_violation(field: str) -> None:
    fake = FakeGithub()
    try:
        fake.add_comment("x")
        assert requests.get(fake.url + COMMENTS, timeout=60).status_code == 200
        assert fake.violations == []
        del fake.comments[0][field]
        requests.get(fake.url + COMMENTS, timeout=60)
        assert len(fake.violations) == 1 and field in fake.violations[0]
    finally:
        fake.close()
