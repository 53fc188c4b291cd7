"""What the caller asked for, from flags, checked once and then frozen."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import cast, get_args

import msgspec

from .errors import UserError
from .model import GatePhase
from .plan import LauncherName
from .result import Gate, Outcome

DEFAULT_OUT = Path("symmem-check-out")
SCRIPT_STEPS = 3
SCRIPT_WARMUP = 3
SCRIPT_TIMEOUT = 1800


class ScriptSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a training script: its file and arguments, and which of its steps to trace.

    `timeout` is in seconds, for the whole script. `keep_going` lets the script run to its end.
    """

    file: str
    arguments: tuple[str, ...]
    steps: int
    warmup: int
    keep_going: bool
    timeout: float


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a suite. `ranks` and `ranks_per_gpu` are None where the suite and the machine decide.

    `python` is the interpreter with the torch under test; `nccl` a path or a version, None for torch's own. `gate` is
    what the verdict is to hold, and `baseline` the result to compare with, None where there is none. With `page`
    the page is among the reports. With `witness` NCCL writes its own log, to be held against the traces. `launcher`
    starts the ranks: on this machine, or on those of the allocation of Slurm that this is called in.
    """

    suite: str
    only: tuple[str, ...]
    ranks: int | None
    ranks_per_gpu: int | None
    python: str
    nccl: str | None
    out: Path
    replay: bool
    script: ScriptSettings | None = None
    gate: Gate = Gate()
    baseline: Path | None = None
    page: bool = False
    witness: bool = False
    launcher: LauncherName = "torchrun"


def run_settings(arguments: argparse.Namespace) -> RunSettings:
    """Settings of `symmem-check run`. Raises UserError for flags that don't go together."""
    if arguments.replay:
        given = {"--ranks": arguments.ranks, "--ranks-per-gpu": arguments.ranks_per_gpu, "--nccl": arguments.nccl}
        given |= {"--python": arguments.python, "--suite": arguments.suite, "--witness": arguments.witness or None}
        extra = [flag for flag, value in given.items() if value is not None]
        if extra:
            raise UserError(f"{' and '.join(extra)} can't change a recorded run; leave it out, or leave out --replay")
    if arguments.launcher == "slurm" and (arguments.replay or arguments.script is not None):
        raise UserError(
            f"--launcher slurm starts the probes' ranks only; leave it out, or leave out "
            f"{'--replay' if arguments.replay else '--script'}"
        )
    from .nccl_library import check_nccl  # the parser needs these settings' defaults alone

    check_nccl(arguments.nccl)
    return RunSettings(
        suite=arguments.suite or "default",
        only=tuple(arguments.only),
        ranks=arguments.ranks,
        ranks_per_gpu=arguments.ranks_per_gpu,
        python=arguments.python or default_python(),
        nccl=arguments.nccl,
        out=arguments.out,
        replay=arguments.replay,
        script=script_settings(arguments),
        gate=gate_settings(arguments),
        baseline=baseline_setting(arguments),
        page=arguments.page,
        witness=arguments.witness,
        launcher=arguments.launcher,
    )


def gate_settings(arguments: argparse.Namespace) -> Gate:
    """What the gate is asked to hold. By default there is no minimum, and what fails is `FAILING`."""
    asked: dict[GatePhase, float | None] = {
        "forward": arguments.min_forward_coverage, "backward": arguments.min_backward_coverage,
    }  # fmt: skip
    return Gate(
        fail_on=arguments.fail_on or Gate().fail_on,
        minimum={phase: value / 100 for phase, value in asked.items() if value is not None},
        coverage_by=arguments.coverage_by,
    )


def baseline_setting(arguments: argparse.Namespace) -> Path | None:
    """The baseline's file. Raises UserError where one is required and none is given."""
    given: str | None = arguments.baseline or None
    if given is None and arguments.require_baseline:
        raise UserError("--require-baseline: there is no baseline; give a result.json with --baseline FILE")
    if given == "auto" and not Path(given).exists():
        raise UserError(
            "--baseline auto: fetching one takes a token, which must not be where your code runs; fetch it before, "
            "with symmem-check fetch baseline --out DIR, and give --baseline DIR/baseline.json"
        )
    return Path(given) if given is not None else None


def script_settings(arguments: argparse.Namespace) -> ScriptSettings | None:
    """Settings of `--script`; None without it. Raises UserError for flags that don't go together."""
    own = {
        "--steps": arguments.steps, "--warmup": arguments.warmup, "--timeout": arguments.timeout,
        "--keep-going": arguments.keep_going or None, "arguments after --": arguments.script_arguments or None,
    }  # fmt: skip
    if arguments.script is None:
        if extra := [flag for flag, value in own.items() if value is not None]:
            raise UserError(f"{' and '.join(extra)} belong to a training script; give one with --script FILE")
        return None
    others = {"--suite": arguments.suite, "--only": arguments.only or None, "--replay": arguments.replay or None}
    if extra := [flag for flag, value in others.items() if value is not None]:
        raise UserError(f"{' and '.join(extra)} can't go with --script: that runs your script and no suite")
    if not Path(arguments.script).is_file():
        wrong = "is a folder" if Path(arguments.script).is_dir() else "no such file"
        raise UserError(f"{arguments.script}: {wrong}; give the training script's path with --script")
    return ScriptSettings(
        file=arguments.script,
        arguments=tuple(arguments.script_arguments),
        steps=arguments.steps or SCRIPT_STEPS,
        warmup=arguments.warmup or SCRIPT_WARMUP,
        keep_going=arguments.keep_going,
        timeout=arguments.timeout or SCRIPT_TIMEOUT,
    )


def default_python() -> str:
    """The caller's `python3`: the torch under test is the caller's, never this tool's own environment's."""
    found = shutil.which("python3") or shutil.which("python")
    if found is None:
        raise UserError("no python3 on the PATH; say with --python which Python has the torch to test")
    return found


def positive(text: str) -> int:
    """A number from 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def percentage(text: str) -> float:
    """A number from 0 to 100, for argparse."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 100")
    return value


def outcomes(text: str) -> tuple[Outcome, ...]:
    """A list of outcomes that fail the gate, for argparse."""
    allowed = [outcome for outcome in get_args(Outcome) if outcome != "pass"]
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in allowed:
            raise argparse.ArgumentTypeError(f"{name!r} is no outcome that may fail; these are: {', '.join(allowed)}")
    if not names:
        raise argparse.ArgumentTypeError(f"names no outcome; these may fail: {', '.join(allowed)}")
    return tuple(sorted({cast("Outcome", name) for name in names}))
