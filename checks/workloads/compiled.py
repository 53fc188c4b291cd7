"""torch.compile over functional collectives: the compiler allocates the buffers, on the thread that runs the code.

So a pool that the calling thread is in gets those of forward, and misses those of backward.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as functional
from torch import Tensor

from ..buffers import SEES_COMPILED_CODE
from ..case import Case
from ..pools import Pool
from ._models import ShardedBlocks

LAYERS = 2
COMPILERS = ("inductor", "aot_eager")


class CopyToRanks(torch.autograd.Function):
    """Before a column-parallel layer: nothing in forward; in backward the sum of the ranks' input gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: str) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return collectives.all_reduce(gradient, "sum", ctx.group), None


class SumOverRanks(torch.autograd.Function):
    """After a row-parallel layer: in forward the sum of the ranks' partial outputs; nothing in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: str) -> Tensor:
        return collectives.all_reduce(tensor, "sum", group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def blocks_forward(inputs: Tensor, weights: list[tuple[Tensor, Tensor]], group: str) -> Tensor:
    """Return the output of tensor-parallel blocks x + down(gelu(up(x)))."""
    for up, down in weights:
        columns = functional.linear(CopyToRanks.apply(inputs, group), up)
        inputs = inputs + SumOverRanks.apply(functional.linear(functional.gelu(columns), down), group)
    return inputs


def compiled(case: Case, pool: Pool, *, dtype: str, size: int, compiler: str) -> None:
    """Trace compiled tensor-parallel blocks, whose activations have `size` bytes, and check all gradients.

    `compiler` is "inductor", or "aot_eager" which makes no code; raises ValueError for another.
    """
    if compiler not in COMPILERS:
        raise ValueError(f"there is no compiler {compiler!r}: it is one of {', '.join(COMPILERS)}")
    blocks = ShardedBlocks(case, dtype=dtype, size=size, layers=LAYERS)
    model = torch.compile(blocks_forward, backend=compiler, fullgraph=True)
    group = dist.group.WORLD.group_name
    results: dict[str, Tensor] = {}

    def step() -> None:
        results.clear()
        blocks.forget_gradients()
        with pool.around_step():
            with pool.around_forward():
                output = model(blocks.inputs, blocks.weights, group)
            with pool.around_backward():
                output.backward(blocks.gradient)
        results["output"] = output

    case.run(step, watch_buffers=SEES_COMPILED_CODE)
    blocks.check(results["output"], [leaf.grad for leaf in blocks.leaves])
