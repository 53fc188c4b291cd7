"""The Result: one JSON file with all that a run found, from which alone every report is made.

Its schema is versioned: a reader refuses another `schema` instead of guessing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from .comparison import Comparison
from .errors import UserError
from .findings import Cause, Certainty, KernelSeen
from .model import Collective, Coverage, Expectation, GatePhase, Kind
from .plan import LauncherName
from .runfolder import Buffer, Ended, PoolRecord, Values
from .script_result import ScriptResult

__all__ = [
    "FAILING", "RESULT_SCHEMA", "CaseResult", "Cause", "Certainty", "Environment", "Gate", "KernelSeen",
    "KnownProblem", "Outcome", "PhaseResult", "Result", "StartResult", "SuiteName", "Verdict", "VerdictWord",
    "read_result", "write_result",
]  # fmt: skip

RESULT_SCHEMA = 1
LARGEST_RESULT = 256 * 2**20
"""Bytes; eight ranks with twenty thousand collectives each have some sixty million."""

Outcome = Literal["regressed", "known", "error", "unmeasured", "incapable", "fail", "fixed", "pass"]
VerdictWord = Literal["pass", "fail", "unmeasured", "no-capacity"]

FAILING: frozenset[Outcome] = frozenset({"regressed", "fail", "error", "unmeasured"})
"""The outcomes that fail the gate unless the caller chooses others."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """What fails the gate: the outcomes in `fail_on`, and a coverage below `minimum`, from 0 to 1, by phase.

    `coverage_by` says whether that is symmetric launches out of the eligible ones, or bytes.
    """

    fail_on: tuple[Outcome, ...] = tuple(sorted(FAILING))
    minimum: dict[GatePhase, float] = {}
    coverage_by: Literal["calls", "bytes"] = "calls"


class KnownProblem(msgspec.Struct, frozen=True, kw_only=True):
    """The upstream issue that the suite names for a phase, where its version bounds hold."""

    issue: str
    title: str


class PhaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a case: what was expected, what was seen, and the outcome.

    `backward` counts recomputation in. `message` is one sentence; `coverage` and `kernels` are over all ranks
    and traced steps. Where each kind has its own expectation, those are in `kinds`, and `expected` has the strongest.
    """

    phase: GatePhase
    expected: Expectation
    kinds: dict[Kind, Expectation] = {}
    outcome: Outcome
    message: str
    coverage: Coverage
    kernels: list[KernelSeen] = []
    cause: Cause | None = None
    known: KnownProblem | None = None


class BandwidthRow(msgspec.Struct, frozen=True, kw_only=True):
    """Symmetric against general kernels at one size: microseconds a call on the slowest rank, bus bandwidth in GB/s.

    `bytes` is the size of a rank's larger buffer; bus bandwidth as nccl-tests counts it.
    """

    kind: str
    bytes: int
    symmetric_us: float
    general_us: float
    symmetric_gbps: float
    general_gbps: float


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case: its phases, and the evidence behind them.

    `start` is the start of the ranks it ran in. `trouble` is one line on what went wrong in the case as a whole
    (raised, hung, died, wrong values), `detail` the traceback or stacks. `notes` tell what a reader must know
    (a trace that was salvaged), `witness` where NCCL's own log says otherwise than the trace; `witnessed` that the two
    could be compared. `configuration` names the launch configuration it ran in. `seconds` is the slowest rank's time.
    `buffers` are those of rank 0.
    """

    id: str
    check: str
    workload: str
    axes: dict[str, str | int]
    phases: list[PhaseResult]
    configuration: str = "default"
    because: str | None = None
    start: int | None = None
    trouble: str | None = None
    detail: str | None = None
    values: Values | None = None
    pool: PoolRecord | None = None
    buffers: list[Buffer] = []
    notes: list[str] = []
    witness: list[str] = []
    witnessed: bool = False
    bandwidth: list[BandwidthRow] = []
    seconds: float | None = None
    collectives: list[Collective] = []


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks ran on and with, as they recorded it; None where it isn't known.

    `nccl` is the library really loaded, `nccl_built` the one torch was built with. `variables` are the environment
    variables that bear on collectives. Time means nothing where `ranks_per_gpu` is above 1. `launcher` started the
    ranks, on `hosts` machines.
    """

    ranks: int
    ranks_per_gpu: int
    hosts: int
    launcher: LauncherName = "torchrun"
    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    nccl_built: str | None = None
    nccl_path: str | None = None
    driver: str | None = None
    gpu: str | None = None
    capability: str | None = None
    multicast: bool | None = None
    nvlink: bool | None = None
    variables: dict[str, str] = {}


class StartResult(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the ranks: the cases it ran and how it ended."""

    number: int
    cases: list[str]
    ended: Ended
    message: str | None = None


class SuiteName(msgspec.Struct, frozen=True):
    """Which suite was run: its name and its file as given."""

    name: str
    path: str


class Verdict(msgspec.Struct, frozen=True):
    """One word, and one sentence that a person understands."""

    word: VerdictWord
    sentence: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """All of one run. `created` is UTC in ISO 8601; `looks_at` says what the run can speak for.

    `coverage` is the suite's, by gate phase: only the phases that expect `symmetric` count. `seconds` tells where
    the time went. A `replay` judges the recorded run that ships with the project and is never a baseline. `script` is
    there where the user's own script was run; there are no cases then. `gate` is what the verdict was asked to hold,
    `baseline` how the run differs from the one it was compared with, None where there was none.
    """

    schema: int = RESULT_SCHEMA
    tool: str = "symmem-check"
    version: str
    created: str
    replay: bool = False
    looks_at: str
    suite: SuiteName
    verdict: Verdict
    gate: Gate = Gate()
    baseline: Comparison | None = None
    coverage: dict[GatePhase, Coverage]
    cases: list[CaseResult]
    script: ScriptResult | None = None
    starts: list[StartResult] = []
    environment: Environment
    notes: list[str] = []
    seconds: dict[str, float] = {}


def write_result(result: Result, path: Path) -> None:
    """Write a Result as JSON. Raises OSError where the disk does not take it."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")


def read_result(path: Path) -> Result:
    """Read a Result. Raises UserError with file, place and mend for anything else."""
    try:
        size = path.stat().st_size
        if size > LARGEST_RESULT:
            raise UserError(f"{path}: larger than {LARGEST_RESULT // 2**20} MiB, so no result; give a result.json")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); give a result.json") from None
    try:
        schema = msgspec.json.decode(data, type=_Schema).schema
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path}: not a result of symmem-check ({error}); give a result.json") from None
    if schema != RESULT_SCHEMA:
        raise UserError(
            f"{path}: has result schema {schema}, this version reads {RESULT_SCHEMA}; "
            "use the version of symmem-check that wrote it"
        )
    try:
        return msgspec.json.decode(data, type=Result)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path}: not a whole result ({error}); run the check again") from None


class _Schema(msgspec.Struct):
    schema: int
