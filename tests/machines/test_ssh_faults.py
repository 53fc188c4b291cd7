"""The starter is killed, or loses its host, before and after each of its calls: after `reap` nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..github.fake import REPOSITORY
from . import test_ssh
from .sshd import needs_root
from .test_ssh import SERVER, Bench

bench, hosts, installed, sshd = test_ssh.bench, test_ssh.hosts, test_ssh.installed, test_ssh.sshd
pytestmark = [
    needs_root,
    pytest.mark.needs_program("sshd"),
    pytest.mark.needs_program("sudo"),
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # a busy machine may be ten times slower
]
WAYS = ["killed-before", "killed-after", "down-before", "down-after"]
CALLS = 4
"""What a start asks of a host that is free: who has it, whether it is free, to start, and whether twice."""
# The command line itself, with a connection that breaks at one call; it tells how many there were.
STARTER = """
import sys
from runner.cli import main
from runner.machines import lifecycle
from runner.machines.remote import SshShell
from tests.machines.breaking import Breaking

lifecycle.POLL_SECONDS = 0.3
breaking = Breaking(SshShell, sys.argv[2], int(sys.argv[1]))
status = main(["machine", "start", "--machine", sys.argv[3]])
print(breaking.seen)
sys.exit(status)
"""


def start(run: int, at: int, way: str, yaml: str, job: dict[str, str], project: Path) -> tuple[int, str, str]:
    """Start a machine for a run, breaking at one of the calls; the exit status and what was said."""
    done = subprocess.run(
        [sys.executable, "-c", STARTER, str(at), way, yaml], cwd=project, capture_output=True, text=True,
        env=os.environ | job | {"GITHUB_RUN_ID": str(run)}, timeout=240, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_after_a_starter_that_broke_at_any_call_reap_leaves_nothing(
    bench: Bench, job: dict[str, str], project: Path, record_property: Callable[[str, object], None]
) -> None:
    bench.github.job = None
    host, yaml = bench.hosts[0], bench.yaml()
    lifecycle, _ = bench.made()
    status, said, told = start(100, 0, "down-before", yaml, job, project)
    assert (status, said.splitlines()[-1]) == (0, str(CALLS)), told
    runs, unfinished, leaks = 0, 0, []
    for way in WAYS:
        for at in range(CALLS + 1):  # 0 breaks nowhere: what a run that ends without its stop job leaves
            run = 101 + runs
            status, _, told = start(run, at, way, yaml, job, project)
            killed = at and way.startswith("killed")
            assert (status == -signal.SIGKILL) == bool(killed) and "Traceback" not in told, told
            runs += 1
            unfinished += bool(host.listed())
            bench.github.over |= {(100, 1), (run, 1)}
            assert lifecycle.reap(SERVER, REPOSITORY).failed == []
            left = [*host.listed(), *host.processes(), *bench.github.names()]
            leaks += [f"{way} at call {at}: {one}" for one in left]
    record_property("faults", f"ssh: {runs} starters, {unfinished} of them left something for the reaper, "
                    f"{len(leaks)} leaks")  # fmt: skip
    assert leaks == []
