"""`symmem-check run`: a suite on this machine's GPUs, judged, with its reports in the output folder."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from .errors import UserError
from .judge.run import judge_run, unmeasured_run
from .launch import PythonFacts, describe_python, run_plan
from .nccl_library import find_nccl
from .result import Result, write_result
from .runfolder import RunFolder
from .settings import RunSettings
from .suite import Suite, load_suite
from .watch import CaseProgress

REPLAY = Path(__file__).with_name("replay")
EXIT_STATUS = {"pass": 0, "fail": 1, "unmeasured": 3, "no-capacity": 4}


def run(settings: RunSettings, tell: Callable[[str], None]) -> Result:
    """Run a suite, or judge the recorded run, and write result.json, junit.xml, summary.md and the run folder.

    `tell` takes progress, a line at a time. Raises UserError for what the caller has to change first.
    """
    suite = load_suite(settings.suite).select(settings.only)
    if settings.replay:
        result = replay(suite)
    else:
        prepare(settings.out)
        result = run_suite(settings, suite, tell)
    write_reports(result, settings.out)
    return result


def replay(suite: Suite) -> Result:
    """Judge the run that ships with the project, recorded on a real GPU."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        raise UserError("--replay judges a recorded run, so it says nothing of this workflow; leave it out")
    result = judge_run(RunFolder(REPLAY), suite, replay=True)
    note = "this is the recorded run that ships with symmem-check, not a run on this machine"
    return msgspec.structs.replace(result, notes=[note, *result.notes])


def run_suite(settings: RunSettings, suite: Suite, tell: Callable[[str], None]) -> Result:
    """Run the suite's cases and judge them; a machine that can't gives a Result that says why."""
    began = time.monotonic()
    facts = describe_python(settings.python)
    described = time.monotonic()
    if facts.error is not None:
        return unmeasured_run(suite, settings.ranks or suite.ranks, settings.ranks_per_gpu or 1, facts.error)
    ranks = settings.ranks or suite.ranks
    ranks_per_gpu = share(ranks, settings.ranks_per_gpu, len(facts.devices))
    preload = _preload(settings, facts, tell)
    plan = suite.plan(ranks=ranks, ranks_per_gpu=ranks_per_gpu)
    gpus = -(-ranks // ranks_per_gpu)
    tell(f"{len(plan.cases)} cases, {ranks} ranks on {gpus} × {facts.devices[0].name}, torch {facts.torch}")
    folder = RunFolder(settings.out / "run")
    run_plan(
        plan, folder.path, python=settings.python, preload=preload, progress=lambda change: _progress(change, tell)
    )
    ran = time.monotonic()
    result = judge_run(folder, suite)
    seconds = {"describe": described - began, "run": ran - described, "judge": time.monotonic() - ran}
    return msgspec.structs.replace(result, seconds={name: round(value, 3) for name, value in seconds.items()})


def share(ranks: int, ranks_per_gpu: int | None, gpus: int) -> int:
    """How many ranks go on a GPU: one, or two on a single GPU, unless the caller says. Raises UserError."""
    if ranks_per_gpu is None:
        ranks_per_gpu = 2 if gpus == 1 and ranks == 2 else 1
    needed = -(-ranks // ranks_per_gpu)
    if needed > gpus:
        least = -(-ranks // gpus)
        raise UserError(
            f"{ranks} ranks, {ranks_per_gpu} a GPU, need {needed} GPUs; this machine shows {gpus}: "
            f"give --ranks-per-gpu {least}, or fewer --ranks"
        )
    return ranks_per_gpu


def _preload(settings: RunSettings, facts: PythonFacts, tell: Callable[[str], None]) -> Path | None:
    if settings.nccl is None:
        return None
    cuda = (facts.cuda or "").split(".")[0]
    if not cuda.isdecimal():
        raise UserError(f"--nccl: torch {facts.torch} is not built for CUDA, so no NCCL can be put under it")
    return find_nccl(settings.nccl, cuda_major=int(cuda), tell=tell)


def prepare(out: Path) -> None:
    """Make the output folder, without what an earlier run left there. Only this tool's own files are removed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in ("result.json", "junit.xml", "summary.md"):
            (out / name).unlink(missing_ok=True)
        old = out / "run"
        if (old / "plan.json").is_file():
            shutil.rmtree(old)
        elif old.exists() and any(old.iterdir()):
            raise UserError(f"{old}: holds something that is no run; give another folder with --out")
    except OSError as error:
        raise UserError(f"{out}: can't be used for the output ({error.strerror or error}); give --out DIR") from None


def write_reports(result: Result, out: Path) -> None:
    """Write result.json and the reports made from it alone."""
    from .report.junit import junit_xml
    from .report.markdown import summary_markdown

    try:
        out.mkdir(parents=True, exist_ok=True)
        write_result(result, out / "result.json")
        (out / "junit.xml").write_text(junit_xml(result), encoding="utf-8")
        (out / "summary.md").write_text(summary_markdown(result), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: the reports can't be written ({error.strerror or error}); give --out DIR") from None


def _progress(change: CaseProgress, tell: Callable[[str], None]) -> None:
    """Tell a case's end in a line; its begin only where a terminal shows it until then."""
    place = f"[{change.index + 1:>{len(str(change.total))}}/{change.total}] {change.case}"
    if change.state == "started":
        if sys.stderr.isatty():
            sys.stderr.write(f"{place} …\r")
            sys.stderr.flush()
        return
    said = {"ok": "done", "wrong-values": "wrong values"}.get(change.outcome or "", change.outcome or change.state)
    again = (
        " (the rest runs in a fresh process group)" if change.outcome not in ("ok", "incapable", "wrong-values") else ""
    )
    more = f": {change.message}" if change.message else ""
    tell(f"{place} {said}, {change.seconds:.1f} s{more}{again}")
