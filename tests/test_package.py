"""What an installed symmem-check is: one name in the environment, with every file it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from runner import __version__

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `python -m build` makes it: from the source distribution, so that one is complete too."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(project)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    assert found.name == f"symmem_check-{__version__}-py3-none-any.whl"
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the wheel; its dependencies are borrowed from this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*pip, "--quiet", wheel], check=True)
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return folder / "bin"


def run(command: list[str | Path], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | environment
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_claims_one_name_and_has_every_file(project: Path, wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"symmem_check-{__version__}.dist-info/"
    assert {name.split("/")[0] for name in names} == {"symmem_check", info.rstrip("/")}
    assert info + "licenses/LICENSE" in names
    shipped = {name for name in names if not name.startswith(info)}
    assert shipped == ours(project, "runner", "symmem_check") | ours(project, "checks", "symmem_check/checks")
    needed = {"kernels.yaml", "checks/suites/default.yaml", "replay/plan.json", "report/templates/summary.md.j2"}
    assert {f"symmem_check/{name}" for name in needed} <= shipped


def ours(project: Path, folder: str, name: str) -> set[str]:
    files = [path for path in (project / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {f"{name}/{path.relative_to(project / folder).as_posix()}" for path in files}


def test_the_console_script_answers_from_a_repository_with_the_same_names(installed: Path, tmp_path: Path) -> None:
    for name in ("runner", "checks", "symmem_check", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    version = run([installed / "symmem-check", "--version"], tmp_path)
    assert (version.returncode, version.stderr) == (0, "")
    assert __version__ in version.stdout
    refused = run([installed / "symmem-check", "run", "--suite", "defualt"], tmp_path)
    assert refused.returncode == 2
    assert 'did you mean "default"' in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_installed_package_finds_its_suite_and_workloads(installed: Path, tmp_path: Path) -> None:
    code = "from symmem_check.suite import load_suite as l; s = l('default'); print(s.path, len(s.plan().cases))"
    done = run([installed / "python", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    path, cases = done.stdout.split()
    assert path.endswith("symmem_check/checks/suites/default.yaml")
    assert Path(path).is_relative_to(installed.parent)
    assert cases == "18"


def test_the_installed_package_judges_its_recorded_run(installed: Path, tmp_path: Path) -> None:
    outside_actions = {"GITHUB_ACTIONS": "false"}
    done = run([installed / "symmem-check", "run", "--replay", "--out", "out"], tmp_path, **outside_actions)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "result.json").read_bytes())["replay"] is True
