"""Workflows run by act, without a network: a training repository, stand-ins for GitHub's actions, and the server that
stands in for GitHub."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..github.fake import REPOSITORY, TOKEN

PROJECT = Path(__file__).resolve().parent.parent.parent
PROGRAMS = Path(sys.executable).parent
"""Where the test's own environment has act and the linters."""
PATH = f"{PROGRAMS}{os.pathsep}{os.environ.get('PATH', '')}"
STUBS = Path(__file__).resolve().parent / "stubs"
TRACES = PROJECT / "tests" / "data" / "traces" / "h200"
SYMMETRIC, FELL_BACK = "g2n2289_single_thread", "g2n2289_whole_step"
"""Recorded runs of two ranks: all symmetric; and backward fallen back."""
_FOREIGN = re.compile(r"uses:\s*([\w.-]+/[\w.-]+)@([0-9a-f]{40})")
_EXAMPLE = re.compile(r"^```yaml\n# (\.github/workflows/[\w-]+\.yml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Ended(NamedTuple):
    """How act ended: its exit status, each job's result by name, and the whole log."""

    status: int
    jobs: dict[str, str]
    log: str


def examples() -> dict[str, str]:
    """The workflows in docs/workflows.md, by path."""
    return dict(_EXAMPLE.findall((PROJECT / "docs" / "workflows.md").read_text(encoding="utf-8")))


def pins(files: Iterable[Path]) -> dict[tuple[str, str], set[str]]:
    """Which foreign actions are used, by name and commit, and in which files."""
    found: dict[tuple[str, str], set[str]] = {}
    for file in files:
        for name, commit in _FOREIGN.findall(file.read_text(encoding="utf-8")):
            found.setdefault((name, commit), set()).add(file.name)
    return found


def yaml_files() -> list[Path]:
    """All that may name an action: action.yml, the workflows, and the page with the examples."""
    return [
        PROJECT / "action.yml", PROJECT / "docs" / "workflows.md", *sorted((PROJECT / ".github").rglob("*.yml")),
    ]  # fmt: skip


def copy_project(to: Path) -> Path:
    """What a release has of the action, without the rest of a checkout."""
    for name in ("runner", "checks", "requirements", ".github"):
        shutil.copytree(PROJECT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("action.yml", "pyproject.toml", "README.md", "CHANGELOG.md"):
        shutil.copy(PROJECT / name, to / name)
    return to


def warm(action: Path, folder: Path) -> Path:
    """The action's packages, made once for all jobs of the tests, and a script that gives them to a job: its path.

    Each job of act has an empty RUNNER_TEMP, as one of GitHub's machines. Making the packages there is tested with the
    action.
    """
    code = "import pathlib, sys; sys.path.insert(0, sys.argv[1]); import action_start as start\n"
    code += "start.packages(pathlib.Path(sys.argv[2]))"
    subprocess.run(
        [shutil.which("python3", path=PATH) or "python3", "-I", "-S", "-c", code, str(action / "runner"), str(folder)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    script = folder / "give.sh"
    script.write_text(
        # act loses what a step says in its last moments: it does not wait for it.
        "trap 'sleep 0.3' EXIT\n"
        'if [ -n "$RUNNER_TEMP" ] && [ ! -e "$RUNNER_TEMP/symmem-check" ]; then\n'
        f'  mkdir -p "$RUNNER_TEMP/symmem-check" && ln -s {shlex.quote(str(folder))}/symmem-check/packages-* '
        '"$RUNNER_TEMP/symmem-check/"\nfi\n',
        encoding="utf-8",
    )
    return script


class Repository:
    """A repository on a branch, in a folder, and what act needs to run its workflows."""

    def __init__(self, folder: Path, action: Path, api: str, cache: Path, before: Path) -> None:
        self.folder, self.artifacts = folder / "repo", folder / "artifacts"
        self._action, self._api, self._cache, self._temp = action, api, cache, folder / "tmp"
        self._before = before
        for made in (self.folder, self.artifacts, self._temp):
            made.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        """Run git in it."""
        who = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *arguments], cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text, encoding="utf-8")

    def traces(self, name: str, folder: str = "traces") -> None:
        """Put a recorded run's traces there, instead of those of before."""
        shutil.rmtree(self.folder / folder, ignore_errors=True)
        (self.folder / folder).mkdir(parents=True)
        for file in sorted(TRACES.glob(f"{name}_r*.json.gz")):
            shutil.copy(file, self.folder / folder / file.name)

    def act(
        self, event: str, workflow: str, payload: dict[str, Any], *more: str, commit: bool = True, **variables: str
    ) -> Ended:
        """Commit all, then run a workflow as GitHub would for an event; `variables` are the environment's."""
        if commit:
            self.git("add", "--all")
            self.git("commit", "--quiet", "--allow-empty", "--message", "all")
        (self._temp / "event.json").write_text(json.dumps(payload), encoding="utf-8")
        given = {
            "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_API_URL": self._api, "GITHUB_RUN_ID": "50",
            "GITHUB_RUN_NUMBER": "5", "GITHUB_RUN_ATTEMPT": "1", "STUB_ARTIFACTS": str(self.artifacts),
            "BASH_ENV": str(self._before),
        } | variables  # fmt: skip
        local = [f"org/symmem-check@v1={self._action}"]
        local += [f"{name}@{commit}={STUBS / name.split('/')[1]}" for name, commit in pins(yaml_files())]
        command = [
            str(PROGRAMS / "act"), event, "--json", "--workflows", workflow,
            "--eventpath", str(self._temp / "event.json"),
            "--secret", f"GITHUB_TOKEN={TOKEN}", "--no-cache-server", "--action-offline-mode",
            *(f"--platform={label}=-self-hosted" for label in ("gpu", "ubuntu-24.04")),
            *(f"--local-repository={one}" for one in local),
            *(word for name, value in given.items() for word in ("--env", f"{name}={value}")), *more,
        ]  # fmt: skip
        kept = ("HOME", "LANG", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "PIP_CACHE_DIR")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment |= {"PATH": PATH, "XDG_CACHE_HOME": str(self._cache), "TMPDIR": str(self._temp)}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        return _ended(done.returncode, done.stdout + done.stderr)


def _ended(status: int, output: str) -> Ended:
    jobs, lines = {}, []
    for line in output.splitlines():
        try:
            told = json.loads(line)
        except ValueError:
            lines.append(line)
            continue
        lines.append(str(told.get("msg", "")))
        if "jobResult" in told:
            jobs[str(told.get("job", "")).split("/", 1)[-1].strip()] = told["jobResult"]
    return Ended(status, jobs, "\n".join(lines))


def zipped(folder: Path) -> bytes:
    """An artifact's folder as the zip file that GitHub serves."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder).as_posix())
    return made.getvalue()
