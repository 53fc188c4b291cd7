"""What the candidates cost, looked up only where the price has a limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import NamedTuple

import msgspec

from .ec2_aws import DENIED, Aws, AwsError
from .ec2_candidates import Candidate

PRICE_LIST_REGION = "us-east-1"
_LINUX = ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"]
_SAY_IT = "say it by the candidate's key price"


class Offer(msgspec.Struct, frozen=True):
    """A candidate and US dollars an hour, None where nobody said; of a spot machine the most that it may be now."""

    candidate: Candidate
    price: float | None


class Affordable(NamedTuple):
    """The candidates that may be tried, and why the others may not, in words."""

    offers: list[Offer]
    refused: list[str]


def affordable(aws: Aws, candidates: Sequence[Candidate], most: float | None) -> Affordable:
    """The candidates that cost no more than `most` US dollars an hour.

    The price that a candidate's own entry names wins. Without a limit nothing is looked up. Raises AwsError where AWS
    can't be asked, but not where it forbids to ask: then the price is not known, and the candidate is refused.
    """
    if most is None:
        return Affordable([Offer(candidate, candidate.price) for candidate in candidates], [])
    found: list[Offer] = []
    refused: list[str] = []
    for candidate in candidates:
        try:
            price = candidate.price if candidate.price is not None else _looked_up(aws, candidate, most)
        except AwsError as error:
            if error.code not in DENIED:
                raise
            refused.append(f"{candidate}: its price can't be looked up ({error}); or {_SAY_IT}")
            continue
        if price is None:
            refused.append(f"{candidate}: its price is not known; {_SAY_IT}")
        elif price > most:
            refused.append(f"{candidate}: {price:g} USD an hour")
        else:
            found.append(Offer(candidate, price))
    return Affordable(found, refused)


def _looked_up(aws: Aws, candidate: Candidate, most: float) -> float | None:
    if candidate.market == "block":
        return None  # it was paid when it was bought, and no list tells what
    return _spot(aws, candidate, most) if candidate.market == "spot" else _on_demand(aws, candidate)


def _on_demand(aws: Aws, candidate: Candidate) -> float | None:
    """The list price of Linux on a shared host; a capacity reservation costs the same, used or not.

    https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-the-aws-price-list-query-api.html
    """
    wanted = {
        "instanceType": candidate.type, "regionCode": candidate.region, "operatingSystem": "Linux",
        "preInstalledSw": "NA", "tenancy": "Shared", "capacitystatus": "Used",
    }  # fmt: skip
    answer = aws.call(
        PRICE_LIST_REGION, "pricing", "GetProducts", ServiceCode="AmazonEC2",
        Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()],
    )  # fmt: skip
    return max((price for text in answer["PriceList"] for price in _prices(text)), default=None)


def _spot(aws: Aws, candidate: Candidate, most: float) -> float | None:
    """The dearest of its zones that are within the limit, else the cheapest; the limit is the bid too, so that no
    machine starts in a zone that is dearer.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html
    """
    zone = [{"Name": "availability-zone", "Values": [candidate.zone]}] if candidate.zone else []
    pages = aws.pages(
        candidate.region, "ec2", "DescribeSpotPriceHistory", InstanceTypes=[candidate.type],
        ProductDescriptions=_LINUX, StartTime=datetime.now(timezone.utc), Filters=zone,
    )  # fmt: skip
    prices = _numbers(entry["SpotPrice"] for page in pages for entry in page["SpotPriceHistory"])
    return max((price for price in prices if price <= most), default=min(prices, default=None))


class _Dimension(msgspec.Struct):
    unit: str
    per_unit: dict[str, str] = msgspec.field(name="pricePerUnit")


class _Term(msgspec.Struct):
    dimensions: dict[str, _Dimension] = msgspec.field(name="priceDimensions")


class _Terms(msgspec.Struct):
    on_demand: dict[str, _Term] = msgspec.field(name="OnDemand", default_factory=dict)


class _Attributes(msgspec.Struct):
    market: str = msgspec.field(name="marketoption", default="OnDemand")


class _Product(msgspec.Struct):
    attributes: _Attributes


class _Entry(msgspec.Struct):
    product: _Product
    terms: _Terms


def _prices(text: str) -> list[float]:
    """US dollars an hour of one entry of the price list; a capacity block's are of another market."""
    try:
        entry = msgspec.json.decode(text, type=_Entry)
        if entry.product.attributes.market != "OnDemand":
            return []
        dimensions = [one for term in entry.terms.on_demand.values() for one in term.dimensions.values()]
        return _numbers(one.per_unit.get("USD", "") for one in dimensions if one.unit == "Hrs")
    except msgspec.MsgspecError:
        return []


def _numbers(texts: Iterable[str]) -> list[float]:
    """Prices; one of 0, or that is no number, is none: it would pass every limit."""
    found: list[float] = []
    for text in texts:
        try:
            found.append(float(text))
        except ValueError:
            continue
    return [price for price in found if 0 < price < math.inf]
