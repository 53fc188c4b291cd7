"""A training script's run judged: its collectives by phase and kind, those that fell back, and the verdict."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from .. import __version__
from ..errors import UserError
from ..findings import Cause
from ..model import PHASES, Collective, Coverage, GatePhase
from ..nccl_log import LogFacts
from ..plan import Case
from ..result import Environment, Result, StartResult, SuiteName, Verdict
from ..runfolder import Buffer, End, PoolRecord, Record, RunFolder, read_json
from ..script_result import Fallen, ScriptResult, ScriptRow
from ..trace.pool import Outcome, read_all
from .coverage import GATE_PHASES, coverage, group_of
from .expectation import kernels_seen
from .gate import verdict
from .run import read_environment
from .script_cause import script_cause
from .script_issuers import Issuer, issuers
from .witness import Witnesses

MOST_FALLEN = 100
SHARED_GPU = (
    "ranks shared a GPU, so the script was given LOCAL_RANK by GPU, not by rank; times mean nothing then, and which "
    "kernels ran is as good as ever"
)


class ScriptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank recorded of the script: its optimizer, steps seen and traced, and the modules by number.

    `ended` is when that was known, in seconds since 1970.
    """

    optimizer: str | None = None
    seen: int = 0
    traced: int = 0
    modules: list[str] = []
    ended: float = 0.0


class ScriptRecord(Record, frozen=True, kw_only=True):
    """A rank's record of a script."""

    script: ScriptFacts | None = None


class Trouble(NamedTuple):
    """Why the script's run can't pass: `fails`, or else nothing could be measured. `sentence` is one line."""

    fails: bool
    sentence: str
    detail: str | None = None


class Call(NamedTuple):
    """A collective and who issued it."""

    collective: Collective
    issuer: Issuer


def judge_script(folder: RunFolder, asked: ScriptResult) -> Result:
    """Judge the run folder of a script by what was `asked` for. Raises UserError where it is no run's."""
    case = folder.plan().cases[0]
    records = _records(folder, case)
    end = folder.end(0)
    environment = read_environment(folder)
    trouble = _trouble(records, end, asked.ranks)
    calls: list[Call] = []
    notes = [SHARED_GPU] if environment.ranks_per_gpu > 1 else []
    paths = {rank: path for rank, record in records.items() if (path := folder.trace(case, record)) is not None}
    for rank, read in zip(paths, read_all(list(paths.values())), strict=True):
        found = _calls(folder, paths[rank], read, rank, records[rank], notes)
        if isinstance(found, Trouble):
            trouble = trouble or found
        else:
            calls += found
    first = next((record for record in records.values() if record.script is not None), None)
    facts = first.script if first is not None else None
    rows = script_rows([call.collective for call in calls], asked.steps)
    buffers = [buffer for record in records.values() for buffer in record.buffers]
    if trouble is None and not calls:
        trouble = Trouble(False, f"no collective was traced in {asked.steps} steps")
    elif trouble is not None and not calls and end is not None and end.ended == "stopped":
        trouble = trouble._replace(fails=False)  # ended too early for a trace, it shows nothing that is wrong
    log = _witnessed(folder, records.get(0), calls, trouble, notes)
    fallen = script_fallen(calls, asked.steps, buffers, first.pool if first else None, environment, log)
    script = msgspec.structs.replace(
        asked,
        optimizer=facts.optimizer if facts else None,
        rows=rows,
        fallen=fallen[:MOST_FALLEN],
        more_fallen=max(0, len(fallen) - MOST_FALLEN),
        trouble=trouble.sentence if trouble else None,
        detail=trouble.detail if trouble else None,
    )
    by_phase = gate_coverage(call.collective for call in calls)
    ended = StartResult(
        number=0, cases=[], ended=end.ended if end else "died",
        message=end.message if end else "the run was ended from outside",
    )  # fmt: skip
    result = _result(script, trouble, by_phase, environment)
    return msgspec.structs.replace(result, notes=notes, starts=[ended])


def unmeasured_script(asked: ScriptResult, ranks_per_gpu: int, why: str) -> Result:
    """The Result of a script that could not be started, for the reason `why`."""
    environment = Environment(ranks=asked.ranks, ranks_per_gpu=ranks_per_gpu, hosts=0)
    script = msgspec.structs.replace(asked, trouble=why)
    return _result(script, Trouble(False, why), {}, environment)


def _result(
    script: ScriptResult, trouble: Trouble | None, by_phase: dict[GatePhase, Coverage], environment: Environment
) -> Result:
    result = Result(
        version=__version__,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        looks_at=f"your script {Path(script.command[0]).name}",
        suite=SuiteName("script", script.command[0]),
        verdict=_failed(trouble) if trouble is not None else Verdict("unmeasured", "Not judged yet."),
        coverage=by_phase,
        cases=[],
        script=script,
        environment=environment,
    )
    return msgspec.structs.replace(result, verdict=verdict(result))


def _records(folder: RunFolder, case: Case) -> dict[int, ScriptRecord]:
    return {
        rank: read_json(folder.path / case.folder / f"rank{rank}.json", ScriptRecord) for rank in folder.records(case)
    }


def _trouble(records: Mapping[int, ScriptRecord], end: End | None, ranks: int) -> Trouble | None:
    """Why the run can't pass, whatever was traced; None for a good one."""
    if end is not None and end.ended == "stopped":  # what a rank recorded may be of being stopped
        return Trouble(True, end.message or "stopped while it ran")
    raised = [(rank, record) for rank, record in sorted(records.items()) if record.outcome == "raised"]
    # The first: where one rank fails, the connections of the others break.
    for rank, record in sorted(raised, key=lambda item: item[1].script.ended if item[1].script else 0.0):
        return Trouble(True, f"rank {rank}: {record.message or 'raised'}", record.detail)
    if end is None or end.ended != "finished":
        message = end.message if end else None
        return Trouble(True, message or "the run was ended from outside")
    for rank, record in records.items():
        if record.outcome == "incapable":
            return Trouble(False, f"rank {rank}: {record.message}")
    unfinished = [rank for rank in range(ranks) if rank not in records or records[rank].state != "done"]
    if unfinished:
        return Trouble(True, f"rank {', '.join(map(str, unfinished))} left no record of its end")
    return None


def _calls(
    folder: RunFolder, path: Path, read: Outcome, rank: int, record: ScriptRecord, notes: list[str]
) -> list[Call] | Trouble:
    """The collectives of one rank with who issued them; what a reader must know is added to `notes`."""
    if isinstance(read, UserError):
        message = str(read).replace(f"{folder.path}/", "")
        return Trouble(True, f"the trace of rank {rank} can't be read: {message}")
    if read.salvaged:
        notes.append(f"the trace of rank {rank} was salvaged: {read.salvaged}")
    if not read.gpu_rows:
        return Trouble(False, f"no GPU events in the trace of rank {rank}: is CUPTI in use elsewhere?")
    # Before the first step and after the last there is only what the profiler itself waits for.
    inside = (row for row in read.collectives if row.step is not None or row.phase == "unknown")
    rows = [msgspec.structs.replace(row, rank=rank) for row in inside]
    untold = sum(row.phase == "unknown" for row in rows)
    if untold:
        notes.append(
            f"rank {rank}: of {untold} collectives the phase can't be told; they count in neither forward nor backward"
        )
    modules = record.script.modules if record.script else []
    return [Call(row, issuer) for row, issuer in zip(rows, issuers(path, rows, modules), strict=True)]


def _witnessed(
    folder: RunFolder, first: ScriptRecord | None, calls: Sequence[Call], trouble: Trouble | None, notes: list[str]
) -> LogFacts | None:
    """The facts of NCCL's own log; where it disagrees with rank 0's trace, and what it warned of, goes to `notes`."""
    witnesses = Witnesses(folder)
    own = [call.collective for call in calls if call.collective.rank == 0]
    witness = witnesses.of_script(first, own)
    notes += witness.notes(trouble=trouble is not None) + witness.disagreements
    notes += witnesses.said(int(witness.compared), int(bool(witness.disagreements)), of_script=True)
    return witness.facts


# ---- rows ------------------------------------------------------------------------------------------------------------


def _key(row: Collective) -> tuple[str, str, str, int, str]:
    return row.phase, row.kind, row.group or "", row.group_size or 0, row.dtype or ""


def script_rows(collectives: Iterable[Collective], steps: int) -> list[ScriptRow]:
    """The collectives by phase, kind, group, group size and dtype, in the order of the phases."""
    groups: dict[tuple[str, str, str, int, str], list[Collective]] = {}
    for collective in collectives:
        groups.setdefault(_key(collective), []).append(collective)
    rows = [_row(found, steps) for _, found in sorted(groups.items())]
    return sorted(rows, key=lambda row: PHASES.index(row.phase))


def _row(found: Sequence[Collective], steps: int) -> ScriptRow:
    first = found[0]
    return ScriptRow(
        phase=first.phase,
        kind=first.kind,
        group=first.group,
        group_size=first.group_size,
        dtype=first.dtype,
        calls_per_step=round(len(found) / steps, 3),
        coverage=coverage(found),
        kernels=kernels_seen(found),
    )


def script_fallen(
    calls: Sequence[Call],
    steps: int,
    buffers: Sequence[Buffer],
    pool: PoolRecord | None,
    environment: Environment,
    log: LogFacts | None = None,
) -> list[Fallen]:
    """The collectives that fell back or had to, alike ones together, most bytes a step first."""
    groups: dict[tuple[object, ...], list[Call]] = {}
    symmetric = [call.collective for call in calls if call.collective.symmetric]
    for call in calls:
        row = call.collective
        if group_of(row) in ("fallback", "ineligible"):
            groups.setdefault((_key(row), row.bytes, call.issuer), []).append(call)
    fallen = []
    for found in groups.values():
        alike = [call.collective for call in found]
        cause = script_cause(alike, symmetric, buffers, pool, environment, found[0].issuer.op, log)
        fallen.append(_fallen(found, steps, cause))
    return sorted(fallen, key=lambda one: -(one.bytes or 0) * one.calls_per_step)


def _fallen(found: Sequence[Call], steps: int, cause: Cause | None) -> Fallen:
    first = found[0].collective
    return Fallen(
        phase=first.phase,
        kind=first.kind,
        group=first.group,
        group_size=first.group_size,
        dtype=first.dtype,
        bytes=first.bytes,
        calls_per_step=round(len(found) / steps, 3),
        op=found[0].issuer.op,
        module=found[0].issuer.module,
        kernel=first.kernel,
        cause=cause,
    )


# ---- coverage and verdict --------------------------------------------------------------------------------------------


def gate_coverage(collectives: Iterable[Collective]) -> dict[GatePhase, Coverage]:
    """Coverage by phase as a gate counts: forward and backward always, optimizer where something ran there."""
    found = list(collectives)
    parts = {gate: [row for row in found if row.phase in phases] for gate, phases in GATE_PHASES.items()}
    return {gate: coverage(rows) for gate, rows in parts.items() if rows or (found and gate != "optimizer")}


def _failed(trouble: Trouble) -> Verdict:
    if trouble.fails:
        return Verdict("fail", f"The script failed: {trouble.sentence}.")
    return Verdict("unmeasured", f"Nothing could be measured: {trouble.sentence}.")
