"""Marks in the trace for the modules that run, so that a collective can be told by the module that issued it."""

from __future__ import annotations

import threading

from .script_buffers import has_compiled

MARK = "nn.Module #"
"""Followed by a number, never by a name: a module called `backward_proj` must not be taken for a phase."""


class ModuleMarks:
    """Puts a window `nn.Module #N` around every module's forward; `paths` tells what N stands for.

    A path is that of the outermost module's class and the names below it: `GPT.blocks.0.mlp`.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._numbers: dict[int, int] = {}
        self._handles: list = []
        self._open = threading.local()

    def start(self) -> None:
        """Begin to mark. Not where the script has compiled anything: a hook would have that compiled again."""
        if has_compiled():
            return
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        try:
            after = register_module_forward_hook(self._leave, always_call=True)
        except TypeError:  # before torch 2.1
            return
        self._handles = [register_module_forward_pre_hook(self._enter), after]

    def stop(self) -> None:
        """Take the marks' hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _enter(self, module, inputs) -> None:
        import torch

        stack = self._stack()
        number = self._numbers.get(id(module))
        if number is None:
            number = self._number(module, outermost=not stack)
        window = torch.profiler.record_function(f"{MARK}{number}")
        window.__enter__()
        stack.append((module, window))

    def _leave(self, module, inputs, output) -> None:
        stack = self._stack()
        while stack and any(entered is module for entered, _ in stack):
            entered, window = stack.pop()
            window.__exit__(None, None, None)
            if entered is module:
                return

    def _stack(self) -> list:
        if not hasattr(self._open, "stack"):
            self._open.stack = []
        return self._open.stack

    def _number(self, module, *, outermost: bool) -> int:
        """Give `module` a number; the outermost one gives all below it theirs, with the paths they have in it."""
        below = module.named_modules() if outermost else [("", module)]
        for name, part in below:
            if id(part) not in self._numbers:
                self._numbers[id(part)] = len(self.paths)
                self.paths.append(f"{type(module).__name__}{'.' if name else ''}{name}"[:300])
        return self._numbers[id(module)]
