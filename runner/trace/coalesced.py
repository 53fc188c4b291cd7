"""How many calls one kernel served: coalesced calls are described one by one and launched together.

Inside a coalescing manager each call writes its `record_param_comms` and launches nothing; the launch comes under
`nccl:coalesced` when the manager closes (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, endCoalescing).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise

from . import frames
from .calls import counts_as_call
from .frames import Frame
from .join import Place
from .store import Store, Thread


class Coalesced:
    """Counts the calls behind a coalesced launch, on demand: most traces have none."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.any = "nccl:coalesced" in store.names
        self._gpu_correlations: set[int] = set()
        self._of_thread: dict[int, _Calls] = {}

    def calls(self, place: Place | None, window: Frame | None, sharing: int) -> tuple[int, str | None]:
        """The calls that a kernel launched in `window` served, and a remark. `sharing` kernels came of that window."""
        if place is None or window is None or not window.flags & frames.COALESCED:
            return 1, None
        calls = self._of_thread.get(id(place.thread))
        if calls is None:
            calls = self._of_thread[id(place.thread)] = self._calls(place.thread)
        tensors = calls.before(window)
        if sharing > 1:
            return 1, f"one of {sharing} kernels for {tensors} coalesced calls"
        return max(tensors, 1), f"{tensors} coalesced calls in one kernel"

    def _calls(self, thread: Thread) -> _Calls:
        """The thread's calls that launched nothing."""
        calls = self._store.calls
        found = [
            (frame.start, frame.end, calls.tensors[frame.call])
            for frame in thread.frames.with_flags(frames.COMM)
            if counts_as_call(calls.args[frame.call]) and not self._launched(thread, frame)
        ]
        return _Calls(found, sorted(frame.end for frame in thread.frames.with_flags(frames.COALESCED)))

    def _launched(self, thread: Thread, frame: Frame) -> bool:
        """Whether any GPU row came of the call itself."""
        if not self._gpu_correlations:
            store = self._store
            self._gpu_correlations = set().union(
                *(rows.correlations for rows in (store.collective_kernels, store.other_kernels, store.copies))
            )
        launches = thread.launches_between(frame.start, frame.end)
        return any(thread.launch_correlations[row] in self._gpu_correlations for row in launches)


class _Calls:
    """Calls of one thread that launched nothing: start, end and tensors of each, in order of their start."""

    def __init__(self, calls: list[tuple[float, float, int]], window_ends: list[float]) -> None:
        self._calls = calls
        self._window_ends = window_ends
        self._starts = [start for start, _, _ in calls]
        self._ends = [end for _, end, _ in calls]
        self._sums = [0, *accumulate(tensors for _, _, tensors in calls)]
        # As calls are: one after the other. Times that are damaged, or calls in one another, are looked at one by one.
        self._in_order = all(one <= other for ends in (self._ends, self._starts) for one, other in pairwise(ends))

    def before(self, window: Frame) -> int:
        """The tensors of the calls between the window before and this one."""
        at = bisect_right(self._window_ends, window.start)
        since = self._window_ends[at - 1] if at else float("-inf")
        if not self._in_order:
            return sum(tensors for start, end, tensors in self._calls if since <= start and end <= window.start)
        first = bisect_left(self._starts, since)
        return self._sums[max(first, bisect_right(self._ends, window.start))] - self._sums[first]
