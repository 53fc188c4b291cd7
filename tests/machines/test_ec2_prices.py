"""The guard of the price: what costs more than the limit is refused before anything starts, and so is what nobody
can tell the price of."""

from __future__ import annotations

import pytest

from runner.errors import UserError
from runner.machines.ec2_aws import AwsError
from runner.machines.model import Limits, MachineError

from . import aws as stand_in
from .aws import Asker, FakeAws, Fault, ec2, price_entry

moto_server, aws = stand_in.moto_server, stand_in.aws

P5 = "type: p5.48xlarge, region: us-east-2"
SPOT = f"{P5}, market: spot"
LIMITED = "max-hours: 2, max-price: 40"


def asker(most: float = 40.0) -> Asker:
    return Asker(limits=Limits(max_hours=2, max_price=most, capacity_minutes=1))


def refusal(*candidates: str) -> str:
    with pytest.raises(UserError, match=r"^max-price is 40 USD an hour: ") as caught:
        ec2(*candidates, limits=LIMITED).check()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_limit_nothing_is_looked_up(aws: FakeAws) -> None:
    ec2(P5, SPOT).check()
    assert aws.calls == []


def test_the_price_in_the_file_wins_and_needs_no_permission(aws: FakeAws) -> None:
    ec2(f"{P5}, price: 40", f"{SPOT}, price: 12.5", limits=LIMITED).check()
    assert "p5.48xlarge on-demand in us-east-2: 40.01 USD an hour" in refusal(f"{P5}, price: 40.01")
    assert aws.calls == []


def test_the_list_price_is_that_of_the_region_and_the_dearest_entry_counts(aws: FakeAws) -> None:
    aws.price_list["p5.48xlarge", "us-east-2"] = [price_entry("39.5"), price_entry("40.5")]
    assert "p5.48xlarge on-demand in us-east-2: 40.5 USD an hour" in refusal(P5)
    aws.price_list["p5.48xlarge", "us-east-2"].pop()
    provider = ec2(P5, limits=LIMITED)
    provider.check()
    assert {call.region for call in aws.asked("GetProducts")} == {"us-east-1"}
    assert provider.start(asker().order()).price == 39.5


def test_a_reservation_costs_as_on_demand_and_a_block_only_what_the_file_says(aws: FakeAws) -> None:
    aws.price_list["p5.48xlarge", "us-east-2"] = [price_entry("99"), price_entry("1", market="CapacityBlock")]
    reserved = "reservation: cr-0a1b2c3d"
    said = refusal(f"{P5}, market: reservation, {reserved}", f"{P5}, market: block, {reserved}")
    assert "p5.48xlarge reservation in us-east-2: 99 USD an hour" in said
    assert "p5.48xlarge block in us-east-2: its price is not known; say it by the candidate's key price" in said
    ec2(f"{P5}, market: block, {reserved}, price: 31", limits=LIMITED).check()


@pytest.mark.parametrize(
    "entry",
    [price_entry("0.0000000000"), price_entry("nan"), price_entry("?"), price_entry("9", unit="Quantity"), "{}", "["],
)
def test_a_price_that_is_none_passes_no_limit(entry: str, aws: FakeAws) -> None:
    aws.price_list["p5.48xlarge", "us-east-2"] = [entry]
    assert "its price is not known" in refusal(P5)


def test_a_type_that_is_not_in_the_list_has_no_known_price(aws: FakeAws) -> None:
    assert "p5.48xlarge on-demand in us-east-2: its price is not known" in refusal(P5)
    assert "p5.48xlarge spot in us-east-2: its price is not known" in refusal(SPOT)


def test_a_spot_price_is_that_of_the_zone_or_of_the_zones_within_the_limit(aws: FakeAws) -> None:
    aws.spot["us-east-2"] = {"us-east-2a": "41", "us-east-2b": "20", "us-east-2c": "30"}
    assert "in us-east-2a: 41 USD an hour" in refusal(f"{SPOT}, zone: us-east-2a")
    assert ec2(f"{SPOT}, zone: us-east-2b", limits=LIMITED).start(asker().order()).price == 20
    provider = ec2(SPOT, limits=LIMITED)
    provider.check()
    assert provider.start(asker().order()).price == 30
    aws.spot["us-east-2"] = {"us-east-2a": "55", "us-east-2b": "50"}
    assert "p5.48xlarge spot in us-east-2: 50 USD an hour" in refusal(SPOT)


def test_the_limit_is_the_bid_for_a_spot_machine(aws: FakeAws) -> None:
    """So it holds too where the price rises between the look and the start."""
    aws.spot["us-east-2"] = {"us-east-2a": "20"}
    ec2(SPOT, limits=LIMITED).start(asker().order())
    (call,) = aws.asked("RunInstances")
    assert call.parameters["InstanceMarketOptions.SpotOptions.MaxPrice"] == "40.000000"
    ec2(SPOT).start(Asker().order())
    assert "InstanceMarketOptions.SpotOptions.MaxPrice" not in aws.asked("RunInstances")[1].parameters


def test_a_dear_candidate_is_left_out_and_told_and_the_next_is_taken(aws: FakeAws) -> None:
    aws.spot["us-east-2"] = {"us-east-2a": "12"}
    asked = asker()
    machine = ec2(f"{P5}, price: 98", SPOT, limits=LIMITED).start(asked.order())
    assert (machine.what, machine.price) == ("p5.48xlarge spot", 12)
    assert asked.told == ["left out: p5.48xlarge on-demand in us-east-2: 98 USD an hour"]
    assert len(aws.asked("RunInstances")) == 1


def test_start_holds_the_limit_where_nobody_checked_before(aws: FakeAws) -> None:
    asked = asker()
    with pytest.raises(UserError, match="98 USD an hour"):
        ec2(f"{P5}, price: 98", limits=LIMITED).start(asked.order())
    assert aws.asked("RunInstances") == [] and asked.registered == 0


def test_who_may_not_look_is_told_what_would_do(aws: FakeAws) -> None:
    aws.faults.append(Fault("GetProducts", "AccessDeniedException", message="User: x is not authorized"))
    aws.faults.append(Fault("DescribeSpotPriceHistory", "UnauthorizedOperation", status=403))
    said = refusal(P5, SPOT)
    assert "GetProducts in us-east-1: AccessDeniedException: User: x is not authorized" in said
    assert "or say it by the candidate's key price" in said and "DescribeSpotPriceHistory" in said


def test_a_list_that_can_not_be_asked_is_a_failure_and_no_refusal(aws: FakeAws) -> None:
    aws.faults.append(Fault("GetProducts", "InvalidParameterException"))
    with pytest.raises(AwsError, match="GetProducts in us-east-1: InvalidParameterException") as caught:
        ec2(P5, limits=LIMITED).check()
    assert isinstance(caught.value, MachineError) and caught.value.exit_status == 3
