"""The run folder, read with types: what the ranks recorded, to be judged here or on another machine."""

from __future__ import annotations

import errno
import re
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, TypeVar

import msgspec

from .errors import UserError
from .plan import Case, Plan

LARGEST_FILE = 16 * 1024 * 1024
"""Bytes; a record with the stacks of all threads has some ten thousand."""

STALE_TRIES = 3

RankOutcome = Literal["ok", "raised", "hung", "wrong-values", "incapable"]
LostOutcome = Literal["died", "hung", "stopped"]
Ended = Literal["finished", "restart", "died", "hung", "stopped"]
Registration = Literal["symmetric", "plain", "none"]
Place = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
"""A place in a file, in bytes from its begin."""


class Values(msgspec.Struct, frozen=True):
    """How many values were compared with the reference, and by how much they were off (absolute)."""

    checked: int
    wrong: int
    max_error: float
    tolerance: float


class Buffer(msgspec.Struct, frozen=True):
    """A buffer that a collective of the last traced step used; `bytes` is its size on this rank."""

    phase: Literal["forward", "backward"]
    kind: str
    role: str
    dtype: str
    bytes: int
    in_pool: bool
    registration: Registration
    thread: Literal["main", "autograd"]


class PoolRecord(msgspec.Struct, frozen=True):
    """The pool as it was while the steps were traced: its set-up, where it came from, and its registration."""

    set_up: str
    allocator: str | None
    segments: int
    registered: Registration


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of the workload `bandwidth` on one rank: microseconds a call, and bus bandwidth in GB/s.

    `bytes` is the size of the larger buffer of the rank; `mechanism` says whether its buffers lay in the pool.
    """

    kind: str
    bytes: int
    mechanism: Literal["symmetric", "general"]
    time_us: float
    busbw_gbps: float


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank recorded of one case; a process that died leaves `state` at "started".

    `nccl_log` is where NCCL's log of this process was when the traced steps began, and when they ended: None at the
    end for a process that died, None for both where NCCL writes no log of its own. Of a case without traced steps it
    is all that the case added.
    """

    case: str
    rank: int
    start: int
    state: Literal["started", "done"]
    outcome: RankOutcome | None = None
    message: str | None = None
    detail: str | None = None
    values: Values | None = None
    buffers: list[Buffer] = []
    pool: PoolRecord | None = None
    trace: str | None = None
    bandwidth: list[Bandwidth] = []
    seconds: dict[str, float] = {}
    nccl_log: tuple[Place, Place | None] | None = None


class Nccl(msgspec.Struct, frozen=True):
    """The NCCL that was really loaded, and the one torch was built with."""

    version: str | None
    path: str | None
    built: str | None


class RankEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank ran on and with; GPU facts are None on a CPU. `error` says why it never came up.

    `joined` is false for a rank that waits for the others, or waited in vain.
    """

    rank: int
    world_size: int
    pid: int
    hostname: str
    python: str
    torch: str
    cuda: str | None = None
    driver: str | None = None
    device_name: str | None = None
    capability: tuple[int, int] | None = None
    device_uuid: str | None = None
    device_index: int | None = None
    nccl: Nccl | None = None
    multicast: bool | None = None
    nvlink: bool | None = None
    ranks_on_this_gpu: int | None = None
    env: dict[str, str] = {}
    seconds: dict[str, float] = {}
    joined: bool = True
    error: str | None = None


class End(msgspec.Struct, frozen=True, kw_only=True):
    """How one start of the ranks ended; `exit_status` is torchrun's, negative for a signal."""

    schema: int = 1
    exit_status: int | None
    ended: Ended
    message: str | None = None


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A case that a rank could not finish, since a process died, hung, was stopped or never came up.

    `start` is None for a case that was never begun since the run was stopped before.
    """

    schema: int = 1
    case: str
    start: int | None
    outcome: LostOutcome
    rank: int | None = None
    message: str


T = TypeVar("T")


def read_json(path: Path, kind: type[T]) -> T:
    """Decode the file at `path` as `kind`; raises UserError that names the file, the place and the mend."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"{path}: larger than {LARGEST_FILE} bytes, so it is no file of a run folder")
        return msgspec.json.decode(_content(path), type=kind)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); give the folder of a whole run") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not what a run writes there: {error}; run it again") from error


def _content(path: Path) -> bytes:
    """The bytes of a file; on NFS, a reader may hold one that its writer on another host has just replaced."""
    for _ in range(STALE_TRIES):
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    return path.read_bytes()


def write_json(content: End | Lost, path: Path) -> None:
    """Write `content` to `path`, making the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


class RunFolder:
    """A run folder on disk. Reading never leaves it: names in its files are checked before they are used."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def plan(self) -> Plan:
        """Return the plan of the whole run; raises UserError for one whose cases would leave the folder."""
        return self._plan(self.path / "plan.json")

    def plan_of(self, start: int) -> Plan | None:
        """Return the plan of one start of the ranks, which has one launch configuration; None where it has none."""
        path = self.path / "starts" / str(start) / "plan.json"
        return self._plan(path) if path.is_file() else None

    def _plan(self, path: Path) -> Plan:
        plan = read_json(path, Plan)
        for case in plan.cases:
            parts = PurePosixPath(case.folder).parts
            if not parts or parts[0] != "cases" or ".." in parts or "\0" in case.folder:
                raise UserError(f"{path}: case {case.id!r} has the folder {case.folder!r}, which is not below cases/")
        return plan

    def starts(self) -> list[int]:
        """Return the numbers of the starts of the ranks, in order."""
        return sorted(int(path.name) for path in (self.path / "starts").glob("*") if path.name.isdecimal())

    def end(self, start: int) -> End | None:
        """Return how start number `start` ended; None where it was never written."""
        path = self.path / "starts" / str(start) / "end.json"
        return read_json(path, End) if path.is_file() else None

    def environments(self, start: int) -> dict[int, RankEnvironment]:
        """Return the environment of every rank of `start` that wrote one, by rank."""
        return self._of_ranks(self.path / "starts" / str(start), RankEnvironment)

    def records(self, case: Case) -> dict[int, Record]:
        """Return the records of `case`, by rank."""
        return self._of_ranks(self.path / case.folder, Record)

    def lost(self, case: Case) -> Lost | None:
        """Return why `case` was lost; None for one that was not."""
        path = self.path / case.folder / "lost.json"
        return read_json(path, Lost) if path.is_file() else None

    def trace(self, case: Case, record: Record) -> Path | None:
        """Return the path of the record's trace; None where it has none. Raises UserError for a name with a path."""
        if record.trace is None:
            return None
        if PurePosixPath(record.trace).name != record.trace:
            raise UserError(f"{self.path / case.folder}: the record of rank {record.rank} names a trace elsewhere")
        return self.path / case.folder / record.trace

    def _of_ranks(self, folder: Path, kind: type[T]) -> dict[int, T]:
        names = ((path, re.fullmatch(r"rank(\d{1,6})\.json", path.name)) for path in folder.glob("rank*.json"))
        return {int(found[1]): read_json(path, kind) for path, found in sorted(names) if found}
