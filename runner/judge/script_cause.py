"""Why a script's collectives fell back: by the causes of the probes, and by the pools that it registered."""

from __future__ import annotations

from collections.abc import Sequence

from ..findings import Cause
from ..model import Collective
from ..nccl_log import LogFacts
from ..result import Environment
from ..runfolder import Buffer, PoolRecord
from .cause import Evidence, find_cause


def script_cause(
    fallen: Sequence[Collective],
    symmetric: Sequence[Collective],
    buffers: Sequence[Buffer],
    pool: PoolRecord | None,
    environment: Environment,
    op: str | None = None,
    log: LogFacts | None = None,
) -> Cause | None:
    """The first cause that the evidence supports for alike collectives of a script, or None.

    `symmetric` are the script's collectives that did run symmetric, `buffers` those that its collectives used in one
    step, on all ranks; `pool` is what it has registered, None where that isn't known; `op` issued the collectives;
    `log` is what NCCL's own log says. Without buffers, what is said of its pools is likely at best.
    """
    phase = "backward" if fallen[0].phase in ("backward", "recompute") else "forward"
    known = find_cause(
        Evidence(
            collectives=fallen,
            buffers=[buffer for buffer in buffers if buffer.phase == phase],
            op=None,
            pool=pool,
            environment=environment,
            workload="fsdp2" if (op or "").startswith("FSDP::") else None,
            symmetric=symmetric,
            log=log,
        )
    )
    if known is not None or pool is None or buffers:
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
