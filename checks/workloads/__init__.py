"""The workloads: training steps whose collectives are traced. One file each, found by its name."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path


def find_workload(name: str, root: Path) -> Callable[..., None]:
    """Return the workload function for `name`: a file of this folder, or `path/to/file.py:function`.

    A path is taken from `root`, which goes onto sys.path, so that a repository's own workload imports the
    repository's own modules. A workload is called as `workload(case, pool, **axes)` with all axes but `pool`.
    Raises LookupError for a workload that is not there.
    """
    file, colon, function = name.rpartition(":")
    if not colon:
        if name.startswith("_") or not name.isidentifier() or not (Path(__file__).parent / f"{name}.py").is_file():
            raise LookupError(f"there is no workload {name!r}; one of your own is given as path/to/file.py:function")
        return getattr(importlib.import_module(f"{__name__}.{name}"), name)
    path = (root / file).resolve()
    if not path.is_file():
        raise LookupError(f"the workload's file {path} is not there")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    module = load_file(path)
    if not callable(getattr(module, function, None)):
        raise LookupError(f"{path} has no function {function!r}")
    return getattr(module, function)


def load_file(path: Path):
    """Load the module at `path` under a private name, once."""
    name = f"_symmem_workload_{path.stem}_{abs(hash(str(path)))}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
