"""The server that stands in for GitHub, with issues and labels too."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from ..github.fake import REPOSITORY, Asked, FakeGithub
from ..github.shapes import user_object

_R = f"/repos/{REPOSITORY}"
Answer = tuple[int, dict[str, str], Any]


class FakeWithIssues(FakeGithub):
    """GitHub with issues. `may_write_issues` is whether the token has `issues: write`."""

    def __init__(self) -> None:
        super().__init__()
        self.issues: list[dict[str, Any]] = []
        self.labels: set[str] = set()
        self.may_write_issues = True

    def answer(self, asked: Asked) -> Answer:
        if asked.method != "GET" and re.match(rf"{_R}/(?:issues|labels)", asked.path) and not self.may_write_issues:
            return 403, {}, {"message": "Resource not accessible by integration", "documentation_url": "https://d"}
        if asked.path == f"{_R}/issues":
            return self._list_issues(asked) if asked.method == "GET" else self._open(asked)
        if one := re.fullmatch(rf"{_R}/issues/(\d+)", asked.path):
            return self._change(asked, int(one[1]))
        if asked.path == f"{_R}/labels":
            self.labels.add(asked.body["name"])
            return 201, {}, label_object(asked.body["name"])
        if one := re.fullmatch(rf"{_R}/labels/(.+)", asked.path):
            name = unquote(one[1])
            missing = {"message": "Not Found", "documentation_url": "https://d"}
            return (200, {}, label_object(name)) if name in self.labels else (404, {}, missing)
        return super().answer(asked)

    def said(self, number: int) -> list[str]:
        """The comments under an issue."""
        return [one["body"] for one in self.comments if one["issue_url"].endswith(f"/issues/{number}")]

    def add_issue(self, body: str, *, author: str | None = None, **more: Any) -> dict[str, Any]:
        """Put an issue there, as if somebody had opened it."""
        number = len(self.issues) + 21
        issue = issue_object(number, author or self.author, body) | more
        self.issues.append(issue)
        return issue

    def _list_issues(self, asked: Asked) -> Answer:
        (label,) = asked.query["labels"]
        state = asked.query.get("state", ["open"])[0]
        found = [
            issue for issue in reversed(self.issues)
            if state in ("all", issue["state"]) and label in [one["name"] for one in issue["labels"]]
        ]  # fmt: skip
        return self._page(asked, found)

    def _open(self, asked: Asked) -> Answer:
        if len(asked.body["body"]) > 65_536:
            return 422, {}, {"message": "Validation Failed", "documentation_url": "https://d"}
        labels = [label_object(name) for name in asked.body.get("labels", []) if name in self.labels]
        return 201, {}, self.add_issue(asked.body["body"], title=asked.body["title"], labels=labels)

    def _change(self, asked: Asked, number: int) -> Answer:
        issue = next(one for one in self.issues if one["number"] == number)
        if asked.method == "PATCH":
            issue.update(asked.body)
            issue["closed_at"] = "2026-11-30T10:00:00Z" if issue["state"] == "closed" else None
        return 200, {}, issue


def label_object(name: str) -> dict[str, Any]:
    """A `label`."""
    return {
        "id": 1, "node_id": "LA_1", "url": "https://api.github.com/l", "name": name, "description": None,
        "color": "d4c5f9", "default": False,
    }  # fmt: skip


def issue_object(number: int, author: str, body: str) -> dict[str, Any]:
    """An `issue`, open and with the canary's label."""
    api = f"https://api.github.com{_R}"
    return {
        "id": number, "node_id": "I_1", "url": f"{api}/issues/{number}", "repository_url": api,
        "labels_url": f"{api}/issues/{number}/labels{{/name}}", "comments_url": f"{api}/issues/{number}/comments",
        "events_url": f"{api}/issues/{number}/events", "html_url": f"https://github.com/{REPOSITORY}/issues/{number}",
        "number": number, "state": "open", "title": "", "body": body,
        "user": user_object(author), "labels": [label_object("symmem-check-canary")], "assignee": None,
        "assignees": [], "milestone": None, "locked": False, "comments": 0, "closed_at": None,
        "created_at": "2026-11-30T10:00:00Z", "updated_at": "2026-11-30T10:00:00Z", "author_association": "NONE",
    }  # fmt: skip
