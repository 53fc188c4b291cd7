"""Memory and time stay bounded: on a large trace in Kineto's order or shuffled, and on files made to exhaust them."""

from __future__ import annotations

import gc
import gzip
import json
import random
import subprocess
import sys
import time
import tracemalloc
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.trace.collectives import read_collectives
from runner.trace.merge import pieces
from runner.trace.reader import TraceReader
from runner.trace.store import Store
from tests.runner.trace.support import DATA, PROJECT, base

MIB = 2**20
# Runs `classify` as the command does, then prints the status and the peak memory (MiB): of the process and of the one
# that reads half of a large file for it, added. The former is not asked of getrusage, which counts what the parent held
# at the fork.
MEASURE = """
import re, resource, sys
from runner.cli import main
sys.stdout = open(sys.argv[1], "w")
status = main(["classify", "--format", "json", *sys.argv[2:]])
own = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
peak = (own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) // 1024
print(status, peak, file=sys.__stdout__)
"""


def measure(path: Path, timeout: float = 120) -> tuple[int, int, dict[str, object], str]:
    """The exit status of `classify`, its peak memory in MiB, its answer, and what it wrote to stderr."""
    out = path.with_suffix(".out")
    command = [sys.executable, "-c", MEASURE, str(out), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=PROJECT, check=False)
    assert done.returncode == 0, done.stderr
    status, peak = map(int, done.stdout.split())
    return status, peak, json.loads(out.read_text()), done.stderr


def large_trace(copies: int) -> Iterator[str]:
    """The events of the small base trace many times, later each time, with ops of no interest between them."""
    events = base()["traceEvents"]
    for copy in range(copies):
        for event in events:
            args = {key: value for key, value in event.get("args", {}).items() if key != "External id"}
            if "correlation" in args:
                args["correlation"] += 2 * copy
            later = event["ts"] + 2000 * copy
            yield json.dumps(event | {"ts": later, "args": args, "name": event["name"].replace("#3", f"#{copy}")})
        for number in range(25):
            op = {"ph": "X", "cat": "cpu_op", "name": f"aten::op_{number}", "pid": 100, "tid": 100, "dur": 3.0}
            args = {"External id": number, "Input Dims": [[64, 1024], [], [64]], "Input type": ["float", "", "float"]}
            yield json.dumps(op | {"ts": 2000 * copy + 1920.0 + 3 * number, "args": args})


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_large_trace(shuffle, tmp_path):
    copies = 8000
    events = list(large_trace(copies))
    if shuffle:
        random.Random(7).shuffle(events)
    path = tmp_path / "large.json"
    path.write_text('{"traceEvents": [\n' + ",\n".join(events) + "]}")
    assert path.stat().st_size > 60 * MIB
    status, peak, answer, _ = measure(path)
    assert status == 0
    coverage = answer["coverage"]
    # Nothing tells forward from backward by the order in the file.
    assert (coverage["forward"]["fallback"]["calls"], coverage["backward"]["symmetric"]["calls"]) == (copies, copies)
    # 16,000 collectives, and their text in the answer, are most of it.
    assert peak < (128 if shuffle else 96)


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_of_no_interest(tmp_path):
    op = '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": %d.5, "dur": 1.0, "args": {"x": "%s"}}'
    text = ",\n".join(op % (number, "y" * 200) for number in range(200_000))
    path = tmp_path / "large.json"
    events = ",".join(json.dumps(event) for event in base()["traceEvents"])
    path.write_text(f'{{"traceEvents": [{text},\n{events}]}}')
    assert path.stat().st_size > 55 * MIB
    status, peak, answer, _ = measure(path)
    assert (status, len(answer["files"][0]["collectives"])) == (0, 2)
    assert peak < 64


def bomb(head: str, filling: bytes, size: int, tail: str = "") -> bytes:
    """A gzip file that unpacks to `size` bytes of filling between a head and a tail."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    chunk = filling * (MIB // len(filling))
    parts = [packer.compress(head.encode())]
    parts += [packer.compress(chunk) for _ in range(size // len(chunk))]
    return b"".join([*parts, packer.compress(tail.encode()), packer.flush()])


BOMBS = {
    "spaces": ("", b" ", 100 * MIB, 2),
    "zeros": ("", b"\0", 100 * MIB, 2),
    "brackets": ("", b"[", 30 * MIB, 2),
    "pairs of brackets": ('{"a": [', b"[],", 30 * MIB, 2),
    "spaces between events": ('{"traceEvents": [{},', b" ", 100 * MIB, 2),
    "a text that does not end": ('{"traceEvents": [{"name": "', b"x", 100 * MIB, 2),
    "escapes in the header": ('{"a": "', b'\\"', 30 * MIB, 2),
    "borders in a text": ('{"traceEvents": [{"name": "', b"}, {", 30 * MIB, 2),
    "braces in events": ('{"traceEvents": [', b'{"a":[{},{}]},', 16 * MIB, 3),
}


@pytest.mark.parametrize("name", BOMBS)
def test_gzip_bombs(name, tmp_path):
    head, filling, size, wanted = BOMBS[name]
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(bomb(head, filling, size))
    status, peak, answer, stderr = measure(path)
    assert status == wanted, stderr
    assert answer["files"] == [] or wanted == 3
    assert "Traceback" not in stderr
    assert peak < 96


@pytest.mark.parametrize(
    ("where", "wanted"),
    [("event", "an event longer than 16 MiB"), ("before", None), ("after", None), ("objects", None)],
)
def test_long_things(where, wanted, tmp_path):
    long, trace = "x" * 70_000_000, json.dumps(base())
    if where == "event":
        trace = trace.replace('"External id"', f'"long": "{long}", "External id"', 1)
    elif where == "before":
        trace = f'{{"long": "{long}", {trace[1:]}'
    elif where == "after":
        trace = f'{trace[:-1]}, "long": "{long}"}}'
    else:
        trace = f'{trace[:-1]}, "long": [' + '{"a": 1}, ' * 2_000_000 + "{}]}"
    path = tmp_path / "long.json"
    path.write_bytes(trace.encode())
    status, peak, answer, stderr = measure(path)
    if wanted:
        assert (status, answer["files"]) == (2, [])
        assert wanted in stderr
    else:
        assert (status, answer["files"][0]["salvaged"]) == (0, None)
        assert [row["phase"] for row in answer["files"][0]["collectives"]] == ["forward", "backward"]
    assert peak < (96 if wanted else 64)


def test_a_bomb_of_a_name_costs_little_time(tmp_path):
    """The catalogue's patterns meet names of any length and kind."""
    trace = base()
    kernel = next(event for event in trace["traceEvents"] if event["cat"] == "kernel")
    for number, part in enumerate(
        ("a::", "<", "void ", "_Z", "_ZN1a", "ncclDevKernel_", "(anonymous namespace)::", "9")
    ):
        trace["traceEvents"].append(kernel | {"name": part * (200_000 // len(part)), "ts": 5000.0 + number})
    path = tmp_path / "names.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    status, _, answer, _ = measure(path)  # by its end: what is quadratic takes hours here
    assert status == 0
    assert len(answer["files"][0]["collectives"]) >= 2


def test_nothing_that_is_read_needs_the_collector() -> None:
    """It is off while a trace is read: what holds itself would stay until the process ends."""
    store = Store()
    for batch in TraceReader(DATA / "malformed" / "00_base_valid.json").batches():
        store.add(batch)
    gone = [weakref.ref(store), *(weakref.ref(piece) for piece in pieces(store))]
    gc.disable()
    try:
        del store
        assert len(gone) > 3 and [one() for one in gone] == [None] * len(gone)
    finally:
        gc.enable()


def coalesced(calls: int, kernels: int, windows: int) -> dict[str, object]:
    """Calls that launch nothing, then windows in one another with kernels that serve them all."""
    rows: list[dict[str, object]] = []
    at = {"ph": "X", "pid": 100, "tid": 100}
    args = {"Collective name": "allreduce_coalesced", "Group size": 2, "dtype": "Float", "In msg nelems": 4}
    for number in range(calls):
        rows.append(at | {"cat": "cpu_op", "name": "record_param_comms", "ts": 10.0 * number, "dur": 5.0, "args": args})
    begin = 10.0 * calls
    for number in range(windows):
        dur = 10.0 * (kernels + 2 * (windows - number))
        rows.append(at | {"cat": "user_annotation", "name": "nccl:coalesced", "ts": begin + number, "dur": dur})
    for number in range(kernels):
        start = begin + windows + 10.0 * number
        link = {"correlation": number + 1}
        rows.append(at | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start, "dur": 1.0, "args": link})
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        rows.append(
            {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": name, "ts": start + 5, "dur": 1.0, "args": link}
        )
    return {"traceEvents": rows}


@pytest.mark.parametrize(("calls", "kernels", "windows"), [(4000, 4000, 1), (4000, 400, 400)])
def test_the_calls_of_many_coalesced_kernels_are_counted_once(calls, kernels, windows, tmp_path) -> None:
    """The time grew with the product of calls and kernels: half a minute for either."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(coalesced(calls, kernels, windows)))
    began = time.process_time()
    found = read_collectives(path).collectives
    assert time.process_time() - began < 8
    assert len(found) == kernels
    assert f"one of {kernels} kernels for {calls} coalesced calls" in found[0].why


def test_launches_below_many_calls_are_held_once(tmp_path: Path) -> None:
    """Not once for each call that they are below, where they are not in order."""
    trace = base()
    call = next(row for row in trace["traceEvents"] if row["name"] == "record_param_comms")
    launch = next(row for row in trace["traceEvents"] if row["cat"] == "cuda_runtime")
    number = 3000
    rows = [call | {"ts": 1e6 + at, "dur": 1e6} for at in range(number)]
    launches = [launch | {"ts": 1.5e6 + at, "args": {"correlation": 10_000 + at}} for at in range(number)]
    launches[0], launches[1] = launches[1], launches[0]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace | {"traceEvents": [*trace["traceEvents"], *rows, *launches]}))
    tracemalloc.start()
    try:
        assert len(read_collectives(path).collectives) == 2
        assert tracemalloc.get_traced_memory()[1] < 20 * MIB  # 72 MB in 8-byte numbers, once for each call
    finally:
        tracemalloc.stop()
