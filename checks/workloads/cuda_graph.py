"""CUDA graphs: forward and backward are captured apart, and replayed.

The kernel of a collective is chosen when it is captured, so its buffer has to be registered by then. In a trace,
a replay is one launch for all kernels, and only a `record_function` window around it tells the phase.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor
from torch.profiler import record_function

from ..case import Case
from ..memory import Incapable
from ..pools import Pool
from ..profiler import synchronize
from ._models import ShardedBlocks
from .tensor_parallel import block

LAYERS = 2


def cuda_graph(case: Case, pool: Pool, *, dtype: str, size: int, windows: str) -> None:
    """Trace replays of tensor-parallel blocks, whose activations have `size` bytes, and check all gradients.

    `windows` is "named" (each replay in a window that names its phase) or "none"; raises ValueError for another.
    """
    if windows not in ("named", "none"):
        raise ValueError(f"windows are named or none, not {windows!r}")
    if case.device.type != "cuda":
        raise Incapable(f"a CUDA graph needs a GPU, and this run is on the {case.device.type}")
    blocks = ShardedBlocks(case, dtype=dtype, size=size, layers=LAYERS)

    def forward() -> Tensor:
        with pool.around_forward():
            output = blocks.inputs
            for layer, (up, down) in enumerate(blocks.weights):
                output = block(output, up, down, pool, layer)
        return output

    def backward(output: Tensor) -> list[Tensor]:
        with pool.around_backward():
            return list(torch.autograd.grad(output, blocks.leaves, blocks.gradient))

    def eager_step() -> None:
        # On another stream than the default one, as capturing demands of what comes before it.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), pool.around_step():
            backward(forward())
        torch.cuda.current_stream().wait_stream(stream)

    case.allocate(eager_step)
    case.watch(eager_step)
    synchronize(case.device)
    forward_graph, backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(forward_graph):
        output = forward()
    with torch.cuda.graph(backward_graph, pool=forward_graph.pool()):
        gradients = backward(output)

    def window(phase: str) -> contextlib.AbstractContextManager:
        return record_function(phase) if windows == "named" else contextlib.nullcontext()

    def replay() -> None:
        with window("forward"):
            forward_graph.replay()
        with window("backward"):
            backward_graph.replay()

    case.run(replay, watch_buffers=False)
    blocks.check(output, gradients)
    # A graph holds on to the communicator; it has to be gone before the process group is.
    synchronize(case.device)
    forward_graph.reset()
    backward_graph.reset()
