"""Which pull request a run belongs to, and which commit of it was looked at; told by the API, never by an artifact."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import UserError
from .client import ApiError, Client
from .model import PullRequest, WorkflowRun
from .settings import GithubSettings


class NoTarget(UserError):
    """There is no pull request to comment on; the message says why."""


class Target(NamedTuple):
    """A pull request, the commit and run that the result is of, and the pull request's newest commit.

    `run` is the run's number and attempt, by which runs of one workflow are ordered. `fork` says whether the code came
    from another repository.
    """

    number: int
    sha: str
    head: str
    run: tuple[int, int]
    run_id: int
    fork: bool


def find_target(client: Client, settings: GithubSettings) -> Target:
    """The pull request to comment on. Raises NoTarget where there is none, ApiError where GitHub can't be asked."""
    ran = settings.payload.workflow_run
    if settings.event == "workflow_run" and ran is not None:
        return _of_other_run(client, settings, ran)
    known = settings.payload.pull_request
    number = settings.pull_request or (known.number if known is not None else None)
    if number is None:
        raise NoTarget(f"no comment was made: the event {settings.event or '(none)'} belongs to no pull request")
    pull = _pull(client, settings, number)
    # In a pull request's event GITHUB_SHA is a merge commit that nobody knows.
    sha = known.head.sha if known is not None and known.number == number else settings.sha or pull.head.sha
    return _target(settings, pull, sha, (settings.run_number, settings.run_attempt), settings.run_id)


def _of_other_run(client: Client, settings: GithubSettings, ran: WorkflowRun) -> Target:
    """The pull request that the run in a `workflow_run` event was for: open, and its newest commit the one that ran."""
    if ran.event not in ("pull_request", "pull_request_target"):
        raise NoTarget(f"no comment was made: that run was started by {ran.event}, and by no pull request")
    numbers = [settings.pull_request] if settings.pull_request else _candidates(client, settings, ran)
    fitting: list[PullRequest] = []
    moved: list[PullRequest] = []
    for number in numbers:
        pull = _pull(client, settings, number)
        here = pull.head.repo.id if pull.head.repo else None
        if pull.state != "open" or ran.head_repository is None or here != ran.head_repository.id:
            continue
        (fitting if pull.head.sha == ran.head_sha else moved).append(pull)
    if not fitting:
        told = "it has newer commits" if moved else "no open pull request has its commit as the newest"
        raise NoTarget(f"no comment was made for the run of {ran.head_sha[:12]}: {told}")
    if len(fitting) > 1:
        named = " and ".join(f"#{pull.number}" for pull in fitting)
        raise NoTarget(f"no comment was made: {named} have the same newest commit; say which with --pull-request")
    return _target(settings, fitting[0], ran.head_sha, (ran.run_number, ran.run_attempt), ran.id)


def _candidates(client: Client, settings: GithubSettings, ran: WorkflowRun) -> list[int]:
    """Pull requests that may be meant. For a fork's the event names none, and the commit's list may be empty."""
    numbers = {pull.number for pull in ran.pull_requests or []}
    base = f"/repos/{settings.repository}"
    if not numbers:
        try:
            found = client.get(f"{base}/commits/{ran.head_sha}/pulls", list[PullRequest], per_page=100)
        except ApiError as error:
            if error.status not in (404, 409, 422):  # the base repository does not know the fork's commit
                raise
            found = []
        numbers = {pull.number for pull in found}
    owner = (ran.head_repository.full_name or "").partition("/")[0] if ran.head_repository else ""
    if not numbers and owner and ran.head_branch:
        head = f"{owner}:{ran.head_branch}"
        found = client.get(f"{base}/pulls", list[PullRequest], head=head, state="open", per_page=100)
        numbers = {pull.number for pull in found}
    return sorted(numbers)[:20]


def _pull(client: Client, settings: GithubSettings, number: int) -> PullRequest:
    return client.get(f"/repos/{settings.repository}/pulls/{number}", PullRequest)


def _target(settings: GithubSettings, pull: PullRequest, sha: str, run: tuple[int, int], run_id: int) -> Target:
    own = pull.base.repo.id if pull.base.repo else None
    fork = pull.head.repo is None or pull.head.repo.id != own
    return Target(pull.number, sha, pull.head.sha, run, run_id, fork)
