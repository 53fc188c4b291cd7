"""FSDP2 (`fully_shard`): all-gathers of weights in both phases, reduce-scatters of gradients in backward.

It copies both into buffers of its own, which its settings can move.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from ..case import Case
from ..memory import Incapable, torch_release
from ..pools import Pool
from ._models import Layers, check

LAYERS = 3
MEMORY = ("default", "process-group", "symmetric", "symmetric-sum")


def fsdp2(case: Case, pool: Pool, *, dtype: str, size: int, memory: str) -> None:
    """Trace steps of a model with layers of `size` bytes, each sharded for itself; check the averaged gradients.

    `memory` says where FSDP2's buffers lie: "default"; "process-group", as
    `set_allocate_memory_from_process_group_for_comm(True)` has it; "symmetric", as `set_symm_mem_for_comm("NCCL")`
    has it; "symmetric-sum", the same after `set_force_sum_reduction_for_comms(True)`. Raises ValueError for another
    and Incapable where torch or the machine has no such setting. The last two were not run on hardware yet.
    """
    if memory not in MEMORY:
        raise ValueError(f"there is no memory {memory!r}: it is one of {', '.join(MEMORY)}")
    if memory.startswith("symmetric"):
        need_symmetric_memory(case)
    layers = Layers(case, dtype=dtype, size=size, layers=LAYERS)
    expected = layers.references(case.world_size)
    mesh = DeviceMesh.from_group(dist.group.WORLD, case.device.type)
    for layer in layers.layers:
        fully_shard(layer, mesh=mesh)
        place_buffers(layer, memory)
    fully_shard(layers, mesh=mesh)
    if memory.startswith("symmetric"):
        import torch.distributed._symmetric_memory as symmetric_memory

        # FSDP2 itself makes windows of what it takes from there.
        case.also_registered(symmetric_memory.get_mem_pool(case.device).snapshot, "symmetric")

    def step() -> None:
        layers.zero_grad()
        with pool.around_step():
            with pool.around_forward():
                output = layers(layers.inputs)
            with pool.around_backward():
                output.backward(layers.gradient)

    case.run(step)
    for layer, reference in zip(layers.layers, expected, strict=True):
        # This rank's rows. The width divides evenly, so there is no padding.
        check(case, layer.weight.grad.to_local(), reference.chunk(case.world_size)[case.rank])


def need_symmetric_memory(case: Case) -> None:
    """Raise Incapable where FSDP2 can't take its buffers from symmetric memory."""
    if torch_release() < (2, 12):
        import torch

        raise Incapable(f"set_symm_mem_for_comm came with torch 2.12; this is {torch.__version__}")
    if case.device.type != "cuda":
        raise Incapable(f"symmetric memory needs a GPU, and this run is on the {case.device.type}")


def place_buffers(layer, memory: str) -> None:
    """Tell FSDP2 where the buffers of a sharded `layer` are to lie."""
    if memory == "process-group":
        layer.set_allocate_memory_from_process_group_for_comm(True)
    if memory == "symmetric-sum":
        # Before the next call: that one leaves the reduce-scatter where it was, unless its op is a sum by then.
        layer.set_force_sum_reduction_for_comms(True)
    if memory.startswith("symmetric"):
        layer.set_symm_mem_for_comm("NCCL")
