"""A real Slurm of two nodes on this machine, from the distribution's packages, for the tests that submit jobs.

It needs no root: its daemons, its jobs and its accounts are all whoever runs the tests. The two nodes are named by
addresses of the loopback, so that their names resolve as those of a cluster do. Their GPUs are devices that every Linux
has: Slurm counts them, hands them out and sets CUDA_VISIBLE_DEVICES, and asks nothing of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

NODES = ("127.0.0.1", "127.0.0.2")
CPUS = 16
GPUS = 2
"""Both a node's."""
_DAEMONS = ("munged", "slurmctld", "slurmd")
_VARIABLES = ("SLURM_", "SBATCH_", "SQUEUE_", "SALLOC_", "SCANCEL_", "SINFO_")
_CONFIGURATION = """\
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
# The daemons are started together, and a busy machine is slow; nodes are not to be given up for it.
SlurmdTimeout=600
KillWait=10
NodeName={nodes[0]} NodeHostname=localhost NodeAddr={nodes[0]} Port={ports[1]} CPUs={cpus} RealMemory=16000 Gres=gpu:h100:{gpus} Feature=nvlink
NodeName={nodes[1]} NodeHostname=localhost NodeAddr={nodes[1]} Port={ports[2]} CPUs={cpus} RealMemory=16000 Gres=gpu:h100:{gpus} Feature=nvlink
PartitionName=gpu Nodes={nodes[0]},{nodes[1]} Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes={nodes[0]},{nodes[1]} MaxTime=5 State=UP
PartitionName=closed Nodes={nodes[0]},{nodes[1]} MaxTime=INFINITE State=DOWN
PartitionName=drained Nodes={nodes[0]},{nodes[1]} MaxTime=INFINITE State=INACTIVE
"""  # noqa: E501


class Cluster:
    """The cluster: `environment` for its commands and jobs, `folder` with its configuration and its logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}

    def run(self, command: list[str], stdin: str = "", timeout: float = 120.0) -> str:
        """What a command such as `sinfo` writes to stdout; one that fails fails the test."""
        done = self.try_run(command, stdin, timeout)
        assert done.returncode == 0, f"{command}: {done.stderr.strip()}"
        return done.stdout

    def try_run(self, command: list[str], stdin: str = "", timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """A command's end, whatever it is. The caller's own variables for Slurm don't count."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith(_VARIABLES)}
        return subprocess.run(
            command, input=stdin, env=plain | self.environment, timeout=timeout, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    def jobs(self) -> list[str]:
        """The jobs that are not ended: `id name state reason`."""
        return self.run(["squeue", "--noheader", "--format=%A %j %T %r"]).splitlines()

    def wait_until(self, state: str, job: str, seconds: float = 60.0) -> None:
        """Wait until a job, by its id, is in a state."""
        end = time.monotonic() + seconds
        while (
            seen := self.run(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"]).strip()
        ) != state:
            assert time.monotonic() < end, f"job {job} is {seen}, and not {state} after {seconds} s"
            time.sleep(0.2)

    def empty(self, seconds: float = 60.0) -> None:
        """Cancel all jobs, and wait until there are none."""
        end = time.monotonic() + seconds
        while jobs := self.jobs():
            assert time.monotonic() < end, f"not ended after {seconds} s: {jobs}"
            self.try_run(["scancel", "--quiet", *(job.split()[0] for job in jobs)])
            time.sleep(0.2)

    def processes(self) -> list[int]:
        """All processes of the cluster and its jobs, that kept the name of its configuration."""
        mark = f"SLURM_CONF={self.environment['SLURM_CONF']}\0".encode()
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            try:
                held = file.read_bytes()
            except OSError:
                continue
            if mark in held and int(file.parent.name) != os.getpid():
                found.append(int(file.parent.name))
        return found


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """The cluster for all tests of a process."""
    for name in _DAEMONS:
        if shutil.which(name, path=_path()) is None:
            missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            missing(f"the program {name} is missing; install it")
    # A socket's name has 107 characters at most, and the folders of pytest are deep.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, ExitStack() as daemons:
        yield _started(Path(folder), daemons)


@pytest.fixture
def cluster(slurm: Cluster) -> Iterator[Cluster]:
    """The cluster with no job in it; what a test leaves there is cancelled."""
    slurm.empty()
    yield slurm
    slurm.empty()


def _started(folder: Path, daemons: ExitStack) -> Cluster:
    for name in ("munge", "state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir(mode=0o755)
    key = folder / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    for attempt in range(3):
        cluster = Cluster(folder)
        with ExitStack() as these:
            if _is_up(cluster, _daemons(cluster, these)):
                daemons.push(these.pop_all())
                return cluster
        if attempt == 2:
            logs = "\n".join(f"{log.name}: {log.read_text()[-1000:]}" for log in sorted(folder.glob("*.log")))
            pytest.fail(f"the cluster did not start: {logs}")
    raise AssertionError("not reached")


def _daemons(cluster: Cluster, ended_by: ExitStack) -> list[subprocess.Popen[bytes]]:
    """Start all; another process may take a port before they do, so all have new ones at each attempt."""
    folder = cluster.folder
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    (folder / "slurm.conf").write_text(
        _CONFIGURATION.format(folder=folder, user=user, nodes=NODES, ports=_ports(), cpus=CPUS, gpus=GPUS)
    )
    (folder / "gres.conf").write_text(
        "".join(f"NodeName={node} Name=gpu Type=h100 File=/dev/null,/dev/zero\n" for node in NODES)
    )
    munge = [f"--{name}={folder}/munge/{name.partition('-')[0]}" for name in ("key-file", "pid-file", "seed-file")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge/socket", *munge],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", node] for node in NODES),
    ]
    ended_by.callback(_kill_rest, cluster)
    started = []
    for number, command in enumerate(commands):
        output = ended_by.enter_context((folder / f"{command[0]}-{number}.log").open("wb"))
        # They go with this process, however it ends.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env=os.environ | cluster.environment, start_new_session=True,
        )  # fmt: skip
        ended_by.callback(_end, process)
        started.append(process)
    return started


def _is_up(cluster: Cluster, daemons: list[subprocess.Popen[bytes]], seconds: float = 60.0) -> bool:
    """Wait until all nodes are idle; false where a daemon ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if any(daemon.poll() is not None for daemon in daemons):
            return False
        seen = cluster.try_run(["sinfo", "--noheader", "--partition=gpu", "--Node", "--format=%N %t"]).stdout.split(
            "\n"
        )
        if {f"{node} idle" for node in NODES} <= set(seen):
            return True
        time.sleep(0.2)
    return False


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(15)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _kill_rest(cluster: Cluster) -> None:
    """End what outlived the daemons: jobs, and the processes of Slurm that watch them."""
    end = time.monotonic() + 30
    while (left := cluster.processes()) and time.monotonic() < end:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


def _ports() -> list[int]:
    """Ports that nobody has now: the controller's, and each node's."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(1 + len(NODES))]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


def _path() -> str:
    """Daemons are in folders that not every user's PATH has."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
