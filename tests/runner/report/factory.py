"""Small Results for the tests of the reports, and text that means harm."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from runner.model import Amount, Coverage
from runner.result import (
    CaseResult,
    Cause,
    Environment,
    KernelSeen,
    KnownProblem,
    Outcome,
    PhaseResult,
    Result,
    StartResult,
    SuiteName,
    Verdict,
)
from runner.suite import GatePhase

SYMMETRIC = "ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymkDevWorkArgs4K)"
GENERAL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ISSUE = "https://github.com/pytorch/pytorch/issues/167353"
KNOWN = KnownProblem(issue=ISSUE, title="use_mem_pool holds for the calling thread only")
CAUSE = Cause(
    name="allocated-on-autograd-thread",
    sentence="The buffer lies outside the pool.",
    certainty="certain",
    evidence=["2 of the ranks' all_reduce buffers outside the pool", "used on autograd's thread"],
    mend="enter the pool inside the Function's backward",
)
ENVIRONMENT = Environment(
    ranks=2, ranks_per_gpu=2, hosts=1, python="3.12.3", torch="2.11.0+cu130", cuda="13.0", nccl="2.30.7",
    nccl_built="2.28.9", nccl_path="/opt/nccl/libnccl.so.2", driver="580.95.05", gpu="NVIDIA H200", capability="9.0",
    multicast=False, nvlink=True, variables={"NCCL_DEBUG": "WARN"},
)  # fmt: skip


def coverage(symmetric: int = 0, fallback: int = 0, ineligible: int = 0, unknown: int = 0) -> Coverage:
    eligible = symmetric + fallback
    groups = [Amount(calls=calls, bytes=calls * 8) for calls in (symmetric, fallback, ineligible, unknown)]
    return Coverage(*groups, ratio=symmetric / eligible if eligible else None)


def kernel(symmetric: bool, launches: int = 4) -> KernelSeen:
    return KernelSeen(
        kernel=SYMMETRIC if symmetric else GENERAL,
        kind="all_reduce",
        mechanism="nccl-symmetric" if symmetric else "nccl",
        algorithm="RSxLD_AGxST" if symmetric else None,
        symmetric=symmetric,
        launches=launches,
    )


def phase(
    name: GatePhase, outcome: Outcome = "pass", *, symmetric: int = 0, fallback: int = 0, **more: Any
) -> PhaseResult:
    """A phase as its numbers of symmetric and general launches make it."""
    kernels = [kernel(True, symmetric)] * bool(symmetric) + [kernel(False, fallback)] * bool(fallback)
    fields = {"expected": "symmetric", "message": "as expected", "kernels": kernels} | more
    return PhaseResult(phase=name, outcome=outcome, coverage=coverage(symmetric, fallback), **fields)


def case(pool: str, *phases: PhaseResult, **more: Any) -> CaseResult:
    fields = {"id": f"all_reduce/{pool}", "check": "all_reduce", "seconds": 1.5} | more
    return CaseResult(workload="all_reduce", axes={"pool": pool}, phases=list(phases), **fields)


def result(*cases: CaseResult, word: Any = "pass", sentence: str = "All is as expected.", **more: Any) -> Result:
    fields = {"coverage": {}, "environment": ENVIRONMENT, "looks_at": "machine and PyTorch build only"} | more
    script = more.get("script")
    return Result(
        version="0.1.0", created="2026-11-30T10:00:00+00:00",
        suite=SuiteName("script", script.command[0]) if script else SuiteName("default", "suites/default.yaml"),
        verdict=Verdict(word, sentence), cases=list(cases), **fields,
    )  # fmt: skip


def first_light() -> Result:
    """Part of the default suite on one H200, with pytorch#167353 there."""
    control: dict[str, Any] = {"expected": "fallback", "fallback": 4}
    known: dict[str, Any] = {"fallback": 4, "cause": CAUSE, "known": KNOWN, "message": "all 4 fell back: known"}
    plain = "registered-not-symmetric"
    return result(
        case("none", phase("forward", **control), phase("backward", **control), because="a control: in no pool"),
        case("step", phase("forward", symmetric=4), phase("backward", "known", **known)),
        case("static", phase("forward", symmetric=4), phase("backward", symmetric=4)),
        case(plain, phase("forward", **control), phase("backward", **control), because="a control: symm=False"),
        coverage={"forward": coverage(8), "backward": coverage(4, 4)},
        sentence="All 8 phases are as expected (1 with a known problem).",
    )


_HARMFUL = (
    "|", "`", "```", "\\", "]]>", "<script>", "</details>", "<!--", "&amp;", "&#64;", "[[PROPERTY|a=b]]", "::error::",
    "\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\x00", "\r\n", "\n\n", "\t", "\ud800", "\udfff", "\ufffe", "\u202e",
    "\u2028", "\x85", "@user", "#123", "GH-1", "https://evil.example/", "www.evil.example", "a@evil.example",
    "[a](b)", "![a](b)", "**", "_", "~~", "$x$", ":tada:", "- ", "1. ", "x" * 300, "é", "中", "😀",
)  # fmt: skip
harmful = st.lists(
    st.sampled_from(_HARMFUL) | st.text(st.characters(codec=None, exclude_categories=())), max_size=8
).map("".join)
"""Text with what could break out of a report: half and control characters, markup, terminal commands, links."""


def filled_with(text: str) -> Result:
    """A Result with `text` wherever one can stand, and every outcome."""
    cause = Cause(name=text, sentence=text, certainty="likely", evidence=[text, text], mend=text)
    seen = KernelSeen(kernel=text, kind="all_reduce", mechanism="nccl", algorithm=None, symmetric=False, launches=1)
    outcomes: list[Outcome] = ["regressed", "known", "error", "unmeasured", "incapable", "fail", "fixed", "pass"]
    cases = [
        case(
            text,
            *(
                phase(
                    name, outcome, fallback=1, message=text, cause=cause, kernels=[seen, kernel(True)],
                    known=KnownProblem(issue=text, title=text), expected=expected,
                )
                for name, expected in (("forward", "symmetric"), ("backward", "fallback"))
            ),
            id=text, check=text, because=text, trouble=text, detail=f"{text}\n{text}", notes=[text],
            witness=[text], witnessed=True, seconds=float("nan"),
        )
        for outcome in outcomes
    ]  # fmt: skip
    strings = dict.fromkeys(("python", "torch", "cuda", "nccl", "nccl_built", "nccl_path", "driver", "gpu"), text)
    return result(
        *cases, word="fail", sentence=text, looks_at=text, notes=[text], replay=True,
        coverage={"forward": coverage(1, 2, 3, 4), "backward": coverage()},
        starts=[StartResult(number=0, cases=[text], ended="died", message=text)],
        environment=Environment(ranks=2, ranks_per_gpu=2, hosts=1, capability=text, variables={text: text}, **strings),
    )  # fmt: skip
