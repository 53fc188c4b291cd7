"""Start, stop, list and reap: a provider and GitHub's list of runners, kept together.

The end of a machine is certain in layers. Its runner takes one job. It ends itself at a deadline, and when no job
comes.
`start` takes back what it began, where it fails or is interrupted. `stop` finds the machine by its marks, and needs
nothing that `start` told. `reap` does the same for every run that is over.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from ..errors import SymmemCheckError
from ..github.client import ApiError, Clock, SystemClock
from ..github.runners import Runner, Runners
from ..github.settings import Token
from ..report.text import one_line
from ..watch import Stop, holding_signals
from .model import Machine, MachineError, Order, Owner, PartlyListed, Provider, owner_of, prefix
from .spec import Spec

POLL_SECONDS = 5.0
LOOK_SECONDS = 20.0
"""How often it is asked whether a machine whose runner is waited for is still there."""
REGISTRATION_HOLDS = 120.0
"""Seconds for which a registration is used for another try to start a machine; a later one makes its own, so that no
runner is known for long before its machine is."""
JOURNAL_LINES = 40
OVERDUE_SECONDS = 600.0
"""A machine that is there so long after its deadline did not end itself."""
T = TypeVar("T")


class Interruption(SymmemCheckError):
    """A signal asked to end; the machine was given back first."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}; what was started is given back")
        self.exit_status = 128 + number


class Started(NamedTuple):
    """A machine whose runner waits for the job, and the label to run on."""

    machine: Machine
    label: str


class Ended(NamedTuple):
    """What `stop` or `reap` ended, machines and runners, and what could not be, each in words."""

    ended: list[str]
    failed: list[str]


class Lifecycle:
    """The machines of one repository at one provider. `tell` takes progress, a line at a time."""

    def __init__(
        self, provider: Provider, runners: Runners, spec: Spec, tell: Callable[[str], None], clock: Clock | None = None
    ) -> None:
        self._provider, self._runners, self._spec, self._tell = provider, runners, spec, tell
        self._clock = clock or SystemClock()

    def start(self, owner: Owner) -> Started:
        """Start a machine for `owner`; return when its runner waits for the job.

        Raises UserError before anything is started where a limit forbids it, NoCapacity, and MachineError with the
        machine's last lines where its runner doesn't come. Whatever it raises, what it began is taken back.
        """
        self._provider.check()
        with holding_signals() as asked:
            registration = _Registration(self._runners, owner.name, self._clock)
            order = Order(
                owner=owner, limits=self._spec.limits, program=self._spec.program, public=self._runners.is_public(),
                registration=lambda: _unless(asked, registration), pause=lambda seconds: self._pause(seconds, asked),
                tell=self._tell,
            )  # fmt: skip
            try:
                self._clear(owner)
                machine = self._provider.start(order)
                self._tell(f"{machine.what} in {machine.where} is {machine.id}; its runner has to come now")
                self._only(machine)
                self._wait_for_runner(machine, asked)
                _refuse_if(asked)
                return Started(machine, registration.label)
            except BaseException as error:
                self._take_back(owner, error)
                raise

    def stop(self, owner: Owner, *, every_key: bool = False) -> Ended:
        """End the machines of a run and key (with `every_key`, of all keys), of this attempt and of those before.

        What can't be ended keeps nothing else from being.
        """
        ended: list[str] = []
        failed: list[str] = []

        def ours(other: Owner) -> bool:
            same = other.run_id == owner.run_id and (every_key or other.key == owner.key)
            return same and other.attempt <= owner.attempt

        for machine in self._listed(owner.server, owner.repository, failed.append):
            if ours(machine.owner):
                with _noting(failed, _named(machine)):
                    self._provider.stop(machine)
                    ended.append(_named(machine))
        with _noting(failed, "GitHub's list of runners"):
            for runner in self._runners.beginning_with(prefix(owner.server, owner.repository)):
                other = owner_of(runner.name, owner.server, owner.repository)
                if other is not None and ours(other):
                    self._forget(runner, failed)
        return Ended(ended, failed)

    def reap(self, server: str, repository: str, *, dry: bool = False) -> Ended:
        """End what is left of runs that are over, and machines that outlived their deadline; with `dry`, only tell."""
        ended: list[str] = []
        failed: list[str] = []
        machines = self._listed(server, repository, failed.append)
        over: dict[tuple[int, int], bool] = {}
        for machine in machines:
            with _noting(failed, machine.owner.name):
                # First what needs nobody's answer.
                overdue = self._clock.now() > machine.deadline + OVERDUE_SECONDS
                why = "its deadline is over" if overdue else self._why_over(machine.owner, over)
                if why is None:
                    continue
                if not dry:
                    self._provider.stop(machine)
                ended.append(f"{_named(machine)}, since {why}")
        with _noting(failed, "GitHub's list of runners"):
            self._reap_runners(server, repository, over, ended, failed, dry)
        return Ended(ended, failed)

    def _clear(self, owner: Owner) -> None:
        """End what an earlier attempt of this run left. Of a place that does not answer it is only told: none of this
        attempt's is there, and an older one ends itself."""
        for line in self.stop(owner).failed:
            self._tell(f"of an earlier attempt: {line}")

    def _reap_runners(
        self, server: str, repository: str, over: dict[tuple[int, int], bool],
        ended: list[str], failed: list[str], dry: bool,
    ) -> None:  # fmt: skip
        """Forget the runners of runs that are over; an online one still has a machine, which ends it."""
        for runner in self._runners.beginning_with(prefix(server, repository)):
            owner = owner_of(runner.name, server, repository)
            if owner is None or runner.busy:
                continue
            with _noting(failed, f"the runner {runner.name}"):
                why = self._why_over(owner, over)
                if why is None:
                    continue
                if dry or self._forget(runner, failed):
                    ended.append(f"{runner.name}: the runner, since {why}")

    def _why_over(self, owner: Owner, known: dict[tuple[int, int], bool]) -> str | None:
        at = (owner.run_id, owner.attempt)
        if at not in known:
            known[at] = self._runners.is_over(*at)
        return f"attempt {owner.attempt} of run {owner.run_id} is over" if known[at] else None

    def _listed(self, server: str, repository: str, tell: Callable[[str], None]) -> list[Machine]:
        """The machines of all places that answer; of the others it is told, and nobody else has to wait for them."""
        try:
            return self._provider.list(server, repository)
        except MachineError as error:
            tell(str(error))
            return error.machines if isinstance(error, PartlyListed) else []

    def _is_there(self, machine: Machine) -> bool | None:
        """Whether a machine is listed; None where that can't be told."""
        try:
            listed = self._provider.list(machine.owner.server, machine.owner.repository)
        except MachineError:
            return None
        return machine.id in {one.id for one in listed}

    def _forget(self, runner: Runner, failed: list[str]) -> bool:
        """Forget a runner; whether it was. One that has a job GitHub itself forgets, once it misses the runner."""
        try:
            self._runners.remove(runner)
        except ApiError as error:
            if error.status == 422:
                self._tell(f"the runner {runner.name} has a job in GitHub's books; it is forgotten with it")
            else:
                failed.append(f"the runner {runner.name}: {one_line(str(error), 500)}")
            return False
        return True

    def _only(self, machine: Machine) -> None:
        """End what a call that was made twice, since its answer was lost, started beside `machine`."""
        for twin in self._listed(machine.owner.server, machine.owner.repository, self._tell):
            if twin.owner == machine.owner and twin.id != machine.id:
                self._tell(f"{twin.id} was started beside it, and is ended")
                self._provider.stop(twin)

    def _wait_for_runner(self, machine: Machine, asked: Stop) -> None:
        """Return when the runner is online. Raises MachineError with the machine's journal where it never is."""
        began = self._clock.now()
        minutes = self._spec.limits.register_minutes
        runner, looked, seen, ended = None, began, False, False
        while self._clock.now() - began < minutes * 60 and not ended:
            runner = self._runners.find(machine.owner.name)
            if runner is not None and runner.status == "online":
                self._tell(f"the runner {runner.name} is there, after {self._clock.now() - began:.0f} s")
                return
            self._pause(POLL_SECONDS, asked)
            if self._clock.now() - looked >= LOOK_SECONDS:  # a provider may show a new machine only after a while
                looked, there = self._clock.now(), self._is_there(machine)
                ended = seen and there is False
                seen = seen or there is True
        failed: list[str] = []
        journal = ""
        with _noting(failed, "its journal"):
            journal = self._provider.journal(machine)
        lines = [one_line(line, 300) for line in journal.splitlines() if line.strip()][-JOURNAL_LINES:]
        for line in lines:
            self._tell(f"  {machine.id}: {line}")
        said = lines[-1] if lines else "it printed nothing" if not failed else failed[0]
        unknown = "" if runner is not None else ", and GitHub no longer knows it"
        why = (
            "but it ended before its runner came" if ended else f"but its runner did not come within {minutes} minutes"
        )
        raise MachineError(
            f"{machine.what} in {machine.where} ({machine.id}) was started, {why}{unknown}; the last of what it "
            f"printed: {said}"
        )

    def _pause(self, seconds: float, asked: Stop) -> None:
        """Wait in short steps: what is started is to be given back within seconds of being asked to end."""
        end = self._clock.now() + seconds
        while (left := end - self._clock.now()) > 0:
            _refuse_if(asked)
            self._clock.sleep(min(left, 0.5))
        _refuse_if(asked)

    def _take_back(self, owner: Owner, error: BaseException) -> None:
        """End what was begun. What fails here is told, since the error that came before it is the one to raise."""
        try:
            ended, failed = self.stop(owner)
        except Exception as second:
            ended, failed = [], [one_line(str(second), 500)]
        for line in ended:
            self._tell(f"given back: {line}")
        if failed:
            self._tell(
                f"after {type(error).__name__}, {owner.name} could not be given back ({'; '.join(failed)}); "
                "stop and reap will find it, and it ends itself at its deadline"
            )


class _Registration:
    """The runner's registration, made anew where it is asked for again long after.

    Its label nobody can know before `start` tells it: a job of somebody else's that waits for it would get the machine.
    """

    def __init__(self, runners: Runners, name: str, clock: Clock) -> None:
        self._runners, self._name, self._clock = runners, name, clock
        self.label = f"{name}-{secrets.token_hex(8)}"
        self._made: tuple[float, Token] | None = None

    def __call__(self) -> Token:
        now = self._clock.now()
        if self._made is None or now - self._made[0] > REGISTRATION_HOLDS:
            self._made = now, self._runners.register(self._name, self.label)
        return self._made[1]


def _named(machine: Machine) -> str:
    return f"{machine.owner.name}: {machine.what} in {machine.where} ({machine.id})"


def _unless(asked: Stop, registration: Callable[[], T]) -> T:
    _refuse_if(asked)
    return registration()


def _refuse_if(asked: Stop) -> None:
    if asked.signal:
        raise Interruption(asked.signal)


@contextmanager
def _noting(failed: list[str], what: str) -> Iterator[None]:
    """Go on after an error of a provider or of GitHub, and note it."""
    try:
        yield
    except (SymmemCheckError, ApiError, OSError) as error:
        failed.append(f"{what}: {one_line(str(error), 500)}")
