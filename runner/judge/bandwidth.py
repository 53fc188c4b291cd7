"""Symmetric against general kernels by size: what the bandwidth workload measured, and from which size symmetric costs.

NCCL takes its symmetric kernel whenever it can, also where that is slower; so coverage alone can mislead. Neither
number gates anything: times vary, and what ran does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..result import BandwidthRow
from ..runfolder import Bandwidth

NOTICEABLE = 0.05
"""Differences below 5 % are called even: two runs of the same kernel differ by as much."""


def bandwidth_rows(measured: Iterable[Sequence[Bandwidth]]) -> list[BandwidthRow]:
    """One row a kind and size, from all ranks' measurements: a collective is as slow as its slowest rank."""
    slowest: dict[tuple[str, int], dict[str, Bandwidth]] = {}
    for rank in measured:
        for one in rank:
            pair = slowest.setdefault((one.kind, one.bytes), {})
            if one.mechanism not in pair or one.time_us > pair[one.mechanism].time_us:
                pair[one.mechanism] = one
    return [
        BandwidthRow(
            kind=kind,
            bytes=size,
            symmetric_us=pair["symmetric"].time_us,
            general_us=pair["general"].time_us,
            symmetric_gbps=pair["symmetric"].busbw_gbps,
            general_gbps=pair["general"].busbw_gbps,
        )
        for (kind, size), pair in sorted(slowest.items())
        if len(pair) == 2
    ]


def costs(row: BandwidthRow) -> bool:
    """Whether the symmetric kernel was noticeably slower at this size."""
    return row.symmetric_us > row.general_us * (1 + NOTICEABLE)


def pays(row: BandwidthRow) -> bool:
    """Whether the symmetric kernel was noticeably faster at this size."""
    return row.general_us > row.symmetric_us * (1 + NOTICEABLE)


def conclusion(kind: str, rows: Sequence[BandwidthRow]) -> str | None:
    """One sentence on one kind's rows: where symmetric pays, and from which size on it costs."""
    own = sorted((row for row in rows if row.kind == kind), key=lambda row: row.bytes)
    if not own:
        return None
    costing = [row for row in own if costs(row)]
    paying = [row for row in own if pays(row)]
    parts = []
    if paying:
        best = max(paying, key=lambda row: row.general_us / row.symmetric_us)
        parts.append(
            f"symmetric is faster at {_sizes(own, paying)} (up to {best.general_us / best.symmetric_us:.1f} times, "
            f"at {size_name(best.bytes)})"
        )
    if costing:
        worst = max(costing, key=lambda row: row.symmetric_us / row.general_us)
        lost = 1 - worst.general_us / worst.symmetric_us
        parts.append(
            f"it costs at {_sizes(own, costing)} (up to {lost:.0%} of the bus bandwidth, at {size_name(worst.bytes)}), "
            "where NCCL takes it all the same"
        )
    return f"{kind}: {'; '.join(parts) or 'symmetric and general are even at every size'}"


def _sizes(all_rows: Sequence[BandwidthRow], chosen: Sequence[BandwidthRow]) -> str:
    """The chosen sizes in words: "64 MiB and more" where they are the largest, else a list of ranges."""
    runs: list[list[BandwidthRow]] = []
    for row in all_rows:
        if row not in chosen:
            continue
        before = all_rows[all_rows.index(row) - 1] if all_rows.index(row) else None
        if runs and runs[-1][-1] is before:
            runs[-1].append(row)
        else:
            runs.append([row])
    words = []
    for run in runs:
        first, last = size_name(run[0].bytes), size_name(run[-1].bytes)
        if run[0] is all_rows[0] and run[-1] is all_rows[-1]:
            words.append("every size")
        elif run[-1] is all_rows[-1]:
            words.append(f"{first} and more")
        elif run[0] is all_rows[0]:
            words.append(f"{last} and less")
        else:
            words.append(first if len(run) == 1 else f"{first} to {last}")
    return ", ".join(words)


def size_name(size: int) -> str:
    """A size in bytes as people write it: 8388608 is "8 MiB"."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            value = size / unit
            return f"{value:.0f} {name}" if value.is_integer() else f"{value:.1f} {name}"
    return f"{size} B"
