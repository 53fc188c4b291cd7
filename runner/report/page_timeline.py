"""A case's collectives as compact data, from which the page draws its timeline: each step, rank and collective.

What could not be seen at any sensible width is merged beforehand, so that a page stays small and quick however many
collectives a case has; what was merged is said in the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from ..judge.coverage import GATE_PHASES, group_of
from ..model import Collective
from ..result import CaseResult
from . import words
from .text import one_line

MOST_BLOCKS = 32_000
"""Of one case: more than any screen has places for; eight ranks with two thousand collectives each stay whole."""
MOST_BLOCKS_ON_PAGE = 256_000
_LEAST_BLOCKS = 1_000
_MOST_SORTS = 1_000
_FINEST, _COARSEST = 8192, 64
# Microseconds; a trace's clock starts in 1970 at the earliest, and no run lasts a thousand years.
_LATEST = 1e17


class _Block(msgspec.Struct, gc=False):
    """One collective, or `number` alike ones that stand for one place: microseconds, `sort` is an index."""

    rank: int
    sort: int
    start: float
    end: float
    number: int = 1


def timeline(case: CaseResult, *, cases: int = 1, hosts: int = 1) -> dict[str, Any] | None:
    """The data of one case's timeline, made of JSON's types; None where no collective was seen.

    `sorts` are the different sorts of collective, by the names in `fields`. Each of `steps` has `blocks`, five whole
    numbers each: rank (-1: unknown), index of the sort, start and duration in nanoseconds from the step's first
    collective, and how many collectives the block stands for. `cases` is how many share the page, `hosts` how many
    clocks the ranks have. `notes` say what a reader must know about what is drawn.
    """
    usable = [one for one in case.collectives if _has_time(one)]
    if not usable:
        return None
    sorts = _Sorts()
    steps: dict[int | None, list[_Block]] = {}
    for one in usable:
        rank = -1 if one.rank is None else one.rank
        block = _Block(rank, sorts.index(one), one.start, one.start + max(one.duration, 0.0))
        steps.setdefault(one.step, []).append(block)
    limit = max(_LEAST_BLOCKS, min(MOST_BLOCKS, MOST_BLOCKS_ON_PAGE // max(cases, 1)))
    numbers = sorted(steps, key=_unknown_last)
    aligned = [_put_to_zero(steps[step], hosts) for step in numbers]
    thinned = _thinned([steps[step] for step in numbers], sorts.alike, limit)
    return {
        "fields": _Sorts.FIELDS,
        "sorts": sorts.rows,
        "steps": [
            {"step": step, "blocks": [number for block in blocks for number in _numbers(block)]}
            for step, blocks in zip(numbers, thinned, strict=True)
        ],
        "causes": _causes(case),
        "notes": list(_notes(case, usable, thinned, any(aligned))),
    }


def _has_time(one: Collective) -> bool:
    return math.isfinite(one.duration) and abs(one.start) < _LATEST and one.duration < _LATEST


def _unknown_last(step: int | None) -> tuple[bool, int]:
    return (step is None, step or 0)


def _numbers(block: _Block) -> tuple[int, int, int, int, int]:
    start, end = round(block.start * 1000), round(block.end * 1000)
    return block.rank, block.sort, start, end - start, block.number


class _Sorts:
    """The different sorts of collective: what a block tells beside its place. `alike` numbers those that look alike."""

    FIELDS = (
        "phase", "kind", "mechanism", "state", "label", "kernel", "dtype", "bytes", "group", "size", "calls", "why"
    )  # fmt: skip

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.alike: list[int] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._looks: dict[tuple[object, ...], int] = {}

    def index(self, one: Collective) -> int:
        key = (
            one.phase, one.kind, one.mechanism, one.symmetric, one.algorithm, one.kernel, one.dtype, one.bytes,
            one.group, one.group_size, one.calls, one.why,
        )  # fmt: skip
        found = self._known.get(key)
        return found if found is not None else self._new(key, one)

    def _new(self, key: tuple[object, ...], one: Collective) -> int:
        row: list[Any] = [one.phase, one.kind, one.mechanism, group_of(one)]
        if len(self.rows) < _MOST_SORTS:
            row += [
                one_line(words.kernel_label(one.kernel, one.algorithm), 80),
                one_line(one.kernel or "copy engine", 400), _text(one.dtype), one.bytes,
                _text(one.group), one.group_size, one.calls, one_line(one.why, 400),
            ]  # fmt: skip
        else:
            key = ("coarse", *row)
            row += ["", "not told: this case has too many sorts of collective", *[None] * 4, 1, ""]
        index = self._known.setdefault(key, len(self.rows))
        if index == len(self.rows):
            look = (*row[:4], row[8])
            self.rows.append(row)
            self.alike.append(self._looks.setdefault(look, len(self._looks)))
        return index


def _text(name: str | None) -> str | None:
    return None if name is None else one_line(name, 80)


def _put_to_zero(blocks: list[_Block], hosts: int) -> bool:
    """Count the blocks' times from the step's first collective on, and sort them.

    Returns whether each rank has its own 0 instead. That is so where the ranks' clocks can't be compared: on several
    hosts, or where the ranks are further apart than a step is long.
    """
    firsts: dict[int, float] = {}
    lasts: dict[int, float] = {}
    for block in blocks:
        firsts[block.rank] = min(block.start, firsts.get(block.rank, block.start))
        lasts[block.rank] = max(block.end, lasts.get(block.rank, block.end))
    zero = min(firsts.values())
    longest = max(lasts[rank] - first for rank, first in firsts.items())
    own = len(firsts) > 1 and (hosts > 1 or max(firsts.values()) - zero > 10 * longest + 1e6)
    for block in blocks:
        by = firsts[block.rank] if own else zero
        block.start -= by
        block.end -= by
    blocks.sort(key=_start)
    return own


def _start(block: _Block) -> float:
    return block.start


def _thinned(steps: list[list[_Block]], alike: list[int], limit: int) -> list[list[_Block]]:
    """The steps with at most `limit` blocks in all: alike ones in one place are merged, as finely as that allows.

    `alike` has a number for each sort, the same for those that look alike. The blocks given are used up.
    """
    places = _FINEST
    while sum(map(len, steps)) > limit and places >= 1:
        steps = [_merged(blocks, alike, places) for blocks in steps]
        places //= 2
    whole = []
    for blocks in steps:
        whole.append(blocks[: max(limit, 0)])
        limit -= len(blocks)
    return whole


def _merged(blocks: list[_Block], alike: list[int], places: int) -> list[_Block]:
    """Alike blocks of a rank that fall into one of `places` places of the step as one; long ones stay as they are."""
    width = max((block.end for block in blocks), default=0.0) / places or 1.0
    longest = width if places > _COARSEST else math.inf
    found: list[_Block] = []
    at: dict[tuple[int, int, int], _Block] = {}
    for block in blocks:
        if block.end - block.start > longest:
            found.append(block)
            continue
        key = (block.rank, alike[block.sort], int(block.start / width))
        first = at.get(key)
        if first is None:
            at[key] = block
            found.append(block)
        else:
            first.end = max(first.end, block.end)
            first.number += block.number
    return found


def _causes(case: CaseResult) -> dict[str, str]:
    """Why collectives fell back, by the phase of a collective."""
    told: dict[str, str] = {}
    for phase in case.phases:
        if phase.cause is not None:
            why, mend = phase.cause.sentence.strip().removesuffix("."), phase.cause.mend.strip().removesuffix(".")
            sentence = one_line(f"{why}. Do this: {mend}.", 1200)
            told |= dict.fromkeys(GATE_PHASES[phase.phase], sentence)
    return told


def _notes(case: CaseResult, usable: list[Collective], steps: list[list[_Block]], aligned: bool) -> Iterable[str]:
    blocks = sum(map(len, steps))
    shown = sum(block.number for step in steps for block in step)
    if blocks < shown:
        yield (
            f"{shown:,} collectives are drawn as {blocks:,} blocks: alike ones of a rank that are too close to be "
            "told apart are one. result.json has each."
        )
    if lost := len(usable) - shown:
        yield f"{lost:,} more collectives are left out, the last ones; result.json has them."
    if lost := len(case.collectives) - len(usable):
        yield f"{lost:,} collectives without a usable time are left out."
    if aligned:
        yield "Each rank's first collective of a step is put at 0, as the ranks' clocks can't be compared."
