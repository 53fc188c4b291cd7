"""The plan of a run: what the ranks are to do, as written to plan.json for them to read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

PLAN_SCHEMA = 1


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One point of a suite's matrix.

    `folder` is relative to the run folder, `workload` is a name in checks/workloads or
    `path/to/file.py:function`, `axes` holds all axes (`size` in bytes per rank), `deadline` is in seconds.
    """

    id: str
    folder: str
    workload: str
    axes: dict[str, str | int]
    deadline: float


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cases of one launch configuration, to be run in one process group where nothing goes wrong.

    `warmup` steps are traced and thrown away before `steps` steps are kept; `start` counts the starts of
    the ranks, from 0; a workload's file is looked for from `root`, by default the working directory.
    """

    schema: int = PLAN_SCHEMA
    ranks: int
    ranks_per_gpu: int = 1
    device: Literal["cuda", "cpu"] = "cuda"
    backend: str = "nccl"
    warmup: int = 1
    steps: int = 2
    start: int = 0
    root: str | None = None
    cases: list[Case]


def write_plan(plan: Plan, path: Path) -> None:
    """Write `plan` to `path` as indented JSON, making the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
