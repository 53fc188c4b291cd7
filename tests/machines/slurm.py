"""What the tests of the slurm provider share: its lifecycle on the real cluster, and ways to its jobs."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from runner.github.client import Client
from runner.github.runners import Runners
from runner.github.settings import Token
from runner.machines.lifecycle import Lifecycle
from runner.machines.model import Limits, Machine, Order, Owner, RunnerProgram
from runner.machines.remote import LocalShell, Shell
from runner.machines.slurm import Slurm
from runner.machines.slurm_candidates import Candidate
from runner.machines.spec import Spec, read_spec

from ..github.conftest import QuickClock
from ..github.fake import REPOSITORY
from ..slurm_cluster import Cluster
from .conftest import RUN
from .fake import ADMIN, RUNNER, FakeWithRunners

SERVER = "github.com"
NAME = Owner(server=SERVER, repository=REPOSITORY, run_id=RUN, attempt=1, key="gpu").name


def owner(run: int = RUN, attempt: int = 1, key: str = "gpu") -> Owner:
    return Owner(server=SERVER, repository=REPOSITORY, run_id=run, attempt=attempt, key=key)


class AsSsh:
    """Commands as a login node gets them by ssh: one line of text, for a shell to take apart."""

    where = "login.example"

    def run(self, arguments: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> str:
        return LocalShell().run(["sh", "-c", shlex.join(arguments)], stdin=stdin, timeout=timeout)


class Bench:
    """The provider on the cluster: `folder` is its own, `told` what a lifecycle told."""

    def __init__(self, cluster: Cluster, github: FakeWithRunners, folder: Path) -> None:
        self.cluster, self.github, self.folder = cluster, github, folder
        self.told: list[str] = []

    def yaml(self, *candidates: str, limits: str = "max-hours: 1", more: str = "") -> str:
        """The input `machine`, with candidates such as `{gpus: 1}`."""
        return (
            f"provider: slurm\nfolder: {self.folder}\nlimits: {{{limits}}}\nrunner: {{folder: {RUNNER}}}\n{more}\n"
            f"candidates: [{', '.join(candidates)}]\n"
        )

    def of(self, text: str) -> Lifecycle:
        """The lifecycle of machines that the YAML describes."""
        spec, provider = read_spec(text)
        return self._lifecycle(spec, provider)  # type: ignore[arg-type]

    def provider(self, *candidates: Candidate, shell: Shell | None = None, **limits: float) -> Slurm:
        """A provider with limits that no YAML may have, such as seconds."""
        return Slurm(
            host=shell or LocalShell(), folder=str(self.folder), spec=self._spec(**limits),
            candidates=list(candidates or (Candidate(gres="gpu:1"),)),
        )  # fmt: skip

    def with_provider(self, provider: Slurm, **limits: float) -> Lifecycle:
        """The lifecycle over such a provider."""
        return self._lifecycle(self._spec(**limits), provider)

    def order(self, registration: Callable[[], Token] | None = None, runner: Path = RUNNER) -> Order:
        """What a lifecycle asks of the provider."""
        return Order(
            owner=owner(), limits=Limits(max_hours=1), program=RunnerProgram(folder=str(runner)), public=False,
            registration=registration or (lambda: Token(self.github.configuration(NAME))), pause=time.sleep,
            tell=self.told.append,
        )  # fmt: skip

    def listed(self) -> list[Machine]:
        return self.provider().list(SERVER, REPOSITORY)

    def block(self) -> str:
        """Take all GPUs of the cluster; returns the job's id."""
        blocker = self.cluster.run(
            ["sbatch", "--parsable", "--nodes=2", "--gres=gpu:2", "--job-name=other", "--output=/dev/null"],
            stdin="#!/bin/sh\nexec sleep 1000\n",
        ).strip()
        self.cluster.wait_until("RUNNING", blocker)
        return blocker

    def is_clean(self) -> bool:
        """Whether nothing is left of any machine: no job, no folder, no runner."""
        names = [job.split()[1] for job in self.cluster.jobs()]
        left = list(self.folder.iterdir()) if self.folder.exists() else []
        return not [name for name in names if name.startswith("symmem-")] and not left and not self.github.runners

    def _lifecycle(self, spec: Spec, provider: Slurm) -> Lifecycle:
        runners = Runners(Client(self.github.url, Token(ADMIN), clock=QuickClock()), REPOSITORY)
        return Lifecycle(provider, runners, spec, self.told.append)

    def _spec(self, **limits: float) -> Spec:
        return Spec(
            provider="slurm", program=RunnerProgram(folder=str(RUNNER)), organization=None, group=1,
            limits=msgspec.structs.replace(Limits(max_hours=1), **limits),
        )  # fmt: skip


def make_bench(cluster: Cluster, github: FakeWithRunners, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A caller's environment on the login node, with what must not leave it."""
    monkeypatch.setattr("runner.machines.lifecycle.POLL_SECONDS", 0.2)
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SYMMEM_CHECK_RUNNER_TOKEN", ADMIN)
    # A user's defaults, which must not change what is asked and told.
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    monkeypatch.setenv("SQUEUE_FORMAT", "%T")
    github.job = None
    return Bench(cluster, github, folder)


def wait_until(done: Callable[[], object], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)
