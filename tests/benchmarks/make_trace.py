"""Make a trace of any size from recorded ones, in Kineto's own layout and order, repeated later and later.

    python -m tests.benchmarks.make_trace --megabytes 200 --stacks trace.json.gz

The rows are those of a recorded FSDP2 training step on H200; with `--stacks`, the Python frames of a recorded trace
with `with_stack=True` are put among them in the proportion usual there (53 rows of 100). Times and ids go on from copy
to copy, as they do from step to step; rows that a file has once (names of threads) stay once.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

TRACES = Path(__file__).parents[1] / "data" / "traces"
STEP = TRACES / "h200" / "train_fsdp2_default_r0.json.gz"
WITH_STACKS = TRACES / "public" / "tracelens_b200_vllm_multimem_8xB200.json.gz"
PYTHON_SHARE = 0.53

Row = dict[str, Any]
# Ids of a copy lie above those of the copy before. Rows refer to each other by them.
ID_STEP = 100_000
_IDS = (
    "correlation",
    "External id",
    "Ev Idx",
    "Sequence number",
    "Record function id",
    "Python id",
    "Python parent id",
)
_HOST = ("cpu_op", "user_annotation", "fwdbwd")


class Template:
    """The text of one row, with places for what differs from copy to copy."""

    def __init__(self, row: Row) -> None:
        self._values: list[float] = []
        self._steps: list[int] = []  # 0: a time, which moves by the span of a copy
        args = row.get("args")
        head = self._members({key: row[key] for key in row if key not in ("args", "ts", "dur")})
        times = self._members({key: row[key] for key in ("ts", "dur") if key in row})
        body = "" if args is None else ',\n    "args": {\n      ' + self._members(args) + "\n    }"
        self._text = f"  {{\n    {head},\n    {times}{body}\n  }}"

    def _members(self, members: Row) -> str:
        return ", ".join(f"{json.dumps(key).replace('%', '%%')}: {self._value(key, members[key])}" for key in members)

    def _value(self, key: str, value: Any) -> str:
        if key == "ts":
            self._values.append(value)
            self._steps.append(0)
            return "%.3f"
        if key in _IDS and isinstance(value, int) and value > 0:
            self._values.append(value)
            self._steps.append(ID_STEP)
            return "%d"
        return json.dumps(value).replace("%", "%%")

    def text(self, copy: int, span: float) -> str:
        moved = (
            value + copy * (step or span) for value, step in zip(self._values, self._steps, strict=True)
        )  # fmt: skip
        return self._text % tuple(moved)


def read(path: Path) -> Row:
    trace: Row = json.loads(gzip.decompress(path.read_bytes()))
    return trace


def sections(rows: list[Row], python_rows: list[Row]) -> tuple[list[list[Row]], list[Row]]:
    """The rows as Kineto orders them (each thread's ops, Python frames, the GPU's), and those that a file has once."""
    threads: dict[Any, list[Row]] = {}
    gpu: list[Row] = []
    once: list[Row] = []
    for row in rows:
        if row.get("ph") in ("M", "i") or row.get("cat") in ("Trace", "overhead"):
            once.append(row)
        elif row.get("cat") in _HOST:
            threads.setdefault((row["pid"], row["tid"]), []).append(row)
        else:
            gpu.append(row)
    return [*threads.values(), python_rows, gpu], once


def python_frames(rows: list[Row]) -> list[Row]:
    """Recorded Python frames as if they were of the training step: its process, within its time."""
    host = [row for row in rows if row.get("cat") == "cpu_op"]
    repeated = sum(row.get("ph") not in ("M", "i") for row in rows)
    frames = [row for row in read(WITH_STACKS)["traceEvents"] if row.get("cat") == "python_function"]
    frames = frames[: round(repeated * PYTHON_SHARE / (1 - PYTHON_SHARE))]
    begin, first = min(row["ts"] for row in host), min(row["ts"] for row in frames)
    place = {"pid": host[0]["pid"], "tid": host[0]["tid"]}
    lowest = min(row["args"]["Python id"] for row in frames)
    moved = []
    for row in frames:
        ids = {key: max(1, row["args"].get(key, 0) - lowest + 1) for key in ("Python parent id", "Python id")}
        moved.append(row | place | {"ts": begin + row["ts"] - first, "args": row["args"] | ids})
    return moved


def texts(megabytes: float, *, stacks: bool) -> Iterator[str]:
    """Yield the file's text in pieces; its length is near `megabytes` (10^6 bytes)."""
    trace = read(STEP)
    rows: list[Row] = trace["traceEvents"]
    repeated, once = sections(rows, python_frames(rows) if stacks else [])
    times = [row["ts"] for section in repeated for row in section]
    span = max(times) - min(times) + 10_000
    templates = [[Template(row) for row in section] for section in repeated]
    size = sum(len(template.text(0, span)) + 2 for section in templates for template in section)
    copies = max(1, round(megabytes * 1e6 / size))
    about = {key: trace[key] for key in trace if key not in ("traceEvents", "traceName")}
    yield "{\n  " + json.dumps(about)[1:-1] + ',\n  "traceEvents": [\n'
    for section in templates:
        for copy in range(copies):
            if section:
                yield ",\n".join(template.text(copy, span) for template in section) + ",\n"
    yield ",\n".join(Template(row).text(0, span) for row in once)
    yield '\n  ],\n  "traceName": "trace.json"\n}\n'


def write(path: Path, megabytes: float, *, stacks: bool) -> None:
    """Write the trace, gzipped where the name ends in .gz."""

    def pour(out: TextIO) -> None:
        for text in texts(megabytes, stacks=stacks):
            out.write(text)

    if path.suffix == ".gz":
        with gzip.open(path, "wb", compresslevel=6) as packed, io.TextIOWrapper(packed, encoding="utf-8") as out:
            pour(out)
    else:
        with path.open("w", encoding="utf-8") as out:
            pour(out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a trace of any size from recorded ones.")
    parser.add_argument("file", type=Path, help="gzipped where its name ends in .gz")
    parser.add_argument("--megabytes", type=float, default=200, help="size of its text (default: 200)")
    parser.add_argument("--stacks", action="store_true", help="with Python frames, as with_stack=True records them")
    parsed = parser.parse_args()
    write(parsed.file, parsed.megabytes, stacks=parsed.stacks)


if __name__ == "__main__":
    main()
