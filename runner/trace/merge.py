"""Two stores, filled from two parts of one list of events, made one."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import TypeVar

from .frames import Frames
from .rows import Calls, GpuRows
from .store import Store, Thread

Columns = TypeVar("Columns", Frames, Calls, GpuRows)

_AT_ONCE = 1 << 16
"""The rows of one piece: as many as need little memory on their way."""


def fits(store: Store, later: Store) -> bool:
    """Whether `later`, filled from the events behind those of `store`, lacks nothing that one filling would have kept.

    Which plain ops are kept depends on the frames around them: at the place of the cut none may be open, on the
    threads that go on behind it. In a file in unusual order nothing depends on it: those ops are read once more.
    """
    if not _ordered(store, later):
        return True
    return all(first[0] >= own.frames_end for own, first in _going_on(store, later))


def extend(store: Store, pieces: Iterable[Store]) -> None:
    """Put what `pieces` hold, in their order, behind what `store` holds."""
    numbers: list[int] = []
    calls = len(store.calls)
    for number, later in enumerate(pieces):
        if number == 0:
            store.ordered = _ordered(store, later)
            # A name's number is its place there, and -1, no name, stays what it is.
            numbers = [*map(store.number_of, later.names), -1]
        for key, thread in later.threads.items():
            _extend_thread(store.threads.setdefault(key, Thread(*key)), thread, numbers, calls)
        store.calls.extend(later.calls, store.descriptions)
        store.collective_kernels.extend_known(later.collective_kernels, numbers, store.descriptions)
        store.other_kernels.extend(later.other_kernels, numbers)
        store.copies.extend(later.copies, numbers)
        store.gpu_rows += later.gpu_rows
        store.without_time += later.without_time
        store.amd = store.amd or later.amd


def pieces(store: Store) -> Iterator[Store]:
    """Take a store apart into small ones, which `extend` puts together again; `fits` asks the first.

    It is emptied on the way, so that what one process sends and another receives is not held by both for long.
    """
    head = Store()
    head.names, head.ordered, head.amd = store.names, store.ordered, store.amd
    head.gpu_rows, head.without_time = store.gpu_rows, store.without_time
    head.threads = {key: _without_rows(thread) for key, thread in store.threads.items()}
    yield head
    piece, rows = Store(), 0
    while store.threads:  # few with many rows, or many with few
        key, thread = store.threads.popitem()
        size = max(len(thread.frames), len(thread.launch_times))
        for begin in range(0, size, _AT_ONCE):
            piece.threads[key] = _part_of_thread(thread, begin, begin + _AT_ONCE)
            rows += min(size - begin, _AT_ONCE)
            if rows >= _AT_ONCE:
                yield piece
                piece, rows = Store(), 0
    yield piece
    for name in ("calls", "collective_kernels", "other_kernels", "copies"):
        columns = getattr(store, name)
        setattr(store, name, None)
        for begin in range(0, len(columns), _AT_ONCE):
            piece = Store()
            setattr(piece, name, _part(columns, begin, begin + _AT_ONCE))
            yield piece


def _part(columns: Columns, begin: int, end: int) -> Columns:
    """Some of the rows of columns: each of its attributes is one."""
    part = type(columns)()
    for name, column in vars(columns).items():
        setattr(part, name, column[begin:end])
    return part


def _without_rows(thread: Thread) -> Thread:
    head = Thread(thread.pid, thread.tid)
    head.autograd, head.has_ops, head.has_calls, head.first = (
        thread.autograd, thread.has_ops, thread.has_calls, thread.first,
    )  # fmt: skip
    return head


def _part_of_thread(thread: Thread, begin: int, end: int) -> Thread:
    part = Thread(thread.pid, thread.tid)
    part.frames = _part(thread.frames, begin, end)
    part.launch_times = thread.launch_times[begin:end]
    part.launch_correlations = thread.launch_correlations[begin:end]
    part.graph_launches = {row - begin for row in thread.graph_launches if begin <= row < end}
    return part


def _going_on(store: Store, later: Store) -> Iterator[tuple[Thread, tuple[float, float]]]:
    """The threads that have rows in both, each with its first row behind the cut: start and duration."""
    for key, thread in later.threads.items():
        own = store.threads.get(key)
        if own is not None and thread.first is not None:
            yield own, thread.first


def _ordered(store: Store, later: Store) -> bool:
    return store.ordered and later.ordered and all(own.is_followed_by(*first) for own, first in _going_on(store, later))


def _extend_thread(thread: Thread, later: Thread, numbers: list[int], calls: int) -> None:
    thread.autograd = thread.autograd or later.autograd
    thread.has_ops = thread.has_ops or later.has_ops
    thread.has_calls = thread.has_calls or later.has_calls
    rows = thread.frames
    rows.starts += later.frames.starts
    rows.ends += later.frames.ends
    rows.flags += later.frames.flags
    rows.names += array("i", [numbers[name] for name in later.frames.names])
    rows.calls += array("i", [-1 if call < 0 else call + calls for call in later.frames.calls])
    launches = len(thread.launch_times)
    thread.graph_launches |= {row + launches for row in later.graph_launches}
    thread.launch_times += later.launch_times
    thread.launch_correlations += later.launch_correlations
