"""A process that reads for this one, and the way back for what it found."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Worker:
    """One process that runs `work(*given, sending)`, started at once.

    `receiving` is the other end of `sending`. Whoever starts one calls `join` when it has sent all, or `kill`.
    """

    def __init__(self, work: Callable[..., None], *given: Any) -> None:
        # A fork starts at once, but copies the locks that other threads hold.
        context = multiprocessing.get_context("fork" if threading.active_count() == 1 else "spawn")
        receiving, sending = context.Pipe(duplex=False)
        self.receiving: Connection = receiving
        self._process: BaseProcess = context.Process(  # type: ignore[attr-defined]
            target=_work, args=(work, given, receiving, sending), daemon=True
        )
        # An interrupt between the process's start and its being noted would leave it behind.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sending.close()

    def join(self) -> int | None:
        """Wait for the end; return the exit status, negative for the signal that ended it."""
        self.receiving.close()
        self._process.join()
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self.join()


def _work(work: Callable[..., None], given: tuple[Any, ...], receiving: Connection, sending: Connection) -> None:
    # The parent's handlers are not for this process: it has nothing to clean up.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    receiving.close()  # so that sending fails when the other process is gone
    with contextlib.suppress(BrokenPipeError):
        work(*given, sending)
