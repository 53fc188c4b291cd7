"""Breaks a starter at one of its calls: it is killed, or the network is gone from then on, before the call or after it.

It is imported by the starter's own process, which is to break.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from runner.machines.model import MachineError


class Breaking:
    """Takes the place of a shell's `run`. Of the calls that count, `seen` tells how many there were."""

    def __init__(self, shell: Any, way: str, at: int, counts: Callable[[Sequence[str]], bool] = lambda _: True) -> None:
        self.seen = 0
        self._way, self._at, self._counts = way, at, counts
        self._down = False
        self._run = shell.run

        def run(own: Any, arguments: Sequence[str], **more: Any) -> Any:  # a function becomes the shell's own method
            return self._call(own, arguments, **more)

        shell.run = run

    def _call(self, shell: Any, arguments: Sequence[str], **more: Any) -> Any:
        if self._down:
            raise MachineError("the network is down")
        counted = self._counts(arguments)
        self.seen += counted
        here = counted and self.seen == self._at
        if here and self._way.endswith("before"):
            self._break()
        said = self._run(shell, arguments, **more)
        if here:
            self._break()
        return said

    def _break(self) -> None:
        if self._way.startswith("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        self._down = True
        raise MachineError("the network is down")
