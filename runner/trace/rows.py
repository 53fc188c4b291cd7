"""The many rows that are kept of a trace, as columns of numbers; what calls say of themselves is kept once.

A training step makes the same calls again and again: their descriptions are few, so that each is kept once, and a
row has 8 bytes for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from sys import intern

from .events import CommArgs, Id, Kernel, external_id

_DESCRIPTIONS_CACHED = 1 << 16


class Descriptions:
    """Gives for descriptions that say the same one and the same, without the ids, which differ."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], CommArgs] = {}

    def one(self, args: CommArgs) -> CommArgs:
        key = (args.collective, args.in_elements, args.out_elements, args.dtype, args.group_size, args.group)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _DESCRIPTIONS_CACHED:
                self._known.clear()
            known = self._known[key] = CommArgs(
                collective=_interned(args.collective),
                in_elements=args.in_elements,
                out_elements=args.out_elements,
                dtype=_interned(args.dtype),
                group_size=args.group_size,
                group=_interned(args.group),
            )
        return known


def _interned(word: str | None) -> str | None:
    return None if word is None else intern(word)


class GpuRows:
    """GPU rows as columns; these alone don't say whether they belong to a collective."""

    def __init__(self) -> None:
        self.starts = array("d")
        self.durations = array("d")
        self.correlations = array("q")
        self.externals = array("q")
        self.names = array("i")
        self.pids: list[Id] = []

    def append(self, row: Kernel, name: int) -> None:
        args = row.args
        self.starts.append(row.ts)
        self.durations.append(row.dur)
        _append_id(self.correlations, args.correlation)
        _append_id(self.externals, external_id(args))
        self.names.append(name)
        # Interned ints and strings: a list of references costs 8 bytes a row.
        self.pids.append(row.pid)

    def extend(self, rows: GpuRows, numbers: Sequence[int]) -> None:
        """Append rows whose names were numbered otherwise: `numbers` has theirs."""
        self.starts += rows.starts
        self.durations += rows.durations
        self.correlations += rows.correlations
        self.externals += rows.externals
        self.names.extend(numbers[name] for name in rows.names)
        self.pids += rows.pids

    def __len__(self) -> int:
        return len(self.starts)


class KnownRows(GpuRows):
    """The GPU rows that are collectives by their names, with what each says of its call."""

    def __init__(self) -> None:
        super().__init__()
        self.args: list[CommArgs] = []

    def extend_known(self, rows: KnownRows, numbers: Sequence[int], descriptions: Descriptions) -> None:
        self.extend(rows, numbers)
        self.args.extend(map(descriptions.one, rows.args))


class Calls:
    """The `record_param_comms` rows: what c10d said about each call, and how many tensors it took."""

    def __init__(self) -> None:
        self.args: list[CommArgs] = []
        self.tensors = array("i")
        self.externals = array("q")

    def append(self, args: CommArgs, tensors: int, external: int) -> None:
        self.args.append(args)
        self.tensors.append(min(tensors, 1 << 30))
        _append_id(self.externals, external)

    def extend(self, calls: Calls, descriptions: Descriptions) -> None:
        self.args.extend(map(descriptions.one, calls.args))
        self.tensors += calls.tensors
        self.externals += calls.externals

    def __len__(self) -> int:
        return len(self.args)


def _append_id(column: array[int], value: int) -> None:
    """An id beyond 64 bits is none: nothing can be joined by it."""
    try:
        column.append(value)
    except OverflowError:
        column.append(-1)
