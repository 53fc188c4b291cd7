"""`symmem-check classify`: trace files by path, folder or glob, and what is in them."""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from . import kernels
from .errors import UserError
from .judge.coverage import coverage_by_phase
from .model import Collective, Coverage, Phase
from .report.text import inert_json
from .trace.collectives import TraceFile
from .trace.pool import read_all
from .trace.reader import NotATrace

CLASSIFY_SCHEMA = 1
TRACE_ENDINGS = (".json", ".json.gz")

# Of a TraceFile, in the order printed: what else it holds may change.
_FILE_KEYS = ("file", "rank", "world_size", "salvaged", "one_rank_calls", "barrier_calls", "collectives")
_AT_ONCE = 1000


class FileError(msgspec.Struct, frozen=True):
    """A file that could not be read, and the one line that says why and what to do."""

    file: str
    message: str


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """All traces of one call: those read, those that could not be, and the coverage of the former."""

    files: list[TraceFile]
    errors: list[FileError]
    coverage: dict[Phase, Coverage]

    @property
    def collectives(self) -> Iterator[Collective]:
        return (row for file in self.files for row in file.collectives)

    @property
    def exit_status(self) -> int:
        """2 where a file could not be read, 3 where no collective was found, else 0."""
        if self.errors:
            return 2
        return 0 if any(file.collectives for file in self.files) else 3


class _Found(msgspec.Struct, frozen=True):
    path: Path
    in_folder: bool


def read_traces(patterns: Sequence[str], warn: Callable[[str], None]) -> Traces:
    """Read every trace that `patterns` name: files, folders (searched through) and globs.

    Large ones are read side by side, on all cores; the answer is the same, in the same order.

    A folder may hold other JSON files beside its traces: those are left out with a warning; a file named by itself
    must be a trace.
    """
    kernels.classify("")  # a catalogue that is broken is no fault of any trace
    files: list[TraceFile] = []
    errors: list[FileError] = []
    entries = find_traces(patterns, errors)
    for found, read in zip(entries, read_all([entry.path for entry in entries]), strict=True):
        if isinstance(read, NotATrace) and found.in_folder:
            warn(f"{found.path}: no trace, left out")
            continue
        if isinstance(read, UserError):
            errors.append(_file_error(found.path, read))
            continue
        files.append(msgspec.structs.replace(read, file=printable(found.path)))
        if read.salvaged:
            warn(f"{found.path}: salvaged: {read.salvaged}")
        if not read.gpu_rows:
            warn(f"{found.path}: no GPU events; record it with ProfilerActivity.CUDA, and no other profiler attached")
    if not files and not errors:
        named = printable(" ".join(patterns))
        errors.append(FileError(file=named, message="has no trace in it; give what torch.profiler exported"))
    return Traces(
        files=files, errors=errors, coverage=coverage_by_phase(row for file in files for row in file.collectives)
    )


def _file_error(path: Path, error: UserError) -> FileError:
    return FileError(file=printable(path), message=str(error).removeprefix(f"{path}: "))


def printable(path: str | Path) -> str:
    """A path as text that any output can be written with: bytes that are no UTF-8 become U+FFFD."""
    return os.fsencode(path).decode("utf-8", "replace")


def find_traces(patterns: Sequence[str], errors: list[FileError]) -> list[_Found]:
    """The files that the patterns name, each once, in the order given and by name inside a folder or glob.

    A pattern that finds nothing is added to `errors`.
    """
    found: dict[str, _Found] = {}
    for pattern in patterns:
        try:
            entries = _expand(pattern)
        except UserError as error:
            errors.append(FileError(file=printable(pattern), message=str(error)))
            continue
        for entry in entries:
            found.setdefault(os.path.realpath(entry.path), entry)
    return list(found.values())


def _expand(pattern: str) -> list[_Found]:
    if not pattern:  # Path("") is the working folder
        raise UserError("an empty path; give a trace, a folder of traces or a pattern")
    # Not Path.is_dir and Path.exists: before Python 3.14 they raise where a name is too long or a folder is closed.
    if os.path.isdir(pattern):  # noqa: PTH112
        found = _in_folder(Path(pattern))
        if not found:
            raise UserError("has no .json or .json.gz file in it; give the folder with the traces")
        return found
    if os.path.lexists(pattern) or not glob.has_magic(pattern):
        return [_Found(Path(pattern), False)]
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]
    found = [entry for match in matches for entry in (_in_folder(match) if match.is_dir() else [_Found(match, False)])]
    if not found:
        raise UserError("matches no trace; check the pattern, and quote it so that the shell leaves it alone")
    return found


def _in_folder(folder: Path) -> list[_Found]:
    names = sorted(entry for entry in folder.rglob("*") if entry.name.endswith(TRACE_ENDINGS) and entry.is_file())
    return [_Found(entry, True) for entry in names]


def write_json(traces: Traces, out: TextIO = sys.stdout) -> None:
    """Print the one object of `classify --format json`; its shape is a contract with programs."""
    out.write(f'{{"schema":{CLASSIFY_SCHEMA},"files":[')
    for number, file in enumerate(traces.files):
        about = {name: getattr(file, name) for name in _FILE_KEYS if name != "collectives"}
        out.write("," * (number > 0) + _json(about)[:-1] + ',"collectives":[')
        # A few at a time: all of a long trace as one text would take more memory than reading it.
        for at in range(0, len(file.collectives), _AT_ONCE):
            out.write("," * (at > 0) + _json(file.collectives[at : at + _AT_ONCE])[1:-1])
        out.write("]}")
    out.write(f'],"errors":{_json(traces.errors)},"coverage":{_json(traces.coverage)}}}\n')


def _json(value: Any) -> str:
    """ASCII, so that neither the terminal's encoding nor a file name that is no UTF-8 can break it."""
    try:
        text = msgspec.json.encode(value).decode("ascii")
    except UnicodeError:
        text = json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
    return inert_json(text)
