"""Machines of EC2, against moto: which candidate is taken, what is asked of AWS, and that nothing is left."""

from __future__ import annotations

import subprocess
import time

import pytest

from runner.errors import UserError
from runner.machines.ec2_aws import AwsError
from runner.machines.ec2_launch import USER_DATA_BYTES
from runner.machines.model import Machine, MachineError, NoCapacity

from . import aws as stand_in
from .aws import AMI, JIT, OTHER_AMI, SERVER, Asker, FakeAws, Fault, ec2, owner
from .fake import ADMIN, REPOSITORY

moto_server, aws = stand_in.moto_server, stand_in.aws

EAST, WEST = "us-east-2", "us-west-2"
SPOT = f"type: p5.48xlarge, region: {EAST}, market: spot"
ON_DEMAND = f"type: p5.48xlarge, region: {EAST}, price: 98.32"
FAR = f"type: p4d.24xlarge, region: {WEST}, price: 32.77, image: {AMI}"
FULL = "InsufficientInstanceCapacity"


def tags_of(instance: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance["Tags"]}


def tried(aws: FakeAws) -> list[tuple[str, str, str]]:
    """What RunInstances was asked for: region, type, market."""
    return [
        (
            call.region,
            call.parameters["InstanceType"],
            call.parameters.get("InstanceMarketOptions.MarketType", "on-demand"),
        )
        for call in aws.asked("RunInstances")
    ]


def test_the_first_candidate_is_taken_and_bears_its_marks_from_its_first_moment(aws: FakeAws) -> None:
    before = time.time()
    asker = Asker()
    machine = ec2(ON_DEMAND, FAR).start(asker.order())
    (instance,) = aws.instances(EAST)
    assert machine == Machine(
        provider="ec2", id=instance["InstanceId"], where=EAST, what="p5.48xlarge on-demand", owner=owner(),
        since=instance["LaunchTime"].timestamp(), deadline=machine.deadline, price=98.32,
    )  # fmt: skip
    assert before + 7200 - 1 <= machine.deadline <= time.time() + 7200
    name = owner().name
    marks = {
        "Name": name, "symmem-check:machine": name, "symmem-check:server": SERVER,
        "symmem-check:repository": REPOSITORY, "symmem-check:run": "4711", "symmem-check:attempt": "1",
        "symmem-check:key": "gpu", "symmem-check:market": "on-demand", "symmem-check:price": "98.32",
        "symmem-check:deadline": f"{machine.deadline:.0f}",
    }  # fmt: skip
    assert tags_of(instance) == marks
    (volume,) = aws.client("ec2", EAST).describe_volumes()["Volumes"]
    assert tags_of(volume) == marks
    assert aws.asked("CreateTags") == [] and asker.registered == 1


def test_the_machine_is_bound_in_what_it_may(aws: FakeAws) -> None:
    ec2(ON_DEMAND, more=f"image: {AMI}\ndisk-gb: 321").start(Asker().order())
    (instance,) = aws.instances(EAST)
    assert instance["ImageId"] == AMI
    assert (instance["MetadataOptions"]["HttpTokens"], instance["MetadataOptions"]["HttpPutResponseHopLimit"]) == (
        "required", 1,
    )  # fmt: skip
    assert instance["MetadataOptions"]["InstanceMetadataTags"] == "disabled"
    assert "IamInstanceProfile" not in instance and "KeyName" not in instance
    ending = aws.client("ec2", EAST).describe_instance_attribute(
        InstanceId=instance["InstanceId"], Attribute="instanceInitiatedShutdownBehavior"
    )
    assert ending["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    (disk,) = instance["BlockDeviceMappings"]
    assert disk["DeviceName"] == instance["RootDeviceName"] and disk["Ebs"]["DeleteOnTermination"]
    (volume,) = aws.client("ec2", EAST).describe_volumes()["Volumes"]
    assert (volume["Size"], volume["Encrypted"]) == (321, True)


def test_the_place_and_the_market_are_asked_for(aws: FakeAws) -> None:
    client = aws.client("ec2", EAST)
    subnet = client.describe_subnets()["Subnets"][0]["SubnetId"]
    group = client.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    for more in (
        f"zone: {EAST}b, market: spot",
        f"subnet: {subnet}, security-groups: [{group}]",
        "market: reservation, reservation: cr-0a1b2c3d",
        "market: block, reservation: cr-0a1b2c3d",
    ):
        ec2(f"type: p5.48xlarge, region: {EAST}, {more}").start(Asker().order())
    spot, placed, reserved, block = (call.parameters for call in aws.asked("RunInstances"))
    options = "InstanceMarketOptions.SpotOptions."
    assert spot["Placement.AvailabilityZone"] == f"{EAST}b"
    assert (spot[f"{options}SpotInstanceType"], spot[f"{options}InstanceInterruptionBehavior"]) == (
        "one-time", "terminate",
    )  # fmt: skip
    assert [spot[f"TagSpecification.{number}.ResourceType"] for number in (1, 2, 3)] == [
        "instance", "volume", "spot-instances-request",
    ]  # fmt: skip
    assert (placed["SubnetId"], placed["SecurityGroupId.1"]) == (subnet, group)
    target = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    assert reserved[target] == block[target] == "cr-0a1b2c3d"
    assert "InstanceMarketOptions.MarketType" not in reserved
    assert block["InstanceMarketOptions.MarketType"] == "capacity-block"


def test_user_data_is_the_bootstrap_script_with_the_configuration_and_no_other_secret(
    aws: FakeAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMMEM_CHECK_RUNNER_TOKEN", ADMIN)
    asker = Asker()
    machine = ec2(ON_DEMAND, more=f"image: {AMI}\nuser: ubuntu").start(asker.order())
    script = stand_in.script_of(aws, EAST, machine.id)
    assert script.startswith("#!/bin/bash\n") and len(script) <= USER_DATA_BYTES
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    lines = script.splitlines()
    for line in (f"JIT={JIT}", "DEADLINE=7200", "RUN_AS=ubuntu", "POWER_OFF=1", "WORK=/var/lib/symmem-check"):
        assert line in lines
    assert ADMIN not in script and "secretThatNoLogMayShow" not in script.replace(JIT, "")
    assert not any("jitSecret" in line for line in asker.told) and "jitSecret" not in repr(machine)


def test_user_data_that_is_too_long_is_refused_before_the_call(aws: FakeAws) -> None:
    asker = Asker(jit=["A" * USER_DATA_BYTES])
    with pytest.raises(MachineError, match=f"more than the {USER_DATA_BYTES} that EC2 takes"):
        ec2(ON_DEMAND).start(asker.order())
    assert aws.asked("RunInstances") == []


@pytest.mark.parametrize(
    "code",
    [
        FULL, "InsufficientReservedInstanceCapacity", "ReservationCapacityExceeded", "SpotMaxPriceTooLow",
        "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded", "VcpuLimitExceeded", "Unsupported",
        "InsufficientFreeAddressesInSubnet",
    ],
)  # fmt: skip
def test_a_candidate_that_is_not_to_be_had_is_passed_over_at_once(code: str, aws: FakeAws) -> None:
    """EC2 answers some of these with status 500, which botocore alone would ask again and again for."""
    aws.faults.append(Fault("RunInstances", code, status=500, market="spot"))
    asker = Asker()
    machine = ec2(SPOT, ON_DEMAND, FAR).start(asker.order())
    assert machine.what == "p5.48xlarge on-demand"
    assert tried(aws) == [(EAST, "p5.48xlarge", "spot"), (EAST, "p5.48xlarge", "on-demand")]
    assert asker.pauses == [] and asker.told == [f"not to be had: p5.48xlarge spot in {EAST}: {code}"]


def test_a_machine_that_ends_as_it_begins_for_lack_of_room_is_passed_over_too(aws: FakeAws) -> None:
    aws.faults.append(Fault("RunInstances", market="spot", ends=f"Server.{FULL}"))
    machine = ec2(SPOT, FAR).start(Asker().order())
    assert (machine.where, machine.what) == (WEST, "p4d.24xlarge on-demand")
    assert aws.instances(EAST) == [] and len(aws.instances(WEST)) == 1


def test_a_machine_that_ends_as_it_begins_for_another_reason_is_a_failure(aws: FakeAws) -> None:
    aws.faults.append(Fault("RunInstances", ends="Client.InternalError"))
    with pytest.raises(MachineError, match=rf"i-[0-9a-f]+ in {EAST} ended as it began: Client.InternalError"):
        ec2(ON_DEMAND, FAR).start(Asker().order())


def test_where_all_is_full_each_candidate_is_named_with_its_reason(aws: FakeAws) -> None:
    aws.faults.append(Fault("RunInstances", FULL, times=99, region=EAST, message="no p5\nin that zone"))
    aws.faults.append(Fault("RunInstances", "VcpuLimitExceeded", times=99, region=WEST))
    asker = Asker()
    with pytest.raises(NoCapacity, match=r"^no capacity within 1 minutes: ") as caught:
        ec2(SPOT, ON_DEMAND, FAR, limits="max-hours: 2, capacity-minutes: 1").start(asker.order())
    said = str(caught.value)
    assert caught.value.exit_status == 4 and "\n" not in said
    for candidate in (f"p5.48xlarge spot in {EAST}", f"p5.48xlarge on-demand in {EAST}"):
        assert f"{candidate}: RunInstances in {EAST}: {FULL}: no p5 in that zone" in said
    assert f"p4d.24xlarge on-demand in {WEST}: RunInstances in {WEST}: VcpuLimitExceeded" in said
    # Three rounds of three within the minute, each by a token of its own: EC2 remembers what a token got.
    assert asker.pauses == [30, 30] and len(tried(aws)) == 9
    assert len({call.parameters["ClientToken"] for call in aws.asked("RunInstances")}) == 9


def test_capacity_that_comes_while_waiting_is_taken(aws: FakeAws) -> None:
    aws.faults.append(Fault("RunInstances", FULL, times=2))
    asker = Asker()
    assert ec2(ON_DEMAND, FAR).start(asker.order()).where == EAST
    assert asker.pauses == [30]


def test_what_is_sold_nowhere_that_was_asked_for_is_the_callers_to_change(aws: FakeAws) -> None:
    aws.faults.append(Fault("RunInstances", "Unsupported", times=9))
    asker = Asker()
    with pytest.raises(UserError, match=r"no candidate is offered where it was asked for: p5\.48xlarge spot") as caught:
        ec2(SPOT, ON_DEMAND).start(asker.order())
    assert caught.value.exit_status == 2 and asker.pauses == []


def test_what_is_never_to_be_had_is_not_asked_for_again(aws: FakeAws) -> None:
    aws.faults.append(Fault("RunInstances", "Unsupported", region=EAST))
    aws.faults.append(Fault("RunInstances", FULL, region=WEST))
    assert ec2(ON_DEMAND, FAR).start(Asker().order()).where == WEST
    assert [region for region, _, _ in tried(aws)] == [EAST, WEST, WEST]


def test_another_refusal_ends_the_search(aws: FakeAws) -> None:
    aws.faults.append(Fault("RunInstances", "InvalidParameterCombination", message="not with that"))
    with pytest.raises(AwsError, match=f"^RunInstances in {EAST}: InvalidParameterCombination: not with that$"):
        ec2(ON_DEMAND, FAR).start(Asker().order())
    assert len(tried(aws)) == 1


def test_an_image_by_parameter_is_that_of_each_region(aws: FakeAws) -> None:
    for region, ami in ((EAST, AMI), (WEST, OTHER_AMI)):
        aws.client("ssm", region).put_parameter(Name="/gpu/image", Value=ami, Type="String")
    aws.faults.append(Fault("RunInstances", FULL, times=3, region=EAST))
    provider = ec2(SPOT, ON_DEMAND, f"type: p4d.24xlarge, region: {WEST}", more="image: {ssm: /gpu/image}")
    asker = Asker()
    provider.start(asker.order())
    assert [call.parameters["ImageId"] for call in aws.asked("RunInstances")] == [AMI, AMI, OTHER_AMI]
    assert [call.region for call in aws.asked("GetParameter")] == [EAST, WEST]


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("image: {ssm: /none}", f"GetParameter in {EAST}: ParameterNotFound"),
        ("image: {ssm: /gpu/text}", f"the SSM parameter /gpu/text in {EAST} is no image's id"),
        ("image: ami-0123456789abcdef0", f"DescribeImages in {EAST}: InvalidAMIID.NotFound"),
    ],
)
def test_an_image_that_is_not_there_is_told_before_a_runner_is_made_known(image: str, said: str, aws: FakeAws) -> None:
    aws.client("ssm", EAST).put_parameter(Name="/gpu/text", Value="ubuntu", Type="String")
    asker = Asker()
    with pytest.raises(MachineError) as caught:
        ec2(ON_DEMAND, more=image).start(asker.order())
    assert said in str(caught.value) and asker.registered == 0


@pytest.mark.parametrize("drop", ["before", "after"])
def test_a_lost_answer_is_asked_for_again_by_the_same_token(drop: str, aws: FakeAws) -> None:
    aws.faults.append(Fault("RunInstances", drop=drop))
    asker = Asker()
    machine = ec2(ON_DEMAND).start(asker.order())
    assert [instance["InstanceId"] for instance in aws.instances(EAST)] == [machine.id]
    first, second = aws.asked("RunInstances")
    assert first.parameters == second.parameters and 0 < len(first.parameters["ClientToken"]) <= 64
    assert asker.pauses == [2]


def test_another_script_has_another_token(aws: FakeAws) -> None:
    """EC2 refuses a token that comes again with other user data, as where the registration was made anew."""
    aws.faults.append(Fault("RunInstances", FULL))
    ec2(ON_DEMAND, FAR).start(Asker(jit=["one", "two"]).order())
    first, second = (call.parameters["ClientToken"] for call in aws.asked("RunInstances"))
    assert first != second


def test_what_an_aws_without_memory_started_twice_is_found_by_its_marks(aws: FakeAws) -> None:
    aws.forgets = True
    aws.faults.append(Fault("RunInstances", drop="after"))
    provider = ec2(ON_DEMAND)
    machine = provider.start(Asker().order())
    listed = provider.list(SERVER, REPOSITORY)
    assert len(listed) == 2 and machine in [one for one in listed if one.id == machine.id]
    for one in listed:
        provider.stop(one)
    assert aws.instances(EAST) == []


def test_a_connection_that_never_works_ends_in_words(aws: FakeAws) -> None:
    aws.faults.append(Fault("RunInstances", times=9, drop="before"))
    asker = Asker()
    with pytest.raises(MachineError, match=f"^RunInstances in {EAST}: Connection was closed"):
        ec2(ON_DEMAND).start(asker.order())
    assert asker.pauses == [2, 4, 8]


def test_throttling_is_waited_out(aws: FakeAws) -> None:
    aws.faults.append(Fault("RunInstances", "RequestLimitExceeded", times=2, status=503))
    aws.faults.append(Fault("DescribeInstances", "RequestLimitExceeded", status=503))
    asker = Asker()
    ec2(ON_DEMAND).start(asker.order())
    assert asker.pauses == [2, 4] and len(aws.instances(EAST)) == 1


def test_a_machine_that_ec2_does_not_know_yet_is_waited_for(aws: FakeAws) -> None:
    aws.faults.append(Fault("DescribeInstances", "InvalidInstanceID.NotFound", times=2))
    asker = Asker()
    ec2(ON_DEMAND).start(asker.order())
    assert asker.pauses == [3, 3] and len(aws.instances(EAST)) == 1


def test_a_start_that_is_asked_to_end_ends_the_machine_that_no_list_shows_yet(aws: FakeAws) -> None:
    aws.faults.append(Fault("DescribeInstances", "InvalidInstanceID.NotFound", times=2))
    aws.faults.append(Fault("TerminateInstances", "InvalidInstanceID.NotFound"))
    with pytest.raises(KeyboardInterrupt):
        ec2(ON_DEMAND).start(Asker(interrupt=KeyboardInterrupt()).order())
    assert aws.instances(EAST) == [] and len(aws.asked("TerminateInstances")) == 2


def test_the_runners_configuration_is_in_no_error(aws: FakeAws) -> None:
    aws.faults.append(Fault("RunInstances", "MalformedSomething"))
    with pytest.raises(AwsError) as caught:
        ec2(ON_DEMAND).start(Asker().order())
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert "jitSecret" not in str(caught.value)
