"""Objects as GitHub's API answers them, with all that its description requires; from real event payloads."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

EVENTS = Path(__file__).resolve().parent.parent / "data" / "github" / "events"
HEAD = "a" * 40
WORKFLOW = ".github/workflows/gate.yml"


@functools.cache
def _event(name: str) -> str:
    return (EVENTS / f"{name}.json").read_text(encoding="utf-8")


def event(name: str) -> dict[str, Any]:
    """A real event's payload, to be changed at will."""
    return json.loads(_event(name))


def user_object(login: str) -> dict[str, Any]:
    """A `simple-user`."""
    user = copy.deepcopy(event("pull_request.opened")["pull_request"]["user"])
    return user | {"login": login, "type": "Bot" if login.endswith("[bot]") else "User"}


def comment_object(number: int, api: str, issue: int, author: str, body: str) -> dict[str, Any]:
    """An `issue-comment`."""
    return {
        "id": number, "node_id": "IC_1", "url": f"{api}/comments/{number}", "body": body,
        "html_url": f"https://github.com/octo/train/pull/{issue}#issuecomment-{number}",
        "issue_url": f"{api}/issues/{issue}", "user": user_object(author), "author_association": "NONE",
        "created_at": "2026-11-30T10:00:00Z", "updated_at": "2026-11-30T10:00:00Z",
    }  # fmt: skip


def pull_object(
    number: int, repository_id: int, repository: str, *, sha: str = HEAD, fork: bool = False, state: str = "open",
    branch: str = "faster", base: str = "main",
) -> dict[str, Any]:  # fmt: skip
    """A `pull-request`: of a branch of the repository, or of a fork's."""
    pull = event("pull_request.opened")["pull_request"]
    owner = "contributor" if fork else repository.partition("/")[0]
    own = pull["base"]["repo"] | {"id": repository_id, "full_name": repository}
    other = own | {"id": 999, "full_name": f"contributor/{repository.partition('/')[2]}", "fork": True}
    pull["base"] |= {"ref": base, "repo": own}
    pull["head"] |= {"ref": branch, "label": f"{owner}:{branch}", "sha": sha, "repo": other if fork else own}
    return pull | {"number": number, "state": state}


def run_object(
    number: int, repository_id: int, repository: str, *, on: str = "push", branch: str = "main", fork: bool = False,
    sha: str = "b" * 40, path: str = WORKFLOW, run_number: int = 1, conclusion: str = "success",
) -> dict[str, Any]:  # fmt: skip
    """A `workflow-run`."""
    run = event("workflow_run.completed")["workflow_run"]
    own = run["repository"] | {"id": repository_id, "full_name": repository}
    other = own | {"id": 999, "full_name": f"contributor/{repository.partition('/')[2]}"}
    return run | {
        "id": number, "event": on, "head_branch": branch, "head_sha": sha, "path": path, "run_number": run_number,
        "conclusion": conclusion, "repository": own, "head_repository": other if fork else own, "pull_requests": [],
    }  # fmt: skip


def artifact_object(number: int, run: dict[str, Any], size: int, repository_id: int, **more: Any) -> dict[str, Any]:
    """An `artifact` that `run` left; the later its number, the newer."""
    return {
        "id": number, "node_id": "A_1", "name": "symmem-check", "size_in_bytes": size, "expired": False,
        "url": "https://api.github.com/a", "archive_download_url": "https://api.github.com/a/zip",
        "created_at": f"2026-11-{number % 28 + 1:02}T10:00:00Z", "expires_at": None, "updated_at": None,
        "workflow_run": {
            "id": run["id"], "repository_id": repository_id, "head_repository_id": run["head_repository"]["id"],
            "head_branch": run["head_branch"], "head_sha": run["head_sha"],
        },
    } | more  # fmt: skip
