"""Several trace files read side by side: one process a file, as many at once as there are cores.

A file has a process to itself, so that what ends the process (a crash, the kernel's out-of-memory killer) costs that
file alone, and is told as its error.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from ..errors import UserError
from .collectives import TraceFile, read_collectives
from .source import GZIP_MAGIC

Outcome = TraceFile | UserError

WORTH_A_PROCESS = 32 * 2**20
"""Bytes of text in all; below it the processes' own start takes longer than what they save."""
_GZIP_RATIO = 12  # Kineto's traces pack to a twelfth or less


def read_all(paths: Sequence[Path]) -> list[Outcome]:
    """Read the traces: each one's content or error, in the order given."""
    cores = min(_cores(), len(paths))
    if cores < 2 or sum(map(_text_size, paths)) < WORTH_A_PROCESS:
        return [_read(path) for path in paths]
    return _side_by_side(paths, cores)


def _read(path: Path) -> Outcome:
    try:
        return read_collectives(path)
    except UserError as error:
        return error


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _text_size(path: Path) -> int:
    """About how long the file's text is; 0 where it can't be told, which the reading will tell better."""
    try:
        if not path.is_file():  # opening a pipe may wait for ever
            return 0
        with path.open("rb") as file:
            packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        return path.stat().st_size * (_GZIP_RATIO if packed else 1)
    except (OSError, ValueError):
        return 0


def _side_by_side(paths: Sequence[Path], cores: int) -> list[Outcome]:
    waiting = sorted(range(len(paths)), key=lambda number: _text_size(paths[number]))
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    outcomes: dict[int, Outcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < cores:
                number = waiting.pop()  # the largest of them, so that none is left alone to the end
                end, process = _start(paths[number])
                running[end] = number, process
            ready = wait(list(running))
            for end in [end for end in running if end in ready]:
                number, process = running[end]
                outcomes[number] = _outcome(end, process, paths[number])
                del running[end]
    finally:
        for end, (_, process) in running.items():
            process.kill()
            process.join()
            end.close()
    return [outcomes[number] for number in range(len(paths))]


def _start(path: Path) -> tuple[Connection, BaseProcess]:
    # A fork starts at once, but copies the locks that other threads hold.
    context = multiprocessing.get_context("fork" if threading.active_count() == 1 else "spawn")
    receiving, sending = context.Pipe(duplex=False)
    process: BaseProcess = context.Process(target=_read_and_send, args=(path, sending), daemon=True)  # type: ignore[attr-defined]
    process.start()
    sending.close()
    return receiving, process


def _read_and_send(path: Path, sending: Connection) -> None:
    # The parent's handlers are not for this process: it has nothing to clean up.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sending.send(_read(path))


def _outcome(end: Connection, process: BaseProcess, path: Path) -> Outcome:
    """What the process sent; an error where it ended without."""
    outcome: Outcome | None = None
    try:
        outcome = end.recv()
    except (EOFError, OSError):
        pass
    finally:
        end.close()
        process.join()
    return UserError(f"{path}: {_why(process.exitcode)}") if outcome is None else outcome


def _why(status: int | None) -> str:
    if status is None or status >= 0:
        return f"the process that read it failed (exit status {status}); read it by itself"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    advice = "; memory may be short, so read fewer files at once" if -status == signal.SIGKILL else ""
    return f"the process that read it was ended by {name}{advice}"
