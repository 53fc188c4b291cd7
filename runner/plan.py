"""The plan of a run: what the ranks are to do, as written to plan.json for them to read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

PLAN_SCHEMA = 1
DEFAULT_CONFIGURATION = "default"
"""The launch configuration that changes nothing."""

LauncherName = Literal["torchrun", "slurm"]
"""What starts the ranks: torchrun on this machine, or Slurm's srun on the hosts of an allocation."""
SymmMemBackend = Literal["CUDA", "NVSHMEM", "NCCL"]


class Configuration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A launch configuration: what a start of the ranks has beyond the caller's environment.

    `env` goes before what the caller has set; `symm_mem_backend` is what
    `torch.distributed._symmetric_memory.set_backend` gets before the first allocation, None for torch's own choice.
    """

    env: dict[str, str] = {}
    symm_mem_backend: SymmMemBackend | None = None

    def __str__(self) -> str:
        told = [f"{name}={value}" for name, value in sorted(self.env.items())]
        if self.symm_mem_backend is not None:
            told.append(f"symm_mem backend {self.symm_mem_backend}")
        return ", ".join(told) or "nothing changed"


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One point of a suite's matrix.

    `folder` is relative to the run folder, `workload` is a name in checks/workloads or
    `path/to/file.py:function`, `axes` holds all axes (`size` in bytes per rank), `deadline` is in seconds.
    `needs` are a suite's `only-if`: the ranks compare them with the facts they have recorded.
    """

    id: str
    folder: str
    workload: str
    axes: dict[str, str | int]
    deadline: float
    configuration: str = DEFAULT_CONFIGURATION
    needs: dict[str, str | bool] = {}


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cases of a run; each launch configuration's run in one process group where nothing goes wrong.

    `warmup` steps are traced and thrown away before `steps` steps are kept; `start` counts the starts of
    the ranks, from 0; a workload's file is looked for from `root`, by default the working directory. A start's
    own plan holds one configuration, and no entry in `configurations` where that is the default. With `witness` NCCL
    writes its own log beside a start's plan.
    """

    schema: int = PLAN_SCHEMA
    ranks: int
    ranks_per_gpu: int = 1
    launcher: LauncherName = "torchrun"
    device: Literal["cuda", "cpu"] = "cuda"
    backend: str = "nccl"
    warmup: int = 1
    steps: int = 2
    start: int = 0
    root: str | None = None
    witness: bool = False
    configurations: dict[str, Configuration] = {}
    cases: list[Case]

    @property
    def configuration(self) -> Configuration:
        """What the plan's first case runs in; of a start's own plan that holds for all of its cases."""
        return self.configurations.get(self.cases[0].configuration, Configuration()) if self.cases else Configuration()

    @property
    def variables(self) -> dict[str, str]:
        """All variables that a launch configuration of the plan sets."""
        return {name: value for one in self.configurations.values() for name, value in one.env.items()}

    def part(self, cases: Sequence[Case], start: int) -> Plan:
        """The plan of a start of the ranks: of `cases`, those that share the first one's launch configuration."""
        name = cases[0].configuration
        own = {name: self.configurations[name]} if name in self.configurations else {}
        kept = [case for case in cases if case.configuration == name]
        return msgspec.structs.replace(self, cases=kept, start=start, configurations=own)

    def in_order_of_running(self) -> list[Case]:
        """The cases configuration by configuration, in the order in which the suite first names each."""
        names = list(dict.fromkeys(case.configuration for case in self.cases))
        return sorted(self.cases, key=lambda case: names.index(case.configuration))


def write_plan(plan: Plan, path: Path) -> None:
    """Write `plan` to `path` as indented JSON, making the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
