"""The workloads of real training, on two real ranks with gloo: their values, and the buffers that were watched."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from runner.launch import run_plan
from runner.plan import Case, Plan
from runner.runfolder import Record, RunFolder

BROKEN = Path(__file__).with_name("broken_workloads.py")
BFLOAT16 = {"dtype": "bfloat16", "size": 65536}
FLOAT32 = {"dtype": "float32", "size": 65536}

GOOD = {
    "tensor_parallel": ("tensor_parallel", BFLOAT16),
    "tensor_parallel/float32": ("tensor_parallel", FLOAT32),
    "checkpointing/reentrant": ("checkpointing", {**BFLOAT16, "reentrant": "reentrant"}),
    "checkpointing/non-reentrant": ("checkpointing", {**FLOAT32, "reentrant": "non-reentrant"}),
    "ddp/default": ("ddp", {**BFLOAT16, "buckets": "default"}),
    "ddp/built-in-pool": ("ddp", {**FLOAT32, "buckets": "built-in-pool"}),
    "ddp/hook": ("ddp", {**BFLOAT16, "buckets": "hook"}),
    "fsdp2/default": ("fsdp2", {**BFLOAT16, "memory": "default"}),
    "fsdp2/process-group": ("fsdp2", {**FLOAT32, "memory": "process-group"}),
    "compiled": ("compiled", {**BFLOAT16, "compiler": "aot_eager"}),
}
BAD = {
    f"{name}/{phase}": (f"{BROKEN}:broken", {**axes, "workload": workload, "phase": phase})
    for name, workload, axes, phases in [
        ("tensor_parallel", "tensor_parallel", BFLOAT16, ("forward", "backward")),
        ("checkpointing", "checkpointing", {**BFLOAT16, "reentrant": "reentrant"}, ("forward", "backward")),
        ("ddp", "ddp", {**BFLOAT16, "buckets": "default"}, ("backward",)),
        ("ddp-hook", "ddp", {**BFLOAT16, "buckets": "hook"}, ("backward",)),
        ("fsdp2", "fsdp2", {**BFLOAT16, "memory": "default"}, ("forward", "backward")),
    ]
    for phase in phases
}
INCAPABLE = {
    "fsdp2/symmetric": ("fsdp2", {**BFLOAT16, "memory": "symmetric"}),
    "fsdp2/symmetric-sum": ("fsdp2", {**BFLOAT16, "memory": "symmetric-sum"}),
    "cuda_graph": ("cuda_graph", {**BFLOAT16, "windows": "named"}),
}
PARTS = {
    "allocates_first": (f"{BROKEN}:allocates_first", {"size": 4}),
    "watched": (f"{BROKEN}:notes_only", {"size": 4}),
    "not-watched": (f"{BROKEN}:notes_only", {"size": 1}),
}
MISTAKEN = {
    "checkpointing/both": ("checkpointing", {**BFLOAT16, "reentrant": "both"}),
    "ddp/none": ("ddp", {**BFLOAT16, "buckets": "none"}),
    "fsdp2/none": ("fsdp2", {**BFLOAT16, "memory": "none"}),
    "compiled/none": ("compiled", {**BFLOAT16, "compiler": "none"}),
    "cuda_graph/some": ("cuda_graph", {**BFLOAT16, "windows": "some"}),
    "tensor_parallel/int32": ("tensor_parallel", {**BFLOAT16, "dtype": "int32"}),
}
# Mistakes are refused before anything is done, so they are called in this process.
CASES = {**GOOD, **BAD, **INCAPABLE, **PARTS}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, Record]]:
    """All cases in one run: their records by name and rank."""
    folder = tmp_path_factory.mktemp("run") / "run"
    cases = [
        Case(id=name, folder=f"cases/{name}", workload=workload, axes=axes, deadline=60.0)
        for name, (workload, axes) in CASES.items()
    ]
    plan = Plan(ranks=2, device="cpu", backend="gloo", cases=cases)
    run_plan(plan, folder, python=sys.executable, environment=dict(os.environ), progress=lambda told: None)
    run = RunFolder(folder)
    found = {case.id: run.records(case) for case in cases}
    found["calls"] = json.loads((folder / "cases/allocates_first/rank0.json").read_text())["calls"]
    return found


def buffers(record: Record) -> Counter[tuple[str, str, str]]:
    return Counter((buffer.phase, buffer.kind, buffer.role) for buffer in record.buffers)


@pytest.mark.parametrize("name", GOOD)
def test_all_values_are_right(records: dict[str, dict[int, Record]], name: str) -> None:
    for record in records[name].values():
        assert (record.outcome, record.message) == ("ok", None)
        # Outputs and gradients, not a sample of them.
        assert record.values is not None and record.values.checked >= 16384
        assert 0 < record.values.max_error < record.values.tolerance
        assert record.trace is not None
    assert sorted(records[name]) == [0, 1]


@pytest.mark.parametrize("name", BAD)
def test_a_collective_that_adds_nothing_is_noticed(records: dict[str, dict[int, Record]], name: str) -> None:
    assert [record.outcome for record in records[name].values()] == ["wrong-values"] * 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tensor_parallel", {("forward", "all_reduce", "in-place"): 4, ("backward", "all_reduce", "in-place"): 4}),
        # All of forward again.
        (
            "checkpointing/reentrant",
            {("forward", "all_reduce", "in-place"): 4, ("backward", "all_reduce", "in-place"): 8},
        ),
        # Forward again, but for the last all-reduce of each segment.
        (
            "checkpointing/non-reentrant",
            {("forward", "all_reduce", "in-place"): 4, ("backward", "all_reduce", "in-place"): 6},
        ),
        ("compiled", {("forward", "all_reduce", "in-place"): 2, ("backward", "all_reduce", "in-place"): 2}),
        ("ddp/built-in-pool", {("backward", "all_reduce", "in-place"): 3}),
        (
            "fsdp2/default",
            {
                ("forward", "all_gather", "output"): 3,
                ("forward", "all_gather", "input"): 3,
                ("backward", "all_gather", "output"): 3,
                ("backward", "all_gather", "input"): 3,
                ("backward", "reduce_scatter", "output"): 3,
                ("backward", "reduce_scatter", "input"): 3,
            },
        ),
    ],
)
def test_the_buffers_of_every_collective_are_recorded(
    records: dict[str, dict[int, Record]], name: str, expected: dict[tuple[str, str, str], int]
) -> None:
    for record in records[name].values():
        assert dict(buffers(record)) == expected
        assert not any(buffer.in_pool for buffer in record.buffers)


def test_a_ddp_hook_reduces_whole_buckets(records: dict[str, dict[int, Record]]) -> None:
    for record in records["ddp/hook"].values():
        width = 128  # of 65536 bytes, rounded down to a multiple of 128
        assert sum(buffer.bytes for buffer in record.buffers) == 3 * width * width * 2
        assert {(buffer.phase, buffer.kind) for buffer in record.buffers} == {("backward", "all_reduce")}


@pytest.mark.parametrize("name", INCAPABLE)
def test_what_needs_a_gpu_is_incapable_without_one(records: dict[str, dict[int, Record]], name: str) -> None:
    for record in records[name].values():
        assert record.outcome == "incapable" and "needs a GPU" in str(record.message)


def test_a_workload_can_prepare_after_the_registration_and_be_watched_in_another_step(
    records: dict[str, dict[int, Record]],
) -> None:
    assert records["calls"][:4] == ["eager", "prepare", "eager", "replay"]
    assert set(records["calls"][4:]) == {"replay"}
    assert dict(buffers(records["allocates_first"][0])) == {("forward", "all_reduce", "in-place"): 1}


def test_a_note_adds_what_the_watch_does_not_see(records: dict[str, dict[int, Record]]) -> None:
    both = {("forward", "all_reduce", "in-place"): 1, ("backward", "all_gather", "input"): 1}
    assert dict(buffers(records["watched"][0])) == both
    assert dict(buffers(records["not-watched"][0])) == both
    assert [buffer.bytes for buffer in records["watched"][0].buffers] == [16, 32]


@pytest.mark.parametrize("name", MISTAKEN)
def test_an_axis_value_that_is_none_is_refused(name: str) -> None:
    from checks.workloads import find_workload

    workload, axes = MISTAKEN[name]
    with pytest.raises(ValueError, match=f"{name.rpartition('/')[2]}'"):
        find_workload(workload, Path())(None, None, **axes)
