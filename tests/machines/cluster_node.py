"""What stands behind a cluster's API: what it keeps, its controllers, and a node that runs pods.

The Job's controller, the scheduler, the garbage collector and a quota do and say what those of release 1.20 did. The
node really runs the pod's command, with folders for the pod's mounts.
"""

from __future__ import annotations

import base64
import itertools
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMESPACE = "gpu-ci"


@dataclass
class Running:
    """A pod's container on this machine: its folder, and its process."""

    folder: Path
    process: subprocess.Popen[bytes]


@dataclass
class Controllers:
    """The objects, and what happens to them. A test says what is wrong:

    `room`: whether a node has a place; `image`: why the image can't be fetched, as reason and message; `quota`: what
    the quota bounds, `jobs` or `pods`; `refusal`: why no pod is admitted; `slow`: the node never gets to a pod; `dies`:
    a shell command that the pod runs instead of its own.
    """

    folder: Path
    room: bool = True
    image: tuple[str, str] | None = None
    quota: str = ""
    refusal: str = ""
    slow: bool = False
    dies: str = ""

    def __post_init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.violations: list[str] = []
        self.running: dict[str, Running] = {}
        self.ended: list[tuple[str, str]] = []
        self.lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._over = threading.Event()
        self._controllers = threading.Thread(target=self._control, daemon=True)
        self._controllers.start()

    def close(self) -> None:
        """End what runs."""
        self._over.set()
        self._controllers.join(30)
        for one in list(self.running):
            self._kill(one)

    def left(self) -> list[str]:
        """All that is there."""
        with self.lock:
            return [*self.jobs, *self.pods, *self.secrets, *self.running]

    def settle(self, seconds: float = 60.0) -> list[str]:
        """What is left once the garbage collector had its time."""
        end = time.monotonic() + seconds
        while self.left() and time.monotonic() < end:
            time.sleep(0.05)
        return self.left()

    def _control(self) -> None:
        while not self._over.wait(0.02):
            with self.lock:
                for step in (self._collect, self._make_pods, self._schedule, self._keep_node, self._finish):
                    try:
                        step()
                    except Exception as error:
                        self.violations.append(f"{step.__name__} failed: {error!r}")

    def _collect(self) -> None:
        """Remove what belongs to an object that is not there; a pod's processes get SIGTERM first."""
        alive = {one["metadata"]["uid"] for one in [*self.jobs.values(), *self.pods.values()]}
        for kept in (self.secrets, self.pods):
            for name, one in list(kept.items()):
                owners = {owner["uid"] for owner in one["metadata"].get("ownerReferences", [])}
                if owners and not owners & alive:
                    self._kill(name)
                    del kept[name]

    def _make_pods(self) -> None:
        for name, job in self.jobs.items():
            if self._pod_of(job) is not None or job["status"].get("conditions"):
                continue
            job["status"].setdefault("startTime", now())
            pod = f"{name}-{next(self._numbers):05}"
            exceeded = (
                f'pods "{pod}" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, '
                "used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=1"
            )
            why = exceeded if self.quota == "pods" else self.refusal.format(pod=pod)
            if why:
                self.event(job, "Warning", "FailedCreate", f"Error creating: {why}")
                continue
            template = job["spec"]["template"]
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
            self.pods[pod] = {
                "metadata": self.metadata(pod) | template["metadata"] | {
                    "labels": template["metadata"]["labels"] | {"job-name": name}, "ownerReferences": [owner],
                },
                "spec": dict(template["spec"]), "status": {"phase": "Pending"},
            }  # fmt: skip

    def _schedule(self) -> None:
        for pod in self.pods.values():
            if "nodeName" in pod["spec"]:
                continue
            if self.room:
                pod["spec"]["nodeName"] = "node-1"
                pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
                continue
            message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
            pod["status"]["conditions"] = [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            ]
            self.event(pod, "Warning", "FailedScheduling", message)

    def _keep_node(self) -> None:
        for name, pod in self.pods.items():
            if "nodeName" not in pod["spec"] or pod["status"]["phase"] not in ("Pending", "Running") or self.slow:
                continue
            if self.image is not None:
                reason, message = self.image
                _state(pod, waiting={"reason": reason, "message": message})
                self.event(pod, "Warning", "Failed", message)
                continue
            if name not in self.running:
                self.running[name] = self._run(name, pod)
                pod["status"]["phase"] = "Running"
                _state(pod, running={"startedAt": now()})
            self._mount(pod, self.running[name].folder)
            status = self.running[name].process.poll()
            if status is not None:
                del self.running[name]
                pod["status"]["phase"] = "Failed" if status else "Succeeded"
                _state(pod, terminated={"exitCode": status, "reason": "Error" if status else "Completed"})

    def _finish(self) -> None:
        for job in self.jobs.values():
            pod = self._pod_of(job)
            if pod is None or pod["status"]["phase"] not in ("Failed", "Succeeded") or job["status"].get("conditions"):
                continue
            over = {"type": "Complete", "status": "True"}
            if pod["status"]["phase"] == "Failed":
                said = "Job has reached the specified backoff limit"
                over = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": said}
            job["status"]["conditions"] = [over]

    # The node.

    def _run(self, name: str, pod: dict[str, Any]) -> Running:
        folder = self.folder / name
        for part in ("symmem-check/work", "symmem-check/jit"):
            (folder / part).mkdir(parents=True)
        (container,) = pod["spec"]["containers"]
        command = [
            _expanded(part).replace("/symmem-check/", f"{folder}/symmem-check/") for part in container["command"]
        ]
        if self.dies:
            command = ["bash", "-c", self.dies]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                env={"PATH": os.environ["PATH"], "HOME": str(folder)}, cwd=folder,
            )  # fmt: skip
        return Running(folder, process)

    def _mount(self, pod: dict[str, Any], folder: Path) -> None:
        """Put the Secret there once it is made, as a kubelet does with an optional one."""
        (volume,) = [one["secret"] for one in pod["spec"]["volumes"] if "secret" in one]
        assert volume["optional"] is True
        secret = self.secrets.get(volume["secretName"])
        for key, value in (secret or {"data": {}})["data"].items():
            file = folder / "symmem-check" / "jit" / key
            if not file.exists():
                part = file.with_name(f"..{key}")
                part.write_bytes(base64.b64decode(value))
                part.rename(file)

    def _kill(self, name: str) -> None:
        one = self.running.pop(name, None)
        if one is None:
            return
        one.process.send_signal(signal.SIGTERM)
        try:
            one.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
        self.ended.append((name, (one.folder / "log").read_text(encoding="utf-8")))

    def _pod_of(self, job: dict[str, Any]) -> dict[str, Any] | None:
        uid = job["metadata"]["uid"]
        found = [one for one in self.pods.values() if one["metadata"]["ownerReferences"][0]["uid"] == uid]
        return found[-1] if found else None

    def metadata(self, name: str) -> dict[str, Any]:
        """What every object gets when it is made."""
        uid = f"00000000-0000-4000-8000-{next(self._numbers):012}"
        return {"name": name, "namespace": NAMESPACE, "uid": uid, "creationTimestamp": now()}

    def event(self, about: dict[str, Any], kind: str, reason: str, message: str) -> None:
        """Say something about a Job or a pod, once."""
        told = {
            "metadata": self.metadata(f"{about['metadata']['name']}.{reason.lower()}"), "type": kind, "reason": reason,
            "message": message, "involvedObject": {"uid": about["metadata"]["uid"]}, "lastTimestamp": now(),
        }  # fmt: skip
        if not any((one["involvedObject"], one["reason"]) == (told["involvedObject"], reason) for one in self.events):
            self.events.append(told)


def now() -> str:
    """The time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _state(pod: dict[str, Any], **state: Any) -> None:
    pod["status"]["containerStatuses"] = [{"name": "runner", "state": state}]


def _expanded(text: str) -> str:
    """A command's part as a container gets it, without variables of its own: `$$` is a dollar, `$(X)` stays."""
    return text.replace("$$", "$")
