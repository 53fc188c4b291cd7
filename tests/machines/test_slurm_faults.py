"""The starter is killed, or loses the cluster, before and after each of its calls: after `reap` nothing is left."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..github.fake import REPOSITORY
from ..slurm_cluster import GPUS, NODES, Cluster
from .fake import FakeWithRunners
from .slurm import SERVER, Bench, make_bench

pytestmark = [pytest.mark.needs_program("sbatch"), pytest.mark.slow, pytest.mark.timeout(1200)]
# What a start asks of the cluster, in this order: a part of the command, and which of the calls with it is meant.
STEPS = [("-printf", 1), ("squeue", 1), ("mkdir", 1), ("sbatch", 1), ("squeue", 2), ("mv -f", 1), ("-printf", 2)]
WAYS = ["killed-before", "killed-after", "down-before", "down-after"]
# The command line itself, with a shell that breaks at one call.
STARTER = """
import sys
from runner.cli import main
from runner.machines.remote import LocalShell
from tests.machines.breaking import Breaking

part, count, way, machine = sys.argv[1:]
Breaking(LocalShell, way, int(count), lambda arguments: any(part in one for one in arguments))
sys.exit(main(["machine", "start", "--machine", machine]))
"""


@pytest.fixture
def bench(cluster: Cluster, github: FakeWithRunners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return make_bench(cluster, github, tmp_path / "machines", monkeypatch)


@pytest.mark.parametrize("way", WAYS)
def test_after_a_starter_that_broke_at_any_call_reap_leaves_nothing(
    way: str,
    bench: Bench,
    github: FakeWithRunners,
    job: dict[str, str],
    project: Path,
    record_property: Callable[[str, object], None],
) -> None:
    text = bench.yaml("{gpus: 1}")
    lifecycle = bench.of(text)
    leaks = runs = 0
    numbers = itertools.count(100)
    for begin in range(0, len(STEPS), GPUS * len(NODES)):  # as many at once as there are GPUs
        starters = {}
        for part, count in STEPS[begin : begin + GPUS * len(NODES)]:
            run = next(numbers)
            starters[run] = subprocess.Popen(
                [sys.executable, "-c", STARTER, part, str(count), way, text], cwd=project,
                env=os.environ | job | {"GITHUB_RUN_ID": str(run)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
        for run, starter in starters.items():
            said = starter.communicate(timeout=240)[1].decode()
            # Where the cluster is lost once the machine is there, only its runner has still to be waited for.
            late = "its runner has to come now" in said
            assert starter.returncode == (-signal.SIGKILL if way.startswith("killed") else 0 if late else 3), said
            assert "Traceback" not in said
            github.over.add((run, 1))
        assert lifecycle.reap(SERVER, REPOSITORY).failed == []
        runs += len(starters)
        leaks += not bench.is_clean()
    record_property("faults", f"slurm, {way}: {runs} starters broken, {leaks} leaks")
    assert (runs, leaks) == (len(STEPS), 0)
