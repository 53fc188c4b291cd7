"""A server that stands in for GitHub: it keeps comments, pull requests, runs and artifacts, and holds every request and
every answer of its own against GitHub's OpenAPI description (tests/data/github). Its faults are told it by a test."""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from openapi_core import OpenAPI
from openapi_core.testing import MockRequest, MockResponse

from .shapes import artifact_object, comment_object, pull_object, run_object, user_object

DATA = Path(__file__).resolve().parent.parent / "data" / "github"
REPOSITORY = "octo/train"
REPOSITORY_ID = 100
TOKEN = "ghs_" + "s3cretTokenThatNobodyMaySee" + "0" * 9


@functools.cache
def description() -> OpenAPI:
    """GitHub's description, cut down; its one server stands for the fake's, wherever that listens."""
    return OpenAPI.from_dict(json.loads((DATA / "api.json").read_bytes()))


@dataclass
class Fault:
    """What the server does instead of answering, `times` times, to requests that fit and whose body `holds` a text.

    `drop`: "before" closes the connection at once, "after" does what was asked and then closes it, "body" breaks off in
    the middle of the answer.
    """

    method: str
    path: str
    times: int = 1
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "Server Error"
    drop: str = ""
    holds: str = ""


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


class FakeGithub:
    """GitHub for one repository. `login` is None for the token of a job, which may not ask who it is."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.login: str | None = None
        self.read_only = False
        self.may_read_actions = True
        self.author = "github-actions[bot]"
        self.comments: list[dict[str, Any]] = []
        self.pulls: list[dict[str, Any]] = []
        self.runs: dict[int, dict[str, Any]] = {}
        self.artifacts: list[dict[str, Any]] = []
        self.blobs: dict[int, bytes] = {}
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.elsewhere: list[Asked] = []
        self.violations: list[str] = []
        self.meeting: threading.Barrier | None = None
        self._numbers = iter(range(1000, 10**6))
        self._lock = threading.Lock()
        self._server = _serve(self, _Api)
        self._blob_server = _serve(self, _Blobs)

    @property
    def url(self) -> str:
        """The API's address."""
        return f"http://127.0.0.1:{self._server.server_port}{self.prefix}"

    @property
    def blob_url(self) -> str:
        """Where artifacts lie: another host."""
        return f"http://127.0.0.1:{self._blob_server.server_port}"

    def close(self) -> None:
        """Stop listening."""
        for server in (self._server, self._blob_server):
            server.shutdown()
            server.server_close()

    def add_comment(self, body: str, author: str | None = None, issue: int = 7) -> dict[str, Any]:
        """Put a comment there, as if somebody had written it."""
        with self._lock:
            comment = comment_object(next(self._numbers), self.url, issue, author or self.author, body)
            self.comments.append(comment)
            return comment

    def add_pull(self, number: int = 7, **more: Any) -> dict[str, Any]:
        """A pull request; see shapes.pull_object."""
        self.pulls.append(pull_object(number, REPOSITORY_ID, REPOSITORY, **more))
        return self.pulls[-1]

    def add_run(self, run_id: int, **more: Any) -> dict[str, Any]:
        """A run; see shapes.run_object."""
        self.runs[run_id] = run_object(run_id, REPOSITORY_ID, REPOSITORY, **more)
        return self.runs[run_id]

    def add_artifact(self, run_id: int, content: bytes, **more: Any) -> dict[str, Any]:
        """An artifact of a run that was added before."""
        number = next(self._numbers)
        self.artifacts.append(artifact_object(number, self.runs[run_id], len(content), REPOSITORY_ID, **more))
        self.blobs[number] = content
        return self.artifacts[-1]

    def bodies(self) -> list[str]:
        """The comments' texts."""
        return [comment["body"] for comment in self.comments]

    def calls(self, method: str) -> list[str]:
        """The paths that were asked for by a method."""
        return [one.path for one in self.asked if one.method == method]

    def fault_for(self, asked: Asked) -> Fault | None:
        """The fault that hits a request, used up by one."""
        with self._lock:
            for fault in self.faults:
                fits = fault.method == asked.method and re.search(fault.path, asked.path)
                if fault.times and fits and fault.holds in json.dumps(asked.body):
                    fault.times -= 1
                    return fault
        return None

    def answer(self, asked: Asked) -> tuple[int, dict[str, str], Any]:
        """Status, headers and content for a request."""
        for method, pattern, handler in _ROUTES:
            found = re.fullmatch(pattern, asked.path)
            if method == asked.method and found:
                return handler(self, asked, *found.groups())
        return 404, {}, _problem("Not Found")

    def user(self, asked: Asked) -> tuple[int, dict[str, str], Any]:
        if self.login is None:
            return 403, {}, _problem("Resource not accessible by integration")
        return 200, {}, user_object(self.login) | PRIVATE

    def list_comments(self, asked: Asked, issue: str) -> tuple[int, dict[str, str], Any]:
        if self.meeting is not None:
            self.meeting.wait(5)
        with self._lock:
            found = [dict(one) for one in self.comments if one["issue_url"].endswith(f"/issues/{issue}")]
        return self._page(asked, found)

    def create_comment(self, asked: Asked, issue: str) -> tuple[int, dict[str, str], Any]:
        if self.read_only:
            return 403, {}, _problem("Resource not accessible by integration")
        if len(asked.body["body"]) > 65_536:
            return 422, {}, _problem("Validation Failed") | {"errors": [{"resource": "IssueComment", "code": "custom"}]}
        return 201, {}, self.add_comment(asked.body["body"], issue=int(issue))

    def change_comment(self, asked: Asked, number: str) -> tuple[int, dict[str, str], Any]:
        found = [one for one in self.comments if one["id"] == int(number)]
        if self.read_only:
            return 403, {}, _problem("Resource not accessible by integration")
        if not found:
            return 404, {}, _problem("Not Found")
        if asked.method == "DELETE":
            with self._lock:
                self.comments.remove(found[0])
            return 204, {}, None
        found[0]["body"] = asked.body["body"]
        return 200, {}, found[0]

    def one_pull(self, asked: Asked, number: str) -> tuple[int, dict[str, str], Any]:
        found = [one for one in self.pulls if one["number"] == int(number)]
        return (200, {}, found[0]) if found else (404, {}, _problem("Not Found"))

    def list_pulls(self, asked: Asked) -> tuple[int, dict[str, str], Any]:
        (head,) = asked.query["head"]
        return self._page(asked, [one for one in self.pulls if one["head"]["label"] == head])

    def pulls_of_commit(self, asked: Asked, sha: str) -> tuple[int, dict[str, str], Any]:
        own = [one for one in self.pulls if one["head"]["repo"]["id"] == REPOSITORY_ID]
        return self._page(asked, [one for one in own if one["head"]["sha"] == sha])

    def one_run(self, asked: Asked, number: str) -> tuple[int, dict[str, str], Any]:
        run = self.runs.get(int(number))
        if not self.may_read_actions:
            return 403, {}, _problem("Resource not accessible by integration")
        return (200, {}, run) if run else (404, {}, _problem("Not Found"))

    def list_artifacts(self, asked: Asked, run: str | None = None) -> tuple[int, dict[str, str], Any]:
        if not self.may_read_actions:
            return 403, {}, _problem("Resource not accessible by integration")
        found = [one for one in reversed(self.artifacts) if one["name"] in asked.query.get("name", [one["name"]])]
        found = [one for one in found if run is None or one["workflow_run"]["id"] == int(run)]
        status, headers, page = self._page(asked, found)
        return status, headers, {"total_count": len(found), "artifacts": page}

    def artifact_zip(self, asked: Asked, number: str) -> tuple[int, dict[str, str], Any]:
        if int(number) not in self.blobs:
            return 410, {}, _problem("Gone")
        return 302, {"Location": f"{self.blob_url}/{number}?sig=signed"}, None

    def _page(self, asked: Asked, found: list[Any]) -> tuple[int, dict[str, str], Any]:
        size = min(100, int(asked.query.get("per_page", ["30"])[0]))
        number = int(asked.query.get("page", ["1"])[0])
        headers = {}
        if number * size < len(found):
            query = "&".join(f"{name}={values[0]}" for name, values in asked.query.items() if name != "page")
            headers["Link"] = f'<{self.url}{asked.path}?{query}&page={number + 1}>; rel="next"'
        return 200, headers, found[(number - 1) * size : number * size]

    def check(self, asked: Asked, answer: tuple[int, dict[str, str], Any] | None = None) -> bool:
        """Hold a request, or its answer, against the description; whether it is as that says."""
        request = MockRequest(
            "https://api.github.com", asked.method.lower(), asked.path, args=asked.query, headers=asked.headers,
            data=json.dumps(asked.body).encode() if asked.body is not None else None, content_type="application/json",
        )  # fmt: skip
        try:
            if answer is None:
                description().validate_request(request)
                return True
            status, headers, content = answer
            response = MockResponse(
                json.dumps(content).encode() if content is not None else b"", status, headers, "application/json"
            )
            description().validate_response(request, response)
        except Exception as error:
            errors = getattr(error.__cause__, "schema_errors", None) or [error]
            told = "; ".join(
                f"{list(getattr(one, 'path', []))} {getattr(one, 'message', one)!r}"[:300] for one in errors
            )
            self.violations.append(f"{asked.method} {asked.path} {answer and answer[0]}: {told}")
            return False
        return True


PRIVATE = {
    "name": None, "company": None, "blog": None, "location": None, "email": None, "hireable": None, "bio": None,
    "public_repos": 0, "public_gists": 0, "followers": 0, "following": 0, "created_at": "2020-01-01T00:00:00Z",
    "updated_at": "2020-01-01T00:00:00Z", "collaborators": 0, "disk_usage": 0, "owned_private_repos": 0,
    "private_gists": 0, "total_private_repos": 0, "two_factor_authentication": True, "user_view_type": "private",
}  # fmt: skip
_R = rf"/repos/{REPOSITORY}"
_ROUTES: list[tuple[str, str, Callable[..., tuple[int, dict[str, str], Any]]]] = [
    ("GET", "/user", FakeGithub.user),
    ("GET", rf"{_R}/issues/(\d+)/comments", FakeGithub.list_comments),
    ("POST", rf"{_R}/issues/(\d+)/comments", FakeGithub.create_comment),
    ("PATCH", rf"{_R}/issues/comments/(\d+)", FakeGithub.change_comment),
    ("DELETE", rf"{_R}/issues/comments/(\d+)", FakeGithub.change_comment),
    ("GET", rf"{_R}/pulls", FakeGithub.list_pulls),
    ("GET", rf"{_R}/pulls/(\d+)", FakeGithub.one_pull),
    ("GET", rf"{_R}/commits/(\w+)/pulls", FakeGithub.pulls_of_commit),
    ("GET", rf"{_R}/actions/runs/(\d+)", FakeGithub.one_run),
    ("GET", rf"{_R}/actions/artifacts", FakeGithub.list_artifacts),
    ("GET", rf"{_R}/actions/runs/(\d+)/artifacts", FakeGithub.list_artifacts),
    ("GET", rf"{_R}/actions/artifacts/(\d+)/zip", FakeGithub.artifact_zip),
]


def _problem(message: str) -> dict[str, Any]:
    return {"message": message, "documentation_url": "https://docs.github.com/rest"}


class _Server(ThreadingHTTPServer):
    def __init__(self, fake: FakeGithub, handler: type[_Handler]) -> None:
        self.fake = fake
        super().__init__(("127.0.0.1", 0), type("Handler", (handler,), {"fake": fake}))

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):  # the client hung up first
            self.fake.violations.append(f"the server itself failed: {error!r}")


def _serve(fake: FakeGithub, handler: type[_Handler]) -> ThreadingHTTPServer:
    server = _Server(fake, handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeGithub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def read(self) -> Asked:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        parts = urlsplit(self.path)
        path = parts.path.removeprefix(self.fake.prefix)
        return Asked(self.command, path, parse_qs(parts.query), dict(self.headers.items()), body)

    def write(self, status: int, headers: dict[str, str], body: bytes, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.hang_up()

    def hang_up(self) -> None:
        self.close_connection = True


class _Api(_Handler):
    def handle_one(self) -> None:
        asked = self.read()
        fake = self.fake
        fake.asked.append(asked)
        if not fake.check(asked):
            self.write(422, {}, json.dumps(_problem("Validation Failed")).encode())
            return
        fault = fake.fault_for(asked)
        if fault is not None and fault.drop == "before":
            self.hang_up()
            return
        if fault is not None and fault.status:
            self.write(fault.status, fault.headers, json.dumps(_problem(fault.message)).encode())
            return
        status, headers, content = fake.answer(asked)
        if status not in (403, 404):  # the description tells of these for some calls only, GitHub answers them to any
            fake.check(asked, (status, headers, content))
        if fault is not None and fault.drop == "after":
            self.hang_up()
            return
        body = b"" if content is None else json.dumps(content).encode()
        self.write(status, headers, body, cut=fault is not None and fault.drop == "body")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one


class _Blobs(_Handler):
    def do_GET(self) -> None:
        asked = self.read()
        self.fake.elsewhere.append(asked)
        fault = self.fake.fault_for(Asked("GET", f"/blob{asked.path}", {}, {}, None))
        body = self.fake.blobs[int(asked.path[1:])]
        self.write(200, {}, body, cut=fault is not None and fault.drop == "body")
