"""One comment on a pull request and key: found again, updated in place, and never put back to an older state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from ..result import Result
from .client import ApiError, Client, Clock, Uncertain
from .model import Comment, User
from .pulls import NoTarget, Target, find_target
from .settings import GithubSettings

ACTIONS_BOT = "github-actions[bot]"
"""Whom GitHub names as the author of what a job's own token writes."""

_TRIES = 4
_MARKER = re.compile(
    r"\A<!-- symmem-check key=(?P<key>\S{1,64}) sha=(?P<sha>[0-9a-fA-F]{1,64}) "
    r"run=(?P<run>\d{1,18}) attempt=(?P<attempt>\d{1,9}) -->"
)


class CommentOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a comment. `notice` is a sentence for the log where it was not posted; that fails nothing."""

    action: Literal["created", "updated", "unchanged", "outdated", "not-posted"]
    url: str | None = None
    notice: str | None = None


class Own(NamedTuple):
    """A comment of ours, with what its marker tells."""

    comment: Comment
    sha: str
    run: tuple[int, int]


def post_comment(result: Result, settings: GithubSettings, *, clock: Clock | None = None) -> CommentOutcome:
    """Create or update the comment on the pull request that this run, or the run in a `workflow_run`, belongs to.

    Whatever GitHub refuses becomes a notice: the verdict stands without the comment, and a pull request from a fork has
    a token that may only read.
    """
    client = Client(settings.api_url, settings.token, clock=clock)
    try:
        target = find_target(client, settings)
        return _Thread(client, settings, target).post(comment_body(result, settings, target))
    except NoTarget as error:
        return CommentOutcome(action="not-posted", notice=str(error))
    except ApiError as error:
        return CommentOutcome(action="not-posted", notice=_notice(error))


def comment_body(result: Result, settings: GithubSettings, target: Target) -> str:
    """The comment's Markdown, with the hidden marker in its first line."""
    from ..report.markdown import comment_markdown

    number, attempt = target.run
    marker = f"<!-- symmem-check key={settings.comment_key} sha={target.sha} run={number} attempt={attempt} -->"
    run_url = f"{settings.server_url}/{settings.repository}/actions/runs/{target.run_id}" if target.run_id else None
    return comment_markdown(
        result, marker=marker, sha=target.sha, run_url=run_url, fork=target.fork, glossary=settings.glossary
    )


def _notice(error: ApiError) -> str:
    if error.status in (401, 403):
        return (
            "no comment was made, since the token may not write one (a pull request from a fork has a token that may "
            f"only read; else give the job pull-requests: write); the step summary has all of it. {error}"
        )
    return f"no comment was made; the step summary has all of it. {error}"


class _Thread:
    """The comments of one pull request, as far as they are ours."""

    def __init__(self, client: Client, settings: GithubSettings, target: Target) -> None:
        self._client, self._key, self._target = client, settings.comment_key, target
        self._base = f"/repos/{settings.repository}/issues"
        self._authors = {own_login(client)}

    def post(self, body: str) -> CommentOutcome:
        """Bring the thread to its one comment. What was lost or vanished meanwhile is looked at afresh."""
        for left in reversed(range(_TRIES)):
            try:
                return self._once(body)
            except ApiError as error:
                again = isinstance(error, Uncertain) or error.status == 404
                if not again or not left:
                    raise
        raise AssertionError("unreachable")

    def _once(self, body: str) -> CommentOutcome:
        own = self._own()
        if own:
            return self._settle(own, body)
        made = self._client.post(f"{self._base}/{self._target.number}/comments", {"body": body}, Comment)
        # Another run may have made one at the same time, and only the answer tells an app's name for certain.
        if made.user is not None:
            self._authors.add(made.user.login)
        own = self._own()
        if len(own) > 1:
            return self._settle(own, body)
        return CommentOutcome(action="created", url=made.html_url)

    def _own(self) -> list[Own]:
        """Our comments with our key, oldest first. A marker alone is no proof: anybody can copy one."""
        found = []
        path = f"{self._base}/{self._target.number}/comments"
        for page in self._client.pages(path, list[Comment]):
            for comment in page:
                marker = _MARKER.match(comment.body)
                if marker and marker["key"] == self._key and comment.user and comment.user.login in self._authors:
                    found.append(Own(comment, marker["sha"], (int(marker["run"]), int(marker["attempt"]))))
        return sorted(found, key=lambda own: own.comment.id)

    def _settle(self, own: Sequence[Own], body: str) -> CommentOutcome:
        """Keep the oldest comment with the newest run's text, and remove the others."""
        newest = max(own, key=lambda one: one.run)
        first = own[0].comment
        others = [one for one in own if one.run != self._target.run]
        outdated = newest.run > self._target.run or (bool(others) and self._target.sha != self._target.head)
        body = newest.comment.body if outdated else body
        unchanged = _same(first.body, body)
        if not unchanged:
            self._client.patch(f"{self._base}/comments/{first.id}", {"body": body}, Comment)
        for duplicate in own[1:]:
            self._client.delete(f"{self._base}/comments/{duplicate.comment.id}")
        if outdated:
            notice = f"the pull request has moved on since {self._target.sha[:12]}, so its comment was left as it is"
            return CommentOutcome(action="outdated", url=first.html_url, notice=notice)
        return CommentOutcome(action="unchanged" if unchanged else "updated", url=first.html_url)


def own_login(client: Client) -> str:
    """Whom GitHub will name as our author. The token that Actions makes for a job may not ask."""
    try:
        return client.get("/user", User).login
    except ApiError as error:
        if error.status in (403, 404):
            return ACTIONS_BOT
        raise


def _same(one: str, other: str) -> bool:
    return one.replace("\r\n", "\n").strip() == other.replace("\r\n", "\n").strip()
