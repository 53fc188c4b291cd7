"""Many inputs at random: `python -m tests.fuzz [--examples N] [--seed N] [DOOR ...]`.

Prints each input that broke a promise, with what makes it again, and at the end the time and memory it all took. Exit
status 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
import traceback
from random import Random

from .doors import DOORS, enter, memory_folder

MOST_MEMORY = 512
"""MiB that the process may have taken at its peak: inputs are small, so what takes more has been led to it."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("doors", metavar="DOOR", nargs="*", help=f"of {', '.join(DOORS)} (default: all)")
    parser.add_argument("--examples", type=int, default=100_000, help="inputs for all doors together")
    parser.add_argument("--seed", type=int, default=None, help="the first input's (default: by the clock)")
    asked = parser.parse_args()
    first = int(time.time()) * 1_000_000 if asked.seed is None else asked.seed
    names = asked.doors or list(DOORS)
    broken = 0
    with memory_folder() as folder:
        for name in names:
            began, slowest = time.monotonic(), (0.0, 0)
            number = -(-asked.examples // len(names))
            for seed in range(first, first + number):
                started = time.monotonic()
                try:
                    enter(name, DOORS[name][1](Random(seed)), folder)
                except Exception:
                    broken += 1
                    print(f"{name}: broken by: python -m tests.fuzz {name} --examples 1 --seed {seed}")
                    traceback.print_exc(limit=-6, file=sys.stdout)
                slowest = max(slowest, (time.monotonic() - started, seed))
            seconds = time.monotonic() - began
            most = f"the slowest {slowest[0]:.2f} s (seed {slowest[1]})"
            print(f"{name}: {number} inputs in {seconds:.0f} s, {most}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{broken} broke a promise; memory at its peak: {peak} MiB")
    if peak > MOST_MEMORY:
        print(f"that is more than the {MOST_MEMORY} MiB that small inputs may take")
    return int(broken > 0 or peak > MOST_MEMORY)


if __name__ == "__main__":
    sys.exit(main())
