"""What a run of the user's own training script found, or its recorded traces: the part that only such a Result has."""

from __future__ import annotations

from typing import Literal

import msgspec

from .findings import Cause, KernelSeen
from .model import Coverage, Kind, Phase

Subject = Literal["suite", "script", "traces"]
"""What a Result is of; a script's and that of traces are compared by the same key."""


class ScriptRow(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one phase, kind, process group, group size and dtype.

    `coverage` and `kernels` are over all ranks and traced steps; `calls_per_step` counts launches over all ranks.
    """

    phase: Phase
    kind: Kind
    group: str | None
    group_size: int | None
    dtype: str | None
    calls_per_step: float
    coverage: Coverage
    kernels: list[KernelSeen]


class Fallen(msgspec.Struct, frozen=True, kw_only=True):
    """Alike collectives that fell back: as in their row, of one size, issued from one place.

    `bytes` is one call's, per rank; `calls_per_step` is over all ranks. `op` is the op that issued them, such as
    autograd's node in backward; `module` the path of the module it ran in. Each is None where the trace doesn't tell.
    """

    phase: Phase
    kind: Kind
    group: str | None
    group_size: int | None
    dtype: str | None
    bytes: int | None
    calls_per_step: float
    op: str | None
    module: str | None
    kernel: str | None
    cause: Cause | None


class ScriptResult(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a script: what was run, the collectives by row, and those that fell back, most bytes a step first.

    `steps` is how many steps were traced on each rank, `warmup` how many went before. `detail` is the traceback where
    the script raised. `more_fallen` counts the fallen entries that were left out. Where the traces were `recorded`
    before, nothing was run: `command` are their names then.
    """

    command: list[str]
    ranks: int
    steps: int
    warmup: int
    optimizer: str | None = None
    rows: list[ScriptRow] = []
    fallen: list[Fallen] = []
    more_fallen: int = 0
    trouble: str | None = None
    detail: str | None = None
    recorded: bool = False

    @property
    def subject(self) -> Literal["script", "traces"]:
        """What the collectives are of, as a report calls it."""
        return "traces" if self.recorded else "script"


def subject_of(script: ScriptResult | None) -> Subject:
    """What a Result with this part is of."""
    return "suite" if script is None else script.subject


def with_article(subject: Subject) -> str:
    """`a suite`, `a script`, `traces`."""
    return subject if subject == "traces" else f"a {subject}"
