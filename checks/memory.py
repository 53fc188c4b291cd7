"""The memory pool whose segments NCCL can make windows of: where it comes from, and its registration."""

from __future__ import annotations

import contextlib
import gc
import re

import torch
import torch.distributed as dist


class Incapable(Exception):
    """This machine or this build of torch can't do what the case asks; the message says what is missing."""


def torch_release() -> tuple[int, int]:
    """Return torch's version as (major, minor)."""
    major, minor = re.match(r"(\d+)\.(\d+)", torch.__version__).groups()
    return int(major), int(minor)


class Memory:
    """The pool of the case at work, made when its set-up needs it and dropped with it.

    Each case has a fresh one: what an earlier case left in a pool would be registered for the next, in the order of its
    addresses, and that order differs between ranks.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.allocator: str | None = None
        self.pool: torch.cuda.MemPool | None = None

    @property
    def backend(self):
        """The NCCL backend of the default process group on this device."""
        return dist.group.WORLD._get_backend(self.device)

    def open(self, name: str) -> None:
        """Make a fresh pool; raises Incapable where this build or machine has none."""
        if self.device.type != "cuda":
            raise Incapable(f"the pool set-up {name!r} needs a GPU, and this run is on the {self.device.type}")
        if torch_release() < (2, 8):
            # Before 2.8 use_mem_pool held for all threads, and the bundled NCCL had no symmetric kernels.
            raise Incapable(f"use_mem_pool for one thread only came with torch 2.8; this is {torch.__version__}")
        try:
            # The property raises where the GPU has no multicast, whatever its message says about NCCL's version.
            allocator, self.allocator = self.backend.mem_allocator, "backend.mem_allocator"
        except RuntimeError:
            allocator, self.allocator = self._symmetric_memory_allocator(), "symm_mem.get_mempool_allocator"
        self.pool = torch.cuda.MemPool(allocator)

    def close(self) -> None:
        """Drop the pool, which must be deregistered by now; its memory goes back to the GPU."""
        if self.pool is not None:
            gc.collect()  # autograd's functions and their tensors can hold each other
            self.pool = None

    def _symmetric_memory_allocator(self):
        if torch_release() < (2, 11):
            raise Incapable(
                f"this GPU has no multicast, and a pool for NCCL without it came with torch 2.11; "
                f"this is {torch.__version__}"
            )
        import torch.distributed._symmetric_memory as symmetric_memory

        # Only the first allocation settles the backend, and setting it later fails.
        if symmetric_memory.get_backend(self.device) != "NCCL":
            symmetric_memory.set_backend("NCCL")
        # What get_mem_pool makes its one pool a device of.
        return symmetric_memory.get_mempool_allocator(self.device)

    def use(self) -> contextlib.AbstractContextManager:
        """Route this thread's allocations on the device to the pool."""
        return torch.cuda.use_mem_pool(self.pool, self.device)

    def backend_of(self, group: dist.ProcessGroup | None):
        """The NCCL backend of `group` on this device; None is the default group."""
        return self.backend if group is None else group._get_backend(self.device)

    @property
    def registers_later_segments(self) -> bool:
        """Whether segments that a registered pool gets later are registered too, as they come.

        The stock backend does so, `nccl2` does not: https://github.com/pytorch/pytorch/pull/192112
        """
        return type(self.backend).__name__ != "ProcessGroupNCCL2"

    def register(self, *, symmetric: bool, group: dist.ProcessGroup | None = None) -> None:
        """Register the pool's segments with `group`'s NCCL, as windows or as plain user buffers. Collective."""
        backend = self.backend_of(group)
        if not symmetric:
            backend.register_mem_pool(self.pool)
            return
        try:
            backend.register_mem_pool(self.pool, symm=True)
        except TypeError as error:
            raise Incapable(f"register_mem_pool(symm=True) came with torch 2.9; this is {torch.__version__}") from error

    def deregister(self, group: dist.ProcessGroup | None = None) -> None:
        """Take the registration back. Collective, so never called where a rank may have failed."""
        self.backend_of(group).deregister_mem_pool(self.pool)

    def segments(self) -> list[tuple[int, int]]:
        """Return the pool's segments as (first address, address after the last)."""
        if self.pool is None:
            return []
        return [(part["address"], part["address"] + part["total_size"]) for part in self.pool.snapshot()]
