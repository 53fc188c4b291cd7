"""How far NCCL has written this process's log, so that a reader finds what a case added to it."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path


def log_size() -> int | None:
    """Return the bytes in NCCL's log of this process; None where it writes none into a file.

    NCCL writes each line as soon as it is whole, from the thread that launches. The file's name is NCCL_DEBUG_FILE,
    with %p and %h for process and host:
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug-file
    """
    pattern = os.environ.get("NCCL_DEBUG_FILE")
    if not pattern:
        return None
    parts = {"%p": str(os.getpid()), "%h": socket.gethostname().split(".")[0], "%%": "%"}
    try:
        return Path(re.sub("%[ph%]", lambda found: parts[found[0]], pattern)).stat().st_size
    except OSError:
        return None
