"""Two process groups on one pool, which is registered with both, as for data and tensor parallel ranks.

Frameworks that share a pool among communicators have hung or registered its segments twice:
https://github.com/NVIDIA/Megatron-LM/pull/3565, https://github.com/vllm-project/vllm/pull/38549
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..case import Case
from ..pools import Pool
from ..profiler import synchronize
from ..values import check_values, known_values
from .collectives import in_pool


def two_groups(case: Case, pool: Pool, *, dtype: str, size: int) -> None:
    """Trace an all-reduce in the default group and one in a second group of all ranks, and check both."""
    element = getattr(torch, dtype)
    elements = size // element.itemsize
    second = dist.new_group()
    sources = [known_values(elements, case.rank + first, element, case.device) for first in (0, case.world_size)]
    with in_pool(pool):
        buffers = [torch.empty_like(source) for source in sources]

    def step() -> None:
        for group, buffer, source in zip((dist.group.WORLD, second), buffers, sources, strict=True):
            buffer.copy_(source)
            dist.all_reduce(buffer, group=group)

    case.allocate(step)
    if pool.registered:
        pool.memory.register(symmetric=pool.registration == "symmetric", group=second)
    case.run(step)
    for buffer, first in zip(buffers, (0, case.world_size), strict=True):
        check_values(case, buffer, range(first, first + case.world_size))
    synchronize(case.device)
    case.control.barrier(f"{case.id}/second", case.deadline)
    if pool.registered:
        pool.memory.deregister(group=second)
    dist.destroy_process_group(second)
