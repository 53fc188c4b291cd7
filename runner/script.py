"""`symmem-check run --script`: the user's own training script on this machine's GPUs, a few of its steps judged."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec

from .compare import read_baseline
from .errors import Interrupted
from .judge.script import judge_script, unmeasured_script
from .launch import SHARED_GPU_ENVIRONMENT, checks_folder, describe_python
from .nccl_library import nccl_to_preload
from .nccl_log import log_variables, replacing
from .plan import Case, Plan, write_plan
from .processes import POLL_SECONDS, Processes, how_it_ended
from .result import Result
from .run import finish, prepare, share
from .runfolder import End, RunFolder, write_json
from .script_result import ScriptResult
from .settings import RunSettings, ScriptSettings
from .watch import Stop, holding_signals, stoppable

STOP_SECONDS = 5.0
FOLDER = "cases/script"


class ScriptPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What checks/ reads from script.json. The arguments stand here, since torchrun's parser would look at them too."""

    schema: int = 1
    script: str
    arguments: tuple[str, ...]
    folder: str = FOLDER
    start: int = 0
    ranks_per_gpu: int
    warmup: int
    steps: int
    keep_going: bool


def run_script(settings: RunSettings, script: ScriptSettings, tell: Callable[[str], None]) -> Result:
    """Run the script, judge the steps traced, and write result.json, junit.xml, summary.md and the run folder.

    `tell` takes progress, a line at a time. Raises UserError for what the caller has to change first. SIGINT,
    SIGTERM and SIGHUP end the ranks; then what was traced is judged and written, and Interrupted is raised.
    """
    baseline = read_baseline(settings.baseline, of="script")
    prepare(settings.out)
    began = time.monotonic()
    facts = describe_python(settings.python)
    gpus = len(facts.devices)
    ranks = settings.ranks or max(2, gpus)
    asked = asked_for(script, ranks)
    if facts.error is not None:
        return finish(unmeasured_script(asked, settings.ranks_per_gpu or 1, facts.error), settings, baseline)
    ranks_per_gpu = share(ranks, settings.ranks_per_gpu, gpus)
    preload = nccl_to_preload(settings.nccl, facts, tell)
    first, last = asked.warmup + 1, asked.warmup + asked.steps
    used = f"{-(-ranks // ranks_per_gpu)} × {facts.devices[0].name}"
    tell(f"{script.file}: {ranks} ranks on {used}, torch {facts.torch}")
    tell(f"tracing steps {first} to {last}; its output goes to {settings.out / 'run/starts/0/log.txt'}")
    if ranks_per_gpu > 1 and preload is None:
        tell(f"{ranks_per_gpu} ranks share a GPU, which needs NCCL 2.30.3 or newer (--nccl 2.30.7)")
    if settings.witness and (told := replacing(os.environ)):
        tell(told)
    folder = RunFolder(settings.out / "run")
    with holding_signals() as stop:
        end = run_ranks(
            script, folder, ranks, ranks_per_gpu,
            python=settings.python, preload=preload, witness=settings.witness, stop=stop,
        )  # fmt: skip
        tell(_told(end))
        result = judge_script(folder, asked)
        seconds = {"all": round(time.monotonic() - began, 3)}
        result = finish(msgspec.structs.replace(result, seconds=seconds), settings, baseline)
    if stop.signal:
        name = signal.Signals(stop.signal).name
        raise Interrupted(f"interrupted by {name}; reports of what was traced are in {settings.out}", stop.signal)
    return result


def _told(end: End) -> str:
    if end.ended == "stopped":
        return f"the script was {end.message}"
    return f"the script {end.ended}" + (f": {end.message}" if end.message else "")


def asked_for(script: ScriptSettings, ranks: int) -> ScriptResult:
    """What was asked for, as the part of the Result that is there before anything has run."""
    return ScriptResult(
        command=[script.file, *script.arguments],
        ranks=ranks,
        steps=script.steps,
        warmup=max(2, script.warmup),
    )


def run_ranks(
    script: ScriptSettings,
    folder: RunFolder,
    ranks: int,
    ranks_per_gpu: int,
    *,
    python: str,
    preload: Path | None = None,
    environment: dict[str, str] | None = None,
    witness: bool = False,
    stop: Stop | None = None,
) -> End:
    """Run the script once under torchrun, writing into `folder`; returns how it ended.

    With `witness` NCCL writes its own log there too, wherever the caller had it.

    Environment (by default this process's), working directory and arguments are the caller's. No process of it is
    left when this returns. SIGINT, SIGTERM and SIGHUP end the ranks first and act then; a caller that holds them
    itself gives its `stop`.
    """
    path = folder.path.resolve()
    case = Case(id="script", folder=FOLDER, workload=script.file, axes={}, deadline=script.timeout)
    whole = Plan(ranks=ranks, ranks_per_gpu=ranks_per_gpu, steps=script.steps, witness=witness, cases=[case])
    write_plan(whole, path / "plan.json")
    plan = ScriptPlan(
        script=script.file, arguments=script.arguments, ranks_per_gpu=ranks_per_gpu, warmup=script.warmup,
        steps=script.steps, keep_going=script.keep_going,
    )  # fmt: skip
    (path / "script.json").write_bytes(msgspec.json.encode(plan))
    start = path / "starts" / "0"
    start.mkdir(parents=True)
    caller = dict(os.environ) if environment is None else environment
    # torchrun would set the threads alike, and say so at length.
    needed = {"OMP_NUM_THREADS": "1"} | (SHARED_GPU_ENVIRONMENT if ranks_per_gpu > 1 else {})
    variables = {**needed, **caller, **(log_variables(start) if witness else {})}
    with stoppable() if stop is None else nullcontext(stop) as asked:
        processes = Processes(_command(path, ranks, python, preload, caller), variables, start / "log.txt")
        try:
            end = _follow(processes, asked, script.timeout)
        finally:
            processes.stop(patience=0)
        write_json(end, start / "end.json")
    return end


def _command(path: Path, ranks: int, python: str, preload: Path | None, caller: dict[str, str]) -> list[str]:
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--no-python"]
    preloads = [str(preload.resolve()), caller.get("LD_PRELOAD", "")] if preload else []
    assign = [f"LD_PRELOAD={':'.join(filter(None, preloads))}"] if preload else []
    rank = [python, str(checks_folder() / "__main__.py"), "--script", str(path / "script.json"), "--into", str(path)]
    return [*torchrun, "env", *assign, *rank]


def _follow(processes: Processes, stop: Stop, timeout: float) -> End:
    """Wait for the end of the script, ending it where it takes too long or `stop` asks."""
    end = time.monotonic() + timeout
    while True:
        status = processes.poll()
        if stop.signal:
            message = f"stopped by {signal.Signals(stop.signal).name} while it ran"
            return End(exit_status=processes.stop(STOP_SECONDS), ended="stopped", message=message)
        if status is not None:
            return _how_it_ended(processes, status)
        if time.monotonic() > end:
            message = f"no end within {timeout:g} s; give a longer --timeout if the script needs it"
            return End(exit_status=processes.stop(STOP_SECONDS), ended="hung", message=message)
        time.sleep(POLL_SECONDS)


def _how_it_ended(processes: Processes, status: int) -> End:
    if status == 0:
        return End(exit_status=0, ended="finished")
    failure = processes.first_failure()
    if status > 0 and failure is not None:
        message = f"rank {failure[0]} {how_it_ended(failure[1])}"
    else:
        message = f"torchrun {how_it_ended(status)}: {processes.last_words()}"
    return End(exit_status=status, ended="died", message=message)
