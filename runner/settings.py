"""What the caller asked for, from flags, checked once and then frozen."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import msgspec

from .errors import UserError

DEFAULT_OUT = Path("symmem-check-out")


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
