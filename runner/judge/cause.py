"""Why collectives fell back: the first cause that the evidence supports, and what to do about it.

Each cause is a row of `RULES` with a small pure function, in causes_call.py, causes_machine.py or causes_memory.py;
versions are compared with the tables of causes_facts.py. Where the evidence does not explain a fallback there is no
cause, and the reports say so. docs/causes.md is made from the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..model import Collective
from ..result import Cause, Certainty
from . import causes_call, causes_machine, causes_memory
from .causes_evidence import Call, Evidence, Found, Rule, buffers_of
from .coverage import is_eligible

__all__ = ["RULES", "Evidence", "causes", "find_cause"]

RULES: tuple[Rule, ...] = (
    causes_call.ONE_RANK,
    causes_call.KIND,
    causes_call.DTYPE,
    causes_call.OP,
    causes_machine.TOO_OLD,
    causes_machine.DOMAINS,
    causes_machine.NVLINK,
    causes_machine.PEERS,
    causes_machine.SWITCHED_OFF,
    causes_machine.ALGORITHM,
    causes_machine.UNKNOWN_NAME,
    causes_machine.UNSUPPORTED,
    causes_memory.LIBRARY,
    causes_memory.NOT_SYMMETRIC,
    causes_memory.AUTOGRAD,
    causes_memory.ONE_SIDE,
    causes_memory.OUTSIDE,
    causes_memory.NOT_REGISTERED,
    causes_memory.LATE,
    causes_call.COALESCED,
    causes_call.SIZE,
    causes_call.QUIRK,
    causes_memory.SMALL_WITH_ONE_SIDE,
    causes_memory.CONTRAST,
    causes_machine.KERNEL_CHOICE,
)
"""Every cause, in the order in which they are looked for."""

MOST_EVIDENCE = 6
_LESS_SURE: tuple[Certainty, ...] = ("certain", "likely", "possible")


def find_cause(evidence: Evidence) -> Cause | None:
    """The cause of most of the phase's fallbacks, or None where the evidence explains none.

    A collective that no NCCL runs symmetric is asked for only where nothing else fell back.
    """
    eligible = [row for row in evidence.collectives if is_eligible(row.kind, row.dtype)]
    found = causes(evidence._replace(collectives=eligible or evidence.collectives))
    return found[0][0] if found else None


def causes(evidence: Evidence) -> list[tuple[Cause, int]]:
    """Every cause of the phase's fallbacks, and how many collectives each explains; most first.

    Each collective counts for the first cause that holds for it. One that has none counts nowhere.
    """
    explained: dict[str, list[tuple[Call, Found]]] = {}
    for call in _sorts(evidence):
        for rule in RULES:
            held = rule.look(call, evidence)
            if held is not None:
                explained.setdefault(rule.name, []).append((call, held))
                break
    rules = {rule.name: rule for rule in RULES}
    total = len(evidence.collectives)
    counted = [
        (_cause(rules[name], held, total), sum(call.times for call, _ in held)) for name, held in explained.items()
    ]
    return sorted(counted, key=lambda item: -item[1])


def _sorts(evidence: Evidence) -> list[Call]:
    """The collectives by sort, most first."""
    first: dict[tuple[object, ...], Collective] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for row in evidence.collectives:
        key = (row.kind, row.dtype, row.bytes, row.group, row.group_size, row.calls > 1)
        first.setdefault(key, row)
        counts[key] += 1
    return [_call(first[key], count, evidence) for key, count in counts.most_common()]


def _call(row: Collective, count: int, evidence: Evidence) -> Call:
    return Call(
        kind=row.kind,
        dtype=row.dtype,
        bytes=row.bytes,
        group=row.group,
        group_size=row.group_size,
        coalesced=row.calls > 1,
        times=count,
        buffers=buffers_of(row, evidence.buffers),
    )


def _cause(rule: Rule, held: Sequence[tuple[Call, Found]], total: int) -> Cause:
    """One cause of what was found for each sort of call: told by the most frequent, as sure as the least sure."""
    main = held[0][1]
    shown = _unique(line for _, found in held for line in found.evidence)
    explained = sum(call.times for call, _ in held)
    if explained < total:
        shown = [f"it explains {explained} of the {total} collectives", *shown]
    return Cause(
        name=rule.name,
        sentence=main.sentence,
        certainty=max((found.certainty for _, found in held), key=_LESS_SURE.index),
        evidence=shown[:MOST_EVIDENCE],
        mend=main.mend or rule.mend,
    )


def _unique(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))
