"""AWS for tests: moto's server, behind a server of ours that adds what moto lacks and fails as a test asks.

moto has no lack of capacity, no price list, forgets a request's token, and knows no spot request of RunInstances.
"""

from __future__ import annotations

import base64
import functools
import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import boto3
import pytest

from runner.github.settings import Token
from runner.machines.ec2 import Ec2
from runner.machines.model import Limits, Order, Owner, RunnerProgram
from runner.machines.spec import read_spec

from ..github.fake import REPOSITORY

SERVER = "github.com"
JIT = "jitSecretThatNoLogMayShow" + "A" * 4000
AMI, OTHER_AMI = "ami-0a1b2c3d4e5f60718", "ami-0a1b2c3d4e5f60719"
"""All that there are, in every region: moto's own list of thousands takes it seconds a region."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secretThatNoLogMayShow"}
_SCOPE = re.compile(r"Credential=[^/]+/\d+/([a-z0-9-]+)/([a-z0-9-]+)/aws4_request")
_MOTO_SAYS = b"Client.UserInitiatedShutdown"
Answer = tuple[int, str, bytes]


@dataclass
class Call:
    """One call as it came; `parameters` are flat, such as `Placement.AvailabilityZone`, or JSON's top level."""

    action: str
    region: str
    parameters: dict[str, Any]


@dataclass
class Fault:
    """What happens to the next `times` calls that fit: AWS's error `code` with `status`, or a broken connection.

    `drop`: "before" closes the connection at once, "after" does what was asked and then closes it. `ends` lets
    RunInstances answer, and ends the machine at once with that reason, such as Server.InsufficientInstanceCapacity.
    """

    action: str
    code: str = ""
    times: int = 1
    status: int = 400
    region: str = ""
    type: str = ""
    market: str = ""
    holds: str = ""
    drop: str = ""
    ends: str = ""
    message: str = "it is not to be had"

    def fits(self, call: Call) -> bool:
        asked = call.parameters
        return (
            self.times > 0
            and self.action == call.action
            and self.region in ("", call.region)
            and self.type in ("", asked.get("InstanceType"))
            and self.market in ("", asked.get("InstanceMarketOptions.MarketType", "on-demand"))
            and self.holds in json.dumps(asked)
        )


@dataclass
class FakeAws:
    """AWS at `url`. `price_list` are the entries of GetProducts by type and region, `spot` the spot prices of a
    region's zones, `own` what to answer to a call in place of moto, `before` what happens when it comes. With `forgets`
    it makes a second machine for a token that comes again, which AWS never does."""

    moto: str
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    price_list: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    spot: dict[str, dict[str, str]] = field(default_factory=dict)
    own: dict[str, Answer] = field(default_factory=dict)
    before: dict[str, Callable[[], None]] = field(default_factory=dict)
    forgets: bool = False
    _made: dict[str, Answer] = field(default_factory=dict)
    _reason: bytes = b""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        handler = type("Handler", (_Handler,), {"aws": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def client(self, service: str, region: str) -> Any:
        """A client of moto itself, past all faults."""
        return _client(self.moto, service, region)

    def asked(self, action: str) -> list[Call]:
        """The calls of one name."""
        return [call for call in self.calls if call.action == action]

    def instances(self, region: str, *states: str) -> list[dict[str, Any]]:
        """moto's instances in those states; where none is named, those that cost money."""
        filters = [{"Name": "instance-state-name", "Values": list(states or ("pending", "running", "stopped"))}]
        groups = self.client("ec2", region).describe_instances(Filters=filters)["Reservations"]
        return [instance for group in groups for instance in group["Instances"]]

    def answer(self, call: Call, forward: Any) -> Answer | None:
        """What to answer; None for no answer at all."""
        with self._lock:
            self.calls.append(call)
            self.before.get(call.action, lambda: None)()
            fault = next((one for one in self.faults if one.fits(call)), None)
            if fault is not None:
                fault.times -= 1
        if fault is not None and fault.code:
            return _error(fault, call)
        if fault is not None and fault.drop == "before":
            return None
        status, kind, body = self._own(call) or self._remembered(call, forward)
        if fault is not None and fault.ends:
            self._reason = fault.ends.encode()
            (instance,) = re.findall(rb"<instanceId>(i-[0-9a-f]+)<", body)
            self.client("ec2", call.region).terminate_instances(InstanceIds=[instance.decode()])
        if fault is not None and fault.drop:
            return None
        return status, kind, self._completed(body)

    def _remembered(self, call: Call, forward: Any) -> Answer:
        token = call.parameters.get("ClientToken", "") if call.action == "RunInstances" and not self.forgets else ""
        if token in self._made:
            return self._made[token]
        answer: Answer = forward()
        if token:
            self._made[token] = answer
        return answer

    def _completed(self, body: bytes) -> bytes:
        life = b"<instanceLifecycle>spot</instanceLifecycle>"
        body = body.replace(life, life + b"<spotInstanceRequestId>sir-1234abcd</spotInstanceRequestId>")
        return body.replace(_MOTO_SAYS, self._reason) if self._reason else body

    def _own(self, call: Call) -> Answer | None:
        if call.action in self.own:
            return self.own[call.action]
        if call.action == "GetProducts":
            wanted = {one["Field"]: one["Value"] for one in call.parameters["Filters"]}
            assert (wanted["operatingSystem"], wanted["tenancy"], wanted["capacitystatus"]) == (
                "Linux",
                "Shared",
                "Used",
            )
            found = self.price_list.get((wanted["instanceType"], wanted["regionCode"]), [])
            return 200, "application/x-amz-json-1.1", json.dumps({"PriceList": found}).encode()
        if call.action == "DescribeSpotPriceHistory":
            zone = call.parameters.get("Filter.1.Value.1")
            prices = {name: price for name, price in self.spot.get(call.region, {}).items() if zone in (None, name)}
            items = "".join(
                f"<item><availabilityZone>{name}</availabilityZone><spotPrice>{price}</spotPrice></item>"
                for name, price in prices.items()
            )
            return _xml(call.action, f"<spotPriceHistorySet>{items}</spotPriceHistorySet>")
        if call.action == "CancelSpotInstanceRequests":
            return _xml(call.action, "<spotInstanceRequestSet/>")
        return None


@functools.cache
def _client(address: str, service: str, region: str) -> Any:
    """Kept over the tests, since each takes a quarter of a second to make."""
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
    return boto3.client(service, region_name=region, endpoint_url=address, **keys)


class _Handler(BaseHTTPRequestHandler):
    aws: FakeAws

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = self.aws.answer(self._call(body), lambda: self._forward(body))
        if answer is None:
            self.close_connection = True
            return
        status, kind, content = answer
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _call(self, body: bytes) -> Call:
        scope = _SCOPE.search(self.headers["Authorization"])
        assert scope is not None
        if target := self.headers.get("X-Amz-Target"):
            return Call(target.split(".")[-1], scope[1], json.loads(body))
        parameters = dict(parse_qsl(body.decode(), keep_blank_values=True))
        return Call(parameters["Action"], scope[1], parameters)

    def _forward(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(self.aws.moto.removeprefix("http://"), timeout=60)
        try:
            connection.request("POST", self.path, body, dict(self.headers))
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read()
        finally:
            connection.close()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""


def _xml(action: str, inner: str) -> Answer:
    return 200, "text/xml", f"<{action}Response>{inner}<requestId>1</requestId></{action}Response>".encode()


def _error(fault: Fault, call: Call) -> Answer:
    if call.action in ("GetProducts", "GetParameter"):
        text = json.dumps({"__type": fault.code, "message": fault.message})
        return fault.status, "application/x-amz-json-1.1", text.encode()
    error = f"<Error><Code>{fault.code}</Code><Message>{fault.message}</Message></Error>"
    return fault.status, "text/xml", f"<Response><Errors>{error}</Errors><RequestID>1</RequestID></Response>".encode()


def price_entry(price: str, *, market: str = "OnDemand", unit: str = "Hrs") -> str:
    """An entry of the price list as GetProducts gives it: JSON as text."""
    dimension = {"unit": unit, "pricePerUnit": {"USD": price}, "description": "per hour"}
    product = {"sku": "ABC", "attributes": {"marketoption": market, "operatingSystem": "Linux"}}
    terms = {"OnDemand": {"ABC.1": {"priceDimensions": {"ABC.1.2": dimension}}}}
    return json.dumps({"product": product, "serviceCode": "AmazonEC2", "terms": terms})


def ec2(*candidates: str, limits: str = "max-hours: 2", more: str = f"image: {AMI}") -> Ec2:
    """The provider of a YAML with these candidates, each in YAML's short form without its braces."""
    lines = ["provider: ec2", f"limits: {{{limits}}}", more, "candidates:", *(f"  - {{{one}}}" for one in candidates)]
    provider = read_spec("\n".join(lines))[1]
    assert isinstance(provider, Ec2)
    return provider


def owner(run: int = 4711, attempt: int = 1, key: str = "gpu", repository: str = REPOSITORY) -> Owner:
    return Owner(server=SERVER, repository=repository, run_id=run, attempt=attempt, key=key)


@dataclass
class Asker:
    """Who orders a machine: `told` and `pauses` are what came of it, `registered` how often a runner was made known."""

    owner: Owner = field(default_factory=owner)
    limits: Limits = field(default_factory=lambda: Limits(max_hours=2, capacity_minutes=1))
    jit: list[str] = field(default_factory=lambda: [JIT])
    told: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    registered: int = 0
    interrupt: BaseException | None = None

    def order(self) -> Order:
        return Order(
            owner=self.owner, limits=self.limits, program=RunnerProgram(folder="/opt/actions-runner"), public=False,
            registration=self._register, pause=self._pause, tell=self.told.append,
        )  # fmt: skip

    def _register(self) -> Token:
        self.registered += 1
        return Token(self.jit[min(self.registered, len(self.jit)) - 1])

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if self.interrupt is not None:
            raise self.interrupt


def script_of(aws: FakeAws, region: str, machine: str) -> str:
    """The user data that a machine of an id got."""
    attribute = aws.client("ec2", region).describe_instance_attribute(InstanceId=machine, Attribute="userData")
    return base64.b64decode(attribute["UserData"]["Value"]).decode()


def _image(ami: str) -> dict[str, Any]:
    """An image as moto reads it from the file of MOTO_AMIS_PATH."""
    disk = {"root_device_type": "ebs", "root_device_name": "/dev/sda1"}
    kind = {"image_type": "machine", "architecture": "x86_64", "virtualization_type": "hvm", "hypervisor": "xen"}
    return {"ami_id": ami, "name": ami, "description": "a GPU image", "owner_id": "099720109477", **disk, **kind}


@pytest.fixture(scope="module")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of moto's server, a process of its own on a port that the system chose."""
    images = tmp_path_factory.mktemp("moto") / "images.json"
    images.write_text(json.dumps([_image(AMI), _image(OTHER_AMI)]))
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    environment = os.environ | {"MOTO_AMIS_PATH": str(images)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    said: list[str] = []
    drain: threading.Thread | None = None
    try:
        for line in process.stdout:
            said.append(line)
            if found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", line):
                # Its log of requests would fill the pipe, and stop it.
                drain = threading.Thread(target=process.stdout.read, daemon=True)
                drain.start()
                yield found[1]
                break
        else:
            pytest.fail("moto's server did not start: " + "".join(said))
    finally:
        process.kill()  # it keeps nothing, and takes seconds to end by itself
        process.wait(timeout=30)
        if drain is not None:
            drain.join(30)


@pytest.fixture
def aws(moto_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """An AWS in which nothing is, and the environment of a job that may use it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    fake = FakeAws(moto_server)
    environment = {"AWS_ENDPOINT_URL": fake.url, "AWS_EC2_METADATA_DISABLED": "true"} | CREDENTIALS
    files = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    for name, value in (environment | files).items():
        monkeypatch.setenv(name, value)
    connection = http.client.HTTPConnection(moto_server.removeprefix("http://"), timeout=60)
    connection.request("POST", "/moto-api/reset")
    assert connection.getresponse().status == 200
    connection.close()
    yield fake
    fake.close()
