"""Who issued a collective: in forward told by what is around it, in backward by the forward op of its node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from runner.judge.script_issuers import Issuer, issuers
from runner.model import Collective

GENERAL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NODE = "autograd::engine::evaluate_function: CopyBackward"
MODULES = ["Gpt", "Gpt.up", "Gpt.down"]


def row(cat: str, name: str, tid: int, start: float, end: float, **args: Any) -> dict[str, Any]:
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": end - start, "args": named,
    }  # fmt: skip


def forward_op(name: str, start: float, end: float, sequence: int) -> dict[str, Any]:
    return row("cpu_op", name, 1, start, end, Sequence_number=sequence, Fwd_thread_id=0)


ROWS = [
    row("user_annotation", "ProfilerStep#1", 1, 0, 1000),
    row("user_annotation", "nn.Module #0", 1, 10, 400),
    row("user_annotation", "nn.Module #1", 1, 20, 100),
    forward_op("aten::linear", 30, 40, 7),
    forward_op("Copy", 50, 60, 8),
    row("user_annotation", "nn.Module #2", 1, 110, 200),
    forward_op("Reduce", 120, 150, 9),
    row("cpu_op", "c10d::allreduce_", 1, 122, 140),
    row("cpu_op", "record_param_comms", 1, 124, 138),
    row("cuda_runtime", "cudaLaunchKernelExC", 1, 130, 131, correlation=11),
    # Backward on another thread; its sequence number is that of the forward op that made the node.
    row("cpu_op", NODE, 2, 500, 600, Sequence_number=8, Fwd_thread_id=1),
    row("cpu_op", "c10d::allreduce_", 2, 510, 540),
    row("cuda_runtime", "cudaLaunchKernelExC", 2, 520, 521, correlation=12),
    # The same number again, in a later step: not where this node came from.
    forward_op("aten::add", 1100, 1110, 8),
    row("kernel", GENERAL, 7, 300, 320, correlation=11),
    row("kernel", GENERAL, 7, 700, 720, correlation=12),
]


def collective(start: float, *, symmetric: bool = False) -> Collective:
    return Collective(
        rank=0, step=1, phase="forward", kind="all_reduce", mechanism="nccl", symmetric=symmetric, multicast=None,
        algorithm=None, dtype="bfloat16", bytes=8, group="default_pg", group_size=2, start=start, duration=20.0,
        kernel=GENERAL, calls=1, why="",
    )  # fmt: skip


def found(tmp_path: Path, *rows: Collective, modules: list[str] = MODULES) -> list[Issuer]:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": ROWS}))
    return issuers(path, rows, modules)


def test_forward_is_told_by_what_is_around_the_launch(tmp_path: Path) -> None:
    assert found(tmp_path, collective(300)) == [Issuer("Reduce", "Gpt.down")]


def test_backward_is_told_by_its_node_and_the_module_of_the_forward_op(tmp_path: Path) -> None:
    assert found(tmp_path, collective(700)) == [Issuer("CopyBackward", "Gpt.up")]


def test_each_keeps_its_place_and_symmetric_ones_are_not_looked_for(tmp_path: Path) -> None:
    assert found(tmp_path, collective(700), collective(300, symmetric=True), collective(300)) == [
        Issuer("CopyBackward", "Gpt.up"), Issuer(None, None), Issuer("Reduce", "Gpt.down"),
    ]  # fmt: skip


def test_without_the_modules_names_no_module_is_guessed(tmp_path: Path) -> None:
    assert found(tmp_path, collective(300), collective(700), modules=[]) == [
        Issuer("Reduce", None), Issuer("CopyBackward", None),
    ]  # fmt: skip


def test_a_kernel_that_the_trace_does_not_have_has_no_issuer(tmp_path: Path) -> None:
    assert found(tmp_path, collective(301)) == [Issuer(None, None)]
