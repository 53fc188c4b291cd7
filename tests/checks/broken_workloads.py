"""The built-in workloads with one thing broken: rank 1 has nothing to add to the collectives of one phase."""

from __future__ import annotations

import importlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# The package is loaded under this name on the ranks.
CHECKS = "_symmem_checks"


class NothingToAdd(TorchDispatchMode):
    """Zeroes what this rank puts into collectives of `phase`, wherever they are called from."""

    def __init__(self, phase: str) -> None:
        super().__init__()
        self.backward = phase == "backward"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        buffers = importlib.import_module(f"{CHECKS}.buffers")
        # A broadcast and an all-reduce have a list of tensors; the others have the output first, then the input.
        if func.namespace == "c10d" and buffers.kind_of(func) and buffers.in_backward() == self.backward:
            for tensor in args[0] if isinstance(args[0], list) else [args[1]]:
                with torch.no_grad():
                    tensor.zero_()
        return func(*args, **(kwargs or {}))


def broken(case, pool, *, workload, phase, **axes):
    """Run the workload of that name, broken in `phase` on rank 1."""
    run = getattr(importlib.import_module(f"{CHECKS}.workloads.{workload}"), workload)
    if case.rank != 1:
        return run(case, pool, **axes)
    with NothingToAdd(phase):
        return run(case, pool, **axes)


def allocates_first(case, pool, *, size):
    """Prepares between the registration and the traced steps, watches another step, and adds to the record."""
    calls = []
    tensor = torch.ones(size)

    def eager():
        calls.append("eager")
        torch.distributed.all_reduce(tensor)

    def replay():
        calls.append("replay")

    case.allocate(eager)
    calls.append("prepare")
    case.watch(eager)
    case.run(replay, watch_buffers=False)
    case.note("calls", calls)
    case.check(torch.zeros(1), torch.zeros(1, dtype=torch.float64), tolerance=0.0)


def notes_only(case, pool, *, size):
    """Notes one buffer that the watch sees too, and one that it can't see; is watched or not."""
    seen, unseen = torch.ones(size), torch.ones(2 * size)

    def step():
        case.note_buffer("forward", "all_reduce", "in-place", seen)
        case.note_buffer("backward", "all_gather", "input", unseen)
        torch.distributed.all_reduce(seen)

    case.run(step, watch_buffers=size > 1)
    case.check(torch.zeros(1), torch.zeros(1, dtype=torch.float64), tolerance=0.0)
