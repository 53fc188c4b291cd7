"""Time a suite's cases in one process group beside one torchrun for each case, on this machine's GPU.

    python -m tests.benchmarks.runs --nccl /path/to/libnccl.so.2 --rounds 3

Only cases of one launch configuration are taken, so that the suite needs one start of the ranks. Both sides run
`symmem-check run`, whole process: the suite at once, then each case alone with `--only`. Of a case alone only what
torchrun and its ranks took is counted, and nothing that symmem-check does before or after. Told are the wall times, and
where those of the suite go. It needs nothing but what `symmem-check run` needs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).parents[2]
DEADLINE = 300
"""Seconds for one command: a hang must not keep a GPU."""


class Timed(NamedTuple):
    """One run: its wall time in seconds, its result.json, and its run folder."""

    wall: float
    result: dict[str, Any]
    folder: Path

    @property
    def torchrun(self) -> float:
        """The seconds that torchrun and its ranks took."""
        return self.result["seconds"]["run"]


def main() -> None:
    """Print the times of the suite at once, where they go, and those of its cases one by one."""
    parser = argparse.ArgumentParser(description="Time a suite at once and case by case.")
    parser.add_argument("--suite", default="default")
    parser.add_argument("--nccl", metavar="PATH")
    parser.add_argument("--python", default=sys.executable, help="the Python with torch")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of the suite at once")
    parsed = parser.parse_args()
    options = ["--suite", parsed.suite, "--python", parsed.python] + (["--nccl", parsed.nccl] if parsed.nccl else [])
    with tempfile.TemporaryDirectory() as made:
        at_once = [_run(options, Path(made) / f"whole{number}") for number in range(parsed.rounds)]
        cases = [case["id"] for case in at_once[0].result["cases"] if case["configuration"] == "default"]
        alone = {
            case: _run([*options, "--only", case], Path(made) / f"case{number}") for number, case in enumerate(cases)
        }
        _tell(at_once, alone)


def _run(options: list[str], out: Path) -> Timed:
    """Run symmem-check; raises RuntimeError where nothing was measured or not all cases came to their end."""
    command = [sys.executable, "-m", "runner", "run", *options, "--out", str(out)]
    began = time.monotonic()
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=DEADLINE)
    wall = time.monotonic() - began
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr[-2000:]}")
    result = json.loads((out / "result.json").read_text())
    if len(result["starts"]) != 1:
        raise RuntimeError(f"{len(result['starts'])} starts of the ranks instead of one: {done.stdout[-2000:]}")
    return Timed(wall, result, out / "run")


def _tell(at_once: list[Timed], alone: dict[str, Timed]) -> None:
    environment = at_once[0].result["environment"]
    print("\n".join(f"{key}: {value}" for key, value in environment.items() if value is not None), "\n")
    walls = [timed.wall for timed in at_once]
    middle = statistics.median(walls)
    total = sum(timed.torchrun for timed in alone.values())
    print(f"{len(alone)} cases, at once: {middle:.2f} s ({min(walls):.2f}–{max(walls):.2f}, {len(walls)} rounds)")
    print(f"one torchrun a case: {total:.1f} s, so {total / middle:.1f} times as long")
    single = sorted(timed.torchrun for timed in alone.values())
    print(f"a torchrun of one case: {single[0]:.2f}–{single[-1]:.2f} s, median {statistics.median(single):.2f}\n")
    print("| where the time goes | s |\n|---|---:|")
    for name, seconds in _parts(min(at_once, key=lambda timed: abs(timed.wall - middle))).items():
        print(f"| {name} | {seconds:.2f} |")


def _parts(timed: Timed) -> dict[str, float]:
    """Split one run's wall time; of each part the slowest rank's seconds count."""
    environments = [json.loads(path.read_text()) for path in timed.folder.glob("starts/0/rank*.json")]
    slowest: Counter[str] = Counter()
    for environment in environments:
        for name, seconds in environment["seconds"].items():
            slowest[name] = max(slowest[name], seconds)
    cases = traces = 0.0
    for case in timed.result["cases"]:
        records = [json.loads(path.read_text()) for path in timed.folder.glob(f"cases/{case['id']}/rank*.json")]
        cases += max((record["seconds"].get("total", 0.0) for record in records), default=0.0)
        traces += max((record["seconds"].get("trace", 0.0) for record in records), default=0.0)
    own = timed.result["seconds"]
    known = slowest["import"] + slowest["init"] + cases
    return {
        "look at the Python with torch": own["describe"],
        "torchrun itself: its start and end, and waits between cases": timed.torchrun - known,
        "import of torch in the ranks": slowest["import"],
        "the GPU's context, versions, the ranks' store": slowest["init"]
        - slowest["process-group"]
        - slowest["profiler"],
        "NCCL's init (the process group)": slowest["process-group"],
        "the profiler's first start": slowest["profiler"],
        "cases, without writing traces": cases - traces,
        "writing traces": traces,
        "reading traces and judging": own["judge"],
        "start of symmem-check and reports": timed.wall - timed.torchrun - own["describe"] - own["judge"],
        "all": timed.wall,
    }


if __name__ == "__main__":
    main()
