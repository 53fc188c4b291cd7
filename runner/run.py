"""`symmem-check run`: a suite on this machine's GPUs, judged, with its reports in the output folder."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from .allocation import find_allocation
from .compare import read_baseline
from .errors import Interrupted, UserError
from .judge.gate import gated
from .judge.run import judge_run, unmeasured_run
from .launch import PythonFacts, checks_folder, describe_python, run_here, run_plan
from .nccl_library import nccl_to_preload
from .nccl_log import replacing
from .plan import DEFAULT_CONFIGURATION, Configuration, Plan
from .result import Result, write_result
from .runfolder import RunFolder
from .settings import RunSettings
from .srun import Srun
from .suite import Suite, load_suite
from .traces import printable
from .watch import CaseProgress, Stop, holding_signals

REPLAY = Path(__file__).with_name("replay")
EXIT_STATUS = {"pass": 0, "fail": 1, "unmeasured": 3, "no-capacity": 4}


def run(settings: RunSettings, tell: Callable[[str], None]) -> Result:
    """Run a suite, or judge the recorded run, and write result.json, junit.xml, summary.md and the run folder.

    `tell` takes progress, a line at a time. Raises UserError for what the caller has to change first. SIGINT,
    SIGTERM and SIGHUP end the ranks; then what was done is judged and written, and Interrupted is raised.
    """
    suite = load_suite(settings.suite).select(settings.only)
    baseline = read_baseline(settings.baseline, of="suite")
    if settings.replay:
        result = replay(suite)
        prepare(settings.out)
        return finish(result, settings, baseline)
    suite.find_workloads()
    srun = Srun(find_allocation(os.environ, settings.ranks), os.environ) if settings.launcher == "slurm" else None
    prepare(settings.out)
    ranks = srun.allocation.ranks if srun else settings.ranks or suite.ranks
    if srun:
        srun.look(settings.out.resolve(), needed_files(settings))
    began = time.monotonic()
    facts = describe_python(settings.python, run=srun.run if srun else run_here)
    described = time.monotonic() - began
    if facts.error is not None:
        return finish(unmeasured_run(suite, ranks, settings.ranks_per_gpu or 1, facts.error), settings, baseline)
    preload = nccl_to_preload(settings.nccl, facts, tell)
    if srun:
        # A rank may be shown its own GPU only, so that it is the ranks that tell whether there are enough.
        ranks_per_gpu = settings.ranks_per_gpu or 1
        if preload:
            srun.look(settings.out.resolve(), {preload: "give a file that all hosts see to --nccl"})
    else:
        ranks_per_gpu = share(ranks, settings.ranks_per_gpu, len(facts.devices))
    plan = suite.plan(ranks=ranks, ranks_per_gpu=ranks_per_gpu)
    plan = msgspec.structs.replace(plan, witness=settings.witness, launcher=settings.launcher)
    tell(beginning(plan, facts, srun))
    if plan.witness and (told := replacing(os.environ | plan.variables)):
        tell(told)
    with holding_signals() as stop:
        result = run_suite(suite, plan, settings, tell, preload=preload, stop=stop, srun=srun)
        seconds = {"describe": described, **result.seconds}
        rounded = {name: round(value, 3) for name, value in seconds.items()}
        result = finish(msgspec.structs.replace(result, seconds=rounded), settings, baseline)
    if stop.signal:
        name = signal.Signals(stop.signal).name
        raise Interrupted(f"interrupted by {name}; reports of what was done are in {settings.out}", stop.signal)
    return result


def replay(suite: Suite) -> Result:
    """Judge the run that ships with the project, recorded on a real GPU."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        raise UserError("--replay judges a recorded run, so it says nothing of this workflow; leave it out")
    return judge_run(RunFolder(REPLAY), suite, replay=True)


def run_suite(
    suite: Suite,
    plan: Plan,
    settings: RunSettings,
    tell: Callable[[str], None],
    *,
    preload: Path | None = None,
    stop: Stop | None = None,
    srun: Srun | None = None,
) -> Result:
    """Run the suite's cases by `plan`, into the output folder, and judge them; by `srun` where that is given."""
    folder = RunFolder(settings.out / "run")
    began = time.monotonic()
    run_plan(
        plan, folder.path,
        python=settings.python, preload=preload, progress=Progress(plan, tell), stop=stop, launcher=srun,
    )  # fmt: skip
    ran = time.monotonic()
    stopped = stop is not None and stop.signal
    if not stopped and not any(folder.environments(start) for start in folder.starts()):
        # No rank came up: is there a reason that the quick look at this Python could not see?
        facts = describe_python(settings.python, thorough=True, run=srun.run if srun else run_here)
        if facts.error is not None and (facts.torch is None or plan.device == "cuda"):
            return unmeasured_run(suite, plan.ranks, plan.ranks_per_gpu, facts.error)
    result = judge_run(folder, suite)
    return msgspec.structs.replace(result, seconds={"run": ran - began, "judge": time.monotonic() - ran})


def needed_files(settings: RunSettings) -> dict[Path, str]:
    """What the ranks need on every host, each with what to do where one does not see it."""
    share_it = "put it on a file system that all hosts share"
    found = shutil.which(settings.python)
    python = {Path(found).absolute(): "give a Python that all hosts have, with --python"} if found else {}
    return {
        **python,
        checks_folder() / "__main__.py": f"{share_it}, or install symmem-check there",
        Path.cwd(): share_it,
    }


def beginning(plan: Plan, facts: PythonFacts, srun: Srun | None) -> str:
    """One line on what is about to run, and where."""
    gpu = f"{facts.devices[0].name}, torch {facts.torch}"
    if srun is None:
        return f"{len(plan.cases)} cases, {plan.ranks} ranks on {-(-plan.ranks // plan.ranks_per_gpu)} × {gpu}"
    hosts = srun.allocation.hosts
    return (
        f"{len(plan.cases)} cases, {plan.ranks} ranks on {len(hosts)} host{'s' if len(hosts) > 1 else ''} "
        f"({', '.join(hosts[:4])}{', …' if len(hosts) > 4 else ''}), {plan.ranks_per_gpu} a GPU, {gpu}"
    )


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


def prepare(out: Path) -> None:
    """Make the output folder, without what an earlier run left there. Only this tool's own files are removed."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in ("result.json", "junit.xml", "summary.md", "page.html"):
            (out / name).unlink(missing_ok=True)
        old = out / "run"
        if (old / "plan.json").is_file():
            shutil.rmtree(old)
        elif old.exists() and any(old.iterdir()):
            raise UserError(f"{old}: holds something that is no run; give another folder with --out")
    except OSError as error:
        raise UserError(f"{out}: can't be used for the output ({error.strerror or error}); give --out DIR") from None


def finish(result: Result, settings: RunSettings, baseline: Result | None) -> Result:
    """Hold a Result to the gate that was asked for, and write it with its reports; returns it with the verdict."""
    result = gated(result, settings.gate, baseline, printable(settings.baseline or ""))
    write_reports(result, settings.out, page=settings.page)
    return result


def write_reports(result: Result, out: Path, *, page: bool = False) -> None:
    """Write result.json and the reports made from it alone, with `page` page.html among them."""
    from .report.junit import junit_xml
    from .report.markdown import summary_markdown

    try:
        out.mkdir(parents=True, exist_ok=True)
        write_result(result, out / "result.json")
        (out / "junit.xml").write_text(junit_xml(result), encoding="utf-8")
        (out / "summary.md").write_text(summary_markdown(result), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: the reports can't be written ({error.strerror or error}); give --out DIR") from None
    if page:
        from .report.page import write_page

        write_page(result, out / "page.html")


class Progress:
    """Tells a case's end in a line; its begin only where a terminal shows it until then."""

    def __init__(self, plan: Plan, tell: Callable[[str], None]) -> None:
        self._configurations, self._tell = plan.configurations, tell
        self._configuration = DEFAULT_CONFIGURATION

    def __call__(self, change: CaseProgress) -> None:
        """Tell one change; before it, the launch configuration where that is another one now."""
        if change.configuration != self._configuration:
            self._configuration = change.configuration
            content = self._configurations.get(change.configuration, Configuration())
            self._tell(f"configuration {change.configuration}: {content}")
        place = f"[{change.index + 1:>{len(str(change.total))}}/{change.total}] {change.case}"
        if change.state == "started":
            if sys.stderr.isatty():
                sys.stderr.write(f"{place} …\r")
                sys.stderr.flush()
            return
        said = {"ok": "done", "wrong-values": "wrong values"}.get(change.outcome or "", change.outcome or change.state)
        broken = change.outcome not in ("ok", "incapable", "wrong-values")
        # A case that was lost before it began has taken no time, and took all of its configuration with it.
        goes_on = broken and change.seconds > 0 and change.index + 1 < change.total
        again = " (the rest runs in a fresh process group)" if goes_on else ""
        more = f": {change.message}" if change.message else ""
        self._tell(f"{place} {said}, {change.seconds:.1f} s{more}{again}")
