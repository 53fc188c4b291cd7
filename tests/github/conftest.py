"""The server that stands in for GitHub, a clock that does not wait, and the settings of a pull request's job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runner.github.model import Payload
from runner.github.settings import GithubSettings, Token

from .fake import REPOSITORY, TOKEN, FakeGithub
from .shapes import HEAD, WORKFLOW


class QuickClock:
    """Time that passes by waiting alone; `waits` are the seconds waited."""

    def __init__(self) -> None:
        self.time, self.waits = 1_800_000_000.0, []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds


@pytest.fixture
def clock() -> QuickClock:
    return QuickClock()


@pytest.fixture
def github() -> Iterator[FakeGithub]:
    """A GitHub with pull request 7. At the end, no request and no answer may have broken the description."""
    fake = FakeGithub()
    yield fake
    fake.close()
    assert fake.violations == []


@pytest.fixture
def settings(github: FakeGithub, tmp_path: Path) -> Callable[..., GithubSettings]:
    """Settings of run 50 (number 5) of a pull request's newest commit, with changes."""

    def make(**more: Any) -> GithubSettings:
        common: dict[str, Any] = {
            "repository": REPOSITORY, "token": Token(TOKEN), "api_url": github.url, "event": "pull_request",
            "run_id": 50, "run_number": 5, "sha": "merge", "workflow": WORKFLOW, "pull_request": 7,
            "base_branch": "main", "out": tmp_path / "out",
        }  # fmt: skip
        payload = more.pop("payload", None) or {"pull_request": pull_payload(more.pop("head", HEAD))}
        return GithubSettings(**common | more, payload=msgspec.convert(payload, Payload))

    return make


def pull_payload(sha: str) -> dict[str, Any]:
    return {"number": 7, "head": {"sha": sha, "ref": "faster"}, "base": {"sha": "c" * 40, "ref": "main"}}
