"""Blocks of Python frames are stepped over undecoded, and nothing but Python frames ever is."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from runner.trace import python_rows
from runner.trace.collectives import read_collectives
from tests import reference
from tests.runner.trace.support import base, differences

BORDER = b"\n  },\n  {"


def frame(number: int, **changes: Any) -> dict[str, Any]:
    args = {"Python parent id": number, "Python id": number + 1, "Ev Idx": number}
    row = {"ph": "X", "cat": "python_function", "name": f"train.py({number}): step {'x' * (number % 50)}"}
    return row | {"pid": 100, "tid": 100, "ts": 1000.0 + number / 8, "dur": 0.1, "args": args} | changes


def text(rows: list[dict[str, Any]]) -> bytes:
    """Rows in Kineto's layout, with the border behind the last."""
    parts = []
    for row in rows:
        head = {key: row[key] for key in row if key not in ("ts", "dur", "args")}
        times = {key: row[key] for key in ("ts", "dur")}
        args = json.dumps(row["args"])[1:-1]
        members = f'    {json.dumps(head)[1:-1]},\n    {json.dumps(times)[1:-1]},\n    "args": {{\n      {args}\n    }}'
        parts.append("{\n" + members + "\n  }")
    return ",\n  ".join(parts).encode() + b",\n  {"


def count(content: bytes, border: bytes = BORDER) -> int | None:
    return python_rows.count(bytearray(content), 0, content.rindex(b","), border)


def test_frames_alone_are_counted():
    for number in (1, 2, 500):
        assert count(text([frame(row) for row in range(number)])) == number


KERNEL = {"cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()"}
TRAPS = {
    "another kind": frame(3, **KERNEL),
    "another phase": frame(3, ph="B"),
    "a list": frame(3, args={"Python parent id": [1], "Python id": 2}),
    "an object": frame(3, args={"Python parent id": 1, "more": {"ph": "X"}}),
    "a brace in a name": frame(3, name="f({): g"),
    "a bracket in a name": frame(3, name="f(list[int]): g"),
    "arguments of another order": frame(3, args={"Python id": 1, "Python parent id": 2}),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("place", [0, 2, 4])
def test_what_may_be_more_is_decoded(trap, place):
    rows = [frame(row) for row in range(5)]
    rows[place] = TRAPS[trap]
    assert count(text(rows)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (BORDER, BORDER + b'"ph":"X","cat":"kernel","args":{}},\n  {'),  # a row in another layout between two
        (b'"dur": 0.1', b'"dur": 0.1, "x": "\\""'),
        (b"\n", b" "),  # no line breaks: a border may stand in a string
    ],
    ids=["another layout", "before the arguments", "one line"],
)
def test_other_layouts_are_decoded(old, new):
    content = text([frame(row) for row in range(5)])
    changed = content.replace(old, new) if old == b"\n" else content.replace(old, new, 1)
    assert changed != content
    assert count(changed) is None
    if old == b"\n":
        assert count(changed, BORDER.replace(b"\n", b" ")) is None


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("indent", [1, 2, None])
def test_the_same_answer_with_frames_everywhere(seed, indent, tmp_path, monkeypatch):
    """Long runs of frames with and without traps, among the rows of a small trace; small blocks, so that many skip."""
    rng = random.Random(seed)
    trace = base()
    events: list[dict[str, Any]] = []
    for event in trace["traceEvents"]:
        events += [frame(number) for number in range(rng.choice((0, 1, 40)))]
        events += rng.choice(([], [TRAPS[rng.choice(list(TRAPS))]]))
        events.append(event)
    trace["traceEvents"] = events
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace, indent=indent))
    real, counts = python_rows.count, []
    monkeypatch.setattr(python_rows, "count", lambda *arguments: counts.append(real(*arguments)) or counts[-1])
    found = read_collectives(path, block=2048)
    assert differences(reference.classify(reference.read(path)), found) == []
    assert found.salvaged is None
    assert any(counts) == (indent is not None)
