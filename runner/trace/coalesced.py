"""How many calls one kernel served: coalesced calls are described one by one and launched together.

Inside a coalescing manager each call writes its `record_param_comms` and launches nothing; the launch comes under
`nccl:coalesced` when the manager closes (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, endCoalescing).
"""

from __future__ import annotations

from bisect import bisect_right

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
        self._gpu_correlations: set[int] | None = None
        self._ends: dict[int, list[float]] = {}

    def calls(self, place: Place | None, window: Frame | None, sharing: int) -> tuple[int, str | None]:
        """The calls that a kernel launched in `window` served, and a remark. `sharing` kernels came of that window."""
        if place is None or window is None or not window.flags & frames.COALESCED:
            return 1, None
        tensors = self._tensors(place.thread, window)
        if sharing > 1:
            return 1, f"one of {sharing} kernels for {tensors} coalesced calls"
        return max(tensors, 1), f"{tensors} coalesced calls in one kernel"

    def _tensors(self, thread: Thread, window: Frame) -> int:
        """The tensors of the calls on the thread between the window before and this one that launched nothing."""
        ends = self._window_ends(thread)
        at = bisect_right(ends, window.start)
        since = ends[at - 1] if at else float("-inf")
        tensors = 0
        for frame in thread.frames.between(frames.COMM, since, window.start):
            if frame.end <= window.start and not self._launched(thread, frame):
                calls = self._store.calls
                tensors += calls.tensors[frame.call] if counts_as_call(calls.args[frame.call]) else 0
        return tensors

    def _window_ends(self, thread: Thread) -> list[float]:
        ends = self._ends.get(id(thread))
        if ends is None:
            ends = self._ends[id(thread)] = sorted(frame.end for frame in thread.frames.with_flags(frames.COALESCED))
        return ends

    def _launched(self, thread: Thread, frame: Frame) -> bool:
        """Whether any GPU row came of the call itself."""
        if self._gpu_correlations is None:
            store = self._store
            self._gpu_correlations = set().union(
                *(rows.correlations for rows in (store.collective_kernels, store.other_kernels, store.copies))
            )
        launches = thread.launches_between(frame.start, frame.end)
        return any(thread.launch_correlations[row] in self._gpu_correlations for row in launches)
