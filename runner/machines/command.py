"""`symmem-check machine`: start, stop, list and reap, for the command line and for the action."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec

from ..errors import UserError
from ..github.client import Client, SystemClock
from ..github.runners import Runners
from ..github.settings import DEFAULT_API, DEFAULT_SERVER, Token, count, url
from .lifecycle import Lifecycle, Reaped
from .model import KEY, Machine, Owner, Provider
from .spec import Spec, read_spec

TOKEN = "SYMMEM_CHECK_RUNNER_TOKEN"
DEFAULT_KEY = "gpu"
_REPOSITORY = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")


class MachineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whose machine, and where GitHub is. `run_id` is 0 outside a workflow: then there is only list and reap."""

    server: str
    api_url: str
    repository: str
    run_id: int
    attempt: int
    key: str
    token: Token

    @property
    def owner(self) -> Owner:
        """The owner of this run's machine. Raises UserError outside a run."""
        if not self.run_id:
            raise UserError("GITHUB_RUN_ID is not set; give --run ID, whose machine it is")
        return Owner(
            server=self.server, repository=self.repository, run_id=self.run_id, attempt=self.attempt, key=self.key
        )


def key(text: str) -> str:
    """A machine's key, for argparse."""
    if not KEY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no key; give up to 20 small letters, digits and dashes")
    return text


def machine_settings(
    asked: argparse.Namespace, token: str | None = None, environment: Mapping[str, str] | None = None
) -> MachineSettings:
    """Settings from the flags `repository`, `run`, `attempt` and `key`, else from Actions' variables."""
    given = os.environ if environment is None else environment
    repository = asked.repository or given.get("GITHUB_REPOSITORY", "")
    if not _REPOSITORY.fullmatch(repository):
        raise UserError(f"GITHUB_REPOSITORY is {repository!r}; set it, or give --repository OWNER/NAME")
    secret = Token((given.get(TOKEN, "") if token is None else token).strip())
    if not secret:
        raise UserError(
            f"no token to register runners with; set {TOKEN} to one with administration: write of {repository}"
        )
    return MachineSettings(
        server=urlsplit(url(given, "GITHUB_SERVER_URL", DEFAULT_SERVER)).netloc,
        api_url=url(given, "GITHUB_API_URL", DEFAULT_API),
        repository=repository,
        run_id=asked.run or count(given, "GITHUB_RUN_ID", 0),
        attempt=asked.attempt or count(given, "GITHUB_RUN_ATTEMPT", 1),
        key=asked.key,
        token=secret,
    )


def lifecycle(machine: str, settings: MachineSettings, tell: Callable[[str], None]) -> tuple[Lifecycle, Provider]:
    """The lifecycle of the machines that the YAML `machine` describes, and their provider."""
    spec, provider = read_spec(machine)
    return Lifecycle(provider, _runners(settings, spec), spec, tell), provider


def _runners(settings: MachineSettings, spec: Spec) -> Runners:
    client = Client(settings.api_url, settings.token)
    return Runners(client, settings.repository, spec.organization, spec.group)


def start(machine: str, settings: MachineSettings, tell: Callable[[str], None]) -> Machine:
    """Start this run's machine and wait for its runner; the label to run on is the owner's name."""
    return lifecycle(machine, settings, tell)[0].start(settings.owner)


def stop(machine: str, settings: MachineSettings, tell: Callable[[str], None]) -> list[str]:
    """End this run's machines; tells which."""
    return lifecycle(machine, settings, tell)[0].stop(settings.owner)


def listed(machine: str, settings: MachineSettings, tell: Callable[[str], None]) -> list[Machine]:
    """The repository's machines, oldest first."""
    provider = lifecycle(machine, settings, tell)[1]
    return sorted(provider.list(settings.server, settings.repository), key=lambda one: one.since)


def reap(machine: str, settings: MachineSettings, tell: Callable[[str], None], *, dry: bool = False) -> Reaped:
    """End what is left of runs that are over."""
    return lifecycle(machine, settings, tell)[0].reap(settings.server, settings.repository, dry=dry)


def machine_rows(machines: list[Machine], now: float | None = None) -> list[tuple[str, ...]]:
    """A row a machine: name, what, where, id, run, hours, cost until now; a cost that nobody can tell is a dash."""
    now = SystemClock().now() if now is None else now
    rows: list[tuple[str, ...]] = []
    for one in machines:
        hours = max(0.0, now - one.since) / 3600
        cost = "-" if one.price is None else f"{hours * one.price:.2f} USD"
        run = f"{one.owner.repository} {one.owner.run_id} attempt {one.owner.attempt}"
        left = (one.deadline - now) / 3600
        rows.append((one.owner.name, one.what, one.where, one.id, run, f"{hours:.1f} h", f"{left:.1f} h", cost))
    return rows
