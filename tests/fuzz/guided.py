"""Inputs that look for code not yet reached: `python -m tests.fuzz.guided DOOR [options of libFuzzer] [CORPUS]`.

Needs atheris, which has wheels for Linux and CPython (https://pypi.org/project/atheris/). An input that breaks a
promise is left in a file crash-..., and given as an argument it is tried again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import atheris

SEEDS = 20
"""How many inputs a corpus begins with: from nothing, no valid file would be found in a night."""

with atheris.instrument_imports(include=["runner"]):
    from tests.fuzz import doors


def main() -> None:
    name, *options = sys.argv[1:]
    if name not in doors.DOORS:
        sys.exit(f"the first argument must be one of {', '.join(doors.DOORS)}")
    corpus = next((Path(option) for option in options if not option.startswith("-")), None)
    if corpus is not None and corpus.is_dir() and not any(corpus.iterdir()):
        for seed in range(SEEDS):
            (corpus / f"seed-{seed}").write_bytes(doors.DOORS[name][1](Random(seed)))
    with doors.memory_folder() as folder:
        atheris.Setup([sys.argv[0], *options], lambda data: doors.enter(name, data, folder))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
