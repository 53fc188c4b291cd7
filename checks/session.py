"""One rank's session: the process group, and all cases of the plan in it, one after the other."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from .case import Case
from .control import Control, PeerLost
from .deadline import BACKUP_SECONDS, PATIENCE_SECONDS, Deadline, leave, peer_trouble
from .describe import one_line
from .device import gpus_needed, has_own, rank_device
from .environment import rank_environment
from .memory import Incapable, Memory, torch_release
from .needs import unmet
from .pools import Pool, set_up
from .profiler import start_profiler_once, synchronize
from .record import Record, write_json
from .slurm import take_place
from .workloads import find_workload

# Several ranks may share a GPU from this version of NCCL on, see NCCL_MULTI_RANK_GPU_ENABLE in
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
SHARED_GPU_NCCL = (2, 30, 3)


# Whoever starts the ranks gives up on a start that doesn't come up; this is only for a rank left alone.
START_SECONDS = 600


def run_rank(plan_path: Path, run: Path, import_seconds: float) -> int:
    """Run every case of the plan as the rank that torchrun's or Slurm's variables say; ends the process.

    Writes the environment to starts/N/rankR.json, again once the process group stands (or why it doesn't, and
    returns 1), then each case's record and trace.
    """
    plan = json.loads(plan_path.read_text())
    if plan.get("launcher") == "slurm":
        take_place()
    rank = int(os.environ["RANK"])
    device = rank_device(plan, int(os.environ["LOCAL_RANK"]))
    began = time.monotonic()
    environment = rank_environment(plan, rank, device)
    environment["seconds"]["import"] = round(import_seconds, 3)
    environment_path = run / "starts" / str(plan["start"]) / f"rank{rank}.json"
    obstacle = find_obstacle(plan, environment)
    # So that the ranks which never come can be told from those that wait for them.
    write_json(environment_path, dict(environment, joined=False))
    try:
        if obstacle is None:
            obstacle = choose_symm_mem_backend(plan, device)
        control = Control(rank, plan["ranks"], may_host=True)
        obstacle = agreed(control, obstacle)
        if obstacle is None:
            environment["seconds"] |= join_ranks(plan, device)
        control.barrier("ready", START_SECONDS)
        watch = Control(rank, plan["ranks"], may_host=False)
    except Exception as error:
        traceback.print_exc()
        write_json(environment_path, dict(environment, error=one_line(error)))
        return 1
    environment["seconds"]["init"] = round(time.monotonic() - began, 3)
    write_json(environment_path, environment)
    Session(plan, run, rank, device, control, watch, environment, obstacle).run()
    leave()
    return 0


def agreed(control: Control, obstacle: str | None) -> str | None:
    """Return the obstacle of the first rank that has one, the same on every rank: hosts may differ."""
    control.post("obstacle", message=obstacle)
    answers = control.gather("obstacle", START_SECONDS)
    return next((answers[rank]["message"] for rank in sorted(answers) if answers[rank]["message"]), None)


def find_obstacle(plan: dict, environment: dict) -> str | None:
    """Return why ranks can't work on this host, by facts of machine and versions; else None."""
    if plan["device"] != "cuda":
        return None
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    gpus, visible = gpus_needed(plan), torch.cuda.device_count()
    if gpus > visible and not has_own(plan, visible):
        where = f" on {socket.gethostname()}" if plan.get("launcher") == "slurm" else ""
        return f"{gpus} GPUs are needed{where}, and torch sees {visible}"
    version = environment["nccl"]["version"]
    if plan["ranks_per_gpu"] > 1 and version and tuple(map(int, version.split("."))) < SHARED_GPU_NCCL:
        return (
            f"several ranks on one GPU need NCCL 2.30.3 or newer, and loaded is {version}: give one with --nccl 2.30.7"
        )
    return None


def choose_symm_mem_backend(plan: dict, device: torch.device) -> str | None:
    """Set the backend of torch's symmetric memory that the plan's launch configuration names, before any allocation.

    Returns why this machine or build can't, else None. A start's plan has one configuration, or none.
    """
    for configuration in plan.get("configurations", {}).values():
        backend = configuration["symm_mem_backend"]
        if backend is None:
            continue
        if plan["device"] != "cuda":
            return f"the symm_mem backend {backend} needs a GPU, and this run is on the {plan['device']}"
        if torch_release() < (2, 9):
            return f"symm_mem.set_backend came with torch 2.9; this is {torch.__version__}"
        import torch.distributed._symmetric_memory as symmetric_memory

        # "CUDA" is what torch begins with, and asking for it then fails as if there were none.
        if symmetric_memory.get_backend(device) != backend:
            symmetric_memory.set_backend(backend)
    return None


def join_ranks(plan: dict, device: torch.device) -> dict[str, float]:
    """Make the process group, with its communicator up: a pool can't be registered before that.

    Returns the seconds that it took, and the profiler after it.
    """
    began = time.monotonic()
    # The process group's own time-out would end the process from within; the deadlines of the cases come first.
    timeout = timedelta(seconds=600 + max((case["deadline"] for case in plan["cases"]), default=0))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group(plan["backend"], device_id=device, timeout=timeout)
    else:
        dist.init_process_group(plan["backend"], timeout=timeout)
    joined = time.monotonic()
    start_profiler_once(device)
    return {"process-group": round(joined - began, 3), "profiler": round(time.monotonic() - joined, 3)}


class Session:
    """All cases of one start of the ranks, seen from one rank."""

    def __init__(
        self,
        plan: dict,
        run: Path,
        rank: int,
        device: torch.device,
        control: Control,
        watch: Control,
        environment: dict,
        obstacle: str | None,
    ) -> None:
        self.plan, self.folder, self.rank, self.device = plan, run, rank, device
        self.control, self.watch = control, watch
        self.environment, self.obstacle = environment, obstacle
        self.memory = Memory(device)
        self.pool: Pool | None = None
        self.root = Path(plan.get("root") or Path.cwd()).resolve()

    def run(self) -> None:
        """Run the cases until one breaks the process group; the rest is for a fresh start of the ranks."""
        for number, case in enumerate(self.plan["cases"]):
            topic = f"case{number}"
            record = Record(self.folder / case["folder"], case["id"], self.rank, self.plan["start"])
            with Deadline(record, self.watch, topic, case["deadline"]):
                outcome, message = self.attempt(case, record, topic)
            if not self.all_go_on(topic, outcome, message, case["deadline"]):
                return
            # A workload that found out what this machine lacks has left its pool behind, on every rank alike.
            self.release()

    def attempt(self, case: dict, record: Record, topic: str) -> tuple[str, str | None]:
        """Run one case and end its record; returns its outcome and message."""
        detail = None
        try:
            self.measure(case, record)
            outcome, message = judge_values(record.content["values"])
        except Incapable as error:
            outcome, message = "incapable", str(error)
        except BaseException as error:  # a workload may raise anything; SystemExit too ends only its case
            outcome, message, detail = "raised", one_line(error) + self.blame(topic), traceback.format_exc()
        if not record.finish(outcome, message, detail):
            # The watchdog was first, and is about to end this process.
            time.sleep(BACKUP_SECONDS)
        return outcome, message

    def measure(self, case: dict, record: Record) -> None:
        """Set the pool up and register it, run the workload in it, and take the registration back.

        Deregistering is collective: after a failure the peers may not join in, and the process ends anyhow.
        """
        if self.obstacle is not None:
            raise Incapable(self.obstacle)
        if lacking := unmet(case.get("needs", {}), self.plan, self.environment):
            raise Incapable(lacking)
        workload = find_workload(case["workload"], self.root)
        axes = dict(case["axes"])
        pool = self.pool = set_up(axes.pop("pool", "none"), self.memory)
        self.control.barrier(f"{case['id']}/register", case["deadline"])
        pool.register()
        record.content["pool"] = pool.describe()
        workload(Case(case, self.plan, self.device, pool, record, self.control), pool, **axes)
        synchronize(self.device)
        self.control.barrier(f"{case['id']}/deregister", case["deadline"])
        self.release()

    def release(self) -> None:
        """Take the registration back and drop the pool, so that the next case begins with nothing. Collective."""
        if self.pool is not None:
            self.pool.deregister()
            self.memory.close()
            self.pool = None

    def blame(self, topic: str) -> str:
        """Say which peer had given up before this rank raised: a broken connection is an effect, not a cause."""
        try:
            trouble = peer_trouble(self.control, topic)
        except PeerLost:
            return ""
        return f" (rank {trouble[0]} had given up before)" if trouble else ""

    def all_go_on(self, topic: str, outcome: str, message: str | None, deadline: float) -> bool:
        """Tell the peers this rank's outcome and hear theirs; returns whether the process group is still good.

        It is where the case ran to its end on every rank, with right values or wrong ones, and where all
        ranks are incapable of it alike.
        """
        patience = deadline + BACKUP_SECONDS + PATIENCE_SECONDS if outcome != "raised" else PATIENCE_SECONDS
        try:
            self.control.post(topic, outcome=outcome, message=message)
            # The rank that raised stays until its peers have written their records, or its patience ends.
            until = broken if outcome != "raised" else None
            answers = self.control.gather(topic, patience, until)
        except PeerLost:
            return False
        outcomes = {answer["outcome"] for answer in answers.values()}
        return outcomes <= {"ok", "wrong-values"} or outcomes == {"incapable"}


def broken(answers: dict[int, dict]) -> bool:
    """Return whether a rank has said that it left the case without its end."""
    return any(answer["outcome"] in ("raised", "hung") for answer in answers.values())


def judge_values(values: dict | None) -> tuple[str, str | None]:
    """Return the outcome of a case that ran to its end, by the values that its workload checked."""
    if not values or not values["checked"]:
        return "raised", "the workload checked no value"
    if not values["wrong"]:
        return "ok", None
    return (
        "wrong-values",
        f"{values['wrong']} of {values['checked']} values are wrong, by up to {values['max_error']:g}",
    )
