"""What of a Result, or of traces, is compared: its counts by key, the machine, the versions and the expectations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..model import PHASES, Collective, GatePhase
from ..result import CaseResult, Environment, PhaseResult, Result
from ..watch import NOT_RUN
from .baseline import Counts, Entry, Key, Side
from .coverage import GATE_PHASES, coverage

if TYPE_CHECKING:
    from ..traces import Traces

# They take multicast away where the hardware has it, so a difference that comes from them is none of the machine's.
NO_MULTICAST = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST")
TOLD_VARIABLES = ("NCCL_", "TORCH_", "NVSHMEM_")


def why_no_baseline(result: Result) -> str | None:
    """Why a result can't be a baseline, as the end of a sentence that begins with its name; None where it can.

    Its verdict bears on that only where nothing was measured: a run that failed tells as well what ran.
    """
    if result.replay:
        return "is a replay of the recorded run that ships with symmem-check"
    if any(start.ended == "stopped" for start in result.starts) or any(
        case.trouble == NOT_RUN for case in result.cases
    ):
        return "is of a run that was interrupted"
    return why_not_comparable(result)


def why_not_comparable(result: Result) -> str | None:
    """Why there is nothing in a result to compare, as the end of a sentence; None where there is something."""
    if result.script is not None and result.script.trouble is not None:
        why = "traces that show nothing" if result.script.recorded else "a script that did not come to its end"
        return f"is of {why} ({result.script.trouble})"
    if result.verdict.word in ("unmeasured", "no-capacity"):
        return f"has the verdict {result.verdict.word} ({result.verdict.sentence.removesuffix('.')})"
    return None


def side_of_result(result: Result, file: str, judged: Iterable[tuple[str, GatePhase]] = ()) -> Side:
    """A Result as a side; `judged` are phases of cases that count though this run does not judge them."""
    if result.script is not None:
        entries = {
            Key(None, row.phase, row.kind, row.group, row.group_size, row.dtype): Entry(
                Counts.of(row.coverage, result.script.steps)
            )
            for row in result.script.rows
        }
    else:
        wanted = set(judged)
        entries = dict(entry for case in result.cases for entry in _entries(case, wanted))
    return Side(
        file=file,
        checks=result.script is None,
        entries=entries,
        machine=_machine(result.environment),
        versions=_versions(result.environment),
        variables={
            name: value for name, value in result.environment.variables.items() if name.startswith(TOLD_VARIABLES)
        },
        expected={(case.id, phase.phase): _expected(phase) for case in result.cases for phase in case.phases},
        coverage=result.coverage,
        version=result.version,
        created=result.created,
    )


def _entries(case: CaseResult, judged: set[tuple[str, GatePhase]]) -> Iterable[tuple[Key, Entry]]:
    steps = steps_of(case.collectives)
    own = {phase.phase for phase in case.phases}
    for phase in case.phases:
        found = Counts.of(phase.coverage, steps)
        # In a case that went wrong as a whole some ranks may be missing, so what the others did is no measure.
        measured = case.trouble is None and (any(found) or phase.outcome not in ("unmeasured", "incapable"))
        yield Key(case.id, phase.phase), Entry(found if measured else None, phase.outcome)
    for gate, phases in GATE_PHASES.items():
        # A suite that no longer judges a phase does not hide what ran in it.
        rows = [row for row in case.collectives if row.phase in phases]
        if rows and gate not in own and (case.id, gate) in judged:
            yield Key(case.id, gate), Entry(Counts.of(coverage(rows), steps))


def steps_of(collectives: Iterable[Collective]) -> int:
    """In how many steps collectives ran, on the rank with the most; 1 where none of them tells."""
    steps: dict[int | None, set[int]] = {}
    for row in collectives:
        if row.step is not None:
            steps.setdefault(row.rank, set()).add(row.step)
    return max(map(len, steps.values()), default=1)


def _expected(phase: PhaseResult) -> str:
    return ", ".join(f"{kind} {expected}" for kind, expected in sorted(phase.kinds.items())) or phase.expected


def _machine(about: Environment) -> dict[str, str]:
    """The facts of the machine that decide which kernels can run, as far as they are known."""
    words = {True: "yes", False: "no", None: None}
    multicast = words[about.multicast]
    off = [name for name in NO_MULTICAST if name in about.variables]
    if about.multicast is False and off and about.ranks_per_gpu == 1:
        multicast = None  # a variable took it away, which is no fact of the machine, and excuses nothing
    facts = {
        "GPU capability": about.capability, "NVLink": words[about.nvlink], "multicast": multicast,
        "ranks": str(about.ranks), "ranks per GPU": str(about.ranks_per_gpu), "hosts": str(about.hosts or "") or None,
    }  # fmt: skip
    return {name: value for name, value in facts.items() if value is not None}


def _versions(about: Environment) -> dict[str, str]:
    facts = {
        "PyTorch": about.torch, "NCCL": about.nccl, "CUDA": about.cuda, "driver": about.driver, "GPU": about.gpu,
        "Python": about.python,
    }  # fmt: skip
    return {name: value for name, value in facts.items() if value is not None}


def side_of_traces(traces: Traces, name: str) -> Side:
    """Traces, a file a rank, as a side: the collectives of whole steps, or all of a file that has no steps."""
    entries: dict[Key, Entry] = {}
    stepless = 0
    for file in traces.files:
        rows = [row for row in file.collectives if row.step is not None]
        stepless += not rows and bool(file.collectives)
        _add(entries, rows or file.collectives)
    sizes = {file.world_size for file in traces.files if file.world_size is not None}
    machine = {"ranks": " or ".join(map(str, sorted(sizes)))} if sizes else {}
    notes = f"{name}: {stepless} of {len(traces.files)} traces have no ProfilerStep and count as one step each"
    return Side(
        file=name,
        checks=False,
        entries=dict(sorted(entries.items(), key=lambda entry: PHASES.index(entry[0].phase))),
        machine=machine,
        versions=_nccl_built(traces),
        variables=None,
        expected={},
        coverage={
            gate: coverage(row for row in traces.collectives if row.phase in phases)
            for gate, phases in GATE_PHASES.items()
        },
        notes=(notes,) if stepless else (),
    )


def _add(entries: dict[Key, Entry], rows: list[Collective]) -> None:
    groups: dict[Key, list[Collective]] = {}
    for row in rows:
        groups.setdefault(Key(None, row.phase, row.kind, row.group, row.group_size, row.dtype), []).append(row)
    for key, found in groups.items():
        counts = Counts.of(coverage(found), steps_of(rows))
        before = entries[key].counts if key in entries else None
        entries[key] = Entry(before.plus(counts) if before is not None else counts)


def _nccl_built(traces: Traces) -> Mapping[str, str]:
    versions = sorted({file.nccl_built for file in traces.files if file.nccl_built is not None})
    return {"NCCL that torch was built with": " / ".join(versions)} if versions else {}
