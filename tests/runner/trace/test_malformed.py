"""Damaged and hostile files: an answer that says what was lost, or one clear line; never a traceback, never a hang."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from runner.errors import UserError
from runner.trace.collectives import TraceFile, read_collectives
from runner.trace.reader import NotATrace
from tests.runner.trace.support import DATA, base, classify

GATHER = ("forward", "all_gather", "nccl", False)
SCATTER = ("backward", "reduce_scatter", "nccl-symmetric", True)
UNKNOWN_GATHER, UNKNOWN_SCATTER = ("unknown", *GATHER[1:]), ("unknown", *SCATTER[1:])
BOTH = [GATHER, SCATTER]
# Number of the file → its collectives and what `salvaged` says; or the status and the line of an error.
WANTED: dict[str, tuple[list[Any], str | None] | tuple[int, str]] = {
    **dict.fromkeys(
        ("00", "02", "04", "06", "12", "16", "22", "24", "40", "44", "46", "48", "50", "52", "58", "60"), (BOTH, None)
    ),
    "08": ([UNKNOWN_GATHER, SCATTER], r"1 event could not be read at line 34"),
    "10": ([UNKNOWN_GATHER, UNKNOWN_SCATTER], r"1 event could not be read at line 130"),
    "14": (BOTH, r"the file ends without its closing brackets"),
    "18": ([UNKNOWN_GATHER, SCATTER], r"1 event could not be read at line 120"),
    "20": (2, r"empty; record the trace again"),
    "42": (2, r"has no traceEvents list; give a trace that torch\.profiler exported"),
    "54": ([UNKNOWN_GATHER, UNKNOWN_SCATTER], None),
    "56": ([GATHER, ("backward", "reduce_scatter", "nccl", False)], None),
    "62": ([GATHER, GATHER, SCATTER, SCATTER], None),
    "64": (3, r"no GPU events; record it with ProfilerActivity\.CUDA"),
}
FILES = sorted((DATA / "malformed").glob("[0-9]*"))


def told(file: TraceFile) -> list[Any]:
    return [(row.phase, row.kind, row.mechanism, row.symmetric) for row in file.collectives]


def read(folder: Path, content: Any, **options: Any) -> TraceFile:
    """Write content (bytes, text, or a value for JSON) to a file and read it."""
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path = folder / "trace.json"
    path.write_bytes(content)
    return read_collectives(path, **options)


def with_member(trace: dict[str, Any], part: str, key: str, text: str) -> str:
    """The trace's text, one event (named by `part`) with a member, or an argument, whose value is `text` as it is."""
    (event,) = [event for event in trace["traceEvents"] if part in event["name"]]
    (event if key in event else event["args"])[key] = "@@"
    return json.dumps(trace).replace('"@@"', text)


# ---- the files that people reported


def test_each_file_has_its_wanted_behaviour():
    assert {path.name[:2] for path in FILES} == set(WANTED)
    assert len(FILES) == 26


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_by_the_command_line(path):
    first, line = WANTED[path.name[:2]]
    done = classify(path)
    assert "Traceback" not in done.stderr
    document = json.loads(done.stdout)
    if isinstance(first, int):
        assert done.returncode == first
        assert document["coverage"]["forward"]["ratio"] is None
        lines = done.stderr.splitlines()
        assert len(lines) == (1 if first == 2 else 2)  # with status 3, also that nothing could be measured
        assert re.fullmatch(rf"symmem-check: {re.escape(str(path))}: {line}.*", lines[0])
        assert len(document["errors"]) == (first == 2)
        return
    assert done.returncode == 0
    (file,) = document["files"]
    found = [(row["phase"], row["kind"], row["mechanism"], row["symmetric"]) for row in file["collectives"]]
    assert found == first
    assert re.fullmatch(line or "None", str(file["salvaged"]))
    assert done.stderr == (f"symmem-check: {path}: salvaged: {file['salvaged']}\n" if line else "")
    assert all(row["duration"] > 0 for row in file["collectives"])
    assert file["rank"] == (None if path.name[:2] in ("40", "62") else 0)


@pytest.mark.parametrize("block", [64, 100, 1000])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_blocks_size_changes_nothing(path, block):
    first, line = WANTED[path.name[:2]]
    if first == 2:
        with pytest.raises(UserError, match=str(line)):
            read_collectives(path, block=block)
    else:
        file = read_collectives(path, block=block)
        assert told(file) == ([] if first == 3 else first)
        assert re.fullmatch(str(line) if isinstance(first, list) else "None", str(file.salvaged))


# ---- truncated and altered anywhere


ORDERS = {
    "as written": lambda events: events,
    "reversed": lambda events: events[::-1],
    "ops first": lambda events: sorted(events, key=lambda event: event["cat"] != "cpu_op"),
    "ops last": lambda events: sorted(events, key=lambda event: event["cat"] == "cpu_op"),
}


@pytest.mark.parametrize("order", ORDERS)
def test_truncated_at_every_byte(order, tmp_path):
    trace = base()
    trace["traceEvents"] = ORDERS[order](trace["traceEvents"])
    text = json.dumps(trace, separators=(",", ":")).encode()
    right = {1050.0: "forward", 1460.0: "backward"}
    borders = {match.end() for match in re.finditer(rb"\}(?=,\{)", text)}
    answers = 0
    for length in [*range(0, len(text) - 1, 3), *borders]:
        try:
            file = read(tmp_path, text[:length])
        except UserError as error:
            assert "\n" not in str(error)
            continue
        answers += 1
        assert file.salvaged, length
        for row in file.collectives:
            assert row.phase in (right[row.start], "unknown"), (length, row.why)
    assert answers > 500


@pytest.mark.parametrize("byte", [b"\0", b'"', b"\\", b"}", b"]", b",", b"\xff", b"9"])
def test_any_byte_altered(byte, tmp_path):
    text = json.dumps(base(), separators=(",", ":")).encode()
    answers = 0
    for place in range(0, len(text), 4):
        try:
            file = read(tmp_path, text[:place] + byte + text[place + 1 :], block=(100, 4096)[place % 8 > 0])
        except UserError:
            continue
        answers += 1
        assert len(file.collectives) <= 2
        json.dumps([row.start for row in file.collectives], allow_nan=False)
    assert answers > 500


# ---- structure


@pytest.mark.parametrize("depth", [500, 950, 3000, 100_000])
@pytest.mark.parametrize("where", ["argument", "name", "header", "odd argument", "damaged event"])
def test_nested_deeply(where, depth, tmp_path):
    deep = "[" * depth + "]" * depth
    trace = base()
    if where == "header":
        text = f'{{"deep": {deep}, ' + json.dumps(trace)[1:]
        assert told(read(tmp_path, text)) == BOTH
        return
    text = with_member(trace, "ncclSymk", "name" if where == "name" else "deep", deep)
    if where == "odd argument":
        text = text.replace('"ts": 1460.0', '"ts": "1460.0"')
    if where == "damaged event":
        text = text.replace('"ts": 1460.0', '"ts": 1460.0, "x": NaN')
    file = read(tmp_path, text)
    # What Python itself can't nest is lost, and told; a name that is no text is none.
    whole = BOTH if where != "name" else [*BOTH[:1], ("backward", "reduce_scatter", "unknown", None)]
    assert (told(file) == whole and not file.salvaged) or (
        told(file) == [UNKNOWN_GATHER] and file.salvaged == "1 event could not be read at line 1"
    )


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, '[{"a":' * 100_000, '{"traceEvents":[' + "[" * 100_000]
)
def test_nested_and_nothing_else(text, tmp_path):
    with pytest.raises(UserError) as error:
        read(tmp_path, text)
    assert not isinstance(error.value, NotATrace)


@pytest.mark.parametrize("value", ["null", "{}", '"x"', "5", "true", '{"traceEvents": []}'])
def test_events_that_are_no_list(value, tmp_path):
    with pytest.raises(UserError, match="traceEvents is no list") as error:
        read(tmp_path, f'{{"traceEvents": {value}}}')
    assert not isinstance(error.value, NotATrace)  # in a folder it must not be left out as some other file


@pytest.mark.parametrize("value", ["[]", "[[]]", '[null, 1, "x", [{}], 1e999]'])
def test_lists_without_events(value, tmp_path):
    file = read(tmp_path, f'{{"traceEvents": {value}}}')
    assert (file.collectives, file.gpu_rows, file.salvaged) == ([], 0, None)


def test_two_lists_of_events(tmp_path):
    with pytest.raises(UserError, match="has traceEvents twice"):
        read(tmp_path, json.dumps(base())[:-1] + ', "traceEvents": []}')


@pytest.mark.parametrize("second", [base(), base()["traceEvents"], "text"])
def test_more_text_behind_the_trace_is_told(second, tmp_path):
    for first in (base(), base()["traceEvents"]):
        file = read(tmp_path, json.dumps(first) + "\n" + json.dumps(second))
        assert told(file) == BOTH
        assert file.salvaged == "other text follows the end of the trace at line 2 and was not read"


def test_keys_twice_and_escaped(tmp_path):
    text = json.dumps(base())
    assert told(read(tmp_path, text.replace('"cat": "kernel"', '"cat": "cpu_op", "cat": "kernel"'))) == BOTH
    assert told(read(tmp_path, text.replace('"cat"', '"c\\u0061t"').replace("traceE", "trace\\u0045"))) == BOTH


def test_broken_text_before_the_events_costs_only_itself(tmp_path):
    for broken in ('"a": "x"y"', '"a": {"b": "x"y", "c": [1]}', '"a": [', '"a" 5'):
        file = read(tmp_path, f"{{{broken}, " + json.dumps(base())[1:])
        assert told(file) == BOTH, broken
        assert str(file.salvaged).startswith("the text before the events is not valid JSON")


def test_a_cut_header_is_no_other_file(tmp_path):
    text = json.dumps(base(), indent=1)
    with pytest.raises(UserError, match="breaks off") as error:
        read(tmp_path, text[: text.index("traceEvents") - 5])
    assert not isinstance(error.value, NotATrace)


def test_a_broken_event_costs_no_other(tmp_path):
    """Whatever lists of objects its neighbours have, and wherever a block ends."""
    trace = base()
    for event in trace["traceEvents"]:
        event.setdefault("args", {})["list"] = [{"a": 1}, {"b": 2}] * 10
    text = json.dumps(trace).replace('"bp": "e"', '"bp": NaN').replace('"Ev Idx": 1', '"Ev Idx": N/A')
    for block in (64, 300, 700, 4096):
        file = read(tmp_path, text, block=block)
        assert (told(file), file.salvaged) == (BOTH, None)
        file = read(tmp_path, text.replace('"ph": "s"', '"ph": "s" "s"', 1), block=block)
        assert told(file) == [UNKNOWN_GATHER, SCATTER]
        assert "could not be read" in str(file.salvaged)


# ---- values


NUMBERS = [
    "1e999",
    "1E400",
    "1" + "0" * 400,
    "-0",
    "1e308",
    "-1e308",
    "1" + "0" * 5000,
    "NaN",
    "-Infinity",
    "1e17",
    "0.1e-400",
]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:12])
@pytest.mark.parametrize(
    "key", ["ts", "dur", "pid", "tid", "Group size", "In msg nelems", "correlation", "External id"]
)
def test_huge_numbers(key, number, tmp_path):
    file = read(tmp_path, with_member(base(), "ncclSymk", key, number))
    assert [row.kind for row in file.collectives].count("all_gather") == 1
    if len(file.collectives) < 2:
        assert file.salvaged
        assert file.collectives[0].phase == "unknown"
    for row in file.collectives:
        json.dumps([row.start, row.duration, row.bytes, row.group_size], allow_nan=False)
        assert (row.bytes or 0) < 2**53


@pytest.mark.parametrize("number", [*NUMBERS, "true", "-1", '"0"', "[0]"], ids=lambda number: number[:12])
def test_a_rank_is_a_small_number_or_none(number, tmp_path):
    trace = base()
    trace["distributedInfo"]["rank"] = "@@"
    file = read(tmp_path, json.dumps(trace).replace('"@@"', number))
    assert told(file) == BOTH
    assert file.rank == (0 if number == "-0" else None)


def test_lone_surrogates(tmp_path):
    text = (
        json.dumps(base()).replace("_LDMC_sum_bf16(", "_LDMC_sum_bf16(\\ud800").replace('"default_pg"', '"\\udfff pg"')
    )
    for damaged in (text, text.replace('"Ev Idx": 1', '"Ev Idx": N/A')):
        path = tmp_path / "trace.json"
        path.write_text(damaged)
        done = classify(path)
        assert done.returncode == 0, done.stderr
        row = json.loads(done.stdout)["files"][0]["collectives"][1]
        assert row["kernel"] == "ncclSymkDevKernel_ReduceScatter_LDMC_sum_bf16(\ufffdncclSymkDevWorkArgs4K)"
        assert row["group"] == "\ufffd pg"


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_names_can_give_no_commands(form, tmp_path):
    evil = "\n::error::x\r\n\x1b]0;x\x07\x1b[2J\x9b31m"
    trace = base()
    for event in trace["traceEvents"]:
        if event["cat"] == "kernel":
            event["name"] = event["name"].replace("(", evil + "(")
            event["args"]["Process Group Description"] = evil
    path = tmp_path / "trace\x1b[31m\n::error::y.json"
    path.write_text(json.dumps(trace)[:-2])
    done = classify(path, format=form)
    assert done.returncode == 0, done.stderr
    assert "salvaged" in done.stderr
    for output in (done.stdout, done.stderr):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", output.replace("\r\n", "\n") if form == "csv" else output)
        assert form == "csv" or not re.search("^::", output, re.MULTILINE)


def test_a_trace_of_gpu_rows_alone(tmp_path):
    trace = base()
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event["cat"] == "kernel"]
    assert told(read(tmp_path, trace)) == [UNKNOWN_GATHER, UNKNOWN_SCATTER]


# ---- gzip


def test_gzip_truncated(tmp_path):
    packed = gzip.compress(json.dumps(base(), indent=1).encode())
    for length in range(3, len(packed) - 1, 7):
        try:
            file = read(tmp_path, packed[:length])
        except UserError as error:
            assert "compressed data" in str(error)
            continue
        assert "the compressed data" in str(file.salvaged)
        assert "forward" not in {row.phase for row in file.collectives}


def test_gzip_with_a_wrong_checksum(tmp_path):
    trace = base()
    trace["padding"] = [f"{number:x}" for number in range(100_000)]  # what was unpacked with the checksum may be lost
    packed = bytearray(gzip.compress(json.dumps(trace).encode()))
    packed[-7] ^= 1
    file = read(tmp_path, bytes(packed))
    assert "the compressed data is broken" in str(file.salvaged)
    assert told(file) == [UNKNOWN_GATHER, SCATTER]
    with pytest.raises(UserError, match="the compressed data is broken"):
        read(tmp_path, b"\x1f\x8b\x08\0" + b"garbage" * 100)


def test_gzip_in_members_and_with_garbage_behind_it(tmp_path):
    text = json.dumps(base()).encode()
    members = b"".join(gzip.compress(text[start : start + 500]) for start in range(0, len(text), 500))
    file = read(tmp_path, members)
    assert (told(file), file.salvaged) == (BOTH, None)
    assert told(read(tmp_path, members + b"\0" * 1000)) == BOTH
    file = read(tmp_path, members + b"garbage" * 100)
    assert told(file) == [UNKNOWN_GATHER, SCATTER]  # the whole of it may be damaged
    assert "the compressed data is broken" in str(file.salvaged)


def test_gzip_too_often(tmp_path):
    packed = json.dumps(base()).encode()
    for _ in range(4):
        packed = gzip.compress(packed)
    with pytest.raises(UserError, match="gzip inside gzip"):
        read(tmp_path, packed)
