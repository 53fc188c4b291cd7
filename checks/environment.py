"""The environment of a rank: what is really loaded, and on what it runs."""

from __future__ import annotations

import os
import platform
import socket

import torch

from . import nvidia
from .describe import describe_device, nccl_built
from .device import gpus_needed, has_own

KEPT_VARIABLES = ("NCCL_", "TORCH_NCCL_", "TORCH_SYMM", "TORCH_DIST_", "NVSHMEM_", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD")


def rank_environment(plan: dict, rank: int, device: torch.device) -> dict:
    """Return what the record of this rank's environment holds; GPU facts are None on the CPU."""
    environment = {
        "schema": 1,
        "rank": rank,
        "world_size": plan["ranks"],
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": loaded_nccl() if device.type == "cuda" else None,
        "driver": None,
        "device_name": None,
        "capability": None,
        "device_uuid": None,
        "device_index": device.index,
        "multicast": None,
        "nvlink": None,
        "ranks_on_this_gpu": None,
        "env": {key: value for key, value in sorted(os.environ.items()) if key.startswith(KEPT_VARIABLES)},
        "seconds": {},
        "joined": True,
        "error": None,
    }
    if device.type == "cuda" and torch.cuda.is_available() and device.index < torch.cuda.device_count():
        facts = describe_device(device.index)
        environment.update(
            driver=nvidia.driver_version(),
            device_name=facts["name"],
            capability=facts["capability"],
            device_uuid=facts["uuid"],
            multicast=multicast_usable(device.index),
            nvlink=joined_by_nvlink(plan),
            ranks_on_this_gpu=plan["ranks_per_gpu"],
        )
    return environment


def loaded_nccl() -> dict:
    """Return version and path of the NCCL in this process, and the version that torch was built with.

    `torch.cuda.nccl.version()` tells the latter only: another library may be preloaded, so the loaded one is
    asked. Without a path NCCL is linked statically, and both versions are the same.
    """
    path, built = nvidia.loaded_nccl_path(), nccl_built()
    return {"version": nvidia.nccl_version(path) if path else built, "path": path, "built": built}


def multicast_usable(device: int) -> bool | None:
    """Return whether kernels may use NVLink multicast: the GPU can, and no variable forbids it."""
    if os.environ.get("NCCL_NVLS_ENABLE") == "0" or os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST") == "1":
        return False
    return nvidia.multicast_supported(device)


def joined_by_nvlink(plan: dict) -> bool | None:
    """Return whether all GPUs of the plan on this host see one another by NVLink; None for a single one, or if untold.

    A rank that is shown its own GPU only can't tell.
    """
    gpus = gpus_needed(plan)
    if gpus < 2 or has_own(plan, torch.cuda.device_count()):
        return None
    try:
        from torch._C._autograd import DeviceType
        from torch._C._distributed_c10d import _detect_dma_connectivity

        links = _detect_dma_connectivity(DeviceType.CUDA, "nvlink").matrix
        return all(links[one][other] > 0 for one in range(gpus) for other in range(gpus) if one != other)
    except Exception:  # a private function of torch, and NVML below it: without them it is just not known
        return None
