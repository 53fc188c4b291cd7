"""Why a collective fell back: the first cause that the evidence supports, and what to do about it.

A cause needs evidence: what the case's buffers were, the versions really loaded, the collective itself. Where that does
not explain the fallback there is no cause, and the reports say so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..model import Collective
from ..result import Cause, Environment
from ..runfolder import Buffer, PoolRecord
from .coverage import KINDS_WITH_SYMMETRIC_KERNEL, REDUCIBLE_DTYPES

FIRST_SYMMETRIC_NCCL = (2, 27)
FIRST_AVERAGE_NCCL = (2, 30)


class Evidence(NamedTuple):
    """What is known of one phase of a case: its fallen-back collectives, its buffers on every rank, op and pool."""

    collectives: Sequence[Collective]
    buffers: Sequence[Buffer]
    op: str | None
    pool: PoolRecord | None
    environment: Environment


def find_cause(evidence: Evidence) -> Cause | None:
    """The first cause that holds, or None where the evidence explains nothing."""
    if not evidence.collectives:
        return None
    for rule in _RULES:
        cause = rule(evidence)
        if cause is not None:
            return cause
    return None


def _no_symmetric_kernel(evidence: Evidence) -> Cause | None:
    kinds = {collective.kind for collective in evidence.collectives} - {"unknown"}
    without = sorted(kinds - KINDS_WITH_SYMMETRIC_KERNEL)
    if not without or kinds & KINDS_WITH_SYMMETRIC_KERNEL:
        return None
    return Cause(
        name="kind-without-symmetric-kernel",
        sentence=f"NCCL has no symmetric kernel for {' and '.join(without)}",
        certainty="certain",
        evidence=[f"kind {kind}" for kind in without],
        mend="use all-reduce, all-gather or reduce-scatter, or accept the general kernel",
    )


def _dtype(evidence: Evidence) -> Cause | None:
    dtypes = sorted(
        {
            collective.dtype
            for collective in evidence.collectives
            if collective.kind in ("all_reduce", "reduce_scatter") and collective.dtype is not None
        }
        - REDUCIBLE_DTYPES
    )
    if not dtypes:
        return None
    return Cause(
        name="dtype-not-implemented",
        sentence=f"NCCL reduces {' and '.join(dtypes)} by general kernels only",
        certainty="certain",
        evidence=[f"dtype {dtype}" for dtype in dtypes],
        mend="reduce in float32, float16, bfloat16 or an 8-bit float",
    )


def _old_nccl(evidence: Evidence) -> Cause | None:
    version = evidence.environment.nccl
    if version is None or version_numbers(version) >= FIRST_SYMMETRIC_NCCL:
        return None
    return Cause(
        name="nccl-too-old",
        sentence=f"NCCL {version} has no symmetric kernels",
        certainty="certain",
        evidence=[f"loaded NCCL {version}; the first symmetric kernels came with 2.27"],
        mend="use NCCL 2.27 or newer (PyTorch 2.8 or newer bundles it)",
    )


def _op(evidence: Evidence) -> Cause | None:
    op, version = evidence.op, evidence.environment.nccl
    kinds = {collective.kind for collective in evidence.collectives}
    if op in (None, "sum") or not kinds <= {"all_reduce", "reduce_scatter"} or version is None:
        return None
    if op == "avg" and version_numbers(version) >= FIRST_AVERAGE_NCCL:
        return None
    newest = "sum, from 2.30 also avg for reduce-scatter" if op == "avg" else "sum only"
    return Cause(
        name="op-not-implemented",
        sentence=f"NCCL {version} has no symmetric kernel for the op {op}",
        certainty="certain",
        evidence=[f"op {op}; symmetric kernels know {newest}"],
        mend="reduce with sum and scale the result yourself",
    )


def _window_switched_off(evidence: Evidence) -> Cause | None:
    variables = evidence.environment.variables
    off = [name for name in ("NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE") if variables.get(name) == "0"]
    if not off:
        return None
    return Cause(
        name="switched-off",
        sentence=f"symmetric memory is switched off by {' and '.join(f'{name}=0' for name in off)}",
        certainty="certain",
        evidence=[f"{name}=0 in the ranks' environment" for name in off],
        mend=f"unset {' and '.join(off)}",
    )


def _autograd_thread(evidence: Evidence) -> Cause | None:
    outside = [buffer for buffer in evidence.buffers if not buffer.in_pool]
    elsewhere = [buffer for buffer in outside if buffer.thread == "autograd"]
    has_pool = evidence.pool is not None and evidence.pool.allocator is not None
    if not has_pool or not elsewhere or len(elsewhere) < len(outside):
        return None
    return Cause(
        name="allocated-on-autograd-thread",
        sentence="the buffer lies outside the pool: backward allocated it on autograd's thread, "
        "where use_mem_pool of the calling thread does not hold",
        certainty="certain",
        evidence=[_told(elsewhere, "outside the pool, used on autograd's thread")],
        mend="enter the pool inside the Function's backward, or run backward under "
        "torch.autograd.set_multithreading_enabled(False), or copy into a buffer registered once",
    )


def _outside_pool(evidence: Evidence) -> Cause | None:
    outside = [buffer for buffer in evidence.buffers if not buffer.in_pool]
    if not outside:
        return None
    return Cause(
        name="outside-pool",
        sentence="the buffer was not allocated in a memory pool that NCCL knows",
        certainty="certain",
        evidence=[_told(outside, "outside the pool")],
        mend="allocate it under torch.cuda.use_mem_pool(pool), with the pool registered by "
        "register_mem_pool(pool, symm=True)",
    )


def _not_registered(evidence: Evidence) -> Cause | None:
    found = [buffer for buffer in evidence.buffers if buffer.registration == "none"]
    if not found:
        return None
    return Cause(
        name="pool-not-registered",
        sentence="the buffer lies in a pool that was never registered with NCCL",
        certainty="certain",
        evidence=[_told(found, "in the pool, pool not registered")],
        mend="call register_mem_pool(pool, symm=True) on the NCCL backend after the first allocation",
    )


def _not_symmetric(evidence: Evidence) -> Cause | None:
    found = [buffer for buffer in evidence.buffers if buffer.registration == "plain"]
    if not found:
        return None
    return Cause(
        name="registered-not-symmetric",
        sentence="the pool is registered as plain user buffers, not as symmetric memory",
        certainty="certain",
        evidence=[_told(found, "in a pool registered without symm=True")],
        mend="register it with register_mem_pool(pool, symm=True); the default is symm=False",
    )


_RULES = (
    _no_symmetric_kernel,
    _dtype,
    _old_nccl,
    _op,
    _window_switched_off,
    _autograd_thread,
    _outside_pool,
    _not_registered,
    _not_symmetric,
)


def _told(buffers: Sequence[Buffer], what: str) -> str:
    first = buffers[0]
    size = f"{first.bytes} bytes of {first.dtype}"
    return f"{len(buffers)} of the ranks' {first.kind} buffers {what} ({size})"


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.30.7+cuda13" is (2, 30, 7)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:3])
