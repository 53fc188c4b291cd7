"""Self-hosted runners of a repository or an organisation: made known for one job, looked for, and forgotten.

https://docs.github.com/en/rest/actions/self-hosted-runners?apiVersion=2022-11-28. The calls need an administrator's
token, which stays where this runs: a machine only ever gets the configuration of its own runner.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from .client import ApiError, Client, Uncertain
from .settings import Token


class Runner(msgspec.Struct, frozen=True):
    """A runner as GitHub lists it; `status` is `online` or `offline`."""

    id: int
    name: str
    status: str
    busy: bool = False


class Registration(msgspec.Struct, frozen=True):
    """A new runner, and the configuration with which a machine becomes it, once."""

    runner: Runner
    encoded_jit_config: str


class _Page(msgspec.Struct, frozen=True):
    runners: list[Runner]


class _Run(msgspec.Struct, frozen=True):
    status: str | None = None
    run_attempt: int = 1


class _Repository(msgspec.Struct, frozen=True):
    private: bool


class Runners:
    """The runners of `repository`, or of `organization` where one is given; `group` is the id of a runner group."""

    def __init__(self, client: Client, repository: str, organization: str | None = None, group: int = 1) -> None:
        self._client, self._repository, self._group = client, repository, group
        owner = f"/orgs/{organization}" if organization is not None else f"/repos/{repository}"
        self._path = f"{owner}/actions/runners"

    def register(self, name: str, label: str) -> Token:
        """Make a runner known that has one label, and return its just-in-time configuration.

        An older one of that name, as an attempt whose answer was lost leaves it, is forgotten.
        """
        content = {"name": name, "runner_group_id": self._group, "labels": [label], "work_folder": "_work"}
        for attempt in range(3):
            try:
                made = self._client.post(f"{self._path}/generate-jitconfig", content, Registration)
                return Token(made.encoded_jit_config)
            except ApiError as error:
                if attempt == 2 or not (error.status == 409 or isinstance(error, Uncertain)):
                    raise
                self.forget(name)
        raise AssertionError("not reached")

    def find(self, name: str) -> Runner | None:
        """The runner of a name."""
        return next(self._listed(name), None)

    def forget(self, name: str) -> None:
        """Remove the runners of a name, as `remove` does."""
        for runner in self._listed(name):
            self.remove(runner)

    def remove(self, runner: Runner) -> None:
        """Remove a runner. GitHub refuses that of one with a job (422), which is an ApiError."""
        self._client.delete(f"{self._path}/{runner.id}")

    def beginning_with(self, prefix: str) -> list[Runner]:
        """The runners whose names begin with `prefix`."""
        pages = self._client.pages(self._path, _Page)
        return [runner for page in pages for runner in page.runners if runner.name.startswith(prefix)]

    def is_public(self) -> bool:
        """Whether anybody can see the repository."""
        return not self._client.get(f"/repos/{self._repository}", _Repository).private

    def is_over(self, run_id: int, attempt: int) -> bool:
        """Whether that attempt of a run has ended, or is not to be found any more."""
        try:
            run = self._client.get(f"/repos/{self._repository}/actions/runs/{run_id}", _Run)
        except ApiError as error:
            if error.status != 404:
                raise
            self.is_public()  # raises where it is the repository that the token can't see, which would tell nothing
            return True
        return run.run_attempt > attempt or run.status == "completed"

    def _listed(self, name: str) -> Iterator[Runner]:
        for page in self._client.pages(self._path, _Page, name=name):
            yield from (runner for runner in page.runners if runner.name == name)
