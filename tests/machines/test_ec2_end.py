"""Machines of EC2 that are there: found by their marks alone, ended, and asked what they printed."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import msgspec
import pytest

from runner.errors import UserError
from runner.machines.ec2_aws import AwsError
from runner.machines.model import Machine, MachineError

from . import aws as stand_in
from .aws import AMI, SERVER, Asker, FakeAws, Fault, ec2, owner, price_entry
from .fake import REPOSITORY

moto_server, aws = stand_in.moto_server, stand_in.aws

EAST, WEST = "us-east-2", "us-west-2"
P5 = f"type: p5.48xlarge, region: {EAST}, price: 98.32"
SPOT = f"type: p5.48xlarge, region: {EAST}, market: spot"
FAR = f"type: p4d.24xlarge, region: {WEST}, market: spot, image: {AMI}"


def started(candidate: str = P5, **of: object) -> Machine:
    return ec2(candidate).start(Asker(owner=owner(**of)).order())  # type: ignore[arg-type]


def gone(machine: Machine) -> Machine:
    return msgspec.structs.replace(machine, id="i-0123456789abcdef0", since=time.time() - 3600)


def test_machines_of_all_regions_are_found_and_those_of_others_are_not(aws: FakeAws) -> None:
    mine, far = started(), started(FAR, attempt=2, key="other")
    started(repository="octo/other")
    aws.client("ec2", EAST).run_instances(ImageId=AMI, MinCount=1, MaxCount=1)
    provider = ec2(P5, SPOT, FAR)
    assert provider.list(SERVER, REPOSITORY) == [mine, far]
    assert provider.list(SERVER, REPOSITORY.upper()) == [
        msgspec.structs.replace(one, owner=msgspec.structs.replace(one.owner, repository=REPOSITORY.upper()))
        for one in (mine, far)
    ]
    assert provider.list("github.example", REPOSITORY) == []
    assert [call.region for call in aws.asked("DescribeInstances")[-2:]] == [EAST, WEST]


def test_more_machines_than_a_page_holds_are_found(aws: FakeAws) -> None:
    client = aws.client("ec2", EAST)
    marks = [{"Key": "symmem-check:machine", "Value": owner().name}]
    for _ in range(101):  # moto's page is a hundred reservations
        client.run_instances(
            ImageId=AMI, MinCount=1, MaxCount=1, TagSpecifications=[{"ResourceType": "instance", "Tags": marks}]
        )
    assert len(ec2(P5).list(SERVER, REPOSITORY)) == 101


@pytest.mark.parametrize("state", ["stopped", "terminated"])
def test_a_machine_counts_until_it_is_ended(state: str, aws: FakeAws) -> None:
    machine = started()
    client = aws.client("ec2", EAST)
    (client.stop_instances if state == "stopped" else client.terminate_instances)(InstanceIds=[machine.id])
    assert [one.id for one in ec2(P5).list(SERVER, REPOSITORY)] == ([machine.id] if state == "stopped" else [])


def test_marks_that_somebody_changed_do_not_hide_a_machine(aws: FakeAws) -> None:
    machine = started()
    client = aws.client("ec2", EAST)
    changed = {"Name": "mine now", "symmem-check:deadline": "soon", "symmem-check:price": "much"}
    client.create_tags(Resources=[machine.id], Tags=[{"Key": key, "Value": text} for key, text in changed.items()])
    (found,) = ec2(P5).list(SERVER, REPOSITORY)
    assert (found.owner, found.price, found.deadline) == (machine.owner, None, machine.since + 120 * 3600)


def test_a_stopped_machine_is_terminated_and_its_spot_request_cancelled(aws: FakeAws) -> None:
    machine = started(SPOT)
    provider = ec2(SPOT)
    provider.stop(machine)
    assert aws.instances(EAST) == [] and aws.client("ec2", EAST).describe_volumes()["Volumes"] == []
    (call,) = aws.asked("CancelSpotInstanceRequests")
    assert call.parameters["SpotInstanceRequestId.1"] == "sir-1234abcd"
    provider.stop(machine)


def test_a_machine_that_is_no_spot_machine_has_no_request_to_cancel(aws: FakeAws) -> None:
    ec2(P5).stop(started())
    assert aws.instances(EAST) == [] and aws.asked("CancelSpotInstanceRequests") == []


def test_a_machine_or_a_request_that_is_gone_is_ended(aws: FakeAws) -> None:
    machine = started(SPOT)
    aws.faults.append(Fault("CancelSpotInstanceRequests", "InvalidSpotInstanceRequestID.NotFound"))
    ec2(SPOT).stop(machine)
    ec2(SPOT).stop(gone(machine))
    assert aws.instances(EAST) == [] and len(aws.asked("TerminateInstances")) == 2


def test_what_can_not_be_ended_is_a_failure_and_the_machine_is_still_listed(aws: FakeAws) -> None:
    machine = started()
    aws.faults.append(
        Fault("TerminateInstances", "UnauthorizedOperation", status=403,
              message="You are not authorized. Encoded authorization failure message: " + "x" * 500)
    )  # fmt: skip
    with pytest.raises(MachineError) as caught:
        ec2(P5).stop(machine)
    assert str(caught.value) == (
        f"TerminateInstances in {EAST}: UnauthorizedOperation: You are not authorized.; "
        "the role needs what docs/machines/ec2.md lists"
    )
    assert ec2(P5).list(SERVER, REPOSITORY) == [machine]


def test_a_machine_is_ended_first_and_whatever_else_fails(aws: FakeAws) -> None:
    machine = started(SPOT)
    aws.faults.append(Fault("CancelSpotInstanceRequests", "InvalidParameter"))
    with pytest.raises(MachineError, match="CancelSpotInstanceRequests"):
        ec2(SPOT).stop(machine)
    assert aws.instances(EAST) == []


def test_the_journal_is_the_console_the_latest_where_there_is_that(aws: FakeAws) -> None:
    machine = started()
    assert "Linux version" in ec2(P5).journal(machine)
    assert aws.asked("GetConsoleOutput")[-1].parameters["Latest"] == "true"
    aws.faults.append(Fault("GetConsoleOutput", "UnsupportedOperation"))
    assert "Linux version" in ec2(P5).journal(machine)
    assert "Latest" not in aws.asked("GetConsoleOutput")[-1].parameters


def test_the_journal_ends_with_why_ec2_ended_the_machine(aws: FakeAws) -> None:
    machine = started()
    ec2(P5).stop(machine)
    assert ec2(P5).journal(machine).splitlines()[-1] == (
        "EC2 ended it: Client.UserInitiatedShutdown: User initiated shutdown"
    )


def test_a_journal_of_a_machine_that_is_gone_is_a_failure(aws: FakeAws) -> None:
    with pytest.raises(MachineError, match=f"^GetConsoleOutput in {EAST}: InvalidInstanceID"):
        ec2(P5).journal(gone(started()))


def test_missing_credentials_are_one_sentence(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError) as caught:
        ec2(P5).list(SERVER, REPOSITORY)
    assert str(caught.value) == (
        "there are no AWS credentials here; get them in the starting job, by aws-actions/configure-aws-credentials"
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    with pytest.raises(UserError, match="there are no AWS credentials here"):
        ec2(P5).start(Asker().order())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("RequestExpired", "^the AWS credentials have expired "),
        ("ExpiredTokenException", "^the AWS credentials have expired "),
        ("AuthFailure", "^AWS does not take the credentials: they are wrong, or the account has that region disabled "),
    ],
)
def test_credentials_that_no_longer_hold_are_told(code: str, said: str, aws: FakeAws) -> None:
    aws.faults.append(Fault("DescribeInstances", code, message="no\nmore"))
    with pytest.raises(AwsError, match=said) as caught:
        ec2(P5).list(SERVER, REPOSITORY)
    assert f"DescribeInstances in {EAST}: {code}: no more" in str(caught.value)
    assert "secretThatNoLogMayShow" not in str(caught.value)


def test_throttling_and_a_broken_connection_are_tried_again(aws: FakeAws) -> None:
    machine = started()
    aws.faults.append(Fault("DescribeInstances", "RequestLimitExceeded", status=503))
    aws.faults.append(Fault("DescribeInstances", drop="before"))
    assert ec2(P5).list(SERVER, REPOSITORY) == [machine]
    aws.faults.append(Fault("TerminateInstances", drop="after"))
    ec2(P5).stop(machine)
    assert aws.instances(EAST) == []


def test_an_aws_that_is_not_there_is_told_in_one_line(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # the discard port, where nothing listens
    with pytest.raises(MachineError, match=f"^DescribeInstances in {EAST}: Could not connect") as caught:
        ec2(P5).list(SERVER, REPOSITORY)
    assert "\n" not in str(caught.value)


def test_an_answer_that_is_none_of_awss_is_told_in_one_line(aws: FakeAws) -> None:
    aws.own["DescribeInstances"] = (200, "text/html", b"<html>\n<p>Please log in")
    with pytest.raises(MachineError, match=f"^DescribeInstances in {EAST}: Unable to parse response") as caught:
        ec2(P5).list(SERVER, REPOSITORY)
    assert "\n" not in str(caught.value)


def test_without_boto3_the_mend_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("boto3", "botocore"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"pip install 'symmem-check\[ec2\]'"):
        ec2(P5).list(SERVER, REPOSITORY)


def test_the_policy_of_the_page_names_every_call_that_is_made(aws: FakeAws, project: Path) -> None:
    aws.client("ssm", EAST).put_parameter(Name="/gpu/image", Value=AMI, Type="String")
    aws.price_list["p5.48xlarge", EAST] = [price_entry("98")]
    aws.spot[EAST] = {f"{EAST}a": "20"}
    on_demand = f"type: p5.48xlarge, region: {EAST}"
    provider = ec2(on_demand, SPOT, limits="max-hours: 1, max-price: 40", more="image: {ssm: /gpu/image}")
    machine = provider.start(Asker().order())
    provider.journal(machine)
    provider.list(SERVER, REPOSITORY)
    provider.stop(machine)
    services = {"GetProducts": "pricing", "GetParameter": "ssm"}
    made = {f"{services.get(call.action, 'ec2')}:{call.action}" for call in aws.calls}
    page = (project / "docs" / "machines" / "ec2.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:ec2|ssm|pricing):(?:Describe|Get|Run|Terminate|Cancel)[A-Za-z]+", page))
    assert len(made) == 9 and named == made
