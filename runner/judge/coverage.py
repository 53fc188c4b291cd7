"""How much of a phase ran on symmetric memory, in four groups, and the ratio that a gate may ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..model import PHASES, Amount, Collective, Coverage, GatePhase, Kind, Phase

# The only collectives NCCL has symmetric kernels for, in every version up to 2.32:
# https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/device/symmetric/generate.py
KINDS_WITH_SYMMETRIC_KERNEL: frozenset[Kind] = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
# An all-gather moves bytes, so any dtype will do; a reduction needs a kernel for its dtype.
REDUCIBLE_DTYPES = frozenset({"float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})

GATE_PHASES: dict[GatePhase, tuple[Phase, ...]] = {
    "forward": ("forward",),
    "backward": ("backward", "recompute"),
    "optimizer": ("optimizer",),
}
"""For a gate, backward means backward and recompute."""


def group_of(collective: Collective) -> str:
    """The group a collective counts in: symmetric, fallback, ineligible or unknown.

    Ineligible: no NCCL has a symmetric kernel for that kind and dtype. What is not known counts as unknown, never
    as a fallback; so does a general kernel whose kind nothing tells.
    """
    if collective.symmetric is None:
        return "unknown"
    if collective.symmetric:
        return "symmetric"
    if collective.kind == "unknown":
        return "unknown"
    return "fallback" if is_eligible(collective.kind, collective.dtype) else "ineligible"


def is_eligible(kind: Kind, dtype: str | None) -> bool:
    """Whether some NCCL has a symmetric kernel for this kind and dtype; an untold dtype counts as eligible."""
    if kind not in KINDS_WITH_SYMMETRIC_KERNEL:
        return False
    return kind == "all_gather" or dtype is None or dtype in REDUCIBLE_DTYPES


def coverage(collectives: Iterable[Collective]) -> Coverage:
    """Sum collectives into one Coverage; an unknown size adds no bytes."""
    groups = {name: Amount() for name in ("symmetric", "fallback", "ineligible", "unknown")}
    for collective in collectives:
        amount = groups[group_of(collective)]
        amount.calls += 1
        amount.bytes += collective.bytes or 0
        amount.time_us += collective.duration
    return _with_ratio(groups)


def coverage_by_phase(collectives: Iterable[Collective]) -> dict[Phase, Coverage]:
    """The Coverage of every phase, in the order of PHASES, empty ones included."""
    rows: dict[Phase, list[Collective]] = {phase: [] for phase in PHASES}
    for collective in collectives:
        rows[collective.phase].append(collective)
    return {phase: coverage(found) for phase, found in rows.items()}


def added(parts: Iterable[Coverage]) -> Coverage:
    """The sum of several coverages."""
    groups = {name: Amount() for name in ("symmetric", "fallback", "ineligible", "unknown")}
    for part in parts:
        for name, total in groups.items():
            amount: Amount = getattr(part, name)
            total.calls += amount.calls
            total.bytes += amount.bytes
            total.time_us += amount.time_us
    return _with_ratio(groups)


def _with_ratio(groups: Mapping[str, Amount]) -> Coverage:
    for amount in groups.values():
        # Sums of microseconds with three decimals: more digits are noise of the binary representation.
        amount.time_us = round(amount.time_us, 3)
    symmetric, fallback = groups["symmetric"], groups["fallback"]
    eligible = symmetric.calls + fallback.calls
    return Coverage(
        symmetric=symmetric,
        fallback=fallback,
        ineligible=groups["ineligible"],
        unknown=groups["unknown"],
        ratio=symmetric.calls / eligible if eligible else None,
    )
