"""Why a script's collectives fell back: by the causes of the probes, and by the pools that it registered."""

from __future__ import annotations

from collections.abc import Sequence

from ..findings import Cause
from ..model import Collective
from ..result import Environment
from ..runfolder import PoolRecord
from .cause import Evidence, find_cause


def script_cause(
    fallen: Sequence[Collective], symmetric: Sequence[Collective], pool: PoolRecord | None, environment: Environment
) -> Cause | None:
    """The first cause that the evidence supports for alike collectives of a script, or None.

    Where a script's buffers lie is not recorded, so what is said of its pools is likely at best. `symmetric` are the
    script's collectives that did run symmetric; `pool` is what it has registered, None where that isn't known.
    """
    known = find_cause(
        Evidence(collectives=fallen, buffers=[], op=None, pool=pool, environment=environment, symmetric=symmetric)
    )
    if known is not None or pool is None:
        return known
    return _by_registration(pool) or _outside_pool(pool)


def _by_registration(pool: PoolRecord) -> Cause | None:
    if pool.registered == "none":
        return Cause(
            name="pool-not-registered",
            sentence="the script has registered no memory pool with NCCL",
            certainty="likely",
            evidence=["register_mem_pool was not called, or its pool was deregistered before the end of the trace"],
            mend="allocate what is communicated under torch.cuda.use_mem_pool(pool), and register the pool by "
            "register_mem_pool(pool, symm=True) on the NCCL backend",
        )
    if pool.registered == "plain":
        return Cause(
            name="registered-not-symmetric",
            sentence="the script's pools are registered as plain user buffers, not as symmetric memory",
            certainty="likely",
            evidence=["register_mem_pool was called without symm=True only"],
            mend="register the pool with register_mem_pool(pool, symm=True); the default is symm=False",
        )
    return None


def _outside_pool(pool: PoolRecord) -> Cause:
    return Cause(
        name="outside-pool",
        sentence="the buffer seems to lie outside the pool that the script has registered",
        certainty="possible",
        evidence=[f"a pool of {pool.segments} segments is registered as symmetric memory"],
        mend="allocate it under torch.cuda.use_mem_pool(pool)",
    )
