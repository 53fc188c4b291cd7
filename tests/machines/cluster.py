"""A Kubernetes cluster to test against: its API, over what cluster_node.py has behind it.

What comes in is held against Kubernetes' own schemas, and allowed by the Role in the documentation alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from ..github.fake import Asked, Fault, _Handler, _serve
from .cluster_node import NAMESPACE, Controllers

TOKEN = "tokenOfTheStartingJob" + "0" * 9
SCHEMA = "1.31"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "machines" / "kubernetes.md"
Answer = tuple[int, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
_CORE = f"/api/v1/namespaces/{NAMESPACE}"


def documents(kind: str) -> list[dict[str, Any]]:
    """The objects of a kind that the documentation shows."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [one for block in blocks for one in yaml.safe_load_all(block) if one.get("kind") == kind]


@dataclass
class FakeCluster(Controllers):
    """The cluster. `faults` are calls that fail, and how; `rules` are those of the Role."""

    namespace_is_there: bool = True
    rules: list[dict[str, Any]] = field(default_factory=lambda: documents("Role")[0]["rules"])
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.prefix = ""
        self.asked: list[Asked] = []
        self._server = _serve(self, _Api)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self, **user: Any) -> Path:
        """A kubeconfig with the contexts `ci`, which is the current one, and `stranger`."""
        users = [
            {"name": "ci", "user": {"token": TOKEN} | user},
            {"name": "stranger", "user": {"token": "another"}},
        ]
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "ci", "users": users,
            "clusters": [{"name": "here", "cluster": {"server": self.url}}],
            "contexts": [{"name": one["name"], "context": {"cluster": "here", "user": one["name"]}} for one in users],
        }  # fmt: skip
        file = self.folder / "kubeconfig"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        return file

    def close(self) -> None:
        """Stop listening, and end what runs."""
        self._server.shutdown()
        self._server.server_close()
        super().close()

    def answer(self, asked: Asked) -> Answer:
        """Status and content for a request."""
        headers = {name.lower(): value for name, value in asked.headers.items()}
        if headers.get("authorization") != f"Bearer {TOKEN}":
            return status(401, "Unauthorized")
        if asked.path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
            wanted = asked.body["spec"]["resourceAttributes"]
            what = "/".join(filter(None, (wanted["resource"], wanted.get("subresource"))))
            allowed = wanted["namespace"] == NAMESPACE and self._allows(wanted["verb"], wanted.get("group", ""), what)
            return 201, asked.body | {"status": {"allowed": allowed}}
        found = re.fullmatch(rf"(?:{_JOBS}|{_CORE}/(secrets|pods|events))(?:/([^/]+))?(/log)?", asked.path)
        if found is None:
            return status(404, "the server could not find the requested resource")
        what, name = found[1] or "jobs", found[2]
        group = "batch" if what == "jobs" else ""
        verb = {"POST": "create", "DELETE": "delete"}.get(asked.method, "get" if name else "list")
        if not self._allows(verb, group, what + (found[3] or "")):
            return status(
                403,
                f'{what}{"." + group if group else ""} is forbidden: User "ci" cannot {verb} resource "{what}" in API '
                f'group "{group}" in the namespace "{NAMESPACE}"',
            )
        with self.lock:
            return self._serve(asked, what, verb, name, bool(found[3]))

    def _allows(self, verb: str, group: str, what: str) -> bool:
        return any(
            verb in rule["verbs"] and group in rule["apiGroups"] and what in rule["resources"] for rule in self.rules
        )

    def _serve(self, asked: Asked, what: str, verb: str, name: str | None, log: bool) -> Answer:
        kept: dict[str, dict[str, Any]] = getattr(self, what) if what != "events" else {}
        if verb == "create":
            return self._create(asked.body, what, kept)
        if verb == "list":
            found = self.events if what == "events" else list(kept.values())
            return self._page(asked, [one for one in found if _fits(one, asked.query)])
        if name not in kept:
            return status(404, f'{what} "{name}" not found')
        if log:
            file = self.folder / str(name) / "log"
            if not file.exists():
                return status(400, f'container "runner" in pod "{name}" is waiting to start: ContainerCreating')
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            return 200, "".join(lines[-int(asked.query["tailLines"][0]) :]).encode()
        if verb == "delete":
            assert asked.query["propagationPolicy"] == ["Background"]
            return 200, kept.pop(name)
        return 200, kept[name]

    def _create(self, body: dict[str, Any], what: str, kept: dict[str, dict[str, Any]]) -> Answer:
        self._validate(body)
        name = body["metadata"]["name"]
        if not self.namespace_is_there:
            return status(404, f'namespaces "{NAMESPACE}" not found')
        if what == self.quota == "jobs":
            return status(
                403,
                f'jobs.batch "{name}" is forbidden: exceeded quota: q, requested: count/jobs.batch=1, used: '
                "count/jobs.batch=0, limited: count/jobs.batch=0",
            )
        if name in kept:
            return status(409, f'{what} "{name}" already exists')
        kept[name] = (
            body | {"metadata": body["metadata"] | self.metadata(name)} | ({"status": {}} if what == "jobs" else {})
        )
        return 201, kept[name]

    def _validate(self, body: dict[str, Any]) -> None:
        try:
            kubernetes_validate.validate(body, SCHEMA, strict=True)
        except kubernetes_validate.ValidationError as error:
            self.violations.append(f"{body.get('kind')} at {list(error.path)}: {error.message}")
        for metadata in (body["metadata"], body.get("spec", {}).get("template", {}).get("metadata", {})):
            labels = metadata.get("labels", {})
            wrong = [one for one in labels.values() if len(one) > 63 or not _LABEL.fullmatch(one)]
            if wrong or not all(isinstance(one, str) for one in metadata.get("annotations", {}).values()):
                self.violations.append(f"labels {wrong} in {metadata}")
        if len(body["metadata"]["name"]) > (63 if body["kind"] == "Job" else 253):
            self.violations.append(f"the name {body['metadata']['name']} is too long")
        if not _NAME.fullmatch(body["metadata"]["name"]):
            self.violations.append(f"the name {body['metadata']['name']} is none")

    def _page(self, asked: Asked, found: list[dict[str, Any]]) -> Answer:
        size, begin = int(asked.query.get("limit", ["500"])[0]), int(asked.query.get("continue", ["0"])[0])
        more = {"continue": str(begin + size)} if begin + size < len(found) else {}
        # Nothing is null in some releases.
        return 200, {"metadata": more, "items": found[begin : begin + size] or None}


class _Api(_Handler):
    fake: Any

    def handle_one(self) -> None:
        asked = self.read()
        self.fake.asked.append(asked)
        fault = next((one for one in self.fake.faults if _hits(one, asked)), None)
        if fault is not None:
            fault.times -= 1
        if fault is not None and fault.drop == "before":
            self.hang_up()
            return
        code, content = status(fault.status, fault.message) if fault and fault.status else self.fake.answer(asked)
        if fault is not None and fault.drop == "after":
            self.hang_up()
            return
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = "text/plain" if isinstance(content, bytes) else "application/json"
        self.write(code, {"Content-Type": kind}, body, cut=fault is not None and fault.drop == "body")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one


def status(code: int, message: str) -> Answer:
    """An error as Kubernetes' API gives it."""
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


def _hits(fault: Fault, asked: Asked) -> bool:
    return bool(fault.times) and fault.method == asked.method and re.search(fault.path, asked.path) is not None


def _fits(one: dict[str, Any], query: dict[str, list[str]]) -> bool:
    for wanted in filter(None, query.get("labelSelector", [""])[0].split(",")):
        key, value = wanted.split("=")
        if one["metadata"].get("labels", {}).get(key) != value:
            return False
    for wanted in filter(None, query.get("fieldSelector", [""])[0].split(",")):
        assert wanted.startswith("involvedObject.uid=")
        if one["involvedObject"]["uid"] != wanted.partition("=")[2]:
            return False
    return True
