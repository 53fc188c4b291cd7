"""What the YAML of the provider `ec2` names: the machines to try for, in this order, and what they start from."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ..yaml_file import Value

MARKETS = ("on-demand", "spot", "reservation", "block")
MOST_CANDIDATES = 50
KEYS = (
    "type", "region", "zone", "subnet", "market", "reservation", "price", "security-groups", "image",
)  # fmt: skip

_TYPE = re.compile(r"[a-z][a-z0-9-]{0,30}\.[a-z0-9-]{1,30}")
_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+){1,3}-[0-9]{1,2}")
_ZONE = re.compile(r"[a-z0-9-]{5,40}")
_PARAMETER = re.compile(r"/[A-Za-z0-9_./-]{1,1000}")
_AMI, _SUBNET, _GROUP, _RESERVATION = (
    re.compile(rf"{kind}-[0-9a-f]{{8,17}}") for kind in ("ami", "subnet", "sg", "cr")
)


class Image(msgspec.Struct, frozen=True):
    """An image by its id, which is of one region, or by the name of the SSM parameter that holds the id."""

    ami: str = ""
    parameter: str = ""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of machine to try for. `price` is US dollars an hour, None where the file does not say.

    `zone` and `subnet` are empty where AWS may choose; one of them at most is set. `reservation` is the id of a
    capacity reservation or block, set for those markets alone.
    """

    type: str
    region: str
    market: str
    image: Image
    zone: str = ""
    subnet: str = ""
    reservation: str = ""
    security_groups: tuple[str, ...] = ()
    price: float | None = None

    @property
    def what(self) -> str:
        """Type and market."""
        return f"{self.type} {self.market}"

    def __str__(self) -> str:
        return f"{self.what} in {self.zone or f'{self.region} {self.subnet}'.strip()}"


def read_candidates(entries: dict[str, Value]) -> list[Candidate]:
    """The candidates of the provider's keys `candidates` and `image`. Raises UserError with line and key."""
    general = _image(entries["image"]) if "image" in entries else None
    found: list[Candidate] = []
    for item in entries["candidates"].items():
        candidate = _candidate(item, general)
        if candidate in found:
            item.error("stands there twice")
        found.append(candidate)
    if not 1 <= len(found) <= MOST_CANDIDATES:
        entries["candidates"].error(f"must be between 1 and {MOST_CANDIDATES}, and are {len(found)}")
    _refuse_far_image(entries, found, general)
    return found


def _candidate(item: Value, general: Image | None) -> Candidate:
    entries = item.mapping(KEYS, required=("type", "region"))
    region = entries["region"].matching(_REGION, "a region, such as us-east-2")
    if "image" not in entries and general is None:
        item.error("has no image; give one here, or for all candidates beside them")
    if "zone" in entries and "subnet" in entries:
        entries["zone"].error("can't stand beside a subnet, which is in one zone already")
    market = entries["market"].choice(MARKETS) if "market" in entries else "on-demand"
    return Candidate(
        type=entries["type"].matching(_TYPE, "an instance type, such as p5.48xlarge"),
        region=region,
        market=market,
        image=_image(entries["image"]) if "image" in entries else general or Image(),
        zone=_zone(entries["zone"], region) if "zone" in entries else "",
        subnet=entries["subnet"].matching(_SUBNET, "a subnet's id") if "subnet" in entries else "",
        reservation=_reservation(item, entries, market),
        security_groups=_groups(entries["security-groups"]) if "security-groups" in entries else (),
        price=entries["price"].positive("US dollars an hour") if "price" in entries else None,
    )


def _image(value: Value) -> Image:
    if not value.is_mapping():
        return Image(ami=value.matching(_AMI, "an image's id, or a mapping with the key ssm"))
    name = value.mapping(("ssm",), required=("ssm",))["ssm"]
    return Image(parameter=name.matching(_PARAMETER, "the whole name of an SSM parameter, from its first /"))


def _zone(value: Value, region: str) -> str:
    zone = value.matching(_ZONE, "an availability zone")
    if not zone.startswith(region) or zone == region:
        value.error(f"must be the name of a zone of {region}, such as {region}a, and is {zone}")
    return zone


def _reservation(item: Value, entries: dict[str, Value], market: str) -> str:
    wanted = market in ("reservation", "block")
    if wanted and "reservation" not in entries:
        item.error(f'the key "reservation" is missing; a {market} is used by its id')
    if "reservation" not in entries:
        return ""
    if not wanted:
        entries["reservation"].error(f"is for the markets reservation and block, and this one's market is {market}")
    return entries["reservation"].matching(_RESERVATION, "the id of a capacity reservation or block")


def _groups(value: Value) -> tuple[str, ...]:
    return tuple(item.matching(_GROUP, "a security group's id") for item in value.items())


def _refuse_far_image(entries: dict[str, Value], found: Sequence[Candidate], general: Image | None) -> None:
    """An image's id is of one region, so it can't serve candidates in several."""
    regions = sorted({candidate.region for candidate in found if candidate.image is general})
    if general is not None and general.ami and len(regions) > 1:
        entries["image"].error(
            f"{general.ami} is of one region, and these candidates are in {', '.join(regions)}; "
            "give an SSM parameter, or an image to each candidate"
        )
