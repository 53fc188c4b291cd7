"""Each cause: evidence that supports it, and evidence that only nearly does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.judge.cause import RULES, Evidence, causes, find_cause
from runner.judge.causes_page import causes_page
from runner.model import Collective
from runner.nccl_log import Communicator, LogFacts
from runner.result import Environment
from runner.runfolder import Buffer, PoolRecord

POOL = PoolRecord(set_up="step", allocator="backend.mem_allocator", segments=1, registered="symmetric")


def row(**changes: Any) -> Collective:
    """An all-reduce of 8 MiB of bfloat16 in backward that ran on a general kernel."""
    given: dict[str, Any] = {
        "rank": 0, "step": 1, "phase": "backward", "kind": "all_reduce", "mechanism": "nccl", "symmetric": False,
        "multicast": None, "algorithm": None, "dtype": "bfloat16", "bytes": 8 << 20, "group": "default_pg",
        "group_size": 2, "start": 0.0, "duration": 1.0, "kernel": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "calls": 1, "why": "",
    }  # fmt: skip
    return Collective(**(given | changes))


def buffer(registration: str = "symmetric", **changes: Any) -> Buffer:
    """A buffer that `row()` uses, by default one as it should be."""
    given: dict[str, Any] = {
        "phase": "backward", "kind": "all_reduce", "role": "in-place", "dtype": "bfloat16", "bytes": 8 << 20,
        "in_pool": registration != "outside", "thread": "main",
        "registration": "none" if registration == "outside" else registration,
    }  # fmt: skip
    return Buffer(**(given | changes))


def evidence(*rows: Collective, nccl: str | None = "2.30.7", **changes: Any) -> Evidence:
    """Evidence with everything as it should be: two ranks, NVLink, good buffers; `changes` name what is not."""
    here = {
        name: changes.pop(name) for name in ("hosts", "ranks", "nvlink", "multicast", "variables") if name in changes
    }
    settings: dict[str, Any] = {"ranks": 2, "ranks_per_gpu": 1, "hosts": 1, "nvlink": True, "multicast": True} | here
    given: dict[str, Any] = {
        "collectives": rows or (row(),), "buffers": [buffer(), buffer()], "op": "sum", "pool": POOL,
        "environment": Environment(nccl=nccl, **settings),
    }  # fmt: skip
    return Evidence(**(given | changes))


def of_kind(kind: str, size: int, sides: dict[str, str], **changes: Any) -> Evidence:
    """Evidence of a collective with two sides, given as role: registration; the smaller is half of `size`."""
    small = {"all_gather": "input", "reduce_scatter": "output"}.get(kind)
    buffers = [
        buffer(registration, kind=kind, role=role, bytes=size // 2 if role == small else size)
        for role, registration in sides.items()
    ]
    return evidence(row(kind=kind, bytes=size), buffers=buffers, **changes)


def log(**changes: Any) -> LogFacts:
    return LogFacts(version="2.30.7", **changes)


def wide(ranks: int = 2, nodes: int = 2) -> LogFacts:
    return log(communicators=(Communicator(0, ranks, nodes, False),))


AVG = {"op": "avg"}
OUTSIDE = [buffer("outside")]
ON_AUTOGRAD = [buffer("outside", thread="autograd")]
GIB = 1 << 30
UNSUPPORTED = "Symmetric memory is not supported. cuMemEnable 1, globalGinSupport 0, cuMemGdrSupport 0"

# name of the cause, evidence that supports it, evidence that does not quite (and may support another cause)
CAUSES: list[tuple[str, Evidence, Evidence]] = [
    ("one-rank-group", evidence(row(group_size=1)), evidence(row(group_size=2))),
    ("kind-without-symmetric-kernel", evidence(row(kind="broadcast")), evidence(row(kind="all_gather"))),
    ("kind-without-symmetric-kernel", evidence(row(kind="all_to_all")), evidence(row(kind="unknown"))),
    ("dtype-not-implemented", evidence(row(dtype="int32")), evidence(row(kind="all_gather", dtype="int32"))),
    ("dtype-not-implemented", evidence(row(dtype="float64")), evidence(row(dtype=None))),
    ("op-not-implemented", evidence(op="max"), evidence(op="sum")),
    ("op-not-implemented", evidence(op="max", nccl=None), evidence(op=None)),
    ("op-not-implemented", evidence(nccl="2.29.7", **AVG), evidence(nccl="2.30.7", **AVG)),
    (
        "op-not-implemented",
        evidence(row(kind="reduce_scatter"), nccl="2.29.7", **AVG),
        evidence(row(kind="reduce_scatter"), nccl="2.30.3", **AVG),
    ),
    ("op-not-implemented", evidence(op="max"), evidence(row(kind="all_gather"), op="max")),
    (
        "op-not-implemented",
        evidence(op=None, log=log(ops={"all_reduce": frozenset({"max"})})),
        evidence(op=None, log=log(ops={"all_reduce": frozenset({"max", "sum"})})),
    ),
    ("nccl-too-old", evidence(nccl="2.26.5"), evidence(nccl="2.27.3")),
    ("nccl-too-old", evidence(nccl="2.21.5"), evidence(nccl="2.21.5 / 2.30.7")),
    (
        "several-nvlink-domains",
        evidence(hosts=2, ranks=16, collectives=[row(group_size=16)]),
        evidence(hosts=2, ranks=16),
    ),
    ("several-nvlink-domains", evidence(log=wide()), evidence(log=wide(nodes=1), hosts=2)),
    ("several-nvlink-domains", evidence(log=wide()), evidence(log=wide(ranks=4))),
    ("no-direct-nvlink", evidence(nvlink=False, nccl="2.29.2"), evidence(nvlink=False, nccl="2.28.9")),
    ("no-direct-nvlink", evidence(nvlink=False), evidence(nvlink=None)),
    (
        "no-peer-access",
        evidence(log=log(p2p=({"isAllDirectP2p": 0, "isAllCudaP2p": 0},))),
        evidence(log=log(p2p=({"isAllDirectP2p": 0, "isAllCudaP2p": 1},))),
    ),
    (
        "no-peer-access",
        evidence(nccl="2.28.3", log=log(p2p=({"isAllDirectP2p": 0},))),
        evidence(nccl="2.28.3", log=log(p2p=({"isAllDirectP2p": 1},))),
    ),
    (
        "no-peer-access",
        evidence(nccl="2.27.7", variables={"NCCL_P2P_DISABLE": "1"}),
        evidence(nccl="2.28.9", variables={"NCCL_P2P_DISABLE": "1"}),
    ),
    (
        "no-peer-access",
        evidence(nccl="2.28.7", log=log(p2p=({"isAllDirectP2p": 1, "isAllCudaP2p": 0},))),
        evidence(nccl="2.28.7", log=log(p2p=({"isAllDirectP2p": 0, "isAllCudaP2p": 1},))),
    ),
    ("no-peer-access", evidence(variables={"NCCL_P2P_DISABLE": "1"}), evidence(variables={"NCCL_P2P_DISABLE": "0"})),
    ("switched-off", evidence(variables={"NCCL_WIN_ENABLE": "0"}), evidence(variables={"NCCL_WIN_ENABLE": "1"})),
    ("switched-off", evidence(variables={"NCCL_CUMEM_ENABLE": "0"}), evidence(variables={"NCCL_CUMEM_ENABLE": "-2"})),
    (
        "switched-off",
        evidence(nccl="2.27.7", variables={"NCCL_LOCAL_REGISTER": "0"}),
        evidence(nccl="2.28.9", variables={"NCCL_LOCAL_REGISTER": "0"}),
    ),
    (
        "switched-off",
        evidence(log=log(variables={"NCCL_WIN_ENABLE": "0"})),
        evidence(log=log(variables={"NCCL_WIN_ENABLE": "off"})),
    ),
    (
        "switched-off",
        evidence(log=log(unsupported=({"cuMemEnable": 0},), unsupported_text="cuMemEnable 0")),
        evidence(log=log(unsupported=({"cuMemEnable": 1},), unsupported_text="cuMemEnable 1")),
    ),
    (
        "algorithm-forced",
        evidence(nccl="2.31.2", variables={"NCCL_ALGO": "Ring"}),
        evidence(nccl="2.30.7", variables={"NCCL_ALGO": "Ring"}),
    ),
    (
        "algorithm-forced",
        evidence(nccl="2.32.3", variables={"NCCL_ALGO": "allreduce:tree;allgather:ring"}),
        evidence(nccl="2.32.3", variables={"NCCL_ALGO": "reducescatter:ring;allgather:ring"}),
    ),
    (
        "algorithm-forced",
        evidence(nccl="2.31.2", variables={"NCCL_ALGO": "Ring"}),
        evidence(nccl="2.31.2", variables={"NCCL_ALGO": "Ring", "NCCL_SYM_KERNEL": "^"}),
    ),
    (
        "unknown-symmetric-kernel",
        evidence(variables={"NCCL_SYM_KERNEL": "AllReduce_RSxLD_AGxSt"}),
        evidence(variables={"NCCL_SYM_KERNEL": "AllReduce_RSxLD_AGxST"}),
    ),
    (
        "unknown-symmetric-kernel",
        evidence(nccl="2.29.7", variables={"NCCL_SYM_KERNEL": "AllReduce_RSxTmaLD_AGxTmaST"}),
        evidence(nccl="2.30.3", variables={"NCCL_SYM_KERNEL": "AllReduce_RSxTmaLD_AGxTmaST"}),
    ),
    (
        "unknown-symmetric-kernel",
        evidence(variables={"NCCL_SYM_KERNEL": "nonsense"}),
        evidence(nccl="2.31.2", variables={"NCCL_SYM_KERNEL": "nonsense"}),
    ),
    (
        "communicator-without-symmetric-memory",
        evidence(log=log(unsupported=({"cuMemEnable": 1},), unsupported_text=UNSUPPORTED)),
        evidence(log=log()),
    ),
    ("communication-memory-not-symmetric", evidence(workload="ddp", buffers=ON_AUTOGRAD), evidence(workload="ddp")),
    (
        "communication-memory-not-symmetric",
        evidence(workload="fsdp2", buffers=[buffer("plain")]),
        evidence(workload="tensor_parallel", buffers=[buffer("plain")]),
    ),
    ("registered-not-symmetric", evidence(buffers=[buffer("plain")]), evidence(buffers=[buffer("symmetric")])),
    ("registered-not-symmetric", evidence(buffers=[buffer("plain")]), evidence(buffers=[buffer("plain"), *OUTSIDE])),
    ("allocated-on-autograd-thread", evidence(buffers=ON_AUTOGRAD), evidence(buffers=OUTSIDE)),
    ("allocated-on-autograd-thread", evidence(buffers=ON_AUTOGRAD), evidence(buffers=ON_AUTOGRAD, pool=None)),
    ("allocated-on-autograd-thread", evidence(buffers=ON_AUTOGRAD), evidence(buffers=[*ON_AUTOGRAD, *OUTSIDE])),
    (
        "one-side-registered",
        of_kind("all_reduce", 4096, {"input": "symmetric", "output": "outside"}),
        of_kind("all_reduce", 4096, {"input": "outside", "output": "outside"}),
    ),
    (
        "one-side-registered",
        of_kind("all_gather", 4096, {"input": "outside", "output": "symmetric"}, nccl="2.28.9"),
        of_kind("all_gather", 4096, {"input": "outside", "output": "symmetric"}, nccl="2.29.2"),
    ),
    (
        "one-side-registered",
        of_kind("all_gather", 4096, {"input": "symmetric", "output": "outside"}),
        of_kind("reduce_scatter", 4096, {"input": "symmetric", "output": "outside"}),
    ),
    ("outside-pool", evidence(buffers=OUTSIDE), evidence(buffers=[])),
    ("outside-pool", evidence(buffers=OUTSIDE), evidence(buffers=[buffer(), buffer("outside", dtype="float32")])),
    ("outside-pool", evidence(buffers=OUTSIDE), evidence(buffers=[buffer(), buffer("outside", kind="all_gather")])),
    ("outside-pool", evidence(buffers=OUTSIDE), evidence(buffers=[buffer(), buffer("outside", bytes=4096)])),
    ("pool-not-registered", evidence(buffers=[buffer("none")]), evidence(buffers=[buffer("symmetric")])),
    (
        "segment-after-registration",
        evidence(variables={"TORCH_DIST_USE_NCCL2": "1"}),
        evidence(variables={"TORCH_DIST_USE_NCCL2": "0"}),
    ),
    (
        "segment-after-registration",
        evidence(variables={"TORCH_DIST_USE_NCCL2": "1"}),
        evidence(variables={"TORCH_DIST_USE_NCCL2": "1"}, buffers=[]),
    ),
    ("coalesced", evidence(row(calls=3), nccl="2.27.7"), evidence(row(calls=3), nccl="2.28.3")),
    ("coalesced", evidence(row(calls=3), nccl="2.27.7"), evidence(row(calls=1), nccl="2.27.7")),
    (
        "too-large",
        evidence(row(bytes=64 * GIB), buffers=[buffer(bytes=64 * GIB)]),
        evidence(row(bytes=64 * GIB - 1), buffers=[buffer(bytes=64 * GIB - 1)]),
    ),
    (
        "small-call-2.29.2",
        evidence(row(bytes=2048), buffers=[buffer(bytes=2048)], nccl="2.29.3"),
        evidence(row(bytes=2048), buffers=[buffer(bytes=2048)], nccl="2.29.7"),
    ),
    (
        "small-call-2.29.2",
        evidence(row(bytes=2048), buffers=[buffer(bytes=2048)], nccl="2.29.2"),
        evidence(nccl="2.29.2"),
    ),
    (  # as seen on an H200
        "small-call-one-side",
        of_kind("all_gather", 2048, {"input": "outside", "output": "symmetric"}, nccl="2.32.3"),
        of_kind("all_gather", 2048, {"input": "symmetric", "output": "symmetric"}, nccl="2.32.3"),
    ),
    (
        "small-call-one-side",
        of_kind("reduce_scatter", 2048, {"input": "symmetric", "output": "outside"}, nccl="2.32.3"),
        of_kind("reduce_scatter", 64 << 20, {"input": "symmetric", "output": "outside"}, nccl="2.32.3"),
    ),
    (
        "symmetric-kernel-chosen",
        evidence(variables={"NCCL_SYM_KERNEL": "AllGather_ST"}),
        evidence(variables={"NCCL_SYM_KERNEL": "^"}),
    ),
    (
        "symmetric-in-forward-only",
        evidence(buffers=[], symmetric=[row(phase="forward", symmetric=True)]),
        evidence(buffers=[], symmetric=[row(phase="forward", symmetric=True, dtype="float16")]),
    ),
    (
        "symmetric-in-forward-only",
        evidence(buffers=[], symmetric=[row(phase="forward", symmetric=True)]),
        evidence(row(phase="optimizer"), buffers=[], symmetric=[row(phase="forward", symmetric=True)]),
    ),
]


def name_of(given: Evidence) -> str | None:
    found = find_cause(given)
    return found.name if found else None


@pytest.mark.parametrize(("name", "supports", "nearly"), CAUSES, ids=[case[0] for case in CAUSES])
def test_a_cause_is_found_by_its_evidence_and_not_by_what_is_near_it(
    name: str, supports: Evidence, nearly: Evidence
) -> None:
    assert name_of(supports) == name
    assert name_of(nearly) != name


def test_every_cause_is_tested_and_named_once() -> None:
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))
    assert {case[0] for case in CAUSES} == set(names)


def test_with_all_as_it_should_be_there_is_no_cause() -> None:
    assert find_cause(evidence()) is None


def test_without_evidence_there_is_no_cause() -> None:
    nothing = evidence(row(dtype=None, bytes=None, group=None, group_size=None), nccl=None, nvlink=None, buffers=[])
    assert find_cause(nothing._replace(op=None, pool=None)) is None
    assert find_cause(evidence()._replace(collectives=[])) is None


@pytest.mark.parametrize(
    ("given", "certainty"),
    [
        (evidence(buffers=OUTSIDE), "certain"),
        (evidence(buffers=[buffer(), *OUTSIDE]), "likely"),
        (evidence(nvlink=False), "certain"),
        (evidence(nvlink=False, ranks=4), "likely"),
        (evidence(log=wide()), "certain"),
        (evidence(hosts=2, ranks=16, collectives=[row(group_size=16)]), "likely"),
        (evidence(row(kind="all_gather"), log=wide()), "possible"),
        (
            evidence(row(kind="all_gather"), log=wide()._replace(unsupported=({"globalGinSupport": 0},))),
            "certain",
        ),
        (evidence(row(kind="reduce_scatter"), log=wide(), nccl="2.29.3"), "certain"),
        (evidence(nccl="2.31.2", variables={"NCCL_ALGO": "^tree"}), "possible"),
        (evidence(variables={"NCCL_SYM_KERNEL": "AllReduce_RSxLD_AGxST"}), "possible"),
        (evidence(variables={"NCCL_SYM_KERNEL": "AllReduce_AGxLLMC_R"}, multicast=False), "certain"),
        (evidence(workload="ddp", buffers=[]), "likely"),
        (evidence(workload="ddp", buffers=ON_AUTOGRAD), "certain"),
    ],
)
def test_how_sure_a_cause_is(given: Evidence, certainty: str) -> None:
    found = find_cause(given)
    assert found is not None
    assert found.certainty == certainty


def test_the_sentence_names_version_op_and_when_it_was_mended() -> None:
    found = find_cause(evidence(row(kind="reduce_scatter"), nccl="2.29.7", op="avg"))
    assert found is not None
    assert found.sentence == "NCCL 2.29.7 has no symmetric kernel for reduce_scatter with the op avg"
    assert found.evidence == ["op avg; NCCL 2.30 brought it"]
    assert found.mend == "use NCCL 2.30 or newer, or reduce with sum and scale the result"


def test_a_mistyped_kernel_gets_its_right_name() -> None:
    found = find_cause(evidence(variables={"NCCL_SYM_KERNEL": "allreduce_rsxld_agxst"}))
    assert found is not None
    assert found.mend == "write AllReduce_RSxLD_AGxST, or unset NCCL_SYM_KERNEL"


def test_the_buffers_are_counted() -> None:
    found = find_cause(evidence(buffers=[buffer(), *OUTSIDE]))
    assert found is not None
    assert found.evidence == ["1 of the ranks' 2 all_reduce buffers outside the pool (8388608 bytes of bfloat16)"]


def test_the_cause_is_that_of_most_eligible_collectives() -> None:
    given = evidence(
        *[row(kind="broadcast")] * 5, *[row(bytes=4096)] * 3, row(group_size=1), buffers=[buffer("none", bytes=4096)]
    )
    found = find_cause(given)
    assert found is not None
    assert found.name == "pool-not-registered"
    assert found.evidence[0] == "it explains 3 of the 4 collectives"
    assert [(cause.name, times) for cause, times in causes(given)] == [
        ("kind-without-symmetric-kernel", 5),
        ("pool-not-registered", 3),
        ("one-rank-group", 1),
    ]


def test_ineligible_collectives_have_a_cause_where_nothing_else_fell_back() -> None:
    assert name_of(evidence(row(kind="broadcast"), row(dtype="int64"), row(dtype="int64"))) == "dtype-not-implemented"


def test_causes_come_in_order() -> None:
    """A call to which several causes apply gets the one that no mending of the others would lift."""
    assert name_of(evidence(row(group_size=1, kind="broadcast"), nccl="2.26.5", buffers=OUTSIDE)) == "one-rank-group"
    assert name_of(evidence(nccl="2.26.5", buffers=OUTSIDE)) == "nccl-too-old"
    assert name_of(evidence(variables={"NCCL_WIN_ENABLE": "0"}, buffers=ON_AUTOGRAD)) == "switched-off"


def test_every_cause_says_what_it_means_and_where_that_stands() -> None:
    for rule in RULES:
        assert rule.source.startswith("https://"), rule.name
        assert rule.mend and not rule.mend.endswith("."), rule.name
        assert rule.means.endswith("."), rule.name


def test_the_page_of_causes_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "causes.md"
    assert page.read_text() == causes_page(), "run: python -m runner.judge.causes_page > docs/causes.md"


@pytest.mark.parametrize(
    ("kind", "variables", "mend"),
    [
        ("all_to_all", {}, "set NCCL_CTA_POLICY=2"),
        ("all_to_all", {"NCCL_CTA_POLICY": "2"}, "use all-reduce"),
        ("gather", {}, "use all-reduce"),
    ],
)
def test_the_copy_engines_are_named_where_they_would_help(kind: str, variables: dict[str, str], mend: str) -> None:
    found = find_cause(evidence(row(kind=kind), variables=variables))
    assert found is not None and found.mend is not None and found.mend.startswith(mend)
