"""Two runs compared by key: what was symmetric and no longer is, from counts a step alone, never from time."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from ..comparison import CHANGES, Change, Changed, ChangedExpectation, Comparison, Difference, PerStep
from ..model import Coverage, GatePhase, Kind, Phase
from ..result import Outcome


class Key(NamedTuple):
    """What is compared with what: of a check the case and phase, of a script or traces all but the case."""

    case: str | None
    phase: Phase
    kind: Kind | None = None
    group: str | None = None
    group_size: int | None = None
    dtype: str | None = None


class Counts(NamedTuple):
    """Launches a step over all ranks. Fractions, so that runs of another number of steps compare exactly."""

    symmetric: Fraction
    fallback: Fraction
    ineligible: Fraction
    unknown: Fraction

    @classmethod
    def of(cls, coverage: Coverage, steps: int) -> Counts:
        """The launches of `steps` steps, by the step."""
        amounts = (coverage.symmetric, coverage.fallback, coverage.ineligible, coverage.unknown)
        return cls(*(Fraction(amount.calls, max(1, steps)) for amount in amounts))

    def plus(self, other: Counts) -> Counts:
        """The sum of both."""
        return Counts(*(mine + yours for mine, yours in zip(self, other, strict=True)))

    def shown(self) -> PerStep:
        """As numbers for a report."""
        return PerStep(*(round(float(count), 3) for count in self))


class Entry(NamedTuple):
    """What a run has under a key: its counts, or None where it was not measured; `outcome` then says why."""

    counts: Counts | None
    outcome: Outcome | None = None


class Side(NamedTuple):
    """One of two runs, as far as it is compared.

    `machine` are the facts that must agree, `versions` those that are only told; a fact that isn't known is not there.
    `variables` are None where nothing recorded them. `expected` is what a suite expects, in a run of one.
    """

    file: str
    checks: bool
    entries: Mapping[Key, Entry]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    variables: Mapping[str, str] | None
    expected: Mapping[tuple[str, GatePhase], str]
    coverage: dict[GatePhase, Coverage]
    version: str | None = None
    created: str | None = None
    notes: tuple[str, ...] = ()


def compare(base: Side, head: Side) -> Comparison:
    """Hold `head` against `base`; both are runs of checks, or both of scripts or traces."""
    incomparable = [
        f"{name}: {base.machine[name]} in the baseline, {head.machine[name]} here"
        for name in base.machine
        if name in head.machine and base.machine[name] != head.machine[name]
    ]
    differences = [] if incomparable else _differences(base.entries, head.entries)
    both = base.entries.keys() & head.entries.keys()
    return Comparison(
        file=base.file,
        version=base.version,
        created=base.created,
        coverage=base.coverage,
        incomparable=incomparable,
        versions=_versions(base, head),
        expectations=_expectations(base, head),
        differences=differences,
        same=0 if incomparable else len(both) - len({_key(found) for found in differences} & both),
        notes=[*base.notes, *head.notes],
    )


def _key(found: Difference) -> Key:
    return Key(found.case, found.phase, found.kind, found.group, found.group_size, found.dtype)


def _differences(base: Mapping[Key, Entry], head: Mapping[Key, Entry]) -> list[Difference]:
    found = []
    for key in dict.fromkeys([*base, *head]):
        before, after = base.get(key), head.get(key)
        change = _change(key, base, head)
        if change is not None:
            found.append(
                Difference(
                    change=change,
                    before=before.counts.shown() if before and before.counts else None,
                    after=after.counts.shown() if after and after.counts else None,
                    sentence=_sentence(change, before, after),
                    **key._asdict(),
                )
            )
    return sorted(found, key=lambda difference: CHANGES.index(difference.change))


def _change(key: Key, base: Mapping[Key, Entry], head: Mapping[Key, Entry]) -> Change | None:
    """How the entry under `key` changed; None where it did not. What is regressed one way is improved the other way."""
    if _lost(key, base, head):
        return "regressed"
    if _lost(key, head, base):
        return "improved"
    before, after = base.get(key), head.get(key)
    if before is None:
        return "new"
    if after is None:
        return "removed"
    if before.counts == after.counts:
        return None
    return "unmeasured" if before.counts is None or after.counts is None else "changed"


def _lost(key: Key, base: Mapping[Key, Entry], head: Mapping[Key, Entry]) -> bool:
    """Whether what was symmetric in `base` is less so in `head`, or can no longer be told to be."""
    before, after = base.get(key), head.get(key)
    if before is None or before.counts is None or not before.counts.symmetric:
        return False
    if after is None:
        return _untold(key, base, head)
    if after.counts is None:
        # These fail nothing by themselves, so they would excuse it. An error or no measurement says more as it is.
        return after.outcome in ("incapable", "known")
    if after.counts.symmetric >= before.counts.symmetric:
        return False
    return any(now > then for now, then in zip(after.counts[1:], before.counts[1:], strict=True))


def _untold(key: Key, base: Mapping[Key, Entry], head: Mapping[Key, Entry]) -> bool:
    """Whether a key is gone since its collectives' phase can't be told any more, as in a trace that lost events."""
    if key.case is not None or key.phase == "unknown":
        return False
    unknown = key._replace(phase="unknown")
    return _calls(head.get(unknown)) > _calls(base.get(unknown))


def _calls(entry: Entry | None) -> Fraction:
    return sum(entry.counts, Fraction()) if entry is not None and entry.counts is not None else Fraction()


# ---- in words --------------------------------------------------------------------------------------------------------


def _sentence(change: Change, before: Entry | None, after: Entry | None) -> str:
    if before is None and after is not None:
        more = ", and the baseline could not tell its phase" if change == "improved" else ""
        return f"not in the baseline{more}; now {_told(after)}"
    if after is None and before is not None:
        how = "its phase can't be told any more" if change == "regressed" else "now gone"
        return f"{_told(before)} in the baseline; {how}"
    assert before is not None and after is not None
    return f"{_told(before)} in the baseline; now {_told(after)}"


def _told(entry: Entry) -> str:
    """`4 of 4 calls a step symmetric`; `2 of 4 calls a step symmetric, 2 fell back`."""
    if entry.counts is None:
        return f"not measured ({entry.outcome})" if entry.outcome else "not measured"
    symmetric, fallback, ineligible, unknown = (f"{round(float(count), 3):g}" for count in entry.counts)
    total = f"{round(float(_calls(entry)), 3):g}"
    others = [(fallback, "fell back"), (ineligible, "not eligible"), (unknown, "unknown")]
    parts = [f"{symmetric} of {total} calls a step symmetric", *(f"{n} {what}" for n, what in others if n != "0")]
    return ", ".join(parts) if total != "0" else "no calls"


def _versions(base: Side, head: Side) -> list[Changed]:
    """What changed beside the collectives: versions that both tell, and variables that one of them sets otherwise."""
    told = [(name, base.versions[name], head.versions[name]) for name in base.versions if name in head.versions]
    if base.variables is not None and head.variables is not None:
        then, now = base.variables, head.variables
        told += [(name, then.get(name, "not set"), now.get(name, "not set")) for name in sorted({*then, *now})]
    return [Changed(name, before, after) for name, before, after in told if before != after]


def _expectations(base: Side, head: Side) -> list[ChangedExpectation]:
    """What is expected otherwise of the cases that both have."""
    cases = {key.case for key in base.entries} & {key.case for key in head.entries}
    return [
        ChangedExpectation(case=case, phase=phase, before=before, after=after)
        for (case, phase) in dict.fromkeys([*base.expected, *head.expected])
        if case in cases and (before := base.expected.get((case, phase))) != (after := head.expected.get((case, phase)))
    ]
