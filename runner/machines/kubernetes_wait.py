"""Waiting until a Job's pod runs: it wants a place on a node, which is the capacity, and then its image there."""

from __future__ import annotations

import re

from ..errors import UserError
from ..github.client import Clock
from ..report.text import one_line
from .kubernetes_api import Cluster
from .kubernetes_objects import Job, Pod
from .model import MachineError, NoCapacity, Order

POLL_SECONDS = 3.0
IMAGE_SECONDS = 60.0
"""A registry that fails is asked again by the node; after so long it is no hiccup."""

_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed")
_BROKEN = (
    "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError",
)  # fmt: skip
"""Why a container waits: https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/images/types.go and
.../kubelet/kuberuntime/kuberuntime_container.go"""
_FULL = ("OutOf", "UnexpectedAdmissionError", "Preempting")
"""How the reason begins for which a node refuses a pod that the scheduler gave it, since others were faster."""
_QUOTA = "exceeded quota"
JOURNAL_LINES = 200


class Wait:
    """One Job's way to a running pod."""

    def __init__(self, cluster: Cluster, job: Job, order: Order, clock: Clock) -> None:
        self._cluster, self._job, self._order, self._clock = cluster, job, order, clock
        self._name, self._where = job.metadata.name, f"{job.metadata.name} in {cluster.namespace}"
        self._said, self._no_image_since = "", 0.0

    def until_running(self) -> None:
        """Return when the pod's container runs.

        Raises NoCapacity where there is no place for it within `capacity_minutes`, UserError where the cluster refuses
        such a pod, and MachineError where it ends, or its image isn't there within `register_minutes`.
        """
        limits = self._order.limits
        began, placed = self._clock.now(), 0.0
        why = ""
        while True:
            now = self._clock.now()
            job, pod = self._look()
            if pod is not None and pod.container.running is not None:
                return
            self._refuse_ended(job, pod, why, placed > 0)
            if pod is not None and pod.spec.node_name:
                placed = placed or self._placed(pod, now)
                why = self._refuse_broken(pod, now)
                if now - placed >= limits.register_minutes * 60:
                    raise MachineError(
                        f"{self._where}: the pod was placed on {pod.spec.node_name}, but did not run within "
                        f"{limits.register_minutes} minutes ({why}); see limits.register-minutes"
                    )
            else:
                placed, why = 0.0, self._why_not_placed(job, pod)
                if now - began >= limits.capacity_minutes * 60:
                    said = f"{self._where}: no place within {limits.capacity_minutes} minutes: {why}"
                    raise NoCapacity(said) if _is_capacity(job, pod, why) else MachineError(said)
                if now > began:
                    self._tell(f"{self._name} has to wait: {why}")
            self._order.pause(POLL_SECONDS)

    def _look(self) -> tuple[Job, Pod | None]:
        job = self._cluster.job(self._name)
        if job is None or job.metadata.uid != self._job.metadata.uid:
            raise MachineError(f"{self._where}: somebody deleted the Job while it started")
        return job, self._cluster.pod(job)

    def _placed(self, pod: Pod, now: float) -> float:
        self._tell(f"{self._name} is placed on {pod.spec.node_name}, which fetches the image where it has it not")
        return now

    def _tell(self, line: str) -> None:
        if line != self._said:
            self._order.tell(line)
            self._said = line

    def _why_not_placed(self, job: Job, pod: Pod | None) -> str:
        """What the scheduler said last, or the Job's controller, which may not be able to make the pod at all."""
        if pod is not None:
            found = [one for one in pod.status.conditions if one.type == "PodScheduled" and one.status == "False"]
            return one_line(found[0].message or found[0].reason, 500) if found else "the scheduler has said nothing yet"
        if job.spec.suspend:
            return "the Job is suspended, as a queue does until its turn comes"
        events = [one for one in self._cluster.events(job) if one.reason == "FailedCreate"]
        if not events:
            return "no pod was made for the Job yet"
        # Each try has another name for the pod.
        said = one_line(re.sub(rf"{self._name}-\w+", self._name, events[-1].message or ""), 500)
        if "forbidden" in said and _QUOTA not in said:
            raise UserError(f"{self._where}: the cluster refuses the pod: {said}")
        return said

    def _refuse_ended(self, job: Job, pod: Pod | None, why: str, placed: bool) -> None:
        reason, message = "", ""
        if pod is not None and pod.status.phase in ("Failed", "Succeeded"):
            ended = pod.container.terminated
            reason = pod.status.reason or (ended.reason if ended else "")
            message = pod.status.message or (ended.message if ended else "")
            if ended is not None:
                message = message or f"status {ended.exit_code}; {self._last_words(pod)}"
        elif job.end is not None:
            reason, message = job.end.reason, job.end.message
        else:
            return
        said = one_line(f"{reason}: {message}" if reason else message, 500)
        if reason.startswith(_FULL):
            raise NoCapacity(f"{self._where}: a node refused the pod: {said}")
        if reason == "DeadlineExceeded" and not placed:
            raise NoCapacity(f"{self._where}: no place until the deadline (limits.max-hours): {why or said}")
        raise MachineError(f"{self._where}: the pod ended before its runner came: {said}")

    def _last_words(self, pod: Pod) -> str:
        try:
            log = self._cluster.log(pod, JOURNAL_LINES).strip().splitlines()
        except MachineError as error:
            return f"its log can't be had ({error})"
        return log[-1] if log else "it printed nothing"

    def _refuse_broken(self, pod: Pod, now: float) -> str:
        """Raise where the container can't be started; else say what it waits for."""
        waiting = pod.container.waiting
        if waiting is None:
            return "the node has said nothing yet"
        said = one_line(f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason, 500)
        if waiting.reason in _NO_IMAGE:
            self._no_image_since = self._no_image_since or now
            if now - self._no_image_since >= IMAGE_SECONDS:
                raise MachineError(f"{self._where}: the image can't be fetched: {said}; see `image`, and "
                                   "`service-account` for one with imagePullSecrets")  # fmt: skip
            self._tell(f"{self._name} has to wait: {said}")
        elif waiting.reason in _BROKEN:
            raise MachineError(f"{self._where}: the container can't be started: {said}")
        return said


def _is_capacity(job: Job, pod: Pod | None, why: str) -> bool:
    """Whether it is for others' use of the cluster that there is no place; else no pod could be made at all."""
    return pod is not None or job.spec.suspend or _QUOTA in why
