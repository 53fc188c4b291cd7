"""NCCL's own log of one process, read as a second witness of which kernels ran and why others did not.

Written by NCCL with `log_variables`. Its texts differ by version, and are told in NCCL's sources (src/enqueue.cc,
src/scheduler/symmetric_sched.cc, src/init.cc at the tags of https://github.com/NVIDIA/nccl):

* `AllReduce [Symmetric]: 2097152 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 16 nthreads 512 nWorks 1`: one line a
  kernel; 2.27 prints it on every rank and without nWorks, 2.28 and later on rank 0 of the communicator only.
* `AllGather [Copy Engine]: 8388608 Bytes -> cudaMemcpy`: from 2.29.7 on, rank 0 only; before, copies leave no line.
* `AllReduce: 2097152 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}`: one line a call, rank 0 only; none for
  send/recv and what is made of them.

A log is untrusted text: reading takes bounded memory, and what is kept of it is short and printable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from .errors import UserError
from .model import Kind, Mechanism

SUBSYSTEMS = "INIT,ENV,REG,ALLOC,TUNING,COLL"

LONGEST_LINE = 4096
"""Bytes; NCCL cuts its own at about a thousand, and the rest of a longer one is left out."""
LARGEST_LOG = 4 * 2**30
"""Bytes read of a log at most."""
MOST_SORTS = 4096
MOST_WARNINGS = 20
LONGEST_TEXT = 300

COPY_ENGINE_LINES = (2, 29, 7)
"""The first NCCL that logs copy-engine collectives."""


class LogCall(NamedTuple):
    """One sort of line on a collective: `bytes` is one rank's part, `algorithm` a symmetric kernel without its kind."""

    kind: Kind
    mechanism: Mechanism
    algorithm: str | None
    bytes: int


class Communicator(NamedTuple):
    """One communicator as the process came up in it; `mnnvl` says whether NVLink spans hosts."""

    rank: int
    ranks: int
    nodes: int
    mnnvl: bool


class LogFacts(NamedTuple):
    """What the log says beyond its collectives; None or empty where it says nothing.

    `unsupported` and `p2p` are the named numbers of the lines `Symmetric memory is not supported. …` and `Check P2P
    Type …`, by communicator; `unsupported_text` is the first such line. `variables` are those NCCL says it took.
    `ops` are the reduction ops of each kind's calls; `warnings` the texts of NCCL's warnings, without repeats.
    """

    version: str | None = None
    variables: Mapping[str, str] = {}
    communicators: tuple[Communicator, ...] = ()
    unsupported: tuple[Mapping[str, int], ...] = ()
    unsupported_text: str | None = None
    p2p: tuple[Mapping[str, int], ...] = ()
    ops: Mapping[str, frozenset[str]] = {}
    warnings: tuple[str, ...] = ()


class NcclLog(NamedTuple):
    """A log, or a part of it: how often each sort of collective stands in it, and the facts of that part.

    `whole` is False for a part. `cut` says what had to be left out, or is None.
    """

    calls: Mapping[LogCall, int]
    facts: LogFacts
    whole: bool = True
    cut: str | None = None


def log_variables(folder: Path) -> dict[str, str]:
    """The environment with which every process writes its own log to `folder`, as nccl.PID.log.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug-file
    """
    path = str(folder.absolute()).replace("%", "%%")  # NCCL reads %h and %p in the path
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, "NCCL_DEBUG_FILE": f"{path}/nccl.%p.log"}


def replacing(environment: Mapping[str, str]) -> str | None:
    """A line on the variables of an environment that say otherwise than `log_variables` will; None if none does."""
    own = log_variables(Path())
    names = [name for name in own if environment.get(name, own[name]) != own[name]]
    return f"--witness replaces {', '.join(names)}: NCCL's log goes into the run folder" if names else None


def log_path(folder: Path, pid: int, hostname: str = "") -> Path:
    """Where `log_variables` lets the process `pid` write its log; of several hosts, each adds its name."""
    own = folder / f"nccl.{hostname.partition('.')[0]}.{pid}.log"
    return own if own.is_file() else folder / f"nccl.{pid}.log"


def read_log(path: Path, window: tuple[int, int | None] | None = None) -> NcclLog:
    """Read a log, or what lies in `window`: its first byte, and the byte after its last (None: to the end).

    Raises UserError where the file can't be read.
    """
    first, last = window or (0, None)
    reading = _Reading()
    try:
        with path.open("rb") as file:
            file.seek(max(0, first))
            for line in _lines(file, last):
                reading.take(line.decode("utf-8", "replace"))
            if file.tell() >= LARGEST_LOG + first:
                reading.cut = f"only {LARGEST_LOG} bytes of NCCL's log were read"
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror or error}); run with NCCL's log again") from None
    return NcclLog(calls=reading.calls, facts=reading.facts(), whole=window is None, cut=reading.cut)


def _lines(file: IO[bytes], last: int | None) -> Iterator[bytes]:
    """The lines from here on that begin before `last`; of a line that is too long only its beginning."""
    position = file.tell()
    last = position + LARGEST_LOG if last is None else min(last, position + LARGEST_LOG)
    while position < last and (line := file.readline(LONGEST_LINE)):
        yield line.rstrip(b"\r\n")
        position += len(line)
        while not line.endswith(b"\n") and (line := file.readline(LONGEST_LINE)):
            position += len(line)


_KINDS: dict[str, Kind] = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
    "Gather": "gather",
    "Scatter": "scatter",
}
_OPS = {0: "sum", 1: "product", 2: "max", 3: "min", 4: "avg"}
"""ncclRedOp_t in nccl.h; larger numbers are ops that the caller made, such as torch's premul_sum."""

# Anchored: a host's name or a variable's value may hold any of these texts too.
_PREFIX = re.compile(
    r"(?:\[[^\]]{1,64}\] )?[^ ]{1,300}?:\d+(?::\d+)? \[-?\d+\] "
    r"(?:\S{1,300}:\d+ (?:\([^)]{0,300}\) )?)?NCCL (INFO|WARN) (.*)"
)
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_CALL = re.compile(
    r"(\w{1,32})(?: \[(Symmetric|Copy Engine|Hierarchical CE)\])?: (\d{1,18}) Bytes -> "
    r"(?:Kernel (\w{1,100})|Algo \S+ proto \S+|cudaMemcpy|RMA proxy)"
)
_ARGUMENTS = re.compile(r"(\w{1,32}): opCount \S+ sendbuff \S+ recvbuff \S+ .{0,200}?\bop (\d{1,9}) root ")
_COMMUNICATOR = re.compile(
    r"comm \S+ rank (\d{1,9}) nRanks (\d{1,9}) nNodes (\d{1,9}) localRanks \d+ localRank \d+ MNNVL (\d)"
)
# The second as in 2.31 and later, which say it of a communicator that has it (1) too.
_UNSUPPORTED = re.compile(r"Symmetric memory is not supported\.? (.*)|(?=symmetricSupport 0,)(.*)")
_P2P = re.compile(r"Check P2P Type (.*)")
_NUMBERS = re.compile(r"(\w{1,40}) (-?\d{1,9})\b")
_VARIABLE = re.compile(r"(NCCL_\w{1,60}) set (?:by \S+ )?to (.{0,200}?)\.?$")
_SPECIAL: dict[str | None, Mechanism] = {
    None: "nccl",
    "Symmetric": "nccl-symmetric",
    "Copy Engine": "nccl-copy-engine",
    "Hierarchical CE": "nccl-copy-engine",
}


class _Reading:
    """What was read so far; each part has a most, so that no log fills the memory."""

    def __init__(self) -> None:
        self.calls: Counter[LogCall] = Counter()
        self.cut: str | None = None
        self._version: str | None = None
        self._variables: dict[str, str] = {}
        self._communicators: list[Communicator] = []
        self._unsupported: list[Mapping[str, int]] = []
        self._unsupported_text: str | None = None
        self._p2p: list[Mapping[str, int]] = []
        self._ops: dict[str, set[str]] = {}
        self._warnings: dict[str, None] = {}

    def take(self, line: str) -> None:
        found = _PREFIX.match(line)
        if self._version is None and (version := _VERSION.match(found[2] if found else line)):
            self._version = version[1]
        if found is None:
            return
        level, message = found.groups()
        if level == "WARN":
            if len(self._warnings) < MOST_WARNINGS:
                self._warnings[printable(message)] = None
        elif call := _CALL.match(message):
            self._count(call)
        elif arguments := _ARGUMENTS.match(message):
            self._note_op(arguments)
        else:
            self._note_set_up(message)

    def _count(self, call: re.Match[str]) -> None:
        function, special, size, kernel = call.groups()
        kind = _KINDS.get(function, "unknown")
        algorithm = kernel.split("_", maxsplit=1)[-1] if kernel else None
        sort = LogCall(kind, _SPECIAL[special], algorithm, int(size))
        if sort in self.calls or len(self.calls) < MOST_SORTS:
            self.calls[sort] += 1
        else:
            self.cut = f"NCCL's log has more than {MOST_SORTS} sorts of collectives, and the rest was not counted"

    def _note_op(self, arguments: re.Match[str]) -> None:
        kind = _KINDS.get(arguments[1])
        if kind in ("all_reduce", "reduce_scatter", "reduce"):
            self._ops.setdefault(kind, set()).add(_OPS.get(int(arguments[2]), "made by the caller"))

    def _note_set_up(self, message: str) -> None:
        room = len(self._communicators) < MOST_SORTS and len(self._p2p) < MOST_SORTS
        if (found := _COMMUNICATOR.match(message)) and room:
            rank, ranks, nodes, mnnvl = map(int, found.groups())
            self._communicators.append(Communicator(rank, ranks, nodes, bool(mnnvl)))
        elif (found := _P2P.match(message)) and room:
            self._p2p.append(_numbers(found[1]))
        elif (found := _UNSUPPORTED.match(message)) and len(self._unsupported) < MOST_SORTS:
            self._unsupported.append(_numbers(found[1] or found[2]))
            self._unsupported_text = self._unsupported_text or printable(message)
        elif (found := _VARIABLE.match(message)) and len(self._variables) < MOST_SORTS:
            self._variables[found[1]] = printable(found[2])

    def facts(self) -> LogFacts:
        return LogFacts(
            version=self._version,
            variables=self._variables,
            communicators=tuple(self._communicators),
            unsupported=tuple(self._unsupported),
            unsupported_text=self._unsupported_text,
            p2p=tuple(self._p2p),
            ops={kind: frozenset(ops) for kind, ops in self._ops.items()},
            warnings=tuple(self._warnings),
        )


def _numbers(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in _NUMBERS.findall(text)}


def printable(text: str) -> str:
    """Some text of a log on one line: no control characters, and cut where it is long."""
    kept = "".join(character if character.isprintable() else " " for character in text[: LONGEST_TEXT + 1])
    return kept if len(kept) <= LONGEST_TEXT else kept[: LONGEST_TEXT - 1] + "…"
