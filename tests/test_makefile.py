"""The Makefile where it has to refuse: before anything is made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def make(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments], cwd=project, capture_output=True, text=True, check=False
    )


@pytest.mark.needs_program("make")
@pytest.mark.parametrize("target", ["check", "test", "lint"])
def test_a_python_that_is_too_old_or_none_is_told(project: Path, tmp_path: Path, target: str) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\nexit 0\n")  # as Python 3.9 does when asked for a version of 3.10 or newer
    old.chmod(0o755)
    for python in (old, tmp_path / "nowhere"):
        done = make(project, target, f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
        assert done.returncode != 0
        assert f"symmem-check needs Python 3.10 or newer, and '{python}' is none" in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.needs_program("make")
def test_clean_removes_the_environment(project: Path, tmp_path: Path) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "file").write_text("")
    planned = make(project, "--dry-run", "clean", f"VENV={tmp_path / 'venv'}")
    assert planned.returncode == 0
    assert planned.stdout.split()[:3] == ["rm", "-rf", str(tmp_path / "venv")]


@pytest.mark.needs_program("make")
def test_an_environment_that_make_did_not_make_is_left_alone(project: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "kept").touch()
    done = make(project, "lint", f"VENV={mine}")
    assert done.returncode != 0
    assert "was not made by this Makefile; give another folder with VENV=" in done.stderr
    assert [path.name for path in mine.iterdir()] == ["kept"]
