"""The run folder may come from anywhere: what is wrong in it is said in one line, and nothing leaves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.plan import Case, Plan, write_plan
from runner.runfolder import End, Lost, Record, RunFolder, write_json

CASE = Case(id="a/b", folder="cases/a/b", workload="all_reduce", axes={"pool": "none", "size": 8}, deadline=1.0)


def folder_with(tmp_path: Path, **record: object) -> RunFolder:
    content = {"schema": 1, "case": "a/b", "rank": 0, "start": 0, "state": "done", "outcome": "ok", **record}
    path = tmp_path / "cases" / "a" / "b" / "rank0.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    return RunFolder(tmp_path)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = Plan(ranks=2, cases=[CASE])
    write_plan(plan, tmp_path / "plan.json")
    assert RunFolder(tmp_path).plan() == plan


@pytest.mark.parametrize("folder", ["../elsewhere", "cases/../../x", "/etc", "starts/0", "", "cases/\0"])
def test_a_case_stays_in_the_folder(tmp_path: Path, folder: str) -> None:
    case = Case(id="a", folder=folder, workload="all_reduce", axes={}, deadline=1.0)
    write_plan(Plan(ranks=2, cases=[case]), tmp_path / "plan.json")
    with pytest.raises(UserError, match="which is not below cases/"):
        RunFolder(tmp_path).plan()


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert (folder.starts(), folder.end(0), folder.environments(0)) == ([], None, {})
    assert (folder.records(CASE), folder.lost(CASE)) == ({}, None)
    with pytest.raises(UserError, match=r"plan\.json: can't be read \(No such file or directory\)"):
        folder.plan()


def test_ends_and_losses_are_read_as_written(tmp_path: Path) -> None:
    end = End(exit_status=-9, ended="died", message="torchrun was killed by SIGKILL")
    lost = Lost(case="a/b", start=2, outcome="hung", rank=None, message="no end")
    write_json(end, tmp_path / "starts" / "2" / "end.json")
    write_json(lost, tmp_path / "cases" / "a" / "b" / "lost.json")
    folder = RunFolder(tmp_path)
    assert (folder.starts(), folder.end(2), folder.lost(CASE)) == ([2], end, lost)


def test_unknown_fields_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    record = folder_with(tmp_path, newer={"field": 1}).records(CASE)[0]
    assert (record.outcome, record.values) == ("ok", None)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"outcome": "fine"}, r"rank0\.json: .*Invalid enum value 'fine' - at `\$\.outcome`"),
        ({"values": {"checked": "many"}}, r"rank0\.json: .*`\$\.values\.checked`"),
        ({"rank": None}, r"rank0\.json: .*`\$\.rank`"),
    ],
)
def test_a_broken_record_is_named_with_its_place(tmp_path: Path, record: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        folder_with(tmp_path, **record).records(CASE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000])
def test_a_file_that_is_no_record(tmp_path: Path, content: bytes) -> None:
    folder = folder_with(tmp_path)
    (tmp_path / "cases" / "a" / "b" / "rank0.json").write_bytes(content)
    with pytest.raises(UserError, match=r"rank0\.json: not what a run writes there"):
        folder.records(CASE)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    with (tmp_path / "cases" / "a" / "b" / "rank0.json").open("ab") as file:
        file.truncate(20 * 1024 * 1024)
    with pytest.raises(UserError, match="larger than 16777216 bytes"):
        folder.records(CASE)


def test_a_trace_lies_beside_its_record(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, trace="rank0.trace.json.gz")
    record = folder.records(CASE)[0]
    assert folder.trace(CASE, record) == tmp_path / "cases" / "a" / "b" / "rank0.trace.json.gz"
    outside = Record(case="a/b", rank=0, start=0, state="done", trace="../../plan.json")
    with pytest.raises(UserError, match="names a trace elsewhere"):
        folder.trace(CASE, outside)
    without = Record(case="a/b", rank=0, start=0, state="done")
    assert folder.trace(CASE, without) is None
