"""The pool registered and deregistered again and again, as frameworks do around each use of it.

Two things can go wrong with time: addresses run out (https://github.com/NVIDIA/nccl/issues/2331), which ends in an
error here, and memory is lost.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from ..case import Case
from ..pools import Pool
from ..profiler import synchronize
from ..values import check_values, known_values
from .collectives import in_pool

SETTLED = 5
LARGEST_GROWTH = 32 << 20
"""Bytes. A page of GPU memory is 2 MiB: one lost in every second round would be more."""


def register_loop(case: Case, pool: Pool, *, dtype: str, size: int, rounds: int) -> None:
    """Register, all-reduce and deregister `rounds` times, checking each result; then trace as usual.

    The record's `memory` are the bytes in use after each round: all of the GPU's, and this process's own on the
    host. Raises MemoryError where the GPU's have grown by more than LARGEST_GROWTH from round SETTLED to the last.
    """
    element = getattr(torch, dtype)
    source = known_values(size // element.itemsize, case.rank, element, case.device)
    with in_pool(pool):
        buffer = torch.empty_like(source)

    def step() -> None:
        buffer.copy_(source)
        dist.all_reduce(buffer)

    memory: dict[str, list[int]] = {"gpu": [], "host": []}
    for number in range(rounds):
        pool.register()
        step()
        check_values(case, buffer, range(case.world_size))
        # No rank may take its registration back, or look at the memory they share, while another is still at work.
        synchronize(case.device)
        case.control.barrier(f"{case.id}/used{number}", case.deadline)
        pool.deregister()
        case.control.barrier(f"{case.id}/free{number}", case.deadline)
        memory["gpu"].append(gpu_bytes(case.device))
        memory["host"].append(host_bytes())
        case.control.barrier(f"{case.id}/read{number}", case.deadline)
    case.note("memory", memory)
    refuse_growth(memory["gpu"])
    pool.register()
    case.run(step)
    check_values(case, buffer, range(case.world_size))


def refuse_growth(used: list[int]) -> None:
    """Raise MemoryError where the bytes in use have grown by more than LARGEST_GROWTH since round SETTLED."""
    growth = used[-1] - used[min(SETTLED, len(used) - 1)]
    if growth > LARGEST_GROWTH:
        raise MemoryError(f"{growth >> 20} MiB of GPU memory were lost in {len(used)} registrations")


def gpu_bytes(device: torch.device) -> int:
    """Return the bytes in use on the GPU, by all processes; 0 on the CPU."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def host_bytes() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
