"""Machines as Jobs of a Kubernetes cluster: one pod with GPUs, which runs GitHub's runner for one job.

The Job is made first, so that the cluster finds a place for its pod and fetches its image. Only then is the runner
registered, and its configuration put into a Secret that the pod waits for.
"""

from __future__ import annotations

import re
import secrets

from ..errors import SymmemCheckError, UserError
from ..github.client import Clock, SystemClock
from ..yaml_file import Value
from .kubernetes_api import Cluster, Connection, Refused
from .kubernetes_objects import Job
from .kubernetes_pod import PRICE, REPOSITORY, START, WHAT, Wanted, job_manifest, secret_manifest, selector
from .kubernetes_wait import JOURNAL_LINES, Wait
from .model import Limits, Machine, MachineError, Order, Owner, Provider, owner_of
from .spec import Spec

KEYS = (
    "namespace", "context", "image", "gpus", "gpu-resource", "node-selector", "tolerations", "runtime-class",
    "service-account", "user", "seccomp", "shm-gb", "cpu", "memory", "price",
)  # fmt: skip
USER = 1001
"""The user of GitHub's own image of the runner: https://github.com/actions/runner/blob/main/images/Dockerfile"""

_WORD = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_CONTEXT = re.compile(r"[!-~](?:[ -~]{0,250}[!-~])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,499}")
_QUALIFIED = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_RESOURCE = re.compile(rf"[a-z0-9][a-z0-9.-]{{0,200}}/{_QUALIFIED}")
_LABEL_KEY = re.compile(rf"(?:[a-z0-9][a-z0-9.-]{{0,252}}/)?{_QUALIFIED}")
_LABEL = re.compile(rf"(?:{_QUALIFIED})?")
_CPU = re.compile(r"[1-9][0-9]{0,5}m?")
_MEMORY = re.compile(r"[1-9][0-9]{0,8}(?:Mi|Gi|Ti|M|G|T)")
_SECCOMP = ("RuntimeDefault", "Unconfined")
_TOLERATION = ("key", "operator", "value", "effect")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def provider(entries: dict[str, Value], spec: Spec, clock: Clock | None = None) -> Provider:
    """Read the keys of KEYS. Raises UserError with line and key. Nothing is asked of a cluster yet."""
    if "namespace" not in entries:
        entries["provider"].error('kubernetes needs the key "namespace", in which the Jobs are made')
    if "image" not in entries:
        entries["provider"].error('kubernetes needs the key "image", that of the pod in which the job runs')
    context = entries["context"].matching(_CONTEXT, "a context of the kubeconfig") if "context" in entries else None
    namespace = entries["namespace"].matching(_WORD, "the name of a namespace")
    return Kubernetes(Connection(context), namespace, _wanted(entries), spec.limits, clock or SystemClock())


class Kubernetes:
    """A namespace of a cluster. `wanted` is the pod that a start makes."""

    def __init__(self, connection: Connection, namespace: str, wanted: Wanted, limits: Limits, clock: Clock) -> None:
        self._connection, self._namespace, self._wanted = connection, namespace, wanted
        self._limits, self._clock = limits, clock
        self._cluster = Cluster(connection, namespace, clock.sleep)

    def check(self) -> None:
        """See Provider. Also asks the cluster whether all that a start, and the end after it, need is allowed."""
        price, most = self._wanted.price, self._limits.max_price
        if most is not None and price is None:
            raise UserError("machine: limits.max-price can't be held, as nobody says what the pod costs; give price")
        if most is not None and price is not None and price > most:
            raise UserError(
                f"machine: price is {price:g} US dollars an hour, above limits.max-price, which is {most:g}"
            )
        missing = self._cluster.missing()
        if missing:
            raise UserError(
                f"namespace {self._namespace} at {self._connection.host}: not allowed are {', '.join(missing)}; "
                "give the Role of docs/machines/kubernetes.md"
            )

    def start(self, order: Order) -> Machine:
        """See Provider. Raises MachineError with the last words of a pod that ends or whose image isn't there."""
        cluster = Cluster(self._connection, self._namespace, order.pause)
        start = secrets.token_hex(4)
        job = self._create(cluster, order, start)
        Wait(cluster, job, order, self._clock).until_running()
        cluster.create_secret(secret_manifest(job, start, order.registration()))
        return self._machine(job, order.owner)

    def stop(self, machine: Machine) -> None:
        """See Provider. The cluster's garbage collector ends the pod and removes the Secret."""
        self._cluster.delete_job(machine.id)

    def list(self, server: str, repository: str) -> list[Machine]:
        """See Provider. An ended one is listed until its time to live is over, since its Secret is there as long."""
        machines: list[Machine] = []
        for job in self._cluster.jobs(selector(server, repository)):
            owner = owner_of(job.metadata.name, server, repository)
            whose = job.metadata.annotations.get(REPOSITORY, "")
            if owner is not None and whose.lower() == f"{server}/{repository}".lower():
                machines.append(self._machine(job, owner))
        return machines

    def journal(self, machine: Machine) -> str:
        """See Provider. The events of the Job and its pod come first, then the end of the pod's log."""
        job = self._cluster.job(machine.id)
        if job is None:
            return ""
        pod = self._cluster.pod(job)
        lines = [event.text for event in self._cluster.events(job)]
        if pod is not None:
            lines += [event.text for event in self._cluster.events(pod)]
            try:
                lines += self._cluster.log(pod, JOURNAL_LINES).splitlines()
            except SymmemCheckError as error:  # its node may be gone; the events often say so
                lines.insert(0, f"the pod's log can't be had: {error}")
        return "\n".join(lines)

    def _create(self, cluster: Cluster, order: Order, start: str) -> Job:
        manifest = job_manifest(order, self._wanted, start)
        name = order.owner.name
        for _ in range(3):
            try:
                return cluster.create_job(manifest)
            except Refused as error:
                if error.status != 409:
                    raise
            there = cluster.job(name)
            if there is not None and there.metadata.annotations.get(START) == start:
                return there  # made by a call whose answer was lost
            if there is not None:
                cluster.delete_job(name)
            order.pause(2.0)
        raise MachineError(f"{self._namespace}: the older Job {name} doesn't go away; look at its finalizers")

    def _machine(self, job: Job, owner: Owner) -> Machine:
        since = job.metadata.creation_timestamp
        marks = job.metadata.annotations
        return Machine(
            provider="kubernetes",
            id=job.metadata.name,
            where=self._namespace,
            what=marks.get(WHAT, "pod") + (", ended" if job.end is not None else ""),
            owner=owner,
            since=since.timestamp(),
            deadline=(job.status.start_time or since).timestamp() + job.spec.active_deadline_seconds,
            price=_price(marks.get(PRICE)) if job.end is None else None,
        )


def _price(written: str | None) -> float | None:
    try:
        return None if written is None else float(written)
    except ValueError:
        return None


def _wanted(entries: dict[str, Value]) -> Wanted:
    def text(name: str, pattern: re.Pattern[str], what: str, otherwise: str = "") -> str:
        return entries[name].matching(pattern, what) if name in entries else otherwise

    def number(name: str, most: int, otherwise: int) -> int:
        return entries[name].whole_number(1, most) if name in entries else otherwise

    return Wanted(
        image=entries["image"].matching(_IMAGE, "the name of an image"),
        gpus=number("gpus", 1024, 1),
        gpu_resource=text("gpu-resource", _RESOURCE, "a resource such as nvidia.com/gpu", "nvidia.com/gpu"),
        node_selector=_node_selector(entries),
        tolerations=[_toleration(item) for item in entries["tolerations"].items()] if "tolerations" in entries else [],
        runtime_class=text("runtime-class", _NAME, "the name of a RuntimeClass"),
        service_account=text("service-account", _NAME, "the name of a ServiceAccount"),
        user=number("user", 2**31 - 1, USER),
        seccomp=entries["seccomp"].choice(_SECCOMP) if "seccomp" in entries else _SECCOMP[0],
        shm_gb=number("shm-gb", 4096, 8),
        cpu=_quantity(entries, "cpu", _CPU, "a number of cores, such as 8 or 500m"),
        memory=_quantity(entries, "memory", _MEMORY, "a size such as 64Gi"),
        price=entries["price"].positive("US dollars an hour") if "price" in entries else None,
    )  # fmt: skip


def _quantity(entries: dict[str, Value], name: str, pattern: re.Pattern[str], what: str) -> str:
    if name not in entries:
        return ""
    written = str(entries[name].text_or_number())
    if not pattern.fullmatch(written):
        entries[name].error(f"must be {what}, and is {written!r}")
    return written


def _node_selector(entries: dict[str, Value]) -> dict[str, str]:
    if "node-selector" not in entries:
        return {}
    labels = entries["node-selector"].mapping()
    for name, value in labels.items():
        if not _LABEL_KEY.fullmatch(name):
            value.error("is no key of a label")
    return {name: value.matching(_LABEL, "the value of a label") for name, value in labels.items()}


def _toleration(value: Value) -> dict[str, str]:
    entries = value.mapping(_TOLERATION)
    toleration: dict[str, str] = {}
    if "key" in entries:
        toleration["key"] = entries["key"].matching(_LABEL_KEY, "the key of a taint")
    if "operator" in entries:
        toleration["operator"] = entries["operator"].choice(("Exists", "Equal"))
    if "value" in entries:
        toleration["value"] = entries["value"].matching(_LABEL, "the value of a taint")
    if "effect" in entries:
        toleration["effect"] = entries["effect"].choice(_EFFECTS)
    if toleration.get("operator") == "Exists" and "value" in entries:
        entries["value"].error("says nothing beside operator: Exists; leave one of them out")
    if toleration.get("operator") != "Exists" and "key" not in entries:
        value.error('the key "key" is missing; operator: Exists alone goes without one')
    return toleration
