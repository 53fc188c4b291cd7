"""torch's own all-reduces on symmetric memory, in forward and in backward: they use no NCCL at all.

They need torch's symmetric memory on its CUDA backend, and the backend is chosen once for a process; so this
workload has a launch configuration of its own. Several ranks on one GPU need
TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1 in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch import Tensor

from ..case import Case
from ..memory import Incapable
from ..pools import Pool
from ..values import check_values, known_values

# Each reduces the symmetric buffer; the first into a new tensor, the others in place.
ALGORITHMS: dict[str, Callable[[Tensor, str], Tensor]] = {
    "one-shot": lambda buffer, group: torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", group),
    "two-shot": lambda buffer, group: torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", group),
    "multimem": lambda buffer, group: torch.ops.symm_mem.multimem_all_reduce_(buffer, "sum", group),
}


class AllReduce(torch.autograd.Function):
    """All-reduce through a symmetric buffer in forward, and of the gradient through another one in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, case: Case, algorithm: str, buffers: dict[str, Tensor]) -> Tensor:
        ctx.case, ctx.algorithm, ctx.buffers = case, algorithm, buffers
        return reduced(tensor, case, algorithm, buffers["forward"], "forward")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return reduced(gradient, ctx.case, ctx.algorithm, ctx.buffers["backward"], "backward"), None, None, None


def reduced(tensor: Tensor, case: Case, algorithm: str, buffer: Tensor, phase: str) -> Tensor:
    """Copy `tensor` into `buffer`, reduce that, and return a tensor that the next step leaves alone."""
    buffer.copy_(tensor)
    case.note_buffer(phase, "all_reduce", "input" if algorithm == "one-shot" else "in-place", buffer)
    result = ALGORITHMS[algorithm](buffer, dist.group.WORLD.group_name)
    return result if algorithm == "one-shot" else result.clone()


def symm_mem_ops(case: Case, pool: Pool, *, algorithm: str, dtype: str, size: int) -> None:
    """Trace forward and backward of one all-reduce of `size` bytes by `algorithm`, and check both results.

    `algorithm` is one-shot, two-shot or multimem; the last needs GPUs with multicast. The set-up's pool is not used:
    the memory comes from torch's symmetric memory. Raises ValueError for an algorithm that is none.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"there is no algorithm {algorithm!r}: it is one of {', '.join(ALGORITHMS)}")
    use_cuda_backend(case.device)
    element = getattr(torch, dtype)
    elements = size // element.itemsize
    buffers = {phase: symmetric_buffer(elements, element, case.device, algorithm) for phase in ("forward", "backward")}
    parameter = known_values(elements, case.rank, element, case.device).requires_grad_()
    gradient = known_values(elements, case.world_size + case.rank, element, case.device)
    results: dict[str, Tensor] = {}

    def step() -> None:
        parameter.grad = None
        results["forward"] = AllReduce.apply(parameter, case, algorithm, buffers)
        results["forward"].backward(gradient)
        results["backward"] = parameter.grad

    case.run(step)
    check_values(case, results["forward"], range(case.world_size))
    check_values(case, results["backward"], range(case.world_size, 2 * case.world_size))


def use_cuda_backend(device: torch.device) -> None:
    """Choose torch's CUDA backend of symmetric memory; raises Incapable where it is not to be had."""
    if device.type != "cuda":
        raise Incapable(f"torch's symmetric memory needs a GPU, and this run is on the {device.type}")
    if not hasattr(symmetric_memory, "set_backend"):
        raise Incapable(f"the backend of symmetric memory can be chosen from torch 2.9 on; this is {torch.__version__}")
    if symmetric_memory.get_backend(device) == "CUDA":
        return
    try:
        symmetric_memory.set_backend("CUDA")
    except RuntimeError as error:
        raise Incapable(f"this process's symmetric memory is in use with another backend already: {error}") from error


def symmetric_buffer(elements: int, dtype: torch.dtype, device: torch.device, algorithm: str) -> Tensor:
    """Return a buffer that all ranks have mapped; collective. Raises Incapable where multimem has no multicast."""
    buffer = symmetric_memory.empty(elements, dtype=dtype, device=device)
    handle = symmetric_memory.rendezvous(buffer, dist.group.WORLD.group_name)
    if algorithm == "multimem" and not handle.multicast_ptr:
        raise Incapable("multimem needs NVLink multicast, and these GPUs, or this configuration, have none")
    return buffer
