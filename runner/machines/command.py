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
from .arguments import DEFAULT_KEY
from .lifecycle import Ended, Lifecycle, Started
from .model import Machine, MachineError, Owner, PartlyListed, Provider
from .spec import read_spec

TOKEN = "SYMMEM_CHECK_RUNNER_TOKEN"
LAST_ATTEMPT = 9999
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
    asked: argparse.Namespace, environment: Mapping[str, str] | None = None, *, attempt_of_run: int = 1
) -> MachineSettings:
    """Settings from the flags `repository`, `run`, `attempt` and `key`, else from Actions' variables.

    `attempt_of_run` is the attempt where only the run is told.
    """
    given = os.environ if environment is None else environment
    repository = asked.repository or given.get("GITHUB_REPOSITORY", "")
    if not _REPOSITORY.fullmatch(repository):
        told = f"GITHUB_REPOSITORY is {repository!r}" if repository else "GITHUB_REPOSITORY is not set"
        raise UserError(f"{told}; set it to OWNER/NAME, or give --repository")
    secret = Token(given.get(TOKEN, "").strip())
    if not secret:
        raise UserError(
            f"no token to register runners with; set {TOKEN} to one with administration: write of {repository}"
        )
    return MachineSettings(
        server=urlsplit(url(given, "GITHUB_SERVER_URL", DEFAULT_SERVER)).netloc,
        api_url=url(given, "GITHUB_API_URL", DEFAULT_API),
        repository=repository,
        run_id=asked.run or count(given, "GITHUB_RUN_ID", 0),
        attempt=asked.attempt or (attempt_of_run if asked.run else count(given, "GITHUB_RUN_ATTEMPT", attempt_of_run)),
        key=asked.key or DEFAULT_KEY,
        token=secret,
    )


def run_command(parsed: argparse.Namespace, tell: Callable[[str], None]) -> int:
    """`symmem-check machine VERB`: print what it found or did; returns the exit status."""
    # At a terminal nobody counts attempts: the first is started, and those of all are ended.
    settings = machine_settings(parsed, attempt_of_run=LAST_ATTEMPT if parsed.verb == "stop" else 1)
    if parsed.verb == "stop":
        return stop(parsed.machine, settings, tell, every_key=parsed.key is None)
    if parsed.verb == "reap":
        return reap(parsed.machine, settings, tell, dry=parsed.dry_run)
    if parsed.verb == "list":
        return _list(parsed.machine, settings, tell, parsed.format)
    print(start(parsed.machine, settings, tell).label)
    return 0


def start(machine: str, settings: MachineSettings, tell: Callable[[str], None]) -> Started:
    """Start this run's machine and wait for its runner."""
    return _lifecycle(machine, settings, tell)[0].start(settings.owner)


def stop(machine: str, settings: MachineSettings, tell: Callable[[str], None], *, every_key: bool = False) -> int:
    """End this run's machines, and print which; the exit status is 3 where something could not be ended."""
    done = _lifecycle(machine, settings, tell)[0].stop(settings.owner, every_key=every_key)
    return _print_ended(done, tell, nothing="nothing of that run is there", verb="ended")


def reap(machine: str, settings: MachineSettings, tell: Callable[[str], None], *, dry: bool = False) -> int:
    """End what is left of runs that are over, and print it; the exit status is 3 where something could not be."""
    done = _lifecycle(machine, settings, tell)[0].reap(settings.server, settings.repository, dry=dry)
    return _print_ended(
        done, tell, nothing="nothing is left of runs that are over", verb="would end" if dry else "ended"
    )


def _print_ended(done: Ended, tell: Callable[[str], None], *, nothing: str, verb: str) -> int:
    for line in done.ended:
        print(f"{verb} {inert(line)}")
    for line in done.failed:
        tell(f"could not be ended: {line}")
    if not done.ended and not done.failed:
        print(nothing)
    return MachineError.exit_status if done.failed else 0


def _list(machine: str, settings: MachineSettings, tell: Callable[[str], None], form: str) -> int:
    """Print the repository's machines, oldest first."""
    provider = _lifecycle(machine, settings, tell)[1]
    status = 0
    try:
        machines = provider.list(settings.server, settings.repository)
    except PartlyListed as error:
        tell(str(error))
        machines, status = error.machines, error.exit_status
    _print_list(sorted(machines, key=lambda one: one.since), form)
    return status


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
