"""The probe of https://github.com/pytorch/pytorch/issues/167353: one all-reduce in forward, one in backward."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..case import Case
from ..pools import Pool

OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


class AllReduce(torch.autograd.Function):
    """All-reduce of a copy of the input in forward, and of a copy of the gradient in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, case: Case, pool: Pool, op: str) -> Tensor:
        ctx.case, ctx.pool, ctx.op = case, pool, op
        return reduced_copy(tensor, case, pool, op, "forward")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        # The buffer is allocated here, on whichever thread autograd runs this.
        return reduced_copy(gradient, ctx.case, ctx.pool, ctx.op, "backward"), None, None, None


def reduced_copy(tensor: Tensor, case: Case, pool: Pool, op: str, phase: str) -> Tensor:
    """Copy `tensor` into a buffer of the set-up and all-reduce that in place."""
    buffer = pool.buffer(tensor, slot=phase)
    case.note_buffer(phase, "all_reduce", "in-place", buffer)
    dist.all_reduce(buffer, op=OPS[op])
    return buffer


def all_reduce(case: Case, pool: Pool, *, dtype: str, op: str, size: int) -> None:
    """Trace forward and backward of one all-reduce of `size` bytes a rank, and check both results.

    Raises ValueError for an axis value that is none.
    """
    if op not in OPS:
        raise ValueError(f"there is no op {op!r}: it is one of {', '.join(OPS)}")
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise ValueError(f"dtype {dtype!r} is no floating type of torch, which the backward phase needs")
    elements = max(1, size // kind.itemsize)
    parameter = pattern(elements, case.rank, kind, case.device).requires_grad_()
    gradient = pattern(elements, case.rank + 1, kind, case.device)
    results: dict[str, Tensor] = {}

    def step() -> None:
        results.clear()  # first, so that this step takes the blocks of the last one
        parameter.grad = None
        with pool.around_step():
            with pool.around_forward():
                results["forward"] = AllReduce.apply(parameter, case, pool, op)
            with pool.around_backward():
                results["forward"].backward(gradient)
        results["backward"] = parameter.grad

    case.run(step)
    check(case, results["forward"], op, first=0)
    check(case, results["backward"], op, first=1)


def pattern(elements: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return integers 0, 1, 2 that differ between neighbours and between ranks.

    So small that sums are exact: over 128 ranks in bfloat16, over 4 in the narrowest 8-bit type.
    """
    return ((torch.arange(elements, device=device) * (1 + seed % 2) + seed) % 3).to(dtype)


def check(case: Case, got: Tensor, op: str, *, first: int) -> None:
    """Compare `got` with the reduction of all ranks' patterns, whose seeds count up from `first`."""
    combine = {"max": torch.maximum, "min": torch.minimum}.get(op, torch.add)
    ranks = range(first, first + case.world_size)
    expected = reduce(combine, (pattern(got.numel(), seed, torch.float64, got.device) for seed in ranks))
    if op != "avg":
        case.check(got, expected, tolerance=0.0)
        return
    # The division is not exact, and NCCL may divide before it adds: one rounding a rank, of values up to 2.
    case.check(got, expected / case.world_size, tolerance=2 * case.world_size * torch.finfo(got.dtype).eps)
