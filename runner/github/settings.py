"""What the GitHub side has to know, from flags and from the variables that Actions sets, checked once and then frozen.

The variables: https://docs.github.com/en/actions/reference/workflows-and-actions/variables
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from ..errors import UserError
from .events import read_payload
from .model import Payload

DEFAULT_API = "https://api.github.com"
DEFAULT_SERVER = "https://github.com"
DEFAULT_KEY = "default"
DEFAULT_ARTIFACT = "symmem-check"

_REPOSITORY = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,200}")
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Token:
    """A token that no log, error or repr shows; `value` is for the request's header alone."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Token(***)"

    def __bool__(self) -> bool:
        return bool(self.value)

    def __reduce__(self) -> str:
        raise TypeError("a token is not to be copied into a file")


class GithubSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to post and what started this run.

    `repository` is `owner/name`; `event` the name of the event; `run_id`, `run_number` and `run_attempt` are this
    run's, 0 outside Actions. `workflow` is the calling workflow's file within the repository. `pull_request` and
    `base_branch` are None where the event has to tell. `artifact` is the name under which runs leave their results.
    `glossary` is where the words of a report are explained, None where that is not known.
    """

    repository: str
    token: Token
    api_url: str = DEFAULT_API
    server_url: str = DEFAULT_SERVER
    event: str = ""
    payload: Payload = Payload()
    run_id: int = 0
    run_number: int = 0
    run_attempt: int = 1
    sha: str = ""
    workflow: str | None = None
    branch: str | None = None
    base_branch: str | None = None
    pull_request: int | None = None
    comment_key: str = DEFAULT_KEY
    artifact: str = DEFAULT_ARTIFACT
    require_baseline: bool = False
    out: Path = Path()
    glossary: str | None = None


def add_github_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the flags of the GitHub side; the token comes by GITHUB_TOKEN alone, since a command line can be listed."""
    parser.add_argument(
        "--comment-key", metavar="KEY", default=DEFAULT_KEY, type=_key,
        help=f"one comment a pull request and key; give each job of a matrix its own (default: {DEFAULT_KEY})",
    )  # fmt: skip
    parser.add_argument(
        "--pull-request", metavar="N", type=_number, help="comment on this one (default: as the event says)"
    )
    parser.add_argument(
        "--artifact", metavar="NAME", default=DEFAULT_ARTIFACT,
        help=f"the artifact in which runs leave their result.json (default: {DEFAULT_ARTIFACT})",
    )  # fmt: skip
    parser.add_argument(
        "--base-branch", metavar="BRANCH",
        help="whose newest result is the baseline (default: the pull request's base, else the default branch)",
    )  # fmt: skip


def github_settings(
    arguments: argparse.Namespace, out: Path = Path(), environment: Mapping[str, str] | None = None
) -> GithubSettings:
    """Settings from the flags of `add_github_arguments` and from Actions' variables; files go to `out`.

    Raises UserError for what is missing or malformed.
    """
    given = os.environ if environment is None else environment
    repository = given.get("GITHUB_REPOSITORY", "")
    if not _REPOSITORY.fullmatch(repository):
        raise UserError(f"GITHUB_REPOSITORY is {repository!r}; set it to owner/name, as GitHub Actions does")
    token = Token((given.get("GITHUB_TOKEN") or given.get("GH_TOKEN") or "").strip())
    if not token:
        raise UserError("no token for GitHub; set GITHUB_TOKEN (in a workflow: env: GITHUB_TOKEN: ${{ github.token }})")
    event_path = given.get("GITHUB_EVENT_PATH")
    return GithubSettings(
        repository=repository,
        token=token,
        api_url=url(given, "GITHUB_API_URL", DEFAULT_API),
        server_url=url(given, "GITHUB_SERVER_URL", DEFAULT_SERVER),
        event=given.get("GITHUB_EVENT_NAME", ""),
        payload=read_payload(Path(event_path) if event_path else None),
        run_id=count(given, "GITHUB_RUN_ID", 0),
        run_number=count(given, "GITHUB_RUN_NUMBER", 0),
        run_attempt=count(given, "GITHUB_RUN_ATTEMPT", 1),
        sha=given.get("GITHUB_SHA", ""),
        workflow=_workflow(given.get("GITHUB_WORKFLOW_REF", ""), repository),
        branch=given.get("GITHUB_REF_NAME") if given.get("GITHUB_REF_TYPE", "branch") == "branch" else None,
        base_branch=arguments.base_branch or given.get("GITHUB_BASE_REF") or None,
        pull_request=arguments.pull_request,
        comment_key=arguments.comment_key,
        artifact=arguments.artifact,
        require_baseline=getattr(arguments, "require_baseline", False),
        out=out,
        glossary=glossary_url(given),
    )


def glossary_url(environment: Mapping[str, str] | None = None) -> str | None:
    """Where this action's README explains the words, as a link; None outside an action."""
    given = os.environ if environment is None else environment
    action, ref = given.get("GITHUB_ACTION_REPOSITORY", ""), given.get("GITHUB_ACTION_REF", "")
    if not _REPOSITORY.fullmatch(action) or not _REF.fullmatch(ref):
        return None
    return f"{url(given, 'GITHUB_SERVER_URL', DEFAULT_SERVER)}/{action}/blob/{ref}/README.md#the-words"


def url(given: Mapping[str, str], name: str, default: str) -> str:
    """The address in a variable, without the slash at its end. Raises UserError for what is none."""
    address = (given.get(name) or default).rstrip("/")
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise UserError(f"{name} is no address such as {default}; leave it as GitHub Actions sets it")
    return address


def count(given: Mapping[str, str], name: str, default: int) -> int:
    """The whole number in a variable. Raises UserError for what is none."""
    text = given.get(name) or str(default)
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise UserError(f"{name} is {text[:40]!r}, and no number; leave it as GitHub Actions sets it")
    return int(text)


def _workflow(ref: str, repository: str) -> str | None:
    """`.github/workflows/gate.yml` of `owner/name/.github/workflows/gate.yml@refs/heads/main`."""
    path = ref.partition("@")[0]
    return path.removeprefix(f"{repository}/") if path.startswith(f"{repository}/") else None


def _key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: a key is up to 64 letters, digits, dots, dashes and underscores")
    return text


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no pull request's number")
    return int(text)
