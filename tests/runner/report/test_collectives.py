"""The collectives of traces as a table and as CSV."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings

from runner.model import Collective, Coverage, Phase
from runner.report.collectives import print_collectives_table, write_collectives_csv
from runner.trace.collectives import TraceFile, read_collectives

from .factory import GENERAL, SYMMETRIC, coverage, harmful


def collective(**more: Any) -> Collective:
    fields = {
        "rank": 0, "step": 1, "phase": "forward", "kind": "all_reduce", "mechanism": "nccl-symmetric", "calls": 1,
        "symmetric": True, "multicast": False, "algorithm": "RSxLD_AGxST", "dtype": "bfloat16", "bytes": 8 * 2**20,
        "group": "default_pg", "group_size": 2, "start": 10.5, "duration": 3.25, "kernel": SYMMETRIC, "why": "forward",
    } | more  # fmt: skip
    return Collective(**fields)


def trace(*collectives: Collective, **more: Any) -> TraceFile:
    fields = {
        "file": "rank0.json", "rank": 0, "world_size": 2, "salvaged": None, "one_rank_calls": 0, "barrier_calls": 0,
        "gpu_rows": 9, "nccl_built": None,
    } | more  # fmt: skip
    return TraceFile(collectives=list(collectives), **fields)


GENERAL_ONE = collective(phase="backward", mechanism="nccl", symmetric=False, algorithm=None, kernel=GENERAL)


def table(*files: TraceFile, of: dict[Phase, Coverage] | None = None) -> list[str]:
    file = io.StringIO()
    print_collectives_table(files, of or {}, file)
    return file.getvalue().splitlines()


def test_the_table() -> None:
    seen = trace(collective(), GENERAL_ONE, one_rank_calls=3, barrier_calls=2)
    lines = table(seen, of={"forward": coverage(1), "backward": coverage(0, 1)})
    assert lines[0] == (
        "rank0.json: 2 collectives; rank 0 of 2; 3 calls to a group of one rank, which communicate nothing; 2 barriers"
    )
    titles, *rows = lines[1:4]
    assert titles.startswith("rank  step  phase     kind        mechanism       symmetric  dtype     bytes  group  ")
    assert titles.endswith("  kernel       launches  calls")
    assert rows[0].startswith(
        "   0     1  forward   all_reduce  nccl-symmetric  yes        bfloat16  8 MiB  default_pg"
    )
    assert rows[0].endswith(" (2)  RSxLD_AGxST         1      1")
    assert rows[1].startswith(
        "   0     1  backward  all_reduce  nccl            no         bfloat16  8 MiB  default_pg"
    )
    assert rows[1].endswith(" (2)  RING_LL             1      1")
    assert lines[4:] == ["", "coverage forward: 100 % (1 of 1 calls)", "coverage backward: 0 % (0 of 1 calls)"]


def test_ten_thousand_collectives_stay_readable() -> None:
    many = [collective(step=step, calls=2, start=float(step)) for step in range(5000)] + [GENERAL_ONE] * 5000
    lines = table(trace(*many))
    assert len(lines) == 5
    assert lines[2].split()[:2] == ["0", "0-4999"] and lines[2].split()[-2:] == ["5000", "10000"]
    assert lines[3].split()[-2:] == ["5000", "5000"]


def test_steps_are_told_as_ranges() -> None:
    (row,) = table(trace(*(collective(step=step) for step in (7, 1, 2, 3, None))))[2:3]
    assert row.split()[1] == "1-3,7,?"


def test_what_is_not_known_is_a_question_mark() -> None:
    unknown = collective(
        rank=None, step=None, symmetric=None, dtype=None, bytes=None, group=None, group_size=None, kernel=None,
        algorithm=None, mechanism="unknown", kind="unknown", phase="unknown",
    )  # fmt: skip
    row = table(trace(unknown, rank=None))[2]
    assert " ".join(row.split()) == "? ? unknown unknown unknown unknown ? ? ? copy engine 1 1"


def test_bytes_are_exact() -> None:
    rows = table(trace(*(collective(bytes=size) for size in (0, 1000, 1024, 3 * 2**20, 2**30))))[2:7]
    assert [" ".join(row.split()[7:9]) for row in rows] == ["0 B", "1000 B", "1 KiB", "3 MiB", "1 GiB"]


def test_a_file_that_lost_something_or_has_no_evidence_says_so() -> None:
    lines = table(trace(salvaged="the end is missing"), trace(gpu_rows=0, file="b.json"))
    assert lines == [
        "rank0.json: 0 collectives; rank 0 of 2",
        "salvaged: the end is missing",
        "",
        "b.json: 0 collectives; rank 0 of 2; no GPU events, so nothing is known of them",
        "",
    ]


def test_phases_without_collectives_have_no_coverage_line() -> None:
    assert table(of={"forward": coverage(), "optimizer": coverage(0, 0, 2)}) == [
        "coverage optimizer: n/a (nothing eligible ran; 2 not eligible)"
    ]


def test_csv_has_every_field(project: Path) -> None:
    read = read_collectives(project / "tests/data/traces/h200/ce2307_ag_r0.json.gz")
    file = io.StringIO()
    write_collectives_csv([read, trace(GENERAL_ONE)], file)
    rows = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert [row["file"] for row in rows] == [read.file, "rank0.json"]
    (first,) = read.collectives
    for name, value in msgspec.structs.asdict(first).items():
        wanted = (
            {True: "true", False: "false"}[value] if isinstance(value, bool) else "" if value is None else str(value)
        )
        assert rows[0][name] == wanted
    assert rows[1]["kernel"] == GENERAL and rows[1]["symmetric"] == "false"


def test_csv_is_only_data() -> None:
    file = io.StringIO()
    hostile = collective(kernel="=cmd|' /C calc'!A0", group="+1", dtype="@x", why='a "quoted", split\nline\x1b[31m')
    write_collectives_csv([trace(hostile, file="-rank.json")], file)
    (row,) = csv.DictReader(io.StringIO(file.getvalue()))
    assert (row["file"], row["kernel"], row["group"]) == ("'-rank.json", "'=cmd|' /C calc'!A0", "'+1")
    assert row["dtype"] == "'@x" and row["why"] == 'a "quoted", split line'


@settings(deadline=None)
@given(harmful)
def test_hostile_names_break_neither(text: str) -> None:
    hostile = collective(kernel=text, group=text, dtype=text, why=text, algorithm=None)
    one = trace(hostile, collective(), file=text, salvaged=text)
    lines = table(one)
    assert len(lines) == 6
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", "\n".join(lines))
    file = io.StringIO()
    write_collectives_csv([one], file)
    rows = list(csv.reader(io.StringIO(file.getvalue())))
    assert [len(row) for row in rows] == [18, 18, 18]
