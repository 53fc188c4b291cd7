"""What is read of Kubernetes' objects: a few fields of each, as its API has them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from ..report.text import one_line


class Read(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is read of an object; all else of it is left alone."""


class Reference(Read, frozen=True):
    """An object's owner."""

    uid: str


class Metadata(Read, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/"""

    name: str
    uid: str
    creation_timestamp: datetime
    annotations: dict[str, str] = {}
    owner_references: list[Reference] = []


class Condition(Read, frozen=True):
    """One of the conditions in which a Job or a pod is."""

    type: str
    status: str
    reason: str = ""
    message: str = ""


class JobSpec(Read, frozen=True):
    """A Job's end, in seconds from its start, and whether something holds it back."""

    active_deadline_seconds: int = 0
    suspend: bool = False


class JobStatus(Read, frozen=True):
    """How far a Job is."""

    start_time: datetime | None = None
    conditions: list[Condition] = []


class Job(Read, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/"""

    metadata: Metadata
    spec: JobSpec
    status: JobStatus = JobStatus()

    @property
    def end(self) -> Condition | None:
        """The condition that says that the Job is over; None while it is not."""
        over = ("Complete", "Failed")
        return next((one for one in self.status.conditions if one.type in over and one.status == "True"), None)


class Waiting(Read, frozen=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class Terminated(Read, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(Read, frozen=True):
    """One of the three is set; all are None where nothing is known yet."""

    waiting: Waiting | None = None
    running: dict[str, Any] | None = None
    terminated: Terminated | None = None


class ContainerStatus(Read, frozen=True):
    """A container of a pod."""

    state: ContainerState = ContainerState()


class PodSpec(Read, frozen=True):
    """Where a pod is placed: empty until the scheduler found a node."""

    node_name: str = ""


class PodStatus(Read, frozen=True):
    """How far a pod is. `reason` and `message` are set where a node refuses it."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] = []
    container_statuses: list[ContainerStatus] = []


class Pod(Read, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/"""

    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def container(self) -> ContainerState:
        """The state of the pod's one container."""
        return self.status.container_statuses[0].state if self.status.container_statuses else ContainerState()


class Event(Read, frozen=True):
    """Something that the scheduler, the kubelet or the Job's controller had to say."""

    metadata: Metadata
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    last_timestamp: datetime | None = None

    @property
    def text(self) -> str:
        """The event in one line."""
        return one_line(f"{self.type or 'Event'} {self.reason or ''}: {self.message or ''}", 500)
