"""The same pool in use on two threads: torch refuses the second, so this case expects exactly that.

It is what happens to a training step that uses a pool around forward and backward, and again inside a backward
function, which autograd runs on its own thread. See the discussion in https://github.com/pytorch/pytorch/pull/153356
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from torch import Tensor

from ..case import Case
from ..memory import Incapable
from ..pools import Pool
from ..values import check_values, known_values
from .collectives import in_pool

REFUSAL = "already recording to mempool_id"


def two_threads(case: Case, pool: Pool, *, dtype: str, size: int) -> None:
    """Enter the pool on a second thread while this one has it, then trace an all-reduce of this thread's buffer.

    Raises AssertionError where torch lets the second thread in, or refuses it with other words.
    """
    if pool.memory is None:
        raise Incapable("the pool set-up none has no pool that two threads could enter")
    element = getattr(torch, dtype)
    source = known_values(size // element.itemsize, case.rank, element, case.device)

    with in_pool(pool):
        refused = enter_on_another_thread(pool, source)
        buffer = torch.empty_like(source)
    if refused is None:
        raise AssertionError("torch let a second thread use the pool: the rule that forbids it is gone")
    if REFUSAL not in str(refused):
        raise AssertionError(f"torch refused the second thread, but with other words: {refused}") from refused

    def step() -> None:
        buffer.copy_(source)
        dist.all_reduce(buffer)

    case.run(step)
    check_values(case, buffer, range(case.world_size))


def enter_on_another_thread(pool: Pool, like: Tensor) -> RuntimeError | None:
    """Allocate in the pool on a thread of its own; returns what torch raised there, None if it let the thread in."""
    raised: list[RuntimeError] = []

    def enter() -> None:
        try:
            with in_pool(pool):
                torch.empty_like(like)
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return raised[0] if raised else None
