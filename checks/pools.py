"""The pool set-ups: the ways to bring a collective's buffers into a memory pool, or to fail at it.

NCCL takes its symmetric kernels for buffers inside a window, and torch makes a window of each segment of a
pool that is registered with `symm=True`. `torch.cuda.use_mem_pool` holds for the calling thread only, while
autograd runs backward on another one: https://github.com/pytorch/pytorch/issues/167353. Each set-up below is
named as in the suite, with `_` for `-`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .memory import Memory

Around = Callable[[], contextlib.AbstractContextManager]
nowhere: Around = contextlib.nullcontext


def on_this_thread() -> contextlib.AbstractContextManager:
    """Run backward on the thread that calls it, where the pool is in use."""
    return torch.autograd.set_multithreading_enabled(False)


@dataclass
class Pool:
    """One set-up at work: where its pool is in use, and how it is registered.

    A workload runs its step under `around_step`, the halves of it under `around_forward` and
    `around_backward`, and, inside its own autograd functions, the making of a collective's buffer under
    `around_buffer`: `buffer` does the last.
    """

    name: str
    memory: Memory | None = None
    registration: str = "none"  # "symmetric", "plain" or "none"
    around_step: Around = nowhere
    around_forward: Around = nowhere
    around_backward: Around = nowhere
    around_buffer: Around = nowhere
    static: bool = False
    registered: bool = False
    _slots: dict[str, torch.Tensor] = field(default_factory=dict)

    def buffer(self, tensor: torch.Tensor, slot: str) -> torch.Tensor:
        """Return a fresh contiguous copy of `tensor` to be reduced in place.

        A static set-up copies into the buffer it keeps for `slot` instead (one for forward, one for backward). A slot
        whose shape changes gets a new buffer: DDP cuts its buckets anew after its first step.
        """
        kept = self._slots.get(slot)
        if kept is not None and kept.shape == tensor.shape:
            return kept.copy_(tensor).detach()
        with self.around_buffer():
            copy = tensor.clone(memory_format=torch.contiguous_format)
        if not self.static:
            return copy
        # A tensor that autograd has never seen is kept; what is handed out gets a history.
        self._slots[slot] = copy
        return copy.detach()

    def register(self) -> None:
        """Register the pool with the process group, where the set-up does so and it isn't yet. Collective.

        A pool that has several segments is registered in the order of their addresses, which differs between ranks. A
        window then joins one rank's buffer with another of its peer's, and the values are wrong (seen on two H200s). So
        the pool is registered while it is empty, and each segment as it is allocated, in the same order everywhere.
        """
        if self.memory is not None and self.registration != "none" and not self.registered:
            self.memory.register(symmetric=self.registration == "symmetric")
            self.registered = True

    def register_allocated(self) -> None:
        """Register what the first step has allocated, where the backend didn't as it came. Collective."""
        if self.registered and not self.memory.registers_later_segments:
            self.deregister()
            self.register()

    def deregister(self) -> None:
        """Deregister the pool, before it or the process group ends and before the next case."""
        if self.registered:
            self.memory.deregister()
            self.registered = False

    def holds(self, address: int) -> bool:
        """Return whether the byte at `address` lies in a segment of this set-up's pool."""
        return self.memory is not None and any(start <= address < end for start, end in self.memory.segments())

    def describe(self) -> dict:
        """Return the record's entry about the pool, as it is now."""
        return {
            "set_up": self.name,
            "allocator": self.memory.allocator if self.memory else None,
            "segments": len(self.memory.segments()) if self.memory else 0,
            "registered": self.registration if self.registered else "none",
        }


def none(memory: Memory) -> Pool:
    """No pool at all: the control that must not be symmetric."""
    return Pool("none")


def forward(memory: Memory) -> Pool:
    """The pool is in use around forward only: a control, its backward must not be symmetric."""
    return Pool("forward", memory, "symmetric", around_forward=memory.use)


def step(memory: Memory) -> Pool:
    """The pool is in use around forward and backward, as one would write it first: the case of the issue."""
    return Pool("step", memory, "symmetric", around_step=memory.use)


def single_thread(memory: Memory) -> Pool:
    """As `step`, with backward kept on the calling thread."""
    return Pool("single-thread", memory, "symmetric", around_step=memory.use, around_backward=on_this_thread)


def backward(memory: Memory) -> Pool:
    """The pool is entered inside the autograd function, in forward and in backward.

    Never inside an outer use of the same pool: that raises "already recording to mempool_id".
    """
    return Pool("backward", memory, "symmetric", around_buffer=memory.use)


def static(memory: Memory) -> Pool:
    """The tensor is copied into a buffer that was registered once, and reduced there."""
    return Pool("static", memory, "symmetric", around_buffer=memory.use, static=True)


def unregistered(memory: Memory) -> Pool:
    """As `backward`, but nobody registers the pool: a control that must not be symmetric."""
    return Pool("unregistered", memory, "none", around_buffer=memory.use)


def registered_not_symmetric(memory: Memory) -> Pool:
    """As `backward`, registered with the default `symm=False`: a control that must not be symmetric."""
    return Pool("registered-not-symmetric", memory, "plain", around_buffer=memory.use)


SET_UPS = {
    "none": none,
    "forward": forward,
    "step": step,
    "single-thread": single_thread,
    "backward": backward,
    "static": static,
    "unregistered": unregistered,
    "registered-not-symmetric": registered_not_symmetric,
}


def set_up(name: str, memory: Memory) -> Pool:
    """Return the set-up called `name`; raises ValueError for a name that is none, Incapable without a GPU."""
    if name not in SET_UPS:
        raise ValueError(f"there is no pool set-up {name!r}: it is one of {', '.join(SET_UPS)}")
    pool = SET_UPS[name](memory)
    if pool.memory is not None:
        memory.open(name)
    return pool
