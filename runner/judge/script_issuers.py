"""Who issued a collective: the op around its launch, and the module that ran.

In forward both stand around the launch on its thread. In backward autograd's node does, which has the sequence number
of the forward op that made it; the module is the one around that op.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..model import Collective
from ..trace.events import Annotation, DriverLaunch, Id, Kernel, Launch, Op, op_args
from ..trace.reader import TraceReader

MODULE_MARK = "nn.Module #"
"""The windows that checks/ puts around modules: a number follows, which the rank's record resolves."""

_ENGINE = "autograd::engine::evaluate_function: "
# Around every call of c10d, and so no answer to who called it.
_CARRIERS = ("record_param_comms", "c10d::", "nccl:", "gloo:", "ProfilerStep#", MODULE_MARK)
_MOST_FORWARD_OPS = 2_000_000

Thread = tuple[Id, Id]


class Issuer(NamedTuple):
    """The op and the module path that issued a collective; each None where the trace doesn't tell."""

    op: str | None
    module: str | None


class _Around(NamedTuple):
    """An op or window around a launch."""

    start: float
    name: str
    sequence: int | None


class _Marks:
    """The modules' windows of every thread, by start."""

    def __init__(self) -> None:
        self._windows: dict[Thread, list[tuple[float, float, int]]] = {}
        self._sorted = False

    def add(self, row: Annotation) -> None:
        number = row.name.removeprefix(MODULE_MARK)
        if number.isascii() and number.isdigit():
            self._windows.setdefault((row.pid, row.tid), []).append((row.ts, row.ts + row.dur, int(number[:18])))

    def innermost(self, thread: Thread, time: float) -> int | None:
        """The module whose window holds `time`, the one that began last."""
        if not self._sorted:
            for windows in self._windows.values():
                windows.sort()
            self._sorted = True
        windows = self._windows.get(thread, [])
        for at in range(bisect_right(windows, time, key=lambda window: window[0]) - 1, -1, -1):
            if windows[at][1] >= time:
                return windows[at][2]
        return None


def issuers(path: Path, rows: Sequence[Collective], modules: Sequence[str]) -> list[Issuer]:
    """Return the issuer of each of `rows`, collectives of the trace at `path`; `modules` are paths by number.

    Only those that are not symmetric are looked for. The trace is read three times, since the launch of a kernel is
    known only from its row, and what is around a launch only from the launch.
    """
    wanted = {(row.start, row.kernel): at for at, row in enumerate(rows) if not row.symmetric and row.kernel}
    found = [Issuer(None, None)] * len(rows)
    if not wanted:
        return found
    correlations: dict[int, int] = {}
    marks, forward = _Marks(), _ForwardOps()
    for row in _rows(path):
        if isinstance(row, Kernel):
            if (row.ts, row.name) in wanted and row.args.correlation > 0:
                correlations[row.args.correlation] = wanted[row.ts, row.name]
        elif isinstance(row, Annotation):
            marks.add(row)
        elif modules and isinstance(row, Op):
            forward.add(row)
    launches = _launches(path, correlations)
    for at, (thread, time, around) in _around(path, launches).items():
        found[at] = Issuer(_op(around), _module(thread, time, around, marks, forward, modules))
    return found


def _rows(path: Path) -> Iterator[Any]:
    for batch in TraceReader(path).batches():
        yield from batch


def _launches(path: Path, correlations: dict[int, int]) -> dict[int, tuple[Thread, float]]:
    """The launch of each collective, by its place in the list: thread and time."""
    launches: dict[int, tuple[Thread, float]] = {}
    for row in _rows(path):
        if isinstance(row, (Launch, DriverLaunch)) and row.args.correlation in correlations:
            launches.setdefault(correlations[row.args.correlation], ((row.pid, row.tid), row.ts))
    return launches


def _around(path: Path, launches: dict[int, tuple[Thread, float]]) -> dict[int, tuple[Thread, float, list[_Around]]]:
    """What is around each launch on its thread, outermost first."""
    found: dict[int, tuple[Thread, float, list[_Around]]] = {}
    times: dict[Thread, list[tuple[float, int]]] = {}
    for at, (thread, time) in launches.items():
        found[at] = (thread, time, [])
        times.setdefault(thread, []).append((time, at))
    for own in times.values():
        own.sort()
    for row in _rows(path):
        if not isinstance(row, Op) or (row.pid, row.tid) not in times:
            continue
        own = times[row.pid, row.tid]
        for time, at in own[bisect_left(own, (row.ts, -1)) :]:
            if time > row.ts + row.dur:
                break
            sequence = op_args(row.args).sequence if row.name.startswith(_ENGINE) else None
            found[at][2].append(_Around(row.ts, row.name, sequence))
    for _, _, around in found.values():
        around.sort(key=lambda one: one.start)
    return found


def _op(around: Sequence[_Around]) -> str | None:
    """The innermost op or window that says more than that a collective was called; else the call's own name."""
    names = [one.name.removeprefix(_ENGINE) for one in reversed(around)]
    telling = [name for name in names if not name.startswith(_CARRIERS)]
    calls = [name for name in names if name.startswith("c10d::")]
    return next(iter(telling + calls), None)


def _module(
    thread: Thread, time: float, around: Sequence[_Around], marks: _Marks, forward: _ForwardOps, modules: Sequence[str]
) -> str | None:
    number = marks.innermost(thread, time)
    node = next((one for one in reversed(around) if one.sequence is not None), None)
    if number is None and node is not None and node.sequence is not None:
        place = forward.last_before(node.sequence, node.start)
        number = marks.innermost(*place) if place is not None else None
    return modules[number] if number is not None and number < len(modules) else None


class _ForwardOps:
    """Where the ops of forward began, by their sequence number. Of several with one, the last made the node."""

    def __init__(self) -> None:
        self._places: dict[int, list[tuple[float, Thread]]] = {}
        self._count = 0

    def add(self, row: Op) -> None:
        args = op_args(row.args)
        if args.sequence is None or args.forward_thread != 0 or self._count >= _MOST_FORWARD_OPS:
            return
        self._count += 1
        self._places.setdefault(args.sequence, []).append((row.ts, (row.pid, row.tid)))

    def last_before(self, sequence: int, time: float) -> tuple[Thread, float] | None:
        """Thread and time of the last op with this number that began before `time`."""
        before = max((place for place in self._places.get(sequence, []) if place[0] < time), default=None, key=_start)
        return None if before is None else (before[1], before[0])


def _start(place: tuple[float, Thread]) -> float:
    return place[0]
