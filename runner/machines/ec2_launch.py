"""The request that makes a machine, with the marks by which it is found again, and the machine that such marks tell."""

from __future__ import annotations

import hashlib
import re
import time
from typing import Any

import msgspec

from .bootstrap import bootstrap
from .ec2_aws import Aws
from .ec2_candidates import Candidate, Image
from .ec2_prices import Offer
from .model import Machine, MachineError, Order, owner_of
from .spec import LONGEST_HOURS

MARK = "symmem-check:machine"
"""The tag by which machines are found. Its value is the name, as in Name, which people change in the console."""
TAGGED = ("instance", "volume")
WORK = "/var/lib/symmem-check"
"""Not below /run, which Debian and Ubuntu mount without the right to execute."""
USER_DATA_BYTES = 16 * 1024
"""https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-add-user-data.html"""

_AMI = re.compile(r"ami-[0-9a-f]{8,17}")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What all candidates share: the job's user, and the size of the disk in GB, None for the image's own."""

    user: str = "runner"
    disk_gb: int | None = None


class Disk(msgspec.Struct, frozen=True):
    """A disk of an image: its device's name, and its size in GB, None where the image does not say."""

    name: str
    size: int | None


class Source(msgspec.Struct, frozen=True):
    """An image's id in one region, and its disks, the root's first."""

    ami: str
    disks: tuple[Disk, ...]


class Images:
    """The images of the candidates, each looked up once a region."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._known: dict[tuple[str, Image], Source] = {}

    def source(self, region: str, image: Image) -> Source:
        """Raises MachineError where there is no such image or parameter."""
        if (region, image) not in self._known:
            self._known[region, image] = self._look_up(region, image.ami or self._by_parameter(region, image.parameter))
        return self._known[region, image]

    def _by_parameter(self, region: str, name: str) -> str:
        value = str(self._aws.call(region, "ssm", "GetParameter", Name=name)["Parameter"]["Value"])
        if not _AMI.fullmatch(value):
            raise MachineError(f"the SSM parameter {name} in {region} is no image's id; let it hold one (ami-...)")
        return value

    def _look_up(self, region: str, ami: str) -> Source:
        images = self._aws.call(region, "ec2", "DescribeImages", ImageIds=[ami])["Images"]
        image = images[0] if images else {}
        mapped = [one for one in image.get("BlockDeviceMappings", []) if "Ebs" in one]
        disks = [Disk(one["DeviceName"], one["Ebs"].get("VolumeSize")) for one in mapped]
        disks.sort(key=lambda disk: disk.name != image.get("RootDeviceName"))
        if not disks or disks[0].name != image.get("RootDeviceName"):
            raise MachineError(f"there is no image {ami} with a root disk in {region}; give one that starts from EBS")
        return Source(ami, tuple(disks))


def user_data(order: Order, settings: Settings) -> str:
    """The script that the machine runs as root when it starts, with the configuration of its runner.

    Raises MachineError where EC2 would not take it.
    """
    token = order.registration()
    script = bootstrap(order, work=WORK, jit=token, run_as=settings.user, power_off=True)
    size = len(script.encode())
    if size > USER_DATA_BYTES:
        raise MachineError(
            f"user data of {size} bytes is more than the {USER_DATA_BYTES} that EC2 takes; "
            f"GitHub's configuration of the runner is {len(token.value)} bytes of it"
        )
    return script


def request(
    order: Order, offer: Offer, source: Source, settings: Settings, script: str, launch: int
) -> tuple[dict[str, Any], float]:
    """The parameters of RunInstances, and the deadline in its tags. `launch` counts the machines that were tried for.

    The token is of one launch and its script: EC2 answers a call that comes again with the machine it made, and
    refuses one that differs. https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html
    """
    candidate = offer.candidate
    deadline = int(time.time()) + order.limits.seconds
    marks = _marks(order, offer, deadline)
    tagged = (*TAGGED, "spot-instances-request") if candidate.market == "spot" else TAGGED
    token = hashlib.sha256(f"{order.owner.name} {launch} {script}".encode()).hexdigest()
    return {
        "ClientToken": token,
        "ImageId": source.ami,
        "InstanceType": candidate.type,
        "MinCount": 1,
        "MaxCount": 1,
        "UserData": script,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "disabled",
        },
        "BlockDeviceMappings": _disks(source, settings.disk_gb),
        "TagSpecifications": [{"ResourceType": kind, "Tags": marks} for kind in tagged],
        **_place(candidate),
        **_market(candidate, order.limits.max_price),
    }, deadline


def _marks(order: Order, offer: Offer, deadline: int) -> list[dict[str, str]]:
    owner = order.owner
    said = {
        "server": owner.server, "repository": owner.repository, "run": str(owner.run_id),
        "attempt": str(owner.attempt), "key": owner.key, "deadline": str(deadline), "market": offer.candidate.market,
    }  # fmt: skip
    if offer.price is not None:
        said["price"] = f"{offer.price:g}"
    tags = {"Name": owner.name, MARK: owner.name} | {f"symmem-check:{name}": value for name, value in said.items()}
    return [{"Key": name, "Value": value} for name, value in tags.items()]


def _disks(source: Source, root_size: int | None) -> list[dict[str, Any]]:
    """All of the image's disks, encrypted, and gone with the machine, whatever the image says."""
    made: list[dict[str, Any]] = []
    for number, disk in enumerate(source.disks):
        size = root_size if number == 0 and root_size is not None else disk.size
        volume: dict[str, Any] = {"Encrypted": True, "DeleteOnTermination": True, "VolumeType": "gp3"}
        made.append({"DeviceName": disk.name, "Ebs": volume | ({"VolumeSize": size} if size is not None else {})})
    return made


def _place(candidate: Candidate) -> dict[str, Any]:
    place: dict[str, Any] = {}
    if candidate.zone:
        place["Placement"] = {"AvailabilityZone": candidate.zone}
    if candidate.subnet:
        place["SubnetId"] = candidate.subnet
    if candidate.security_groups:
        place["SecurityGroupIds"] = list(candidate.security_groups)
    return place


def _market(candidate: Candidate, most: float | None) -> dict[str, Any]:
    market: dict[str, Any] = {}
    if candidate.market == "spot":
        bid = {"MaxPrice": f"{most:f}"} if most is not None else {}
        once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        market["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": once | bid}
    elif candidate.market == "block":
        market["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if candidate.reservation:
        target = {"CapacityReservationId": candidate.reservation}
        market["CapacityReservationSpecification"] = {"CapacityReservationTarget": target}
    return market


def machine_of(instance: dict[str, Any], region: str, server: str, repository: str) -> Machine | None:
    """The machine that an instance's tags tell; None where it is none of that repository."""
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
    owner = owner_of(tags.get(MARK, ""), server, repository)
    # The name holds a digest of the repository's name, which another one may share.
    if owner is None or tags.get("symmem-check:repository", repository).lower() != repository.lower():
        return None
    since = instance["LaunchTime"].timestamp()
    deadline = _number(tags.get("symmem-check:deadline", ""))
    return Machine(
        provider="ec2",
        id=instance["InstanceId"],
        where=region,
        what=f"{instance['InstanceType']} {tags.get('symmem-check:market', '')}".strip(),
        owner=owner,
        since=since,
        # Somebody changed the tag; no job may be longer.
        deadline=deadline if deadline is not None else since + LONGEST_HOURS * 3600,
        price=_number(tags.get("symmem-check:price", "")),
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
