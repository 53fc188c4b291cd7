"""Recorded traces as a Result, so that all that a gate asks and a report tells can be had without a GPU."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import msgspec

from . import __version__
from .compare import read_baseline
from .errors import UserError
from .judge.baseline_sides import steps_of
from .judge.gate import verdict
from .judge.script import MOST_FALLEN, Call, gate_coverage, script_fallen, script_rows
from .judge.script_issuers import issuers
from .model import Collective
from .result import Environment, Result, SuiteName, Verdict
from .run import finish, prepare
from .script_result import ScriptResult
from .settings import RunSettings
from .trace.collectives import TraceFile
from .traces import Traces, find_traces, printable, read_traces


def run_traces(patterns: tuple[str, ...], settings: RunSettings, tell: Callable[[str], None]) -> Result:
    """Judge the traces that `patterns` name as one run of training, and write its reports as `run` does.

    Raises UserError where one of them can't be read: a rank that is missing would look like a change.
    """
    baseline = read_baseline(settings.baseline, of="traces")
    traces = read_traces(patterns, tell)
    if traces.errors:
        raise UserError(f"{traces.errors[0].file}: {traces.errors[0].message}")
    prepare(settings.out)
    return finish(judge_traces(patterns, traces), settings, baseline)


def judge_traces(patterns: tuple[str, ...], traces: Traces) -> Result:
    """The Result of traces, a file a rank; nothing is known of their machine but how many ranks there were."""
    by_name = {printable(found.path): found.path for found in find_traces(patterns, [])}
    calls = [call for file in traces.files for call in _calls(file, by_name[file.file])]
    collectives = [call.collective for call in calls]
    steps = steps_of(collectives)
    ranks = max([len(traces.files), *(file.world_size or 0 for file in traces.files)])
    environment = Environment(ranks=ranks, ranks_per_gpu=1, hosts=0)
    fallen = script_fallen(calls, steps, [], None, environment)
    trouble = None if calls else _why_none(traces)
    script = ScriptResult(
        command=list(patterns), ranks=ranks, steps=steps, warmup=0, rows=script_rows(collectives, steps),
        fallen=fallen[:MOST_FALLEN], more_fallen=max(0, len(fallen) - MOST_FALLEN), trouble=trouble,
        recorded=True,
    )  # fmt: skip
    result = Result(
        version=__version__,
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        looks_at=f"{len(traces.files)} recorded {'trace' if len(traces.files) == 1 else 'traces'}",
        suite=SuiteName("traces", " ".join(patterns)),
        verdict=Verdict("unmeasured", f"Nothing could be measured: {trouble or 'not judged yet'}."),
        coverage=gate_coverage(collectives),
        cases=[],
        script=script,
        environment=environment,
        notes=_notes(traces),
    )
    return msgspec.structs.replace(result, verdict=verdict(result))


def _calls(file: TraceFile, path: Path) -> list[Call]:
    """The collectives of a file's whole steps, or all of it where it has no steps, with who issued them."""
    inside = [row for row in file.collectives if row.step is not None or row.phase == "unknown"]
    rows: list[Collective] = inside if any(row.step is not None for row in inside) else list(file.collectives)
    return [Call(row, issuer) for row, issuer in zip(rows, issuers(path, rows, []), strict=True)]


def _why_none(traces: Traces) -> str:
    if not any(file.gpu_rows for file in traces.files):
        return "the traces have no GPU events; record them with ProfilerActivity.CUDA, and no other profiler attached"
    return "no collective was found in the traces"


def _notes(traces: Traces) -> list[str]:
    notes = [f"{file.file} was salvaged: {file.salvaged}" for file in traces.files if file.salvaged]
    stepless = sum(not any(row.step is not None for row in file.collectives) for file in traces.files)
    if stepless:
        notes.append(f"{stepless} of {len(traces.files)} traces have no ProfilerStep and count as one step each")
    return notes
