"""The script that a machine runs: bootstrap.sh, with the lines before it that say for whom."""

from __future__ import annotations

import shlex
from pathlib import Path

from ..github.settings import Token
from .model import Order

SCRIPT = Path(__file__).with_name("bootstrap.sh")


def bootstrap(
    order: Order,
    *,
    work: str,
    jit: Token | None = None,
    jit_file: str = "",
    jit_seconds: int = 0,
    run_as: str = "",
    power_off: bool = False,
) -> str:
    """The whole script, for bash. With `jit` it holds a secret; else the runner's configuration comes by `jit_file`,
    within `jit_seconds`.

    `work` is the folder on the machine in which one of the machine's name is made, and removed at the end. `run_as` is
    the job's user, where the script runs as root.
    """
    values = {
        "NAME": order.owner.name,
        "JIT": jit.value if jit is not None else "",
        "JIT_FILE": jit_file,
        "JIT_SECONDS": str(jit_seconds),
        "DEADLINE": str(order.limits.seconds),
        "IDLE": str(order.limits.idle_minutes * 60),
        "RUNNER": order.program.folder,
        "RUNNER_URL": order.program.url,
        "RUNNER_SHA256": order.program.sha256,
        "WORK": work,
        "RUN_AS": run_as,
        "POWER_OFF": "1" if power_off else "",
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join(["#!/bin/bash", *lines, SCRIPT.read_text(encoding="utf-8")])
