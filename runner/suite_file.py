"""The grammar of a suite file: YAML in, `Suite` out. Every mistake is a UserError with file, line and key."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import cast

import msgspec

from .axes import read_axis
from .suite import Expectation, GatePhase, Known, Suite, SuiteCase
from .versions import parse_bound
from .yaml_file import Value, quoted, read_yaml

MAX_CASES = 10_000
PHASES = ("forward", "backward", "optimizer")
EXPECTATIONS = ("symmetric", "fallback", "any")

# A part of an id is also the name of a folder: no slash, no blank, and neither "." nor "..".
_ID_PART = re.compile(r"(?!\.+$)[A-Za-z0-9._+-]{1,80}")
_AXIS_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_WORKLOAD = re.compile(r"[a-z][a-z0-9_]*")
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# One axis: how each value stands in an id → the value that the workload gets.
Axis = dict[str, str | int]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a check or one of its exceptions says: of the check for every phase, of an exception for some."""

    expect: dict[GatePhase, Expectation] = {}
    known: dict[GatePhase, Known] = {}
    because: str | None = None

    def under(self, exception: Expected) -> Expected:
        """This with `exception` laid over it, phase by phase."""
        return Expected(
            expect={**self.expect, **exception.expect},
            known={**self.known, **exception.known},
            because=exception.because or self.because,
        )


class Rule(msgspec.Struct, frozen=True):
    """An exception: the names (as in an id) that each axis may have, and what holds then."""

    value: Value
    when: dict[str, list[str]]
    expected: Expected


def read_suite(path: Path) -> Suite:
    """Read and check a suite file."""
    keys = ("suite", "ranks", "steps", "warmup", "checks")
    top = read_yaml(path).mapping(keys, required=keys)
    cases: list[SuiteCase] = []
    checks = top["checks"].mapping()
    if not checks:
        top["checks"].error("no check stands here, so nothing could fail")
    for name, check in checks.items():
        if not _ID_PART.fullmatch(name):
            check.error("the name of a check may have letters, digits and . _ + - only")
        cases += _read_check(name, check)
    _refuse_equal_ids(cases, top["checks"])
    return Suite(
        name=_read_id_part(top["suite"]),
        path=str(path),
        ranks=top["ranks"].whole_number(2, 4096),
        steps=top["steps"].whole_number(1, 1000),
        warmup=top["warmup"].whole_number(0, 1000),
        cases=tuple(cases),
    )


def _read_check(name: str, check: Value) -> Iterator[SuiteCase]:
    keys = ("workload", "deadline", "because", "matrix", "fixed", "expect", "known", "exceptions")
    entries = check.mapping(keys, required=("workload", "deadline", "expect"))
    matrix = _read_matrix(entries["matrix"]) if "matrix" in entries else {}
    fixed = _read_fixed(entries["fixed"], matrix) if "fixed" in entries else {}
    workload = _read_workload(entries["workload"])
    deadline = entries["deadline"].seconds()
    expected = _read_expected(entries)
    rules = _read_rules(entries["exceptions"], {**matrix, **fixed}) if "exceptions" in entries else []
    used: set[int] = set()
    if math.prod(len(axis) for axis in matrix.values()) > MAX_CASES:
        entries["matrix"].error(f"makes more than {MAX_CASES} cases")
    for point in itertools.product(*matrix.values()):
        named = dict(zip(matrix, point, strict=True))
        everywhere = {**named, **{axis: next(iter(values)) for axis, values in fixed.items()}}
        here = expected
        number = next((n for n, rule in enumerate(rules) if _matches(rule, everywhere)), None)
        if number is not None:
            used.add(number)
            here = expected.under(rules[number].expected)
        yield SuiteCase(
            id="/".join((name, *point)),
            check=name,
            workload=workload,
            axes={axis: {**matrix, **fixed}[axis][word] for axis, word in everywhere.items()},
            deadline=deadline,
            expect=here.expect,
            known=_judged(here, rules[number].value if number is not None else check),
            because=here.because,
            line=check.line,
        )
    for number, rule in enumerate(rules):
        if number not in used:
            rule.value.error("never applies: an earlier exception matches each of its cases first")


def _judged(expected: Expected, value: Value) -> dict[GatePhase, Known]:
    for phase in expected.known:
        if phase not in expected.expect:
            value.error(f'"{phase}" has a known problem but stands in no "expect", so it is not judged')
        if expected.expect[phase] == "fallback":
            value.error(f'"{phase}" has a known problem, but is expected to fall back anyway')
    return expected.known


def _matches(rule: Rule, point: dict[str, str]) -> bool:
    return all(point[axis] in names for axis, names in rule.when.items())


def _read_matrix(value: Value) -> dict[str, Axis]:
    return {axis: _read_axis_values(axis, values, _listed(values)) for axis, values in _axes(value).items()}


def _listed(values: Value) -> list[Value]:
    items = list(values.items())
    if not items:
        values.error("has no value, so the check has no case")
    return items


def _read_axis_values(axis: str, values: Value, items: list[Value]) -> Axis:
    read: Axis = {}
    for item in items:
        word, plain = read_axis(axis, item)
        if not _ID_PART.fullmatch(word):
            item.error(f"{quoted(word)} can't be part of an id: letters, digits and . _ + - only, 80 at most")
        if word in read:
            item.error(f"the value {quoted(word)} stands twice")
        if plain in read.values():
            item.error(f"the value {quoted(word)} means the same as an earlier one")
        read[word] = plain
    return read


def _read_fixed(value: Value, matrix: dict[str, Axis]) -> dict[str, Axis]:
    fixed: dict[str, Axis] = {}
    for axis, entry in _axes(value).items():
        if axis in matrix:
            entry.error("is an axis of the matrix too; keep one of the two")
        fixed[axis] = dict([read_axis(axis, entry)])
    return fixed


def _axes(value: Value) -> dict[str, Value]:
    axes = value.mapping()
    for axis, entry in axes.items():
        if not _AXIS_NAME.fullmatch(axis):
            entry.error("the name of an axis has small letters, digits and _ only, and starts with a letter")
    return axes


def _read_rules(value: Value, axes: dict[str, Axis]) -> list[Rule]:
    rules: list[Rule] = []
    for item in value.items():
        entries = item.mapping(("when", "expect", "known", "because"), required=("when",))
        if len(entries) == 1:
            item.error("changes nothing; say what holds there: expect, known or because")
        when = {axis: _read_when(axis, entry, axes[axis]) for axis, entry in entries["when"].mapping(axes).items()}
        if not when:
            entries["when"].error("names no axis, so it would match every case")
        rules.append(Rule(item, when, _read_expected(entries)))
    return rules


def _read_when(axis: str, value: Value, declared: Axis) -> list[str]:
    words = []
    for item in _listed(value) if value.is_list() else [value]:
        _, plain = read_axis(axis, item)
        match = [word for word, other in declared.items() if other == plain]
        if not match:
            item.error(f"{quoted(str(plain))} is not among the values of {axis} here: {', '.join(declared)}")
        words += match
    return words


def _read_expected(entries: dict[str, Value]) -> Expected:
    expect: dict[GatePhase, Expectation] = {}
    if "expect" in entries:
        phases = entries["expect"].mapping(PHASES)
        if not phases:
            entries["expect"].error(f"names no phase; allowed: {', '.join(PHASES)}")
        for phase, what in phases.items():
            expect[cast("GatePhase", phase)] = cast("Expectation", what.choice(EXPECTATIONS))
    known = entries["known"].mapping(PHASES) if "known" in entries else {}
    return Expected(
        expect=expect,
        known={cast("GatePhase", phase): _read_known(problem) for phase, problem in known.items()},
        because=_read_line(entries["because"]) if "because" in entries else None,
    )


def _read_known(value: Value) -> Known:
    entries = value.mapping(("issue", "title", "torch", "nccl"), required=("issue", "title"))
    issue = entries["issue"].text("the URL of the issue")
    if not re.fullmatch(r"https?://[!-~]+", issue):
        entries["issue"].error("must be the URL of the issue, such as https://github.com/pytorch/pytorch/issues/167353")
    bounds: dict[str, str] = {}
    for library in ("torch", "nccl"):
        if library in entries:
            bounds[library] = entries[library].text('a version bound such as ">=2.8"')
            try:
                parse_bound(bounds[library])
            except ValueError as error:
                entries[library].error(str(error))
    if not bounds:
        value.error("needs a bound on the versions that have the problem: torch or nccl, or both")
    return Known(issue=issue, title=_read_line(entries["title"]), torch=bounds.get("torch"), nccl=bounds.get("nccl"))


def _read_line(value: Value) -> str:
    line = value.text("one line of text").strip()
    if not line or not line.isprintable():
        value.error("must be one line of text, and not empty")
    return line


def _read_id_part(value: Value) -> str:
    name = value.text("a name")
    if not _ID_PART.fullmatch(name):
        value.error("must be a name of letters, digits and . _ + - only, 80 at most")
    return name


def _read_workload(value: Value) -> str:
    workload = value.text("a workload")
    file, colon, function = workload.rpartition(":")
    if not colon and _WORKLOAD.fullmatch(workload):
        return workload
    if not (colon and file.endswith(".py") and _FUNCTION.fullmatch(function) and file.isprintable()):
        value.error('must be a name in checks/workloads such as "all_reduce", or "path/to/file.py:function"')
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts or "\\" in file:
        value.error("must be a file inside the repository: a path relative to its top, without ..")
    return workload


def _refuse_equal_ids(cases: list[SuiteCase], checks: Value) -> None:
    """Ids are folders, and some file systems do not tell Step from step."""
    seen: dict[str, str] = {}
    for case in cases:
        other = seen.setdefault(case.id.casefold(), case.id)
        if other is not case.id:
            checks.error(f"the ids {other} and {case.id} differ in capitals only")
