"""What a workload gets to work with: one case on one rank."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
import torch.distributed as dist

from .control import Control
from .pools import Pool
from .profiler import synchronize, trace_steps
from .record import Record


class Case:
    """One case of the plan, at work on this rank.

    A workload makes its tensors, hands its training step to `run`, then hands every value to `check`.
    Collectives say with `note_buffer` which buffer they use.
    """

    def __init__(self, case: dict, plan: dict, device: torch.device, pool: Pool, record: Record, control: Control):
        self.id: str = case["id"]
        self.deadline: float = case["deadline"]
        self.warmup: int = plan["warmup"]
        self.steps: int = plan["steps"]
        self.device, self.pool, self.record, self.control = device, pool, record, control
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._buffers: list[tuple[dict, int]] = []

    def run(self, step: Callable[[], None]) -> None:
        """Run `step` once to allocate, register the pool, then run it under the profiler.

        What the last traced step leaves behind stays valid until the workload returns.
        """
        self._step(step)
        synchronize(self.device)
        self.control.barrier(f"{self.id}/register", self.deadline)
        self.pool.register()
        seconds = trace_steps(
            lambda: self._step(step),
            lambda name: self.control.barrier(f"{self.id}/{name}", self.deadline),
            self.record.trace_path,
            device=self.device,
            warmup=self.warmup,
            steps=self.steps,
        )
        self.record.content["trace"] = self.record.trace_path.name
        self.record.content["seconds"]["trace"] = round(seconds, 3)
        self.record.content["pool"] = self.pool.describe()
        self.record.content["buffers"] = [self._place(note, address) for note, address in self._buffers]

    def _step(self, step: Callable[[], None]) -> None:
        self._buffers.clear()
        step()

    def _place(self, note: dict, address: int) -> dict:
        in_pool = self.pool.holds(address)
        registered = self.pool.registration if in_pool and self.pool.registered else "none"
        return dict(note, in_pool=in_pool, registration=registered)

    def note_buffer(self, phase: str, kind: str, role: str, tensor: torch.Tensor) -> None:
        """Remember the buffer that a collective of the running step is about to use.

        `role` is "in-place", "input" or "output". Where it lies is looked up after the steps.
        """
        main = threading.current_thread() is threading.main_thread()
        note = {
            "phase": phase,
            "kind": kind,
            "role": role,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "bytes": tensor.numel() * tensor.element_size(),
            "thread": "main" if main else "autograd",
        }
        self._buffers.append((note, tensor.data_ptr()))

    def check(self, got: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
        """Compare `got` with a float64 reference of the same shape; adds to the record's `values`.

        An element is wrong where it is not finite or differs by more than `tolerance` (absolute).
        Raises ValueError where the shapes differ.
        """
        if got.shape != expected.shape:
            raise ValueError(f"values of shape {tuple(got.shape)} are compared with {tuple(expected.shape)}")
        error = (got.detach().to(torch.float64) - expected.to(torch.float64)).abs()
        error = torch.where(error.isfinite(), error, torch.inf)
        values = self.record.content["values"] or {"checked": 0, "wrong": 0, "max_error": 0.0, "tolerance": 0.0}
        self.record.content["values"] = {
            "checked": values["checked"] + error.numel(),
            "wrong": values["wrong"] + int((error > tolerance).sum()),
            # A number in JSON has to be finite.
            "max_error": max(values["max_error"], min(float(error.max()), torch.finfo(torch.float64).max)),
            "tolerance": max(values["tolerance"], tolerance),
        }
