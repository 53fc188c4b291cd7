"""Several trace files read side by side: one process a file, as many at once as there are cores.

A file has a process to itself, so that what ends the process (a crash, the kernel's out-of-memory killer) costs that
file alone, and is told as its error. A large file that is alone is read in two processes (halves.py).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from .collectives import TraceFile, read_collectives
from .source import text_size

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from .worker import Worker

Outcome = TraceFile | UserError

WORTH_A_PROCESS = 32 * 2**20
"""Bytes of text in all; below it the processes' own start takes longer than what they save."""


def read_all(paths: Sequence[Path]) -> list[Outcome]:
    """Read the traces: each one's content or error, in the order given."""
    if cores() < 2 or sum(map(text_size, paths)) < WORTH_A_PROCESS:
        return [_read(path) for path in paths]
    if len(paths) == 1:
        return [_read(paths[0], halves=True)]
    return _side_by_side(paths)


def _read(path: Path, *, halves: bool = False) -> Outcome:
    try:
        return read_collectives(path, halves=halves)
    except UserError as error:
        return error


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _side_by_side(paths: Sequence[Path]) -> list[Outcome]:
    # Not at import: most calls read few and small files, and these take a while.
    from multiprocessing.connection import wait

    from .worker import Worker

    waiting = sorted(range(len(paths)), key=lambda number: text_size(paths[number]))
    running: dict[Connection, tuple[int, Worker]] = {}
    outcomes: dict[int, Outcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < cores():
                number = waiting.pop()  # the largest of them, so that none is left alone to the end
                worker = Worker(_read_and_send, paths[number])
                running[worker.receiving] = number, worker
            ready = wait(list(running))
            for end in [end for end in running if end in ready]:
                number, worker = running.pop(end)
                outcomes[number] = _outcome(worker, paths[number])
    finally:
        for _, worker in running.values():
            worker.kill()
    return [outcomes[number] for number in range(len(paths))]


def _read_and_send(path: Path, sending: Connection) -> None:
    sending.send(_read(path))


def _outcome(worker: Worker, path: Path) -> Outcome:
    """What the process sent; an error where it ended without."""
    outcome: Outcome | None = None
    status: int | None = None
    try:
        outcome = worker.receiving.recv()
    except (EOFError, OSError):
        pass
    finally:
        status = worker.join()
    return UserError(f"{path}: {_why(status)}") if outcome is None else outcome


def _why(status: int | None) -> str:
    if status is None or status >= 0:
        return f"the process that read it failed (exit status {status}); read it by itself"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    advice = "; memory may be short, so read fewer files at once" if -status == signal.SIGKILL else ""
    return f"the process that read it was ended by {name}{advice}"
