"""The facts that the doctor judges, asked of the user's Python; anything may be missing, and then is not known."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import msgspec

from ..errors import UserError
from ..launch import checks_folder
from ..processes import how_it_ended

DEADLINE = 180.0
"""Seconds for all probes; importing torch from a slow disk may alone take a minute."""

MAX_PRINTED = 16 * 1024
"""Bytes of stderr that are kept: a library's debug output may make it large."""


class Gpu(msgspec.Struct, frozen=True):
    """A visible GPU. `vmm` is the driver's virtual memory management (NCCL calls it cuMem)."""

    index: int
    name: str | None = None
    bus_id: str | None = None
    capability: tuple[int, int] | None = None
    vmm: bool | None = None
    vmm_rdma: bool | None = None
    fd_handles: bool | None = None
    multicast: bool | None = None
    mig: bool | None = None
    compute_mode: str | None = None
    fabric: Fabric | None = None
    nvlinks: dict[str, int] | None = None


class Fabric(msgspec.Struct, frozen=True):
    """How far the GPU's registration with the NVLink fabric is, and the nvmlReturn_t that it ended with."""

    state: str
    status: int


class Pair(msgspec.Struct, frozen=True):
    """Two visible GPUs: whether they reach one another's memory, and whether by NVLink."""

    one: int
    other: int
    p2p: bool | None = None
    p2p_status: str | None = None
    nvlink: bool | None = None


class Driver(msgspec.Struct, frozen=True):
    """cuInit's result (0 works, None: no libcuda) with its name, the CUDA it can do, and the driver's version."""

    status: int | None = None
    error: str | None = None
    cuda: str | None = None
    version: str | None = None


class Torch(msgspec.Struct, frozen=True):
    """torch, and the CUDA and NCCL that it was built with."""

    version: str
    cuda: str | None = None
    nccl: str | None = None
    devices: int = 0


class Nccl(msgspec.Struct, frozen=True):
    """The NCCL that is loaded; `path` is None where it is linked into torch."""

    version: str | None = None
    path: str | None = None
    built: str | None = None


class NcclFile(msgspec.Struct, frozen=True):
    """A file from which NCCL reads variables that the environment does not set."""

    path: str
    variables: dict[str, str]


class Limits(msgspec.Struct, frozen=True):
    """What a process is allowed, in bytes; no `memory` and no `memlock` is no limit."""

    container: bool | None = None
    shm_total: int | None = None
    shm_free: int | None = None
    memlock: int | None = None
    memory: int | None = None
    ipc_namespace: str | None = None
    fd_passing: str | None = None


class Tracing(msgspec.Struct, frozen=True):
    """How many kernels a trace of a small operation showed."""

    kernels: int


class PythonVersion(msgspec.Struct, frozen=True):
    """The interpreter."""

    version: str
    executable: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `running` is the probe in which the process ended, None if none did; `errors` are those of probes.

    `ended` is None, or says how the process ended before it was through; `printed` is what it wrote to stderr.
    """

    schema: int = 1
    running: str | None = None
    errors: dict[str, str] = {}
    python: PythonVersion | None = None
    env: dict[str, str] | None = None
    nccl_files: list[NcclFile] = []
    limits: Limits | None = None
    driver: Driver | None = None
    gpus: list[Gpu] | None = None
    pairs: list[Pair] | None = None
    torch: Torch | None = None
    nccl: Nccl | None = None
    tracing: Tracing | None = None
    ended: str | None = None
    printed: str = ""

    def why_unknown(self, probe: str) -> str:
        """Say why the facts of `probe` are missing."""
        if probe in self.errors:
            return self.errors[probe]
        if self.running == probe:
            return f"the probe {self.ended or 'did not end'}"
        return f"not asked: the probe {self.running} {self.ended}" if self.ended and self.running else "not told"


def ask(python: str, preload: Path | None = None, deadline: float = DEADLINE) -> Facts:
    """Run the probes in the Python at `python`, with the NCCL at `preload` first, for `deadline` seconds at most.

    Raises UserError where `python` can't be run at all.
    """
    environment = dict(os.environ)
    if preload is not None:
        environment["LD_PRELOAD"] = ":".join(filter(None, [str(preload.resolve()), environment.get("LD_PRELOAD", "")]))
    command = [python, str(checks_folder() / "__main__.py"), "--doctor"]
    try:
        # In a session of its own, so that no child can keep the pipe open once all are killed.
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"{python}: can't be run ({error.strerror}); give a Python with --python") from error
    output, printed, ended = _finish(process, deadline)
    said = printed[-MAX_PRINTED:].decode(errors="replace")
    for line in reversed(output.splitlines()):
        # What torch or a library print may stand between our lines.
        try:
            facts = msgspec.json.decode(line, type=Facts)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        return msgspec.structs.replace(facts, ended=ended if facts.running else None, printed=said)
    last = said.strip().splitlines()
    why = f"{ended or 'told nothing'}: {last[-1] if last else 'no output'}"
    raise UserError(f"{python}: {why}; give a Python 3.10 or newer with --python")


def _finish(process: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes, str | None]:
    """Return what the process printed, and how it ended if not well."""
    try:
        output, printed = process.communicate(timeout=deadline)
        return output, printed, how_it_ended(process.returncode) if process.returncode else None
    except subprocess.TimeoutExpired:
        _kill(process)
    try:
        output, printed = process.communicate(timeout=5)
    except subprocess.TimeoutExpired as late:
        # A process that hangs in the driver can't be killed; what it told so far holds.
        output, printed = late.stdout or b"", late.stderr or b""
    return output, printed, f"did not end within {deadline:.0f} s"


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
