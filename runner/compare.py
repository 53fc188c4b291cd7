"""`symmem-check compare`: two results, or two folders of traces, held against each other."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from pathlib import Path

from .comparison import Comparison
from .errors import Unmeasured, UserError
from .judge.baseline import compare
from .judge.baseline_sides import side_of_traces, why_no_baseline, why_not_comparable
from .judge.gate import compare_results
from .result import Result, read_result
from .script_result import Subject, subject_of, with_article
from .traces import Traces, printable, read_traces

_HEAD = 64 * 2**10
"""Bytes; a result names its tool in its first lines."""


def compare_files(base: str, head: str, warn: Callable[[str], None]) -> Comparison:
    """Compare what two paths name: a result, a run's output folder, or traces by path, folder or glob.

    Raises UserError for what can't be read or compared, Unmeasured where `head` has nothing measured.
    """
    results = [is_result(path) for path in (base, head)]
    if all(results):
        before = read_baseline(Path(base))
        after = read_result(result_file(Path(head)))
        assert before is not None
        if (why := why_not_comparable(after)) is not None:
            raise Unmeasured(f"{head}: {why}, so there is nothing to compare")
        return compare_results(before, after, printable(base))
    if any(results):
        result, other = (base, head) if results[0] else (head, base)
        if not os.path.lexists(other) and not glob.has_magic(other):
            raise UserError(f"{printable(other)}: no such file; give a result, as {printable(result)} is one")
        raise UserError(f"{printable(result)} is a result and {printable(other)} is none; compare two of the same")
    return _compare_traces(base, head, warn)


def is_result(path: str) -> bool:
    """Whether a path is a result or a run's output folder, and no trace; told by content."""
    file = result_file(Path(path))
    try:
        with file.open("rb") as content:
            return b'"symmem-check"' in content.read(_HEAD)
    except (OSError, ValueError):
        return False


def result_file(path: Path) -> Path:
    """The result's file: `path`, or result.json in it where it is a folder."""
    return path / "result.json" if path.is_dir() else path


def read_baseline(path: Path | None, *, of: Subject | None = None) -> Result | None:
    """Read the result to compare with; None for None. Raises UserError for one that can't be a baseline.

    `of` is what this run is of, so that a baseline of something else is told before a long run.
    """
    if path is None:
        return None
    file = result_file(path)
    result = read_result(file)
    if (why := why_no_baseline(result)) is not None:
        raise UserError(f"{file}: {why}, so it is no baseline; give the result.json of a whole run")
    if of is not None and (of == "suite") != (result.script is None):
        base = with_article(subject_of(result.script))
        raise UserError(f"{file}: is of {base}, and this run is of {with_article(of)}; give another one")
    return result


def _compare_traces(base: str, head: str, warn: Callable[[str], None]) -> Comparison:
    before, after = _traces(base, warn), _traces(head, warn)
    if len(before.files) != len(after.files):
        # Not incomparable, which fails nothing: a trace that went missing must not pass.
        counts = f"{printable(base)} has {len(before.files)} traces and {printable(head)} has {len(after.files)}"
        raise UserError(f"{counts}; give those of the same ranks")
    return compare(side_of_traces(before, printable(base)), side_of_traces(after, printable(head)))


def _traces(pattern: str, warn: Callable[[str], None]) -> Traces:
    """Read the traces of one side. All must be readable: a missing rank would look like a change."""
    traces = read_traces([pattern], warn)
    if traces.errors:
        raise UserError(f"{traces.errors[0].file}: {traces.errors[0].message}")
    if not any(file.collectives for file in traces.files):
        raise Unmeasured(f"{printable(pattern)}: no collective was found, so there is nothing to compare")
    return traces
