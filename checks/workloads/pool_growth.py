"""A pool that grows in every step while it is registered: each new segment is registered from the allocator.

Registering a window is collective, so ranks that meet in it at different times can block for good:
https://github.com/sgl-project/sglang/issues/36943. The deadline of the case is the watchdog.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..case import Case
from ..pools import Pool
from ..values import check_values, known_values
from .collectives import in_pool

GROWTHS = 4


def pool_growth(case: Case, pool: Pool, *, dtype: str, size: int) -> None:
    """Trace all-reduces of ever new buffers, each `size` bytes larger than the last, and check the results.

    All buffers are kept, so every one needs new memory. The record's `segments` are the pool's after each step.
    """
    element = getattr(torch, dtype)
    buffers: list[Tensor] = []
    segments: list[int] = []

    def step() -> None:
        for _ in range(GROWTHS):
            elements = (len(buffers) + 1) * size // element.itemsize
            values = known_values(elements, case.rank, element, case.device)
            with in_pool(pool):
                buffers.append(values.clone())
            dist.all_reduce(buffers[-1])
        segments.append(len(pool.memory.segments()) if pool.memory else 0)

    case.run(step)
    for buffer in buffers:
        check_values(case, buffer, range(case.world_size))
    case.note("segments", segments)
