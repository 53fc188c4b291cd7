"""The record of a case on one rank: written when the case starts, replaced when it ends."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

from .nccl_log import log_size


def write_json(path: Path, content: dict) -> None:
    """Write `content` so that a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    temporary.replace(path)


class Record:
    """What one rank has to say about one case.

    The case's own thread and the watchdog may both want to end it: the first one does, the other is told so.
    """

    def __init__(self, folder: Path, case: str, rank: int, start: int) -> None:
        self.path = folder / f"rank{rank}.json"
        self.trace_path = folder / f"rank{rank}.trace.json.gz"
        self.content = {
            "schema": 1,
            "case": case,
            "rank": rank,
            "start": start,
            "state": "started",
            "outcome": None,
            "message": None,
            "detail": None,
            "values": None,
            "buffers": [],
            "pool": None,
            "trace": None,
            "seconds": {},
            "nccl_log": None,
        }
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.log_from_here()
        write_json(self.path, self.content)

    def log_from_here(self) -> None:
        """Note where NCCL's own log is now: what it adds from here on is this case's. None where it writes none."""
        size = log_size()
        self.content["nccl_log"] = [size, None] if size is not None else None

    def log_to_here(self) -> None:
        """Note that what NCCL's log adds from here on is no longer this case's; the first call counts."""
        log = self.content["nccl_log"]
        if log is not None and log[1] is None:
            self.content["nccl_log"] = [log[0], log_size()]

    def finish(self, outcome: str, message: str | None = None, detail: str | None = None) -> bool:
        """End the record; returns False, and changes nothing, where it has ended before.

        A trace is named only if it was exported: a case may fail between its export and its end.
        """
        with self._lock:
            if self.content["state"] == "done":
                return False
            self.log_to_here()
            content = dict(self.content, state="done", outcome=outcome, message=message, detail=detail)
            content["seconds"] = dict(content["seconds"], total=round(time.monotonic() - self._began, 3))
            write_json(self.path, content)
            self.content = content
            return True
