"""The phase of a launch, by what was around it on its thread. The thread itself tells nothing.

Why not the thread: autograd runs backward on the calling thread for CPU graphs, under
`set_multithreading_enabled(False)`, and wherever the engine reuses the caller (pytorch#192004).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import compress
from typing import NamedTuple

from ..model import Phase
from . import frames
from .events import Id
from .frames import Frame, Frames
from .join import Place
from .store import Store


class Step(NamedTuple):
    """One `ProfilerStep#N` window, in microseconds; `backward_end` is the last backward frame's end, or None."""

    number: int
    start: float
    end: float
    backward_end: float | None


class PhaseRules:
    """The rules for one trace. `events_missing`: in a file that lost events, absence of a frame proves nothing."""

    def __init__(self, store: Store, *, events_missing: bool) -> None:
        self._names = store.names
        self._events_missing = events_missing
        self._steps = _steps(store)
        self._with_ops = {thread.pid for thread in store.threads.values() if thread.has_ops}

    def step(self, place: Place | None) -> Step | None:
        """The profiler step around a launch, on whatever thread."""
        if place is None:
            return None
        steps = self._steps.get(place.thread.pid, [])
        at = bisect_right(steps, place.time, key=lambda step: step.start) - 1
        return steps[at] if at >= 0 and place.time < steps[at].end else None

    def phase(self, place: Place | None, stack: tuple[Frame, ...]) -> tuple[Phase, str]:
        """The phase and the evidence for it, in words. The first rule that applies wins."""
        if place is None:
            return "unknown", "no launch found for it"
        return (
            self._by_engine(stack)
            or self._by_final_callback(place, stack)
            or self._by_window(stack)
            or self._by_absence(place)
        )

    def _by_engine(self, stack: tuple[Frame, ...]) -> tuple[Phase, str] | None:
        below: list[Frame] = []
        for frame in reversed(stack):
            if frame.flags & frames.EVALUATE:
                again = [op for op in below if op.flags & frames.FORWARD_OP]
                node = self._names[frame.name]
                if again:
                    return "recompute", f"under {node}, in {self._name(again[0])}, a forward op run again"
                return "backward", f"under {node}"
            below.append(frame)
        return None

    def _by_final_callback(self, place: Place, stack: tuple[Frame, ...]) -> tuple[Phase, str] | None:
        for frame in stack:
            if frame.flags & frames.CALLBACK:
                return "backward", f"in {self._names[frame.name]}, a final callback of autograd"
        if place.thread.autograd:
            return "backward", "on autograd's thread outside every node: a final callback of autograd"
        return None

    def _by_window(self, stack: tuple[Frame, ...]) -> tuple[Phase, str] | None:
        for frame in reversed(stack):
            if frame.flags & frames.OPTIMIZER:
                return "optimizer", f"in {self._names[frame.name]}"
        for frame in reversed(stack):
            for flag, phase in _WINDOW_PHASES:
                if frame.flags & flag:
                    return phase, f"in the window {self._names[frame.name]}"
        return None

    def _by_absence(self, place: Place) -> tuple[Phase, str]:
        if place.graph:
            return "unknown", "replay of a CUDA graph outside any window that names its phase"
        if place.thread.pid not in self._with_ops:
            return "unknown", "launch found, but its process has no CPU ops in the trace"
        if self._events_missing:
            return "unknown", "no backward frame around the launch, but the file lost events"
        step = self.step(place)
        if step is not None and step.backward_end is not None and place.time >= step.backward_end:
            return "optimizer", f"after the last backward frame of ProfilerStep#{step.number}"
        return "forward", "no backward frame around the launch"

    def _name(self, frame: Frame) -> str:
        return self._names[frame.name] if frame.name >= 0 else "an op"


_WINDOW_PHASES: tuple[tuple[int, Phase], ...] = (
    (frames.NAMES_FORWARD, "forward"),
    (frames.NAMES_BACKWARD, "backward"),
    (frames.NAMES_OPTIMIZER, "optimizer"),
)


def _steps(store: Store) -> dict[Id, list[Step]]:
    """Each process's steps in order of time. The threads' rows must be sorted."""
    windows: dict[Id, list[tuple[float, float, int]]] = {}
    backward: dict[Id, list[_Backward]] = {}
    for thread in store.threads.values():
        backward.setdefault(thread.pid, []).append(_Backward(thread.frames))
        for frame in thread.frames.with_flags(frames.STEP):
            number = store.names[frame.name].removeprefix("ProfilerStep#")
            if number.isascii() and number.isdigit():
                windows.setdefault(thread.pid, []).append((frame.start, frame.end, int(number[:18])))
    return {
        pid: [Step(number, start, end, _last_end(backward[pid], start, end)) for start, end, number in sorted(rows)]
        for pid, rows in windows.items()
    }


class _Backward:
    """When the backward frames of one thread begin and end, as columns: a long trace has very many."""

    def __init__(self, rows: Frames) -> None:
        found = [flags & frames.EVALUATE for flags in rows.flags]
        self._starts = array("d", compress(rows.starts, found))
        self._ends = array("d", compress(rows.ends, found))

    def ends(self, start: float, end: float) -> array[float]:
        """The ends of those that begin from `start` on and before `end`."""
        return self._ends[bisect_left(self._starts, start) : bisect_left(self._starts, end)]


def _last_end(backward: list[_Backward], start: float, end: float) -> float | None:
    return max((frame_end for thread in backward for frame_end in thread.ends(start, end)), default=None)
