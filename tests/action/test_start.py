"""The action's own environment: made by any Python, apart from it, reused, and refused in words where it can't be."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

from .composite import Composite
from .conftest import Play, load_start

pytestmark = [pytest.mark.slow, pytest.mark.needs_program("bash")]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A user's environment with pip and one package of their own, in a path with a space."""
    folder = tmp_path / "my environment"
    venv.create(folder, with_pip=True, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    info = site / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    # What would break the action if it were looked at.
    for name in ("msgspec.py", "yaml.py", "runner.py", "rich.py"):
        (site / name).write_text("raise SystemExit('the wrong package')")
    return folder / "bin" / "python3"


def freeze(python: Path) -> tuple[str, list[str]]:
    """What pip says is there, and every file in the environment but bytecode."""
    done = subprocess.run([python, "-m", "pip", "freeze", "--all"], capture_output=True, text=True, check=True)
    files = (path for path in python.parent.parent.rglob("*") if "__pycache__" not in path.parts)
    return done.stdout, sorted(map(str, files))


def path_with(python: Path) -> str:
    return f"{python.parent}:{os.environ['PATH']}"


def test_the_users_environment_is_never_touched(
    action: Path, workspace: Path, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = freeze(python)
    assert "mine==1.0" in before[0]
    temp = tmp_path / "a temp"
    temp.mkdir()
    for name in ("runner", "checks", "msgspec"):  # the repository's own, and the caller's path
        (workspace / name).mkdir()
        (workspace / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    (tmp_path / "constraints.txt").write_text("msgspec==0.1\n")
    # As NVIDIA's containers and careful people have them.
    hostile = {"PYTHONPATH": str(workspace), "PIP_CONSTRAINT": str(tmp_path / "constraints.txt"), "PIP_USER": "1"}
    hostile |= {"PIP_REQUIRE_VIRTUALENV": "1", "VIRTUAL_ENV": str(python.parent.parent)}
    monkeypatch.setenv("PATH", path_with(python))
    composite = Composite(action, workspace, temp, **hostile)
    played = composite.play(traces="traces/*.json.gz", baseline="none")
    assert played.statuses == {"setup": 0, "fetch": 0, "run": 0, "report": 0}, played.logs
    assert composite._known["steps.setup.outputs.python"] == str(python)
    assert freeze(python) == before
    made = [path.name for path in (temp / "symmem-check").iterdir()]
    assert sum(name.startswith("packages-") for name in made) == 1
    assert not any(name.startswith("making-") for name in made)
    # The code under test sees the caller's variables as they were.
    assert played.environments["run"]["PYTHONPATH"] == str(workspace)


def test_a_python_without_pip_will_do(action: Path, tmp_path: Path) -> None:
    """As in an environment that uv made."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import action_start; from pathlib import Path; "
        "print(action_start.packages(Path(sys.argv[2])))"
    )
    command = [tmp_path / "bare/bin/python", "-I", "-S", "-c", code, action / "runner", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = Path(done.stdout.strip())
    assert (folder / "msgspec").is_dir() and (folder / "jinja2").is_dir()
    assert [path.name for path in (tmp_path / "symmem-check").iterdir()] == [folder.name]


def test_it_is_made_once_and_anew_when_the_lock_changes(
    action: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = load_start(action)
    monkeypatch.setattr(start, "_install", lambda *given: pytest.fail("it was made again"))
    same = start.packages(made)
    other = tmp_path / "other"
    (other / "runner").mkdir(parents=True)
    shutil.copyfile(action / "runner/action_start.py", other / "runner/action_start.py")
    (other / "requirements").mkdir()
    text = (action / "requirements/action.txt").read_text()
    (other / "requirements/action.txt").write_text(text[: text.index("charset-normalizer==")])
    changed = load_start(other).packages(made)
    assert changed != same and changed.parent == same.parent
    assert {path.name for path in changed.iterdir() if "." not in path.name} == {"certifi"}
    shutil.rmtree(changed)


def test_a_package_that_is_not_the_locked_one_is_refused(
    action: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runner").mkdir()
    shutil.copyfile(action / "runner/action_start.py", tmp_path / "runner/action_start.py")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/action.txt").write_text(f"six==1.17.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(SystemExit) as raised:
        load_start(tmp_path).packages(tmp_path)
    assert raised.value.code == 2
    out, err = capsys.readouterr()
    assert out.startswith("::error title=symmem-check::") and "could not install the action's packages" in out
    assert "DO NOT MATCH THE HASHES" in err
    assert list((tmp_path / "symmem-check").iterdir()) == []


def test_a_machine_without_a_fitting_python_is_told(composite: Play, tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    bash = shutil.which("bash")
    assert bash is not None
    (bin_ / "bash").symlink_to(bash)
    old = bin_ / "python3"
    old.write_text("#!/bin/bash\nexit 1\n")  # as Python 3.9 answers the question
    old.chmod(0o755)
    played = composite(PATH=str(bin_)).play(traces="traces/*.json.gz")
    assert played.statuses == {"setup": 2}
    assert played.logs["setup"].startswith("::error title=symmem-check::no Python 3.10 or newer on the PATH")


def test_the_overhead_of_a_warm_call_is_under_two_seconds(composite: Play, workspace: Path) -> None:
    """Without probes: the smallest trace there is to read. Processor time, which a busy machine does not change."""
    (workspace / "cpu.json").write_text('{"traceEvents": []}')
    taken = []
    for _ in range(2):  # the first may have bytecode to write
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        played = composite().play(traces="cpu.json", baseline="none")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert set(played.statuses) == {"setup", "fetch", "run", "report"}, played.logs
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(taken) < 2
