"""One phase judged: expectations by kind, and known problems by kind and version."""

from __future__ import annotations

import msgspec
import pytest

from runner.judge.expectation import Seen, Trouble, judge_phase
from runner.judge.run import suite_coverage
from runner.model import Collective, Kind
from runner.result import CaseResult, Environment, PhaseResult
from runner.runfolder import Buffer, PoolRecord
from runner.suite import Expectation, Known, SuiteCase

ENVIRONMENT = Environment(ranks=2, ranks_per_gpu=1, hosts=1, torch="2.11.0+cu130", nccl="2.30.7")
MIXED: dict[Kind, Expectation] = {"all_gather": "symmetric", "reduce_scatter": "fallback"}
OLD = Known(issue="https://x.org/old", title="old", torch="<2.9")
NEW = Known(issue="https://x.org/new", title="new", torch=">=2.9")
NEWER = Known(issue="https://x.org/newer", title="newer", torch=">=2.10")


def row(kind: Kind, symmetric: bool | None, rank: int) -> Collective:
    return Collective(
        rank=rank, step=0, phase="backward", kind=kind, mechanism="nccl-symmetric" if symmetric else "nccl",
        symmetric=symmetric, multicast=None, algorithm=None, dtype="bfloat16", bytes=8, group="default_pg",
        group_size=2, start=0.0, duration=1.0, kernel="k", calls=1, why="w",
    )  # fmt: skip


def case(kinds: dict[Kind, Expectation] | None = None, *known: Known, expect: Expectation = "symmetric") -> SuiteCase:
    return SuiteCase(
        id="c", check="c", workload="w", axes={}, deadline=1.0, expect={"backward": expect},
        kinds={"backward": kinds} if kinds else {}, known={"backward": known} if known else {}, line=1,
    )  # fmt: skip


def seen(trouble: Trouble | None = None, ranks: int = 2, **kinds: bool | None) -> Seen:
    rows = {rank: [row(kind, symmetric, rank) for kind, symmetric in kinds.items()] for rank in range(ranks)}  # type: ignore[arg-type]
    return Seen(collectives=rows, buffers=[], pool=None, trouble=trouble)


def judged(wanted: SuiteCase, what: Seen) -> PhaseResult:
    return judge_phase(wanted, "backward", what, ENVIRONMENT)


@pytest.mark.parametrize(
    ("kinds", "outcome", "message"),
    [
        (
            {"all_gather": True, "reduce_scatter": False},
            "pass",
            "all_gather: symmetric; reduce_scatter: not symmetric, as this control must be",
        ),
        # A kind that is not named does not count, whatever it ran on.
        (
            {"all_gather": True, "reduce_scatter": False, "all_reduce": False},
            "pass",
            "all_gather: symmetric; reduce_scatter: not symmetric, as this control must be",
        ),
        (
            {"all_gather": False, "reduce_scatter": False},
            "fail",
            "all_gather: all 2 collectives fell back; reduce_scatter: not symmetric, as this control must be",
        ),
        (
            {"all_gather": True, "reduce_scatter": True},
            "fail",
            "all_gather: symmetric; reduce_scatter: all 2 collectives symmetric, and this control must have none",
        ),
        (
            {"all_gather": True},
            "unmeasured",
            "all_gather: symmetric; reduce_scatter: no reduce_scatter of backward in the trace of rank 0, 1",
        ),
        # What could not be measured never hides a failure.
        (
            {"all_gather": False},
            "fail",
            "all_gather: all 2 collectives fell back; "
            "reduce_scatter: no reduce_scatter of backward in the trace of rank 0, 1",
        ),
        (
            {"all_gather": None, "reduce_scatter": False},
            "unmeasured",
            "all_gather: of all 2 collectives it can't be told whether it was symmetric; "
            "reduce_scatter: not symmetric, as this control must be",
        ),
    ],
)
def test_each_kind_by_its_own_expectation(kinds: dict[str, bool | None], outcome: str, message: str) -> None:
    found = judged(case(MIXED), seen(**kinds))
    assert (found.outcome, found.message, found.kinds) == (outcome, message, MIXED)


def test_a_kind_missing_on_one_rank_is_unmeasured() -> None:
    what = seen(all_gather=True, reduce_scatter=False)
    rows = {**what.collectives, 1: what.collectives[1][:1]}
    found = judged(case(MIXED), Seen(collectives=rows, buffers=[], pool=None, trouble=None))
    assert found.outcome == "unmeasured"
    assert found.message.endswith("no reduce_scatter of backward in the trace of rank 1")


def test_the_first_known_problem_of_these_versions_is_meant() -> None:
    found = judged(case(None, OLD, NEW, NEWER), seen(all_reduce=False))
    assert (found.outcome, found.known.title if found.known else None) == ("known", "new")
    found = judged(case(None, OLD, NEWER, NEW), seen(all_reduce=False))
    assert found.known is not None and found.known.issue == "https://x.org/newer"
    assert judged(case(None, OLD), seen(all_reduce=False)).outcome == "fail"
    found = judged(case(None, OLD, NEW), seen(all_reduce=True))
    assert (found.outcome, found.known.title if found.known else None) == ("fixed", "new")


def of_kind(kind: Kind) -> Known:
    return Known(issue="https://x.org/kind", title="of a kind", torch=">=2.9", kind=kind)


BOTH: dict[Kind, Expectation] = {"all_gather": "symmetric", "all_reduce": "symmetric"}


@pytest.mark.parametrize(
    ("known", "kinds", "outcome"),
    [
        (of_kind("all_gather"), {"all_gather": False, "all_reduce": True}, "known"),
        (of_kind("all_gather"), {"all_gather": True, "all_reduce": True}, "fixed"),
        # It explains its own kind only: no other one hides behind it.
        (of_kind("all_gather"), {"all_gather": True, "all_reduce": False}, "fail"),
        (of_kind("all_gather"), {"all_gather": False, "all_reduce": False}, "fail"),
        (NEW, {"all_gather": False, "all_reduce": False}, "known"),
        # Of no kind in particular: gone only where it is gone from every kind.
        (NEW, {"all_gather": True, "all_reduce": False}, "known"),
        (NEW, {"all_gather": True, "all_reduce": True}, "fixed"),
    ],
)
def test_a_known_problem_of_a_kind(known: Known, kinds: dict[str, bool], outcome: str) -> None:
    found = judged(case(BOTH, known), seen(**kinds))
    assert found.outcome == outcome
    assert (found.known is not None) == (outcome in ("known", "fixed"))
    if outcome == "fixed":
        assert found.message.count("is gone; take it out") == 1


def test_a_problem_of_a_kind_that_is_not_judged_is_never_gone() -> None:
    kinds: dict[Kind, Expectation] = {"all_gather": "any", "all_reduce": "symmetric"}
    assert judged(case(kinds, of_kind("all_gather")), seen(all_gather=True, all_reduce=True)).outcome == "pass"


def test_trouble_of_the_whole_case_is_told_once_and_may_be_known() -> None:
    trouble = Trouble("error", "rank 1 raised: RuntimeError: no")
    found = judged(case(MIXED), seen(trouble))
    assert (found.outcome, found.message, found.cause) == ("error", "rank 1 raised: RuntimeError: no", None)
    assert judged(case(MIXED, of_kind("all_gather")), seen(trouble)).outcome == "known"
    assert judged(case(None, NEW, expect="any"), seen(trouble)).outcome == "known"
    assert judged(case(None, OLD, expect="any"), seen(trouble)).outcome == "error"
    incapable = seen(Trouble("incapable", "needs torch >= 99; this is 2.11.0"))
    assert judged(case(MIXED, NEW), incapable).outcome == "incapable"


def test_only_kinds_that_ought_to_be_symmetric_count_in_the_suites_coverage() -> None:
    def result(kinds: dict[Kind, Expectation]) -> CaseResult:
        what = seen(all_gather=True, reduce_scatter=False)
        phase = judged(case(kinds), what)
        rows = [row for own in what.collectives.values() for row in own]
        return CaseResult(id="c", check="c", workload="w", axes={}, phases=[phase], collectives=rows)

    mixed = suite_coverage([result(MIXED)])["backward"]
    assert (mixed.symmetric.calls, mixed.fallback.calls, mixed.ratio) == (2, 0, 1.0)
    plain = suite_coverage([result({})])["backward"]
    assert (plain.symmetric.calls, plain.fallback.calls, plain.ratio) == (2, 2, 0.5)


@pytest.mark.parametrize(
    ("buckets", "pool", "name"),
    [
        ("default", "step", "communication-memory-not-symmetric"),
        ("hook", "step", "allocated-on-autograd-thread"),
        ("hook", "none", "outside-pool"),
    ],
)
def test_a_hook_of_ddp_reduces_in_buffers_of_its_own(buckets: str, pool: str, name: str) -> None:
    """As recorded on an H200: DDP calls the hook on autograd's thread, and the pool does not hold there."""
    allocator = None if pool == "none" else "symm_mem.get_mempool_allocator"
    buffer = Buffer(
        phase="backward", kind="all_reduce", role="in-place", dtype="bfloat16", bytes=8, in_pool=False,
        registration="none", thread="autograd",
    )  # fmt: skip
    what = Seen(
        collectives={rank: [row("all_reduce", False, rank)] for rank in range(2)},
        buffers=[buffer, buffer],
        pool=PoolRecord(set_up=pool, allocator=allocator, segments=3, registered="symmetric" if allocator else "none"),
        trouble=None,
    )
    wanted = msgspec.structs.replace(case(), workload="ddp", axes={"buckets": buckets, "pool": pool})
    found = judged(wanted, what).cause
    assert found is not None and found.name == name
