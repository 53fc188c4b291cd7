"""Tensor parallelism as in Megatron: an all-reduce after each row-parallel layer, and in backward before each
column-parallel one. https://arxiv.org/abs/1909.08053, section 3
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor

from ..case import Case
from ..pools import Pool
from ._models import ShardedBlocks

LAYERS = 4


class CopyToRanks(torch.autograd.Function):
    """Before a column-parallel layer: nothing in forward; in backward the sum of the ranks' input gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, pool: Pool, layer: int) -> Tensor:
        ctx.pool, ctx.layer = pool, layer
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # The buffer is allocated here, on whichever thread autograd runs this.
        buffer = ctx.pool.buffer(gradient, slot=f"backward{ctx.layer}")
        dist.all_reduce(buffer)
        return buffer, None, None


class SumOverRanks(torch.autograd.Function):
    """After a row-parallel layer: in forward the sum of the ranks' partial outputs; nothing in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, pool: Pool, layer: int) -> Tensor:
        # A slot for each layer: a static buffer must hold its values until all that reads it is done.
        buffer = pool.buffer(tensor, slot=f"forward{layer}")
        dist.all_reduce(buffer)
        return buffer

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None


def block(inputs: Tensor, up: Tensor, down: Tensor, pool: Pool, layer: int) -> Tensor:
    """Return x + down(gelu(up(x))), with this rank's columns of `up` and rows of `down`."""
    columns = functional.linear(CopyToRanks.apply(inputs, pool, layer), up)
    partial = functional.linear(functional.gelu(columns), down)
    return inputs + SumOverRanks.apply(partial, pool, layer)


def tensor_parallel(case: Case, pool: Pool, *, dtype: str, size: int) -> None:
    """Trace forward and backward of a few blocks, whose activations have `size` bytes, and check all gradients."""
    blocks = ShardedBlocks(case, dtype=dtype, size=size, layers=LAYERS)
    results: dict[str, Tensor] = {}

    def step() -> None:
        results.clear()  # first, so that this step takes the blocks of the last one
        blocks.forget_gradients()
        with pool.around_step():
            with pool.around_forward():
                output = blocks.inputs
                for layer, (up, down) in enumerate(blocks.weights):
                    output = block(output, up, down, pool, layer)
            with pool.around_backward():
                output.backward(blocks.gradient)
        results["output"] = output

    case.run(step)
    blocks.check(results["output"], [leaf.grad for leaf in blocks.leaves])
