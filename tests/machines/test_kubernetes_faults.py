"""What is left of a machine in a cluster when calls fail, answers are lost, and starts are interrupted: nothing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from runner.errors import SymmemCheckError
from runner.machines.lifecycle import Interruption

from ..github.fake import Fault
from . import cluster_case
from .cluster import FakeCluster
from .cluster_case import OWNER, REPOSITORY, SERVER, Machines, refused, wait_until
from .cluster_node import NAMESPACE
from .fake import FakeWithRunners

pytestmark = [pytest.mark.slow, pytest.mark.needs_program("bash"), pytest.mark.needs_program("pkill")]
cluster, machines = cluster_case.cluster, cluster_case.machines
JOBS = f"/namespaces/{NAMESPACE}/jobs"


@pytest.mark.parametrize(
    ("path", "drop"), [(path, drop) for path in (f"{JOBS}$", "/secrets$") for drop in ("before", "after", "body")]
)
def test_an_answer_that_is_lost_makes_nothing_twice(
    path: str, drop: str, machines: Machines, cluster: FakeCluster
) -> None:
    cluster.faults.append(Fault("POST", path, drop=drop))
    machine = machines.start()
    assert (len(cluster.jobs), len(cluster.pods), len(cluster.secrets)) == (1, 1, 1)
    machines.provider.stop(machine)
    assert cluster.settle() == []


def test_an_older_job_of_the_name_gives_way(machines: Machines, cluster: FakeCluster) -> None:
    """Its list may be behind, so that the stop at a start's begin does not see it."""
    machines.start()
    (older,) = [job["metadata"]["uid"] for job in cluster.jobs.values()]
    cluster.jobs[OWNER.name]["metadata"]["labels"] = {}
    machines.start()
    (newer,) = [job["metadata"]["uid"] for job in cluster.jobs.values()]
    assert newer != older
    wait_until(lambda: len(cluster.pods) == 1)


CALLS = [
    ("POST", f"{JOBS}$"), ("GET", f"{JOBS}$"), ("GET", f"{JOBS}/"), ("DELETE", f"{JOBS}/"), ("GET", "/pods$"),
    ("GET", "/events$"), ("POST", "/secrets$"), ("POST", "selfsubjectaccessreviews"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), CALLS)
@pytest.mark.parametrize("how", ["before", "after", "403"])
def test_whatever_call_fails_nothing_is_left_after_reap(
    method: str, path: str, how: str, machines: Machines, cluster: FakeCluster, github: FakeWithRunners,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    """The call fails for as long as the start tries, so that what it takes back may fail too."""
    fault = Fault(method, path, times=99, **({"status": int(how)} if how.isdigit() else {"drop": how}))
    cluster.faults.append(fault)
    github.job = "sleep 600"
    try:
        machines.start()
    except SymmemCheckError as error:
        assert "\n" not in str(error) and "jitSecret" not in str(error)
    fault.times = 0
    github.over.add((OWNER.run_id, OWNER.attempt))
    reaped = machines.lifecycle.reap(SERVER, REPOSITORY)
    assert reaped.failed == []
    left = [*cluster.settle(), *machines.list()]
    record_property("faults", f"kubernetes, {method} {path} {how}: 1 run, {len(left)} leaks")
    assert left == []


@pytest.mark.parametrize("moment", ["without a place", "before the Secret"])
def test_a_start_that_is_interrupted_leaves_nothing(
    moment: str, machines: Machines, cluster: FakeCluster, github: FakeWithRunners
) -> None:
    cluster.room, cluster.slow = moment != "without a place", True
    said = "has to wait" if moment == "without a place" else "is placed on"

    def cancel() -> None:
        wait_until(lambda: any(said in line for line in machines.told))
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=cancel)
    thread.start()
    refused(machines.start, Interruption)
    thread.join(60)
    assert cluster.secrets == {}
    assert cluster.settle() == [] and github.names() == []
