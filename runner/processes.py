"""The processes of one start of the ranks: torchrun, the ranks under it, and the end of all of them.

torchrun gives each rank a session of its own, so a signal to torchrun's process group does not reach the
ranks. All processes of a start therefore carry a mark in their environment, by which they are found.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from .errors import UserError

MARK = "SYMMEM_CHECK_START"
POLL_SECONDS = 0.05
LOG_TAIL = 1024 * 1024
"""Bytes of the log that are looked at: a library's debug output may make it large."""
FAILED_RANK = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")
"""torchrun's line about the rank that failed first, in torch/distributed/elastic/multiprocessing/api.py."""


class Failure(NamedTuple):
    """The rank that failed first, and its exit status, negative for a signal; `where` ends a sentence about it."""

    rank: int
    status: int
    where: str = ""


class Processes:
    """torchrun and everything it has started on this machine, with one log for all they print."""

    name = "torchrun"
    shared = False

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        self._mark = uuid.uuid4().hex
        with log.open("wb") as output:
            try:
                self._process = subprocess.Popen(
                    command,
                    env={**environment, MARK: self._mark},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise UserError(
                    f"{command[0]}: can't be run ({error.strerror}); give a Python with --python"
                ) from error

    def poll(self) -> int | None:
        """Return torchrun's exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def marked(self) -> list[int]:
        """Return the ids of all living processes of this start, but torchrun's own, by their environment."""
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue  # another user's, or gone by now
        return [pid for pid in found if pid != self._process.pid]

    def stop(self, patience: float) -> int:
        """End all processes of this start: asked at first, killed after `patience` seconds; returns the status.

        No process of the start is left when this returns.
        """
        if self.poll() is None and patience > 0:
            self.ask(patience)
        if self.poll() is None:
            self._process.kill()
        status = self._process.wait()
        self._kill_marked()
        return status

    def ask(self, patience: float) -> None:
        """Ask all processes of this start to end, and wait `patience` seconds at most until they have."""
        self._process.terminate()
        self.wait(patience)

    def wait(self, seconds: float) -> None:
        """Wait until no process of this start is left here, `seconds` at most."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and (self.poll() is None or self.marked()):
            time.sleep(POLL_SECONDS)

    def _kill_marked(self) -> None:
        # Again and again, since a process may have started another in between; a zombie has no environment.
        while pids := self.marked():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(POLL_SECONDS)

    def first_failure(self) -> Failure | None:
        """Return the rank that torchrun saw fail first; None if it saw none. On one machine, the local rank is it."""
        found = FAILED_RANK.search(self.log_tail())
        return Failure(int(found[2]), int(found[1])) if found else None

    def log_tail(self) -> bytes:
        """Return the last LOG_TAIL bytes of the log."""
        with self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL))
            return log.read()

    def last_words(self) -> str:
        """Return the last line of the log that has something to say, to stand in a message."""
        lines = [line.strip() for line in self.log_tail().decode(errors="replace").splitlines()]
        said = [line for line in lines if line and not set(line) <= set("=-* ") and "USDT:" not in line]
        return said[-1][:300] if said else "it printed nothing"


def how_it_ended(status: int) -> str:
    """Say an exit status in words: "was killed by SIGSEGV" or "ended with status 1"."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
