"""How results are put into words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.report import words

from .factory import CAUSE, GENERAL, SYMMETRIC, case, coverage, first_light, phase, result


@pytest.mark.parametrize(
    ("name", "algorithm", "wanted"),
    [
        (SYMMETRIC, "RSxLD_AGxST", "RSxLD_AGxST"),
        (GENERAL, None, "RING_LL"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)", None, "RING_LL"),
        ("ncclDevKernel_AllReduce_Sum_f16_TREE_LL128(ncclDevKernelArgs)", None, "TREE_LL128"),
        ("ncclDevKernel_AllReduce_bf16_RING(ncclDevKernelArgsStorage<4096ul>)", None, "RING"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_NVLS_TREE_SIMPLE()", None, "NVLS_TREE_SIMPLE"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", None, "ncclDevKernel_SendRecv"),
        ("void multimem_all_reduce_kernel<c10::BFloat16, 16>(int)", None, "multimem_all_reduce_kernel"),
        ("void (anonymous namespace)::oneRankReduce<FuncSum<int> >(void*)", None, "oneRankReduce"),
        (None, None, "copy engine"),
        ("(odd)", None, "(odd)"),
    ],
)
def test_kernel_label(name: str | None, algorithm: str | None, wanted: str) -> None:
    assert words.kernel_label(name, algorithm) == wanted


@pytest.mark.parametrize(
    ("calls", "outcome", "wanted"),
    [
        ((4, 0, 0, 0), "pass", "symmetric"),
        ((0, 4, 0, 0), "fail", "fell back"),
        ((2, 2, 0, 0), "fail", "2 of 4 symmetric"),
        ((4, 0, 3, 1), "pass", "symmetric, 3 not eligible, 1 unknown"),
        ((0, 0, 3, 0), "unmeasured", "not eligible"),
        ((0, 0, 0, 2), "unmeasured", "unknown"),
        ((0, 0, 0, 0), "unmeasured", "not measured"),
        ((0, 0, 0, 0), "error", "not measured"),
        ((0, 0, 0, 0), "incapable", "not run"),
    ],
)
def test_how_it_ran(calls: tuple[int, int, int, int], outcome: Any, wanted: str) -> None:
    one = msgspec.structs.replace(phase("forward", outcome), coverage=coverage(*calls))
    assert words.how_it_ran(one) == wanted


def test_a_fallback_is_told_with_its_cause() -> None:
    whole = phase("backward", "fail", fallback=4, cause=CAUSE, message="all 4 collectives fell back")
    part = phase("backward", "fail", symmetric=1, fallback=3, cause=CAUSE, message="3 of 4 collectives fell back")
    likely = msgspec.structs.replace(whole, cause=msgspec.structs.replace(CAUSE, certainty="likely"))
    assert words.finding(case("a"), whole) == "fell back, because the buffer lies outside the pool"
    assert words.finding(case("a"), part) == "fell back in 3 of 4 calls, because the buffer lies outside the pool"
    assert words.finding(case("a"), likely) == "fell back, most likely because the buffer lies outside the pool"


def test_a_sentence_that_begins_with_a_name_keeps_its_capitals() -> None:
    cause = msgspec.structs.replace(CAUSE, sentence="NCCL 2.26 has no symmetric kernels")
    told = words.finding(case("a"), phase("forward", "fail", fallback=1, cause=cause))
    assert told == "fell back, because NCCL 2.26 has no symmetric kernels"


def test_other_findings_are_told_by_their_message() -> None:
    assert words.finding(case("a"), phase("forward", "fail", fallback=1, message="All fell back.")) == "All fell back"
    error = phase("forward", "error", message="wrong values")
    assert words.finding(case("a", trouble="3 of 8 are wrong."), error) == "wrong values: 3 of 8 are wrong"
    assert words.finding(case("a", trouble="wrong values"), error) == "wrong values"


def test_what_needs_telling() -> None:
    ineligible_only = phase("forward", symmetric=1, cause=CAUSE)
    assert not words.needs_telling(ineligible_only)
    assert not words.needs_telling(phase("forward", fallback=4, expected="fallback", cause=CAUSE))
    assert not words.needs_telling(phase("forward", fallback=4, expected="any"))
    assert words.needs_telling(phase("forward", fallback=4, expected="any", cause=CAUSE))
    assert words.needs_telling(phase("forward", "fixed", symmetric=4))


def test_phases_with_the_same_finding_are_told_once_and_the_worst_first() -> None:
    gone = [case(pool, phase("forward", "incapable"), phase("backward", "incapable")) for pool in ("a", "b")]
    failed = case("c", phase("forward", symmetric=4), phase("backward", "fail", fallback=4, cause=CAUSE))
    told = words.to_tell(result(*gone, failed))
    assert [(one.phase.outcome, [(where.id, names) for where, names in one.where]) for one in told] == [
        ("fail", [("all_reduce/c", ["backward"])]),
        ("incapable", [("all_reduce/a", ["forward", "backward"]), ("all_reduce/b", ["forward", "backward"])]),
    ]
    assert told[0].mend == CAUSE.mend and told[0].evidence == CAUSE.evidence


@pytest.mark.parametrize(
    ("ratio", "wanted"),
    [
        (1.0, "100 %"), (0.9999, "99.9 %"), (0.0, "0 %"), (1 / 3, "33.3 %"), (0.29, "29 %"), (None, "n/a"),
        (float("nan"), "n/a"), (0.0001, "0 %"),
    ],
)  # fmt: skip
def test_percent_rounds_down(ratio: float | None, wanted: str) -> None:
    assert words.percent(ratio) == wanted


def test_coverage_counts() -> None:
    assert words.coverage_counts(coverage(12, 4)) == "12 of 16 calls"
    assert words.coverage_counts(coverage(0, 0, 3, 2)) == "nothing eligible ran; 3 not eligible; 2 unknown"
    assert words.coverage_counts(coverage()) == "nothing was measured"


def test_environment_facts_are_those_known() -> None:
    facts = dict(words.environment_facts(first_light()))
    assert facts["NCCL, as loaded"] == "2.30.7 (torch was built with 2.28.9)"
    assert facts["multicast (NVLS)"] == "no" and facts["NCCL_DEBUG"] == "WARN"
    bare = result(environment=msgspec.structs.replace(first_light().environment, gpu=None, nvlink=None))
    assert not {"GPU", "NVLink"} & dict(words.environment_facts(bare)).keys()
