"""What each version of NCCL can run on symmetric memory, in tables. Facts only; the causes read them.

Sources are NVIDIA's own: src/sym_kernels.cc (src/symmetric.cc in 2.27), src/scheduler/symmetric_sched.cc, src/init.cc
and src/device/symmetric/generate.py at the tags of https://github.com/NVIDIA/nccl, and the wheels' kernel names.
"""

from __future__ import annotations

import re
from typing import NamedTuple

Version = tuple[int, ...]

FIRST_SYMMETRIC: Version = (2, 27)
"""The first NCCL with symmetric kernels."""

NVLINK_NEEDED: Version = (2, 29)
"""From here on all GPUs of a group must be joined by NVLink; before, P2P over PCIe was enough."""

CUDA_P2P_IS_ENOUGH: Version = (2, 28, 7)
"""From here on P2P that CUDA reports is enough; before, NCCL itself had to reach every peer directly."""

GROUPED_CALLS: Version = (2, 28)
"""From here on several collectives of one group call may be symmetric; before, only a lone one."""

ALGO_FORCES: Version = (2, 31)
"""From here on NCCL_ALGO takes the functions that it names away from the symmetric kernels."""

KERNEL_LIST: Version = (2, 31)
"""From here on NCCL_SYM_KERNEL is a list, and an unknown name is an error instead of switching everything off."""

LL_QUIRK: tuple[Version, ...] = ((2, 29, 2), (2, 29, 3))
"""Here a call for which an LL symmetric kernel would be best goes to a general kernel, unless that chose LL too."""

LL_QUIRK_BYTES = 256 * 2**10
"""Below this an LL kernel is usually the best one. An estimate: NCCL's cost model decides, by GPU and ranks."""

LARGEST_CALL = 64 * 2**30
"""Bytes from which on a call has no symmetric kernel; of an all-gather or reduce-scatter all ranks' parts count."""

OPS: dict[str, dict[str, Version]] = {
    "sum": {"all_reduce": (2, 27), "reduce_scatter": (2, 27)},
    "avg": {"reduce_scatter": (2, 30)},
}
"""Reduction ops with a symmetric kernel: for which kind, from which version on. No other op has any."""

AVERAGE_ACCEPTED: Version = (2, 30)
"""From here on an all-reduce average counts as symmetric though it has no kernel: it fails instead of falling back."""

NETWORK_KERNELS: dict[str, Version] = {"all_gather": (2, 29, 2), "reduce_scatter": (2, 29, 7)}
"""Kinds with symmetric kernels across NVLink domains, by GPU-initiated networking, and from which version on."""

KERNEL_NAMES: dict[str, tuple[Version, Version | None]] = {
    "AllGather_LL": ((2, 27), None),
    "AllGather_LLMC": ((2, 27), None),
    "AllGather_ST": ((2, 27), None),
    "AllGather_STMC": ((2, 27), None),
    "AllGather_GinHier_MCRing": ((2, 29, 2), (2, 29, 7)),
    "AllGather_RailRing_LsaSTMC": ((2, 29, 7), None),
    "AllGather_TmaST": ((2, 30), None),
    "AllGather_TmaSTMC": ((2, 30), None),
    "AllReduce_AGxLL_R": ((2, 27), None),
    "AllReduce_AGxLLMC_R": ((2, 27), None),
    "AllReduce_RSxLD_AGxST": ((2, 27), None),
    "AllReduce_RSxLDMC_AGxSTMC": ((2, 27), None),
    "AllReduce_RSxTmaLD_AGxTmaST": ((2, 30), None),
    "ReduceScatter_LL": ((2, 27), None),
    "ReduceScatter_LD": ((2, 27), None),
    "ReduceScatter_LDMC": ((2, 27), None),
    "ReduceScatter_RailA2A_LsaLD": ((2, 29, 7), None),
    "ReduceScatter_RailA2A_LsaLDMC": ((2, 29, 7), None),
    "ReduceScatter_TmaLD": ((2, 30), None),
}
"""The names that NCCL_SYM_KERNEL may have: the version that brought each, and the one that took it away again."""

FUNCTIONS = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}
"""NCCL's names of the kinds that have symmetric kernels."""

_BOTH = ("input", "output")


class Sides(NamedTuple):
    """From `since` on, the sides of a collective that must be windows."""

    since: Version
    all_reduce: tuple[str, ...]
    all_gather: tuple[str, ...]
    reduce_scatter: tuple[str, ...]


SIDES: tuple[Sides, ...] = (
    Sides((2, 27), _BOTH, _BOTH, _BOTH),
    # With less than these only LL kernels may run, and only where the general tuner would choose LL.
    Sides((2, 29), _BOTH, ("output",), ("input",)),
)


def version_numbers(version: str) -> Version:
    """The leading numbers of a version: "2.30.7+cuda13" is (2, 30, 7)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:3])


def sides_needed(kind: str, version: Version | None) -> tuple[str, ...]:
    """The sides of a `kind` that must be windows; for an unknown version those that every version needs."""
    fitting = [row for row in SIDES if version is not None and version >= row.since] or SIDES
    needed: tuple[str, ...] = getattr(fitting[-1], kind, _BOTH)
    return needed


def kernel_names(version: Version) -> set[str]:
    """The names that NCCL_SYM_KERNEL may have in `version` (up to 2.30)."""
    return {
        name for name, (first, gone) in KERNEL_NAMES.items() if version >= first and (gone is None or version < gone)
    }
