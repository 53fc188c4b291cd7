"""The words of the project as types: a collective, its coverage, and the names they may take.

Every other module speaks in these; see README.md, "The words", for what each means to a person.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Phase = Literal["forward", "backward", "recompute", "optimizer", "unknown"]
Kind = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "send_recv",
    "unknown",
]
Mechanism = Literal[
    "nccl-symmetric",
    "nccl-copy-engine",
    "nccl",
    "rccl-symmetric",
    "rccl",
    "torch-symm-mem",
    "nvshmem",
    "library-symmetric",
    "peer-mapped",
    "unknown",
]

PHASES: tuple[Phase, ...] = ("forward", "backward", "recompute", "optimizer", "unknown")


Expectation = Literal["symmetric", "fallback", "any"]
GatePhase = Literal["forward", "backward", "optimizer"]


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """One collective call as the GPU ran it: a kernel, or the copy engine's rows of one call.

    `start` and `duration` are microseconds as in the trace, `bytes` is max(in, out elements) × element
    size on this rank, `symmetric` and `multicast` are None where the evidence does not tell, and `calls`
    is how many calls the kernel served (a coalesced launch is one kernel for several).
    """

    rank: int | None
    step: int | None
    phase: Phase
    kind: Kind
    mechanism: Mechanism
    symmetric: bool | None
    multicast: bool | None
    algorithm: str | None
    dtype: str | None
    bytes: int | None
    group: str | None
    group_size: int | None
    start: float
    duration: float
    kernel: str | None
    calls: int
    why: str


class Amount(msgspec.Struct):
    """How much fell into one group: launches, bytes and GPU time in microseconds, over ranks and steps."""

    calls: int = 0
    bytes: int = 0
    time_us: float = 0.0


class Coverage(msgspec.Struct):
    """One phase's collectives in four groups; `ratio` is symmetric / (symmetric + fallback) by calls.

    `ratio` is None where nothing eligible ran (0/0), and None fails any minimum.
    """

    symmetric: Amount
    fallback: Amount
    ineligible: Amount
    unknown: Amount
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] | None
