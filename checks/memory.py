"""The memory pool whose segments NCCL can make windows of: where it comes from, and its registration."""

from __future__ import annotations

import contextlib
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
    """One pool for all cases of this process, made when a set-up first needs it.

    torch's own pool for symmetric memory is one per device. Cases share it one after the other, so each
    deregisters it before the next: only then are `unregistered` and `none` what they say.
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
        """Make the pool, where it isn't made yet; raises Incapable where this build or machine has none."""
        if self.device.type != "cuda":
            raise Incapable(f"the pool set-up {name!r} needs a GPU, and this run is on the {self.device.type}")
        if self.pool is not None:
            return
        if torch_release() < (2, 8):
            # Before 2.8 use_mem_pool held for all threads, and the bundled NCCL had no symmetric kernels.
            raise Incapable(f"use_mem_pool for one thread only came with torch 2.8; this is {torch.__version__}")
        try:
            # The property raises where the GPU has no multicast, whatever its message says about NCCL's version.
            allocator = self.backend.mem_allocator
        except RuntimeError:
            self.pool = self._symmetric_memory_pool()
            self.allocator = "symm_mem.get_mem_pool"
        else:
            self.pool = torch.cuda.MemPool(allocator)
            self.allocator = "backend.mem_allocator"

    def _symmetric_memory_pool(self) -> torch.cuda.MemPool:
        if torch_release() < (2, 11):
            raise Incapable(
                f"this GPU has no multicast, and a pool for NCCL without it came with torch 2.11; "
                f"this is {torch.__version__}"
            )
        import torch.distributed._symmetric_memory as symmetric_memory

        # Only the first allocation settles the backend, and setting it later fails.
        if symmetric_memory.get_backend(self.device) != "NCCL":
            symmetric_memory.set_backend("NCCL")
        return symmetric_memory.get_mem_pool(self.device)

    def use(self) -> contextlib.AbstractContextManager:
        """Route this thread's allocations on the device to the pool."""
        return torch.cuda.use_mem_pool(self.pool, self.device)

    def backend_of(self, group: dist.ProcessGroup | None):
        """The NCCL backend of `group` on this device; None is the default group."""
        return self.backend if group is None else group._get_backend(self.device)

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
