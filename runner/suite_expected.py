"""What a suite says of its cases: what is expected, which problems are known, and what a case can't do without."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import cast, get_args

import msgspec

from .model import Expectation, GatePhase, Kind
from .suite import Known
from .versions import parse_bound
from .yaml_file import Value

PHASES = ("forward", "backward", "optimizer")
EXPECTATIONS = ("symmetric", "fallback", "any")
KINDS = tuple(kind for kind in get_args(Kind) if kind != "unknown")

# The other half compares these with the standard library alone, so they are plainer than a known problem's bounds.
_PLAIN_BOUND = re.compile(r"(>=|<=|==|!=|>|<) ?\d{1,9}(\.\d{1,9}){0,3}(, ?(>=|<=|==|!=|>|<) ?\d{1,9}(\.\d{1,9}){0,3})*")


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a check or one of its exceptions says: of the check for every phase, of an exception for some."""

    expect: dict[GatePhase, Expectation] = {}
    kinds: dict[GatePhase, dict[Kind, Expectation]] = {}
    known: dict[GatePhase, tuple[Known, ...]] = {}
    needs: dict[str, str | bool] = {}
    because: str | None = None

    def under(self, exception: Expected) -> Expected:
        """This with `exception` laid over it, phase by phase and condition by condition."""
        kept = {phase: kinds for phase, kinds in self.kinds.items() if phase not in exception.expect}
        known = {**self.known, **exception.known}
        return Expected(
            expect={**self.expect, **exception.expect},
            kinds={**kept, **exception.kinds},
            known={phase: problems for phase, problems in known.items() if problems},
            needs={**self.needs, **exception.needs},
            because=exception.because or self.because,
        )

    def check(self, value: Value) -> None:
        """Refuse, at `value`, a known problem where nothing is judged that it could explain."""
        for phase, problems in self.known.items():
            if phase not in self.expect:
                value.error(f'"{phase}" has a known problem but stands in no "expect", so it is not judged')
            if self.expect[phase] == "fallback":
                value.error(f'"{phase}" has a known problem, but is expected to fall back anyway')
            for kind in (problem.kind for problem in problems if problem.kind is not None):
                judged = self.kinds.get(phase, {}).get(kind)
                if judged is None:
                    value.error(f'"{phase}" has a known problem of {kind}, and "expect" does not name that kind there')
                if judged == "fallback":
                    value.error(f'{kind} in "{phase}" has a known problem, but is expected to fall back anyway')


def read_expected(entries: Mapping[str, Value], *, exception: bool = False) -> Expected:
    """Read `expect`, `known`, `only-if` and `because`, as far as they are there.

    An exception may have an empty list of known problems: those of the check then do not hold there.
    """
    expect: dict[GatePhase, Expectation] = {}
    kinds: dict[GatePhase, dict[Kind, Expectation]] = {}
    if "expect" in entries:
        phases = entries["expect"].mapping(PHASES)
        if not phases:
            entries["expect"].error(f"names no phase; allowed: {', '.join(PHASES)}")
        for name, what in phases.items():
            phase = cast("GatePhase", name)
            if what.is_mapping():
                kinds[phase] = _read_kinds(what)
                # The strongest: what is expected of the phase where one word has to do.
                expect[phase] = min(kinds[phase].values(), key=EXPECTATIONS.index)
            else:
                expect[phase] = cast("Expectation", what.choice(EXPECTATIONS))
    known = entries["known"].mapping(PHASES) if "known" in entries else {}
    return Expected(
        expect=expect,
        kinds=kinds,
        known={cast("GatePhase", phase): _read_problems(problems, exception) for phase, problems in known.items()},
        needs=_read_needs(entries["only-if"]) if "only-if" in entries else {},
        because=read_line(entries["because"]) if "because" in entries else None,
    )


def _read_kinds(value: Value) -> dict[Kind, Expectation]:
    kinds = value.mapping(KINDS)
    if not kinds:
        value.error(f"names no kind; allowed: {', '.join(KINDS)}")
    return {cast("Kind", kind): cast("Expectation", what.choice(EXPECTATIONS)) for kind, what in kinds.items()}


def _read_problems(value: Value, none_too: bool) -> tuple[Known, ...]:
    items = list(value.items()) if value.is_list() else [value]
    if not items and not none_too:
        value.error("names no problem; leave the key out")
    return tuple(_read_known(item) for item in items)


def _read_known(value: Value) -> Known:
    entries = value.mapping(("issue", "title", "torch", "nccl", "kind"), required=("issue", "title"))
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
    return Known(
        issue=issue,
        title=read_line(entries["title"]),
        torch=bounds.get("torch"),
        nccl=bounds.get("nccl"),
        kind=cast("Kind", entries["kind"].choice(KINDS)) if "kind" in entries else None,
    )


def _read_needs(value: Value) -> dict[str, str | bool]:
    entries = value.mapping(_CONDITIONS)
    if not entries:
        value.error(f"names no condition; allowed: {', '.join(_CONDITIONS)}")
    return {name: _CONDITIONS[name](condition) for name, condition in entries.items()}


def _read_bound(value: Value) -> str:
    bound = value.text('a bound such as ">=2"')
    if not _PLAIN_BOUND.fullmatch(bound):
        value.error('is no bound of plain numbers; write it like ">=2.8" or ">=2.8, <2.12"')
    return bound


def _read_true(value: Value) -> bool:
    value.must_be_true()
    return True


_CONDITIONS: dict[str, Callable[[Value], str | bool]] = {
    "torch": _read_bound,
    "nccl": _read_bound,
    "capability": _read_bound,
    "ranks": _read_bound,
    "gpus": _read_bound,
    "own-gpu": _read_true,
    "multicast": _read_true,
}
"""The conditions of `only-if`; checks/needs.py compares them with what the ranks have recorded."""


def read_line(value: Value) -> str:
    """One line of text, not empty."""
    line = value.text("one line of text").strip()
    if not line or not line.isprintable():
        value.error("must be one line of text, and not empty")
    return line
