"""Whether a file that breaks off can have lost frames around the launches that it still has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import frames
from .events import Id, Launch, Op


class _Seen:
    """What was read of one thread: the newest launch, and how far its backward frames reach."""

    def __init__(self) -> None:
        self.newest_launch = float("-inf")
        self.has_ops = False
        self.backward_end: float | None = None


def ops_come_first(batches: Iterable[list[Any]]) -> bool:
    """Whether each launch follows, in the file, the ops that began before it on its thread.

    False, too, where a launch lies behind backward frames of its thread: it may be a final callback of autograd's
    thread, whose name comes last in a file.
    """
    threads: dict[tuple[Id, Id], _Seen] = {}
    for batch in batches:
        for row in batch:
            if isinstance(row, Launch):  # or DriverLaunch, its subclass, as Annotation is one of Op
                seen = threads.get((row.pid, row.tid))
                if seen is None or not seen.has_ops:
                    return False
                if seen.backward_end is not None and row.ts > seen.backward_end:
                    return False
                seen.newest_launch = max(seen.newest_launch, row.ts)
            elif isinstance(row, Op):
                seen = threads.setdefault((row.pid, row.tid), _Seen())
                if row.ts <= seen.newest_launch:
                    return False
                seen.has_ops = True
                if frames.flags_of_op(row.name) & frames.EVALUATE:
                    seen.backward_end = max(seen.backward_end or 0.0, row.ts + row.dur)
    return True
