"""GitHub with self-hosted runners, beside the stand-in that serves the rest, and the program that plays a runner."""

from __future__ import annotations

import base64
import json
import re
import time
from pathlib import Path
from typing import Any

from ..github.fake import REPOSITORY, Asked, FakeGithub, _Handler, _serve
from ..github.shapes import event

RUNNER = Path(__file__).with_name("runner")
ADMIN = "github_pat_" + "adminTokenThatNoMachineMaySee" + "0" * 9
ORGANIZATION = "octo"
Answer = tuple[int, dict[str, str], Any]


class FakeWithRunners(FakeGithub):
    """GitHub with the runners of a repository and of its organisation.

    `job` is the shell command that each runner gets as its one job, None for no job at all. `over` are the runs'
    attempts that have ended; all others are in progress. What a runner says comes in by a door of its own; with
    `comes_at_once` each is online as soon as it is known.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runners: list[dict[str, Any]] = []
        self.over: set[tuple[int, int]] = set()
        self.job: str | None = "true"
        self.private = True
        self.comes_at_once = False
        self.played: list[tuple[str, int]] = []
        self.said: list[str] = []
        self._back = _serve(self, _BackDoor)

    def close(self) -> None:
        """Stop listening."""
        super().close()
        self._back.shutdown()
        self._back.server_close()

    def names(self) -> list[str]:
        """The runners' names."""
        return [runner["name"] for runner in self.runners]

    def configuration(self, name: str) -> str:
        """The just-in-time configuration of a runner: here, where to say what it does, and the job."""
        told = {"name": name, "back": f"http://127.0.0.1:{self._back.server_port}", "job": self.job}
        return base64.b64encode(json.dumps(told | {"secret": "jitSecretThatNoLogMayShow" * 40}).encode()).decode()

    def answer(self, asked: Asked) -> Answer:
        if asked.path == f"/repos/{REPOSITORY}":
            return 200, {}, repository_object(private=self.private)
        if run := re.fullmatch(rf"/repos/{REPOSITORY}/actions/runs/(\d+)", asked.path):
            return self._run(asked, int(run[1]))
        admin = asked.headers.get("Authorization") == f"Bearer {ADMIN}"
        if not (
            found := re.fullmatch(rf"(?:/repos/{REPOSITORY}|/orgs/{ORGANIZATION})/actions/runners(.*)", asked.path)
        ):
            return super().answer(asked)
        if not admin:
            return 403, {}, {"message": "Resource not accessible by integration", "documentation_url": "https://d"}
        if found[1] == "/generate-jitconfig":
            return self._generate(asked)
        if asked.method == "DELETE":
            return self._delete(int(found[1][1:]))
        wanted = asked.query.get("name", [None])[0]
        runners = [dict(one) for one in self.runners if wanted in (None, one["name"])]
        status, headers, page = self._page(asked, runners)
        return status, headers, {"total_count": len(runners), "runners": page}

    def _run(self, asked: Asked, number: int) -> Answer:
        if number not in self.runs:
            self.add_run(number)
        attempts = [attempt for run, attempt in self.over if run == number]
        run = self.runs[number] | {"run_attempt": max([1, *attempts])}
        return 200, {}, run | {"status": "completed" if attempts else "in_progress"}

    def _generate(self, asked: Asked) -> Answer:
        with self._lock:
            if asked.body["name"] in self.names():
                return 409, {}, {"message": "Already exists", "documentation_url": "https://d"}
            runner = runner_object(next(self._numbers), asked.body["name"], asked.body["labels"])
            runner["status"] = "online" if self.comes_at_once else "offline"
            self.runners.append(runner)
        return 201, {}, {"runner": runner, "encoded_jit_config": self.configuration(runner["name"])}

    def _delete(self, number: int) -> Answer:
        with self._lock:
            found = [one for one in self.runners if one["id"] == number]
            if found and found[0]["busy"]:
                return 422, {}, {"message": "Bad request - Runner is running a job", "documentation_url": "https://d"}
            self.runners[:] = [one for one in self.runners if one["id"] != number]
        return (204, {}, None) if found else (404, {}, {"message": "Not Found", "documentation_url": "https://d"})

    def hear(self, name: str, what: str, status: int) -> int:
        """What a runner says: `online`, `busy` or `done`; 410 to one that was forgotten."""
        with self._lock:
            self.said.append(f"{name} {what}")
            found = [one for one in self.runners if one["name"] == name]
            if not found:
                return 410
            found[0]["status"] = "online"
            found[0]["busy"] = what == "busy"
            if what == "done":  # an ephemeral runner is forgotten after its job
                self.runners.remove(found[0])
                self.played.append((name, status))
        return 200

    def wait_for(self, what: str, seconds: float = 30.0) -> None:
        """Wait until some runner said something."""
        end = time.monotonic() + seconds
        while not any(said.endswith(f" {what}") for said in self.said):
            assert time.monotonic() < end, f"no runner was {what} within {seconds} s: {self.said}"
            time.sleep(0.05)


class _BackDoor(_Handler):
    def do_POST(self) -> None:
        asked = self.read()
        _, name, what = asked.path.split("/")
        self.write(self.fake.hear(name, what, asked.body or 0), {}, b"")


def runner_object(number: int, name: str, labels: list[str]) -> dict[str, Any]:
    """A `runner`: known, and offline until its program comes."""
    return {
        "id": number, "name": name, "os": "unknown", "status": "offline", "busy": False, "runner_group_id": 1,
        "labels": [{"name": label, "type": "custom"} for label in labels],
    }  # fmt: skip


def repository_object(*, private: bool) -> dict[str, Any]:
    """A `full-repository`, from a real event."""
    whole = event("pull_request.opened")["pull_request"]["base"]["repo"]
    more = {"network_count": 0, "subscribers_count": 0, "has_discussions": False, "organization": None}
    return {name: value for name, value in (more | whole).items() if name != "organization"} | {
        "full_name": REPOSITORY, "private": private,
    }  # fmt: skip
