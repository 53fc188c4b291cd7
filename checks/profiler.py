"""The profiler window around the steps of a case."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule


def synchronize(device: torch.device) -> None:
    """Wait until the GPU has done all it was given; nothing to wait for on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def activities(device: torch.device) -> list[ProfilerActivity]:
    """Return what is traced on `device`: CPU operations always, kernels on a GPU."""
    return [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])


def start_profiler_once(device: torch.device) -> None:
    """Trace a throw-away operation: the first start of CUPTI in a process skews and loses events."""
    with profile(activities=activities(device)):
        torch.ones(1, device=device).add_(1)
        synchronize(device)


def trace_steps(
    step: Callable[[], None],
    barrier: Callable[[str], None],
    path: Path,
    *,
    device: torch.device,
    warmup: int,
    steps: int,
) -> float:
    """Run one untraced step, `warmup` thrown away ones and `steps` traced ones; write the trace to `path`.

    Kineto drops what is not fully inside the window, and keeps the kernels of a warm-up step that run late without
    their launches; so the step before the window and the last one in it end only when this GPU is idle and every
    rank has come as far: `barrier` is called with "begin" and "end". Returns the seconds that the export took.
    """
    exported = 0.0
    # One cycle is all there is; torch says on every rank that others would be cleared.
    warnings.filterwarnings("ignore", message=".*Profiler clears events", category=UserWarning)

    def export(finished: profile) -> None:
        nonlocal exported
        began = time.monotonic()
        finished.export_chrome_trace(str(path))
        exported = time.monotonic() - began

    warmup = max(1, warmup)
    with profile(
        activities=activities(device),
        schedule=schedule(wait=1, warmup=warmup, active=steps, repeat=1),
        on_trace_ready=export,
        record_shapes=True,
        with_stack=False,
    ) as window:
        for number in range(1 + warmup + steps):
            step()
            if number in (warmup, warmup + steps):
                synchronize(device)
                barrier("begin" if number == warmup else "end")
            window.step()
    return exported
