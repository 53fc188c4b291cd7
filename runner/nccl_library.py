"""The NCCL that the probes are to run on: a file, or a version taken from NVIDIA's wheels on the package index.

The library is put before torch's own by LD_PRELOAD, so nothing is installed. The dynamic linker passes over a
library that it can't preload with no more than a message, and the run would then tell of another NCCL than asked
for; so what could not be preloaded is refused here.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UserError
from .launch import PythonFacts
from .yaml_file import quoted

LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
DOWNLOAD_DEADLINE = 1800  # seconds

_VERSION = re.compile(r"[0-9]+(\.[0-9]+){1,3}(\.?(post|rc|dev)[0-9]+)?")
_GLIBCS = ("2_17", "2_18", "2_24", "2_27", "2_28", "2_31", "2_34")
# e_machine of the ELF header: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html
_MACHINES = {"x86_64": 62, "aarch64": 183}
_NO_NETWORK = re.compile(r"Retrying|ConnectionError|ConnectTimeout|ReadTimeout|Network is unreachable|name resolution")


def find_nccl(
    wanted: str,
    *,
    cuda_major: int,
    python: str = sys.executable,
    cache: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """The libnccl.so.2 to preload for `--nccl`: a path to one, or a version such as "2.30.7".

    A version comes from the wheel nvidia-nccl-cu<cuda_major> (150 to 250 MB), fetched once with `python`'s pip
    and its settings, and is kept in `cache`, by default $XDG_CACHE_HOME/symmem-check/nccl. `tell` gets a line
    before a download. Raises UserError for a file that can't be preloaded, a version that does not exist, and a
    download that fails.
    """
    if _VERSION.fullmatch(wanted):
        library = _cached(f"nvidia-nccl-cu{cuda_major}", wanted, python, cache or _cache_folder(), tell)
    else:
        library = Path(os.path.abspath(Path(wanted).expanduser()))  # noqa: PTH100 - keeps links, whose names may be wanted
    problem = _why_not_preloadable(library)
    if problem:
        raise UserError(f"--nccl {quoted(wanted)}: {library} {problem}")
    return library


def nccl_to_preload(wanted: str | None, facts: PythonFacts, tell: Callable[[str], None]) -> Path | None:
    """The library to preload under the torch of `facts`, as find_nccl; None where none is `wanted`.

    Raises UserError as find_nccl does, and for a torch that is not built for CUDA.
    """
    if wanted is None:
        return None
    cuda = (facts.cuda or "").split(".")[0]
    if not cuda.isdecimal():
        raise UserError(f"--nccl: torch {facts.torch} is not built for CUDA, so no NCCL can be put under it")
    return find_nccl(wanted, cuda_major=int(cuda), tell=tell)


def check_nccl(wanted: str | None) -> None:
    """Raise UserError for a path that find_nccl would refuse: known before there is a torch to put it under."""
    if wanted is not None and not _VERSION.fullmatch(wanted):
        find_nccl(wanted, cuda_major=0)


def _why_not_preloadable(library: Path) -> str | None:
    """What is wrong with the file, in words that follow its name; None if nothing is."""
    if re.search(r"[\s:]", str(library)):
        return "can't be preloaded: LD_PRELOAD takes blanks and colons for separators; put a link elsewhere"
    try:
        with library.open("rb") as file:
            return _why_not_nccl(file.fileno(), file.read(20))
    except FileNotFoundError:
        return "does not exist; give the path of a libnccl.so.2, or a version such as 2.30.7"
    except IsADirectoryError:
        return "is a folder; give the path of the libnccl.so.2 in it"
    except OSError as error:
        return f"can't be read: {error.strerror}"


def _why_not_nccl(file: int, header: bytes) -> str | None:
    if len(header) < 20 or header[:4] != b"\x7fELF":
        return "is no shared library (ELF file)"
    machine = _MACHINES.get(platform.machine())
    if header[4] != 2 or (machine and int.from_bytes(header[18:20], "little") != machine):
        return f"is a library for another processor than this machine's {platform.machine()}"
    with mmap.mmap(file, 0, access=mmap.ACCESS_READ) as content:
        return (
            None if content.find(b"ncclGetVersion\0") >= 0 else "is a library, but not NCCL: it has no ncclGetVersion"
        )


def _cache_folder() -> Path:
    set_one = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(set_one) if set_one.startswith("/") else Path.home() / ".cache") / "symmem-check" / "nccl"
    except RuntimeError:
        raise UserError("there is no home folder to keep NCCL's library in; set XDG_CACHE_HOME") from None


def _cached(package: str, version: str, python: str, cache: Path, tell: Callable[[str], None]) -> Path:
    library = cache / f"{package}-{version}" / "libnccl.so.2"
    if library.is_file():
        return library
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # One download however many runs want it: the second waits for the first, and finds the file.
        with _locked(cache / "lock"):
            if not library.is_file():
                tell(f"fetching {package} {version} (150 to 250 MB, once) into {library.parent}")
                _fetch(package, version, python, library)
    except OSError as error:
        raise UserError(f"--nccl {version}: can't keep it in {cache}: {error.strerror or error}") from None
    return library


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(package: str, version: str, python: str, library: Path) -> None:
    """Download the wheel beside the library's folder and take the library out of it, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=library.parent.parent, prefix="download-") as name:
        folder = Path(name)
        wheel = _download(package, version, python, folder)
        part = folder / "libnccl.so.2"
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(LIBRARY) as packed, part.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
        except (KeyError, zipfile.BadZipFile) as error:
            raise UserError(f"--nccl {version}: {wheel.name} has no {LIBRARY}: {error}") from None
        part.chmod(0o755)
        library.parent.mkdir(exist_ok=True)
        part.replace(library)


def _download(package: str, version: str, python: str, folder: Path) -> Path:
    machine = platform.machine()
    platforms = [f"--platform=manylinux_{glibc}_{machine}" for glibc in _GLIBCS]
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
    command = [python, "-m", "pip", "download", *options, *platforms, "--dest", str(folder), f"{package}=={version}"]
    try:
        # In a folder of its own: `-m` would take a "pip" in the working directory for pip.
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_DEADLINE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"--nccl {version}: the download took longer than {DOWNLOAD_DEADLINE // 60} minutes") from None
    except OSError as error:
        raise UserError(f"--nccl {version}: {python} can't be run: {error.strerror}") from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise UserError(f"--nccl {version}: {_why_download_failed(package, version, python, done.stderr)}")
    return wheels[0]


def _why_download_failed(package: str, version: str, python: str, printed: str) -> str:
    found = re.search(r"\(from versions: ([^)]*)\)", printed)
    if found and found[1] != "none":
        return f"{package} has no version {version} for {platform.machine()}; it has {found[1]}"
    if _NO_NETWORK.search(printed):
        return f"the package index can't be reached to fetch {package}; give the path of a libnccl.so.2 instead"
    if found:
        return f"the package index has no {package} for {platform.machine()}; give the path of a libnccl.so.2 instead"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["it printed nothing"]
    return f"{python} -m pip download {package} failed: {errors[-1].removeprefix('ERROR: ')[:300]}"
