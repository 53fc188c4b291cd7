"""Several large files at once: the same answer as one by one, and a process that dies costs its file alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.trace import pool
from runner.trace.collectives import TraceFile, read_collectives
from tests.runner.trace.support import BASE, DATA, PROJECT

TRACES = [DATA / "traces" / "h200" / f"w2_whole_step_r{rank}.json.gz" for rank in (0, 1)]
needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one core files are read in turn")


@pytest.fixture
def always_processes(monkeypatch):
    monkeypatch.setattr(pool, "WORTH_A_PROCESS", 1)


@pytest.fixture
def paths(tmp_path) -> list[Path]:
    """Good and bad files, the largest neither first nor last."""
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "other.json").write_text('{"lr": 1}')
    return [BASE, tmp_path / "empty.json", *TRACES, tmp_path / "other.json", tmp_path / "missing.json"]


def told(outcomes) -> list[object]:
    return [outcome if isinstance(outcome, TraceFile) else (type(outcome), str(outcome)) for outcome in outcomes]


@needs_two_cores
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_as_one_by_one(paths, threads, always_processes):
    """With other threads about, processes are started anew instead of forked."""
    wanted = told(pool.read_all([path])[0] for path in paths)
    done = threading.Event()
    others = [threading.Thread(target=done.wait) for _ in range(threads - 1)]
    for other in others:
        other.start()
    try:
        assert told(pool.read_all(paths)) == wanted
    finally:
        done.set()
        for other in others:
            other.join()
    assert [type(outcome) for outcome in wanted].count(TraceFile) == 3


@needs_two_cores
def test_each_file_has_a_process_of_its_own(always_processes, forked, monkeypatch):
    monkeypatch.setattr(pool, "_read", lambda path: UserError(str(os.getpid())))
    processes = [str(outcome) for outcome in pool.read_all(TRACES * 3)]
    assert len({*processes, str(os.getpid())}) == 7


@pytest.mark.parametrize("cores", [1, 2])
def test_small_files_and_one_core_stay_in_this_process(cores, monkeypatch):
    if cores == 1:
        monkeypatch.setattr(pool, "WORTH_A_PROCESS", 1)
        monkeypatch.setattr(pool, "cores", lambda: 1)
    monkeypatch.setattr(pool, "_read", lambda path: UserError(str(os.getpid())))
    assert {str(outcome) for outcome in pool.read_all(TRACES)} == {str(os.getpid())}


@needs_two_cores
@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL; memory may be short"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "was ended by SIGTERM"),
        (lambda: os._exit(9), "failed (exit status 9); read it by itself"),
    ],
    ids=["killed", "terminated", "ended"],
)
def test_a_process_that_dies_costs_its_file_alone(end, why, always_processes, forked, monkeypatch):
    monkeypatch.setattr(pool, "_read", lambda path: end() if path == BASE else read_collectives(path))
    first, broken, last = pool.read_all([TRACES[0], BASE, TRACES[1]])
    assert [first, last] == [read_collectives(path) for path in TRACES]
    assert isinstance(broken, UserError)
    assert str(broken).startswith(f"{BASE}: the process that read it {why}")


ENDLESS = """
import os, sys, time
from pathlib import Path
from runner.trace import pool
pool.WORTH_A_PROCESS = 1
# One write for the whole line: two processes share the pipe, and print() would write the line's end apart.
pool._read = lambda path: (os.write(1, b"reading\\n"), time.sleep(600))
try:
    list(pool.read_all([Path(name) for name in sys.argv[1:]]))
except KeyboardInterrupt:
    sys.exit(130)
"""


@needs_two_cores
def test_an_interrupt_leaves_no_process():
    command = [sys.executable, "-c", ENDLESS, *map(str, TRACES)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in TRACES] == [b"reading\n"] * 2
        process.send_signal(signal.SIGINT)
        # Both pipes end only when the last process that holds them is gone.
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, b"")
