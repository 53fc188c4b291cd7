"""A trace's collectives: each found, joined to its launch, given phase, kind, mechanism and evidence."""

from __future__ import annotations

import contextlib
import gc
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

import msgspec

from .. import kernels
from ..model import Collective, Kind, Mechanism
from . import frames
from .calls import COPY_ENGINE_KINDS, Facts, facts, is_barrier_word, kind_of_word
from .coalesced import Coalesced
from .events import CommArgs, Id
from .frames import Frame, Walk
from .halves import read_events
from .join import Join, Place
from .order import ops_come_first
from .phase import PhaseRules
from .reader import BLOCK, TraceReader
from .rows import GpuRows, KnownRows
from .store import PlainOps, Store, Thread

_AMD_DEVICE = re.compile(r"\bAMD\b|Instinct|Radeon|\bgfx\d")
_NO_ARGS = CommArgs()


class TraceFile(msgspec.Struct, frozen=True, kw_only=True):
    """One trace read: what it says of itself, and its collectives in the order of `start`.

    `salvaged` is None, or one line that says what was lost. `one_rank_calls` and `barrier_calls` are counted only:
    they communicate nothing. `gpu_rows` is how many kernels and copies the file has; 0 means no evidence.
    """

    file: str
    rank: int | None
    world_size: int | None
    salvaged: str | None
    one_rank_calls: int
    barrier_calls: int
    collectives: list[Collective]
    gpu_rows: int
    nccl_built: str | None


def read_collectives(path: Path, *, block: int = BLOCK, halves: bool = False) -> TraceFile:
    """Read one trace. Raises UserError with file, place and mend where it can't be read.

    Memory does not grow with the file, but with its launches and calls. With `halves` a plain file is read by two
    processes at once, on two cores; the answer is the same.
    """
    with _without_collector():
        return _read(path, block=block, halves=halves)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Many rows are kept, none in a cycle: the collector would look through them again and again, for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read(path: Path, *, block: int, halves: bool) -> TraceFile:
    reader, store = read_events(path, block=block, halves=halves)
    rows = _Rows(store, Join(store))
    if not store.ordered:
        _add_plain_ops(path, block, store, rows)
    for thread in store.threads.values():
        thread.frames.sort()
    if store.without_time:
        rows_lost = "1 row has" if store.without_time == 1 else f"{store.without_time} rows have"
        reader.damage.note(f"{rows_lost} no readable time", events_missing=True)
    builder = _Builder(store, rows, reader.members, events_missing=_may_miss_frames(reader, store))
    if not builder.asks_for_launches:
        store.drop_launches()
    about = _about(reader.members)
    rank = _count(about.get("rank")) if len(rows.processes) <= 1 else None
    return TraceFile(
        file=str(path),
        rank=rank,
        world_size=_count(about.get("world_size")),
        salvaged=reader.salvaged(),
        collectives=builder.collectives(rank),
        one_rank_calls=builder.one_rank_calls(),
        barrier_calls=builder.barriers,
        gpu_rows=store.gpu_rows,
        nccl_built=version if isinstance(version := about.get("nccl_version"), str) else None,
    )


def _add_plain_ops(path: Path, block: int, store: Store, rows: _Rows) -> None:
    """Read once more, for the ops around the launches found: the file is not in Kineto's order."""
    times: dict[tuple[Id, Id], list[float]] = {}
    for place in rows.places():
        times.setdefault((place.thread.pid, place.thread.tid), []).append(place.time)
    plain = PlainOps(store, times)
    for batch in TraceReader(path, block=block).batches():
        plain.add(batch)


def _may_miss_frames(reader: TraceReader, store: Store) -> bool:
    """Whether frames around the launches read may be gone, so that the absence of one proves nothing.

    A file that breaks off between two events has lost none of them if all ops come before their launches.
    """
    damage = reader.damage
    if damage.breaks_off and not damage.events_missing:
        return not (store.ordered and ops_come_first(TraceReader(reader.path, block=reader.block).batches()))
    return damage.events_missing


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _about(members: dict[str, Any]) -> dict[str, Any]:
    about = members.get("distributedInfo")
    return about if isinstance(about, dict) else {}


def _is_amd(store: Store, members: dict[str, Any]) -> bool:
    devices = members.get("deviceProperties")
    named = (
        [str(device.get("name")) for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []
    )
    return store.amd or any(_AMD_DEVICE.search(name) for name in named)


class _Row(NamedTuple):
    """A GPU row that may be a collective or part of one."""

    start: float
    duration: float
    name: str | None
    args: CommArgs
    kernel: kernels.Kernel | None
    place: Place | None


class _Rows:
    """The GPU rows that may matter, each with the place that launched it."""

    def __init__(self, store: Store, join: Join) -> None:
        self.processes = join.processes
        self.kernels = list(_known(store.collective_kernels, store, join))
        self.kernels += _below_calls(store.other_kernels, store, join)
        self.copies = list(_below_calls(store.copies, store, join))

    def places(self) -> Iterator[Place]:
        return (row.place for row in [*self.kernels, *self.copies] if row.place is not None)


def _known(rows: KnownRows, store: Store, join: Join) -> Iterator[_Row]:
    columns = (rows.starts, rows.durations, rows.names, rows.pids, rows.correlations, rows.externals, rows.args)
    for start, duration, number, pid, correlation, external, args in zip(*columns, strict=True):
        name = store.names[number]
        yield _Row(start, duration, name, args, kernels.classify(name), join.place(pid, correlation, external))


def _below_calls(rows: GpuRows, store: Store, join: Join) -> Iterator[_Row]:
    """The rows that were launched below a call; the others are none of ours, whatever their names say."""
    for at in join.may_place(rows):
        place = join.place(rows.pids[at], rows.correlations[at], rows.externals[at])
        if place is not None and not place.graph:
            name = store.names[rows.names[at]] if rows.names[at] >= 0 else None
            yield _Row(rows.starts[at], rows.durations[at], name, _NO_ARGS, None, place)


class _Copies:
    """What the copy engine did for one call: `more`, and one copy, the row `at` of the file's."""

    def __init__(self, at: int, row: _Row, stack: tuple[Frame, ...], more: _Copies | None) -> None:
        self.at, self.number = at, 1
        self.first, self.stack, self.first_at = row, stack, at
        self.end = row.start + row.duration
        if more is not None:
            self.at, self.number = min(at, more.at), more.number + 1
            self.end = max(self.end, more.end)
            if (more.first.start, more.first_at) < (row.start, at):
                self.first, self.stack, self.first_at = more.first, more.stack, more.first_at

    def whole(self) -> _Row:
        """All of them as one row."""
        return self.first._replace(duration=round(self.end - self.first.start, 3))


class _Builder:
    """Applies the rules to the rows of one trace."""

    def __init__(self, store: Store, rows: _Rows, members: dict[str, Any], *, events_missing: bool) -> None:
        self._store = store
        self._rows = rows
        self._amd = _is_amd(store, members)
        self._phases = PhaseRules(store, events_missing=events_missing)
        self._coalesced = Coalesced(store)
        self.barriers = 0

    @property
    def asks_for_launches(self) -> bool:
        """Whether launches and GPU rows are looked at again; if not, they need not be kept any longer."""
        return self._coalesced.any

    def collectives(self, rank: int | None) -> list[Collective]:
        """The collectives in order of their start; afterwards `barriers` is complete."""
        rows = self._rows.kernels
        sharing = self._sharing() if self._coalesced.any else {}
        with_kernel: set[int] = set()
        found: list[Collective | None] = [None] * len(rows)
        for at, stack in _with_stacks(rows):
            row = rows[at]
            call = _innermost_call(row, stack)
            if call is not None:
                with_kernel.add(call.call)
            found[at] = self._from_kernel(rank, row, stack, sharing.get(_window_key(row, stack), 1))
        collectives = [*filter(None, found), *self._from_copies(rank, with_kernel)]
        collectives.sort(key=lambda collective: collective.start)
        return collectives

    def _sharing(self) -> Mapping[tuple[int, float] | None, int]:
        """How many kernels each coalescing window launched."""
        rows = self._rows.kernels
        return Counter(
            _window_key(rows[at], stack)
            for at, stack in _with_stacks(rows)
            if rows[at].kernel or self._unknown_kernel(rows[at], stack)
        )

    def one_rank_calls(self) -> int:
        """How many calls went to a group of one rank."""
        described = self._store.calls.args
        return sum(args.group_size == 1 and (args.collective or "") not in ("wait", "barrier") for args in described)

    # ---- kernels ---------------------------------------------------------------------------------------------------

    def _from_kernel(self, rank: int | None, row: _Row, around: tuple[Frame, ...], sharing: int) -> Collective | None:
        # A replayed graph has one launch for all its kernels: what stands around it describes none of them.
        graph = row.place is not None and row.place.graph
        stack = () if graph else around
        call = self._nearest_call(stack)
        window = _innermost(stack, frames.NCCL)
        window_name = self._store.names[window.name] if window is not None else None
        words = (row.args.collective, call.collective if call is not None else None, window_name)
        known = row.kernel or self._unknown_kernel(row, around)
        if known is None:
            return None
        if any(map(is_barrier_word, words)):
            self.barriers += 1
            return None
        about = facts(row.args, call)
        if about.group_size == 1:
            return None
        if about.dtype is None and known.symmetric:
            # Only these names are sure: a general kernel's is a container that may serve several dtypes in one launch.
            about = about._replace(dtype=known.dtype)
        if self._amd:
            known = kernels.on_amd(known)
        calls, shared = (1, None) if graph else self._coalesced.calls(row.place, window, sharing)
        kind, kind_from = _kind(words, known)
        evidence = (f"{known.mechanism} by its name ({known.row})" if row.kernel else known.row, kind_from, shared)
        return self._collective(
            rank, row, around, known.mechanism, known.symmetric, kind, about, evidence,
            multicast=known.multicast, algorithm=known.algorithm, kernel=row.name, calls=calls,
        )  # fmt: skip

    def _unknown_kernel(self, row: _Row, stack: tuple[Frame, ...]) -> kernels.Kernel | None:
        """A kernel that no row of the catalogue knows is a collective only directly below a call."""
        op = _innermost(stack, frames.IS_OP)
        if op is None or not op.flags & frames.CALL:
            return None
        return kernels.Kernel(
            mechanism="unknown", symmetric=None, multicast=None, kind=kind_of_word(row.name) or "unknown",
            algorithm=None, dtype=None, collective=True,
            row=f"a kernel that the catalogue doesn't know, launched by {self._store.names[op.name]}",
        )  # fmt: skip

    def _nearest_call(self, stack: tuple[Frame, ...]) -> CommArgs | None:
        frame = _innermost(stack, frames.COMM)
        return None if frame is None else self._store.calls.args[frame.call]

    # ---- the copy engine ---------------------------------------------------------------------------------------------

    def _from_copies(self, rank: int | None, with_kernel: set[int]) -> Iterator[Collective]:
        of_call: dict[int, _Copies] = {}
        for at, stack in _with_stacks(self._rows.copies):
            row = self._rows.copies[at]
            call = _innermost_call(row, stack)
            if call is not None and call.call not in with_kernel:
                of_call[call.call] = _Copies(at, row, stack, of_call.get(call.call))
        for call_number, copies in sorted(of_call.items(), key=lambda one: one[1].at):
            args = self._store.calls.args[call_number]
            kind = kind_of_word(args.collective)
            about = facts(args, None)
            if kind not in COPY_ENGINE_KINDS or (about.group_size or 0) <= 1:
                continue
            number = "1 copy" if copies.number == 1 else f"{copies.number} copies"
            yield self._collective(
                rank, copies.whole(), copies.stack, "nccl-copy-engine", True, kind, about,
                (f"{number} and no kernel below record_param_comms: the copy engine did it", None, None),
                multicast=None, algorithm=None, kernel=None, calls=1,
            )  # fmt: skip

    def _collective(
        self, rank: int | None, row: _Row, stack: tuple[Frame, ...], mechanism: Mechanism, symmetric: bool | None,
        kind: Kind, about: Facts, evidence: tuple[str | None, ...], **fields: Any,
    ) -> Collective:  # fmt: skip
        phase, reason = self._phases.phase(row.place, stack)
        step = self._phases.step(row.place)
        by_id = "launch found by External id" if row.place is not None and row.place.by_external_id else None
        return Collective(
            rank=rank, step=None if step is None else step.number, phase=phase, kind=kind, mechanism=mechanism,
            symmetric=symmetric, dtype=about.dtype, bytes=about.bytes, group=about.group, group_size=about.group_size,
            start=row.start, duration=row.duration,
            why=intern("; ".join(part for part in (f"{phase}: {reason}", by_id, *evidence) if part)), **fields,
        )  # fmt: skip


def _with_stacks(rows: Sequence[_Row]) -> Iterator[tuple[int, tuple[Frame, ...]]]:
    """The place in `rows` of each, and what is around its launch: thread by thread, in order of time."""
    threads: dict[int, tuple[Thread, list[tuple[float, int]]]] = {}
    for at, row in enumerate(rows):
        if row.place is None:
            yield at, ()
        else:
            _, launches = threads.setdefault(id(row.place.thread), (row.place.thread, []))
            launches.append((row.place.time, at))
    for thread, launches in threads.values():
        launches.sort()
        walk = Walk(thread.frames)
        for time, at in launches:
            yield at, walk.around(time)


def _innermost(stack: tuple[Frame, ...], flags: int) -> Frame | None:
    """The innermost row that has any of `flags`."""
    for frame in reversed(stack):
        if frame.flags & flags:
            return frame
    return None


def _innermost_call(row: _Row, stack: tuple[Frame, ...]) -> Frame | None:
    """The `record_param_comms` that is the launch's innermost op, if it is."""
    op = _innermost(stack, frames.IS_OP)
    return op if op is not None and op.flags & frames.COMM and not (row.place and row.place.graph) else None


def _window_key(row: _Row, stack: tuple[Frame, ...]) -> tuple[int, float] | None:
    """Names the coalescing window of a launch, for kernels that share one."""
    if row.place is None or row.place.graph:
        return None
    frame = _innermost(stack, frames.COALESCED)
    return None if frame is None else (id(row.place.thread), frame.start)


def _kind(words: tuple[str | None, ...], known: kernels.Kernel) -> tuple[Kind, str | None]:
    """The kind by the first word that tells one, else by the kernel's name; and which of them it was."""
    for word in words:
        kind = kind_of_word(word)
        if kind is not None:
            return kind, f"{kind} by {word}"
    return known.kind, None if known.kind == "unknown" else f"{known.kind} by the kernel's name"
