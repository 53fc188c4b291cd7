"""The end is certain: the starter is killed and cancelled, and the network dropped, before and after each of its calls.

Each run starts a machine at EC2 (moto's server) for one job of a run on GitHub (the server that stands in for it), goes
wrong at one call, and is followed by what a workflow does: the run ends, and the reaper comes. Nothing may be left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from ..github.fake import REPOSITORY
from . import aws as amazon
from .aws import AMI, CREDENTIALS, FakeAws
from .conftest import RUN
from .fake import ADMIN, FakeWithRunners
from .network import Network, What, When

PROJECT = Path(__file__).resolve().parent.parent.parent
MACHINE = f"""\
provider: ec2
image: {AMI}
candidates:
  - {{type: p5.48xlarge, region: us-east-1, market: spot}}
  - {{type: p5.48xlarge, region: us-east-1, market: on-demand, price: 55.04}}
limits: {{max-hours: 1, max-price: 60, capacity-minutes: 1, register-minutes: 1}}
"""
REGION = "us-east-1"
FAULTS = [(what, when) for what in get_args(What) for when in get_args(When)]
moto_server, aws = amazon.moto_server, amazon.aws
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]  # a busy machine may be ten times slower


class Starter:
    """The commands, each a process of its own, with the calls over a network that can fail."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.log = folder / "log.txt"
        self._network = network
        self._machine = folder / "machine.yml"
        self._machine.write_text(MACHINE)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.machines.starter"], cwd=PROJECT, text=True, env=self._environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, verb: str, number: int, at: int = 0, what: What = "drop", when: When = "before") -> int:
        """Run a verb for a workflow's run, failing at one of its calls; its exit status, negative for a signal."""
        self._network.fail(at, what, when)
        environment = self._environment() | {"GITHUB_RUN_ID": str(number)}
        asked = {"arguments": [verb, "--machine", str(self._machine)], "environment": environment, "log": str(self.log)}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        self._network.starter = int(self._process.stdout.readline())
        self._network.ready.set()
        return int(self._process.stdout.readline())

    def _environment(self) -> dict[str, str]:
        return CREDENTIALS | {
            "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_RUN_ATTEMPT": "1", "GITHUB_API_URL": self._network.url("github"),
            "AWS_ENDPOINT_URL": self._network.url("aws"), "AWS_EC2_METADATA_DISABLED": "true",
            "SYMMEM_CHECK_RUNNER_TOKEN": ADMIN, "HOME": "/nonexistent", "PATH": os.environ["PATH"],
        }  # fmt: skip

    def close(self) -> None:
        """End the process that makes the others."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


@pytest.fixture
def network(aws: FakeAws, github: FakeWithRunners) -> Iterator[Network]:
    made = Network(aws=aws.url, github=github.url)
    yield made
    made.close()


@pytest.fixture
def starter(network: Network, tmp_path: Path) -> Iterator[Starter]:
    made = Starter(network, tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def comes_at_once(github: FakeWithRunners, aws: FakeAws) -> None:
    """Each runner is online as soon as it is known: no machine really runs here. Spot costs 20 dollars."""
    github.comes_at_once = True
    github.job = None
    aws.spot[REGION] = {"us-east-1a": "20.0"}


def left(aws: FakeAws, github: FakeWithRunners) -> list[str]:
    """What costs money, and what GitHub still knows."""
    return [str(one["InstanceId"]) for one in aws.instances(REGION)] + github.names()


@pytest.mark.parametrize("spot", [True, False], ids=["spot", "no spot"])
def test_nothing_is_left_wherever_the_start_goes_wrong(
    spot: bool, starter: Starter, network: Network, aws: FakeAws, github: FakeWithRunners,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    """With spot capacity, and without, so that the second candidate's calls come too."""
    if not spot:
        aws.faults.append(amazon.Fault("RunInstances", "InsufficientInstanceCapacity", times=10**6, market="spot"))
    number = RUN
    assert starter.run("start", number) == 0, starter.log.read_text()
    calls = len(network.calls)
    assert calls >= 8 and len(left(aws, github)) == 2
    assert starter.run("stop", number) == 0 and left(aws, github) == []
    runs, unfinished, leaks = 0, 0, []
    for what, when in FAULTS:
        for at in range(1, calls + 1):
            number += 1
            status = starter.run("start", number, at, what, when)
            runs += 1
            assert what != "kill" or status == -9
            if what == "cancel" and status != 0:
                assert status == 130, starter.log.read_text()[-2000:]
                assert left(aws, github) == [], f"a cancel at call {at} was not given back"
            unfinished += bool(left(aws, github)) and status != 0
            github.over.add((number, 1))
            starter.run("reap", number)
            leaks += [f"{what} {when} call {at}: {one}" for one in left(aws, github)]
    record_property("faults", f"start, {'spot' if spot else 'on demand'}: {runs} runs, {unfinished} of them left "
                    f"something for the reaper, {len(leaks)} leaks")  # fmt: skip
    assert leaks == []


@pytest.mark.parametrize("verb", ["stop", "reap"])
def test_an_end_that_goes_wrong_is_made_good_by_the_next_one(
    verb: str, starter: Starter, network: Network, aws: FakeAws, github: FakeWithRunners,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    number = RUN
    assert starter.run("start", number) == 0
    github.over.add((number, 1))
    assert starter.run(verb, number) == 0 and left(aws, github) == []
    calls = len(network.calls)
    assert calls >= 4
    runs, unfinished, leaks = 0, 0, []
    for what, when in FAULTS[:4]:  # a cancelled end is ended as by a kill, only more politely
        for at in range(1, calls + 1):
            number += 1
            assert starter.run("start", number) == 0
            github.over.add((number, 1))
            starter.run(verb, number, at, what, when)
            runs += 1
            unfinished += bool(left(aws, github))
            starter.run("reap", number)
            leaks += [f"{what} {when} call {at}: {one}" for one in left(aws, github)]
    record_property("faults", f"{verb}: {runs} runs, {unfinished} of them left something for the reaper, "
                    f"{len(leaks)} leaks")  # fmt: skip
    assert leaks == []
