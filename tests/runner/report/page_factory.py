"""Results with collectives for the tests of the page: a step as a training makes it, on as many ranks as asked for."""

from __future__ import annotations

from typing import Any

from runner.model import Collective, Phase
from runner.result import CaseResult, Result

from .factory import CAUSE, GENERAL, KNOWN, SYMMETRIC, case, coverage, first_light, phase, result

SHARES: tuple[tuple[Phase, float], ...] = (("forward", 0.4), ("recompute", 0.6), ("backward", 0.9), ("optimizer", 1.0))


def collective(start: float = 0.0, duration: float = 10.0, **more: Any) -> Collective:
    """A symmetric all-reduce of rank 0 in forward, unless told otherwise."""
    symmetric = more.get("symmetric", True)
    fields: dict[str, Any] = {
        "rank": 0, "step": 3, "phase": "forward", "kind": "all_reduce", "symmetric": symmetric,
        "mechanism": "nccl-symmetric" if symmetric else "nccl", "multicast": False,
        "algorithm": "RSxLD_AGxST" if symmetric else None, "dtype": "bfloat16", "bytes": 8 * 2**20,
        "group": "default_pg", "group_size": 2, "kernel": SYMMETRIC if symmetric else GENERAL, "calls": 1,
        "why": "forward: no backward frame around the launch",
    }  # fmt: skip
    return Collective(start=5e12 + start, duration=duration, **(fields | more))


def step_of(ranks: int, number: int) -> list[Collective]:
    """`number` collectives on each rank over two steps: forward, recompute and backward, optimizer; two groups."""
    found = []
    for rank in range(ranks):
        for at in range(number):
            share = at % max(number // 2, 1) / max(number / 2, 1)
            name = next(name for name, until in SHARES if share < until)
            kind = ("all_gather", "reduce_scatter", "broadcast")[at % 3]
            found.append(
                collective(
                    at * 100.0 + rank, 60.0 + at % 7, rank=rank, step=3 + at * 2 // number, phase=name, kind=kind,
                    symmetric=name == "forward" and kind != "broadcast", group=("dp", "tp")[at % 2],
                )
            )  # fmt: skip
    return sorted(found, key=lambda one: one.start)


def trained(ranks: int = 2, number: int = 24, **more: Any) -> CaseResult:
    """A case of a training whose backward fell back, with its collectives."""
    fallen = {"fallback": 4, "cause": CAUSE, "message": "all fell back"} | more
    phases = phase("forward", symmetric=4), phase("backward", "fail", **fallen)
    return case("train", *phases, id="train/fsdp2", collectives=step_of(ranks, number))


def page_result() -> Result:
    """A failed run: the first light's cases, one that crashed, and a training with a timeline."""
    crashed = case(
        "crash", phase("forward", "error", message="rank 1 died"), phase("backward", "error", message="rank 1 died"),
        trouble="rank 1 was killed by SIGSEGV", detail="Traceback (most recent call last):\nRuntimeError: <b>boo</b>",
    )  # fmt: skip
    return result(
        *first_light().cases, crashed, trained(known=KNOWN), word="fail",
        sentence="3 of 12 phases are not as expected.",
        coverage={"forward": coverage(8), "backward": coverage(4, 4, 2, 1)},
    )  # fmt: skip
