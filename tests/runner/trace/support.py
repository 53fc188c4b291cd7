"""What the tests of the trace reading share: the recorded files, the command line, and comparing with the reference."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from runner.trace.collectives import TraceFile

PROJECT = Path(__file__).parents[3]
DATA = PROJECT / "tests" / "data"
TRUTHS = sorted((DATA / "traces").glob("*/*.truth.json"))
BASE = DATA / "malformed" / "00_base_valid.json"
WHOLE_FILE = ("rank", "world_size", "one_rank_calls", "barrier_calls")


def base() -> dict[str, Any]:
    """A small valid trace: a forward all-gather, and a backward reduce-scatter on symmetric memory."""
    trace: dict[str, Any] = json.loads(BASE.read_text())
    return trace


def classify(*arguments: str | bytes | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `symmem-check classify --format json` in a process of its own."""
    options = {"cwd": PROJECT, "timeout": 60, "format": "json"} | options
    command = [sys.executable, "-m", "runner", "classify", "--format", options.pop("format"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, **options)


def differences(wanted: dict[str, Any], found: TraceFile) -> list[str]:
    """Where the product's reading of a file is not the reference's, in every field of every collective."""
    lines = [
        f"{key}: {wanted[key]} != {getattr(found, key)}"
        for key in WHOLE_FILE
        if wanted[key] != getattr(found, key)
    ]  # fmt: skip
    if len(wanted["collectives"]) != len(found.collectives):
        return [*lines, f"{len(wanted['collectives'])} collectives != {len(found.collectives)}"]
    # Two rows of a GPU that start at one time have no order of their own.
    ones = sorted(wanted["collectives"], key=lambda one: (one["start"], one["kernel"] or "", one["duration"]))
    others = sorted(found.collectives, key=lambda other: (other.start, other.kernel or "", other.duration))
    for one, other in zip(ones, others, strict=True):
        lines += [
            f"at {other.start}: {key}: {value} != {getattr(other, key)} ({other.why})"
            for key, value in one.items()
            if value != getattr(other, key)
        ]
    return lines


class SameProcess:
    """A worker without a process, and a list in the place of its pipe; what it sends is pickled all the same."""

    def __init__(self, work: Any, *given: Any) -> None:
        self.receiving = self
        self.sent: list[bytes] = []
        # It is its own parent.
        work(*(os.getppid() if one == os.getpid() else one for one in given), self)

    def poll(self, timeout: float) -> bool:
        return True  # nothing, where nothing was sent: its end

    def send(self, value: Any) -> None:
        self.sent.append(pickle.dumps(value))

    def recv(self) -> Any:
        if not self.sent:
            raise EOFError
        return pickle.loads(self.sent.pop(0))

    def kill(self) -> None:
        pass
