"""The workflows that start a machine, run by act: EC2 is moto's server, and the machine's job runs here."""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.machines.model import Owner

from ..github.fake import REPOSITORY
from ..machines import aws as amazon
from ..machines.aws import FakeAws, Fault
from ..machines.fake import ADMIN, FakeWithRunners
from .acting import FELL_BACK, PATH, SYMMETRIC, Ended, Repository, copy_project, examples, warm
from .conftest import Payload
from .fake_issues import FakeWithIssues
from .test_examples import put

moto_server, aws = amazon.moto_server, amazon.aws
MACHINE, REAPER = (f".github/workflows/{name}.yml" for name in ("symmem-machine", "symmem-reaper"))
LABEL = "symmem-label-of-the-test"
OWNER = Owner(server="github.com", repository=REPOSITORY, run_id=50, attempt=1, key="gpu")
REGION = "us-east-1"
pytestmark = [pytest.mark.needs_program("git"), pytest.mark.slow]


class Everything(FakeWithRunners, FakeWithIssues):
    """GitHub with runners, each online as soon as it is known."""

    def __init__(self) -> None:
        super().__init__()
        self.comes_at_once = True


@pytest.fixture
def fake() -> Iterator[Everything]:
    """At the end, no request and no answer may have broken GitHub's description."""
    made = Everything()
    yield made
    made.close()
    assert made.violations == []


@pytest.fixture(scope="module")
def action(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The action as a release has it, but for the label's random part: act is told which labels this machine has."""
    folder = copy_project(tmp_path_factory.mktemp("action"))
    file = folder / "runner" / "machines" / "lifecycle.py"
    text = file.read_text(encoding="utf-8")
    random = 'f"{name}-{secrets.token_hex(8)}"'
    assert text.count(random) == 1
    file.write_text(text.replace(random, f'"{LABEL}"'), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def packages(action: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script that gives a job the action's packages."""
    return warm(action, tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def with_boto3(action: Path, packages: Path) -> None:
    """The packages that EC2 needs, beside those that all jobs have."""
    code = "import pathlib, sys; sys.path.insert(0, sys.argv[1]); import action_start as start\n"
    code += "start.packages(pathlib.Path(sys.argv[2]), 'ec2')"
    python = shutil.which("python3", path=PATH) or "python3"
    subprocess.run([python, "-I", "-S", "-c", code, str(action / "runner"), str(packages.parent)], check=True)


@pytest.fixture
def acts(repository: Repository, aws: FakeAws, fake: Everything, with_boto3: None, payload: Payload):
    """Run a workflow for a push or a schedule, on a machine with the label that `start` gives."""
    fake.add_run(50, path=MACHINE)
    aws.spot[REGION] = {"us-east-1a": "1.5"}
    # moto has neither that subnet nor that image; both are its own.
    ec2 = aws.client("ec2", REGION)
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]

    def run(path: str, event: str = "push") -> Ended:
        file = repository.folder / path
        text = file.read_text().replace("subnet-0123456789abcdef0", subnet)
        file.write_text(text.replace("ami-0123456789abcdef0", amazon.AMI))
        return repository.act(
            event, path, payload(event), "--secret", f"SYMMEM_CHECK_RUNNER_TOKEN={ADMIN}",
            f"--platform={LABEL}=-self-hosted", AWS_ENDPOINT_URL=aws.url, AWS_EC2_METADATA_DISABLED="true",
        )  # fmt: skip

    return run


@pytest.mark.parametrize("traces", [SYMMETRIC, FELL_BACK])
def test_a_machine_is_started_for_the_check_and_given_back(
    traces: str, acts, repository: Repository, aws: FakeAws, fake: Everything
) -> None:
    put(repository, MACHINE)
    repository.traces(traces)
    ended = acts(MACHINE)
    good = traces == SYMMETRIC
    assert (ended.status == 0) == good, ended.log
    assert ("The check passed." if good else "what is asked for does not hold") in ended.log
    (call,) = aws.asked("RunInstances")
    assert call.parameters["InstanceMarketOptions.MarketType"] == "spot"
    assert aws.instances(REGION) == [] and fake.runners == []
    assert ended.log.count("took the role arn:aws:iam::123456789012:role/symmem-check") == 2
    assert "Nothing is left" not in ended.log and "a machine was started" not in ended.jobs
    assert ADMIN not in ended.log and "jitSecret" not in ended.log and fake.configuration(OWNER.name) not in ended.log


@pytest.mark.parametrize("allowed", [False, True])
def test_no_capacity_is_a_verdict_of_its_own(
    allowed: bool, acts, repository: Repository, aws: FakeAws, fake: Everything
) -> None:
    put(repository, MACHINE)
    text = (repository.folder / MACHINE).read_text()
    more = "max-hours: 1\n          capacity-minutes: 1"
    text = re.sub(r"max-hours: 1\b", more, text, count=1)
    if allowed:
        text = text.replace("      environment: machines\n", "      allow-no-capacity: true\n")
    repository.write(MACHINE, text)
    repository.traces(SYMMETRIC)
    aws.faults.append(Fault("RunInstances", "InsufficientInstanceCapacity", times=10**6))
    ended = acts(MACHINE)
    assert "InsufficientInstanceCapacity" in ended.log and aws.instances(REGION) == [] and fake.runners == []
    assert "The check passed." not in ended.log
    if allowed:  # act counts the failed job start against the whole run; what is required is gate
        assert "Nothing was checked: there was no capacity" in ended.log
        assert next(result for job, result in ended.jobs.items() if "gate" in job) == "success"
    else:
        assert ended.status != 0 and "there was no capacity, so nothing was checked" in ended.log


def test_this_repositorys_own_reaper(acts, repository: Repository, aws: FakeAws, fake: Everything) -> None:
    copy_project(repository.folder)
    machine = "\n".join(re.search(r"machine: \|\n((?:            .*\n)+)", examples()[REAPER])[1].splitlines())  # type: ignore[index]
    path = ".github/workflows/reaper.yml"
    without = repository.act("schedule", path, {"schedule": "23 * * * *"})
    assert without.status == 0 and "success" not in without.jobs.values()
    given = ("--var", f"SYMMEM_CHECK_MACHINE={textwrap.dedent(machine)}", "--var", "SYMMEM_CHECK_AWS_ROLE=arn:role")
    ended = repository.act(
        "schedule", path, {"schedule": "23 * * * *"}, *given, "--secret", f"SYMMEM_CHECK_RUNNER_TOKEN={ADMIN}",
        AWS_ENDPOINT_URL=aws.url, AWS_EC2_METADATA_DISABLED="true",
    )  # fmt: skip
    assert ended.status == 0 and "nothing is left of runs that are over" in ended.log, ended.log
    assert len(aws.asked("DescribeInstances")) == 1 and "took the role arn:role" in ended.log


def test_the_reaper_ends_what_a_run_that_is_over_left(
    acts, repository: Repository, aws: FakeAws, fake: Everything
) -> None:
    put(repository, MACHINE)
    text = (repository.folder / MACHINE).read_text()
    repository.traces(SYMMETRIC)
    aws.faults.append(Fault("TerminateInstances", "UnauthorizedOperation", times=10**6))  # stop can't end it
    ended = acts(MACHINE)
    assert ended.status != 0 and len(aws.instances(REGION)) == 1, (text, ended.log)
    aws.faults.clear()
    repository.write(REAPER, examples()[REAPER])
    assert acts(REAPER, "schedule").status == 0
    assert len(aws.instances(REGION)) == 1  # the run is not over
    fake.over.add((50, 1))
    reaped = acts(REAPER, "schedule")
    assert reaped.status == 0 and "attempt 1 of run 50 is over" in reaped.log
    assert aws.instances(REGION) == []
