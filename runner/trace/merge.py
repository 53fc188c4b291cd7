"""Two stores, filled from two parts of one list of events, made one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from .store import Store, Thread

_PARTS = (
    ("ordered", "threads", "gpu_rows", "without_time", "amd"),  # frames refer to calls by number, so these go first
    ("calls", "collective_kernels"),
    ("other_kernels", "copies"),
)


def fits(store: Store, later: Store) -> bool:
    """Whether `later`, filled from the events behind those of `store`, lacks nothing that one filling would have kept.

    Which plain ops are kept depends on the frames around them: at the place of the cut none may be open, on the
    threads that go on behind it. In a file in unusual order nothing depends on it: those ops are read once more.
    """
    if not _ordered(store, later):
        return True
    return all(first[0] >= own.frames_end for own, first in _going_on(store, later))


def extend(store: Store, later: Store) -> None:
    """Put what `later` holds behind what `store` holds; `later` is used up."""
    store.ordered = _ordered(store, later)
    # A name's number is its place there, and -1, no name, stays what it is.
    numbers = [*map(store.number_of, later.names), -1]
    calls = len(store.calls)
    store.calls.extend(later.calls, store.descriptions)
    for key, thread in later.threads.items():
        _extend_thread(store.threads.setdefault(key, Thread(*key)), thread, numbers, calls)
    store.collective_kernels.extend_known(later.collective_kernels, numbers, store.descriptions)
    store.other_kernels.extend(later.other_kernels, numbers)
    store.copies.extend(later.copies, numbers)
    store.gpu_rows += later.gpu_rows
    store.without_time += later.without_time
    store.amd = store.amd or later.amd


def pieces(store: Store) -> Iterator[Store]:
    """Take a store apart into smaller ones, which `extend` puts together again in this order; `fits` asks the first.

    It is emptied on the way, so that what one process sends and another receives is not held by both for long.
    """
    for part in _PARTS:
        later = Store()
        later.names = store.names
        for name in part:
            setattr(later, name, getattr(store, name))
            setattr(store, name, getattr(Store(), name))
        yield later


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
