"""The provider kubernetes as tests start it: over the stand-in of a cluster, with time that passes faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.errors import SymmemCheckError
from runner.github.client import Client
from runner.github.runners import Runners
from runner.github.settings import Token
from runner.machines import kubernetes
from runner.machines.lifecycle import Interruption, Lifecycle
from runner.machines.model import Machine, Owner, Provider
from runner.machines.spec import read_spec
from runner.yaml_file import parse_yaml

from ..github.fake import REPOSITORY
from .cluster import FakeCluster
from .cluster_node import NAMESPACE
from .fake import ADMIN, RUNNER, FakeWithRunners

SERVER = "github.com"
OWNER = Owner(server=SERVER, repository=REPOSITORY, run_id=4711, attempt=1, key="gpu")
YAML = f"""\
provider: kubernetes
namespace: {NAMESPACE}
image: registry.example.com/gpu-runner:12.8
gpus: 2
gpu-resource: nvidia.com/gpu
node-selector:
  nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
tolerations:
  - key: nvidia.com/gpu
    operator: Exists
    effect: NoSchedule
runtime-class: nvidia
service-account: puller
shm-gb: 16
cpu: 16
memory: 128Gi
price: 9.5
runner:
  folder: {RUNNER}
limits:
  max-hours: 1
  max-price: 20
"""
LONG = "  capacity-minutes: 120\n  register-minutes: 120\n"
SOON = "  capacity-minutes: 2\n  register-minutes: 2\n"
"""A machine that is busy must not be too late, and where something never comes, nobody wants to wait for it."""


class FastClock:
    """Time that passes 20 times faster."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def now(self) -> float:
        return 1_800_000_000.0 + (time.monotonic() - self._began) * 20

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 20)


class Machines:
    """The provider and the lifecycle over it; `told` is the progress."""

    def __init__(self, github: FakeWithRunners, text: str = YAML + LONG) -> None:
        self.spec = read_spec(text)[0]
        entries = parse_yaml(text, Path("machine")).mapping()
        clock = FastClock()
        self.provider: Provider = kubernetes.provider(entries, self.spec, clock)
        self.told: list[str] = []
        runners = Runners(Client(github.url, Token(ADMIN), clock=clock), REPOSITORY)
        self.lifecycle = Lifecycle(self.provider, runners, self.spec, self.told.append, clock)

    def start(self) -> Machine:
        return self.lifecycle.start(OWNER).machine

    def list(self) -> list[Machine]:
        return self.provider.list(SERVER, REPOSITORY)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """At the end, nothing that was sent may break Kubernetes' schemas."""
    fake = FakeCluster(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig()))
    yield fake
    fake.close()
    assert fake.violations == []


@pytest.fixture
def machines(cluster: FakeCluster, github: FakeWithRunners) -> Machines:
    github.job = None
    return Machines(github)


def refused(call: Callable[[], object], kind: type[SymmemCheckError]) -> str:
    """The one line with which a call fails."""
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.exit_status == (143 if kind is Interruption else kind.exit_status)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def wait_until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)
