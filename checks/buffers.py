"""Where the buffers of every collective of a step lie: in which memory pool, and how that is registered with NCCL.

A training step issues collectives that its author never sees: DDP's from C++, FSDP2's from hooks, a checkpoint's
when it runs forward again. All of them pass torch's dispatcher, on the calling thread or on autograd's, and a
dispatch mode sits there. Autograd's threads inherit the mode from the thread that calls backward.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from .pools import Pool

# What is in the name of an operation, without underscores, and the kind it makes: the first that fits.
KINDS = {
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
    "reduce": "reduce",
    "send": "send_recv",
    "recv": "send_recv",
}

# Before torch 2.10 a compiled function is run uncompiled under any dispatch mode.
SEES_COMPILED_CODE = hasattr(TorchDispatchMode, "ignore_compile_internals")


class Use(NamedTuple):
    """One buffer of one collective: what the record says of it, and its first address."""

    note: dict
    address: int


class BufferWatch(TorchDispatchMode):
    """Notes, in order, the buffers of every collective that runs while it is active, on all threads it reaches."""

    # Those that compiled code may call go by as well; torch refuses them under a mode that doesn't say so.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.uses: list[Use] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: a compiled function stays compiled under this mode, which then sees what its code calls."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, namespace = kwargs or {}, getattr(func, "namespace", None)
        if namespace == "c10d":
            # Before the call: what it is given is what it uses, and it may not come back.
            self._note(func, named_arguments(func, args, kwargs))
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if namespace == "_c10d_functional":
            # These make their output themselves, and all-reduce and broadcast work in place in it.
            self._note(func, {**named_arguments(func, args, kwargs), "output": result}, functional=True)
        return result

    def _note(self, func: Any, tensors: dict[str, Any], *, functional: bool = False) -> None:
        kind = kind_of(func)
        if kind is None:
            return
        phase, thread = "backward" if in_backward() else "forward", this_thread()
        for name, value in tensors.items():
            role = role_of(name, func, in_place=functional and kind in ("all_reduce", "broadcast"))
            for tensor in flat(value) if role else ():
                self.uses.append(use_of(tensor, phase, kind, role, thread))


def kind_of(func: Any) -> str | None:
    """Return the kind of the collective that `func` issues; None for what moves no data, such as a barrier."""
    name = func._schema.name.rpartition("::")[2].replace("_", "")
    return next((kind for part, kind in KINDS.items() if part in name), None)


def role_of(argument: str, func: Any, *, in_place: bool) -> str | None:
    """Return what the collective does with the tensors of `argument`; None for an argument that is no buffer."""
    if in_place:  # the input is only copied from, or is the output itself
        return "in-place" if argument == "output" else None
    if argument.startswith("out"):
        return "output"
    if argument.startswith("input"):
        return "input"
    if argument in ("tensor", "tensors"):
        name = func._schema.name
        return "input" if "send" in name else "output" if "recv" in name else "in-place"
    return None


def named_arguments(func: Any, args: tuple, kwargs: dict) -> dict[str, Any]:
    """Return the arguments of a call by the names that the operation's schema gives them."""
    return {**{argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}, **kwargs}


def flat(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors with memory of their own in `value`, a tensor or lists of them."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)
    elif isinstance(value, torch.Tensor) and value.numel() and not is_traceable_wrapper_subclass(value):
        yield value


def use_of(tensor: torch.Tensor, phase: str, kind: str, role: str, thread: str) -> Use:
    """Return the use of `tensor`, of which the address is kept and the tensor itself is not."""
    note = {
        "phase": phase,
        "kind": kind,
        "role": role,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "bytes": tensor.numel() * tensor.element_size(),
        "thread": thread,
    }
    return Use(note, tensor.data_ptr())


def this_thread() -> str:
    """Return "autograd" on a thread that torch started, "main" on one of Python's."""
    return "autograd" if isinstance(threading.current_thread(), threading._DummyThread) else "main"


def in_backward() -> bool:
    """Return whether this thread is inside a backward pass, which includes forward run again by a checkpoint.

    The engine's task says so inside its nodes. Its final callbacks, where FSDP2 reduces last, run outside of
    them: those are on autograd's thread, or, where backward stays on the caller's, below the engine's entry.
    """
    if torch._C._current_graph_task_id() != -1 or this_thread() == "autograd":
        return True
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            return True
        frame = frame.f_back
    return False


class Places:
    """Which memory is in a pool, as it is now, and how that pool is registered: "symmetric", "plain" or "none"."""

    def __init__(self, pool: Pool, others: list[tuple[Callable[[], list[dict]], str]], device: torch.device) -> None:
        """Look at the set-up's pool, at `others` (a pool's snapshot and its registration) and the backend's own."""
        self._parts: list[tuple[int, int, str]] = []
        if pool.memory is not None:
            registration = pool.registration if pool.registered else "none"
            self._parts += [(start, end, registration) for start, end in pool.memory.segments()]
        for snapshot, registration in others:
            self._add(snapshot(), registration)
        if device.type == "cuda":
            self._add(backend_segments(device), "plain")

    def _add(self, segments: list[dict], registration: str) -> None:
        self._parts += [(part["address"], part["address"] + part["total_size"], registration) for part in segments]

    def describe(self, use: Use) -> dict:
        """Return the record's entry for `use`."""
        found = [registration for start, end, registration in self._parts if start <= use.address < end]
        return dict(use.note, in_pool=bool(found), registration=found[0] if found else "none")


def backend_segments(device: torch.device) -> list[dict]:
    """Return the segments of the pool that the backend's `allocate_tensor` takes memory from.

    DDP takes its buckets from there, and FSDP2 its buffers where told to. torch registers that pool without
    `symm=True`, see ProcessGroupNCCL::allocateTensor in
    https://github.com/pytorch/pytorch/blob/v2.11.0/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
    """
    backend = dist.group.WORLD._get_backend(device)
    # Only where there is another pool than the default one anyhow: asking the backend for memory makes its pool.
    segments = [part for part in torch.cuda.memory_snapshot() if tuple(part["segment_pool_id"]) != (0, 0)]
    if not segments or not backend.supports_tensor_alloc(device):
        return []
    address = backend.allocate_tensor(1, dtype=torch.uint8, device=device).data_ptr()
    segments = torch.cuda.memory_snapshot()
    pools = {
        tuple(part["segment_pool_id"])
        for part in segments
        if part["address"] <= address < part["address"] + part["total_size"]
    }
    return [part for part in segments if tuple(part["segment_pool_id"]) in pools]
