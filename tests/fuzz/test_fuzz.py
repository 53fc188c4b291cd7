"""Broken and hostile input at every door: a few thousand at random, the same ones each time. `make fuzz` takes more."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.result import read_result
from runner.suite import load_suite
from runner.trace.halves import SecondHalf
from tests.fuzz import doors, mutate

EXAMPLES = {
    "trace": 700, "valid_trace": 300, "halves": 300, "suite": 400, "machine": 400, "result": 500, "artifact": 600,
}  # fmt: skip
SOME = settings(
    derandomize=True, deadline=None, database=None, max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with doors.memory_folder() as path:
        yield path


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_at_random(name: str, folder: Path) -> None:
    for seed in range(EXAMPLES[name]):
        try:
            doors.enter(name, doors.DOORS[name][1](Random(seed)), folder)
        except Exception as error:
            pytest.fail(f"python -m tests.fuzz {name} --examples 1 --seed {seed}: {error!r}")


def test_each_door_opens_to_what_is_valid(folder: Path) -> None:
    """Were all inputs turned away at once, nothing behind the doors would be reached."""
    for text in mutate.suites():
        (folder / "suite.yaml").write_text(text)
        assert load_suite(folder / "suite.yaml").cases
    for data in mutate.results():
        (folder / "result.json").write_bytes(data)
        assert read_result(folder / "result.json").cases
    with mock.patch.object(SecondHalf, "has_read", autospec=True, side_effect=SecondHalf.has_read) as has_read:
        for seed in range(20):
            doors.enter("halves", mutate.any_trace(Random(seed)), folder)
    assert has_read.call_count >= 5
    taken = 0
    for seed in range(60):
        doors.enter("artifact", mutate.artifact(Random(seed)), folder)
        taken += (folder / "out" / "result.json").exists()
    assert 5 <= taken <= 55


def test_a_broken_promise_is_told_with_what_makes_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.fuzz import __main__ as command

    def broken(data: bytes, folder: Path) -> None:
        raise KeyError("oops")

    monkeypatch.setitem(doors.DOORS, "suite", (broken, mutate.suite))
    monkeypatch.setattr(sys, "argv", ["fuzz", "suite", "--examples", "2", "--seed", "7"])
    assert command.main() == 1
    told = capsys.readouterr().out
    assert "suite: broken by: python -m tests.fuzz suite --examples 1 --seed 8\n" in told and "oops" in told


# What hypothesis thinks of itself, and makes as small as can be where it breaks something.
keys = st.sampled_from(
    ["traceEvents", "ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "correlation", "External id", "cases"]
) | st.text(max_size=4)  # fmt: skip
leaves: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
    | st.sampled_from(["X", "kernel", "cpu_op", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", *mutate.WORDS])
)  # fmt: skip
documents = st.recursive(leaves, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=8))
events = st.fixed_dictionaries(
    {"ph": st.just("X")}, optional=dict.fromkeys(("cat", "name", "pid", "tid", "ts", "dur"), leaves)
)


@SOME
@given(value=documents | st.lists(events | documents, max_size=6).map(lambda rows: {"traceEvents": rows}))
def test_any_json(folder: Path, value: Any) -> None:
    data = json.dumps(value).encode()
    for name in ("trace", "result", "suite", "machine"):
        doors.enter(name, data, folder)


@SOME
@given(
    data=st.binary(max_size=300),
    head=st.sampled_from([b"", b"\x1f\x8b\x08", b"PK\x03\x04", b'{"traceEvents":[', b"\xef\xbb\xbf"]),
)
def test_any_bytes(folder: Path, data: bytes, head: bytes) -> None:
    for name in ("trace", "result", "suite", "machine", "artifact"):
        doors.enter(name, head + data, folder)


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed: `make fuzz` installs it"
)
@pytest.mark.slow
def test_guided_by_coverage(project: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz.guided", "suite", "-runs=300", "-max_total_time=200", str(tmp_path)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0 and "Done 300 runs" in done.stderr, done.stderr[-2000:]
    assert any(tmp_path.iterdir()), "it found nothing new in any input"
