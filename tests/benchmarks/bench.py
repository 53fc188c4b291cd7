"""Time `symmem-check classify` beside what else reads such traces, whole processes in turn, in one run.

    make bench                                      # into the table on the terminal
    python -m tests.benchmarks.bench --help

Each round runs every program once on every file, so that a disturbance of the machine meets all of them. What is told
is the median of the rounds: wall time, CPU time (user and system; the steadier of the two where the machine has other
work), the highest peak memory, and both times as multiples of symmem-check's. Of a program in several processes the
CPU times are added, and what those hold that live at one time, each page counted once.
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks import programs
from tests.benchmarks.programs import OURS, Program

PROJECT = Path(__file__).parents[2]
PEERS_UP_TO = 300e6  # bytes of text: above, some take minutes and 10 GB


class Cost(NamedTuple):
    """What one process took: seconds, seconds and MiB."""

    wall: float
    cpu: float
    peak: float


class Trace(NamedTuple):
    """A file to read, and the length of its text in MB (10^6 bytes)."""

    path: Path
    megabytes: float


def run(command: Sequence[str], environment: dict[str, str]) -> Cost:
    """Run a process to its end. Raises RuntimeError with its last words where it fails."""
    with tempfile.TemporaryFile() as words:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=PROJECT, env=os.environ | environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=words,
        )  # fmt: skip
        with _Watch(process.pid) as watch:
            _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            words.seek(0)
            said = words.read().decode(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(f"exit status {process.returncode}: {' '.join(said)}")
    return Cost(wall, used.ru_utime + used.ru_stime, max(used.ru_maxrss, watch.peak) / 1024)


class _Watch:
    """Looks at a process and its children until it is told to stop; `peak` is then the most that they held, in KiB.

    Each page counts once: one that several processes share is divided among them (PSS).
    """

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.01):
            try:
                children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
            except OSError:
                continue
            self.peak = max(self.peak, sum(map(_held, [str(self._pid), *children])))

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _held(pid: str) -> int:
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has ended meanwhile
        return 0
    return next((int(line.split()[1]) for line in told.splitlines() if line.startswith("Pss:")), 0)


def measure(trace: Trace, chosen: Sequence[Program], rounds: int) -> dict[str, list[Cost] | str]:
    """The costs of each program on one file, or why there are none."""
    costs: dict[str, list[Cost]] = {program.name: [] for program in chosen}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for program in chosen:
            if program.name in failed:
                continue
            print(f"\r\033[K{trace.path.name}: round {number + 1} of {rounds}: {program.name}", end="", file=sys.stderr)
            try:
                costs[program.name].append(run(program.command(trace.path), program.environment))
            except RuntimeError as error:
                failed[program.name] = str(error)
    print("\r\033[K", end="", file=sys.stderr)
    return costs | failed


def table(trace: Trace, costs: dict[str, list[Cost] | str]) -> str:
    """The results of one file as a Markdown table."""
    packed = ", gzip" if trace.path.suffix == ".gz" else ""
    lines = [
        f"### {trace.path.name}: {trace.megabytes:.0f} MB of text{packed}",
        "",
        "| program | wall s (from–to) | CPU s | peak MiB | × wall | × CPU |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    ours = costs[OURS]
    for name, found in costs.items():
        if isinstance(found, str) or isinstance(ours, str):
            lines.append(f"| {name} | failed: {found} | | | | |")
            continue
        walls = [cost.wall for cost in found]
        wall, cpu = statistics.median(walls), statistics.median(cost.cpu for cost in found)
        ratios = (
            wall / statistics.median(cost.wall for cost in ours),
            cpu / statistics.median(cost.cpu for cost in ours),
        )
        lines.append(
            f"| {name} | {wall:.3f} ({min(walls):.3f}–{max(walls):.3f}) | {cpu:.3f} | "
            f"{max(cost.peak for cost in found):.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |"
        )
    return "\n".join(lines) + "\n"


def make(folder: Path, sizes: Sequence[float]) -> list[Trace]:
    """The traces, made where they are not there yet: without and with Python frames, and one of them gzipped."""
    traces = []
    for size in sizes:
        kinds = [("ops", False, ".json"), ("stacks", True, ".json"), ("stacks", True, ".json.gz")]
        for kind, stacks, ending in kinds:
            path = folder / f"{kind}-{size:g}MB{ending}"
            if not path.exists():
                _make(path, size, stacks=stacks)
            traces.append(Trace(path, size))
    return traces


def _make(path: Path, size: float, *, stacks: bool) -> None:
    """In a process of its own: a child's peak memory counts what its parent held when it was started."""
    unfinished = path.with_name(f"unfinished-{path.name}")
    command = [sys.executable, "-m", "tests.benchmarks.make_trace", str(unfinished), "--megabytes", str(size)]
    subprocess.run([*command, *(["--stacks"] if stacks else [])], cwd=PROJECT, check=True)
    unfinished.rename(path)


def side_by_side(trace: Trace, ranks: int, rounds: int) -> str:
    """What many files of one size take at once, as a line: each is `trace` under another name."""
    folder = trace.path.with_name(f"{ranks}-ranks-{trace.path.name}")
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        path = folder / f"rank{rank}{''.join(trace.path.suffixes)}"
        if not path.exists():
            path.hardlink_to(trace.path)
    ours = programs.programs(trace.path, None, None)[0]
    costs = [run(ours.command(folder), ours.environment) for _ in range(rounds)]
    wall = statistics.median(cost.wall for cost in costs)
    used = statistics.median(cost.cpu / cost.wall for cost in costs)
    return (
        f"{ranks} × {trace.path.name} at once: {wall:.3f} s, {used:.2f} cores used of {len(os.sched_getaffinity(0))}, "
        f"{max(cost.peak for cost in costs):.0f} MiB in all\n"
    )


def machine() -> str:
    told = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in told if "model name" in line), platform.machine())
    load = os.getloadavg()[0]
    return f"{cpu}, {len(os.sched_getaffinity(0))} cores, load {load:.1f}; Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the reading of traces, beside other programs.")
    parser.add_argument("--folder", type=Path, required=True, help="where the traces are made, and kept for next time")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[20, 200], help="sizes of the traces' text")
    parser.add_argument("--rounds", type=int, default=5, help="times each program is run (default: 5)")
    parser.add_argument("--peers", metavar="PYTHON", help="a Python that has the other programs (README.md)")
    parser.add_argument("--tracelens", metavar="DIR", type=Path, help="a checkout of TraceLens; its needs are in PEERS")
    parser.add_argument("--ranks", type=int, default=8, help="read so many files at once, too (default: 8; 0: don't)")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="only the programs whose name has one of the words")
    parsed = parser.parse_args()
    parsed.folder = parsed.folder.resolve()
    parsed.folder.mkdir(parents=True, exist_ok=True)
    print(f"{machine()}; {programs.versions(parsed.peers)}\n")
    # As pip does with what it installs; the variable PYTHONDONTWRITEBYTECODE would have it done at each start.
    compileall.compile_dir(PROJECT / "runner", quiet=1)
    for trace in make(parsed.folder, parsed.megabytes):
        peers = parsed.peers if trace.megabytes * 1e6 <= PEERS_UP_TO else None
        chosen = programs.programs(trace.path, peers, parsed.tracelens if peers else None)
        if parsed.only:
            chosen = [one for one in chosen if one.name == OURS or any(word in one.name for word in parsed.only)]
        print(table(trace, measure(trace, chosen, parsed.rounds)), flush=True)
        if parsed.ranks and trace.path.suffix == ".gz" and trace.megabytes * 1e6 <= PEERS_UP_TO:
            print(side_by_side(trace, parsed.ranks, parsed.rounds), flush=True)


if __name__ == "__main__":
    main()
