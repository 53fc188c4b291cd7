"""A machine of EC2 from its start to its end: what moto was told to start runs here, and the runner comes by itself."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.github.client import ApiError, Client
from runner.github.runners import Runners
from runner.github.settings import Token
from runner.machines.lifecycle import Lifecycle
from runner.machines.model import MachineError, NoCapacity
from runner.machines.spec import read_spec

from ..github.conftest import QuickClock
from ..github.fake import Fault as GithubFault
from . import aws as stand_in
from .aws import AMI, SERVER, FakeAws, Fault, owner, script_of
from .fake import ADMIN, REPOSITORY, RUNNER, FakeWithRunners

moto_server, aws = stand_in.moto_server, stand_in.aws
pytestmark = [pytest.mark.needs_program("setsid"), pytest.mark.needs_program("pkill")]

EAST = "us-east-2"
YAML = f"""
provider: ec2
limits: {{max-hours: 1, register-minutes: 1, capacity-minutes: 1}}
runner: {{folder: {RUNNER}}}
image: {AMI}
candidates:
  - {{type: p5.48xlarge, region: {EAST}, market: spot}}
  - {{type: p5.48xlarge, region: {EAST}}}
"""


class Cloud(threading.Thread):
    """Plays the machines: each runs its user data as a process of this host, and is gone with it, as with a machine
    that switches itself off; and the process is gone with the machine."""

    def __init__(self, aws: FakeAws, folder: Path) -> None:
        super().__init__(daemon=True)
        self._aws, self._folder = aws, folder
        self._over = threading.Event()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.printed = folder / "printed"

    def run(self) -> None:
        while not self._over.wait(0.1):
            there = {instance["InstanceId"] for instance in self._aws.instances(EAST, "running")}
            for machine in there - self.running.keys():
                self.running[machine] = self._boot(machine)
            for machine, process in self.running.items():
                if process.poll() is not None and machine in there:
                    self._aws.client("ec2", EAST).terminate_instances(InstanceIds=[machine])
                elif process.poll() is None and machine not in there:
                    process.terminate()

    def _boot(self, machine: str) -> subprocess.Popen[bytes]:
        # It would make a user here, and switch this host off.
        harmless = {"RUN_AS": "", "POWER_OFF": "", "WORK": str(self._folder / "work")}
        lines = script_of(self._aws, EAST, machine).splitlines()
        for name, value in harmless.items():
            (number,) = (number for number, line in enumerate(lines) if line.startswith(f"{name}="))
            lines[number] = f"{name}={shlex.quote(value)}"
        script = self._folder / f"{machine}.sh"
        script.write_text("\n".join(lines) + "\n")
        with self.printed.open("ab") as out:
            return subprocess.Popen(["bash", str(script)], stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def close(self) -> None:
        self._over.set()
        self.join(30)
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait(60)


@pytest.fixture
def cloud(aws: FakeAws, tmp_path: Path) -> Iterator[Cloud]:
    cloud = Cloud(aws, tmp_path)
    cloud.start()
    yield cloud
    cloud.close()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def lifecycle(
    aws: FakeAws, github: FakeWithRunners, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Lifecycle]:
    def make(clock: QuickClock | None = None) -> Lifecycle:
        if clock is None:
            monkeypatch.setattr("runner.machines.lifecycle.POLL_SECONDS", 0.2)
        spec, provider = read_spec(YAML)
        runners = Runners(Client(github.url, Token(ADMIN), clock=QuickClock()), REPOSITORY)
        return Lifecycle(provider, runners, spec, told.append, clock)

    return make


def wait_until(done: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_machine_comes_plays_its_job_and_is_gone(
    lifecycle: Callable[..., Lifecycle], cloud: Cloud, aws: FakeAws, github: FakeWithRunners, told: list[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    # As on GitHub, where the job waits for the one that starts its machine.
    github.job = f"until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    aws.faults.append(Fault("RunInstances", "InsufficientInstanceCapacity", market="spot"))
    machine = lifecycle().start(owner()).machine
    assert (machine.what, machine.where) == ("p5.48xlarge on-demand", EAST)
    (tmp_path / "go").touch()
    github.wait_for("done")
    wait_until(lambda: aws.instances(EAST) == [])
    assert github.played == [(owner().name, 0)] and github.runners == []
    assert "ended" in cloud.printed.read_text()
    configuration = github.configuration(owner().name)
    scripts = {"".join(call.parameters["UserData"].split()) for call in aws.asked("RunInstances")}
    assert ADMIN not in str(aws.calls) and len(scripts) == 1
    assert not any(configuration in line or ADMIN in line for line in told)
    assert lifecycle().stop(owner()).ended == []


@pytest.mark.slow
def test_stop_ends_a_machine_by_its_marks(
    lifecycle: Callable[..., Lifecycle], cloud: Cloud, aws: FakeAws, github: FakeWithRunners
) -> None:
    github.job = None
    machine = lifecycle().start(owner()).machine
    assert lifecycle().stop(owner()).ended == [f"{owner().name}: p5.48xlarge spot in {EAST} ({machine.id})"]
    assert aws.instances(EAST) == [] and github.runners == []
    wait_until(lambda: cloud.running[machine.id].poll() is not None)


@pytest.mark.slow
def test_an_answer_that_was_lost_leaves_one_machine_even_where_aws_forgets_tokens(
    lifecycle: Callable[..., Lifecycle], cloud: Cloud, aws: FakeAws, github: FakeWithRunners
) -> None:
    github.job = None
    aws.forgets = True
    aws.faults.append(Fault("RunInstances", drop="after"))
    # Both would play the one runner; the lifecycle ends the second before it waits.
    machine = lifecycle().start(owner()).machine
    assert [one["InstanceId"] for one in aws.instances(EAST)] == [machine.id]
    lifecycle().stop(owner())
    assert aws.instances(EAST) == []


def test_a_runner_that_never_comes_is_told_with_the_console_and_its_machine_is_ended(
    lifecycle: Callable[..., Lifecycle], aws: FakeAws, github: FakeWithRunners, told: list[str]
) -> None:
    with pytest.raises(
        MachineError, match="its runner did not come within 1 minutes; the last of what it printed"
    ) as e:
        lifecycle(QuickClock()).start(owner())
    assert "Enabling fast FPU save and restore" in str(e.value)
    assert any("Linux version" in line for line in told)
    assert aws.instances(EAST) == [] and github.runners == []


def test_no_capacity_leaves_no_runner(
    lifecycle: Callable[..., Lifecycle], aws: FakeAws, github: FakeWithRunners
) -> None:
    aws.faults.append(Fault("RunInstances", "InsufficientInstanceCapacity", times=99))
    with pytest.raises(NoCapacity):
        lifecycle(QuickClock()).start(owner())
    assert aws.instances(EAST) == [] and github.runners == []


def test_a_machine_whose_answers_are_all_lost_is_taken_back(
    lifecycle: Callable[..., Lifecycle], aws: FakeAws, github: FakeWithRunners, told: list[str]
) -> None:
    aws.faults.append(Fault("RunInstances", times=9, drop="after"))
    with pytest.raises(MachineError, match="Connection was closed"):
        lifecycle(QuickClock()).start(owner())
    assert aws.instances(EAST) == [] and github.runners == []
    assert any(line.startswith("given back: ") for line in told)


def test_a_registration_that_fails_starts_no_machine(
    lifecycle: Callable[..., Lifecycle], aws: FakeAws, github: FakeWithRunners
) -> None:
    github.faults.append(GithubFault("POST", "generate-jitconfig", status=403, times=9, message="no admin"))
    with pytest.raises(ApiError, match="no admin"):
        lifecycle(QuickClock()).start(owner())
    assert aws.asked("RunInstances") == [] and github.runners == []


def test_a_start_that_is_asked_to_end_in_the_middle_leaves_nothing(
    lifecycle: Callable[..., Lifecycle], aws: FakeAws, github: FakeWithRunners
) -> None:
    """The signal comes while EC2 starts the machine, and no list shows it yet."""
    aws.faults.append(Fault("DescribeInstances", "InvalidInstanceID.NotFound", times=99, holds="InstanceId.1"))
    aws.before["RunInstances"] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Exception, match="interrupted by signal 15"):
        lifecycle().start(owner())
    assert len(aws.asked("RunInstances")) == 1
    assert aws.instances(EAST) == [] and github.runners == []


def test_reap_ends_what_a_starter_that_was_killed_left(
    lifecycle: Callable[..., Lifecycle], aws: FakeAws, github: FakeWithRunners
) -> None:
    provider = read_spec(YAML)[1]
    for run in (1, 2):
        provider.start(stand_in.Asker(owner=owner(run=run)).order())
    github.over.add((1, 1))
    assert lifecycle().reap(SERVER, REPOSITORY).failed == []
    (left,) = provider.list(SERVER, REPOSITORY)
    assert left.owner == owner(run=2)
