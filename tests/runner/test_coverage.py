"""Coverage: which group a collective counts in, and the sums."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from runner.judge.coverage import added, coverage, coverage_by_phase, group_of
from runner.model import PHASES, Amount, Collective

SYMMETRIC = Collective(
    rank=0, step=None, phase="forward", kind="all_reduce", mechanism="nccl-symmetric", symmetric=True, multicast=None,
    algorithm=None, dtype="bfloat16", bytes=100, group=None, group_size=2, start=1.0, duration=0.1, kernel="k", calls=3,
    why="",
)  # fmt: skip


def like(**fields: Any) -> Collective:
    return msgspec.structs.replace(SYMMETRIC, **fields)


GENERAL = like(symmetric=False, mechanism="nccl")


@pytest.mark.parametrize(
    ("fields", "group"),
    [
        ({}, "fallback"),
        ({"kind": "all_gather"}, "fallback"),
        ({"kind": "reduce_scatter"}, "fallback"),
        ({"kind": "broadcast"}, "ineligible"),
        ({"kind": "send_recv"}, "ineligible"),
        ({"kind": "all_to_all"}, "ineligible"),
        ({"dtype": "int64"}, "ineligible"),
        ({"dtype": "float64"}, "ineligible"),
        ({"dtype": None}, "fallback"),
        ({"kind": "all_gather", "dtype": "int64"}, "fallback"),  # it moves bytes
        ({"kind": "unknown"}, "unknown"),
        ({"symmetric": None}, "unknown"),
        ({"symmetric": None, "kind": "broadcast"}, "unknown"),
        ({"symmetric": True, "kind": "unknown"}, "symmetric"),
        ({"symmetric": True, "dtype": "float64"}, "symmetric"),
    ],
)
def test_group(fields, group):
    assert group_of(msgspec.structs.replace(GENERAL, **fields)) == group


def test_sums_count_launches_and_leave_no_noise():
    found = coverage([SYMMETRIC, like(duration=0.2), like(bytes=None), GENERAL, like(symmetric=None)])
    assert found.symmetric == Amount(calls=3, bytes=200, time_us=0.4)
    assert (found.fallback.calls, found.unknown.calls, found.ineligible.calls) == (1, 1, 0)
    assert found.ratio == 0.75


def test_no_eligible_call_has_no_ratio():
    assert coverage([]).ratio is None
    assert coverage([msgspec.structs.replace(GENERAL, kind="broadcast"), like(symmetric=None)]).ratio is None


def test_every_phase_is_there():
    found = coverage_by_phase([SYMMETRIC, like(phase="recompute")])
    assert tuple(found) == PHASES
    assert [part.symmetric.calls for part in found.values()] == [1, 0, 1, 0, 0]


def test_added():
    whole = [SYMMETRIC, GENERAL, like(phase="backward", symmetric=None)]
    assert added(coverage([row]) for row in whole) == coverage(whole)
    assert added([]) == coverage([])
