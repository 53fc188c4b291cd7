"""The provider kubernetes, from the YAML to the runner's job: the client, the API, the script and GitHub are real or
held against their descriptions."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.machines.model import MachineError, NoCapacity

from ..github.fake import Fault
from . import cluster_case
from .cluster import FakeCluster
from .cluster_case import OWNER, REPOSITORY, SERVER, SOON, YAML, Machines, refused, wait_until
from .cluster_node import NAMESPACE
from .fake import FakeWithRunners

pytestmark = [pytest.mark.slow, pytest.mark.needs_program("bash"), pytest.mark.needs_program("pkill")]
cluster, machines = cluster_case.cluster, cluster_case.machines


def test_a_runner_comes_plays_its_job_and_nothing_is_left(
    machines: Machines, cluster: FakeCluster, github: FakeWithRunners, tmp_path: Path
) -> None:
    github.job = f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done; echo the job ran"
    machine = machines.start()
    assert (machine.provider, machine.id, machine.where) == ("kubernetes", OWNER.name, NAMESPACE)
    assert (machine.what, machine.price) == ("pod with 2 nvidia.com/gpu", 9.5)
    assert machines.list() == [machine]
    assert machine.deadline - machine.since in (3600, 3601)
    (tmp_path / "go").touch()
    github.wait_for("done", 120)
    wait_until(lambda: "ended" in machines.list()[0].what)
    assert github.played == [(OWNER.name, 0)]
    journal = machines.provider.journal(machine)
    assert "Listening for Jobs\nthe job ran\n" in journal and journal.endswith(": ended")
    # The configuration is void now, and was in no place but the Secret.
    assert "cannot remove" not in journal and "jitSecret" not in journal
    assert "jitSecret" not in str(
        [one.body for one in cluster.asked if one.method == "POST" and "secrets" not in one.path]
    )
    assert machines.lifecycle.stop(OWNER).ended == [
        f"{OWNER.name}: pod with 2 nvidia.com/gpu, ended in {NAMESPACE} ({OWNER.name})"
    ]
    assert cluster.settle() == [] and machines.list() == [] and github.names() == []


def test_stopping_ends_a_runner_that_waits_for_its_job(
    machines: Machines, cluster: FakeCluster, github: FakeWithRunners
) -> None:
    machine = machines.start()
    machines.provider.stop(machine)
    machines.provider.stop(machine)
    assert cluster.settle() == []
    ((_, log),) = cluster.ended
    assert log.endswith(": ended\n")
    assert machines.provider.journal(machine) == ""


def test_a_kubeconfig_may_come_as_text(
    machines: Machines, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMMEM_CHECK_KUBECONFIG", cluster.kubeconfig().read_text(encoding="utf-8"))
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    machine = machines.start()
    assert machines.list() == [machine]
    machines.provider.stop(machine)


def test_the_pod_has_what_was_asked_for_and_no_more_rights_than_it_needs(
    machines: Machines, cluster: FakeCluster
) -> None:
    machines.start()
    (job,) = cluster.jobs.values()
    assert job["spec"]["activeDeadlineSeconds"] == 3600 and job["spec"]["backoffLimit"] == 0
    assert job["spec"]["ttlSecondsAfterFinished"] > machines.spec.limits.register_minutes * 60
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "2", "cpu": "16", "memory": "128Gi"}}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] == 1001
    assert pod["automountServiceAccountToken"] is False and pod["restartPolicy"] == "Never"
    assert (pod["runtimeClassName"], pod["serviceAccountName"]) == ("nvidia", "puller")
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}} in pod["volumes"]
    (secret,) = cluster.secrets.values()
    assert secret["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]


def test_the_runner_is_made_known_only_when_the_pod_runs(
    machines: Machines, cluster: FakeCluster, github: FakeWithRunners
) -> None:
    cluster.slow = True
    thread = threading.Thread(target=machines.start)
    thread.start()
    wait_until(lambda: any("is placed on node-1" in line for line in machines.told))
    assert github.names() == [] and cluster.secrets == {}
    cluster.slow = False
    thread.join(60)
    assert github.names() == [OWNER.name] and len(cluster.secrets) == 1


def test_without_a_place_there_is_no_capacity_in_the_schedulers_own_words(
    cluster: FakeCluster, github: FakeWithRunners
) -> None:
    cluster.room = False
    assert refused(Machines(github, YAML + SOON).start, NoCapacity).endswith(
        f"in {NAMESPACE}: no place within 2 minutes: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    )
    assert cluster.settle() == [] and github.names() == []
    assert not any("generate-jitconfig" in path for path in github.calls("POST"))


def test_a_place_that_gets_free_is_taken(machines: Machines, cluster: FakeCluster) -> None:
    cluster.room = False
    thread = threading.Thread(target=machines.start)
    thread.start()
    wait_until(lambda: any("has to wait: 0/3 nodes are available" in line for line in machines.told))
    cluster.room = True
    thread.join(60)
    assert any("is there, after" in line for line in machines.told)


@pytest.mark.parametrize("quota", ["jobs", "pods"])
def test_a_quota_that_is_used_up_is_no_capacity(quota: str, cluster: FakeCluster, github: FakeWithRunners) -> None:
    cluster.quota = quota
    assert "exceeded quota: " in refused(Machines(github, YAML + SOON).start, NoCapacity)
    assert cluster.settle() == []


def test_a_pod_that_the_cluster_never_admits_is_told_at_once(machines: Machines, cluster: FakeCluster) -> None:
    cluster.refusal = 'pods "{pod}" is forbidden: error looking up service account gpu-ci/puller: not found'
    assert "the cluster refuses the pod: Error creating: pods" in refused(machines.start, UserError)
    assert cluster.settle() == []


def test_a_pod_that_can_not_be_made_is_no_lack_of_capacity(cluster: FakeCluster, github: FakeWithRunners) -> None:
    cluster.refusal = 'Internal error occurred: failed calling webhook "x": connection refused'
    assert "failed calling webhook" in refused(Machines(github, YAML + SOON).start, MachineError)
    assert cluster.settle() == []


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (("ImagePullBackOff", 'Back-off pulling image "x"'), "the image can't be fetched: ImagePullBackOff: Back-off"),
        (("InvalidImageName", 'couldn\'t parse image "x"'), "the container can't be started: InvalidImageName: "),
    ],
)
def test_an_image_that_can_not_be_had_is_told(
    image: tuple[str, str], told: str, machines: Machines, cluster: FakeCluster, github: FakeWithRunners
) -> None:
    cluster.image = image
    assert told in refused(machines.start, MachineError)
    assert cluster.settle() == [] and github.names() == []


def test_a_node_that_is_too_slow_is_told(cluster: FakeCluster, github: FakeWithRunners) -> None:
    cluster.slow = True
    message = refused(Machines(github, YAML + SOON).start, MachineError)
    assert "placed on node-1, but did not run within 2 minutes" in message
    assert cluster.settle() == []


def test_a_pod_that_ends_at_once_is_told_with_its_last_words(machines: Machines, cluster: FakeCluster) -> None:
    cluster.dies = "echo no runner program here; exit 3"
    message = refused(machines.start, MachineError)
    assert "no runner program here" in message
    assert cluster.settle() == []


def test_what_the_role_lacks_is_told_before_anything_is_made(machines: Machines, cluster: FakeCluster) -> None:
    machines.provider.check()
    for rule in cluster.rules:
        rule["verbs"] = [verb for verb in rule["verbs"] if verb not in ("delete",)]
        rule["resources"] = [one for one in rule["resources"] if one != "secrets"]
    message = refused(machines.start, UserError)
    assert "not allowed are delete jobs, create secrets; give the Role of docs/machines/kubernetes.md" in message
    assert not any("/namespaces/" in one.path for one in cluster.asked if one.method == "POST")


def test_a_call_that_is_forbidden_all_the_same_names_verb_and_resource(
    machines: Machines, cluster: FakeCluster
) -> None:
    cluster.faults.append(Fault("POST", "selfsubjectaccessreviews", times=99, status=403, message="no reviews here"))
    cluster.rules = [rule | {"verbs": [v for v in rule["verbs"] if v != "create"]} for rule in cluster.rules]
    message = refused(machines.start, UserError)
    assert 'cannot create resource "jobs" in API group "batch"' in message and "give the Role" in message


def test_a_stranger_and_a_namespace_that_is_not_there_are_told(
    machines: Machines, cluster: FakeCluster, github: FakeWithRunners
) -> None:
    stranger = Machines(github, YAML + "context: stranger\n")
    assert "log in to the cluster anew" in refused(stranger.list, UserError)
    cluster.namespace_is_there = False
    assert f'namespaces "{NAMESPACE}" not found (404)' in refused(machines.start, UserError)


def test_only_a_repositorys_own_machines_are_listed_from_every_page(machines: Machines, cluster: FakeCluster) -> None:
    machines.start()
    (job,) = cluster.jobs.values()
    with cluster.lock:
        for run in range(450):
            name = OWNER.name.replace("4711", str(run + 1))
            cluster.jobs[name] = job | {"metadata": job["metadata"] | {"name": name}, "status": {"conditions": [1]}}
            cluster.jobs[name]["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        foreign = job["metadata"] | {"name": OWNER.name.replace("4711", "9"), "labels": {}}
        cluster.jobs["foreign"] = job | {"metadata": foreign, "status": job["status"]}
        marks = job["metadata"]["annotations"] | {"symmem-check/repository": "github.com/octo/other"}
        other = job["metadata"] | {"name": OWNER.name.replace("4711", "10000"), "annotations": marks}
        cluster.jobs["other"] = job | {"metadata": other, "status": job["status"]}
    found = machines.list()
    assert len(found) == 451 and {one.owner.repository for one in found} == {REPOSITORY}
    assert [one.price for one in found if "ended" not in one.what] == [9.5]
    assert machines.provider.list(SERVER, "octo/other") == []


def test_a_journal_tells_why_a_pod_does_not_run(cluster: FakeCluster, github: FakeWithRunners) -> None:
    cluster.room = False
    machines = Machines(github, YAML + SOON)
    thread = threading.Thread(target=refused, args=(machines.start, NoCapacity))
    thread.start()
    wait_until(lambda: bool(cluster.events))
    (machine,) = machines.list()
    assert machines.provider.journal(machine) == (
        "Warning FailedScheduling: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    )
    thread.join(120)


def test_a_journal_has_the_events_where_the_node_of_the_log_is_gone(machines: Machines, cluster: FakeCluster) -> None:
    machine = machines.start()
    with cluster.lock:
        (pod,) = cluster.pods.values()
        cluster.event(pod, "Warning", "NodeNotReady", "Node is not ready")
    cluster.faults.append(Fault("GET", "/log$", times=3, status=500, message="no preferred addresses found"))
    journal = machines.provider.journal(machine)
    assert "no preferred addresses found" in journal and journal.endswith("Warning NodeNotReady: Node is not ready")
