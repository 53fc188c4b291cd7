"""Workloads that go wrong, each in one way, as a repository's own could."""

from __future__ import annotations

import faulthandler
import os
import signal
import time

import torch
import torch.distributed as dist


def good(case, pool, *, size):
    """All ranks sum their own number plus one; nothing goes wrong."""
    tensor = torch.full((size,), float(case.rank + 1), device=case.device)

    def step():
        buffer = pool.buffer(tensor, slot="forward")
        case.note_buffer("forward", "all_reduce", "in-place", buffer)
        dist.all_reduce(buffer)
        step.result = buffer

    case.run(step)
    total = case.world_size * (case.world_size + 1) / 2
    case.check(step.result, torch.full((size,), total, dtype=torch.float64), tolerance=0.0)


def wrong_values(case, pool, *, size):
    """Rank 1 finds one value wrong."""
    case.run(lambda: dist.all_reduce(torch.ones(size)))
    got = torch.zeros(size)
    got[0] = 3.0 if case.rank == 1 else 0.0
    case.check(got, torch.zeros(size, dtype=torch.float64), tolerance=0.5)


def not_a_number(case, pool, *, size):
    """Every rank computes NaN."""
    case.run(lambda: None)
    case.check(torch.full((size,), torch.nan), torch.zeros(size, dtype=torch.float64), tolerance=0.5)


def checks_nothing(case, pool, *, size):
    """Runs, and compares nothing with anything."""
    case.run(lambda: dist.all_reduce(torch.ones(size)))


def raises(case, pool, *, size):
    """Rank 1 raises while rank 0 waits for it in a collective."""
    if case.rank == 1:
        raise ZeroDivisionError('a "quoted" message')
    case.run(lambda: dist.all_reduce(torch.ones(size)))


def exits(case, pool, *, size):
    """Rank 0 calls sys.exit, as a training script may."""
    if case.rank == 0:
        raise SystemExit(0)
    dist.all_reduce(torch.ones(size))


def hangs(case, pool, *, size):
    """Rank 0 sleeps for ever; rank 1 waits for it in a collective."""
    if case.rank == 0:
        time.sleep(10_000)
    dist.all_reduce(torch.ones(size))


def holds_the_lock(case, pool, *, size):
    """Rank 0 holds its interpreter's lock for ever, so that none of its threads runs."""
    if case.rank == 0:
        # A C function that keeps the lock: matching this takes time exponential in the length.
        import re

        re.match(r"(a+)+$", "a" * 64 + "b")
    dist.all_reduce(torch.ones(size))


def stops_itself(case, pool, *, size):
    """Rank 0 is stopped by SIGSTOP: no thread runs, not even a watchdog written in C."""
    if case.rank == 0:
        faulthandler.cancel_dump_traceback_later()
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(size))


def kills_torchrun(case, pool, *, size):
    """Rank 0 kills the process that started the ranks, which are then nobody's children."""
    if case.rank == 0:
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(10_000)


def dies(case, pool, *, size):
    """Rank 1 is killed."""
    if case.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(size))
