"""What GitHub's answers and event payloads are made of: those fields of them that are read here.

https://docs.github.com/en/rest?apiVersion=2022-11-28 and https://docs.github.com/en/webhooks/webhook-events-and-payloads
"""

from __future__ import annotations

import msgspec


class User(msgspec.Struct, frozen=True):
    """An account: `github-actions[bot]` for the token that Actions makes for a job."""

    login: str


class Comment(msgspec.Struct, frozen=True):
    """A comment of an issue or pull request; a deleted account's has no user."""

    id: int
    body: str = ""
    html_url: str = ""
    user: User | None = None


class Repository(msgspec.Struct, frozen=True):
    """A repository; a pull request from a fork has another one as its head's, or none where the fork is gone."""

    id: int
    full_name: str | None = None
    default_branch: str | None = None


class Tip(msgspec.Struct, frozen=True):
    """One end of a pull request."""

    sha: str
    ref: str
    repo: Repository | None = None


class PullRequest(msgspec.Struct, frozen=True):
    """A pull request; in a `workflow_run` it has no state."""

    number: int
    head: Tip
    base: Tip
    state: str = "open"


class WorkflowRun(msgspec.Struct, frozen=True):
    """A run of a workflow. `path` is the workflow's file, at times with `@` and a ref behind it."""

    id: int
    run_number: int
    event: str
    head_sha: str
    head_branch: str | None = None
    run_attempt: int = 1
    path: str = ""
    repository: Repository | None = None
    head_repository: Repository | None = None
    pull_requests: list[PullRequest] | None = None


class ArtifactRun(msgspec.Struct, frozen=True):
    """Which run left an artifact, and of which branch and repository its code was."""

    id: int | None = None
    repository_id: int | None = None
    head_repository_id: int | None = None
    head_branch: str | None = None
    head_sha: str | None = None


class Artifact(msgspec.Struct, frozen=True):
    """An artifact; `size_in_bytes` is the zip file's."""

    id: int
    name: str
    size_in_bytes: int
    expired: bool
    created_at: str | None = None
    workflow_run: ArtifactRun | None = None


class Artifacts(msgspec.Struct, frozen=True):
    """A page of artifacts."""

    artifacts: list[Artifact]


class MergeGroup(msgspec.Struct, frozen=True):
    """A merge queue's group; `base_ref` is a whole ref, such as `refs/heads/main`."""

    base_ref: str


class Payload(msgspec.Struct, frozen=True):
    """An event's payload."""

    repository: Repository | None = None
    pull_request: PullRequest | None = None
    workflow_run: WorkflowRun | None = None
    merge_group: MergeGroup | None = None
