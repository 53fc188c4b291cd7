"""The provider `ec2`: a machine of Amazon's cloud for one job, of the first candidate that there is capacity for."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from ..errors import SymmemCheckError, UserError
from ..yaml_file import Value
from .ec2_aws import Aws, AwsError
from .ec2_candidates import Candidate, read_candidates
from .ec2_launch import MARK, Images, Settings, machine_of, request, user_data
from .ec2_prices import Affordable, Offer, affordable
from .model import Limits, Machine, NoCapacity, Order, PartlyListed, prefix
from .spec import Spec

KEYS = ("image", "candidates", "disk-gb", "user")

BETWEEN_ROUNDS = 30.0
"""Seconds between two rounds over all candidates."""
TRIES_AGAIN = (2.0, 4.0, 8.0)
BEGINS_WITHIN = 60.0
YOUNG = 120.0
"""EC2 may not know a machine for some seconds after it told of it:
https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html"""

FULL = frozenset(
    (
        "InsufficientInstanceCapacity", "InsufficientReservedInstanceCapacity", "InsufficientHostCapacity",
        "InsufficientCapacity", "InsufficientVolumeCapacity", "InsufficientFreeAddressesInSubnet",
        "ReservationCapacityExceeded", "SpotMaxPriceTooLow", "MaxSpotInstanceCountExceeded", "InstanceLimitExceeded",
        "VcpuLimitExceeded", "VolumeLimitExceeded", "MaxIOPSLimitExceeded", "SpotInstanceTermination", "Unsupported",
    )
)  # fmt: skip
"""The codes that say that there is no such machine just now, or none for this account, so that the next candidate is
tried: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"""
NEVER = "Unsupported"
"""That type isn't sold there, which no waiting mends."""
_GONE = "InvalidInstanceID.NotFound"
_NO_LATEST = frozenset(("UnsupportedOperation", "Unsupported", "InvalidParameterCombination", "InvalidParameterValue"))
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def provider(entries: dict[str, Value], spec: Spec) -> Ec2:
    """The provider, by its keys. Raises UserError with line and key."""
    if "candidates" not in entries:
        entries["provider"].error('ec2 needs the key "candidates", a list of what to try for')
    if "user" in entries and entries["user"].text("a user's name") == "root":
        entries["user"].error("must not be root, as whom GitHub's runner does not run")
    settings = Settings(
        user=entries["user"].matching(_USER, "a user's name") if "user" in entries else Settings().user,
        disk_gb=entries["disk-gb"].whole_number(8, 16384) if "disk-gb" in entries else None,
    )
    return Ec2(read_candidates(entries), settings, spec.limits)


class Ec2:
    """See model.Provider. A machine's `where` is its region."""

    def __init__(self, candidates: Sequence[Candidate], settings: Settings, limits: Limits) -> None:
        self._candidates, self._settings, self._limits = candidates, settings, limits
        self._aws = Aws()
        self._images = Images(self._aws)
        self._affordable: Affordable | None = None
        self._launches = 0

    def check(self) -> None:
        """Raises UserError where the price of every candidate is above the limit, or not known."""
        self._affordable = self._guard()

    def _guard(self) -> Affordable:
        most = self._limits.max_price
        found = affordable(self._aws, self._candidates, most)
        if not found.offers:
            raise UserError(f"max-price is {most:g} USD an hour: " + "; ".join(found.refused))
        return found

    def start(self, order: Order) -> Machine:
        """Try the candidates in their order, again and again until `capacity_minutes` are over.

        Raises NoCapacity with the reason of each, UserError where none is ever to be had, and MachineError.
        """
        left, refused = self._affordable or self._guard()
        for line in refused:
            order.tell(f"left out: {line}")
        why: dict[Candidate, AwsError] = {}
        began, waited = time.monotonic(), 0.0
        while True:
            for offer in left:
                try:
                    return self._launch(order, offer)
                except AwsError as error:
                    if error.code not in FULL:
                        raise
                    why[offer.candidate] = error
                    order.tell(f"not to be had: {offer.candidate}: {error.code}")
            reasons = "; ".join([*(f"{candidate}: {error}" for candidate, error in why.items()), *refused])
            left = [offer for offer in left if why[offer.candidate].code != NEVER]
            if not left:
                raise UserError(f"no candidate is offered where it was asked for: {reasons}")
            # A pause that takes no time, or calls that take long: neither may make the wait endless.
            if max(time.monotonic() - began, waited) + BETWEEN_ROUNDS > self._limits.capacity_minutes * 60:
                raise NoCapacity(f"no capacity within {self._limits.capacity_minutes} minutes: {reasons}")
            order.pause(BETWEEN_ROUNDS)
            waited += BETWEEN_ROUNDS

    def _launch(self, order: Order, offer: Offer) -> Machine:
        candidate = offer.candidate
        source = self._images.source(candidate.region, candidate.image)
        self._launches += 1
        script = user_data(order, self._settings)
        asked, deadline = request(order, offer, source, self._settings, script, self._launches)
        instance = self._run(order, candidate.region, asked)
        machine = Machine(
            provider="ec2", id=instance["InstanceId"], where=candidate.region, what=candidate.what, owner=order.owner,
            since=instance["LaunchTime"].timestamp(), deadline=deadline, price=offer.price,
        )  # fmt: skip
        try:
            self._wait_for_begin(order, machine)
        except BaseException:
            self._give_up(order, machine)
            raise
        return machine

    def _give_up(self, order: Order, machine: Machine) -> None:
        """End it here, since it may be too young for `list` to find; what fails is told, not raised."""
        try:
            self.stop(machine)
        except SymmemCheckError as error:
            order.tell(f"{machine.id} in {machine.where} could not be ended: {error}")

    def _run(self, order: Order, region: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Ask again where no answer came, by the same token; so there is one machine, and it is known."""
        for seconds in (*TRIES_AGAIN, None):
            try:
                instance: dict[str, Any] = self._aws.once(region, "ec2", "RunInstances", **asked)["Instances"][0]
                return instance
            except AwsError as error:
                if not error.transient or seconds is None:
                    raise
                order.pause(seconds)
        raise AssertionError("not reached")

    def _wait_for_begin(self, order: Order, machine: Machine) -> None:
        """EC2 takes some requests and finds only then that there is no room.

        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html
        """
        waited = 0.0
        while waited < BEGINS_WITHIN:
            instance = self._described(machine)
            if instance is not None and instance["State"]["Name"] != "pending":
                break
            order.pause(3.0)
            waited += 3.0
        else:
            return
        ended = _end_of(instance)
        if ended is not None:
            code, said = ended
            raise AwsError(f"{machine.id} in {machine.where} ended as it began: {said}", code)

    def stop(self, machine: Machine) -> None:
        """Terminate it, and cancel its spot request, which else counts against the account's limit for a while."""
        self._terminate(machine)
        spot = (self._described(machine) or {}).get("SpotInstanceRequestId")
        if spot:
            try:
                self._aws.call(machine.where, "ec2", "CancelSpotInstanceRequests", SpotInstanceRequestIds=[spot])
            except AwsError as error:
                if error.code != "InvalidSpotInstanceRequestID.NotFound":
                    raise

    def _terminate(self, machine: Machine) -> None:
        for seconds in (*TRIES_AGAIN, None):
            try:
                self._aws.call(machine.where, "ec2", "TerminateInstances", InstanceIds=[machine.id])
                return
            except AwsError as error:
                if error.code != _GONE:
                    raise
                if seconds is None or time.time() > machine.since + YOUNG:
                    return
                time.sleep(seconds)

    def list(self, server: str, repository: str) -> list[Machine]:
        """See Provider; of the regions of all candidates."""
        found: list[Machine] = []
        failed: list[AwsError] = []
        regions = {candidate.region for candidate in self._candidates}
        for region in sorted(regions):
            try:
                found += self._listed(region, server, repository)
            except AwsError as error:
                failed.append(error)
        if len(failed) == len(regions):
            raise failed[0]
        if failed:
            raise PartlyListed("not all regions could be asked: " + "; ".join(map(str, failed)), found)
        return found

    def _listed(self, region: str, server: str, repository: str) -> Sequence[Machine]:
        filters = [
            {"Name": f"tag:{MARK}", "Values": [prefix(server, repository) + "*"]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
        ]
        pages = self._aws.pages(region, "ec2", "DescribeInstances", Filters=filters)
        instances = (one for page in pages for group in page["Reservations"] for one in group["Instances"])
        machines = (machine_of(instance, region, server, repository) for instance in instances)
        return [machine for machine in machines if machine is not None]

    def journal(self, machine: Machine) -> str:
        """The serial console's text, and why EC2 ended the machine, where it did."""
        asked = {"InstanceId": machine.id}
        try:
            answer = self._aws.call(machine.where, "ec2", "GetConsoleOutput", Latest=True, **asked)
        except AwsError as error:
            if error.code not in _NO_LATEST:
                raise
            # Only machines of the Nitro system have the latest; the others', what EC2 last took.
            answer = self._aws.call(machine.where, "ec2", "GetConsoleOutput", **asked)
        ended = _end_of(self._described(machine) or {})
        return str(answer.get("Output", "")) + (f"\nEC2 ended it: {ended[1]}\n" if ended is not None else "")

    def _described(self, machine: Machine) -> dict[str, Any] | None:
        try:
            groups = self._aws.call(machine.where, "ec2", "DescribeInstances", InstanceIds=[machine.id])["Reservations"]
        except AwsError as error:
            if error.code != _GONE:
                raise
            return None
        return next((instance for group in groups for instance in group["Instances"]), None)


def _end_of(instance: dict[str, Any]) -> tuple[str, str] | None:
    """Why EC2 ended a machine: code and words; None where it runs, or ended itself.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html
    """
    if instance.get("State", {}).get("Name") not in ("shutting-down", "terminated", "stopping", "stopped"):
        return None
    reason = instance.get("StateReason", {})
    code = str(reason.get("Code", ""))
    if code == "Client.InstanceInitiatedShutdown":
        return None
    return code.partition(".")[2] or "Ended", str(reason.get("Message") or code or "EC2 does not say why")
