"""Which GPU a rank takes, by its place on its host."""

from __future__ import annotations

import os

import torch


def gpus_needed(plan: dict) -> int:
    """Return how many GPUs the ranks on this host take. Without LOCAL_WORLD_SIZE, all ranks are here."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or plan["ranks"])
    return -(-here // plan["ranks_per_gpu"])


def has_own(plan: dict, visible: int) -> bool:
    """Return whether this rank is shown only its own of the GPUs of its host, as srun binds them (--gpu-bind).

    SLURM_GPUS_ON_NODE, where it is set, tells that from a host that has too few.
    https://slurm.schedmd.com/srun.html#OPT_gpu-bind
    """
    if plan.get("launcher") != "slurm" or not 0 < visible < gpus_needed(plan):
        return False
    on_host = os.environ.get("SLURM_GPUS_ON_NODE", "")
    return not on_host.isdecimal() or int(on_host) >= gpus_needed(plan)


def rank_device(plan: dict, local_rank: int) -> torch.device:
    """Return the device of the rank with that number on its host."""
    if plan["device"] != "cuda":
        return torch.device(plan["device"])
    bound = has_own(plan, torch.cuda.device_count())
    return torch.device("cuda", 0 if bound else local_rank // plan["ranks_per_gpu"])
