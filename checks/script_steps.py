"""Counts a script's steps by its optimizer, and traces a few of them."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import traceback
import warnings
import weakref
from pathlib import Path

from .describe import one_line
from .record import Record, write_json
from .script_buffers import StepWatch
from .script_modules import ModuleMarks
from .script_pools import describe_pools

POLL_SECONDS = 0.01
# At the edges of the window a rank waits for the others, though not for ever: another may do no such steps.
EDGE_SECONDS = 30.0
# A long trace takes its time to be written; no rank leaves before the others have theirs.
WRITTEN_SECONDS = 300.0


class Ranks:
    """How the ranks agree: by files. The process group is the script's own, and so may the store be."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.folder, self.rank, self.world_size = folder, rank, world_size
        folder.mkdir(parents=True, exist_ok=True)

    def tell(self, topic: str) -> None:
        """Say that this rank has come to `topic`."""
        (self.folder / f"{topic}.{self.rank}").touch()

    def wait(self, topic: str, seconds: float) -> list[int]:
        """Come to `topic` and wait for the others; returns the ranks that did not within `seconds`.

        A rank that said "gone" is not waited for, nor told of.
        """
        self.tell(topic)
        end = time.monotonic() + seconds
        missing = list(range(self.world_size))
        while missing and time.monotonic() < end:
            missing = [rank for rank in missing if not self._came(topic, rank)]
            if missing:
                time.sleep(POLL_SECONDS)
        return missing

    def _came(self, topic: str, rank: int) -> bool:
        return any((self.folder / f"{word}.{rank}").exists() for word in (topic, "gone"))


class Steps:
    """The steps of one rank's script: a step ends where the optimizer that stepped first has stepped again.

    `warmup` steps go before the `steps` that are traced, at least 2: the first makes everything, the last runs under
    the profiler and is thrown away. Where there are 3, the buffers of the one between are watched.
    """

    def __init__(self, plan: dict, run: Path, record: Record, ranks: Ranks) -> None:
        self.plan, self.run, self.record, self.ranks = plan, run, record, ranks
        self.warmup, self.steps = max(2, plan["warmup"]), plan["steps"]
        self.registrations: dict[tuple, bool] = {}
        self.seen = 0
        self.in_backward = 0
        self.exported = 0.0
        self._marks, self._buffers = ModuleMarks(), StepWatch()
        self._pid, self._thread = os.getpid(), None
        self._optimizer: weakref.ref | None = None
        self._name: str | None = None
        self._window = None
        self._hook = None
        self._over = False

    def install(self) -> None:
        """Have torch call `after_step` after every optimizer's step; called when torch.optim has been imported."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(self.after_step)

    def after_step(self, optimizer, arguments, options) -> None:
        """Count a step, and open or close the window of the profiler. Nothing is raised into the script."""
        # A forked child (a worker of a data loader) is no rank.
        if self._over or os.getpid() != self._pid:
            return
        import torch

        if torch._C._current_graph_task_id() != -1:
            self.in_backward += 1  # on autograd's thread; the profiler has to begin and end on the script's
            return
        if not self._counts(optimizer):
            return
        self.seen += 1
        try:
            self._at_edge()
        except Exception as error:
            self._finish("raised", f"the profiler failed: {one_line(error)}", traceback.format_exc())
            self._leave_unless_going_on()

    def _counts(self, optimizer) -> bool:
        """Whether a step of `optimizer` ends a step of the script: it is the first that stepped, and lives."""
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
            self._name = type(optimizer).__name__
            self._thread = self._thread or threading.get_ident()
        return optimizer is self._optimizer() and threading.get_ident() == self._thread

    def _at_edge(self) -> None:
        """Do what is due after step `seen`."""
        if self.seen == 1:
            self._first_step()
        if self.seen == self.warmup - 2:
            self._buffers.start()
        if self.seen == self.warmup - 1:
            self.record.content["buffers"] = self._buffers.stop(self.registrations, self._device())
            self._start()
        elif self.seen == self.warmup:
            self._together("begin")
            self.record.log_from_here()
            self._window.step()
        elif self.warmup < self.seen < self.warmup + self.steps:
            self._window.step()
        elif self.seen == self.warmup + self.steps:
            self._together("end")
            self.record.log_to_here()
            self._marks.stop()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                self._window.step()
                self._window.stop()
            self._finish("ok")
            self._leave_unless_going_on()

    def _first_step(self) -> None:
        from torch.profiler import profile

        from .environment import rank_environment

        device = self._device()
        write_json(
            self.run / "starts" / str(self.plan["start"]) / f"rank{self.ranks.rank}.json",
            rank_environment(self.plan, self.ranks.rank, device),
        )
        self._refuse_second_profiler()
        # The first start of CUPTI in a process skews and loses events. No work for the GPU here: an allocation
        # could land in the script's pool.
        with profile(activities=self._activities()):
            self._synchronize()

    def _refuse_second_profiler(self) -> None:
        import torch

        if torch.autograd._profiler_enabled():
            raise RuntimeError("the script's own profiler is running, and there can be only one: switch that off")

    def _start(self) -> None:
        from torch.profiler import profile, schedule

        self._refuse_second_profiler()
        self._marks.start()
        self._window = profile(
            activities=self._activities(),
            schedule=schedule(wait=0, warmup=1, active=self.steps, repeat=1),
            on_trace_ready=self._export,
            record_shapes=True,
            with_stack=False,
        )
        self._window.start()

    def _export(self, finished) -> None:
        began = time.monotonic()
        finished.export_chrome_trace(str(self.record.trace_path))
        self.exported = time.monotonic() - began
        self.record.content["trace"] = self.record.trace_path.name
        self.record.content["seconds"]["trace"] = round(self.exported, 3)

    def _together(self, topic: str) -> None:
        """Wait for the GPU and for the other ranks: Kineto drops what is not fully inside the window."""
        self._synchronize()
        if missing := self.ranks.wait(topic, EDGE_SECONDS):
            ranks = ", ".join(map(str, missing))
            print(f"symmem-check: rank {ranks} did not come to step {self.seen}", file=sys.stderr, flush=True)

    def _device(self):
        import torch

        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def _activities(self) -> list:
        from .profiler import activities

        return activities(self._device())

    def _synchronize(self) -> None:
        from .profiler import synchronize

        synchronize(self._device())

    def failed(self, error: BaseException, told: str) -> None:
        """Record that the script raised `error`; `told` is the traceback."""
        if os.getpid() == self._pid:
            self._abandon()
            self._finish("raised", one_line(error), told)

    def ended(self, status: int) -> None:
        """Record that the script ended by itself with `status`: before its trace was there, if that isn't yet."""
        if os.getpid() != self._pid:
            return
        self._abandon()
        if status:
            self._finish("raised", f"the script ended with status {status}")
        else:
            self._finish("incapable", self._too_few())
        self.ranks.tell("gone")

    def _abandon(self) -> None:
        """Close what is open where the script ends before its trace is complete: torch may crash at exit else."""
        if self._over or threading.get_ident() != self._thread:
            return
        try:
            self._buffers.stop({}, self._device())
            if self._window is not None:
                self._window.on_trace_ready = None
                self._window.stop()
        except Exception:
            traceback.print_exc()

    def _too_few(self) -> str:
        needed = self.warmup + self.steps
        if self.seen:
            return (
                f"the script ended after {self.seen} optimizer step{'s' * (self.seen != 1)}, and {needed} are needed "
                f"({self.warmup} to warm up, {self.steps} to trace): let it run longer, or give a smaller --steps "
                "or --warmup"
            )
        if self.in_backward:
            return (
                "every optimizer step was taken inside backward, where a step of training can't be told: switch "
                "that off for the check"
            )
        return (
            "no optimizer step was seen: the script has to call step() of a torch.optim optimizer, in the process "
            "that torchrun started"
        )

    def _finish(self, outcome: str, message: str | None = None, detail: str | None = None) -> None:
        """End the record, once; later calls change nothing."""
        self._over = True
        self._marks.stop()
        self.record.content["script"] = {
            "optimizer": self._name,
            "seen": self.seen,
            "traced": self.steps if outcome == "ok" else 0,
            "modules": self._marks.paths,
            "ended": time.time(),
        }
        torch = sys.modules.get("torch")
        if torch is not None and self.seen and self._device().type == "cuda" and outcome == "ok":
            self.record.content["pool"] = describe_pools(self.registrations, torch.cuda.memory_snapshot())
        self.record.finish(outcome, message, detail)

    def _leave_unless_going_on(self) -> None:
        """End the process with its children, once every rank has written; not where the script is to go on.

        By os._exit: a script may catch SystemExit, and its clean-up could wait for ranks that have left.
        """
        if self.plan["keep_going"]:
            if self._hook is not None:
                self._hook.remove()
            return
        self.ranks.wait("written", WRITTEN_SECONDS)
        for child in multiprocessing.active_children():
            child.kill()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
