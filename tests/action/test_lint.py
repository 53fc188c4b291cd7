"""action.yml's scripts, its page of the reference and the lock of its packages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from runner.action_reference import reference

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHELLCHECK = Path(sys.executable).with_name("shellcheck")


@pytest.fixture(scope="module")
def steps(project: Path) -> list[dict[str, Any]]:
    return yaml.safe_load((project / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]


def test_no_value_stands_in_a_script_and_the_shell_finds_nothing_wrong(steps: list[dict[str, Any]]) -> None:
    scripts = [step["run"] for step in steps if "run" in step]
    assert len(scripts) == 5
    for script in scripts:
        assert "${{" not in script
        # exec: a cancel's signal must reach Python
        assert re.search(r'^ *exec "\$\w+" -I -S "\$GITHUB_ACTION_PATH/runner/action_start.py" \w+$', script, re.M)
        done = subprocess.run(
            [SHELLCHECK, "--shell=bash", "--enable=all", "--exclude=SC2154,SC2250,SC2312", "-"],
            input=script, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_foreign_is_pinned_by_its_whole_sha(steps: list[dict[str, Any]]) -> None:
    foreign = [step["uses"] for step in steps if "uses" in step]
    assert foreign
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", name) for name in foreign)


def test_the_page_of_the_reference_is_made_from_action_yml(project: Path) -> None:
    text = (project / "action.yml").read_text(encoding="utf-8")
    page = reference(text)
    assert (project / "docs" / "action.md").read_text(encoding="utf-8") == page, "make docs"
    action = yaml.safe_load(text)
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    assert rows == [*action["inputs"], *action["outputs"]]


def test_the_lock_has_every_dependency_with_hashes(project: Path) -> None:
    wanted = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    text = (project / "requirements" / "action.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    pinned = {}
    for words in lines:
        requirement = Requirement(" ".join(word for word in words if not word.startswith("--hash=")))
        assert any(word.startswith("--hash=sha256:") for word in words), requirement
        pinned[requirement.name] = requirement.specifier
    for one in map(Requirement, wanted):
        (exact,) = pinned[one.name]
        assert exact.operator == "=="
        assert one.specifier.contains(exact.version), f"{one}: make lock"
