"""One file read by two processes: the same answer wherever it is cut, whatever is in it, and whoever dies."""

from __future__ import annotations

import functools
import gzip
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runner.errors import UserError
from runner.trace import halves, merge, pool, reader, worker
from runner.trace.collectives import read_collectives
from runner.trace.text import Window
from tests import reference
from tests.runner.trace.random_traces import Maker
from tests.runner.trace.support import DATA, PROJECT, SameProcess, base
from tests.runner.trace.test_against_reference import LAYOUTS
from tests.runner.trace.test_malformed import FILES

TRACE = DATA / "traces" / "h200" / "w2_whole_step_r0.json.gz"


@pytest.fixture
def taken(monkeypatch) -> Counter[bool]:
    """How often the second half was taken over, and how often it was refused."""
    counted: Counter[bool] = Counter()
    has_read = halves.SecondHalf.has_read

    def counting(self: halves.SecondHalf) -> dict[str, Any] | None:
        members = has_read(self)
        counted[members is not None] += 1
        return members

    monkeypatch.setattr(halves.SecondHalf, "has_read", counting)
    return counted


def told(path: Path, **options: Any) -> Any:
    try:
        return read_collectives(path, **options)
    except UserError as error:
        return type(error), str(error)


def steps(count: int) -> dict[str, Any]:
    """The small base trace, step after step."""
    trace = base()
    rows = []
    for number in range(count):
        for row in base()["traceEvents"]:
            args = {key: value for key, value in row.get("args", {}).items() if key != "External id"}
            if "correlation" in args:
                args["correlation"] += 100 * number
            rows.append(row | {"ts": row["ts"] + 1000 * number, "args": args})
    return trace | {"traceEvents": rows}


def cut_at(monkeypatch, comma: int) -> None:
    def behind_comma(window: Window, border: bytes) -> int | None:
        if not len(window):
            return None
        window.start += 1
        return comma

    monkeypatch.setattr(worker, "Worker", SameProcess)
    monkeypatch.setattr(halves, "_middle", lambda path, source: comma)
    monkeypatch.setattr(halves, "_comma_near", behind_comma)


def packed(data: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(data, 1))
    return path


def commas(data: bytes) -> list[int]:
    return [place for place, byte in enumerate(data) if byte == ord(",")]


@pytest.mark.parametrize("layout", ["compact", "default", "indent 1", "bare list", "events first"])
def test_the_same_wherever_it_is_cut(layout, tmp_path, monkeypatch, taken):
    """At every comma of the text: between events, inside them, inside strings, and before and behind the list."""
    trace = steps(4)
    trace["traceEvents"][30]["args"] = {"text": "a}, {,},\n  {,],"}
    trace["traceEvents"][40]["args"] = {"list": [{"a": [{"ph": "X"}, {"ph": "X"}]}, {"b": 1}, {}]}
    data = LAYOUTS[layout](trace, random.Random(1))
    path = tmp_path / "trace.json"
    path.write_text(data)
    wanted = told(path)
    for comma in commas(path.read_bytes()):
        cut_at(monkeypatch, comma)
        assert told(path, block=256, halves=True) == wanted
    assert taken[True] > 10
    assert taken[False]


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_the_same_however_small_the_pieces_are_that_are_sent(rows, tmp_path, monkeypatch, taken):
    path = tmp_path / "trace.json"
    path.write_bytes(whole_step())
    wanted = told(path)
    monkeypatch.setattr(merge, "_AT_ONCE", rows)
    monkeypatch.setattr(worker, "Worker", SameProcess)
    assert told(path, block=4096, halves=True) == wanted
    assert taken == {True: 1}


def test_the_same_where_a_packed_file_is_cut(tmp_path, monkeypatch, taken):
    data = LAYOUTS["indent 1"](steps(4), random.Random(1)).encode()
    path = packed(data, tmp_path)
    wanted = told(path)
    for comma in commas(data)[::2]:
        cut_at(monkeypatch, comma)
        assert told(path, block=256, halves=True) == wanted
    assert taken[True] > 10
    assert taken[False]


def whole_step() -> bytes:
    return json.dumps(reference.read(TRACE), indent=1).encode()


PACKED = {
    "whole": (lambda data: gzip.compress(data, 1), True),
    "two members": (lambda data: gzip.compress(data[:60_000], 1) + gzip.compress(data[60_000:], 1), True),
    "packed twice": (lambda data: gzip.compress(gzip.compress(data, 1), 1), None),
    "cut off": (lambda data: gzip.compress(data, 1)[:-2000], False),
    "cut off before the middle": (lambda data: gzip.compress(data, 1)[:9000], False),
    "other bytes follow": (lambda data: gzip.compress(data, 1) + b"\xff" * 8, None),
    "a length that lies": (lambda data: gzip.compress(data, 1)[:-4] + (2**31).to_bytes(4, "little"), None),
}


@pytest.mark.parametrize(("pack", "taken_over"), PACKED.values(), ids=PACKED)
def test_packed_in_other_ways(pack, taken_over, tmp_path, monkeypatch, taken):
    """Where the other process begins is only guessed by what the file says of its length."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(pack(whole_step()))
    monkeypatch.setattr(worker, "Worker", SameProcess)
    assert told(path, block=4096, halves=True) == told(path, block=4096)
    assert taken_over is None or taken[True] == taken_over


@pytest.mark.parametrize("part", range(4))
def test_random_traces_cut_anywhere(part, tmp_path, monkeypatch, taken):
    rng = random.Random(part)
    for seed in range(part, 160, 4):
        path = tmp_path / f"{seed}.json"
        path.write_text(json.dumps(Maker(seed).trace(), indent=seed % 3 or None))
        wanted = told(path)
        data = path.read_bytes()
        borders = [place for place in commas(data) if data[place - 1 : place] == b"}"]
        for comma in rng.sample(borders, min(12, len(borders))):
            cut_at(monkeypatch, comma)
            assert told(path, block=rng.choice((64, 333)), halves=True) == wanted
    assert taken[True] > 30
    assert taken[False] > 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[:2])
def test_broken_files_cut_anywhere(path, tmp_path, monkeypatch):
    wanted = told(path, block=256)
    for comma in commas(path.read_bytes())[::7]:
        cut_at(monkeypatch, comma)
        assert told(path, block=256, halves=True) == wanted


@pytest.mark.parametrize("where", [0.3, 0.7])
@pytest.mark.parametrize("damage", ["cut off", "a hole", "a bare word", "the list twice", "more text"])
def test_damage_in_one_half(damage, where, tmp_path, monkeypatch, taken):
    trace = reference.read(TRACE)
    text = json.dumps(trace, indent=1)
    borders = [place for place in commas(text.encode()) if text[place - 1 : place + 5] == "},\n  {"]
    comma, place = borders[len(borders) // 2], borders[int(where * len(borders))]
    text = {
        "cut off": text[: place + 40],
        "a hole": text[: place + 40] + "\0" * 999 + text[place + 1039 :],
        "a bare word": text[: place + 1] + text[place + 1 :].replace('"dur": ', '"dur": nan, "x": ', 1),
        "the list twice": text.rstrip()[:-1] + ', "traceEvents": []}',
        "more text": text + "x",
    }[damage]
    path = tmp_path / "trace.json"
    path.write_text(text)
    cut_at(monkeypatch, comma)
    assert told(path, halves=True, block=4096) == told(path, block=4096)
    # A bare word is mended, so nothing is lost.
    assert damage == "a bare word" or not taken[True]


@pytest.mark.parametrize("late", [False, True])
def test_a_cut_inside_a_node_of_backward(late, tmp_path, monkeypatch, taken):
    """A forward op run again lies behind the cut: only who saw the node begin knows what it is.

    With `late` it comes behind rows that began after it: then the order is seen to be unusual, and it is looked for.
    """
    trace = steps(4)
    rows = trace["traceEvents"]
    call = max(number for number, row in enumerate(rows) if row["name"] == "c10d::_reduce_scatter_base_")
    args = {"Sequence number": 5, "Fwd thread id": 0}
    again = rows[call] | {"name": "again", "ts": rows[call]["ts"] - 1, "dur": 80.0, "args": args}
    # In Kineto's order: the ops of a thread by start, before what they launched.
    rows.append(again)
    rows.sort(key=lambda row: (row["cat"] not in ("cpu_op", "user_annotation"), row["tid"], row["ts"]))
    if late:
        rows.remove(again)
        rows.insert(rows.index(next(row for row in rows if row["cat"] == "cuda_runtime")), again)
    path = tmp_path / "trace.json"
    text = json.dumps(trace, indent=1)
    path.write_text(text)
    wanted = told(path)
    assert Counter(row.phase for row in wanted.collectives) == {"forward": 4, "backward": 3, "recompute": 1}
    cut_at(monkeypatch, text.rindex("},", 0, text.index('"again"')) + 1)
    assert told(path, block=256, halves=True) == wanted
    assert taken == {late: 1}


def as_plain(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(whole_step())
    return path


def soon(monkeypatch) -> None:
    """Let the first reader wait for the other's begin, which is late in a file as short as this."""
    comma = halves.SecondHalf.comma

    def patient(self: halves.SecondHalf) -> int | None:
        if self._worker is not None and self._comma is None:
            self._worker.receiving.poll(60)
        return comma(self)

    monkeypatch.setattr(halves.SecondHalf, "comma", patient)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_two_processes(threads, zipped, tmp_path, monkeypatch, taken):
    """With other threads about, the process is started anew instead of forked."""
    path = packed(whole_step(), tmp_path) if zipped else as_plain(tmp_path)
    soon(monkeypatch)
    done = threading.Event()
    others = [threading.Thread(target=done.wait) for _ in range(threads - 1)]
    for other in others:
        other.start()
    try:
        assert told(path, block=4096, halves=True) == told(path)
    finally:
        done.set()
        for other in others:
            other.join()
    assert taken == {True: 1}
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "end",
    [
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        lambda: os.kill(os.getpid(), signal.SIGSTOP),
        lambda: os._exit(0),
        lambda: time.sleep(600),
    ],
    ids=["killed", "stopped", "ended", "hanging"],
)
def test_a_process_that_fails_is_done_without(end, tmp_path, forked, monkeypatch, taken):
    """Before it has told where it begins, and after."""
    path = as_plain(tmp_path)
    comma = halves.SecondHalf.comma
    soon(monkeypatch)
    monkeypatch.setattr(halves, "_send", lambda *_: end())
    monkeypatch.setattr(halves, "_PATIENCE", 0.1)
    assert told(path, block=4096, halves=True) == told(path)
    assert taken == {False: 1}
    monkeypatch.setattr(halves.SecondHalf, "comma", comma)
    monkeypatch.setattr(halves, "_read_and_send", lambda *_: end())
    assert told(path, block=4096, halves=True) == told(path)
    assert taken == {False: 1}
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("end", [lambda: os._exit(0), lambda: time.sleep(600)], ids=["ended", "hanging"])
@pytest.mark.parametrize("sent", [1, 2, 5])
def test_a_process_that_fails_while_its_rows_are_taken_over(sent, end, tmp_path, forked, monkeypatch, taken):
    """What is in the store by then is thrown away."""

    def broken(sending: Any, members: dict[str, Any], store: Any) -> None:
        sending.send(members)
        for number, piece in enumerate(merge.pieces(store)):
            if number == sent:
                end()
            sending.send(piece)

    path = as_plain(tmp_path)
    soon(monkeypatch)
    monkeypatch.setattr(halves, "_send", broken)
    monkeypatch.setattr(merge, "_AT_ONCE", 20)
    monkeypatch.setattr(halves, "_PATIENCE", 0.3)
    assert told(path, block=4096, halves=True) == told(path)
    assert taken == {}
    assert multiprocessing.active_children() == []


ENDLESS = """
import os, sys, time
from pathlib import Path
from runner.trace import halves
from runner.trace.store import Store
add = Store.add
def slow(self, batch):
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(0.3)
    add(self, batch)
Store.add = slow
halves.read_events(Path(sys.argv[1]), block=4096, halves=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_reader_that_is_killed_leaves_none_that_reads_on(number, tmp_path):
    command = [sys.executable, "-c", ENDLESS, str(as_plain(tmp_path))]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen: set[bytes] = set()
        while len(seen) < 2:
            line = process.stdout.readline()
            assert line
            seen.add(line)
        process.send_signal(number)
        # The pipe ends when the last process that holds it is gone; half a file would take ten times as long.
        began = time.monotonic()
        process.communicate(timeout=60)
    assert time.monotonic() - began < 5


def test_another_file_under_the_same_name_is_not_mixed_in(tmp_path, monkeypatch, taken):
    path = as_plain(tmp_path)
    wanted = told(path, block=4096)
    begin = halves.SecondHalf.begin

    def replaced(self: halves.SecondHalf, cut: reader.Cut) -> None:
        other = tmp_path / "other.json"
        other.write_bytes(whole_step().replace(b'"dur": ', b'"dur": 1'))
        other.replace(path)
        begin(self, cut)

    monkeypatch.setattr(halves.SecondHalf, "begin", replaced)
    monkeypatch.setattr(worker, "Worker", SameProcess)
    assert told(path, block=4096, halves=True) == wanted
    assert taken == {}


def test_an_error_leaves_no_process(tmp_path, forked, monkeypatch):
    path = as_plain(tmp_path)
    monkeypatch.setattr(halves, "_read_and_send", lambda *_: time.sleep(600))
    monkeypatch.setattr(halves.Store, "add", lambda *_: 1 / 0 if multiprocessing.active_children() else None)
    with pytest.raises(ZeroDivisionError):
        read_collectives(path, block=4096, halves=True)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("cores", "size", "zipped", "wanted"), [(2, 1, False, 1), (1, 1, False, 0), (2, 2**40, False, 0), (2, 1, True, 1)]
)
def test_when_a_file_is_halved(cores, size, zipped, wanted, tmp_path, monkeypatch, taken):
    """With two cores, and a file large enough."""
    soon(monkeypatch)
    monkeypatch.setattr(pool, "cores", lambda: cores)
    monkeypatch.setattr(pool, "WORTH_A_PROCESS", size)
    monkeypatch.setattr(pool, "read_collectives", functools.partial(read_collectives, block=4096))
    path = TRACE if zipped else as_plain(tmp_path)
    assert pool.read_all([path]) == [read_collectives(path)]
    assert taken.total() == wanted
