"""What a machine is, whose it is, what is asked of a provider, and how it fails."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Protocol

import msgspec

from ..errors import SymmemCheckError
from ..github.settings import Token

KEY = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,18}[a-z0-9])?")
"""Short and in small letters, so that a name with it is a runner's, a Kubernetes object's and a host's too."""
_NAME = re.compile(r"symmem-([0-9a-f]{8})-([0-9]{1,18})-([0-9]{1,4})-([a-z0-9-]{1,20})")


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """The job that a machine is for. All jobs of a workflow's run can tell it, whatever the others handed on.

    `server` is GitHub's host; `repository` is `owner/name`; `key` tells apart the machines of one run.
    """

    server: str
    repository: str
    run_id: int
    attempt: int
    key: str

    @property
    def name(self) -> str:
        """The machine's and the runner's name: at most 63 small letters, digits and dashes, unique."""
        return f"{prefix(self.server, self.repository)}{self.run_id}-{self.attempt}-{self.key}"


def prefix(server: str, repository: str) -> str:
    """What the names of all machines of a repository begin with; an organisation's runners are in one list."""
    return f"symmem-{hashlib.sha256(f'{server}/{repository}'.lower().encode()).hexdigest()[:8]}-"


def owner_of(name: str, server: str, repository: str) -> Owner | None:
    """The owner that a name tells; None where it is no name of this repository's machines."""
    found = _NAME.fullmatch(name)
    if found is None or not name.startswith(prefix(server, repository)) or not KEY.fullmatch(found[4]):
        return None
    return Owner(server=server, repository=repository, run_id=int(found[2]), attempt=int(found[3]), key=found[4])


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that is there, or on its way to be, as its provider lists it.

    `id` is the provider's own; `where` a region, host, partition or namespace; `what` says what it is, such as
    `p5.48xlarge spot`. `since` and `deadline`, when it ends itself, are seconds since 1970. `price` is US dollars an
    hour, None where nobody said.
    """

    provider: str
    id: str
    where: str
    what: str
    owner: Owner
    since: float
    deadline: float
    price: float | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine may cost: hours until it ends itself, US dollars an hour (None: no limit), minutes without a job
    after which it ends itself, minutes in which its runner must register, and minutes to wait for capacity."""

    max_hours: float
    max_price: float | None = None
    idle_minutes: int = 5
    register_minutes: int = 10
    capacity_minutes: int = 10

    @property
    def seconds(self) -> int:
        """`max_hours` in seconds."""
        return round(self.max_hours * 3600)


class RunnerProgram(msgspec.Struct, frozen=True, kw_only=True):
    """GitHub's runner program: in a folder of the machine, or fetched from `url`, whose SHA-256 must be `sha256`."""

    folder: str = ""
    url: str = ""
    sha256: str = ""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a provider.

    `registration` makes the runner known to GitHub and returns its just-in-time configuration, which is that runner's
    secret. So a provider calls it as late as it can: once it knows that there is capacity, or right before the call
    that starts the machine. It may be called again; the older configuration is void then.
    `public` says whether anybody can see the repository, so that anybody may propose code to run. `pause` waits for
    some seconds, and raises where the start was asked to end meanwhile: no provider waits in another way.
    """

    owner: Owner
    limits: Limits
    program: RunnerProgram
    public: bool
    registration: Callable[[], Token]
    pause: Callable[[float], None]
    tell: Callable[[str], None]


class Provider(Protocol):
    """Where machines come from. What fails is a MachineError; nothing that `start` began is hidden by it, since
    `list` finds a machine by the marks that it got in the very call that made it."""

    def check(self) -> None:
        """Refuse what is asked for, where it costs too much or can't be, before anything is started."""

    def start(self, order: Order) -> Machine:
        """Start a machine. Raises NoCapacity where there is none free."""

    def stop(self, machine: Machine) -> None:
        """End a machine, and all that was made for it. One that is gone is ended."""

    def list(self, server: str, repository: str) -> list[Machine]:
        """The machines of a repository's runs that are not ended, and what is left of those that are.

        Raises PartlyListed where it can't be told of all places.
        """

    def journal(self, machine: Machine) -> str:
        """The last lines that the machine printed, or nothing where there are none to be had."""


class MachineError(SymmemCheckError):
    """A provider, a host or a cluster failed, so that nothing could be measured: exit status 3."""

    exit_status = 3


class PartlyListed(MachineError):
    """Some of the places where machines may be did not answer; `machines` are those of the others."""

    def __init__(self, message: str, machines: list[Machine]) -> None:
        super().__init__(message)
        self.machines = machines


class NoCapacity(SymmemCheckError):
    """There is no machine to be had just now: exit status 4."""

    exit_status = 4
