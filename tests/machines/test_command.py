"""`symmem-check machine` at a terminal: what it prints, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.machines.model import Machine, Owner
from runner.report.machines import print_machines

from ..github.fake import REPOSITORY
from . import aws as amazon
from .aws import AMI, CREDENTIALS, FakeAws, Fault
from .conftest import RUN
from .fake import ADMIN, FakeWithRunners

moto_server, aws = amazon.moto_server, amazon.aws
PROJECT = Path(__file__).resolve().parent.parent.parent
OWNER = Owner(server="github.com", repository=REPOSITORY, run_id=RUN, attempt=1, key="gpu")
MACHINE = f"""\
provider: ec2
image: {AMI}
candidates: [{{type: p5.48xlarge, region: us-east-2, market: on-demand, price: 55.04}}]
limits: {{max-hours: 2, capacity-minutes: 1}}
"""
Done = subprocess.CompletedProcess


@pytest.fixture
def machine(job: dict[str, str], aws: FakeAws, github: FakeWithRunners, tmp_path: Path) -> Callable[..., Done[str]]:
    """Run a verb in a process of its own, in a job of run 4711."""
    github.comes_at_once = True
    (tmp_path / "machine.yml").write_text(MACHINE)
    environment = job | CREDENTIALS | {
        "AWS_ENDPOINT_URL": aws.url, "AWS_EC2_METADATA_DISABLED": "true", "PATH": os.environ["PATH"],
        "HOME": "/nowhere",
    }  # fmt: skip

    def run(verb: str, *arguments: str, yaml: str = str(tmp_path / "machine.yml"), **more: str) -> Done[str]:
        command = [sys.executable, "-m", "runner", "machine", verb, "--machine", yaml, *arguments]
        return subprocess.run(
            command, cwd=PROJECT, env=environment | more, capture_output=True, text=True, check=False, timeout=240
        )

    return run


def test_a_machines_life_at_the_terminal(
    machine: Callable[..., Done[str]], aws: FakeAws, github: FakeWithRunners
) -> None:
    none = machine("list")
    assert (none.returncode, none.stdout) == (0, "no machine is there\n")

    started = machine("start")
    assert started.returncode == 0, started.stderr
    (label,) = github.runners[0]["labels"]
    assert started.stdout == f"{label['name']}\n" and started.stdout.startswith(f"{OWNER.name}-")
    (instance,) = aws.instances("us-east-2")
    assert f"p5.48xlarge on-demand in us-east-2 is {instance['InstanceId']}" in started.stderr

    table = machine("list")
    heading, row = table.stdout.splitlines()
    assert " ".join(heading.split()) == "name what where id run attempt for ends itself cost"
    assert row.startswith(f"{OWNER.name}  p5.48xlarge on-demand  us-east-2  {instance['InstanceId']}  {RUN}")
    (listed,) = json.loads(machine("list", "--format", "json").stdout)
    assert listed["owner"] == {
        "server": "github.com", "repository": REPOSITORY, "run_id": RUN, "attempt": 1, "key": "gpu",
    }  # fmt: skip
    assert listed["price"] == 55.04 and 7100 < listed["deadline"] - listed["since"] < 7500

    assert machine("reap").stdout == "nothing is left of runs that are over\n"
    github.over.add((RUN, 1))
    dry = machine("reap", "--dry-run")
    assert dry.stdout.startswith(f"would end {OWNER.name}: p5.48xlarge on-demand in us-east-2")
    assert len(aws.instances("us-east-2")) == 1

    # Another job of the run, which knows nothing of what start printed.
    stopped = machine("stop")
    assert stopped.stdout.startswith(f"ended {OWNER.name}: ") and stopped.returncode == 0
    assert aws.instances("us-east-2") == [] and github.runners == []
    assert machine("stop").stdout == "nothing of that run is there\n"
    said = [started, table, dry, stopped]
    assert not any(ADMIN in one.stdout + one.stderr for one in said)


def test_a_stop_by_hand_ends_every_attempt_and_key_of_the_run(
    machine: Callable[..., Done[str]], aws: FakeAws, github: FakeWithRunners
) -> None:
    assert machine("start", "--key", "b").returncode == 0
    assert machine("start", GITHUB_RUN_ATTEMPT="2").returncode == 0
    assert machine("start", "--run", "5000").returncode == 0
    by_hand = {"GITHUB_RUN_ID": "", "GITHUB_RUN_ATTEMPT": ""}
    one = machine("stop", "--run", str(RUN), "--key", "b", **by_hand)
    assert one.stdout.count("ended ") == 1 and "-1-b:" in one.stdout
    rest = machine("stop", "--run", str(RUN), **by_hand)
    assert rest.stdout.count("ended ") == 1 and "-2-gpu:" in rest.stdout
    assert len(aws.instances("us-east-2")) == 1  # the other run's


def test_one_region_that_fails_keeps_no_other_machine(
    machine: Callable[..., Done[str]], aws: FakeAws, github: FakeWithRunners, tmp_path: Path
) -> None:
    far = MACHINE.replace("candidates: [{", f"candidates: [{{type: p5.48xlarge, region: us-west-2, image: {AMI}}}, {{")
    far = far.replace(f"image: {AMI}\n", "").replace("price: 55.04", f"price: 55.04, image: {AMI}")
    aws.faults.append(Fault("RunInstances", "InsufficientInstanceCapacity", region="us-west-2"))
    assert machine("start", yaml=far).returncode == 0
    aws.faults.append(Fault("DescribeInstances", "UnauthorizedOperation", times=99, region="us-west-2"))
    listed = machine("list", yaml=far)
    assert listed.returncode == 3 and OWNER.name in listed.stdout and "us-west-2" in listed.stderr
    stopped = machine("stop", yaml=far)
    assert stopped.returncode == 3 and stopped.stdout.startswith(f"ended {OWNER.name}: ")
    assert "could not be ended: not all regions could be asked: " in stopped.stderr
    assert aws.instances("us-east-2") == [] and github.runners == []


@pytest.mark.parametrize(
    ("verb", "change", "status", "told"),
    [
        ("start", {"SYMMEM_CHECK_RUNNER_TOKEN": ""}, 2, "no token to register runners with; set SYMMEM_CHECK_RUNNER_"),
        ("start", {"GITHUB_RUN_ID": ""}, 2, "GITHUB_RUN_ID is not set; give --run ID, whose machine it is"),
        ("list", {"GITHUB_REPOSITORY": "x"}, 2, "GITHUB_REPOSITORY is 'x'; set it to OWNER/NAME, or give --repository"),
        ("start", {"SYMMEM_CHECK_RUNNER_TOKEN": "ghs_weak"}, 2, "403: Resource not accessible by integration"),
    ],
)
def test_what_is_missing_is_named(
    verb: str, change: dict[str, str], status: int, told: str, machine: Callable[..., Done[str]], aws: FakeAws
) -> None:
    done = machine(verb, **change)
    assert (done.returncode, told in done.stderr) == (status, True), done.stderr
    assert done.stdout == "" and aws.instances("us-east-2") == []


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("provider: gcp\nlimits: {max-hours: 1}", 'machine, line 1: provider: unknown value'),
        ("provider: ec2\nimage: ami-12345678\ncandidates: []", 'machine, line 1: the key "limits" is missing'),
        ("provider: ec2\nlimits: {max-hours: 0}", "machine, line 2: limits.max-hours: must be a number of hours"),
        ("provider: ec2\nlimits: {max-hours: 200}", "limits.max-hours: must be between 0.1 and 120, and is 200"),
        ("provider: ec2\nlimits: {max-hours: 1}\nrunner: {url: 'http://x'}", 'runner: the key "sha256" is missing'),
        ("provider: ec2\nlimits: {max-hours: 1}\nfolder: /x", 'machine, line 3: unknown key'),
        ("provider: ec2\nlimits: {max-hours: 1, max_price: 3}", 'did you mean "max-price"?'),
        ("no-such-file", "no-such-file: there is no such file"),
        ("", "machine: is empty; give its YAML, or the path of a file with it"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_yaml_is_told_with_its_place(yaml: str, told: str, machine: Callable[..., Done[str]]) -> None:
    done = machine("list", yaml=yaml)
    assert done.returncode == 2 and told in done.stderr, done.stderr


def test_no_capacity_is_exit_status_4_and_leaves_nothing(
    machine: Callable[..., Done[str]], aws: FakeAws, github: FakeWithRunners
) -> None:
    aws.faults.append(Fault("RunInstances", "InsufficientInstanceCapacity", times=10**6))
    done = machine("start")
    assert done.returncode == 4 and "no capacity within 1 minutes: p5.48xlarge on-demand in us-east-2" in done.stderr
    assert github.runners == []


def test_the_list_tells_cost_and_what_is_overdue(capsys: pytest.CaptureFixture[str]) -> None:
    common = {"provider": "ssh", "id": "x", "where": "host", "what": "a host", "owner": OWNER, "since": 1000.0}
    machines = [
        Machine(**common, deadline=1000.0 + 7200, price=10.0),  # type: ignore[arg-type]
        Machine(**common, deadline=1000.0 + 1800),  # type: ignore[arg-type]
    ]
    print_machines(machines, 1000.0 + 3600)
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("1.0 h  in 1.0 h       about 10.00 USD")
    assert second.endswith("1.0 h  0.5 h overdue  -")
