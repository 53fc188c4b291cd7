"""The action's own environment, made by whatever Python 3.10 or newer the machine has, and then one of its steps.

action.yml runs this file as `python -I -S runner/action_start.py STEP`, so it has the standard library alone. The
locked packages lie in a folder of their own under RUNNER_TEMP, by the lock's content and the Python's build: pip's
--target changes nothing in the Python that pip belongs to, and needs no venv.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "requirements"
EXTRA = "SYMMEM_CHECK_EXTRA"
"""The variable that names what a provider of machines needs beside the rest: it has a lock of its own."""
DROPPED = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_CONSTRAINT", "PIP_REQUIREMENT", "PIP_NO_BINARY", "PIP_DRY_RUN")
"""Settings of the machine's pip that would put the packages elsewhere or refuse them; its index is kept."""
NO_PIP = "No module named pip"


def packages(temp: Path, extra: str = "") -> Path:
    """The folder with the locked packages, made under `temp` unless it is there. Raises SystemExit with the mend."""
    lock = LOCKS / (f"action-{extra}.txt" if extra else "action.txt")
    build = f"{sys.implementation.cache_tag} {sysconfig.get_config_var('SOABI')} {sysconfig.get_platform()}"
    name = hashlib.sha256(lock.read_bytes() + build.encode()).hexdigest()[:16]
    ready = temp / "symmem-check" / f"packages-{name}"
    if ready.is_dir():
        return ready
    ready.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ready.parent, prefix="making-") as making:
        _install(lock, Path(making), Path(making) / "packages")
        try:
            (Path(making) / "packages").rename(ready)
        except OSError:  # another job of this machine was faster
            if not ready.is_dir():
                raise
    return ready


def _install(lock: Path, folder: Path, target: Path) -> None:
    failed = _pip(sys.executable, lock, folder, target)
    if failed is not None and NO_PIP in failed:
        # As in an environment that uv made: the pip that Python ships with will do.
        made = subprocess.run(
            [sys.executable, "-I", "-m", "venv", str(folder / "venv")], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            _refuse(f"{sys.executable} has neither pip nor venv; install one of them (apt-get install python3-pip)")
        shutil.rmtree(target, ignore_errors=True)
        failed = _pip(str(folder / "venv" / "bin" / "python"), lock, folder, target)
    if failed is not None:
        print(failed, file=sys.stderr)
        _refuse(f"{sys.executable} -m pip could not install the action's packages; see above, it needs a package index")


def _pip(python: str, lock: Path, folder: Path, target: Path) -> str | None:
    """Install the lock into `target`; None, or what pip said where it failed."""
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED}
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTHON")}
    environment |= {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"]
    command += [
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--no-compile",
        "--target",
        str(target),
        "--requirement",
        str(lock),
    ]
    # -m looks for pip in the working folder first, so that is one with nothing in it.
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip()


def _refuse(why: str) -> None:
    print(f"::error title=symmem-check::{why}", flush=True)
    raise SystemExit(2)


def main() -> int:
    """Make the environment and run the step that the command line names; return the exit status."""
    temp = os.environ.get("RUNNER_TEMP")
    if not temp:
        _refuse("RUNNER_TEMP is not set; this is a step of the action, run it by uses:")
    assert temp is not None
    sys.path[:0] = [str(packages(Path(temp).resolve(), os.environ.get(EXTRA, ""))), str(ROOT)]
    action = importlib.import_module(f"{Path(__file__).resolve().parent.name}.action")
    status: int = action.main(sys.argv[1:])
    return status


if __name__ == "__main__":
    sys.exit(main())
