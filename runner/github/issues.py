"""One issue a topic: opened, kept up to date, opened again, and closed; each found again by a hidden marker."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from .client import ApiError, Client
from .comment import own_login
from .model import Comment, User

_MARKER = re.compile(
    r"\A<!-- symmem-check-canary key=(?P<key>\S{1,64}) about=(?P<about>\S{1,80}) rows=(?P<rows>\S{0,4000}) -->"
)
COLOUR = "d4c5f9"


class Label(msgspec.Struct, frozen=True):
    """A label; GitHub has some as objects and some as mere names."""

    name: str | None = None


class Issue(msgspec.Struct, frozen=True):
    """An issue. `pull_request` is there where it is one, which GitHub lists among the issues."""

    number: int
    state: str
    title: str = ""
    body: str | None = None
    html_url: str = ""
    state_reason: str | None = None
    user: User | None = None
    labels: list[Label | str] = []
    pull_request: dict[str, Any] | None = None


class Found(NamedTuple):
    """An issue of ours, with what its marker tells."""

    issue: Issue
    about: str
    rows: list[str]


def marker(key: str, about: str, rows: list[str]) -> str:
    """The first line of an issue's text."""
    return f"<!-- symmem-check-canary key={key} about={about} rows={','.join(rows)} -->"


class Issues:
    """The issues of one canary in one repository. All methods raise ApiError."""

    def __init__(self, client: Client, repository: str, label: str, key: str) -> None:
        self._client, self._label, self._key = client, label, key
        self._base = f"/repos/{repository}"
        self._authors: set[str] = set()
        self._labelled = False

    def ours(self) -> list[Found]:
        """All of them, open and closed, oldest first. A marker alone is no proof: anybody can copy one."""
        self._authors = self._authors or {own_login(self._client)}
        found = []
        for page in self._client.pages(f"{self._base}/issues", list[Issue], labels=self._label, state="all"):
            for issue in page:
                known = _MARKER.match(issue.body or "")
                ours = issue.user is not None and issue.user.login in self._authors
                if known and known["key"] == self._key and ours and issue.pull_request is None:
                    rows = [row for row in known["rows"].split(",") if row]
                    found.append(Found(issue, known["about"], rows))
        return sorted(found, key=lambda one: one.issue.number)

    def open(self, title: str, body: str) -> Issue:
        """A new issue. Without its label it would not be found again, so that is seen to first."""
        self._ensure_label()
        content = {"title": title, "body": body, "labels": [self._label]}
        made = self._client.post(f"{self._base}/issues", content, Issue)
        names = {label if isinstance(label, str) else label.name for label in made.labels}
        if self._label.lower() not in {name.lower() for name in names if name}:
            raise ApiError(f"GitHub: issue #{made.number} was opened without its label {self._label!r}; put it there")
        return made

    def change(self, issue: Issue, **content: str) -> Issue:
        """Change an issue's title, body, state or state_reason."""
        return self._client.patch(f"{self._base}/issues/{issue.number}", content, Issue)

    def comment(self, issue: Issue, body: str) -> None:
        """Say something under an issue, which those who follow it are told."""
        self._client.post(f"{self._base}/issues/{issue.number}/comments", {"body": body}, Comment)

    def _ensure_label(self) -> None:
        if self._labelled:
            return
        try:
            self._client.get(f"{self._base}/labels/{quote(self._label, safe='')}", Label)
        except ApiError as error:
            if error.status != 404:
                raise
            self._client.post(f"{self._base}/labels", {"name": self._label, "color": COLOUR}, Label)
        self._labelled = True
