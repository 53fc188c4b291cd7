"""The ranks by Slurm's srun, on all hosts of an allocation: one job step for each start of them."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .allocation import COMMAND_SECONDS, Allocation
from .errors import Unmeasured, UserError
from .launch import rank_command, ranks_environment, run_here, start_folder
from .nccl_log import log_variables
from .plan import Plan
from .processes import Failure, Processes
from .report.text import one_line
from .watch import Ranks

START_SECONDS = 300.0
"""Hundreds of Pythons may read torch from one file system."""
LOOK_SECONDS = 60.0
KILLED_SECONDS = 10.0
POLL_SECONDS = 0.2
END_SECONDS = 60.0
"""In which a job step has to be gone after its processes were killed; Slurm's own limit is UnkillableStepTimeout."""
PORTS = range(20_000, 32_000)
"""Below those that Linux hands out by itself, so that few programs have one of them."""
PORT_TAKEN = 98
"""The exit status of a rank 0 that finds its port taken: EADDRINUSE."""
PORT_TRIES = 20
_FAILED = re.compile(
    rb"^srun: error: (?P<host>[^\s:]+): tasks? (?P<rank>\d+)[\d,-]*: "
    rb"(?:Exited with exit code (?P<status>\d+)|(?P<said>.+?))(?: \(core dumped\))?\r?$",
    re.MULTILINE,
)
"""srun's line about tasks that ended in another way than with status 0, in src/srun/libsrun/launch.c"""
_CANCELLED = re.compile(rb"\*\*\* (?:STEP|JOB) \S+ ON \S+ (CANCELLED AT .{1,200}?) \*\*\*")
"""The line of slurmstepd about a step that Slurm itself ended, at its time limit for example; also when srun asked."""
_SIGNALS = {signal.strsignal(number): int(number) for number in signal.valid_signals()}
_LOOK = """\
for path; do
  tries=0
  while [ ! -r "$path" ] && [ "$tries" -lt 5 ]; do sleep 1; tries=$((tries + 1)); done
  [ -r "$path" ] || echo "can't see $SLURMD_NODENAME $path"
done
[ -w "$0" ] || echo "can't write $SLURMD_NODENAME $0"
"""


class Srun:
    """Ranks by srun in an allocation. `environment` is that of Slurm's own commands, and of the ranks by default."""

    start_seconds = START_SECONDS

    def __init__(self, allocation: Allocation, environment: Mapping[str, str]) -> None:
        self.allocation = allocation
        self._slurm = Slurm(allocation.job, dict(environment))

    def run(
        self, command: list[str], environment: dict[str, str] | None, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a short command on the first host; for describe_python."""
        return self._slurm.run(_step(1, self.allocation.hosts[:1]), command, environment, timeout)

    def look(self, folder: Path, needed: Mapping[Path, str]) -> None:
        """Raise UserError where a host can't write to `folder`, or see a file of `needed`, told with its mend."""
        probe = folder / f".{uuid.uuid4().hex}"
        mend = "give a folder on a file system that all hosts share, with --out DIR"
        mends = {str(folder): mend, str(probe): mend, **{str(path): needed[path] for path in needed}}
        hosts = self.allocation.hosts
        probe.touch()
        try:
            command = ["sh", "-c", _LOOK, str(folder), str(probe), *map(str, needed)]
            done = self._slurm.run(_step(len(hosts), hosts), command, None, LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            raise Unmeasured(f"srun: no answer from {', '.join(hosts)} within {LOOK_SECONDS:g} s") from None
        finally:
            probe.unlink(missing_ok=True)
        missing: dict[tuple[str, str], list[str]] = {}
        for line in done.stdout.decode(errors="replace").splitlines():
            found = re.fullmatch(r"(can't \w+) (\S+) (.+)", line)
            if found:
                missing.setdefault((found[1], found[3]), []).append(one_line(found[2], 100))
        for (what, path), where in missing.items():
            shown = folder if path == str(probe) else path
            raise UserError(f"{shown}: {', '.join(sorted(where))} {what} it; {mends.get(path, mend)}")
        if done.returncode != 0:
            said = one_line(done.stderr.decode(errors="replace").strip(), 500)
            raise Unmeasured(f"srun in job {self.allocation.job} ended with status {done.returncode}: {said}")

    def variables(self, plan: Plan, environment: dict[str, str], folder: Path) -> dict[str, str]:
        """See Launcher."""
        found = ranks_environment(plan, environment, folder)
        if plan.witness:
            # Process ids are a host's own.
            found["NCCL_DEBUG_FILE"] = log_variables(folder)["NCCL_DEBUG_FILE"].replace("nccl.%p", "nccl.%h.%p")
        # Another torchrun around this one has left word of a store that is not there for these ranks.
        kept = {name: value for name, value in found.items() if not name.startswith("TORCHELASTIC_")}
        return {**kept, "MASTER_ADDR": self.allocation.address, "LOCAL_WORLD_SIZE": str(self.allocation.per_host)}

    def start(
        self, plan: Plan, run_folder: Path, python: str, preload: Path | None, environment: dict[str, str]
    ) -> Ranks:
        """See Launcher."""
        folder, own = start_folder(run_folder, plan), self.allocation
        step = _step(own.ranks, own.hosts, own.cpus)
        rank = rank_command(folder / "plan.json", run_folder, python, preload, environment)

        def begin(name: str, port: int) -> Processes:
            command = ["srun", f"--job-name={name}", *step, *rank]
            return Processes(command, {**environment, "MASTER_PORT": str(port)}, folder / "log.txt")

        return Step(begin, self._slurm)


def _step(ranks: int, hosts: Sequence[str], cpus: str = "") -> list[str]:
    """The arguments for a step of `ranks` tasks, as many on each of `hosts`, in their order.

    What else the allocation says, such as how GPUs are bound to tasks, holds as for the caller's own training.
    https://slurm.schedmd.com/srun.html
    """
    return [
        f"--nodes={len(hosts)}", f"--nodelist={','.join(hosts)}", "--distribution=block",
        f"--ntasks={ranks}", f"--ntasks-per-node={ranks // len(hosts)}", *([f"--cpus-per-task={cpus}"] if cpus else []),
        # Beside the step that this command itself may be in.
        "--overlap",
        "--export=ALL", "--mpi=none", "--input=none", "--wait=0", "--kill-on-bad-exit=1",
    ]  # fmt: skip


class Step:
    """One start of the ranks: srun, and the tasks of its job step on all hosts."""

    name = "srun"
    shared = True

    def __init__(self, begin: Callable[[str, int], Processes], slurm: Slurm) -> None:
        """`begin` starts srun for a step of a name, with a port for the ranks to meet at."""
        self._begin, self._slurm = begin, slurm
        self._step = f"symmem-check-{uuid.uuid4().hex}"
        self._ports = random.sample(PORTS, min(PORT_TRIES, len(PORTS)))
        self._processes, self._ended = begin(self._step, self._ports.pop()), False

    def poll(self) -> int | None:
        """Return srun's exit status; None while it runs, or is begun anew since the port was taken."""
        status = self._processes.poll()
        if status and self._ports and self._port_taken():
            self.stop(patience=0)
            self._processes, self._ended = self._begin(self._step, self._ports.pop()), False
            return None
        return status

    def _port_taken(self) -> bool:
        failure = self.first_failure()
        return failure is not None and (failure.rank, failure.status) == (0, PORT_TAKEN)

    def stop(self, patience: float) -> int:
        """End the tasks on all hosts: asked at first, killed after `patience` seconds; returns srun's status.

        Nothing of the step is left when this returns. Raises Unmeasured where Slurm can't end it.
        """
        if self._ended:
            return self._processes.stop(patience=0)
        if self._processes.poll() is None and patience > 0:
            self._processes.ask(patience)
        if self._processes.poll() is None:
            # A killed srun leaves its tasks behind; killed tasks end srun.
            self._slurm.kill(self._step)
            self._processes.wait(KILLED_SECONDS)
        status = self._processes.stop(patience=0)
        self._slurm.end(self._step)
        self._ended = True
        return status

    def first_failure(self) -> Failure | None:
        """Return the rank that srun saw fail first; None if it saw none. The rank is the task's number."""
        found = _FAILED.search(self._processes.log_tail())
        if found is None or self._cancelled() is not None:
            return None
        where = f" on {_text(found['host'])}"
        if found["status"] is not None:
            return Failure(int(found["rank"]), int(found["status"]), where)
        said = _text(found["said"])
        if said in _SIGNALS:
            return Failure(int(found["rank"]), -_SIGNALS[said], where)
        # Such as "Out Of Memory", which is the kernel's kill.
        return Failure(int(found["rank"]), -signal.SIGKILL, f"{where} ({said})")

    def last_words(self) -> str:
        """Return why Slurm ended the step, or the last line of what srun and the tasks printed."""
        cancelled = self._cancelled()
        return self._processes.last_words() if cancelled is None else f"Slurm ended the step: {cancelled}"

    def _cancelled(self) -> str | None:
        """Why Slurm ended the step before any rank had failed; after a failure, srun has it ended."""
        log = self._processes.log_tail()
        found, failed = _CANCELLED.search(log), _FAILED.search(log)
        return _text(found[1]) if found and not (failed and failed.start() < found.start()) else None


def _text(said: bytes) -> str:
    return one_line(said.decode(errors="replace"), 200)


class Slurm:
    """Slurm's commands for the steps of one job."""

    def __init__(self, job: str, environment: dict[str, str]) -> None:
        self._job, self._environment = job, environment

    def run(
        self, step: Sequence[str], command: list[str], environment: dict[str, str] | None, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a step for `timeout` seconds at most; raises OSError and TimeoutExpired. Nothing of it is left then."""
        name = f"symmem-check-{uuid.uuid4().hex}"
        srun = ["srun", f"--job-name={name}", *step, *command]
        try:
            return run_here(srun, environment or self._environment, timeout)
        except BaseException:
            self.end(name)
            raise

    def kill(self, name: str) -> None:
        """Kill all tasks of the steps of that name, on all hosts."""
        for step in self._steps(name) or []:
            self._call("scancel", "--quiet", "--signal=KILL", step)

    def end(self, name: str) -> None:
        """Kill the steps of that name, and wait until there are none. Raises Unmeasured where there may still be."""
        end = time.monotonic() + END_SECONDS
        while (steps := self._steps(name)) != []:
            if time.monotonic() > end:
                step = f"job step {', '.join(steps)}" if steps else f"a step of job {self._job}"
                raise Unmeasured(
                    f"{step} has not ended {END_SECONDS:g} s after it was killed, or Slurm does not answer, so no "
                    f"other can be started; look for its processes, or end the job with scancel {self._job}"
                )
            self.kill(name)
            time.sleep(POLL_SECONDS)

    def _steps(self, name: str) -> list[str] | None:
        """The ids of the steps of that name; None where Slurm doesn't say."""
        done = self._call("squeue", "--steps", f"--jobs={self._job}", "--noheader", "--format=%i %j")
        if done is None or done.returncode != 0:
            gone = done is not None and b"Invalid job id" in done.stderr
            return [] if gone else None
        rows = [line.split() for line in done.stdout.decode(errors="replace").splitlines()]
        return [row[0] for row in rows if row[1:] == [name]]

    def _call(self, *command: str) -> subprocess.CompletedProcess[bytes] | None:
        try:
            return run_here([*command], self._environment, COMMAND_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            return None
