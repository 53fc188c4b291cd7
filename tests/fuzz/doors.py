"""The doors through which input comes from outside, and what must hold of each for any bytes at all.

Each takes one input and a folder of its own. It raises AssertionError where a promise is broken; any other exception
is a broken promise too: a reader raises UserError alone.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from runner.compare import compare_files
from runner.errors import UserError
from runner.github.archive import extract_result
from runner.judge.coverage import coverage_by_phase
from runner.machines.spec import read_spec
from runner.report.annotations import annotation_lines
from runner.report.collectives import print_collectives_table, write_collectives_csv
from runner.report.junit import junit_xml
from runner.report.markdown import summary_markdown
from runner.report.page import write_page
from runner.report.terminal import print_run_table
from runner.result import read_result
from runner.suite import load_suite
from runner.trace import worker
from runner.trace.collectives import TraceFile, read_collectives
from runner.traces import Traces, write_json
from tests import reference
from tests.runner.trace.support import SameProcess, differences

from . import mutate

LONGEST_SECONDS = 5.0
"""Of this process, for one input of some ten thousand bytes."""
LARGEST_RESULT = 2**20
ESCAPED = Path("/tmp/fuzz-was-here")
"""What an input would make that is obeyed."""


def trace(data: bytes, folder: Path) -> None:
    """A trace file: an answer or one line; and all that is printed of it is data."""
    path = folder / "trace.json"
    path.write_bytes(data)
    if (found := _told(lambda: read_collectives(path, block=4096))) is not None:
        _print(found)


def valid_trace(data: bytes, folder: Path) -> None:
    """A whole trace, in whatever order and layout: the answer is the slow and plain reader's."""
    path = folder / "trace.json"
    path.write_bytes(data)
    found = read_collectives(path, block=1024)
    assert found.salvaged is None, found.salvaged
    lines = differences(reference.classify(reference.read(path)), found)
    assert not lines, lines[:3]


def halves(data: bytes, folder: Path) -> None:
    """A trace file, whole or broken: what two readers make of it is what one does."""
    path = folder / "trace.json"
    path.write_bytes(data)
    alone = _told(lambda: read_collectives(path, block=512))
    with mock.patch.object(worker, "Worker", SameProcess):
        assert _told(lambda: read_collectives(path, block=512, halves=True)) == alone


def suite(data: bytes, folder: Path) -> None:
    """A suite file: its cases have names that are safe as paths, and it can be planned, or one line."""
    path = folder / "suite.yaml"
    path.write_bytes(data)
    read = _told(lambda: load_suite(path))
    if read is None:
        return
    for case in read.cases:
        assert (folder / case.folder).resolve().is_relative_to(folder.resolve() / "cases")
    _told(lambda: read.plan(root=folder))


def machine(data: bytes, folder: Path) -> None:
    """The YAML of a machine, as an input of the action has it: limits that hold, or one line."""
    read = _told(lambda: read_spec(data.decode("utf-8", "replace")))
    if read is not None:
        assert 0.1 <= read[0].limits.max_hours <= 120


def result(data: bytes, folder: Path) -> None:
    """A result.json: every report can be made of it, or one line."""
    path = folder / "result.json"
    path.write_bytes(data)
    read = _told(lambda: read_result(path))
    if read is None:
        return
    output = io.StringIO()
    print_run_table(read, output)
    _no_command(output.getvalue())
    for line in annotation_lines(read):
        assert line.startswith(("::error ", "::warning ", "::notice ")) and "\n" not in line and "\r" not in line
    assert junit_xml(read) and summary_markdown(read)
    write_page(read, folder / "page.html")
    _told(lambda: compare_files(str(path), str(path), warn=lambda line: None))


def artifact(data: bytes, folder: Path) -> None:
    """An artifact's zip: one file of a bounded size comes out of it, under the name that was asked for, or one line."""
    inside = folder / "out"
    inside.mkdir(exist_ok=True)
    path = folder / "artifact.zip"
    path.write_bytes(data)
    to = inside / "result.json"
    to.unlink(missing_ok=True)
    _told(lambda: extract_result(path, to, LARGEST_RESULT))
    assert {entry.name for entry in inside.iterdir()} <= {"result.json"}
    if to.exists():
        assert to.is_file() and not to.is_symlink() and to.stat().st_size <= LARGEST_RESULT


Door = Callable[[bytes, Path], None]
DOORS: dict[str, tuple[Door, Callable[[Random], bytes]]] = {
    "trace": (trace, mutate.broken_trace),
    "valid_trace": (valid_trace, mutate.valid_trace),
    "halves": (halves, mutate.any_trace),
    "suite": (suite, mutate.suite),
    "machine": (machine, mutate.machine),
    "result": (result, mutate.result),
    "artifact": (artifact, mutate.artifact),
}
"""Each door, and what makes inputs for it."""


def enter(name: str, data: bytes, folder: Path) -> None:
    """Take one input through a door, in bounded time, and see that it was not obeyed."""
    began = time.process_time()
    DOORS[name][0](data, folder)
    seconds = time.process_time() - began
    assert seconds < LONGEST_SECONDS, f"took {seconds:.1f} s"
    assert not ESCAPED.exists()


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder for inputs, in memory where there is one: a disk would take longer than the reading."""
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


def _told(do: Callable[[], Any]) -> Any:
    """What `do` returns; None where it raises UserError with one line for a person."""
    try:
        return do()
    except UserError as error:
        text = str(error)
        assert text and len(text) < 10_000 and "\n" not in text, text
        return None


def _print(found: TraceFile) -> None:
    """All three forms of `classify`: lines without a command, CSV of one width, and JSON."""
    output = io.StringIO()
    coverage = coverage_by_phase(found.collectives)
    print_collectives_table([found], coverage, output)
    _no_command(output.getvalue())
    output = io.StringIO()
    write_collectives_csv([found], output)
    _no_command(output.getvalue())
    lines = output.getvalue().splitlines()
    assert len(lines) == 1 + len(found.collectives)
    assert len({len(row) for row in csv.reader(lines)}) == 1
    output = io.StringIO()
    write_json(Traces(files=[found], errors=[], coverage=coverage), output)
    _no_command(output.getvalue())
    assert len(json.loads(output.getvalue())["files"][0]["collectives"]) == len(found.collectives)


def _no_command(text: str) -> None:
    for line in text.splitlines():
        assert not line.lstrip().startswith("::") and "##[" not in line and "\x1b" not in line
