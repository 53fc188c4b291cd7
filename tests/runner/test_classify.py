"""`symmem-check classify` from outside: its answer is a contract with programs, its exit status with scripts."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.model import PHASES, Collective
from tests.runner.trace.support import BASE, DATA, PROJECT, base, classify

TRACES = DATA / "traces" / "h200"
MALFORMED = DATA / "malformed"
NO_CALLS = {"calls": 0, "bytes": 0, "time_us": 0.0}
NOTHING = {"symmetric": NO_CALLS, "fallback": NO_CALLS, "ineligible": NO_CALLS, "unknown": NO_CALLS, "ratio": None}


def amount(calls: int, size: int, time: float) -> dict[str, Any]:
    return {"calls": calls, "bytes": size, "time_us": time}


def answer(*arguments: str | bytes | Path, status: int = 0, **options: Any) -> dict[str, Any]:
    done = classify(*arguments, **options)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture
def folder(tmp_path):
    """A folder with a trace of each of two ranks."""
    for rank in (0, 1):
        shutil.copy(TRACES / f"w2_whole_step_r{rank}.json.gz", tmp_path)
    return tmp_path


def names(document: dict[str, Any]) -> list[str]:
    return [Path(file["file"]).name for file in document["files"]]


# ---- the answer


def test_the_shape_of_the_answer():
    done = classify(TRACES / "x2_kinds_r0.json.gz")
    document = json.loads(done.stdout)
    assert done.stdout.isascii() and done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert list(document) == ["schema", "files", "errors", "coverage"]
    assert (document["schema"], document["errors"]) == (1, [])
    (file,) = document["files"]
    keys = ["file", "rank", "world_size", "salvaged", "one_rank_calls", "barrier_calls", "collectives"]
    assert list(file) == keys
    assert [file[key] for key in keys[:-1]] == [str(TRACES / "x2_kinds_r0.json.gz"), 0, 2, None, 0, 0]
    assert all(tuple(row) == Collective.__struct_fields__ for row in file["collectives"])
    starts = [row["start"] for row in file["collectives"]]
    assert starts == sorted(starts)
    assert tuple(document["coverage"]) == PHASES


def test_one_collective_in_full():
    (file,) = answer(BASE)["files"]
    second = file["collectives"][1]
    assert "AccumulateGrad" in second.pop("why")
    assert second == {
        "rank": 0, "step": 3, "phase": "backward", "kind": "reduce_scatter", "mechanism": "nccl-symmetric",
        "symmetric": True, "multicast": True, "algorithm": "LDMC", "dtype": "bfloat16", "bytes": 4096,
        "group": "default_pg", "group_size": 2, "start": 1460.0, "duration": 30.0,
        "kernel": "ncclSymkDevKernel_ReduceScatter_LDMC_sum_bf16(ncclSymkDevWorkArgs4K)", "calls": 1,
    }  # fmt: skip


def test_coverage_of_several_kinds():
    """Worked out by hand from the trace: two all-gathers a step, one in the pool, and four ineligible calls."""
    coverage = answer(TRACES / "x2_kinds_r0.json.gz")["coverage"]
    assert coverage == dict.fromkeys(PHASES, NOTHING) | {
        "forward": {
            "symmetric": amount(2, 2 * 4194304, 9028.793),
            "fallback": amount(2, 2 * 4194304, 47.393),
            "ineligible": amount(8, 4 * 2097152 + 4 * 4194304, 22567.151),
            "unknown": NO_CALLS,
            "ratio": 0.5,
        }
    }


def test_coverage_of_two_phases():
    coverage = answer(TRACES / "train_fsdp2_default_r0.json.gz")["coverage"]
    assert coverage == dict.fromkeys(PHASES, NOTHING) | {
        "forward": NOTHING | {"fallback": amount(4, 67149824, 31207.259), "ratio": 0.0},
        "backward": NOTHING | {"fallback": amount(8, 134299648, 20195.399), "ratio": 0.0},
    }


def test_coverage_is_summed_over_ranks(folder):
    document = answer(folder)
    assert names(document) == ["w2_whole_step_r0.json.gz", "w2_whole_step_r1.json.gz"]
    assert [file["rank"] for file in document["files"]] == [0, 1]
    assert {row["rank"] for row in document["files"][1]["collectives"]} == {1}
    forward, backward = document["coverage"]["forward"], document["coverage"]["backward"]
    assert (forward["symmetric"]["calls"], forward["ratio"]) == (4, 1.0)
    assert (backward["fallback"]["calls"], backward["fallback"]["bytes"], backward["ratio"]) == (4, 4 * 8388608, 0.0)
    times = [row["duration"] for file in document["files"] for row in file["collectives"] if row["phase"] == "backward"]
    assert backward["fallback"]["time_us"] == round(sum(times), 3)


def test_ranks_merged_into_one_file():
    (file,) = answer(MALFORMED / "62_two_ranks_merged.json")["files"]
    assert file["rank"] is None
    assert [row["rank"] for row in file["collectives"]] == [None] * 4
    assert [row["phase"] for row in file["collectives"]] == ["forward", "forward", "backward", "backward"]


# ---- which files


def test_a_glob_a_folder_and_a_file_twice(folder):
    pattern = str(folder / "*_r0.json.gz")
    assert names(answer(pattern)) == ["w2_whole_step_r0.json.gz"]
    (folder / "link.json.gz").symlink_to("w2_whole_step_r1.json.gz")
    both = answer(pattern, folder, folder / "." / "w2_whole_step_r0.json.gz")
    assert len(both["files"]) == 2
    assert both["coverage"]["forward"]["symmetric"]["calls"] == 4


def test_folders_are_searched_through(folder, tmp_path_factory):
    top = tmp_path_factory.mktemp("top")
    shutil.move(folder, top / "a" / "b")
    assert len(answer(top)["files"]) == 2
    assert len(answer(str(top / "**" / "*.gz"))["files"]) == 2
    assert len(answer(".", cwd=top, env=os.environ | {"PYTHONPATH": str(PROJECT)})["files"]) == 2


def test_other_json_in_a_folder_is_left_out(folder):
    (folder / "config.json").write_text('{"lr": 1e-4}')
    (folder / "notes.txt").write_text("no JSON at all")
    done = classify(folder)
    assert done.returncode == 0
    assert done.stderr == f"symmem-check: {folder / 'config.json'}: no trace, left out\n"
    assert answer(folder / "config.json", status=2)["files"] == []


def test_a_broken_trace_in_a_folder_is_not_left_out(folder):
    (folder / "cut.json").write_bytes(BASE.read_bytes()[:300])
    (folder / "null.json").write_text('{"traceEvents": null}')
    document = answer(folder, status=2)
    assert [Path(error["file"]).name for error in document["errors"]] == ["cut.json", "null.json"]
    assert len(document["files"]) == 2


def test_a_pattern_that_matches_a_folder_without_traces_too(folder):
    (folder / "empty.json").mkdir()
    assert len(answer(str(folder / "*"))["files"]) == 2
    assert "has no .json" in answer(folder / "empty.json", status=2)["errors"][0]["message"]


def test_names_with_brackets_are_names(folder):
    odd = folder / "rank[0].json.gz"
    (folder / "w2_whole_step_r0.json.gz").rename(odd)
    assert names(answer(odd)) == ["rank[0].json.gz"]


@pytest.mark.parametrize(
    "name", [b"\xff\xfe.json", b"new\nline.json", b"esc\x1b[31m.json", "Größe \U0001f600.json".encode()]
)
def test_odd_names(name, tmp_path):
    path = os.fsencode(tmp_path) + b"/" + name
    shutil.copy(os.fsencode(BASE), path)
    document = answer(path)
    assert document["files"][0]["file"] == path.decode("utf-8", "replace")
    assert len(answer(tmp_path)["files"]) == 1


# ---- exit statuses


def test_no_collective_is_3_and_still_an_answer():
    done = classify(MALFORMED / "64_empty_traceEvents.json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["coverage"] == dict.fromkeys(PHASES, NOTHING)
    assert "nothing could be measured" in done.stderr


def test_good_and_bad_together_is_2_with_the_good_ones(folder):
    document = answer(folder, MALFORMED / "20_empty.json.gz", folder / "missing.json", status=2)
    assert len(document["files"]) == 2
    assert [error["message"] for error in document["errors"]] == [
        "empty; record the trace again",
        "cannot be opened (No such file or directory); check the path",
    ]
    assert document["coverage"]["forward"]["ratio"] == 1.0


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "fifo.json")
    return folder / "fifo.json"


def loop(folder: Path) -> Path:
    (folder / "loop.json").symlink_to("loop.json")
    return folder / "loop.json"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (lambda folder: folder / "missing.json", "cannot be opened (No such file or directory)"),
        (lambda folder: str(folder / "*.json"), "matches no trace"),
        (lambda folder: folder, "has no .json or .json.gz file in it"),
        (lambda folder: "", "an empty path"),
        (lambda folder: folder / ("a" * 300), "cannot be opened (File name too long)"),
        (lambda folder: "a/" * 4000, "cannot be opened (File name too long)"),
        (lambda folder: BASE / "x.json", "cannot be opened (Not a directory)"),
        (loop, "cannot be opened (Too many levels of symbolic links)"),
        (fifo, "is no regular file"),
        (lambda folder: "/dev/zero", "is no regular file"),
        (lambda folder: sys.executable, "not a trace: a Kineto trace begins with { or ["),
    ],
)
def test_what_is_no_trace_ends_in_one_line(path, message, tmp_path):
    done = classify(path(tmp_path), timeout=120)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    (error,) = json.loads(done.stdout)["errors"]
    assert error["message"].startswith(message) or message in error["message"]


def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "closed.json"
    shutil.copy(BASE, path)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read anything")
    assert "Permission denied" in answer(path, status=2)["errors"][0]["message"]


@pytest.mark.parametrize(
    ("magic", "what"), [(b"PK\3\4", "zip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\0", "xz"), (b"BZh9", "bzip2")]
)
def test_other_packings_are_named(magic, what, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(magic + b"x" * 100)
    assert what in answer(path, status=2)["errors"][0]["message"]


# ---- output


@pytest.mark.parametrize("form", ["json", "csv", "table"])
def test_an_output_closed_early(form, tmp_path):
    trace = base()
    kernels = [event for event in trace["traceEvents"] if event["cat"] == "kernel"]
    trace["traceEvents"] += [kernels[0] | {"ts": 5000.0 + number, "dur": number / 8} for number in range(5000)]
    path = tmp_path / "long.json"
    path.write_text(json.dumps(trace))
    command = f"{sys.executable} -m runner classify --format {form} {path} | head -c 10"
    done = subprocess.run(command, shell=True, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert len(done.stdout) == 10
    assert done.stderr == ""


def test_an_encoding_without_the_letters_needed(tmp_path):
    path = tmp_path / "größe.json"
    shutil.copy(BASE, path)
    document = answer(path, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert document["files"][0]["file"] == str(path)


def test_csv_has_a_row_for_each_collective(folder):
    done = classify(folder, format="csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    wanted = [row for file in answer(folder)["files"] for row in file["collectives"]]
    assert [(row["kernel"], row["phase"], float(row["start"])) for row in rows] == [
        (row["kernel"], row["phase"], row["start"]) for row in wanted
    ]
    assert {row["symmetric"] for row in rows} == {"true", "false"}


def test_the_table_names_every_file_and_phase(folder):
    done = classify(folder, format="table")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("w2_whole_step_r0", "w2_whole_step_r1", "forward", "backward"))
