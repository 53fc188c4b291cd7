"""The command line of one rank, and of `--describe` and `--doctor`."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Describe this Python, or run the plan's cases or a script as one rank; returns the exit status.

    torch is imported only after the arguments are read: `--describe` has to answer without it.
    """
    parser = argparse.ArgumentParser(prog="symmem-checks", description=__doc__)
    parser.add_argument("--describe", action="store_true", help="print one line of JSON about this Python's torch")
    parser.add_argument("--doctor", action="store_true", help="print lines of JSON about this machine, the last whole")
    parser.add_argument("--thorough", action="store_true", help="describe by importing torch, which takes seconds")
    parser.add_argument("--plan", type=Path, help="the plan.json of this start of the ranks")
    parser.add_argument("--script", type=Path, help="the script.json that says which training script to run")
    # Not "--run": torchrun's parser looks at these too, and finds that ambiguous.
    parser.add_argument("--into", type=Path, help="the run folder to write into")
    options = parser.parse_args(arguments)
    if options.describe:
        from .describe import describe

        print(json.dumps(describe(thorough=options.thorough)), flush=True)
        return 0
    if options.doctor:
        from .doctor import tell_facts

        tell_facts(lambda line: print(line, flush=True))
        return 0
    if options.script is not None and options.into is not None:
        from .script import run_script

        return run_script(options.script, options.into)
    if options.plan is None or options.into is None:
        parser.error("--plan and --into are needed")
    began = time.monotonic()
    from .session import run_rank

    return run_rank(options.plan, options.into, time.monotonic() - began)
