"""How fast symmetric and general kernels are, by size: symmetric is not always faster.

NCCL takes the symmetric kernel whenever it can. Times mean something only where each rank has a GPU of its own.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

import torch

from ..case import Case
from ..describe import describe_device
from ..memory import Incapable
from ..pools import Pool
from ..profiler import synchronize
from .collectives import EAGER, Call, make_call

SMALLEST, FACTOR = 2 << 10, 4
WARM_UP = 5
LARGE = 64 << 20
"""Bytes; from here on REPEATS_LARGE repeats will do."""
REPEATS, REPEATS_LARGE = 20, 5

# Bus bandwidth counts what has to pass each GPU's links, so that kinds and numbers of ranks can be compared:
# https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
}


def bandwidth(case: Case, pool: Pool, *, kind: str, dtype: str, size: int) -> None:
    """Trace one collective of each size up to `size` bytes in registered buffers, then time those and others.

    The traced ones show whether NCCL takes symmetric kernels for the registered buffers. The record's `bandwidth` has
    for each size, of the larger buffer of a rank, and mechanism: the median time of one call on this rank in
    microseconds, by CUDA events, and the bus bandwidth in GB/s. Raises Incapable where ranks share a GPU.
    """
    if kind not in BUS_FACTOR:
        raise ValueError(f"there is no kind {kind!r} here: it is one of {', '.join(BUS_FACTOR)}")
    refuse_shared_gpus(case)
    element, place = getattr(torch, dtype), "in" if kind == "all_reduce" else "out"
    sizes = sizes_up_to(size)
    symmetric, general = (
        [make_call(case, pool, kind, element, "sum", bytes_, registered, place, 0) for bytes_ in sizes]
        for registered in ("both", "none")
    )

    def step() -> None:
        for call in symmetric:
            call.fill()
            EAGER[kind](call, False)

    case.run(step)
    measured = []
    for inside, outside in zip(symmetric, general, strict=True):
        measured += [measure(case, inside, "symmetric"), measure(case, outside, "general")]
    case.note("bandwidth", measured)
    for call in (*symmetric, *general):
        call.fill()
        EAGER[kind](call, False)
        call.check(case)


def sizes_up_to(size: int) -> list[int]:
    """Return the sizes to measure in bytes, growing by FACTOR from SMALLEST; `size` is always the last."""
    sizes = []
    at = SMALLEST
    while at < size:
        sizes.append(at)
        at *= FACTOR
    return [*sizes, size]


def refuse_shared_gpus(case: Case) -> None:
    """Raise Incapable, on all ranks alike, unless each has a GPU of its own."""
    if case.device.type != "cuda":
        raise Incapable(f"bandwidth needs GPUs, and this run is on the {case.device.type}")
    topic = f"{case.id}/gpu"
    case.control.post(topic, gpu=describe_device(case.device.index)["uuid"])
    gpus = {answer["gpu"] for answer in case.control.gather(topic, case.deadline).values()}
    if len(gpus) < case.world_size:
        raise Incapable(f"{case.world_size} ranks share {len(gpus)} GPU(s), so their times mean nothing")


def measure(case: Case, call: Call, mechanism: str) -> dict:
    """Time one call over and over; returns the record's entry, of the median. What it computes meanwhile means nothing.

    Not the mean: now and then a rank is held up for 10 ms by what else its host does, and its peers wait for it.
    """
    size = max(call.input.nbytes, call.output.nbytes)
    repeats = REPEATS if size < LARGE else REPEATS_LARGE
    for _ in range(WARM_UP):
        EAGER[call.kind](call, False)
    synchronize(case.device)
    case.control.barrier(f"{case.id}/{mechanism}/{size}", case.deadline)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        EAGER[call.kind](call, False)
        mark.record()
    synchronize(case.device)
    times = [begin.elapsed_time(end) * 1000 for begin, end in itertools.pairwise(marks)]
    return entry(call.kind, mechanism, size, statistics.median(times), case.world_size)


def entry(kind: str, mechanism: str, size: int, time_us: float, ranks: int) -> dict:
    """Return what the record says of one measurement; a time of 0 has no bandwidth."""
    busbw = size * BUS_FACTOR[kind](ranks) / (time_us * 1000) if time_us > 0 else 0.0
    return {
        "kind": kind,
        "bytes": size,
        "mechanism": mechanism,
        "time_us": round(time_us, 3),
        "busbw_gbps": round(busbw, 3),
    }
