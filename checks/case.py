"""What a workload gets to work with: one case on one rank."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from .buffers import BufferWatch, Places, Use, this_thread, use_of
from .control import Control
from .pools import Pool
from .profiler import synchronize, trace_steps
from .record import Record


class Case:
    """One case of the plan, at work on this rank.

    A workload makes its tensors, hands its training step to `run`, then hands every value to `check`. For most
    that is all. One that must do something between the registration of the pool and the traced steps calls
    `allocate` itself, and one whose step can't be watched says so and calls `watch` with a step that can.
    """

    def __init__(self, case: dict, plan: dict, device: torch.device, pool: Pool, record: Record, control: Control):
        self.id: str = case["id"]
        self.deadline: float = case["deadline"]
        self.warmup: int = plan["warmup"]
        self.steps: int = plan["steps"]
        self.device, self.pool, self.record, self.control = device, pool, record, control
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._allocated = self._watched = False
        self._noted: list[Use] = []
        self._others: list[tuple[Callable[[], list[dict]], str]] = []

    def run(self, step: Callable[[], None], *, watch_buffers: bool = True) -> None:
        """Run `step` to allocate, watch one step's buffers, then trace some under the profiler.

        What the last traced step leaves behind stays valid until the workload returns. `watch_buffers=False` is
        for a step whose collectives don't pass torch's dispatcher, such as the replay of a graph. Then the record
        has what `note_buffer` or an earlier `watch` told.
        """
        if not self._allocated:
            self.allocate(step)
        if watch_buffers and not self._watched:
            self.watch(step)
        seconds = trace_steps(
            lambda: self._step(step),
            self._edge,
            self.record.trace_path,
            device=self.device,
            warmup=self.warmup,
            steps=self.steps,
        )
        self.record.content["trace"] = self.record.trace_path.name
        self.record.content["seconds"]["trace"] = round(seconds, 3)
        self.record.content["pool"] = self.pool.describe()
        if not self._watched:
            self._record_buffers(self._noted)

    def _edge(self, name: str) -> None:
        """Wait for the other ranks before the traced steps and after them, and note where NCCL's log is then."""
        self.control.barrier(f"{self.id}/{name}", self.deadline)
        if name == "begin":
            self.record.log_from_here()
        else:
            self.record.log_to_here()

    def allocate(self, step: Callable[[], None]) -> None:
        """Run `step` once so that the pool gets its segments, and see that they are registered. Collective."""
        self._step(step)
        synchronize(self.device)
        self.control.barrier(f"{self.id}/allocated", self.deadline)
        self.pool.register_allocated()
        self._allocated = True

    def watch(self, step: Callable[[], None]) -> None:
        """Run `step` once, and record where the buffers of all its collectives lie. Collective."""
        watch = BufferWatch()
        with watch:
            self._step(step)
        synchronize(self.device)
        seen = {(use.note["kind"], use.note["role"], use.address) for use in watch.uses}
        unseen = [use for use in self._noted if (use.note["kind"], use.note["role"], use.address) not in seen]
        self._record_buffers(watch.uses + unseen)
        self._watched = True

    def _step(self, step: Callable[[], None]) -> None:
        self._noted.clear()
        step()

    def _record_buffers(self, uses: list[Use]) -> None:
        places = Places(self.pool, self._others, self.device)
        self.record.content["buffers"] = [places.describe(use) for use in uses]

    def note_buffer(self, phase: str, kind: str, role: str, tensor: torch.Tensor) -> None:
        """Remember the buffer of a collective that passes by torch's dispatcher, or of a step that isn't watched.

        `role` is "in-place", "input" or "output". Where it lies is looked up after the step.
        """
        self._noted.append(use_of(tensor, phase, kind, role, this_thread()))

    def also_registered(self, snapshot: Callable[[], list[dict]], registration: str) -> None:
        """Tell of a pool that the step's own code registers, by its `snapshot` method.

        `registration` is "symmetric" or "plain".
        """
        self._others.append((snapshot, registration))

    def note(self, name: str, content: list | dict | str | float | None) -> None:
        """Add what the workload found out to the record, under a name of its own."""
        self.record.content[name] = content

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
