"""GitHub with runners, and the environment of a job that starts machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..github.fake import REPOSITORY
from .fake import ADMIN, FakeWithRunners

RUN = 4711


@pytest.fixture
def github() -> Iterator[FakeWithRunners]:
    """At the end, no request and no answer may have broken GitHub's description."""
    fake = FakeWithRunners()
    yield fake
    fake.close()
    assert fake.violations == []


@pytest.fixture
def job(github: FakeWithRunners) -> dict[str, str]:
    """The variables that GitHub Actions sets for run 4711's first attempt, and the runner token."""
    return {
        "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_RUN_ID": str(RUN), "GITHUB_RUN_ATTEMPT": "1",
        "GITHUB_SERVER_URL": "https://github.com", "GITHUB_API_URL": github.url,
        "SYMMEM_CHECK_RUNNER_TOKEN": ADMIN,
    }  # fmt: skip
