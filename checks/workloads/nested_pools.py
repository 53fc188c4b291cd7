"""One memory pool in use inside another: which of them got the buffer?

It should be the inner one. Before torch fixed https://github.com/pytorch/pytorch/issues/161193 the outer pool took
all, so a symmetric pool inside another, such as a framework's own, was never used.
"""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist

from ..case import Case
from ..memory import Incapable
from ..pools import Pool
from ..values import check_values, known_values
from .collectives import in_pool


def nested_pools(case: Case, pool: Pool, *, dtype: str, size: int, inner: str) -> None:
    """Trace an all-reduce of a buffer that was made under two pools, and check the result.

    One is the set-up's, the other an ordinary pool; `inner` says which lies inside: "symmetric" or "ordinary". The
    record's `got_by` says where the buffer is: "symmetric", "ordinary" or "neither".
    """
    if case.device.type != "cuda":
        raise Incapable(f"a memory pool needs a GPU, and this run is on the {case.device.type}")
    if inner not in ("symmetric", "ordinary"):
        raise ValueError(f"there is no inner {inner!r}: it is symmetric or ordinary")
    element = getattr(torch, dtype)
    source = known_values(size // element.itemsize, case.rank, element, case.device)
    ordinary = torch.cuda.MemPool()

    with contextlib.ExitStack() as stack:
        pools = (lambda: torch.cuda.use_mem_pool(ordinary, case.device), lambda: in_pool(pool))
        for enter in pools if inner == "symmetric" else reversed(pools):
            stack.enter_context(enter())
        buffer = torch.empty_like(source)

    def step() -> None:
        buffer.copy_(source)
        dist.all_reduce(buffer)

    case.run(step)
    check_values(case, buffer, range(case.world_size))
    address = buffer.data_ptr()
    in_ordinary = any(0 <= address - part["address"] < part["total_size"] for part in ordinary.snapshot())
    case.note("got_by", "symmetric" if pool.holds(address) else "ordinary" if in_ordinary else "neither")
