"""The calls to a cluster: by Kubernetes' own client, each with a deadline, each failure told in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from ..errors import UserError
from ..report.text import one_line
from .kubernetes_objects import Event, Job, Pod, Read
from .model import MachineError, NoCapacity

CONFIGURATION = "SYMMEM_CHECK_KUBECONFIG"
"""The variable that holds a kubeconfig's text: a workflow's secrets are no files."""
TIMEOUT = (5.0, 20.0)
"""Seconds to connect, and to wait for more of an answer."""
TRIES = 3
PERMISSIONS = (
    ("create", "batch", "jobs"),
    ("get", "batch", "jobs"),
    ("list", "batch", "jobs"),
    ("delete", "batch", "jobs"),
    ("create", "", "secrets"),
    ("list", "", "pods"),
    ("get", "", "pods/log"),
    ("list", "", "events"),
)
"""What is done in the namespace: verb, API group, resource. docs/machines/kubernetes.md has it as a Role."""
_PAGE = 200
_LOG_BYTES = 1 << 20
T = TypeVar("T")


class Refused(UserError):
    """The cluster understood the call, and refuses it: `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(MachineError):
    """No answer came, or one of an ailing server; what was asked for may be done or not."""


class _More(Read, frozen=True):
    # The field's name is `continue`, which Python keeps for itself.
    mark: str = msgspec.field(default="", name="continue")


class _Jobs(Read, frozen=True):
    items: list[Job] | None = None
    metadata: _More = _More()


class _Pods(Read, frozen=True):
    items: list[Pod] | None = None


class _Events(Read, frozen=True):
    items: list[Event] | None = None


class _Review(Read, frozen=True):
    class Answer(Read, frozen=True):
        allowed: bool = False

    status: Answer = Answer()


class _Status(Read, frozen=True):
    message: str = ""


class Connection:
    """A cluster, by a kubeconfig's context or from within; connects when it is first asked for something."""

    def __init__(self, context: str | None) -> None:
        self._context = context
        self._made: tuple[Any, str] | None = None

    @property
    def host(self) -> str:
        """The API server's address. Raises UserError where there is no client or no configuration."""
        return self._connected()[1]

    def api(self, name: str) -> Any:
        """A part of the API by its name in the client, such as `BatchV1Api`. Raises as `host` does."""
        connected = self._connected()[0]
        from kubernetes import client

        return getattr(client, name)(connected)

    def _connected(self) -> tuple[Any, str]:
        if self._made is None:
            try:
                from kubernetes import client, config
            except ImportError:
                raise UserError(
                    "the provider kubernetes needs Kubernetes' client; pip install 'symmem-check[kubernetes]'"
                ) from None
            settings: Any = client.Configuration()
            load: Any = config  # has no types
            text = os.environ.get(CONFIGURATION, "").strip()
            file = os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
            try:
                if text:
                    file = CONFIGURATION
                    load.load_kube_config_from_dict(yaml.safe_load(text), self._context, settings, persist_config=False)
                elif self._context is None and "KUBECONFIG" not in os.environ and not Path(file).exists():
                    load.load_incluster_config(client_configuration=settings)
                else:
                    load.load_kube_config(file, self._context, settings, persist_config=False)
            except Exception as error:  # whatever a file of somebody else's makes of YAML, base64, paths and programs
                # Of a secret's text no error may show a part.
                why = type(error).__name__ if text else one_line(str(error), 300)
                raise UserError(
                    f"there is no cluster to be told from {file}: {why}; set KUBECONFIG to a "
                    "kubeconfig, and `context` to one of its contexts where it isn't the current one"
                ) from None
            # Those of urllib3 would wait without being told of an interruption.
            settings.retries = False
            self._made = client.ApiClient(settings), str(settings.host)
        return self._made


class Cluster:
    """One namespace of a cluster. `pause` waits between the tries of a call.

    Every call may raise Refused, NoCapacity where a quota is used up, and Unreachable after TRIES tries. A name tells
    one object, so a call that makes one may be made again: 409 then says that it is there.
    """

    def __init__(self, connection: Connection, namespace: str, pause: Callable[[float], None]) -> None:
        self._connection, self._namespace, self._pause = connection, namespace, pause

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self._namespace

    def create_job(self, manifest: dict[str, Any]) -> Job:
        """Make a Job. Refused with 409 where there is one of its name."""
        return self._ask(Job, "BatchV1Api", "create_namespaced_job", self._namespace, manifest)

    def job(self, name: str) -> Job | None:
        """The Job of a name."""
        try:
            return self._ask(Job, "BatchV1Api", "read_namespaced_job", name, self._namespace)
        except Refused as error:
            if error.status != 404:
                raise
            return None

    def jobs(self, selector: str) -> list[Job]:
        """The Jobs whose labels fit."""
        jobs: list[Job] = []
        more: dict[str, Any] = {}
        while True:
            page = self._ask(
                _Jobs, "BatchV1Api", "list_namespaced_job", self._namespace,
                label_selector=selector, limit=_PAGE, **more,
            )  # fmt: skip
            jobs += page.items or []
            if not page.metadata.mark:
                return jobs
            more = {"_continue": page.metadata.mark}

    def delete_job(self, name: str) -> None:
        """Delete a Job; its pod and its Secret follow, since they are its own. One that is gone is deleted."""
        try:
            self._call("BatchV1Api", "delete_namespaced_job", name, self._namespace, propagation_policy="Background")
        except Refused as error:
            if error.status != 404:
                raise

    def create_secret(self, manifest: dict[str, Any]) -> None:
        """Make a Secret whose name nobody else uses: one that is there came of an earlier try."""
        try:
            self._call("CoreV1Api", "create_namespaced_secret", self._namespace, manifest)
        except Refused as error:
            if error.status != 409:
                raise

    def pod(self, job: Job) -> Pod | None:
        """The newest pod of a Job."""
        # One of an earlier Job of that name may still be on its way out.
        found = self._ask(
            _Pods, "CoreV1Api", "list_namespaced_pod", self._namespace, label_selector=f"job-name={job.metadata.name}"
        )
        uid = job.metadata.uid
        own = [one for one in found.items or [] if uid in {owner.uid for owner in one.metadata.owner_references}]
        return max(own, key=lambda pod: pod.metadata.creation_timestamp, default=None)

    def events(self, of: Job | Pod) -> list[Event]:
        """What was said about a Job or a pod, oldest first."""
        found = self._ask(
            _Events, "CoreV1Api", "list_namespaced_event", self._namespace,
            field_selector=f"involvedObject.uid={of.metadata.uid}", limit=_PAGE,
        )  # fmt: skip
        return sorted(found.items or [], key=lambda one: one.last_timestamp or one.metadata.creation_timestamp)

    def log(self, pod: Pod, lines: int) -> str:
        """The last lines that a pod's container printed; none where it has not begun to."""
        try:
            said = self._call(
                "CoreV1Api", "read_namespaced_pod_log", pod.metadata.name, self._namespace,
                tail_lines=lines, limit_bytes=_LOG_BYTES,
            )  # fmt: skip
        except Refused as error:
            if error.status not in (400, 404):
                raise
            return ""
        return said.decode(errors="replace")

    def missing(self) -> list[str]:
        """What of PERMISSIONS is not allowed, such as `delete jobs`; nothing where the cluster does not tell."""
        try:
            return [
                f"{verb} {resource}" for verb, group, resource in PERMISSIONS if not self._may(verb, group, resource)
            ]
        except Refused:
            return []

    def _may(self, verb: str, group: str, resource: str) -> bool:
        name, _, part = resource.partition("/")
        attributes = {"namespace": self._namespace, "verb": verb, "group": group, "resource": name, "subresource": part}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        return self._ask(_Review, "AuthorizationV1Api", "create_self_subject_access_review", review).status.allowed

    def _ask(self, kind: type[T], api: str, name: str, *arguments: Any, **more: Any) -> T:
        content = self._call(api, name, *arguments, **more)
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise MachineError(
                f"{self._connection.host}: the answer is none of Kubernetes' API ({one_line(str(error), 200)}); "
                "is there another server at that address?"
            ) from None

    def _call(self, api: str, name: str, *arguments: Any, **more: Any) -> bytes:
        function = getattr(self._connection.api(api), name)
        for attempt in range(TRIES):
            try:
                return self._once(function, *arguments, **more)
            except Unreachable:
                if attempt == TRIES - 1:
                    raise
                self._pause(2.0**attempt)
        raise AssertionError("not reached")

    def _once(self, function: Callable[..., Any], *arguments: Any, **more: Any) -> bytes:
        import urllib3
        from kubernetes.client.exceptions import ApiException

        try:
            answer = function(*arguments, **more, _preload_content=False, _request_timeout=TIMEOUT)
            status, content = int(answer.status), bytes(answer.data)
        except ApiException as error:
            status, content = int(error.status or 0), _as_bytes(error.body or error.reason)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            host = self._connection.host
            raise Unreachable(f"{host}: the cluster can't be reached ({one_line(str(error), 300)})") from None
        if 200 <= status < 300:
            return content
        raise self._refusal(status, content)

    def _refusal(self, status: int, content: bytes) -> Exception:
        try:
            said = msgspec.json.decode(content, type=_Status).message
        except msgspec.DecodeError:
            said = ""
        said = one_line(said or content.decode(errors="replace"), 500) or "it gave no reason"
        host, place = self._connection.host, f"namespace {self._namespace} at {self._connection.host}"
        if status == 403 and "exceeded quota" in said:
            return NoCapacity(f"{place}: {said}")
        if status in (0, 408, 429) or status >= 500:
            return Unreachable(f"{host}: the cluster ails ({status}): {said}")
        mend = {
            401: "; log in to the cluster anew, as this kubeconfig's user is not known there",
            403: "; give the Role of docs/machines/kubernetes.md",
        }.get(status, "")
        return Refused(f"{place}: {said} ({status}){mend}", status)


def _as_bytes(said: object) -> bytes:
    return said if isinstance(said, bytes) else str(said or "").encode()
