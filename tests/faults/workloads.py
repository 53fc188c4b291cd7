"""Workloads on a machine that fails them, each in one way."""

from __future__ import annotations

import resource
import time

import torch
import torch.distributed as dist


def good(case, pool, *, size):
    """Nothing goes wrong. Notes over how many seconds the time of day went in 0.6 s."""
    seen = [time.time()]
    for _ in range(6):
        time.sleep(0.1)
        seen.append(time.time())
    case.note("clock_range", max(seen) - min(seen))
    case.run(lambda: dist.all_reduce(torch.ones(size)))
    case.check(torch.zeros(1), torch.zeros(1, dtype=torch.float64), tolerance=0.0)


def out_of_memory(case, pool, *, size):
    """Rank 1 asks for more memory than any machine has, while rank 0 waits for it."""
    if case.rank == 1:
        torch.empty(2**55, dtype=torch.uint8)
    case.run(lambda: dist.all_reduce(torch.ones(size)))


def no_room_for_a_trace(case, pool, *, size):
    """On rank 0 no file may become longer than a record, as on a disk that is nearly full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if case.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        good(case, pool, size=size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def fills_the_disk(case, pool, *, size):
    """Rank 0 leaves no byte free where the records are."""
    if case.rank == 0:
        with (case.record.path.parent / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                pass
    good(case, pool, size=size)
