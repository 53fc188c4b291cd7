"""From a GPU row to the place on a CPU thread that launched it.

By `correlation` within one process; where that finds nothing, by `External id` to the call's own row. Old traces
write the correlation into `External id` too: then it joins nothing. A join across processes is never made: where
several ranks were merged into one file and it cannot be told whose GPU rows are whose, there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from . import frames
from .events import Id
from .rows import GpuRows
from .store import Store, Thread

# The runtime's call and the driver's call below it may carry one correlation.
_SAME_CALL_US = 1000.0
_BEYOND_ANY_ID = 1 << 63


class Place(NamedTuple):
    """Where and when the CPU launched a GPU row. `graph` marks the replay of a CUDA graph."""

    thread: Thread
    time: float
    graph: bool
    by_external_id: bool = False


class Join:
    """The launches and calls of one trace, by the ids that GPU rows carry.

    Kept are the launches of rows known to be collectives, and those below calls, which may be of a collective
    whatever their rows are named; of the others' rows nothing is asked.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.processes = store.processes()
        self._launches: dict[tuple[Id, int], Place | None] = {}
        self._calls: dict[tuple[Id, int], Place | None] | None = None
        wanted = set(store.collective_kernels.correlations)
        for thread in store.threads.values():
            correlations = thread.launch_correlations
            for row in [row for row, correlation in enumerate(correlations) if correlation in wanted]:
                self._keep(thread, row)
        self._keep_below_calls(wanted)
        self._gpu_process = self._pair_processes()

    def place(self, pid: Id, correlation: int, external: int) -> Place | None:
        """The place that launched a row of the GPU `pid`, or None where the trace does not tell."""
        process = self._gpu_process.get(pid)
        if process is None:
            return None
        if correlation > 0 and (process, correlation) in self._launches:
            return self._launches[process, correlation]
        if 0 < external < _BEYOND_ANY_ID and external != correlation:
            if self._calls is None:
                self._calls = self._calls_by_external_id()
            return self._calls.get((process, external))
        return None

    def may_place(self, rows: GpuRows) -> Iterator[int]:
        """The numbers of the rows for which `place` may find something: few, and found in one pass."""
        correlations = {correlation for _, correlation in self._launches}
        externals = {external for external in self._store.calls.externals if external > 0}
        for at, (correlation, external) in enumerate(zip(rows.correlations, rows.externals, strict=True)):
            if correlation in correlations or external in externals:
                yield at

    def _keep(self, thread: Thread, row: int) -> None:
        place = Place(thread, thread.launch_times[row], row in thread.graph_launches)
        key = (thread.pid, thread.launch_correlations[row])
        if key in self._launches:
            known = self._launches[key]
            if known is None or known.thread is not thread or abs(known.time - place.time) > _SAME_CALL_US:
                # Two launches of one id: ranks whose process ids are alike (1 in containers) in one merged file.
                self._launches[key] = None
                return
        self._launches[key] = place

    def _keep_below_calls(self, wanted: set[int]) -> None:
        """Keep the launches below `record_param_comms` and `symm_mem::` ops that put a row on the GPU."""
        below = [
            (thread, rows) for thread in self._store.threads.values() for rows in _launches_below_calls(thread) if rows
        ]
        found = {thread.launch_correlations[row] for thread, rows in below for row in rows}
        on_gpu = found & wanted
        for gpu_rows in (self._store.other_kernels, self._store.copies):
            on_gpu |= found.intersection(gpu_rows.correlations)
        for thread, rows in below:
            correlations = thread.launch_correlations
            for row in rows:
                if correlations[row] in on_gpu:
                    self._keep(thread, row)

    def _calls_by_external_id(self) -> dict[tuple[Id, int], Place | None]:
        calls: dict[tuple[Id, int], Place | None] = {}
        for thread in self._store.threads.values():
            for call in thread.frames.with_flags(frames.CALL):
                external = self._store.calls.externals[call.call]
                if external > 0:
                    key = (thread.pid, external)
                    # The same id on two calls joins nothing.
                    calls[key] = None if key in calls else Place(thread, call.start, False, True)
        return calls

    # ---- several processes in one file ---------------------------------------------------------------------------

    def _pair_processes(self) -> dict[Id, Id]:
        """Which process launched the work of each GPU (`pid` of its rows)."""
        if len(self.processes) == 1:
            return dict.fromkeys(self._gpu_pids(), self.processes[0])
        if not self.processes:  # a file of GPU rows alone
            return {}
        launched: dict[Id, set[int]] = {process: set() for process in self.processes}
        for thread in self._store.threads.values():
            if thread.pid in launched:
                launched[thread.pid].update(thread.launch_correlations)
        claims: dict[Id, Counter[Id]] = {}
        for pid, correlation in self._correlations():
            claims.setdefault(pid, Counter()).update(
                process for process in self.processes if correlation in launched[process]
            )
        pairs: dict[Id, Id] = {}
        tied: list[Id] = []
        for pid, claim in claims.items():
            best = max(claim.values(), default=0)
            owners = [process for process in self.processes if claim[process] == best]
            if best and len(owners) == 1:
                pairs[pid] = owners[0]
            elif best:
                tied.append(pid)
        return pairs | _pair_shifted(tied, [process for process in self.processes if process not in pairs.values()])

    def _gpu_pids(self) -> set[Id]:
        store = self._store
        return {pid for rows in (store.collective_kernels, store.other_kernels, store.copies) for pid in rows.pids}

    def _correlations(self) -> Iterator[tuple[Id, int]]:
        for rows in (self._store.collective_kernels, self._store.other_kernels, self._store.copies):
            yield from zip(rows.pids, rows.correlations, strict=True)


def _launches_below_calls(thread: Thread) -> Iterator[Sequence[int]]:
    """The rows of the launches below calls, each once: calls may lie in one another, or overlap."""
    begin = end = float("-inf")
    for call in sorted(thread.frames.with_flags(frames.CALL), key=lambda call: call.start):
        if call.start > end:
            yield thread.launches_between(begin, end)
            begin = call.start
        end = max(end, call.end)
    yield thread.launches_between(begin, end)


def _pair_shifted(gpus: list[Id], processes: list[Id]) -> dict[Id, Id]:
    """Pair ids that a merge shifted alike for each rank, such as GPU 0 and 1000 with processes 100 and 1100."""
    gpu_numbers = sorted(pid for pid in gpus if isinstance(pid, int))
    numbers = sorted(pid for pid in processes if isinstance(pid, int))
    if len(gpu_numbers) != len(gpus) or len(numbers) != len(processes) or len(gpus) != len(processes):
        return {}
    shifts = {process - pid for pid, process in zip(gpu_numbers, numbers, strict=True)}
    return dict(zip(gpu_numbers, numbers, strict=True)) if len(shifts) == 1 else {}
