"""`run --launcher slurm` in allocations of a real Slurm with two nodes: ranks on the CPU with gloo, by srun."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from checks.device import gpus_needed, has_own
from runner.allocation import Allocation
from runner.nccl_log import log_path
from runner.plan import Case, Plan
from runner.runfolder import RunFolder
from runner.srun import Srun
from tests.runner.test_launch import REPOSITORY, WORKLOADS, fake_python, marked_processes
from tests.runner.test_run import ON_THE_CPU
from tests.slurm_cluster import NODES, Cluster

pytestmark = pytest.mark.needs_program("srun")

SUITE = """\
suite: mine
ranks: 2
steps: 2
warmup: 1
checks:
  probe: {workload: all_reduce, deadline: 120, matrix: {pool: [none], dtype: [bfloat16], op: [sum], size: [4KiB]},
          expect: {forward: symmetric, backward: symmetric}}
  wrong: {workload: "broken.py:wrong_values", deadline: 120, matrix: {size: [64]}, expect: {forward: symmetric}}
  raises: {workload: "broken.py:raises", deadline: 120, matrix: {size: [64]}, expect: {forward: symmetric}}
  dies: {workload: "broken.py:dies", deadline: 120, matrix: {size: [64]}, expect: {forward: symmetric}}
  hangs: {workload: "broken.py:hangs", deadline: 2, matrix: {size: [64]}, expect: {forward: symmetric}}
  stops: {workload: "broken.py:stops_itself", deadline: 2, matrix: {size: [64]}, expect: {forward: symmetric}}
  srun: {workload: "own.py:kills_srun", deadline: 120, expect: {forward: symmetric}}
  place: {workload: "own.py:place", deadline: 120, expect: {forward: symmetric}}
  slow: {workload: "own.py:slow", deadline: 300, expect: {forward: symmetric}}
"""
OWN = """
    import os, signal, time
    from pathlib import Path
    import torch
    import torch.distributed as dist

    def place(case, pool):
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURMD_NODENAME", "MASTER_ADDR", "LD_PRELOAD")
        print("place", *(os.environ.get(name, "-") for name in names), flush=True)
        total = torch.full((8,), float(case.rank + 1))
        case.run(lambda: None)
        dist.all_reduce(total)
        expected = case.world_size * (case.world_size + 1) / 2
        case.check(total, torch.full((8,), expected, dtype=torch.float64), tolerance=0.0)

    def kills_srun(case, pool):
        if case.rank == 0:
            mark = f"SYMMEM_CHECK_START={os.environ['SYMMEM_CHECK_START']}".encode()
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    mine = mark in (folder / "environ").read_bytes().split(b"\\0")
                    if mine and (folder / "comm").read_text().strip() == "srun":
                        os.kill(int(folder.name), signal.SIGKILL)
                except OSError:
                    continue
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(10_000)

    def slow(case, pool):
        print("slow has begun", flush=True)
        time.sleep(10_000)
    """


class Repository:
    """A repository with a suite of its own, in which the command is called within allocations of the cluster."""

    def __init__(self, folder: Path, slurm: Cluster) -> None:
        self.folder, self.slurm, self.mark = folder, slurm, uuid.uuid4().hex
        (folder / "suite.yaml").write_text(SUITE)
        (folder / "own.py").write_text(textwrap.dedent(OWN))
        shutil.copy(WORKLOADS, folder / "broken.py")
        self.change()
        self.run_folder = RunFolder(folder / "out" / "run")

    def change(self, *lines: str) -> None:
        """Write the command anew, with lines that change what is imported there."""
        (self.folder / "command.py").write_text(
            textwrap.dedent(ON_THE_CPU).replace("plan = Suite.plan", "\n".join([*lines, "plan = Suite.plan"]))
        )

    def command(self, *arguments: str, python: str = sys.executable) -> list[str]:
        return [
            sys.executable, str(self.folder / "command.py"),
            *("run", "--launcher", "slurm", "--suite", "suite.yaml", "--out", "out", "--python", python, *arguments),
        ]  # fmt: skip

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, **self.slurm.environment, "TEST_MARK": self.mark, **more}

    def allocated(self, options: list[str], command: list[str]) -> subprocess.CompletedProcess[str]:
        """A command's end in an allocation of its own."""
        return subprocess.run(
            ["salloc", "--quiet", *options, *command],
            cwd=self.folder, env=self.environment(), capture_output=True, text=True, check=False, timeout=500,
        )  # fmt: skip

    def result(self) -> dict:
        return json.loads((self.folder / "out" / "result.json").read_text())

    def case(self, name: str) -> Case:
        return next(case for case in self.run_folder.plan().cases if case.id.startswith(name))

    def outcomes(self, name: str) -> list[str | None]:
        records = self.run_folder.records(self.case(name))
        return [records[rank].outcome for rank in sorted(records)]

    def log(self, start: int) -> str:
        return (self.run_folder.path / "starts" / str(start) / "log.txt").read_text()

    def places(self, start: int) -> list[list[str]]:
        """What the ranks printed of their places, by rank."""
        lines = [line.split()[1:] for line in self.log(start).splitlines() if line.startswith("place ")]
        return sorted(lines, key=lambda words: int(words[0]))


@pytest.fixture
def repository(cluster: Cluster, tmp_path: Path) -> Repository:
    return Repository(tmp_path, cluster)


@pytest.mark.slow
def test_four_ranks_on_two_nodes_and_cases_that_go_wrong(repository: Repository) -> None:
    libm = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libm.so" in line)
    repository.change("from pathlib import Path", f"runner.run.nccl_to_preload = lambda *given: Path({libm!r})")
    only = [
        word
        for name in ("probe*", "wrong*", "raises*", "dies*", "hangs*", "stops*", "srun", "place")
        for word in ("--only", name)
    ]
    done = repository.allocated(["--nodes=2", "--ntasks-per-node=2"], repository.command(*only))
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == f"8 cases, 4 ranks on 2 hosts ({', '.join(NODES)}), 1 a GPU, a CPU, torch 2.13.0"

    for rank, record in repository.run_folder.records(repository.case("probe")).items():
        assert (record.rank, record.outcome) == (rank, "ok")
        assert record.values is not None
        assert (record.values.checked, record.values.wrong, record.values.max_error) == (2 * 2048, 0, 0.0)
        assert repository.run_folder.trace(repository.case("probe"), record) is not None
    assert repository.outcomes("probe") == ["ok"] * 4
    assert sorted(map(str, repository.outcomes("wrong"))) == ["ok", "ok", "ok", "wrong-values"]
    assert repository.outcomes("raises") == ["raised"] * 4
    assert repository.outcomes("hangs") == ["hung"] * 4

    dead = repository.run_folder.lost(repository.case("dies"))
    assert dead is not None
    assert (dead.outcome, dead.rank, dead.message) == ("died", 1, f"rank 1 was killed by SIGKILL on {NODES[0]}")
    stopped = repository.run_folder.lost(repository.case("stops"))
    assert stopped is not None and (stopped.outcome, stopped.rank) == ("hung", 0)
    orphaned = repository.run_folder.lost(repository.case("srun"))
    assert orphaned is not None and (orphaned.outcome, orphaned.rank) == ("died", None)
    assert orphaned.message.startswith("srun was killed by SIGKILL")

    # Each bad case cost its own start, and the rest ran in a fresh one.
    ended = [start["ended"] for start in repository.result()["starts"]]
    assert ended == ["restart", "died", "restart", "hung", "died", "finished"]
    address = NODES[0]
    assert repository.places(5) == [
        ["0", "0", "4", "2", NODES[0], address, libm],
        ["1", "1", "4", "2", NODES[0], address, libm],
        ["2", "0", "4", "2", NODES[1], address, libm],
        ["3", "1", "4", "2", NODES[1], address, libm],
    ]
    assert repository.outcomes("place") == ["ok"] * 4
    assert marked_processes(repository.mark) == []


@pytest.mark.slow
def test_one_rank_a_node_from_within_a_job_step_of_its_own(repository: Repository) -> None:
    inside = ["srun", "--nodes=1", "--ntasks=1", *repository.command("--only", "place", "--ranks", "2")]
    done = repository.allocated(["--nodes=2", "--ntasks-per-node=1"], inside)
    assert done.returncode == 3, done.stderr  # no GPU events on a CPU
    assert [(place[:4], place[4]) for place in repository.places(0)] == [
        (["0", "0", "2", "1"], NODES[0]),
        (["1", "0", "2", "1"], NODES[1]),
    ]
    assert repository.outcomes("place") == ["ok", "ok"]
    environment = repository.result()["environment"]
    assert (environment["ranks"], environment["launcher"]) == (2, "slurm")


@pytest.mark.slow
def test_a_port_that_another_program_has_is_left_for_another(repository: Repository) -> None:
    with ExitStack() as stack:
        taken, *others = (stack.enter_context(socket.socket()) for _ in range(4))
        for one in (taken, *others):
            one.bind(("", 0))
        taken.listen()
        # The last one is tried first.
        ports = [one.getsockname()[1] for one in (*others, taken)]
        for one in others:
            one.close()
        repository.change("import runner.srun", f"runner.srun.random.sample = lambda *given: {ports}")
        done = repository.allocated(["--ntasks=2"], repository.command("--only", "place"))
    assert done.returncode == 3, done.stderr
    assert repository.outcomes("place") == ["ok", "ok"]
    assert [start["ended"] for start in repository.result()["starts"]] == ["finished"]


@contextmanager
def slow_run(repository: Repository) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A run whose ranks are in the case that would take hours: salloc, and the process id of the command itself."""
    salloc = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", "sh", "-c", 'echo $$; exec "$@"', "sh"]
    process = subprocess.Popen(
        [*salloc, *repository.command("--only", "slow")],
        cwd=repository.folder, env=repository.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            command = int(process.stdout.readline())
            until = time.monotonic() + 300
            log = repository.run_folder.path / "starts" / "0" / "log.txt"
            while not (log.is_file() and log.read_text().count("slow has begun") == 2):
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.1)
            yield process, command
        finally:
            process.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_ranks_and_is_written(repository: Repository, number: signal.Signals) -> None:
    with slow_run(repository) as (process, command):
        os.kill(command, number)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 128 + number, told
    assert f"interrupted by {number.name}; reports of what was done are in out" in told
    assert marked_processes(repository.mark) == []
    (case,) = repository.result()["cases"]
    assert case["trouble"] == f"stopped by {number.name} while it ran"


@pytest.mark.slow
def test_a_step_that_slurm_ends_is_no_ranks_fault(repository: Repository) -> None:
    """As when a user cancels the job, or its time is over."""
    with slow_run(repository) as (process, _):
        (job,) = repository.slurm.jobs()
        repository.slurm.run(["scancel", job.split()[0]])
        _, told = process.communicate(timeout=120)
    assert "slow died" in told and "Slurm ended the step: CANCELLED AT " in told
    assert marked_processes(repository.mark) == []
    lost = repository.run_folder.lost(repository.case("slow"))
    assert lost is not None and (lost.outcome, lost.rank) == ("died", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "seconds", "message"),
    [
        # On a busy machine rank 0 too may be late.
        ("exec sleep 1000", 15.0, "rank(s 0,)? 1 did not come up within 15 s"),
        ("exit 7", 300.0, f"rank 1 ended with status 7 on {NODES[1]}"),
        ("kill -SEGV $$", 300.0, f"rank 1 was killed by SIGSEGV on {NODES[1]}"),
    ],
)
def test_a_rank_that_never_comes_up_is_told(repository: Repository, line: str, seconds: float, message: str) -> None:
    repository.change("from runner.srun import Srun", f"Srun.start_seconds = {seconds}")
    python = fake_python(repository.folder / "python", f'[ "$SLURM_PROCID" = 1 ] && {line}')
    done = repository.allocated(
        ["--nodes=2", "--ntasks-per-node=1"], repository.command("--only", "place", python=python)
    )
    assert re.search(message, done.stderr), done.stderr
    assert len(repository.result()["starts"]) == 1
    assert marked_processes(repository.mark) == []


def test_the_python_of_the_first_node_tells_what_is_there(repository: Repository) -> None:
    """The command itself may be called on a login node, which has neither GPU nor torch."""
    python = fake_python(repository.folder / "python", 'echo "asked on $SLURMD_NODENAME" >> asked.txt')
    own = [sys.executable, "-m", "runner", *repository.command("--only", "place", python=python)[2:]]
    done = subprocess.run(
        ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", *own],
        cwd=repository.folder, env=repository.environment(PYTHONPATH=os.pathsep.join([str(REPOSITORY), *sys.path[1:]])),
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (repository.folder / "asked.txt").read_text() == f"asked on {NODES[0]}\n"
    assert done.returncode in (1, 3), done.stderr
    assert repository.result()["environment"]["ranks"] == 2


@pytest.mark.needs_program("unshare")
def test_an_output_folder_that_only_this_host_has_is_told_before_anything_runs(repository: Repository) -> None:
    """A file system that is mounted for the command alone stands in for one that is on its host alone."""
    alone = repository.folder / "alone"
    alone.mkdir()
    # Only root may mount, if only the root of its own namespace; and Slurm wants to see who the caller is.
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    as_before = ["unshare", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"] if as_root else []
    mount = ["unshare", "--mount", *as_root, "sh", "-c", f'mount -t tmpfs none {alone} && exec "$@"', "sh", *as_before]
    if subprocess.run([*mount, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine lets its users make no mount of their own")
    command = [*mount, *repository.command("--only", "place", "--out", str(alone / "out"))]
    done = repository.allocated(["--nodes=2", "--ntasks-per-node=1"], command)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines() == [
        f"symmem-check: {alone / 'out'}: {', '.join(NODES)} can't see it; "
        "give a folder on a file system that all hosts share, with --out DIR"
    ]


def outside(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")} | variables
    command = [sys.executable, "-m", "runner", "run", "--launcher", "slurm", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


def test_outside_of_an_allocation_the_call_is_wrong(tmp_path: Path) -> None:
    done = outside("--out", str(tmp_path / "out"))
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            "symmem-check: --launcher slurm: this is not inside an allocation (no SLURM_JOB_ID); call it within "
            "salloc --nodes=2 --ntasks-per-node=8 --gpus-per-node=8, or in a script that sbatch runs"
        ],
    )
    assert not (tmp_path / "out").exists()


def test_without_slurms_commands_the_call_is_wrong(tmp_path: Path) -> None:
    for name in ("env", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    done = outside("--python", sys.executable, PATH=str(tmp_path), SLURM_JOB_ID="1")
    assert done.returncode == 2
    assert "srun is not on the PATH" in done.stderr


@pytest.mark.parametrize(("arguments", "flag"), [(["--replay"], "--replay"), (["--script", __file__], "--script")])
def test_only_the_probes_are_started_by_slurm(arguments: list[str], flag: str) -> None:
    done = outside(*arguments)
    assert done.returncode == 2
    assert f"--launcher slurm starts the probes' ranks only; leave it out, or leave out {flag}" in done.stderr


@pytest.mark.parametrize(
    ("launcher", "visible", "on_host", "own"),
    [
        ("slurm", 1, "4", True),  # one GPU bound to each task
        ("slurm", 1, None, True),
        ("slurm", 4, "4", False),
        ("slurm", 1, "1", False),  # a host with too few
        ("slurm", 0, "4", False),
        ("torchrun", 1, None, False),
    ],
)
def test_a_rank_that_is_shown_its_own_gpu_only_takes_that(
    monkeypatch: pytest.MonkeyPatch, launcher: str, visible: int, on_host: str | None, own: bool
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.delenv("SLURM_GPUS_ON_NODE", raising=False)
    if on_host is not None:
        monkeypatch.setenv("SLURM_GPUS_ON_NODE", on_host)
    plan = {"launcher": launcher, "ranks": 8, "ranks_per_gpu": 1}
    assert gpus_needed(plan) == 4
    assert has_own(plan, visible) is own


def test_nccls_logs_of_two_hosts_are_two_files(tmp_path: Path) -> None:
    """Process ids are a host's own, and both hosts write into one folder."""
    allocation = Allocation(job="1", hosts=("a", "b"), ranks=2, per_host=1, address="10.0.0.1")
    plan = Plan(ranks=2, launcher="slurm", witness=True, cases=[])
    outside = {"TORCHELASTIC_USE_AGENT_STORE": "True", "HOME": "/h", "MASTER_ADDR": "elsewhere"}
    variables = Srun(allocation, {}).variables(plan, outside, tmp_path)
    assert variables["NCCL_DEBUG_FILE"] == f"{tmp_path}/nccl.%h.%p.log"
    assert (variables["MASTER_ADDR"], variables["LOCAL_WORLD_SIZE"], variables["HOME"]) == ("10.0.0.1", "1", "/h")
    assert "TORCHELASTIC_USE_AGENT_STORE" not in variables
    (tmp_path / "nccl.b.7.log").touch()
    assert log_path(tmp_path, 7, "b.cluster") == tmp_path / "nccl.b.7.log"
    assert log_path(tmp_path, 7, "a.cluster") == tmp_path / "nccl.7.log"
