"""Workloads of the project's own with an error planted in what they call: the values have to show it.

The ranks load the package under a private name; these find it there.
"""

from __future__ import annotations

import contextlib
import importlib

import torch.distributed as dist


def loaded(name):
    """Return a module of the package that this rank runs."""
    return importlib.import_module(f"_symmem_checks.{name}")


@contextlib.contextmanager
def replaced(module, name, value):
    """Put `value` in the place of a function of `module` for a while: other cases run in this process."""
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


def one_value_off(case, pool, *, kind):
    """The collective is right but for the last value of rank 1's output."""
    collectives = loaded("workloads.collectives")
    original = collectives.EAGER[kind]

    def wrong(call, async_op):
        work = original(call, async_op)
        if dist.get_rank() == 1:
            call.output[-1] += 1
        return work

    with replaced(collectives, "EAGER", {**collectives.EAGER, kind: wrong}):
        collectives.collectives(case, pool, kind=kind, dtype="float32", op="sum", size=4096)


def pieces_swapped(case, pool, *, kind):
    """The collective delivers the right pieces, the two of them in the wrong order."""
    collectives = loaded("workloads.collectives")
    original = collectives.EAGER[kind]

    def wrong(call, async_op):
        work = original(call, async_op)
        call.output.copy_(call.output.roll(call.output.numel() // 2))
        return work

    with replaced(collectives, "EAGER", {**collectives.EAGER, kind: wrong}):
        collectives.collectives(case, pool, kind=kind, dtype="float32", op="sum", size=4096)


def nothing_done(case, pool, *, kind):
    """The collective returns at once and moves nothing."""
    collectives = loaded("workloads.collectives")
    with replaced(collectives, "EAGER", {**collectives.EAGER, kind: lambda call, async_op: None}):
        collectives.collectives(case, pool, kind=kind, dtype="float32", op="sum", size=4096)


def one_stale_round(case, pool, *, size):
    """In one of all rounds of all steps rank 1's producer comes too late, so that the old values are sent."""
    module = loaded("workloads.back_to_back")
    original, rounds = module.make_producer, []

    def make_producer(name, dtype, device):
        produce = original(name, dtype, device)

        def late(out, source, number):
            rounds.append(number)
            if not (case.rank == 1 and len(rounds) == 7):
                produce(out, source, number)

        return late

    with replaced(module, "make_producer", make_producer):
        module.back_to_back(case, pool, dtype="float32", size=size)
