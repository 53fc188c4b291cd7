"""What is kept of a trace while it is read.

Memory grows with launches (16 bytes each), GPU rows (44 bytes) and calls (20), not with the file. CPU ops that no
rule asks for are dropped at once. Which plain ops may matter is known only from the rows around them; in Kineto's
own order (per thread by start) that is known when they come. In any other order `ordered` turns False and the plain
ops are collected by a second reading (`PlainOps`), so the order changes the time, not the answer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import gt
from typing import Any

from .. import kernels
from . import events, frames
from .events import Annotation, DriverLaunch, Id, Kernel, Launch, Memcpy, NoTime, Op, ThreadName
from .frames import Frames
from .rows import Calls, Descriptions, GpuRows, KnownRows

_NAMES_CACHED = 1 << 16
# Calls of the runtime that never put a row on the GPU; "Memcpy", "Memset" and "Launch" do.
_NO_LAUNCH = ("Event", "Stream", "Synchronize", "Get", "Func", "Occupancy", "Malloc", "Free", "Peek", "Pointer", "Host")
GRAPH, PLAIN = 2, 1


class Thread:
    """One CPU thread: its kept frames and its launches."""

    def __init__(self, pid: Id, tid: Id) -> None:
        self.pid = pid
        self.tid = tid
        self.autograd = False
        self.has_ops = False
        self.has_calls = False  # of the runtime, that launched nothing
        self.frames = Frames()
        self.launch_times = array("d")
        self.launch_correlations = array("q")
        self.graph_launches: set[int] = set()  # the rows of those that replay a CUDA graph
        self._launch_order: array[int] | range | None = None
        self.first: tuple[float, float] | None = None  # the first row's start and duration, in the order of the file
        # Where the reading stands: the newest row's start, and how far the open frames of two sorts reach.
        self.newest = float("-inf")
        self.newest_dur = 0.0
        self.evaluate_end = float("-inf")
        self.call_end = float("-inf")
        self.frames_end = float("-inf")  # the later of the two

    def is_followed_by(self, start: float, duration: float) -> bool:
        """Whether a row, read after all the others, keeps the order: by start, the longer first."""
        return start > self.newest or (start == self.newest and duration <= self.newest_dur)

    def launches_between(self, start: float, end: float) -> Sequence[int]:
        """The rows of the launches in a stretch of time, ends included."""
        times = self.launch_times
        if self._launch_order is None or len(self._launch_order) != len(times):
            self._launch_order = range(len(times))
            if any(map(gt, times, islice(times, 1, None))):
                self._launch_order = array("q", sorted(self._launch_order, key=times.__getitem__))
        order = self._launch_order
        if isinstance(order, range):
            return order[bisect_left(times, start) : bisect_right(times, end)]
        low = bisect_left(order, start, key=times.__getitem__)
        return order[low : bisect_right(order, end, key=times.__getitem__)]


_NO_THREAD = Thread(float("nan"), float("nan"))  # type: ignore[arg-type]  # like no id


class Store:
    """Everything the join needs, filled batch by batch with `add`."""

    def __init__(self) -> None:
        self.threads: dict[tuple[Id, Id], Thread] = {}
        self.names: list[str] = []
        self.calls = Calls()
        self.collective_kernels = KnownRows()
        self.other_kernels = GpuRows()
        self.copies = GpuRows()
        self.gpu_rows = 0
        self.without_time = 0
        self.amd = False
        self.ordered = True
        self.descriptions = Descriptions()
        self._name_numbers: dict[str, int] = {}
        self._op_flags: dict[str, int] = {}
        self._annotation_flags: dict[str, int] = {}
        self._launch_kinds: dict[str, int] = {}
        self._kernels: dict[str, kernels.Kernel | int] = {}
        self._plain_ops: set[str] = set()
        self._launching = _NO_THREAD

    def __getstate__(self) -> dict[str, Any]:
        """What `merge.extend` takes of a store that another process filled: all but the caches."""
        return {
            name: value for name, value in vars(self).items() if not name.startswith("_") and name != "descriptions"
        }

    def add(self, batch: Iterable[Any]) -> None:
        """Take one batch of the reader's events; their undecoded arguments need not live longer.

        Most rows are of no interest or plain ops outside every frame that is kept: those are done with right here.
        """
        take, plain_ops = _TAKE, self._plain_ops
        thread = _NO_THREAD
        for row in batch:
            kind = type(row)
            if kind is not Op:
                if kind in take:
                    take[kind](self, row)
                continue
            if thread.tid != row.tid or thread.pid != row.pid:
                thread = self.thread(row.pid, row.tid)
                thread.has_ops = True
                thread.first = thread.first or (row.ts, row.dur)
            start, duration = row.ts, row.dur
            if start <= thread.newest and (start < thread.newest or duration > thread.newest_dur):
                self.ordered = False
            thread.newest, thread.newest_dur = start, duration
            if row.name not in plain_ops:
                self._op(thread, row)
            elif start < thread.frames_end:
                self._plain_op_in_frame(thread, row)

    def thread(self, pid: Id, tid: Id) -> Thread:
        thread = self.threads.get((pid, tid))
        if thread is None:
            thread = self.threads[pid, tid] = Thread(pid, tid)
        return thread

    def number_of(self, name: str) -> int:
        """The number under which a name is kept; names are few, rows are many."""
        number = self._name_numbers.get(name)
        if number is None:
            number = self._name_numbers[name] = len(self.names)
            self.names.append(name)
        return number

    def flags_of(self, row: Op) -> int:
        flags: int = _cached(self._op_flags, row.name, frames.flags_of_op)
        return flags

    def _op(self, thread: Thread, row: Op) -> None:
        """Take an op that has flags by its name, or whose name is new."""
        flags = self.flags_of(row)
        if flags:
            self._flagged_op(thread, row, flags)
            return
        if len(self._plain_ops) >= _NAMES_CACHED:
            self._plain_ops.clear()
        self._plain_ops.add(row.name)
        if row.ts < thread.frames_end:
            self._plain_op_in_frame(thread, row)

    def _plain_op_in_frame(self, thread: Thread, row: Op) -> None:
        start = row.ts
        if start < thread.evaluate_end and is_forward_op(row):
            flags = frames.FORWARD_OP | (frames.INNER if start < thread.call_end else 0)
            thread.frames.append(start, start + row.dur, flags | frames.IS_OP, self.number_of(row.name))
        elif start < thread.call_end:
            thread.frames.append(start, start + row.dur, frames.INNER | frames.IS_OP, -1)

    def _flagged_op(self, thread: Thread, row: Op, flags: int) -> None:
        start, end = row.ts, row.ts + row.dur
        call = -1
        if flags & frames.EVALUATE:
            thread.evaluate_end = max(thread.evaluate_end, end)
        elif flags & frames.CALL:
            thread.call_end = max(thread.call_end, end)
            call = self._call(row)
            if is_forward_op(row):
                flags |= frames.FORWARD_OP
        thread.frames_end = max(thread.evaluate_end, thread.call_end)
        thread.frames.append(start, end, flags, self.number_of(row.name), call)

    def _call(self, row: Op) -> int:
        args = events.comm_args(row.args)
        coalesced = args.collective is not None and "coalesced" in args.collective
        tensors = events.input_tensors(row.args) if coalesced else 1
        self.calls.append(self.descriptions.one(args), tensors, events.external_id(args))
        return len(self.calls) - 1

    def _annotation(self, row: Annotation) -> None:
        thread = self.thread(row.pid, row.tid)
        thread.first = thread.first or (row.ts, row.dur)
        flags = _cached(self._annotation_flags, row.name, frames.flags_of_annotation)
        if row.ts <= thread.newest and (row.ts < thread.newest or row.dur > thread.newest_dur):
            self.ordered = False
        thread.newest, thread.newest_dur = row.ts, row.dur
        if flags:
            thread.frames.append(row.ts, row.ts + row.dur, flags, self.number_of(row.name))

    def _launch(self, row: Launch) -> None:
        thread = self._launching
        if thread.tid != row.tid or thread.pid != row.pid:
            thread = self._launching = self.thread(row.pid, row.tid)
        kind = self._launch_kinds.get(row.name)
        if kind is None:
            kind = _cached(self._launch_kinds, row.name, _launch_kind)
            self.amd = self.amd or row.name.startswith("hip")
        correlation = row.args.correlation
        if kind and 0 < correlation < _BIG:
            if kind == GRAPH:
                thread.graph_launches.add(len(thread.launch_times))
            thread.launch_times.append(row.ts)
            thread.launch_correlations.append(correlation)
        else:
            thread.has_calls = True

    def _no_time(self, row: NoTime) -> None:
        self.without_time += 1

    def _thread_name(self, row: ThreadName) -> None:
        if "pt_autograd_" in row.name:
            self.thread(row.pid, row.tid).autograd = True

    def _is_timed(self, row: Kernel) -> bool:
        """Count a GPU row; False where its times are beyond any clock, so that no sum can overflow."""
        self.gpu_rows += 1
        timed = -_LONGEST < row.ts < _LONGEST and -_LONGEST < row.dur < _LONGEST
        self.without_time += not timed
        return timed

    def _copy(self, row: Memcpy) -> None:
        if self._is_timed(row):
            self.copies.append(row, -1)

    def _kernel(self, row: Kernel) -> None:
        if not self._is_timed(row):
            return
        found = self._kernels.get(row.name)
        if found is None:
            found = _cached(self._kernels, row.name, self._known_or_number)
        if isinstance(found, int):
            self.other_kernels.append(row, found)
        elif found.collective:
            self.collective_kernels.append(row, self.number_of(row.name))
            self.collective_kernels.args.append(self.descriptions.one(row.args))

    def _known_or_number(self, name: str) -> kernels.Kernel | int:
        found = kernels.classify(name)
        return self.number_of(name) if found is None else found

    def drop_launches(self) -> None:
        """Forget launches and GPU rows, once they are joined."""
        self.collective_kernels, self.other_kernels, self.copies = KnownRows(), GpuRows(), GpuRows()
        for thread in self.threads.values():
            thread.launch_times, thread.launch_correlations = array("d"), array("q")

    def processes(self) -> list[Id]:
        """The processes that ran CPU ops or launched work, in the order of the file."""
        return list(
            dict.fromkeys(t.pid for t in self.threads.values() if t.has_ops or t.has_calls or len(t.launch_times))
        )


# Not in the Store: methods bound to it would make a cycle, and the collector is off while it is needed.
_TAKE: dict[type, Callable[[Store, Any], None]] = {
    Annotation: Store._annotation, Launch: Store._launch, DriverLaunch: Store._launch, Kernel: Store._kernel,
    Memcpy: Store._copy, NoTime: Store._no_time, ThreadName: Store._thread_name,
}  # fmt: skip


class PlainOps:
    """The second reading of a trace in unusual order: plain ops around the launches that matter."""

    def __init__(self, store: Store, times: dict[tuple[Id, Id], list[float]]) -> None:
        self._store = store
        self._times = {key: sorted(values) for key, values in times.items()}
        for thread in store.threads.values():
            thread.frames.drop_plain_ops()

    def add(self, batch: Iterable[Any]) -> None:
        for row in batch:
            if type(row) is not Op or self._store.flags_of(row):
                continue
            times = self._times.get((row.pid, row.tid))
            if not times:
                continue
            first = bisect_left(times, row.ts)
            end = row.ts + row.dur
            if first == len(times) or times[first] > end:
                continue
            flags = frames.IS_OP | frames.INNER | (frames.FORWARD_OP if is_forward_op(row) else 0)
            self._store.threads[row.pid, row.tid].frames.append(row.ts, end, flags, self._store.number_of(row.name))


def is_forward_op(row: Op) -> bool:
    """Whether the op records the graph: in backward that is a forward op run again."""
    args = events.op_args(row.args)
    return args.forward_thread == 0 and args.sequence is not None


_BIG = 1 << 63
_LONGEST = 1e18  # microseconds


def _launch_kind(name: str) -> int:
    if "GraphLaunch" in name:
        return GRAPH
    launches = "Launch" in name or "Mem" in name
    return 0 if not launches and any(word in name for word in _NO_LAUNCH) else PLAIN


def _cached(cache: dict[str, Any], name: str, find: Any) -> Any:
    if name not in cache:
        if len(cache) >= _NAMES_CACHED:
            cache.clear()
        cache[name] = find(name)
    return cache[name]
