"""A run folder judged: each case's traces and records against the suite, and the verdict on all of them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from .. import __version__
from ..errors import UserError
from ..launch import checks_folder
from ..model import Collective, Coverage, GatePhase
from ..plan import DEFAULT_CONFIGURATION, Case, Plan
from ..result import CaseResult, Environment, Result, StartResult, SuiteName, Verdict
from ..runfolder import Lost, RankEnvironment, Record, RunFolder, Values
from ..suite import Suite, SuiteCase
from ..trace.pool import read_all
from ..watch import NOT_RUN
from .bandwidth import bandwidth_rows
from .coverage import GATE_PHASES, added, coverage
from .expectation import Seen, Trouble, judge_phase
from .gate import verdict
from .witness import Witnesses

PROBES_ONLY = "machine and PyTorch build only, not your code"


def judge_run(folder: RunFolder, suite: Suite, *, replay: bool = False, notes: Sequence[str] = ()) -> Result:
    """Judge a run folder by a suite: cases that are in only one of them are left out and named in the notes.

    Raises UserError where the folder is not a run's, or has none of the suite's cases.
    """
    planned = {case.id: case for case in folder.plan().cases}
    cases = [case for case in suite.cases if case.id in planned]
    if not cases:
        raise UserError(f"{folder.path}: has no case of the suite {suite.name}; judge it by the suite it was run with")
    environments, witnesses = Environments(folder), Witnesses(folder)
    results = [judge_case(folder, planned[case.id], case, environments, witnesses) for case in cases]
    result = _result(suite, results, environments.usual)
    told = [*_interruption(folder, results), *_configurations(folder.plan()), *_only_in_one(planned, suite)]
    compared = [case for case in results if case.witnessed]
    told += witnesses.said(len(compared), sum(bool(case.witness) for case in compared))
    return msgspec.structs.replace(
        result,
        replay=replay,
        starts=_starts(folder, results),
        notes=[*notes, *told],
    )


def _interruption(folder: RunFolder, results: Sequence[CaseResult]) -> list[str]:
    left_out = sum(result.trouble == NOT_RUN for result in results)
    ends = [folder.end(start) for start in folder.starts()]
    if not left_out and not any(end and end.ended == "stopped" for end in ends):
        return []
    return [f"the run was interrupted: {left_out} of {len(results)} cases were not run"]


def _configurations(plan: Plan) -> list[str]:
    return [f"configuration {name}: {content}" for name, content in plan.configurations.items()]


def _result(suite: Suite, results: list[CaseResult], environment: Environment) -> Result:
    result = Result(
        version=__version__,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        looks_at=PROBES_ONLY,
        suite=SuiteName(suite.name, _shown_path(Path(suite.path))),
        verdict=Verdict("unmeasured", "Not judged yet."),
        coverage=suite_coverage(results),
        cases=results,
        environment=environment,
    )
    return msgspec.structs.replace(result, verdict=verdict(result))


def _shown_path(path: Path) -> str:
    """A suite's file as a reader elsewhere knows it: without where this tool or this checkout lies."""
    for base in (checks_folder().parent, Path.cwd()):
        if path.is_relative_to(base):
            return str(path.relative_to(base))
    return str(path)


def _only_in_one(planned: Mapping[str, Case], suite: Suite) -> list[str]:
    known = {case.id for case in suite.cases}
    extra, missing = sorted(set(planned) - known), sorted(known - set(planned))
    notes = [f"not in the suite, so not judged: {', '.join(extra)}"] if extra else []
    return [*notes, *([f"in the suite, but not in this run: {', '.join(missing)}"] if missing else [])]


def unmeasured_run(suite: Suite, ranks: int, ranks_per_gpu: int, why: str) -> Result:
    """The Result of a run that could not begin: every phase unmeasured, for the reason `why`."""
    seen = Seen(collectives={}, buffers=[], pool=None, trouble=Trouble("unmeasured", why))
    environment = Environment(ranks=ranks, ranks_per_gpu=ranks_per_gpu, hosts=0)
    results = [
        CaseResult(
            id=case.id, check=case.check, workload=case.workload, axes=case.axes, configuration=case.configuration,
            because=case.because, trouble=why,
            phases=[judge_phase(case, phase, seen, environment) for phase in case.expect],
        )
        for case in suite.cases
    ]  # fmt: skip
    return _result(suite, results, environment)


def judge_case(
    folder: RunFolder, planned: Case, case: SuiteCase, environments: Environments, witnesses: Witnesses
) -> CaseResult:
    """Judge one case by what its ranks left."""
    records, lost = folder.records(planned), folder.lost(planned)
    first = records.get(min(records)) if records else None
    start = lost.start if lost else first.start if first else None
    environment = environments.of(start, planned.configuration)
    trouble = _trouble(records, lost, environment.ranks)
    collectives: dict[int, list[Collective]] = {}
    notes: list[str] = []
    if trouble is None:
        collectives, notes, trouble = _read_traces(folder, planned, records, environment.ranks)
    witness = witnesses.of_case(start, records.get(0), collectives.get(0, []))
    notes += witness.notes(trouble=trouble is not None)
    seen = Seen(
        collectives=collectives,
        buffers=[buffer for record in records.values() for buffer in record.buffers],
        pool=first.pool if first else None,
        trouble=trouble,
        log=witness.facts,
    )
    untold = sum(row.phase == "unknown" for rows in collectives.values() for row in rows)
    if untold:
        notes.append(f"of {untold} collectives the phase can't be told; they count in neither forward nor backward")
    return CaseResult(
        id=case.id,
        check=case.check,
        workload=case.workload,
        axes=case.axes,
        configuration=planned.configuration,
        because=case.because,
        phases=[judge_phase(case, phase, seen, environment) for phase in case.expect],
        start=start,
        trouble=trouble.sentence if trouble else None,
        detail=next((record.detail for record in records.values() if record.detail and _to_blame(record)), None),
        values=_worst_values(records),
        pool=first.pool if first else None,
        buffers=first.buffers if first else [],
        notes=notes,
        witness=witness.disagreements,
        witnessed=witness.compared,
        bandwidth=bandwidth_rows(records[rank].bandwidth for rank in sorted(records)),
        seconds=max((record.seconds.get("total", 0.0) for record in records.values()), default=None),
        collectives=sorted((row for rows in collectives.values() for row in rows), key=lambda row: row.start),
    )


def _read_traces(
    folder: RunFolder, planned: Case, records: dict[int, Record], ranks: int
) -> tuple[dict[int, list[Collective]], list[str], Trouble | None]:
    """Each rank's collectives, what the reader has to say of the traces, and what stops the case from being judged."""
    collectives: dict[int, list[Collective]] = {}
    notes: list[str] = []
    paths = {rank: path for rank, record in records.items() if (path := folder.trace(planned, record)) is not None}
    for rank, read in zip(paths, read_all(list(paths.values())), strict=True):
        if isinstance(read, UserError):
            sentence = f"the trace of rank {rank} can't be read: {_inside(folder.path, str(read))}"
            return collectives, notes, Trouble("error", sentence)
        collectives[rank] = [_of_rank(row, rank) for row in read.collectives]
        if read.salvaged:
            notes.append(f"the trace of rank {rank} was salvaged: {read.salvaged}")
        if not read.gpu_rows:
            sentence = f"no GPU events in the trace of rank {rank}: is CUPTI in use elsewhere?"
            return collectives, notes, Trouble("unmeasured", sentence)
    missing = sorted(set(range(ranks)) - set(collectives))
    lost = Trouble("error", f"no trace of rank {', '.join(map(str, missing))}") if missing else None
    return collectives, notes, lost


def _inside(folder: Path, message: str) -> str:
    """The message with places told from the run folder on: a result may be read on another machine."""
    return message.replace(f"{folder}/", "")


def _of_rank(row: Collective, rank: int) -> Collective:
    return row if row.rank == rank else msgspec.structs.replace(row, rank=rank)


def _to_blame(record: Record) -> bool:
    return record.outcome in ("raised", "hung") and "was waiting" not in (record.message or "")


def _trouble(records: Mapping[int, Record], lost: Lost | None, ranks: int) -> Trouble | None:
    """Why a case can't be judged by its kernels, or None. Wrong values are an error whatever kernels ran."""
    if lost is not None:
        return Trouble("unmeasured" if lost.outcome == "stopped" else "error", lost.message)
    blamed = sorted(records.items(), key=lambda item: not _to_blame(item[1]))
    for rank, record in blamed:
        if record.outcome in ("raised", "hung"):
            verb = "raised" if record.outcome == "raised" else "hung"
            return Trouble("error", f"rank {rank} {verb}: {record.message or 'no message'}")
    for rank, record in records.items():
        if record.outcome == "wrong-values":
            return Trouble("error", f"wrong values on rank {rank}: {record.message or 'no message'}")
    incapable = [record for record in records.values() if record.outcome == "incapable"]
    if incapable:
        return Trouble("incapable", incapable[0].message or "this machine or build can't")
    unfinished = sorted(set(range(ranks)) - {rank for rank, record in records.items() if record.state == "done"})
    if unfinished:
        return Trouble("error", f"rank {', '.join(map(str, unfinished))} left no record of its end")
    return None


def _worst_values(records: Mapping[int, Record]) -> Values | None:
    values = [record.values for record in records.values() if record.values is not None]
    return max(values, key=lambda value: (value.wrong, value.max_error), default=None)


class Environments:
    """What the ranks of each start recorded of what they ran on and with; facts on which ranks differ are joined."""

    def __init__(self, folder: RunFolder) -> None:
        plan = folder.plan()
        self._unknown = Environment(ranks=plan.ranks, ranks_per_gpu=plan.ranks_per_gpu, hosts=0, launcher=plan.launcher)
        self._by_start: dict[int, Environment] = {}
        self._last: dict[str, Environment] = {}
        for start in folder.starts():
            ranks = folder.environments(start)
            if any(rank.error is None for rank in ranks.values()):
                environment = _merged(plan, [ranks[rank] for rank in sorted(ranks)])
                self._by_start[start] = environment
                part = folder.plan_of(start)
                name = part.cases[0].configuration if part and part.cases else DEFAULT_CONFIGURATION
                self._last[name] = environment

    @property
    def usual(self) -> Environment:
        """That of the default configuration's last start; of another's where the default one has none."""
        return self._last.get(DEFAULT_CONFIGURATION) or next(reversed(self._last.values()), self._unknown)

    def of(self, start: int | None, configuration: str) -> Environment:
        """That of a start; where its ranks wrote none, of its configuration's last start."""
        found = self._by_start.get(start) if start is not None else None
        return found or self._last.get(configuration) or self._unknown


def read_environment(folder: RunFolder) -> Environment:
    """The environment of a run: of the default configuration's last start whose ranks wrote theirs."""
    return Environments(folder).usual


def _merged(plan: Plan, own: Sequence[RankEnvironment]) -> Environment:
    def joined(values: Sequence[str | None]) -> str | None:
        return " / ".join(dict.fromkeys(value for value in values if value)) or None

    def agreed(values: Sequence[bool | None]) -> bool | None:
        told = {value for value in values if value is not None}
        return None if not told else all(told)

    return Environment(
        ranks=plan.ranks,
        ranks_per_gpu=plan.ranks_per_gpu,
        hosts=len({rank.hostname for rank in own}),
        launcher=plan.launcher,
        python=joined([rank.python for rank in own]),
        torch=joined([rank.torch for rank in own]),
        cuda=joined([rank.cuda for rank in own]),
        nccl=joined([rank.nccl.version if rank.nccl else None for rank in own]),
        nccl_built=joined([rank.nccl.built if rank.nccl else None for rank in own]),
        nccl_path=joined([rank.nccl.path if rank.nccl else None for rank in own]),
        driver=joined([rank.driver for rank in own]),
        gpu=joined([rank.device_name for rank in own]),
        capability=joined([".".join(map(str, rank.capability)) if rank.capability else None for rank in own]),
        multicast=agreed([rank.multicast for rank in own]),
        nvlink=agreed([rank.nvlink for rank in own]),
        # Where NCCL's log lies says nothing elsewhere: it is a path on the machine that ran.
        variables={name: value for rank in own for name, value in rank.env.items() if name != "NCCL_DEBUG_FILE"},
    )


def _starts(folder: RunFolder, results: Sequence[CaseResult]) -> list[StartResult]:
    starts = []
    for number in folder.starts():
        end = folder.end(number)
        starts.append(
            StartResult(
                number=number,
                cases=[result.id for result in results if result.start == number],
                ended=end.ended if end else "died",
                message=end.message if end else "the run was ended from outside",
            )
        )
    return starts


def suite_coverage(results: Sequence[CaseResult]) -> dict[GatePhase, Coverage]:
    """The suite's coverage: only phases that expect `symmetric` count, so that controls do not lower it.

    Where the kinds of a phase have each its own expectation, only those that expect `symmetric` count.
    """
    phases: dict[GatePhase, list[Coverage]] = {}
    for result in results:
        for phase in result.phases:
            if phase.expected != "symmetric":
                continue
            shown = phase.coverage
            if phase.kinds:
                wanted = {kind for kind, expected in phase.kinds.items() if expected == "symmetric"}
                of_phase = (row for row in result.collectives if row.phase in GATE_PHASES[phase.phase])
                shown = coverage(row for row in of_phase if row.kind in wanted)
            phases.setdefault(phase.phase, []).append(shown)
    return {phase: added(parts) for phase, parts in phases.items()}
