"""Started by path: `python PATH/checks/__main__.py --plan FILE --into FOLDER`, one process a rank.

Python puts the folder of a script first on sys.path. There it would offer this package's modules to the
training repository under its own names, so it is taken off, and the package is loaded under a private name.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGE = "_symmem_checks"


def load_command():
    """Load this folder as the package `_symmem_checks` and return its module `command`."""
    folder = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != folder]
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"{PACKAGE}.command")


if __name__ == "__main__":
    sys.exit(load_command().main(sys.argv[1:]))
