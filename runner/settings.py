"""What the caller asked for, from flags, checked once and then frozen."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import msgspec

from .errors import UserError
from .suite import GatePhase

DEFAULT_OUT = Path("symmem-check-out")
SCRIPT_STEPS = 3
SCRIPT_WARMUP = 3
SCRIPT_TIMEOUT = 1800


class ScriptSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a training script: its file and arguments, and which of its steps to trace.

    `timeout` is in seconds, for the whole script; `minimum` is the coverage asked for, from 0 to 1, by phase.
    `keep_going` lets the script run to its end.
    """

    file: str
    arguments: tuple[str, ...]
    steps: int
    warmup: int
    keep_going: bool
    timeout: float
    minimum: dict[GatePhase, float]


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a suite. `ranks` and `ranks_per_gpu` are None where the suite and the machine decide.

    `python` is the interpreter with the torch under test; `nccl` a path or a version, None for torch's own.
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


def run_settings(arguments: argparse.Namespace) -> RunSettings:
    """Settings of `symmem-check run`. Raises UserError for flags that don't go together."""
    if arguments.replay:
        given = {"--ranks": arguments.ranks, "--ranks-per-gpu": arguments.ranks_per_gpu, "--nccl": arguments.nccl}
        given |= {"--python": arguments.python, "--suite": arguments.suite}
        extra = [flag for flag, value in given.items() if value is not None]
        if extra:
            raise UserError(f"{' and '.join(extra)} can't change a recorded run; leave it out, or leave out --replay")
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
    )


def script_settings(arguments: argparse.Namespace) -> ScriptSettings | None:
    """Settings of `--script`; None without it. Raises UserError for flags that don't go together."""
    minimum: dict[GatePhase, float | None] = {
        "forward": arguments.min_forward_coverage, "backward": arguments.min_backward_coverage,
    }  # fmt: skip
    own = {
        "--steps": arguments.steps, "--warmup": arguments.warmup, "--timeout": arguments.timeout,
        "--keep-going": arguments.keep_going or None, "arguments after --": arguments.script_arguments or None,
        "--min-forward-coverage": minimum["forward"], "--min-backward-coverage": minimum["backward"],
    }  # fmt: skip
    if arguments.script is None:
        if extra := [flag for flag, value in own.items() if value is not None]:
            raise UserError(f"{' and '.join(extra)} belong to a training script; give one with --script FILE")
        return None
    others = {"--suite": arguments.suite, "--only": arguments.only or None, "--replay": arguments.replay or None}
    if extra := [flag for flag, value in others.items() if value is not None]:
        raise UserError(f"{' and '.join(extra)} can't go with --script: that runs your script and no suite")
    if not Path(arguments.script).is_file():
        raise UserError(f"{arguments.script}: no such file; give the training script's path with --script")
    return ScriptSettings(
        file=arguments.script,
        arguments=tuple(arguments.script_arguments),
        steps=arguments.steps or SCRIPT_STEPS,
        warmup=arguments.warmup or SCRIPT_WARMUP,
        keep_going=arguments.keep_going,
        timeout=arguments.timeout or SCRIPT_TIMEOUT,
        minimum={phase: value / 100 for phase, value in minimum.items() if value is not None},
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
