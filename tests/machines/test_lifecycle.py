"""A machine's life: started, waited for, found without what start told, and given back whatever happens."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.errors import SymmemCheckError, UserError
from runner.github.client import Client
from runner.github.runners import Runners
from runner.github.settings import Token
from runner.machines.lifecycle import Lifecycle
from runner.machines.model import Limits, MachineError, NoCapacity, Owner, PartlyListed, RunnerProgram, owner_of
from runner.machines.spec import Spec

from ..github.conftest import QuickClock
from ..github.fake import REPOSITORY, Fault
from .conftest import RUN
from .fake import ADMIN, RUNNER, FakeWithRunners
from .local import LocalProvider

SERVER = "github.com"


def owner(run: int = RUN, attempt: int = 1, key: str = "gpu", repository: str = REPOSITORY) -> Owner:
    return Owner(server=SERVER, repository=repository, run_id=run, attempt=attempt, key=key)


@pytest.fixture
def provider(tmp_path: Path) -> LocalProvider:
    return LocalProvider(tmp_path / "machines")


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def lifecycle(
    provider: LocalProvider, github: FakeWithRunners, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Lifecycle]:
    """A lifecycle with real time for machines and no waiting for GitHub's rules between writes."""
    monkeypatch.setattr("runner.machines.lifecycle.POLL_SECONDS", 0.2)

    def make(clock: QuickClock | None = None, **limits: float) -> Lifecycle:
        spec = Spec(
            provider="local", program=RunnerProgram(folder=str(RUNNER)), organization=None, group=1,
            limits=Limits(max_hours=limits.pop("max_hours", 1), **limits),  # type: ignore[arg-type]
        )  # fmt: skip
        runners = Runners(Client(github.url, Token(ADMIN), clock=QuickClock()), REPOSITORY)
        return Lifecycle(provider, runners, spec, told.append, clock)

    return make


def wait_until(done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def test_names_are_unique_valid_and_tell_their_owner() -> None:
    mine = owner()
    assert len({owner(run=1).name, owner(attempt=2).name, owner(key="b").name, mine.name}) == 4
    assert owner(repository="octo/other").name != mine.name
    assert owner_of(mine.name, SERVER, REPOSITORY) == mine
    assert owner_of(mine.name, SERVER, "octo/other") is None
    assert owner_of(mine.name, "github.example", REPOSITORY) is None
    longest = owner(run=10**17, attempt=1000, key="k" * 20).name
    assert len(longest) <= 63 and longest == longest.lower()


def test_a_machine_is_there_for_one_job_and_ends_with_it(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners, tmp_path: Path
) -> None:
    github.job = f"until [ -e {tmp_path}/queued ]; do sleep 0.1; done; echo $GITHUB_JOB >{tmp_path}/ran"
    machine, label = lifecycle().start(owner())
    assert [one["name"] for one in github.runners[0]["labels"]] == [label]
    assert re.fullmatch(f"{owner().name}-[0-9a-f]{{16}}", label)  # which nobody can wait for before it is told
    (tmp_path / "queued").touch()
    assert machine.owner == owner() and (machine.where, machine.price) == ("here", 2.0)
    github.wait_for("done")
    assert (tmp_path / "ran").read_text() == "check\n"
    assert github.played == [(owner().name, 0)] and github.runners == []
    wait_until(lambda: provider.journal(machine).endswith(": ended\n"))
    assert list((provider.folder / "work" / machine.id).iterdir()) == []
    lifecycle().stop(owner())
    assert provider.list(SERVER, REPOSITORY) == []


def test_stop_needs_nothing_that_start_told_and_spares_other_runs_and_keys(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    github.job = None
    others = [owner(run=1), owner(key="other")]
    for one in [owner(), *others]:
        lifecycle().start(one)
    (ended,) = lifecycle().stop(owner()).ended
    assert ended.startswith(f"{owner().name}: a process in here (local-")
    assert [one.owner for one in provider.list(SERVER, REPOSITORY)] == others
    assert github.names() == [one.name for one in others]
    assert lifecycle().stop(owner()) == ([], [])
    for one in others:
        lifecycle().stop(one)


def test_a_later_attempt_ends_what_an_earlier_one_left(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    github.job = None
    lifecycle().start(owner(attempt=1))
    lifecycle().start(owner(attempt=2))
    assert [one.owner.attempt for one in provider.list(SERVER, REPOSITORY)] == [2]
    lifecycle().stop(owner(attempt=1))  # a stop job of the first attempt that comes late
    assert [one.owner.attempt for one in provider.list(SERVER, REPOSITORY)] == [2]
    lifecycle().stop(owner(attempt=3))
    assert provider.list(SERVER, REPOSITORY) == [] and github.runners == []


def test_no_capacity_leaves_nothing(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    provider.full = True
    with pytest.raises(NoCapacity, match="nothing is free here") as raised:
        lifecycle().start(owner())
    assert raised.value.exit_status == 4 and github.runners == []


def test_what_costs_too_much_is_refused_before_anything_is_asked_for(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    provider.dear = True
    with pytest.raises(UserError, match="costs too much"):
        lifecycle().start(owner())
    assert provider.calls == [] and github.asked == []


def test_a_runner_that_never_comes_is_told_with_the_machines_last_lines(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners, told: list[str]
) -> None:
    github.faults.append(Fault("POST", "never", times=0))
    github.hear = lambda name, what, status: 500  # type: ignore[method-assign]
    clock = QuickClock()
    with pytest.raises(MachineError, match="its runner did not come within 1 minutes; the last of what it printed: "):
        lifecycle(_Slow(clock), register_minutes=1).start(owner())
    assert any(line.startswith("  local-") for line in told)
    assert provider.list(SERVER, REPOSITORY) == [] and github.runners == []


class _Slow(QuickClock):
    """Each wait takes a moment of real time too, so that the machine gets to run."""

    def __init__(self, clock: QuickClock) -> None:
        super().__init__()

    def sleep(self, seconds: float) -> None:
        time.sleep(0.02)
        super().sleep(seconds)


def test_a_machine_that_ends_before_its_runner_comes_is_not_waited_for(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    github.hear = lambda name, what, status: 500  # type: ignore[method-assign]
    listed, looks = provider.list, []

    def ends(server: str, repository: str):  # type: ignore[no-untyped-def]
        looks.append(server)
        return [] if len(looks) == 4 else listed(server, repository)  # before, for twins, there, and gone

    provider.list = ends  # type: ignore[method-assign]
    clock = _Slow(QuickClock())
    began = clock.time
    with pytest.raises(MachineError, match="ended before its runner came; the last of what it printed: "):
        lifecycle(clock, register_minutes=10).start(owner())
    assert 40 <= clock.time - began < 60


def test_a_twin_from_a_call_whose_answer_was_lost_is_ended(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    github.job, provider.twice = None, True
    machine = lifecycle().start(owner()).machine
    assert [one.id for one in provider.list(SERVER, REPOSITORY)] == [machine.id]
    lifecycle().stop(owner())


def test_a_start_that_fails_after_it_began_takes_it_back(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    github.job = None
    provider.broken = {"start"}
    with pytest.raises(MachineError, match="the answer was lost"):
        lifecycle().start(owner())
    assert provider.list(SERVER, REPOSITORY) == [] and github.runners == []


def test_where_taking_back_fails_too_the_first_error_counts_and_reap_ends_it(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners, told: list[str]
) -> None:
    github.job = None
    provider.broken = {"start", "stop"}
    with pytest.raises(MachineError, match="the answer was lost"):
        lifecycle().start(owner())
    assert "could not be given back" in told[-1] and "it can't be stopped" in told[-1]
    assert len(provider.list(SERVER, REPOSITORY)) == 1
    provider.broken = set()
    assert lifecycle().reap(SERVER, REPOSITORY) == ([], [])  # the run is not over yet
    github.over.add((RUN, 1))
    reaped = lifecycle().reap(SERVER, REPOSITORY)
    assert len(reaped.ended) == 1 and "attempt 1 of run 4711 is over" in reaped.ended[0] and reaped.failed == []
    assert provider.list(SERVER, REPOSITORY) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cancel_gives_the_machine_back_at_once(
    number: signal.Signals, lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    github.hear = lambda name, what, status: 410  # type: ignore[method-assign]  # the runner never comes online

    def cancel() -> None:
        wait_until(lambda: "start" in provider.calls)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(SymmemCheckError, match="interrupted by signal") as raised:
        lifecycle().start(owner())
    thread.join()
    assert raised.value.exit_status == 128 + number
    assert provider.list(SERVER, REPOSITORY) == [] and github.runners == []


def test_reap_ends_what_outlived_its_deadline_and_only_tells_when_asked_to(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    github.job = None
    lifecycle().start(owner())
    clock = QuickClock()
    clock.time = time.time() + 3600 + 601
    dry = lifecycle(clock).reap(SERVER, REPOSITORY, dry=True)
    assert "its deadline is over" in dry.ended[0] and len(provider.list(SERVER, REPOSITORY)) == 1
    assert lifecycle(clock).reap(SERVER, REPOSITORY).ended == dry.ended
    assert provider.list(SERVER, REPOSITORY) == []


def test_reap_forgets_runners_without_a_machine_and_leaves_others_alone(
    lifecycle: Callable[..., Lifecycle], github: FakeWithRunners
) -> None:
    runners = Runners(Client(github.url, Token(ADMIN), clock=QuickClock()), REPOSITORY)
    for name in (owner(run=1).name, owner(run=2).name, owner(run=3).name, "somebody-elses"):
        runners.register(name, f"{name}-x")
    github.runners[1]["busy"] = True
    github.over |= {(1, 1), (2, 1)}
    reaped = lifecycle().reap(SERVER, REPOSITORY)
    assert reaped.ended == [f"{owner(run=1).name}: the runner, since attempt 1 of run 1 is over"]
    assert github.names() == [owner(run=2).name, owner(run=3).name, "somebody-elses"]


def test_a_runner_with_a_job_in_githubs_books_is_no_failure(
    lifecycle: Callable[..., Lifecycle], github: FakeWithRunners, told: list[str]
) -> None:
    github.job = "sleep 600"
    lifecycle().start(owner())
    github.wait_for("busy")
    done = lifecycle().stop(owner())
    assert len(done.ended) == 1 and done.failed == []
    assert "has a job in GitHub's books" in told[-1]


def test_an_overdue_machine_is_ended_without_github(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    github.job = None
    lifecycle().start(owner())
    clock = QuickClock()
    clock.time = time.time() + 3600 + 601
    github.faults.append(Fault("GET", "/actions/", status=401, message="Bad credentials", times=99))
    done = lifecycle(clock).reap(SERVER, REPOSITORY)
    assert len(done.ended) == 1 and "its deadline is over" in done.ended[0]
    assert len(done.failed) == 1 and "GitHub's list of runners: GitHub: GET" in done.failed[0]
    assert provider.list(SERVER, REPOSITORY) == []


def test_reap_ends_nothing_where_github_can_not_tell(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    github.job = None
    lifecycle().start(owner())
    github.faults.append(Fault("GET", f"/actions/runs/{RUN}", status=403, message="Forbidden"))
    reaped = lifecycle().reap(SERVER, REPOSITORY)
    assert reaped.ended == [] and any("403" in line for line in reaped.failed)
    assert len(provider.list(SERVER, REPOSITORY)) == 1
    lifecycle().stop(owner())


def test_a_place_that_does_not_answer_keeps_no_start_and_is_told_by_an_end(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners, told: list[str]
) -> None:
    github.job, listed = None, provider.list

    def partly(server: str, repository: str):  # type: ignore[no-untyped-def]
        raise PartlyListed("not all hosts could be asked: b is down", listed(server, repository))

    provider.list = partly  # type: ignore[method-assign]
    lifecycle().start(owner())
    assert told[0] == "of an earlier attempt: not all hosts could be asked: b is down"
    done = lifecycle().stop(owner())
    assert len(done.ended) == 1 and done.failed == ["not all hosts could be asked: b is down"]
    assert listed(SERVER, REPOSITORY) == [] and github.runners == []
    reaped = lifecycle().reap(SERVER, REPOSITORY)
    assert reaped.ended == [] and reaped.failed == ["not all hosts could be asked: b is down"]


def test_one_machine_that_can_not_be_ended_keeps_no_other(
    lifecycle: Callable[..., Lifecycle], provider: LocalProvider, github: FakeWithRunners
) -> None:
    github.job = None
    lifecycle().start(owner(run=1))
    lifecycle().start(owner(run=2))
    github.over |= {(1, 1), (2, 1)}
    stop, stuck = provider.stop, provider.list(SERVER, REPOSITORY)[0].id

    def refuse(machine):  # type: ignore[no-untyped-def]
        if machine.id == stuck:
            raise MachineError("stuck")
        stop(machine)

    provider.stop = refuse  # type: ignore[method-assign]
    reaped = lifecycle().reap(SERVER, REPOSITORY)
    assert len(reaped.failed) == 1 and "stuck" in reaped.failed[0]
    assert [one.id for one in provider.list(SERVER, REPOSITORY)] == [stuck]
    provider.stop = stop  # type: ignore[method-assign]
    lifecycle().reap(SERVER, REPOSITORY)
