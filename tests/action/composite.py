"""Plays action.yml as GitHub's runner does: each `run` in bash, in an environment that has only what the runner gives.

act sets INPUT_* in composite steps, and the runner does not, so a step that reads those would pass there alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

_EXPRESSION = re.compile(r"\$\{\{ (.*?) \}\}")
_IS_GIVEN = re.compile(r"(inputs\.[\w-]+) != ''")
_CONDITION = re.compile(r"(steps\.[\w-]+\.outputs\.[\w-]+) (==|!=) '([^']*)'")


@dataclass
class Played:
    """What one play left: each step's status by id, its output, the uploads by artifact, the outputs, the summary."""

    statuses: dict[str, int] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    environments: dict[str, dict[str, str]] = field(default_factory=dict)
    uploads: dict[str, list[Path]] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""

    @property
    def failed(self) -> bool:
        """Whether the action as a whole failed."""
        return any(self.statuses.values())


class Composite:
    """An action's folder, the workspace it runs in and the runner's temporary folder."""

    def __init__(self, action: Path, workspace: Path, temp: Path, **environment: str) -> None:
        self.action, self.workspace, self.temp = action, workspace, temp
        self.environment = environment
        self.document: dict[str, Any] = yaml.safe_load((action / "action.yml").read_text(encoding="utf-8"))

    def play(self, **inputs: str) -> Played:
        """Run the action with `inputs`, their names with underscores."""
        played = Played()
        for step, environment, script in self.steps(played, inputs):
            name = step["id"]
            done = subprocess.run(
                command(script), cwd=self.workspace, env=environment, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            self.take(played, name, done.returncode, done.stdout, environment)
        return played

    def steps(self, played: Played, inputs: Mapping[str, str]) -> Iterator[tuple[dict[str, Any], dict[str, str], Path]]:
        """The steps that run, one after another, as what was `played` says; each with its environment and script."""
        self._known: dict[str, str] = {}
        given = {name: self._resolve(about.get("default", "")) for name, about in self.document["inputs"].items()}
        for name, value in inputs.items():
            assert name.replace("_", "-") in given, name
            given[name.replace("_", "-")] = value
        self._known |= {f"inputs.{name}": value for name, value in given.items()}
        for step in self.document["runs"]["steps"]:
            if not self._runs(step, played):
                continue
            if "uses" in step:
                with_ = {name: self._resolve(value) for name, value in step["with"].items()}
                played.uploads[with_["name"]] = [Path(line) for line in with_["path"].splitlines()]
                continue
            script = self.temp / f"{uuid.uuid4()}.sh"
            script.write_text(step["run"])
            yield step, self._environment(step, script), script
        played.outputs = {name: self._resolve(about["value"]) for name, about in self.document["outputs"].items()}

    def take(self, played: Played, name: str, status: int, log: str, environment: dict[str, str]) -> None:
        """Take in what a step has left, as the runner does after it."""
        played.statuses[name], played.logs[name], played.environments[name] = status, log, environment
        text = Path(environment["GITHUB_OUTPUT"]).read_text()
        while text:
            found = re.match(r"([\w-]+)<<(\S+)\n(.*?)\n?\2\n", text, re.DOTALL)
            assert found, text
            self._known[f"steps.{name}.outputs.{found[1]}"] = found[3]
            text = text[found.end() :]
        played.summary += Path(environment["GITHUB_STEP_SUMMARY"]).read_text()

    def _runs(self, step: dict[str, Any], played: Played) -> bool:
        condition = step.get("if", "")
        whole = _EXPRESSION.fullmatch(condition)
        text = whole[1] if whole else condition
        if "always()" not in text and played.failed:
            return False
        return all(
            (self._known.get(name, "") == value) == (operator == "==")
            for name, operator, value in _CONDITION.findall(text)
        )

    def _resolve(self, value: Any) -> str:
        return _EXPRESSION.sub(lambda found: self._evaluated(found[1]), str(value))

    def _evaluated(self, expression: str) -> str:
        """A name's value, the first of several that is not empty, or whether an input is given."""
        if found := _IS_GIVEN.fullmatch(expression):
            return "true" if self._known.get(found[1], "") else "false"
        return next(filter(None, (self._known.get(name, "") for name in expression.split(" || "))), "")

    def _environment(self, step: dict[str, Any], script: Path) -> dict[str, str]:
        files = {name: script.with_suffix(f".{name}") for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.touch()
        common = {
            "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "CI": "true", "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(self.action), "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_TEMP": str(self.temp), **{name: str(file) for name, file in files.items()},
        }  # fmt: skip
        # What reaches a package index is the machine's, and none of the runner's.
        common |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
        common |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        own = {name: self._resolve(value) for name, value in step.get("env", {}).items()}
        return common | self.environment | own


def command(script: Path) -> list[str]:
    """How the runner starts a step of `shell: bash`."""
    return ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)]
