"""Every recorded truth, in every field that it has: by the command line, and for blocks of any size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.trace.collectives import read_collectives
from tests.runner.trace.support import TRUTHS, WHOLE_FILE, classify

SPELLED = {"ts": "start", "name": "kernel", "collective": "kind"}
NAMES = [path.name.removesuffix(".truth.json") for path in TRUTHS]


@pytest.fixture(scope="module")
def by_command_line() -> dict[str, Any]:
    """What one call of `symmem-check classify --format json` says of all recorded traces, by their file's name."""
    done = classify(*{path.parent for path in TRUTHS})
    assert done.returncode == 0, done.stderr
    files = {file["file"].rsplit("/", 1)[1]: file for file in json.loads(done.stdout)["files"]}
    assert len(files) == len(TRUTHS) == 90
    return files


def assert_as_recorded(truth: dict[str, Any], found: dict[str, Any]) -> None:
    for key in WHOLE_FILE:
        if key in truth:
            assert found[key] == truth[key], key
    assert found["salvaged"] is None
    for entry, collective in zip(truth["collectives"], found["collectives"], strict=True):
        facts = {SPELLED.get(key, key): value for key, value in entry.items() if key != "evidence"}
        if collective["mechanism"] == "nccl-copy-engine":
            facts["kernel"] = None
        assert {key: collective[key] for key in facts} == facts, collective["why"]


@pytest.mark.parametrize("path", TRUTHS, ids=NAMES)
def test_truth(path, by_command_line):
    truth = json.loads(path.read_text())
    assert_as_recorded(truth, by_command_line[truth["trace"]])


@pytest.mark.parametrize("block", [64, 1000, 1 << 20])
@pytest.mark.parametrize(
    "name", ["train_fsdp2_default_r0", "ce2307_ag_r0", "train_coalesced_r1", "x2_graph_windows_r0"]
)
def test_a_blocks_size_changes_nothing(name, block):
    path = TRUTHS[NAMES.index(name)]
    truth = json.loads(path.read_text())
    found = read_collectives(path.with_name(truth["trace"]), block=block)
    as_json = {key: getattr(found, key) for key in (*WHOLE_FILE, "salvaged")}
    as_json["collectives"] = [
        {field: getattr(row, field) for field in row.__struct_fields__} for row in found.collectives
    ]
    assert_as_recorded(truth, as_json)
