"""NCCL's own log beside the traces: where the two disagree, and the facts that causes need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ..errors import UserError
from ..model import Collective, Kind, Mechanism
from ..nccl_log import COPY_ENGINE_LINES, LogFacts, NcclLog, log_path, read_log
from ..runfolder import Record, RunFolder
from .causes_facts import version_numbers

_WORDS: dict[Mechanism, str] = {"nccl-symmetric": "symmetric", "nccl": "general", "nccl-copy-engine": "copy engine"}
_LOGGED: frozenset[Kind] = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
"""Kinds whose general kernels leave a line: send/recv, and what NCCL makes of it, leave none."""

Counts = dict[Kind, Counter[Mechanism]]


class ProcessLog:
    """The log of one process in the folder of its start; `facts` of its set-up are read once, parts when asked for."""

    def __init__(self, start: Path, pid: int, hostname: str = "") -> None:
        self._path = log_path(start, pid, hostname)

    @property
    def exists(self) -> bool:
        """Whether the process wrote one."""
        return self._path.is_file()

    @cached_property
    def set_up(self) -> LogFacts:
        """The facts of the whole log. Raises UserError."""
        return read_log(self._path).facts

    def part(self, window: tuple[int, int | None] | None) -> NcclLog:
        """What was logged in a window of bytes, with the facts of the process's set-up. Raises UserError.

        Ops and warnings are the window's own: other cases of the same process have theirs.
        """
        found = read_log(self._path, window)
        return found._replace(facts=self.set_up._replace(ops=found.facts.ops, warnings=found.facts.warnings))


class CaseWitness(NamedTuple):
    """What NCCL's log says of one case: where it disagrees with the trace, its warnings in words, and the facts.

    `compared` says whether there was something to compare, in both; `unread` why there is a log that can't be read.
    """

    disagreements: list[str]
    warnings: list[str]
    facts: LogFacts | None
    compared: bool = False
    unread: str | None = None

    def notes(self, *, trouble: bool) -> list[str]:
        """What a reader must know of it beside the disagreements; NCCL's warnings only of a case in trouble."""
        return [*([self.unread] if self.unread is not None else []), *(self.warnings if trouble else [])]


def case_witness(
    log: ProcessLog, window: tuple[int, int | None] | None, collectives: Sequence[Collective]
) -> CaseWitness:
    """The witness of one case, from rank 0's log; empty without a log, or without the case's place in it.

    `window` is open at its end for a case that never came to its own; its `collectives` are empty then. Raises
    UserError where there is a log that can't be read.
    """
    if window is None or not log.exists:
        return CaseWitness([], [], None)
    part = log.part(window)
    warnings = [f"NCCL warned: {text}" for text in part.facts.warnings]
    compared = bool(_traced(part, collectives) and _logged(part)) and part.cut is None
    return CaseWitness(witness(part, collectives), warnings, part.facts, compared)


class Witnesses:
    """The logs that NCCL wrote in a run, by start; without any where the run did not ask for them.

    A log is rank 0's: from NCCL 2.28 on no other tells which kernels ran.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.asked = folder.plan().witness
        self._logs = dict(self._found()) if self.asked else {}

    def _found(self) -> Iterator[tuple[int, ProcessLog]]:
        for start in self._folder.starts():
            first = self._folder.environments(start).get(0)
            if first is not None:
                log = ProcessLog(self._folder.path / "starts" / str(start), first.pid, first.hostname)
                if log.exists:
                    yield start, log

    def of_case(self, start: int | None, first: Record | None, collectives: Sequence[Collective]) -> CaseWitness:
        """The witness of a case with rank 0's record and collectives; a log that can't be read is told, not raised."""
        return self._of(start, first.nccl_log if first is not None else None, collectives)

    def of_script(self, first: Record | None, collectives: Sequence[Collective]) -> CaseWitness:
        """The same of a script; one that never came to its traced steps has the whole log, for its warnings."""
        window = first.nccl_log if first is not None else None
        return self._of(0, window or (0, None), collectives if window else [])

    def _of(
        self, start: int | None, window: tuple[int, int | None] | None, collectives: Sequence[Collective]
    ) -> CaseWitness:
        log = self._logs.get(start) if start is not None else None
        if log is None:
            return CaseWitness([], [], None)
        try:
            return case_witness(log, window, collectives)
        except UserError as error:
            return CaseWitness([], [], None, unread=str(error).replace(f"{self._folder.path}/", ""))

    def said(self, compared: int, disagreeing: int, *, of_script: bool = False) -> list[str]:
        """One line on all of it, where it was asked for: of how many cases both could be compared, and disagree."""
        if not self.asked:
            return []
        if not self._logs:
            return ["NCCL's own log was asked for, and rank 0 wrote none: did NCCL run at all?"]
        if not compared:
            return ["NCCL's own log was asked for, and has nothing that could be compared with the traces"]
        number = f"{disagreeing} of {compared}" if disagreeing else f"{compared}"
        traces = "the trace of rank 0" if of_script else f"the traces of {number} case{'s' * (compared != 1)}"
        return [f"NCCL's own log {'disagrees' if disagreeing else 'agrees'} with {traces}"]


def witness(log: NcclLog, collectives: Sequence[Collective]) -> list[str]:
    """Say where a process's log and its trace disagree, a line each; [] where they agree.

    `collectives` are those of the same process. It must have rank 0 in each of its groups, as global rank 0 has: from
    NCCL 2.28 on no other prints these lines. Only where `log` is the part written during the traced steps numbers are
    compared; against a whole log, which has other steps too, only what is in the trace and nowhere in the log counts.
    """
    traced, logged = _traced(log, collectives), _logged(log)
    if not traced:
        return []
    if log.cut is not None:
        return [f"NCCL's log can't be compared: {log.cut}"]
    if not logged:
        return ["NCCL's log has no line on the collectives of the trace (a replayed CUDA graph leaves none)"]
    uncounted = any(row.kind == "unknown" and row.mechanism == "nccl" for row in collectives)
    told = []
    for kind in sorted(traced.keys() | logged.keys()):
        ours, theirs = traced.get(kind, Counter()), logged.get(kind, Counter())
        if uncounted:  # coalesced calls, of which the trace does not tell the kind, may be any of the log's
            ours, theirs = _without_general(ours), _without_general(theirs)
        differs = any(not theirs[mechanism] for mechanism in ours) if log.whole else ours != theirs
        if differs:
            told.append(f"{kind}: NCCL's log has {_said(theirs)}, the trace {_said(ours)}")
    return told + _other_kernels(log, collectives)


def _traced(log: NcclLog, collectives: Sequence[Collective]) -> Counts:
    """The trace's collectives as the log counts them: general ones by call, the others by kernel."""
    version = version_numbers(log.facts.version or "")
    counts: Counts = {}
    for row in collectives:
        if row.mechanism not in _WORDS or row.kind == "unknown" or row.group_size == 1:
            continue
        if row.mechanism == "nccl" and row.kind not in _LOGGED:
            continue
        if row.mechanism == "nccl-copy-engine" and version < COPY_ENGINE_LINES:
            continue
        counts.setdefault(row.kind, Counter())[row.mechanism] += row.calls if row.mechanism == "nccl" else 1
    return counts


def _logged(log: NcclLog) -> Counts:
    counts: Counts = {}
    for call, number in log.calls.items():
        if call.kind != "unknown" and (call.mechanism != "nccl" or call.kind in _LOGGED):
            counts.setdefault(call.kind, Counter())[call.mechanism] += number
    return counts


def _without_general(counts: Counter[Mechanism]) -> Counter[Mechanism]:
    return Counter({mechanism: number for mechanism, number in counts.items() if mechanism != "nccl"})


def _said(counts: Mapping[Mechanism, int]) -> str:
    return " and ".join(f"{counts[name]} {word}" for name, word in _WORDS.items() if counts.get(name)) or "none"


def _other_kernels(log: NcclLog, collectives: Sequence[Collective]) -> list[str]:
    """Where both have symmetric kernels of a kind, but not the same ones."""
    told = []
    for kind in sorted({row.kind for row in collectives}):
        ours = {r.algorithm for r in collectives if r.kind == kind and r.mechanism == "nccl-symmetric" and r.algorithm}
        theirs = {call.algorithm for call in log.calls if call.kind == kind and call.algorithm}
        agree = ours <= theirs if log.whole else ours == theirs
        if ours and theirs and not agree:
            told.append(f"{kind}: NCCL's log names {_listed(theirs)}, the trace {_listed(ours)}")
    return told


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
