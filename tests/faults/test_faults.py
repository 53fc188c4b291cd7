"""A machine that fails a run: real torchrun, two processes, gloo. What tests/runner/test_launch.py has is not here.

The outcome is named, the other cases are kept, no process is left, and it ends in bounded time.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.judge.run import judge_run
from runner.launch import checks_folder
from runner.plan import Case
from runner.result import CaseResult, Result
from runner.runfolder import RunFolder
from runner.suite import load_suite
from runner.trace.collectives import read_collectives
from tests.runner.test_launch import Run, cpu_plan, marked_processes

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
REPLAY = PROJECT / "runner" / "replay"
USUAL_PORTS = (29400, 29500)
"""Those of torchrun's rendezvous and of MASTER_PORT, where nobody chooses others."""


def faulty(name: str, times: int = 1) -> Case:
    id = name if times == 1 else f"{name}-{times}"
    return Case(
        id=id, folder=f"cases/{id}", workload=f"{HERE / 'workloads.py'}:{name}", axes={"size": 64}, deadline=100.0
    )


@pytest.fixture(scope="module")
def taken_ports() -> Iterator[None]:
    """Other programs listen where torchrun would by default; one that is taken already is as good."""
    taken = []
    for port in USUAL_PORTS:
        one = socket.socket()
        try:
            one.bind(("127.0.0.1", port))
            one.listen()
        except OSError:
            one.close()
            continue
        taken.append(one)
    yield
    for one in taken:
        one.close()


@pytest.fixture(scope="module")
def jumping_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "jumping_clock.c"), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return library


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, jumping_clock: Path, taken_ports: None) -> Run:
    """One run with a clock that jumps in every process of it, and taken ports, in which two cases go wrong."""
    cases = [faulty("good"), faulty("no_room_for_a_trace"), faulty("out_of_memory"), faulty("good", 2)]
    environment = {**os.environ, "LD_PRELOAD": str(jumping_clock), "MASTER_PORT": str(USUAL_PORTS[1])}
    return Run(tmp_path_factory.mktemp("faults") / "run", cpu_plan(*cases), environment=environment)


@pytest.mark.slow
@pytest.mark.needs_program("cc")
class TestOneRunOnAFailingMachine:
    def test_other_cases_are_kept(self, run: Run) -> None:
        assert run.outcomes("good") == run.outcomes("good-2") == ["ok", "ok"]
        for name in ("good", "good-2"):
            for record in run.folder.records(run.case(name)).values():
                trace = run.folder.trace(run.case(name), record)
                assert trace is not None and read_collectives(trace).salvaged is None

    def test_out_of_memory_is_told(self, run: Run) -> None:
        assert run.outcomes("out_of_memory") == ["raised", "raised"]
        assert "memory" in (run.messages("out_of_memory")[1] or "")
        assert run.messages("out_of_memory")[0] == "rank 1 raised; this rank was waiting"

    def test_a_trace_that_has_no_room_is_never_a_whole_one(self, run: Run) -> None:
        case = run.case("no_room_for_a_trace")
        record = run.folder.records(case)[0]
        assert record.state == "done"
        trace = run.folder.trace(case, record)
        assert record.outcome == "raised" or (trace is not None and read_collectives(trace).salvaged is not None)

    def test_the_clock_did_jump_and_times_are_those_that_passed(self, run: Run) -> None:
        """The records' seconds are of a clock that only goes on; so are the deadlines."""
        for path in (run.folder.path / "cases" / "good").glob("rank?.json"):
            assert json.loads(path.read_text())["clock_range"] > 7000
        for name in ("good", "good-2", "out_of_memory"):
            for record in run.folder.records(run.case(name)).values():
                assert 0 <= record.seconds["total"] < 200  # the clock jumps by 7000

    def test_no_process_is_left(self, run: Run) -> None:
        assert marked_processes(run.mark) == []
        assert [start.end.ended for start in run.starts][-1] == "finished"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 KiB; skipped where this user may mount none."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("only root may mount a small disk, and not in every container")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=60)


@pytest.mark.slow
def test_a_full_disk_ends_the_run_in_one_line_and_leaves_no_process(small_disk: Path) -> None:
    mark = "full-disk-" + small_disk.parent.name
    script = f"""
import sys
from pathlib import Path
from runner.cli import main
from runner.launch import run_plan
from tests.faults.test_faults import cpu_plan, faulty
import runner.cli
plan = cpu_plan(faulty("good"), faulty("fills_the_disk"), faulty("good", 2))
# Through the command line's own main, which has to tell it.
into = Path({str(small_disk / "run")!r})
runner.cli.COMMANDS["run"] = lambda parsed: run_plan(plan, into, python=sys.executable) and 0
sys.exit(main(["run"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=PROJECT, env={**os.environ, "TEST_MARK": mark}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert marked_processes(mark) == []
    records = RunFolder(small_disk / "run").records(faulty("good"))
    assert {record.outcome for record in records.values()} == {"ok"}
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "No space left on device" in done.stderr


def judged(folder: Path) -> Result:
    return judge_run(RunFolder(folder), load_suite(checks_folder() / "suites" / "default.yaml"))


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.99])
def test_a_truncated_trace_costs_its_case_alone(tmp_path: Path, kept: float) -> None:
    shutil.copytree(REPLAY, tmp_path / "run")
    path = tmp_path / "run/cases/all_reduce/static/rank1.trace.json.gz"
    data = path.read_bytes()
    path.write_bytes(data[: int(kept if kept > 1 else len(data) * kept)])
    before, after = ({case.id: case for case in judged(folder).cases} for folder in (REPLAY, tmp_path / "run"))
    cut = after.pop("all_reduce/static")
    before.pop("all_reduce/static")
    assert after == before
    outcomes = {phase.phase: phase.outcome for phase in cut.phases}
    if kept > 0 and kept < 1:
        # What is read of it is told from what is lost: a node of backward proves itself, its absence proves nothing.
        assert outcomes["forward"] == "unmeasured"
        assert outcomes["backward"] == ("pass" if kept > 0.9 else "unmeasured")
        assert "the trace of rank 1 was salvaged" in told(cut)
    else:
        assert set(outcomes.values()) <= {"unmeasured", "error"}
        assert "rank1.trace.json.gz" in told(cut)


def told(case: CaseResult) -> str:
    return " ".join([*case.notes, case.trouble or "", *(phase.message for phase in case.phases)])
