"""Time what the action itself costs: its four steps on two recorded traces, without probes.

    python -m tests.benchmarks.action --rounds 5

`cold` is a runner that has never had the action: its environment is made first, by pip from the package index that the
machine uses, with what pip has in its cache, or without a cache by `--no-cache`. `warm` is the next job on that runner.
Each step runs as GitHub's runner starts it. Told are the least and the median of the rounds: wall time and CPU time
(user and system, pip's in it). The Python is the one that runs this.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tests.action.composite import Composite, Played, command

PROJECT = Path(__file__).parents[2]
TRACES = "train_tp_ckpt_pool_r*.json.gz"


class Cost(NamedTuple):
    """Seconds."""

    wall: float
    cpu: float


def main() -> None:
    """Print a row for each step and their sum, cold and warm."""
    parser = argparse.ArgumentParser(description="Time the action's own steps on recorded traces.")
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--no-cache", action="store_true", help="let pip download everything, each time")
    parsed = parser.parse_args()
    variables = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if parsed.no_cache:
        variables["PIP_NO_CACHE_DIR"] = "1"
    cold: list[dict[str, Cost]] = []
    warm: list[dict[str, Cost]] = []
    with tempfile.TemporaryDirectory() as made:
        workspace = _workspace(Path(made) / "workspace")
        for number in range(parsed.rounds):
            temp = Path(made) / f"temp{number}"
            temp.mkdir()
            action = _action(Path(made) / f"action{number}")
            played = Composite(action, workspace, temp, **variables)
            cold.append(_play(played))
            warm.append(_play(played))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, pip {version('pip')}, {parsed.rounds} rounds\n")
    print("| | step | least wall s | median wall s | least CPU s | median CPU s |\n|---|---|---:|---:|---:|---:|")
    _print("cold", cold)
    _print("warm", warm)


def _action(folder: Path) -> Path:
    """What of the checkout a runner downloads and uses. No compiled file, as in a fresh download."""
    for name in ("runner", "checks", "requirements"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(PROJECT / "action.yml", folder / "action.yml")
    return folder


def _workspace(folder: Path) -> Path:
    (folder / "traces").mkdir(parents=True)
    for path in (PROJECT / "tests" / "data" / "traces" / "h200").glob(TRACES):
        shutil.copyfile(path, folder / "traces" / path.name)
    return folder


def _play(action: Composite) -> dict[str, Cost]:
    """Run the steps once; what each cost. Raises RuntimeError where one fails."""
    played = Played()
    costs = {}
    inputs = {"traces": "traces/*.gz", "baseline": "none", "page": "true"}
    for step, environment, script in action.steps(played, inputs):
        costs[step["id"]] = _step(action, played, step["id"], environment, script)
    costs["all"] = Cost(sum(cost.wall for cost in costs.values()), sum(cost.cpu for cost in costs.values()))
    return costs


def _step(action: Composite, played: Played, name: str, environment: Mapping[str, str], script: Path) -> Cost:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(
        command(script), cwd=action.workspace, env=environment, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"the step {name} ended with status {done.returncode}: {done.stdout[-2000:]}")
    action.take(played, name, done.returncode, done.stdout, dict(environment))
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _print(title: str, rounds: list[dict[str, Cost]]) -> None:
    for name in rounds[0]:
        walls, cpus = zip(*(costs[name] for costs in rounds), strict=True)
        figures = (min(walls), statistics.median(walls), min(cpus), statistics.median(cpus))
        print(f"| {title} | {name} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |")


if __name__ == "__main__":
    main()
