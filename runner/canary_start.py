"""canary.py with the action's own packages: what .github/actions/canary runs, by any Python 3.10 or newer.

Run as `python -I -S runner/canary_start.py`, so it has the standard library alone until action_start.py has made them.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path


def main() -> int:
    """Turn the action's inputs into canary.py's command line, and run it; return the exit status."""
    here = Path(__file__).resolve().parent
    sys.path.insert(0, str(here))
    start = importlib.import_module("action_start")
    sys.path.remove(str(here))
    temp = Path(os.environ["RUNNER_TEMP"]).resolve()
    sys.path[:0] = [str(start.packages(temp)), str(here.parent)]
    canary = importlib.import_module(f"{here.name}.canary")
    given = {name: os.environ[f"SYMMEM_CHECK_CANARY_{name.upper()}"] for name in ("results", "rows", "label", "key")}
    status: int = canary.main(
        [given["results"], f"--rows={given['rows']}", f"--label={given['label']}", f"--key={given['key']}"]
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
