"""Results that other runs left as artifacts: the base branch's as a baseline, and one that a `workflow_run` reports."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import UserError
from ..judge.baseline_sides import why_no_baseline
from ..result import LARGEST_RESULT, Result, read_result
from .archive import extract_result
from .client import ApiError, Client, Clock
from .model import Artifact, Artifacts, WorkflowRun
from .settings import GithubSettings

BASELINE_EVENTS = frozenset({"push", "schedule", "workflow_dispatch"})
"""Events that run the repository's own code on its own branch. With any other, a fork could leave a baseline."""

LARGEST_ARTIFACT = 1024 * 2**20
"""Bytes of the zip file: an output folder has the traces too."""
MOST_PAGES = 20
MOST_TRIED = 10

Tell = Callable[[str], None]


def find_baseline(settings: GithubSettings, *, tell: Tell | None = None, clock: Clock | None = None) -> Path | None:
    """The newest complete result of the base branch, as `baseline.json` in the settings' `out`; None where none is.

    Only runs of this repository's own code count: its own branch, started by push, schedule or workflow_dispatch, by
    the same workflow; a fork may have a branch of the same name. Their verdict does not matter. `tell` takes what was
    passed over. Raises UserError where the token may not read artifacts, and where `require_baseline` is set and there
    is none; ApiError where GitHub does not answer.
    """
    said = tell or _silent
    client = Client(settings.api_url, settings.token, clock=clock)
    branch = base_branch(settings)
    workflow = settings.workflow or _own_workflow(client, settings)
    for tried, artifact in enumerate(_candidates(client, settings, branch, workflow)):
        if tried == MOST_TRIED:
            break
        path = settings.out / "baseline.json"
        why = _take(client, settings, artifact, path)
        run_id = artifact.workflow_run.id if artifact.workflow_run else None
        if why is None:
            said(f"baseline: the result of run {run_id} on {branch}")
            return path
        path.unlink(missing_ok=True)
        said(f"baseline: artifact {artifact.id} of run {run_id} was passed over: {why}")
    none = f"no run of {workflow} on {branch} has left a complete result in an artifact {settings.artifact!r}"
    if settings.require_baseline:
        raise UserError(f"{none}; run it there once, or leave out --require-baseline")
    said(f"baseline: {none}, so nothing is compared")
    return None


def fetch_result(settings: GithubSettings, *, clock: Clock | None = None) -> Path:
    """The result of the run in a `workflow_run` event, as `result.json` in `out`; only ever read as data.

    Raises UserError where the event is another, or that run left no whole result.
    """
    ran = settings.payload.workflow_run
    if ran is None:
        raise UserError("no run to fetch a result of: that takes a workflow that starts on workflow_run")
    client = Client(settings.api_url, settings.token, clock=clock)
    path = f"/repos/{settings.repository}/actions/runs/{ran.id}/artifacts"
    try:
        pages = list(client.pages(path, Artifacts, name=settings.artifact))
        found = [one for page in pages for one in page.artifacts if one.name == settings.artifact and not one.expired]
        if not found:
            raise UserError(f"run {ran.id} has left no artifact {settings.artifact!r}; its job must upload one")
        newest = max(found, key=_age)
        to = settings.out / "result.json"
        _fetch(client, settings, newest, to)
    except ApiError as error:
        raise (_forbidden(error) if error.status in (401, 403) else error) from None
    return to


def base_branch(settings: GithubSettings) -> str:
    """The branch to compare with. Raises UserError where neither flags nor the event tell."""
    payload = settings.payload
    if settings.base_branch:
        return settings.base_branch
    if payload.pull_request is not None:
        return payload.pull_request.base.ref
    if payload.merge_group is not None:
        return payload.merge_group.base_ref.removeprefix("refs/heads/")
    default = payload.repository.default_branch if payload.repository is not None else None
    branch = default or settings.branch
    if not branch:
        raise UserError("which branch to compare with is not told by this event; give --base-branch")
    return branch


def _candidates(client: Client, settings: GithubSettings, branch: str, workflow: str) -> Iterator[Artifact]:
    """The artifacts that may be a baseline, newest first, each with its run looked at."""
    runs: dict[int, WorkflowRun | None] = {}
    for artifact in _newest_first(client, settings, branch):
        run_id = artifact.workflow_run.id if artifact.workflow_run else None
        if run_id is None or run_id == settings.run_id:
            continue
        if run_id not in runs:
            runs[run_id] = _run(client, settings, run_id)
        run = runs[run_id]
        if run is not None and _may_be_baseline(run, branch, workflow):
            yield artifact


def _take(client: Client, settings: GithubSettings, artifact: Artifact, path: Path) -> str | None:
    """Fetch an artifact's result; None, or why it is no baseline. Raises UserError where none could be had."""
    try:
        why = why_no_baseline(_fetch(client, settings, artifact, path))
        return f"it {why}" if why else None
    except ApiError as error:
        if error.status in (401, 403):
            raise _forbidden(error) from None
        if error.status not in (404, 410):  # those are gone since the list was made
            raise
        return str(error)
    except UserError as error:
        return str(error)


def _newest_first(client: Client, settings: GithubSettings, branch: str) -> Iterator[Artifact]:
    """The artifacts that code of this repository on `branch` may have left. GitHub lists the newest first."""
    path = f"/repos/{settings.repository}/actions/artifacts"
    try:
        for number, page in enumerate(client.pages(path, Artifacts, name=settings.artifact), start=1):
            fitting = [one for one in page.artifacts if _is_of(one, settings.artifact, branch)]
            yield from sorted(fitting, key=_age, reverse=True)
            if number == MOST_PAGES:
                return
    except ApiError as error:
        raise (_forbidden(error) if error.status in (401, 403, 404) else error) from None


def _is_of(artifact: Artifact, name: str, branch: str) -> bool:
    run = artifact.workflow_run
    return (
        artifact.name == name
        and not artifact.expired
        and artifact.size_in_bytes <= LARGEST_ARTIFACT
        and run is not None
        and run.head_branch == branch
        and run.repository_id is not None
        and run.head_repository_id == run.repository_id
    )


def _age(artifact: Artifact) -> tuple[str, int]:
    return artifact.created_at or "", artifact.id


def _may_be_baseline(run: WorkflowRun, branch: str, workflow: str) -> bool:
    return (
        run.event in BASELINE_EVENTS
        and run.head_branch == branch
        and run.path.partition("@")[0] == workflow
        and run.repository is not None
        and run.head_repository is not None
        and run.repository.id == run.head_repository.id
    )


def _own_workflow(client: Client, settings: GithubSettings) -> str:
    if not settings.run_id:
        raise UserError("which workflow this is can't be told; set GITHUB_WORKFLOW_REF, as GitHub Actions does")
    run = _run(client, settings, settings.run_id)
    if run is None:
        raise UserError(f"GitHub does not know run {settings.run_id}; set GITHUB_RUN_ID, as GitHub Actions does")
    return run.path.partition("@")[0]


def _run(client: Client, settings: GithubSettings, number: int) -> WorkflowRun | None:
    """A run; None where it was deleted."""
    try:
        return client.get(f"/repos/{settings.repository}/actions/runs/{number}", WorkflowRun)
    except ApiError as error:
        if error.status == 404:
            return None
        raise (_forbidden(error) if error.status in (401, 403) else error) from None


def _fetch(client: Client, settings: GithubSettings, artifact: Artifact, to: Path) -> Result:
    """Download an artifact and read its result into `to`. Raises UserError for all but a whole result."""
    settings.out.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".artifact-", suffix=".zip", dir=settings.out)
    os.close(handle)
    archive = Path(name)
    try:
        path = f"/repos/{settings.repository}/actions/artifacts/{artifact.id}/zip"
        client.download(path, archive, LARGEST_ARTIFACT)
        extract_result(archive, to, LARGEST_RESULT)
        return read_result(to)
    finally:
        archive.unlink(missing_ok=True)


def _forbidden(error: ApiError) -> UserError:
    return UserError(f"the token may not read artifacts; give the job `permissions: actions: read`. {error}")


def _silent(line: str) -> None:
    pass
