"""Runs a user's own training script, unchanged, as one rank that torchrun started, and traces a few of its steps.

The script gets what it would have without this: `__main__` is its own module, with `__file__` and `sys.argv`,
its folder first on sys.path, its working directory, and torch imported when it imports it. Nothing here imports
torch before that, since variables that a script sets before `import torch` must still count.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path

from .record import Record
from .script_pools import watch_registrations
from .script_steps import Ranks, Steps

# The module that ran first stays alive: functions of it are still on the stack when the script's takes its name.
_replaced: list[types.ModuleType] = []


def run_script(plan_path: Path, run: Path) -> int:
    """Run the script of `plan_path` (script.json) as the rank that torchrun's variables say; returns its exit status.

    Writes the environment to starts/0/rankR.json, record and trace to cases/script. Unless the plan says
    `keep_going`, the process ends when every rank has its trace. Raises SystemExit where the script does.
    """
    plan = json.loads(plan_path.read_text())
    rank = int(os.environ["RANK"])
    plan["ranks"] = int(os.environ["WORLD_SIZE"])
    if plan["ranks_per_gpu"] > 1:
        # A script takes its GPU by LOCAL_RANK.
        os.environ["LOCAL_RANK"] = str(int(os.environ["LOCAL_RANK"]) // plan["ranks_per_gpu"])
    record = Record(run / plan["folder"], "script", rank, plan["start"])
    steps = Steps(plan, run, record, Ranks(run / "starts" / str(plan["start"]) / "agree", rank, plan["ranks"]))
    after_import("torch.optim.optimizer", steps.install)
    after_import("torch.distributed.distributed_c10d", lambda: watch_registrations(steps.registrations))
    try:
        status = execute(plan["script"], plan["arguments"], steps.failed)
    except SystemExit as end:
        steps.ended(exit_status(end))
        raise
    steps.ended(status)
    return status


def exit_status(end: SystemExit) -> int:
    """Return the status that a process has which ends by `end`."""
    if end.code is None:
        return 0
    return end.code & 0xFF if isinstance(end.code, int) else 1


def execute(script: str, arguments: list[str], failed: Callable[[BaseException, str], None]) -> int:
    """Run the file `script` as `__main__`, as `python script ARGUMENTS` does; returns the exit status.

    What it raises goes to `failed`, with its traceback, and to sys.excepthook; SystemExit comes through.
    """
    path = str(Path(script).absolute())  # as Python gives it: absolute, symbolic links kept
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    module.__spec__ = None  # so that multiprocessing finds the script by its file
    module.__dict__.update(__builtins__=__builtins__, __cached__=None)
    _replaced.append(sys.modules["__main__"])
    # multiprocessing takes what spawned processes send back for the second.
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    sys.argv[:] = [script, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    try:
        code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        own = error.__traceback__.tb_next  # from the script's first frame on
        failed(error, "".join(traceback.format_exception(type(error), error, own)))
        sys.excepthook(type(error), error.with_traceback(own), own)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def after_import(name: str, then: Callable[[], None]) -> None:
    """Call `then` once the module `name` has been imported; at once where it has been already."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds one module as the others do, and has `then` called after its execution."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, fullname, path, target=None):
        if fullname != self._name:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((spec for finder in finders if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is None or spec.loader is None:
            return None
        execute_module = spec.loader.exec_module

        def then_tell(module: types.ModuleType) -> None:
            execute_module(module)
            sys.meta_path.remove(self)
            self._then()

        spec.loader.exec_module = then_tell
        return spec
