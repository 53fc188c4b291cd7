"""Causes that lie in the call itself: its group, kind, dtype, op and size. Pure functions."""

from __future__ import annotations

from .causes_evidence import Call, Evidence, Found, Rule
from .causes_facts import (
    AVERAGE_ACCEPTED,
    FIRST_SYMMETRIC,
    GROUPED_CALLS,
    LARGEST_CALL,
    LL_QUIRK,
    LL_QUIRK_BYTES,
    OPS,
)
from .coverage import KINDS_WITH_SYMMETRIC_KERNEL, REDUCIBLE_DTYPES

REDUCTIONS = ("all_reduce", "reduce_scatter")


def one_rank(call: Call, evidence: Evidence) -> Found | None:
    """A group of one rank has nothing to exchange."""
    if call.group_size != 1:
        return None
    return Found("the group has one rank only, so NCCL exchanges nothing", ["group size 1"])


def kind_without_kernel(call: Call, evidence: Evidence) -> Found | None:
    """No NCCL has a symmetric kernel for the kind."""
    if call.kind == "unknown" or call.kind in KINDS_WITH_SYMMETRIC_KERNEL:
        return None
    by_copies = call.kind == "all_to_all" and evidence.variable("NCCL_CTA_POLICY") is None
    return Found(
        f"NCCL has no symmetric kernel for {call.kind}",
        [f"kind {call.kind}"],
        mend="set NCCL_CTA_POLICY=2 with NCCL 2.28 or newer, so that copy engines do it, or accept the general kernel"
        if by_copies
        else None,
    )


def dtype_not_implemented(call: Call, evidence: Evidence) -> Found | None:
    """A reduction needs a kernel for its dtype; an all-gather moves bytes."""
    if call.kind not in REDUCTIONS or call.dtype is None or call.dtype in REDUCIBLE_DTYPES:
        return None
    return Found(f"NCCL reduces {call.dtype} by general kernels only", [f"dtype {call.dtype}"])


def op_not_implemented(call: Call, evidence: Evidence) -> Found | None:
    """No symmetric kernel of this NCCL knows the op of a reduction."""
    if call.kind not in REDUCTIONS:
        return None
    op, shown = evidence.op, "op {}"
    if op is None and evidence.log is not None:
        ops = evidence.log.ops.get(call.kind, frozenset())
        op, shown = (next(iter(ops)), "NCCL's log shows the op {} only") if len(ops) == 1 else (None, "")
    if op is None:
        return None
    since = OPS.get(op, {})
    first, version = since.get(call.kind), evidence.version
    if first is None and since and (version is None or version >= AVERAGE_ACCEPTED):
        # An average of all ranks is taken for symmetric from 2.30 on, and then fails: no fallback by the op.
        return None
    if first is not None and (version is None or version >= first):
        return None
    if first == FIRST_SYMMETRIC:
        return None  # the op is not to blame: this NCCL has no symmetric kernel at all
    later = f"; NCCL {'.'.join(map(str, first))} brought it" if first else ""
    return Found(
        f"{evidence.nccl} has no symmetric kernel for {call.kind} with the op {op}",
        [f"{shown.format(op)}{later}"],
        mend=f"use NCCL {'.'.join(map(str, first))} or newer, or reduce with sum and scale the result"
        if first
        else None,
    )


def coalesced(call: Call, evidence: Evidence) -> Found | None:
    """NCCL 2.27 looks for a symmetric kernel only where a group call holds one collective."""
    version = evidence.version
    if not call.coalesced or version is None or not FIRST_SYMMETRIC <= version < GROUPED_CALLS:
        return None
    return Found(
        f"{evidence.nccl} runs several collectives of one group call on general kernels only",
        ["one kernel served several calls"],
    )


def too_large(call: Call, evidence: Evidence) -> Found | None:
    """No symmetric kernel takes 64 GiB or more."""
    if (
        call.kind not in KINDS_WITH_SYMMETRIC_KERNEL
        or call.bytes is None
        or call.bytes < LARGEST_CALL
        or call.coalesced
    ):
        return None
    return Found("a symmetric kernel takes less than 64 GiB in one call", [f"{call.bytes} bytes"])


def ll_quirk(call: Call, evidence: Evidence) -> Found | None:
    """NCCL 2.29.2 and 2.29.3 send small calls to general kernels though their buffers are symmetric."""
    needed = call.needed(evidence.version)
    if evidence.version not in LL_QUIRK or call.bytes is None or call.bytes >= LL_QUIRK_BYTES or call.coalesced:
        return None
    if not needed or any(buffer.registration != "symmetric" for buffer in needed):
        return None
    shown = [f"{call.bytes} bytes, all buffers symmetric"]
    if protocol := evidence.variable("NCCL_PROTO"):
        shown.append(f"NCCL_PROTO={protocol}")
    return Found(
        f"{evidence.nccl} runs a small call on a general kernel unless that would use the protocol LL", shown, "likely"
    )


_KERNELS = "https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/device/symmetric/generate.py"
_CHOICE = "https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/sym_kernels.cc"

ONE_RANK = Rule(
    name="one-rank-group",
    means="The process group has one rank. NCCL copies, or does nothing at all.",
    seen_by="the group size in the trace",
    mend="nothing to mend: leave the call out where the group has one rank",
    source="https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/enqueue.cc",
    look=one_rank,
)
KIND = Rule(
    name="kind-without-symmetric-kernel",
    means="NCCL has symmetric kernels for all-reduce, all-gather and reduce-scatter only, in every version.",
    seen_by="the kind of the collective",
    mend="use all-reduce, all-gather or reduce-scatter, or accept the general kernel (NCCL_CTA_POLICY=2 lets the copy "
    "engines do all-to-all from NCCL 2.28 on; torch makes a gather of sends and receives, which they never do)",
    source=_KERNELS,
    look=kind_without_kernel,
)
DTYPE = Rule(
    name="dtype-not-implemented",
    means="Symmetric reductions exist for float32, float16, bfloat16 and the two 8-bit floats; not for float64,"
    " not for integers. An all-gather takes any dtype.",
    seen_by="the dtype in the trace",
    mend="reduce in float32, float16, bfloat16 or an 8-bit float",
    source=_KERNELS,
    look=dtype_not_implemented,
)
OP = Rule(
    name="op-not-implemented",
    means="Symmetric kernels sum; from NCCL 2.30 on reduce-scatter also averages. Max, min, product and scaled "
    "sums never. An all-reduce average on symmetric buffers does not fall back from 2.30 on: it fails.",
    seen_by="the op of the case, or the op codes in NCCL's log; a trace does not have it",
    mend="reduce with sum and scale the result yourself",
    source=_CHOICE,
    look=op_not_implemented,
)
COALESCED = Rule(
    name="coalesced",
    means="NCCL 2.27 chooses a symmetric kernel only for a collective that is alone in its group call.",
    seen_by="a kernel that served several calls, and the version",
    mend="use NCCL 2.28 or newer, or issue the collectives one by one",
    source="https://github.com/NVIDIA/nccl/blob/v2.27.7-1/src/enqueue.cc",
    look=coalesced,
)
SIZE = Rule(
    name="too-large",
    means="Symmetric kernels count in 32 bits, so a call of 64 GiB or more (all ranks' parts together) has none.",
    seen_by="the size in the trace",
    mend="split the call",
    source=_CHOICE,
    look=too_large,
)
QUIRK = Rule(
    name="small-call-2.29.2",
    means="In NCCL 2.29.2 and 2.29.3 a small call, for which a symmetric LL kernel would be the best, runs on a"
    " general kernel unless that would use the protocol LL too.",
    seen_by="the version, a small size, and buffers that are all symmetric",
    mend="use NCCL 2.29.7 or newer, and leave NCCL_PROTO unset",
    source="https://github.com/NVIDIA/nccl/blob/v2.29.2-1/src/scheduler/symmetric_sched.cc",
    look=ll_quirk,
)
