"""Run a plan: start its ranks, watch them, start them again for what is left, and end them.

The ranks end a case by themselves where they can. This side is for what they can't: a process that died, one
that does not come up, and one that is past even its own deadline.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Protocol

import msgspec

from .errors import UserError
from .nccl_log import log_variables
from .plan import Plan, write_plan
from .processes import Processes, how_it_ended
from .runfolder import RunFolder, write_json
from .watch import CaseProgress, Ranks, Start, Stop, Watch, stoppable

__all__ = [
    "CaseProgress",
    "Device",
    "Launcher",
    "PythonFacts",
    "Start",
    "Torchrun",
    "checks_folder",
    "describe_python",
    "rank_command",
    "ranks_environment",
    "run_here",
    "run_plan",
    "torchrun_command",
]

START_SECONDS = 120.0
DESCRIBE_SECONDS = 120.0

SHARED_GPU_ENVIRONMENT = {
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
"""What several ranks on one GPU need: NCCL refuses to start there with NVLS on.
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"""


class Device(msgspec.Struct, frozen=True):
    """A GPU that torch sees."""

    index: int
    name: str
    capability: tuple[int, int]
    uuid: str | None = None


class PythonFacts(msgspec.Struct, frozen=True):
    """What a Python offers; `error` is one line that says why there is nothing to run on, else None."""

    torch: str | None = None
    cuda: str | None = None
    devices: list[Device] = []
    nccl_built: str | None = None  # known to a thorough look only
    error: str | None = None


def checks_folder() -> Path:
    """Return the folder of the half that runs on the GPUs: in the installed package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent
    for folder in (here / "checks", here.parent / "checks"):
        if (folder / "__main__.py").is_file():
            return folder
    raise UserError(f"{here}: the checks/ folder is missing beside it; install symmem-check again")


Brief = Callable[[list[str], "dict[str, str] | None", float], "subprocess.CompletedProcess[bytes]"]
"""Runs a short command where the ranks will be, in an environment (None: this one) and for some seconds at most; as
subprocess.run, it raises OSError and TimeoutExpired."""


def run_here(
    command: list[str], environment: dict[str, str] | None, timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a short command on this machine."""
    return subprocess.run(
        command, check=False, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout
    )


def describe_python(
    python: str, environment: dict[str, str] | None = None, *, thorough: bool = False, run: Brief = run_here
) -> PythonFacts:
    """Ask the Python at `python` for its torch and GPUs; what goes wrong there is told in `error`.

    Unless `thorough`, torch is not imported where its files and the driver tell the same, which takes seconds less:
    a torch that can't be imported then shows only when the ranks start. Raises UserError where `python` can't be run.
    """
    command = [python, str(checks_folder() / "__main__.py"), "--describe", *(["--thorough"] if thorough else [])]
    try:
        done = run(command, environment, DESCRIBE_SECONDS)
    except OSError as error:
        raise UserError(f"{python}: can't be run ({error.strerror}); give a Python with --python") from error
    except subprocess.TimeoutExpired:
        return PythonFacts(error=f"{python} did not tell its torch and GPUs within {DESCRIBE_SECONDS:.0f} s")
    # What torch or the machine print goes before the one line that is ours.
    lines = done.stdout.splitlines()
    try:
        return msgspec.json.decode(lines[-1], type=PythonFacts)
    except (IndexError, msgspec.DecodeError):
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return PythonFacts(error=f"{python} {how_it_ended(done.returncode)}: {said[-1] if said else 'no output'}")


def ranks_environment(plan: Plan, environment: dict[str, str], folder: Path | None = None) -> dict[str, str]:
    """Return the environment of one start: the caller's, with what the plan needs.

    Where the plan asks for a witness, NCCL writes its log into the start's `folder`, wherever the caller had it.

    What the caller has set stands, but where the start's launch configuration says otherwise: a case would else not
    be what its name tells.
    """
    needed = dict(SHARED_GPU_ENVIRONMENT) if plan.device == "cuda" and plan.ranks_per_gpu > 1 else {}
    # torchrun would set the same, and say so at length.
    needed["OMP_NUM_THREADS"] = "1"
    log = log_variables(folder) if plan.witness and folder is not None else {}
    return {**needed, **environment, **plan.configuration.env, **log}


def torchrun_command(
    plan: Plan, plan_path: Path, run_folder: Path, python: str, preload: Path | None, environment: dict[str, str]
) -> list[str]:
    """Return the command that starts the ranks on this machine."""
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={plan.ranks}", "--no-python"]
    return [*torchrun, *rank_command(plan_path, run_folder, python, preload, environment)]


def rank_command(
    plan_path: Path, run_folder: Path, python: str, preload: Path | None, environment: dict[str, str]
) -> list[str]:
    """Return the command of one rank; `preload` goes into the ranks alone, before what is preloaded anyhow."""
    preloads = [str(preload.resolve()), environment.get("LD_PRELOAD", "")] if preload else []
    assign = [f"LD_PRELOAD={':'.join(filter(None, preloads))}"] if preload else []
    rank = [python, str(checks_folder() / "__main__.py"), "--plan", str(plan_path), "--into", str(run_folder)]
    return ["env", *assign, *rank]


class Launcher(Protocol):
    """What starts the ranks, and where."""

    @property
    def start_seconds(self) -> float:
        """In how many seconds all ranks of a start have to come up."""

    def variables(self, plan: Plan, environment: dict[str, str], folder: Path) -> dict[str, str]:
        """Return the environment of one start; `folder` is its own, for what is written beside its plan."""

    def start(
        self, plan: Plan, run_folder: Path, python: str, preload: Path | None, environment: dict[str, str]
    ) -> Ranks:
        """Start the ranks of a start's plan, which lies in its folder; what they print goes to log.txt there."""


class Torchrun:
    """Ranks on this machine, by torchrun of the Python under test."""

    start_seconds = START_SECONDS

    def variables(self, plan: Plan, environment: dict[str, str], folder: Path) -> dict[str, str]:
        """See Launcher."""
        return ranks_environment(plan, environment, folder)

    def start(
        self, plan: Plan, run_folder: Path, python: str, preload: Path | None, environment: dict[str, str]
    ) -> Ranks:
        """See Launcher."""
        folder = start_folder(run_folder, plan)
        command = torchrun_command(plan, folder / "plan.json", run_folder, python, preload, environment)
        return Processes(command, environment, folder / "log.txt")


def start_folder(run_folder: Path, plan: Plan) -> Path:
    """The folder of the start that `plan` is the plan of."""
    return run_folder / "starts" / str(plan.start)


def run_plan(
    plan: Plan,
    run_folder: Path,
    *,
    python: str,
    environment: dict[str, str] | None = None,
    preload: Path | None = None,
    progress: Callable[[CaseProgress], None] = lambda change: None,
    start_deadline: float | None = None,
    stop: Stop | None = None,
    launcher: Launcher | None = None,
) -> list[Start]:
    """Run every case of `plan` once, writing into `run_folder`; returns the starts of the ranks it took.

    Each launch configuration has a start of its own. A case that breaks its process group costs only itself: the
    rest runs in a fresh start. A start in which no case even began is the last one of its configuration. Every case
    ends with the records of all ranks or with a lost.json.
    SIGINT, SIGTERM and SIGHUP end the ranks first and act then; a caller that holds them itself gives its `stop`.
    `environment` defaults to this process's, `launcher` to torchrun, and `start_deadline`, in seconds, to the
    launcher's.
    """
    launcher = launcher or Torchrun()
    start_deadline = launcher.start_seconds if start_deadline is None else start_deadline
    run_folder = run_folder.resolve()
    if any((run_folder / name).exists() for name in ("plan.json", "cases", "starts")):
        raise UserError(f"{run_folder}: there is a run in it already; give an empty folder")
    write_plan(plan, run_folder / "plan.json")
    caller = dict(os.environ) if environment is None else environment
    watch = Watch(plan, RunFolder(run_folder), progress)
    starts: list[Start] = []
    with stoppable() if stop is None else nullcontext(stop) as asked:
        while (left := watch.left()) and not asked.signal:
            part = plan.part(left, len(starts))
            folder = start_folder(run_folder, part)
            variables = launcher.variables(part, caller, folder)
            write_plan(part, folder / "plan.json")
            processes = launcher.start(part, run_folder, python, preload, variables)
            try:
                end = watch.follow(part, processes, asked, start_deadline)
            finally:
                processes.stop(patience=0)
            write_json(end, folder / "end.json")
            still_left = watch.left()
            starts.append(Start(part.start, [case.id for case in part.cases if case not in still_left], end))
        watch.write_off_left()
    return starts
