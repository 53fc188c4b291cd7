"""Findings about variables that change which collectives can be symmetric, from the environment or NCCL's own files.

What each does is told in https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, or read off
https://github.com/NVIDIA/nccl/tree/v2.30.7-1/src (init.cc, sym_kernels.cc, scheduler/symmetric_sched.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from ..versions import within
from .facts import Facts
from .finding import EVERY, Finding, Way, fine, limits, prevents, unknown

_SINCE = {
    ">=2.27": (
        "AllGather_LL", "AllGather_LLMC", "AllGather_ST", "AllGather_STMC", "AllReduce_AGxLL_R", "AllReduce_AGxLLMC_R",
        "AllReduce_RSxLD_AGxST", "AllReduce_RSxLDMC_AGxSTMC", "ReduceScatter_LL", "ReduceScatter_LD",
        "ReduceScatter_LDMC",
    ),
    ">=2.29.2, <2.29.7": ("AllGather_GinHier_MCRing",),
    ">=2.29.7": ("AllGather_RailRing_LsaSTMC", "ReduceScatter_RailA2A_LsaLD", "ReduceScatter_RailA2A_LsaLDMC"),
    ">=2.30": ("AllGather_TmaST", "AllGather_TmaSTMC", "AllReduce_RSxTmaLD_AGxTmaST", "ReduceScatter_TmaLD"),
}  # fmt: skip


def algorithms(version: str) -> set[str]:
    """Return the names that NCCL_SYM_KERNEL may have in an NCCL up to 2.30."""
    return {name for bound, names in _SINCE.items() if within(version, bound) for name in names}


def _is(*values: int) -> Callable[[str], bool]:
    return lambda text: _number(text) in values


def _on(text: str) -> bool:
    return text.strip().lower() in ("1", "y", "yes", "true", "on")


class Rule(msgspec.Struct, frozen=True):
    """What a value of a variable does: it closes `closes`, or, with none, has just the effect told.

    `nccl` bounds the versions for which this holds; "" is all.
    """

    name: str
    when: Callable[[str], bool]
    effect: str
    closes: tuple[Way, ...] = ()
    nccl: str = ""
    mend: str = "unset it"


NEEDS_P2P = "this NCCL is symmetric only where its P2P transport is on"
RULES = (
    Rule("NCCL_WIN_ENABLE", _is(0), "NCCL makes no windows, so nothing is symmetric", EVERY),
    Rule("NCCL_CUMEM_ENABLE", _is(0), "without cuMem nothing is symmetric", EVERY),
    Rule("NCCL_LOCAL_REGISTER", _is(0), "registering a window succeeds, but does nothing", EVERY, "<2.28"),
    Rule("NCCL_P2P_DISABLE", _is(1), NEEDS_P2P, EVERY, "<2.28.7"),
    Rule("NCCL_P2P_LEVEL", lambda text: text.upper() in ("LOC", "0"), NEEDS_P2P, EVERY, "<2.28.7"),
    Rule("NCCL_NVLS_ENABLE", _is(0), "no multicast (NVLS) kernels; the others still run", ("multicast",)),
    Rule("NCCL_NVLS_ENABLE", _is(1), "NCCL does not start with several ranks on one GPU", ("ranks-on-one-gpu",)),
    Rule("NCCL_MULTI_RANK_GPU_ENABLE", _is(0), "NCCL refuses several ranks on one GPU", ("ranks-on-one-gpu",)),
    Rule("NCCL_ENQUEUE_REARCH_ENABLE", _is(1), "general kernels may win over symmetric ones", (), ">=2.31"),
    Rule("NCCL_SYM_NOWIN_ENABLE", _is(1), "small collectives can be symmetric without registration", (), ">=2.29"),
    Rule("NCCL_SYM_GIN_KERNELS_ENABLE", _is(0), "nothing is symmetric across machines", (), ">=2.29.7"),
    Rule(
        "NCCL_CTA_POLICY", lambda text: _number(text) == 2 or text.upper() == "ZERO",
        "gathers and all-to-all run on the copy engines: symmetric, but without a kernel", (), ">=2.28",
    ),
    Rule("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", _on,
         "every segment is registered with NCCL, but as an ordinary buffer and not as symmetric memory"),
    Rule("TORCH_DIST_USE_NCCL2", _on, "what is allocated after register_mem_pool is not symmetric",
         mend="allocate first, then register; or unset it"),
    Rule("TORCH_SYMM_MEM_DISABLE_MULTICAST", _on, "torch's own multimem operations are off (not NCCL's kernels)"),
)  # fmt: skip

# Set by `run` for several ranks on a GPU, or they only choose and show.
HARMLESS = {
    "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "CUDA_VISIBLE_DEVICES",
    "LD_PRELOAD", "CUDA_DEVICE_ORDER", "NCCL_HOSTID",
}  # fmt: skip


def variable_findings(facts: Facts) -> Iterable[Finding]:
    """Yield a finding for each variable that has an effect, and one for all others that are set."""
    if facts.env is None:
        yield unknown("variables", facts.why_unknown("env"), EVERY)
        return
    version = facts.nccl.version if facts.nccl else None
    values, places = in_force(facts)
    said: set[str] = set()
    for name, value in values.items():
        for finding in _findings(name, value, values, version):
            said.add(name)
            yield msgspec.structs.replace(finding, subject=name, found=f"{value}{places.get(name, '')}")
    rest = {name: f"{name}={values[name]}{places.get(name, '')}" for name in values if name not in said}
    harmless = [told for name, told in rest.items() if name in HARMLESS]
    strange = [told for name, told in rest.items() if name not in HARMLESS]
    parts = [", ".join(harmless)] if harmless else []
    if strange:
        parts.append(f"no effect on symmetric kernels is known of {', '.join(strange)}")
    if parts or not said:
        yield fine("variables", "; ".join(parts) or "none is set")


def in_force(facts: Facts) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that hold, and for those of a file the words that say which."""
    values, places = dict(facts.env or {}), {}
    for file in facts.nccl_files:
        for name, value in file.variables.items():
            if name not in values:
                values[name] = value
                places[name] = f" (in {file.path})"
    return values, places


def _findings(name: str, value: str, values: dict[str, str], version: str | None) -> Iterable[Finding]:
    if name == "NCCL_SYM_KERNEL":
        yield _sym_kernel(value, version)
    elif name == "NCCL_ALGO":
        yield from _algo(value, "NCCL_SYM_KERNEL" in values, version)
    for rule in RULES:
        if rule.name != name or not rule.when(value):
            continue
        if rule.nccl and version is None:
            yield unknown(name, value, rule.closes, f"with NCCL {rule.nccl}: {rule.effect}", rule.mend)
        elif not rule.nccl or within(version, rule.nccl):
            make = prevents if set(EVERY) <= set(rule.closes) else limits
            yield make(name, value, rule.effect, rule.mend, rule.closes)


def _sym_kernel(value: str, version: str | None) -> Finding:
    name = "NCCL_SYM_KERNEL"
    if version is None:
        return unknown(
            name, value, EVERY, "it restricts the symmetric kernels, in each NCCL in its own way", "unset it"
        )
    if within(version, ">=2.31"):
        return limits(name, value, "only the kernels it allows are taken; a mistyped name fails the call", "unset it")
    if value.startswith("^"):
        return fine(name, value)
    if value not in algorithms(version):
        return prevents(
            name, value, "no kernel has that name, and NCCL then silently takes no symmetric one",
            "unset it, or give one name such as AllReduce_RSxLD_AGxST",
        )  # fmt: skip
    return limits(name, value, "no other symmetric kernel is taken than this one", "unset it")


def _algo(value: str, overruled: bool, version: str | None) -> Iterable[Finding]:
    name, mend = "NCCL_ALGO", "unset it, or set NCCL_SYM_KERNEL as well"
    effect = "no symmetric kernel for the collectives that it forces"
    if overruled or (version is not None and not within(version, ">=2.31")):
        return
    if version is None:
        yield unknown(name, value, EVERY, f"with NCCL 2.31 or newer: {effect}", mend)
    elif ":" in value or value.startswith("^"):
        yield limits(name, value, effect, mend)
    else:
        yield prevents(name, value, effect, mend)


def _number(text: str) -> int | None:
    try:
        return int(text.strip(), 0)  # as NCCL reads them: decimal, 0x or 0
    except ValueError:
        return None
