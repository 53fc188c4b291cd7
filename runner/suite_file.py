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
from .plan import DEFAULT_CONFIGURATION, Configuration, SymmMemBackend
from .suite import Suite, SuiteCase
from .suite_expected import Expected, read_expected
from .yaml_file import Value, quoted, read_yaml

MAX_CASES = 10_000
SYMM_MEM_BACKENDS = ("CUDA", "NVSHMEM", "NCCL")

# A part of an id is also the name of a folder: no slash, no blank, and neither "." nor "..".
_ID_PART = re.compile(r"(?!\.+$)[A-Za-z0-9._+-]{1,80}")
_AXIS_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_WORKLOAD = re.compile(r"[a-z][a-z0-9_]*")
_FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")
# What torchrun sets for each rank, what the run itself goes by, and --nccl's own.
_NOT_A_SUITES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PATH", "LD_PRELOAD"}
    | {"SYMMEM_CHECK_START", "CUDA_VISIBLE_DEVICES"}
)

# One axis: how each value stands in an id → the value that the workload gets.
Axis = dict[str, str | int]


class Rule(msgspec.Struct, frozen=True):
    """An exception: the names (as in an id) that each axis may have, and what holds then."""

    value: Value
    when: dict[str, list[str]]
    expected: Expected


class Matrix(msgspec.Struct, frozen=True):
    """The axes of a check with all their values, and its points: one word for each axis, in the order of the ids."""

    axes: dict[str, Axis]
    points: list[tuple[str, ...]]


def read_suite(path: Path) -> Suite:
    """Read and check a suite file."""
    required = ("suite", "ranks", "steps", "warmup", "checks")
    top = read_yaml(path).mapping((*required, "configurations"), required=required)
    configurations = _read_configurations(top["configurations"]) if "configurations" in top else {}
    cases: list[SuiteCase] = []
    checks = top["checks"].mapping()
    if not checks:
        top["checks"].error("no check stands here, so nothing could fail")
    for name, check in checks.items():
        if not _ID_PART.fullmatch(name):
            check.error("the name of a check may have letters, digits and . _ + - only")
        cases += _read_check(name, check, configurations)
    _refuse_equal_ids(cases, top["checks"])
    for name in configurations.keys() - {case.configuration for case in cases}:
        top["configurations"].error(f"no check runs in the configuration {name}")
    return Suite(
        name=_read_id_part(top["suite"]),
        path=str(path),
        ranks=top["ranks"].whole_number(2, 4096),
        steps=top["steps"].whole_number(1, 1000),
        warmup=top["warmup"].whole_number(0, 1000),
        configurations=configurations,
        cases=tuple(cases),
    )


def _read_configurations(value: Value) -> dict[str, Configuration]:
    read: dict[str, Configuration] = {}
    for name, content in value.mapping().items():
        if not _ID_PART.fullmatch(name):
            content.error("the name of a configuration may have letters, digits and . _ + - only")
        if name == DEFAULT_CONFIGURATION:
            content.error("is the configuration that changes nothing; give this one another name")
        entries = content.mapping(("env", "symm-mem-backend"))
        if not entries:
            content.error("changes nothing; say what it sets: env or symm-mem-backend")
        backend = entries["symm-mem-backend"].choice(SYMM_MEM_BACKENDS) if "symm-mem-backend" in entries else None
        read[name] = Configuration(
            env=_read_variables(entries["env"]) if "env" in entries else {},
            symm_mem_backend=cast("SymmMemBackend | None", backend),
        )
    return read


def _read_variables(value: Value) -> dict[str, str]:
    variables = {}
    for name, content in value.mapping().items():
        if not _VARIABLE.fullmatch(name):
            content.error("the name of a variable has capitals, digits and _ only")
        if name in _NOT_A_SUITES:
            content.error("is not a suite's to set")
        variables[name] = content.text("text")
        if not variables[name].isprintable():
            content.error("must be one line of text")
    return variables


def _read_check(name: str, check: Value, configurations: dict[str, Configuration]) -> Iterator[SuiteCase]:
    keys = ("workload", "deadline", "because", "configuration", "only-if", "matrix", "fixed", "expect", "known")
    entries = check.mapping((*keys, "exceptions"), required=("workload", "deadline", "expect"))
    matrix = _read_matrix(entries["matrix"]) if "matrix" in entries else Matrix({}, [()])
    fixed = _read_fixed(entries["fixed"], matrix.axes) if "fixed" in entries else {}
    axes = {**matrix.axes, **fixed}
    workload = _read_workload(entries["workload"])
    deadline = entries["deadline"].seconds()
    configuration = DEFAULT_CONFIGURATION
    if "configuration" in entries:
        configuration = entries["configuration"].choice((DEFAULT_CONFIGURATION, *configurations))
    expected = read_expected(entries)
    rules = _read_rules(entries["exceptions"], axes) if "exceptions" in entries else []
    used: set[int] = set()
    for point in matrix.points:
        named = dict(zip(matrix.axes, point, strict=True))
        everywhere = {**named, **{axis: next(iter(values)) for axis, values in fixed.items()}}
        here = expected
        number = next((n for n, rule in enumerate(rules) if _matches(rule.when, everywhere)), None)
        if number is not None:
            used.add(number)
            here = expected.under(rules[number].expected)
        here.check(rules[number].value if number is not None else check)
        yield SuiteCase(
            id="/".join((name, *point)),
            check=name,
            workload=workload,
            axes={axis: axes[axis][word] for axis, word in everywhere.items()},
            deadline=deadline,
            expect=here.expect,
            kinds=here.kinds,
            known=here.known,
            because=here.because,
            configuration=configuration,
            needs=here.needs,
            line=check.line,
        )
    for number, rule in enumerate(rules):
        if number not in used:
            rule.value.error("never applies: an earlier exception matches each of its cases first, or none is left")


def _matches(when: dict[str, list[str]], point: dict[str, str]) -> bool:
    return all(point[axis] in names for axis, names in when.items())


def _read_matrix(value: Value) -> Matrix:
    """The product of the lists without what `exclude` names, then what `include` adds."""
    entries = _axes(value)
    include, exclude = entries.pop("include", None), entries.pop("exclude", None)
    if not entries:
        value.error("names no axis")
    axes = {axis: _read_axis_values(axis, values, _listed(values)) for axis, values in entries.items()}
    if math.prod(len(axis) for axis in axes.values()) > MAX_CASES:
        value.error(f"makes more than {MAX_CASES} cases")
    points = list(itertools.product(*axes.values()))
    if exclude is not None:
        points = _without(points, exclude, axes)
    there = set(points)
    for item in _listed(include) if include is not None else ():
        more = item.mapping(axes, required=tuple(axes))
        added = {axis: _read_axis_values(axis, v, _listed(v) if v.is_list() else [v]) for axis, v in more.items()}
        if len(points) + math.prod(len(axis) for axis in added.values()) > MAX_CASES:
            item.error(f"makes more than {MAX_CASES} cases")
        for axis, values in added.items():
            _add_values(axes[axis], values, more[axis])
        for point in itertools.product(*(added[axis] for axis in axes)):
            if point in there:
                item.error(f"the point {'/'.join(point)} is there already")
            there.add(point)
            points.append(point)
    if not points:
        value.error("has no case left")
    return Matrix(axes, points)


def _without(points: list[tuple[str, ...]], exclude: Value, axes: dict[str, Axis]) -> list[tuple[str, ...]]:
    for item in _listed(exclude):
        when = _read_condition(item, axes)
        kept = [point for point in points if not _matches(when, dict(zip(axes, point, strict=True)))]
        if len(kept) == len(points):
            item.error("matches no case that is left")
        points = kept
    return points


def _add_values(axis: Axis, values: Axis, value: Value) -> None:
    """Take an axis's further values in: one word and one meaning each, as in the matrix itself."""
    words = {plain: word for word, plain in axis.items()}
    for word, plain in values.items():
        if axis.setdefault(word, plain) != plain or words.setdefault(plain, word) != word:
            value.error(f"{quoted(word)} means the same as another value of the axis; write it in the same way")


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
        entries = item.mapping(("when", "only-if", "expect", "known", "because"), required=("when",))
        if len(entries) == 1:
            item.error("changes nothing; say what holds there: only-if, expect, known or because")
        rules.append(Rule(item, _read_condition(entries["when"], axes), read_expected(entries, exception=True)))
    return rules


def _read_condition(value: Value, axes: dict[str, Axis]) -> dict[str, list[str]]:
    """The words, as in an id, that each axis named may have."""
    when = {axis: _read_when(axis, entry, axes[axis]) for axis, entry in value.mapping(axes).items()}
    if not when:
        value.error("names no axis, so it would match every case")
    return when


def _read_when(axis: str, value: Value, declared: Axis) -> list[str]:
    words = []
    for item in _listed(value) if value.is_list() else [value]:
        _, plain = read_axis(axis, item)
        match = [word for word, other in declared.items() if other == plain]
        if not match:
            item.error(f"{quoted(str(plain))} is not among the values of {axis} here: {', '.join(declared)}")
        words += match
    return words


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
