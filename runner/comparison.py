"""How a run differs from its baseline: the part of a Result that is there where one was given."""

from __future__ import annotations

from typing import Literal

import msgspec

from .model import Coverage, GatePhase, Kind, Phase

Change = Literal["regressed", "improved", "changed", "unmeasured", "new", "removed"]
CHANGES: tuple[Change, ...] = ("regressed", "unmeasured", "removed", "changed", "new", "improved")
"""The worst first, as a report lists them."""


class PerStep(msgspec.Struct, frozen=True):
    """Launches a step, summed over all ranks, in the four groups of a Coverage."""

    symmetric: float
    fallback: float
    ineligible: float
    unknown: float


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One key that is not in both runs as it was.

    The key of a check is `case` and `phase`, with backward counting recomputation in; that of a script or of traces is
    `phase`, `kind`, `group`, `group_size` and `dtype`. `before` and `after` are None where the key is missing or was
    not measured. `sentence` says it in words, the key left out.
    """

    change: Change
    case: str | None = None
    phase: Phase
    kind: Kind | None = None
    group: str | None = None
    group_size: int | None = None
    dtype: str | None = None
    before: PerStep | None
    after: PerStep | None
    sentence: str

    @property
    def place(self) -> str:
        """The key in words: `all_reduce/static backward`, or `backward all_reduce bfloat16 in group dp of 8 ranks`."""
        if self.case is not None:
            return f"{self.case} {self.phase}"
        group = f"group {self.group}" if self.group is not None else "an unknown group"
        size = f" of {self.group_size} ranks" if self.group_size is not None else ""
        return f"{self.phase} {self.kind or 'unknown'} {self.dtype or 'of unknown dtype'} in {group}{size}"


class Changed(msgspec.Struct, frozen=True):
    """A fact beside the collectives that is another one now, such as PyTorch's version."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name} {self.before} → {self.after}"


class ChangedExpectation(msgspec.Struct, frozen=True, kw_only=True):
    """What the suite expects of a phase otherwise than the baseline's suite did; None where it isn't judged."""

    case: str
    phase: GatePhase
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return f"{self.case} {self.phase}: {self.before or 'not judged'} → {self.after or 'not judged'}"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A run held against its baseline, key by key, by what ran a step and never by time.

    `file`, `version` and `created` tell which result the baseline is (the latter two None for traces), `coverage` is
    its. Where the machines can't be compared, `incomparable` says why, a reason each, and there are no differences.
    `versions` are PyTorch, NCCL, driver and the like that changed beside what ran; `expectations` what the suite
    expects otherwise, which excuses nothing. `same` counts the keys without a difference; `notes` tell how was counted.
    """

    file: str
    version: str | None = None
    created: str | None = None
    coverage: dict[GatePhase, Coverage] = {}
    incomparable: list[str] = []
    versions: list[Changed] = []
    expectations: list[ChangedExpectation] = []
    differences: list[Difference] = []
    same: int = 0
    notes: list[str] = []

    @property
    def regressed(self) -> list[Difference]:
        """What was symmetric in the baseline and is less so now."""
        return [difference for difference in self.differences if difference.change == "regressed"]
