"""Activation checkpointing around tensor-parallel blocks: backward runs forward again, all-reduces and all.

That recomputation happens on autograd's thread, so its buffers miss a pool that the calling thread is in, just
as the gradients' do.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..case import Case
from ..pools import Pool
from ._models import ShardedBlocks
from .tensor_parallel import block

SEGMENTS = 2
# A checkpoint that is not reentrant stops as soon as it has what backward needs. It never needs the output of the
# last all-reduce, so with one block a segment nothing would be reduced again.
BLOCKS_A_SEGMENT = 2


def checkpointing(case: Case, pool: Pool, *, dtype: str, size: int, reentrant: str) -> None:
    """Trace forward and backward of checkpointed blocks, whose activations have `size` bytes; check all gradients.

    `reentrant` is "reentrant" or "non-reentrant"; raises ValueError for another.
    """
    if reentrant not in ("reentrant", "non-reentrant"):
        raise ValueError(f"a checkpoint is reentrant or non-reentrant, not {reentrant!r}")
    blocks = ShardedBlocks(case, dtype=dtype, size=size, layers=SEGMENTS * BLOCKS_A_SEGMENT)
    results: dict[str, Tensor] = {}

    def segment(inputs: Tensor, first: int) -> Tensor:
        for layer in range(first, first + BLOCKS_A_SEGMENT):
            up, down = blocks.weights[layer]
            inputs = block(inputs, up, down, pool, layer)
        return inputs

    def step() -> None:
        results.clear()
        blocks.forget_gradients()
        with pool.around_step():
            with pool.around_forward():
                output = blocks.inputs
                for number in range(SEGMENTS):
                    first = number * BLOCKS_A_SEGMENT
                    output = checkpoint(segment, output, first, use_reentrant=reentrant == "reentrant")
            with pool.around_backward():
                output.backward(blocks.gradient)
        results["output"] = output

    case.run(step)
    blocks.check(results["output"], [leaf.grad for leaf in blocks.leaves])
