"""Causes that lie in the buffers: where they were allocated, and how they are registered. Pure functions."""

from __future__ import annotations

from .causes_evidence import Call, Evidence, Found, Rule, told
from .causes_facts import LL_QUIRK_BYTES

_LIBRARIES = {"ddp": "DDP", "fsdp2": "FSDP2"}


def library_memory(call: Call, evidence: Evidence) -> Found | None:
    """DDP and FSDP2 allocate what they communicate in themselves, and not as symmetric memory by default."""
    library = _LIBRARIES.get(evidence.workload or "")
    needed = call.needed(evidence.version)
    if library is None or any(buffer.registration == "symmetric" for buffer in needed):
        return None
    if library == "DDP":
        return Found(
            "DDP reduces its own gradient buckets, which it registers as plain user buffers at most",
            ["the workload is DDP", *([told(needed, needed, "not in symmetric memory")] if needed else [])],
            "certain" if needed else "likely",
            mend="give DDP a communication hook that copies each bucket into a buffer kept in a symmetric pool",
        )
    return Found(
        "FSDP2 communicates in its own buffers, which are not symmetric memory unless it is told so",
        ["the workload is FSDP2", *([told(needed, needed, "not in symmetric memory")] if needed else [])],
        "certain" if needed else "likely",
        mend="from torch 2.12 on call set_force_sum_reduction_for_comms(True) and then set_symm_mem_for_comm('NCCL'): "
        "without the first, in that order, reduce-scatter stays as it is",
    )


def registered_not_symmetric(call: Call, evidence: Evidence) -> Found | None:
    """The pool is registered, but as plain user buffers."""
    needed = call.needed(evidence.version)
    plain = [buffer for buffer in needed if buffer.registration == "plain"]
    if not plain or any(not buffer.in_pool for buffer in needed):
        return None
    return Found(
        "the pool is registered as plain user buffers, not as symmetric memory",
        [told(plain, needed, "in a pool registered without symm=True")],
    )


def autograd_thread(call: Call, evidence: Evidence) -> Found | None:
    """Backward allocated the buffer on autograd's thread, where use_mem_pool of the calling thread does not hold."""
    needed = call.needed(evidence.version)
    outside = [buffer for buffer in needed if not buffer.in_pool]
    has_pool = evidence.pool is not None and evidence.pool.allocator is not None
    if not has_pool or not outside or any(buffer.thread != "autograd" for buffer in outside):
        return None
    return Found(
        "the buffer lies outside the pool: backward allocated it on autograd's thread, "
        "where use_mem_pool of the calling thread does not hold",
        [told(outside, needed, "outside the pool, used on autograd's thread")],
    )


def one_side(call: Call, evidence: Evidence) -> Found | None:
    """Of a collective's input and output only one is symmetric memory, and not all that this NCCL needs."""
    needed = call.needed(evidence.version)
    good = sorted({buffer.role for buffer in call.buffers if buffer.registration == "symmetric"})
    bad = sorted({buffer.role for buffer in needed if buffer.registration != "symmetric"})
    if evidence.version is None or len(good) != 1 or len(bad) != 1 or {*good, *bad} != {"input", "output"}:
        return None
    without = [buffer for buffer in needed if buffer.role == bad[0]]
    return Found(
        f"only the {good[0]} of the {call.kind} is symmetric memory, and {evidence.nccl} needs the {bad[0]} to be",
        [told(without, call.buffers, f"are the {bad[0]}, not in symmetric memory")],
        mend=f"allocate the {bad[0]} in the registered pool too",
    )


def small_with_one_side(call: Call, evidence: Evidence) -> Found | None:
    """What this NCCL needs is symmetric memory, the other side is not, and the call is small."""
    if evidence.version is None or call.bytes is None or call.bytes >= LL_QUIRK_BYTES or call.coalesced:
        return None
    needed = {id(buffer) for buffer in call.needed(evidence.version)}
    others = [buffer for buffer in call.buffers if id(buffer) not in needed]
    without = [buffer for buffer in others if buffer.registration != "symmetric"]
    good = {buffer.registration == "symmetric" for buffer in call.buffers if id(buffer) in needed}
    if good != {True} or not without:
        return None
    side = without[0].role
    return Found(
        f"the {side} of this small {call.kind} is not symmetric memory; {evidence.nccl} does without it in large "
        "calls, but in small ones it then takes a symmetric kernel only where it would choose the protocol LL anyhow",
        [f"{call.bytes} bytes", told(without, call.buffers, f"are the {side}, not in symmetric memory")],
        "likely",
        mend=f"allocate the {side} in the registered pool too",
    )


def outside_pool(call: Call, evidence: Evidence) -> Found | None:
    """The buffer is ordinary memory."""
    needed = call.needed(evidence.version)
    outside = [buffer for buffer in needed if not buffer.in_pool]
    if not outside:
        return None
    return Found(
        "the buffer was not allocated in a memory pool that NCCL knows",
        [told(outside, needed, "outside the pool")],
        "certain" if len(outside) == len(needed) else "likely",
    )


def pool_not_registered(call: Call, evidence: Evidence) -> Found | None:
    """The buffer lies in a pool that NCCL was never told of."""
    needed = call.needed(evidence.version)
    unknown = [buffer for buffer in needed if buffer.in_pool and buffer.registration == "none"]
    if not unknown:
        return None
    return Found(
        "the buffer lies in a pool that was never registered with NCCL",
        [told(unknown, needed, "in the pool, pool not registered")],
        "certain" if len(unknown) == len(needed) else "likely",
    )


def late_segment(call: Call, evidence: Evidence) -> Found | None:
    """The nccl2 backend makes no window of what the pool allocates after its registration."""
    chosen = evidence.variable("TORCH_DIST_USE_NCCL2")
    needed = call.needed(evidence.version)
    if chosen is None or evidence.is_zero("TORCH_DIST_USE_NCCL2") or not needed:
        return None
    if any(buffer.registration != "symmetric" for buffer in needed):
        return None
    return Found(
        "the buffer's segment came into the pool after its registration, which the nccl2 backend does not repeat",
        [f"TORCH_DIST_USE_NCCL2={chosen}", told(needed, needed, "in a pool registered with symm=True")],
        "likely",
    )


def symmetric_in_forward(call: Call, evidence: Evidence) -> Found | None:
    """Nothing is known of the buffers, but the like call of forward was symmetric: only the memory can differ."""
    if evidence.buffers or {row.phase for row in evidence.collectives} - {"backward", "recompute"}:
        return None
    alike = [
        row
        for row in evidence.symmetric
        if row.phase == "forward"
        and (row.kind, row.dtype, row.group, row.group_size) == (call.kind, call.dtype, call.group, call.group_size)
    ]
    if not alike or call.dtype is None or call.group_size is None:
        return None
    return Found(
        "its buffer is not symmetric memory: forward runs the like call on a symmetric kernel, and backward allocates "
        "on autograd's thread, where use_mem_pool of the calling thread does not hold",
        [f"{len(alike)} symmetric {call.kind} of {call.dtype} in the same group in forward"],
        "likely",
    )


_REGISTRATION = "https://github.com/pytorch/pytorch/blob/main/docs/source/symmetric_memory.md"
_BACKWARD = (
    "enter the pool inside the Function's backward, or run backward under "
    "torch.autograd.set_multithreading_enabled(False), or copy into a buffer registered once"
)

LIBRARY = Rule(
    name="communication-memory-not-symmetric",
    means="DDP allocates its gradient buckets itself, FSDP2 its communication buffers. They are ordinary "
    "memory, or memory that is registered with NCCL, but not as symmetric (allocate_tensor of the "
    "backend, set_allocate_memory_from_process_group_for_comm). A pool around the step does not change "
    "that.",
    seen_by="the workload, and buffers outside symmetric memory",
    mend="DDP: a communication hook that reduces in a registered buffer; FSDP2: set_symm_mem_for_comm",
    source="https://github.com/pytorch/pytorch/pull/177111",
    look=library_memory,
)
NOT_SYMMETRIC = Rule(
    name="registered-not-symmetric",
    means="register_mem_pool(pool) registers plain user buffers: symm is False by default.",
    seen_by="the case's registration, and buffers that lie in its pool",
    mend="register it with register_mem_pool(pool, symm=True); the default is symm=False",
    source=_REGISTRATION,
    look=registered_not_symmetric,
)
AUTOGRAD = Rule(
    name="allocated-on-autograd-thread",
    means="use_mem_pool holds for the thread that enters it. Autograd runs backward on threads of its own, so "
    "what backward allocates is ordinary memory.",
    seen_by="buffers outside the pool that were used on autograd's thread",
    mend=_BACKWARD,
    source="https://github.com/pytorch/pytorch/issues/167353",
    look=autograd_thread,
)
ONE_SIDE = Rule(
    name="one-side-registered",
    means="An all-reduce needs input and output in symmetric memory. Up to NCCL 2.28 so do the others; from "
    "2.29 on an all-gather needs the output only, a reduce-scatter the input only. Small calls differ: with either "
    "side there may be an LL kernel (2.30.7 took it at 2 KiB, 2.32.3 did not).",
    seen_by="where input and output lie, and the version",
    mend="allocate both in the registered pool",
    source="https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/sym_kernels.cc",
    look=one_side,
)
SMALL_WITH_ONE_SIDE = Rule(
    name="small-call-one-side",
    means="From NCCL 2.29 on the output of an all-gather and the input of a reduce-scatter are enough, but for small "
    "calls only LL kernels are then left, and those only where NCCL's general choice would be the protocol LL too. "
    "Seen with 2.32.3 at 2 KiB, where 2.30.7 took an LL kernel.",
    seen_by="where input and output lie, the size (below 256 KiB, an estimate), and the version",
    mend="allocate both in the registered pool",
    source="https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/scheduler/symmetric_sched.cc",
    look=small_with_one_side,
)
OUTSIDE = Rule(
    name="outside-pool",
    means="The buffer is ordinary memory of the caching allocator.",
    seen_by="the buffer's address against the pool's segments",
    mend="allocate it under torch.cuda.use_mem_pool(pool), with the pool registered by register_mem_pool(pool, "
    "symm=True)",
    source=_REGISTRATION,
    look=outside_pool,
)
NOT_REGISTERED = Rule(
    name="pool-not-registered",
    means="The pool was made and used, but NCCL was never told. A pool of symm_mem.get_mem_pool is not "
    "registered by itself.",
    seen_by="buffers in the pool, and the case's registration",
    mend="call register_mem_pool(pool, symm=True) on the NCCL backend while the pool is still empty "
    "(nccl2: after its allocations)",
    source=_REGISTRATION,
    look=pool_not_registered,
)
LATE = Rule(
    name="segment-after-registration",
    means="The nccl2 backend (torch 2.14 and later) registers the segments that a pool has when it is "
    "registered. What the pool allocates later is not symmetric. The nccl backend registers later "
    "segments by itself.",
    seen_by="TORCH_DIST_USE_NCCL2, and buffers that lie in a registered pool all the same",
    mend="allocate first and register then, or deregister and register again",
    source="https://github.com/pytorch/pytorch/pull/192112",
    look=late_segment,
)
CONTRAST = Rule(
    name="symmetric-in-forward-only",
    means="Where nothing was recorded of the buffers, as in recorded traces, the like call of forward shows that "
    "machine, NCCL, kind and dtype can do it; what is left is the memory that backward allocates. That the op is the "
    "same is not known.",
    seen_by="symmetric calls of the same kind, dtype and group in forward",
    mend=_BACKWARD,
    source="https://github.com/pytorch/pytorch/issues/167353",
    look=symmetric_in_forward,
)
