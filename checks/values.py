"""Known values for collectives, and their references in float64.

The values are 0, 1 and 2 in an order that is random but the same everywhere, so each rank can tell what any
other has put in. Sums of them are exact over many ranks: 128 in bfloat16, 8 in float8_e4m3fn, 4 in float8_e5m2.
The order repeats after a period that is no multiple of any block, so data in the wrong place shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce

import torch
from torch import Tensor

from .case import Case

PERIOD = 1_000_003


@lru_cache(maxsize=64)
def one_period(seed: int) -> Tensor:
    """Return the values of `seed` once, as uint8 on the CPU, of shape (PERIOD,)."""
    return torch.randint(0, 3, (PERIOD,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def known_values(elements: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `elements` values of `seed`, of shape (elements,)."""
    period = one_period(seed)[:elements].to(device, torch.float32).to(dtype)
    return period.repeat(-(-elements // PERIOD))[:elements]


def combined(seeds: Sequence[int], op: str) -> Tensor:
    """Return the reduction of the values of several seeds, in float64 on the CPU, of shape (PERIOD,).

    `op` is sum, avg, max or min.
    """
    combine = {"max": torch.maximum, "min": torch.minimum}.get(op, torch.add)
    total = reduce(combine, (one_period(seed).to(torch.float64) for seed in seeds))
    return total / len(seeds) if op == "avg" else total


def check_values(case: Case, got: Tensor, seeds: Sequence[int], op: str = "sum") -> None:
    """Compare `got`, of any shape, with the reduction of the values of `seeds`, a period at a time.

    In parts, since float64 copies of a GiB of small numbers would not fit beside it.
    """
    expected = combined(seeds, op).to(got.device)
    tolerance = rounding(got.dtype, op, len(seeds))
    for part in got.detach().reshape(-1).split(PERIOD):
        case.check(part, expected[: part.numel()], tolerance)


def rounding(dtype: torch.dtype, op: str, ranks: int) -> float:
    """Return by how much a reduction over `ranks` ranks may be off (absolute): 0.0 where it is exact.

    Selections are exact, and so is every sum that `dtype` can count up to, one by one.
    """
    if op in ("max", "min") or not dtype.is_floating_point or ranks == 1:
        return 0.0
    eps = torch.finfo(dtype).eps
    if op == "avg":
        # NCCL divides after the sum or before it. Either way no more than one rounding a rank, of numbers up to 2.
        return ranks * eps
    largest = 2 * ranks
    # Halves of the last place, of numbers that grow up to the largest, in any order.
    return 0.0 if largest <= 2 / eps else ranks * largest * eps / 2
