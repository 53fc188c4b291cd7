"""The fast reading and the plain one give the same answer: on recorded traces in any layout, and on random ones."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.trace.collectives import read_collectives
from tests import reference
from tests.runner.trace.random_traces import Maker
from tests.runner.trace.support import DATA, differences

SMALL = sorted(path for path in (DATA / "traces").glob("*/*.json.gz") if path.stat().st_size < 100_000)
LARGE = sorted(path for path in (DATA / "traces").glob("*/*.json.gz") if path.stat().st_size >= 100_000)
NESTED = [{"a": [1, {"traceEvents": [{"ph": "X"}, {"ph": "X"}]}]}, {"}, {": "]"}] * 20
BLOCKS = (64, 333, 4096, 256 * 1024, 1 << 20)


def shuffled(value: Any, rng: random.Random) -> Any:
    """The value with the keys of every object in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key], rng) for key in rng.sample(list(value), len(value))}
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


def events_last(trace: dict[str, Any]) -> dict[str, Any]:
    return {key: trace[key] for key in trace if key != "traceEvents"} | {"traceEvents": trace["traceEvents"]}


def events_first(trace: dict[str, Any]) -> dict[str, Any]:
    return {"traceEvents": trace["traceEvents"]} | trace


def with_events(trace: dict[str, Any], change: Callable[[list[Any]], Any]) -> dict[str, Any]:
    return trace | {"traceEvents": list(change(trace["traceEvents"]))}


def nested_in_events(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace with lists of objects inside its events: borders there look like those between events."""
    return with_events(trace, lambda rows: (row | {"args": row.get("args", {}) | {"list": NESTED}} for row in rows))


LAYOUTS: dict[str, Callable[[dict[str, Any], random.Random], str | bytes]] = {
    "compact": lambda trace, rng: json.dumps(trace, separators=(",", ":")),
    "default": lambda trace, rng: json.dumps(trace),
    "indent 1": lambda trace, rng: json.dumps(trace, indent=1),
    "indent 2": lambda trace, rng: json.dumps(trace, indent=2),
    "indent 4": lambda trace, rng: json.dumps(trace, indent=4),
    "tabs": lambda trace, rng: json.dumps(trace, indent="\t", separators=(" ,", " : ")),
    "keys sorted": lambda trace, rng: json.dumps(trace, sort_keys=True),
    "keys shuffled": lambda trace, rng: json.dumps(shuffled(trace, rng)),
    "events shuffled": lambda trace, rng: json.dumps(
        with_events(trace, lambda rows: rng.sample(rows, len(rows))), indent=1
    ),
    "events reversed": lambda trace, rng: json.dumps(with_events(trace, reversed)),
    "bare list": lambda trace, rng: json.dumps(trace["traceEvents"], indent=2),
    "events first": lambda trace, rng: json.dumps(events_first(trace) | {"after": NESTED}),
    "events last": lambda trace, rng: json.dumps({"before": NESTED} | events_last(trace), indent=1),
    "nested in events": lambda trace, rng: json.dumps(nested_in_events(trace)),
    "BOM": lambda trace, rng: b"\xef\xbb\xbf" + json.dumps(trace).encode(),
    "CRLF": lambda trace, rng: json.dumps(trace, indent=1).replace("\n", "\r\n"),
    "gzip twice": lambda trace, rng: gzip.compress(gzip.compress(json.dumps(trace).encode(), 1), 1),
    "padded": lambda trace, rng: " \n" * 5000 + json.dumps(trace) + "\n" * 5000 + "\0" * 512,
    "not ASCII": lambda trace, rng: json.dumps({"ключ": "é \U0001f600 \\ \" }, {"} | trace, ensure_ascii=False),
}  # fmt: skip


def check(text: str | bytes, file: Path, block: int) -> None:
    data = text.encode() if isinstance(text, str) else text
    file.write_bytes(data)
    wanted = reference.classify(_value(data))
    found = read_collectives(file, block=block)
    assert differences(wanted, found) == []
    assert found.salvaged is None


def _value(data: bytes) -> Any:
    while data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return json.loads(data.decode("utf-8-sig").rstrip("\0"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", range(0, len(SMALL), 13))
def test_layouts(layout, number, tmp_path):
    trace = reference.read(SMALL[number])
    rng = random.Random(f"{layout} {number}")
    check(LAYOUTS[layout](trace, rng), tmp_path / "trace.json", BLOCKS[(number + len(layout)) % len(BLOCKS)])


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_every_trace_in_some_layout(path, tmp_path):
    rng = random.Random(path.name)
    layout = rng.choice(list(LAYOUTS))
    check(LAYOUTS[layout](reference.read(path), rng), tmp_path / "trace.json", rng.choice(BLOCKS[1:]))


@pytest.mark.parametrize("layout", ["compact", "events shuffled"])
@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_large_traces(path, layout, tmp_path):
    check(LAYOUTS[layout](reference.read(path), random.Random(1)), tmp_path / "trace.json", 256 * 1024)


@settings(
    max_examples=300, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(seed=st.integers(0, 2**32), block=st.sampled_from(BLOCKS), indent=st.sampled_from([None, None, 1]))
def test_random_traces(tmp_path, seed, block, indent):
    check(json.dumps(Maker(seed).trace(), indent=indent), tmp_path / "trace.json", block)


def test_random_traces_reach_every_rule():
    """A grammar that lost a rule would still agree with everything."""
    rows = [row for seed in range(150) for row in reference.classify(Maker(seed).trace())["collectives"]]
    assert {row["phase"] for row in rows} == {"forward", "backward", "recompute", "optimizer", "unknown"}
    assert {row["mechanism"] for row in rows} >= {
        *("nccl", "nccl-symmetric", "rccl", "rccl-symmetric", "nccl-copy-engine", "torch-symm-mem", "unknown"),
    }
    assert any(row["calls"] > 1 for row in rows)
    assert any(row["step"] for row in rows)


@pytest.mark.parametrize("part", range(4))
def test_coalesced_calls_whose_durations_are_damaged(part, tmp_path):
    """A call that ends before it begins counts where it ends before the window does."""
    rng = random.Random(part)
    path = tmp_path / "trace.json"
    flipped = 0
    for seed in range(part, 400, 4):
        trace = Maker(seed).trace()
        for row in trace["traceEvents"] if isinstance(trace, dict) else trace:
            if (
                isinstance(row, dict)
                and row.get("name") == "record_param_comms"
                and isinstance(row.get("dur"), float | int)
                and rng.randrange(2)
            ):
                row["dur"] = -row["dur"]
                flipped += 1
        path.write_text(json.dumps(trace))
        lines = differences(reference.classify(reference.read(path)), read_collectives(path))
        assert [line for line in lines if ": calls: " in line] == [], seed
    assert flipped > 100
