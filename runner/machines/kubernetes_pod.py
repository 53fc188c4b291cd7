"""What a machine is made of: a Job whose pod runs the bootstrap script, and the Secret that it waits for."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from ..github.settings import Token
from .bootstrap import bootstrap
from .kubernetes_objects import Job
from .model import Limits, Order, prefix

# The keys of labels and annotations; what stands before the slash says whose they are.
MANAGED_BY = ("app.kubernetes.io/managed-by", "symmem-check")
REPOSITORY = "symmem-check/repository"
PRICE = "symmem-check/price"
WHAT = "symmem-check/what"
START = "symmem-check/start"

GRACE_SECONDS = 30
"""What the pod has to end its job and clean up, once it is told to end."""
KEPT_SECONDS = 600
"""How long an ended machine is kept for its log, beyond the minutes in which its runner is waited for."""
_WORK = "/symmem-check/work"
_JIT = "/symmem-check/jit"
_JIT_KEY = "configuration"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The pod that the YAML asks for. `shm_gb` are GiB of /dev/shm; `cpu` and `memory` are Kubernetes' quantities,
    empty for no limit; `price` is US dollars an hour."""

    image: str
    gpus: int
    gpu_resource: str
    node_selector: dict[str, str]
    tolerations: list[dict[str, str]]
    runtime_class: str
    service_account: str
    user: int
    seccomp: str
    shm_gb: int
    cpu: str
    memory: str
    price: float | None


def label(server: str, repository: str) -> str:
    """A repository as a label's value; its name may be too long for one, or have characters that none may have."""
    return prefix(server, repository).rstrip("-")


def selector(server: str, repository: str) -> str:
    """What finds all that is a repository's."""
    return f"{'='.join(MANAGED_BY)},{REPOSITORY}={label(server, repository)}"


def job_manifest(order: Order, wanted: Wanted, start: str) -> dict[str, Any]:
    """The Job. `start` tells this start from every other one, and names the Secret that its pod waits for."""
    owner = order.owner
    labels = dict([MANAGED_BY]) | {REPOSITORY: label(owner.server, owner.repository)}
    annotations = {
        REPOSITORY: f"{owner.server}/{owner.repository}",
        WHAT: f"pod with {wanted.gpus} {wanted.gpu_resource}",
        START: start,
    } | ({PRICE: repr(wanted.price)} if wanted.price is not None else {})
    # An autoscaler that wants a node away must not take the job with it.
    stay = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": owner.name, "labels": labels, "annotations": annotations},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": order.limits.seconds,
            "ttlSecondsAfterFinished": order.limits.register_minutes * 60 + KEPT_SECONDS,
            "template": {
                "metadata": {"labels": labels, "annotations": annotations | stay},
                "spec": _pod(order, wanted, start),
            },
        },
    }


def secret_manifest(job: Job, start: str, token: Token) -> dict[str, Any]:
    """The Secret with the runner's configuration; it goes when its Job does."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.metadata.name, "uid": job.metadata.uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{job.metadata.name}-{start}", "ownerReferences": [owner]},
        "immutable": True,
        "data": {_JIT_KEY: base64.b64encode(token.value.encode()).decode()},
    }


def _pod(order: Order, wanted: Wanted, start: str) -> dict[str, Any]:
    more = {
        "runtimeClassName": wanted.runtime_class,
        "serviceAccountName": wanted.service_account,
        "nodeSelector": wanted.node_selector,
        "tolerations": wanted.tolerations,
    }
    limits = {wanted.gpu_resource: str(wanted.gpus), "cpu": wanted.cpu, "memory": wanted.memory}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": wanted.user,
            "runAsGroup": wanted.user,
            "fsGroup": wanted.user,
            "seccompProfile": {"type": wanted.seccomp},
        },
        "containers": [
            {
                "name": "runner",
                "image": wanted.image,
                "command": ["bash", "-c", _script(order)],
                # Requests are the limits where none are given.
                "resources": {"limits": {name: value for name, value in limits.items() if value}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [
                    {"name": "work", "mountPath": _WORK},
                    {"name": "jit", "mountPath": _JIT, "readOnly": True},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "work", "emptyDir": {}},
            # Optional: the pod starts without it, so that its image is there before GitHub is asked for a runner that
            # has to come within minutes. The kubelet mounts it within two minutes of its making:
            # https://kubernetes.io/docs/tasks/configure-pod-container/configure-pod-configmap/#mounted-configmaps-are-updated-automatically
            {
                "name": "jit",
                "secret": {"secretName": f"{order.owner.name}-{start}", "optional": True, "defaultMode": 0o440},
            },
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{wanted.shm_gb}Gi"}},
        ],
    } | {name: value for name, value in more.items() if value}


def _script(order: Order) -> str:
    script = bootstrap(order, work=_WORK, jit_file=f"{_WORK}/{_JIT_KEY}", jit_seconds=waited_seconds(order.limits))
    # The Secret can't be removed from within the pod, the link to it can.
    linked = f"ln -s {_JIT}/{_JIT_KEY} {_WORK}/{_JIT_KEY}\n{script}"
    # Kubernetes would put variables in for `$(NAME)`, and reads `$$` as `$`:
    # https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#entrypoint
    return linked.replace("$", "$$")


def waited_seconds(limits: Limits) -> int:
    """How long a pod waits for its Secret: as long as its runner is waited for, and two minutes for the kubelet."""
    return limits.register_minutes * 60 + 120
