"""`symmem-check machine`: start, stop, list and reap, for the command line and for the action."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec

from ..errors import UserError
from ..github.client import Client, SystemClock
from ..github.runners import Runners
from ..github.settings import DEFAULT_API, DEFAULT_SERVER, Token, count, url
from ..report.machines import print_machines
from ..report.text import inert, inert_json
from .lifecycle import Lifecycle
from .model import Machine, Owner, Provider
from .spec import read_spec

TOKEN = "SYMMEM_CHECK_RUNNER_TOKEN"
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


def run_command(parsed: argparse.Namespace, tell: Callable[[str], None]) -> int:
    """`symmem-check machine VERB`: print what it found or did; returns the exit status."""
    settings = machine_settings(parsed)
    if parsed.verb == "start":
        start(parsed.machine, settings, tell)
        print(settings.owner.name)
    elif parsed.verb == "stop":
        for line in stop(parsed.machine, settings, tell):
            print(f"ended {line}")
    elif parsed.verb == "list":
        _print_list(listed(parsed.machine, settings, tell), parsed.format)
    else:
        return reap(parsed.machine, settings, tell, dry=parsed.dry_run)
    return 0


def start(machine: str, settings: MachineSettings, tell: Callable[[str], None]) -> Machine:
    """Start this run's machine and wait for its runner; the label to run on is the owner's name."""
    return _lifecycle(machine, settings, tell)[0].start(settings.owner)


def stop(machine: str, settings: MachineSettings, tell: Callable[[str], None]) -> list[str]:
    """End this run's machines; tells which."""
    return _lifecycle(machine, settings, tell)[0].stop(settings.owner)


def listed(machine: str, settings: MachineSettings, tell: Callable[[str], None]) -> list[Machine]:
    """The repository's machines, oldest first."""
    provider = _lifecycle(machine, settings, tell)[1]
    return sorted(provider.list(settings.server, settings.repository), key=lambda one: one.since)


def reap(machine: str, settings: MachineSettings, tell: Callable[[str], None], *, dry: bool = False) -> int:
    """End what is left of runs that are over, and print it; the exit status is 3 where something could not be."""
    reaped = _lifecycle(machine, settings, tell)[0].reap(settings.server, settings.repository, dry=dry)
    for line in reaped.ended:
        print(f"{'would end' if dry else 'ended'} {inert(line)}")
    for line in reaped.failed:
        tell(f"could not be ended: {line}")
    if not reaped.ended and not reaped.failed:
        print("nothing is left of runs that are over")
    return 3 if reaped.failed else 0


def _lifecycle(machine: str, settings: MachineSettings, tell: Callable[[str], None]) -> tuple[Lifecycle, Provider]:
    spec, provider = read_spec(machine)
    client = Client(settings.api_url, settings.token)
    runners = Runners(client, settings.repository, spec.organization, spec.group)
    return Lifecycle(provider, runners, spec, tell), provider


def _print_list(machines: list[Machine], form: str) -> None:
    if form == "json":
        sys.stdout.write(inert_json(msgspec.json.encode(machines).decode()) + "\n")
    elif machines:
        print_machines(machines, SystemClock().now(), sys.stdout)
    else:
        print("no machine is there")
