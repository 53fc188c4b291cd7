"""A user's script under checks/script.py, by real torchrun with gloo: it must not notice, and some steps are traced."""

from __future__ import annotations

import gzip
import json
import os
import sys
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

from runner.judge.script import ScriptRecord
from runner.runfolder import End, RunFolder, read_json
from runner.script import run_ranks
from runner.settings import ScriptSettings

pytestmark = pytest.mark.slow  # torchrun and two imports of torch each

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
OWN = SCRIPTS / "own_packages" / "train.py"


class Ran(NamedTuple):
    """A script's run: how it ended, each rank's record, all that was printed, and the processes that are left."""

    end: End
    records: list[ScriptRecord]
    log: str
    left: list[int]
    folder: RunFolder

    def events(self, rank: int = 0) -> list[dict]:
        name = self.records[rank].trace
        assert name is not None
        with gzip.open(self.folder.path / "cases/script" / name) as trace:
            return [event for event in json.load(trace)["traceEvents"] if event.get("ph") == "X"]


def run(out: Path, script: Path | str, *arguments: str, **settings) -> Ran:
    """Run a script on two ranks on the CPU; `settings` are those of ScriptSettings that differ."""
    options = {"steps": 2, "warmup": 3, "keep_going": False, "timeout": 120.0} | settings
    folder = RunFolder(out / "run")
    folder.path.mkdir(parents=True)
    mark = uuid.uuid4().hex
    end = run_ranks(
        ScriptSettings(file=str(script), arguments=arguments, **options), folder, 2, 1, python=sys.executable,
        environment={**os.environ, "OF_THE_CALLER": mark},
    )  # fmt: skip
    places = [folder.path / "cases/script" / f"rank{rank}.json" for rank in range(2)]
    records = [read_json(place, ScriptRecord) for place in places if place.exists()]
    log = (folder.path / "starts/0/log.txt").read_text(errors="replace")
    return Ran(end, records, log, marked(mark), folder)


def marked(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, dict]:
    """The script with packages of its own, from another folder, by a relative path, with arguments like torchrun's."""
    out = tmp_path_factory.mktemp("own")
    here = Path.cwd()
    os.chdir(SCRIPTS)
    try:
        ran = run(out, "own_packages/train.py", "--facts", str(out / "facts.json"), "--log", "x", "rest", "--", "--run")
    finally:
        os.chdir(here)
    return ran, json.loads((out / "facts.json").read_text())


def test_the_script_sees_what_it_would_see_without_this(own: tuple[Ran, dict]) -> None:
    ran, facts = own
    arguments = ["--facts", str(ran.folder.path.parent / "facts.json"), "--log", "x", "rest", "--", "--run"]
    assert facts["argv"] == ["own_packages/train.py", *arguments]
    assert facts["file"] == str(OWN)
    assert facts["name"] == "__main__"
    assert facts["path"] == str(OWN.parent)
    assert facts["cwd"] == str(SCRIPTS)
    assert facts["variable"]
    assert facts["before_torch"] is True


def test_its_own_checks_runner_and_tests_are_its_own(own: tuple[Ran, dict]) -> None:
    assert own[1]["owners"] == [f"the script's own {name}" for name in ("checks", "runner", "tests")]


def test_its_main_is_its_own_module(own: tuple[Ran, dict]) -> None:
    """So classes of __main__ pickle, a spawned process finds them, and no __future__ of ours is its own."""
    assert {own[1][name] for name in ("main_is_this", "pickled", "spawned", "annotations")} == {True}


def test_every_rank_leaves_a_trace_of_the_steps_asked_for(own: tuple[Ran, dict]) -> None:
    ran, _ = own
    assert ran.end == End(exit_status=0, ended="finished")
    assert [record.outcome for record in ran.records] == ["ok", "ok"]
    for rank, record in enumerate(ran.records):
        assert record.script is not None
        # Two optimizers step, and two backward passes go into a step: it counts once all the same.
        assert (record.script.optimizer, record.script.seen, record.script.traced) == ("SGD", 5, 2)
        names = [event["name"] for event in ran.events(rank)]
        assert sorted(name for name in names if name.startswith("ProfilerStep")) == ["ProfilerStep#1", "ProfilerStep#2"]
        assert names.count("c10d::allreduce_") == 4
    assert "step 5 of" not in ran.log
    assert "step 3 of rank 0" in ran.log


def test_the_environment_of_every_rank_is_recorded(own: tuple[Ran, dict]) -> None:
    environments = own[0].folder.environments(0)
    assert {rank: environment.world_size for rank, environment in environments.items()} == {0: 2, 1: 2}


def test_nothing_of_it_is_left_not_even_its_workers(own: tuple[Ran, dict]) -> None:
    assert own[0].left == []


def test_the_buffers_of_one_step_before_are_watched(own: tuple[Ran, dict]) -> None:
    buffers = own[0].records[0].buffers
    assert [(one.kind, one.dtype, one.bytes, one.in_pool) for one in buffers] == [
        ("all_reduce", "float32", 16, False), ("all_reduce", "float32", 4, False),
    ]  # fmt: skip


def test_keep_going_lets_the_script_end_by_itself(tmp_path: Path) -> None:
    ran = run(tmp_path, OWN, "--facts", str(tmp_path / "facts"), "--steps", "7", "--status", "5", keep_going=True)
    assert [record.outcome for record in ran.records] == ["ok", "ok"]
    assert "step 6 of rank 1" in ran.log
    assert ran.end.ended == "died"
    assert "ended with status 5" in (ran.end.message or "")


@pytest.mark.parametrize(
    ("trouble", "outcomes", "message"),
    [
        ("raises", {"raised"}, "ValueError: the loss is not finite"),
        ("status", {"raised"}, "the script ended with status 5"),
        ("short", {"incapable"}, "the script ended after 3 optimizer steps, and 5 are needed"),
        ("no-optimizer", {"incapable"}, "no optimizer step was seen"),
        ("steps-in-backward", {"incapable"}, "every optimizer step was taken inside backward"),
        ("own-profiler", {"raised"}, "the script's own profiler is running"),
    ],
)
def test_trouble_is_told(tmp_path: Path, trouble: str, outcomes: set[str], message: str) -> None:
    ran = run(tmp_path, SCRIPTS / "troubles.py", trouble)
    told = [record for record in ran.records if record.outcome is not None]
    assert {record.outcome for record in told} == outcomes
    assert any(message in (record.message or "") for record in told)
    assert [record.trace for record in ran.records] == [None, None]
    if trouble == "raises":
        assert "troubles.py" in (told[0].detail or "")
        assert "symmem" not in (told[0].detail or "")
        assert "ValueError: the loss is not finite" in ran.log
        assert ran.end.message == "rank 1 ended with status 1"


def test_a_script_that_catches_system_exit_is_ended_all_the_same(tmp_path: Path) -> None:
    ran = run(tmp_path, SCRIPTS / "troubles.py", "none")
    assert [record.outcome for record in ran.records] == ["ok", "ok"]
    assert ran.end.ended == "finished"
    assert "nobody ends" not in ran.log
    assert "step 5 of" not in ran.log


def test_a_script_that_hangs_is_ended(tmp_path: Path) -> None:
    ran = run(tmp_path, SCRIPTS / "troubles.py", "hangs", timeout=25.0)
    assert ran.end.ended == "hung"
    assert "--timeout" in (ran.end.message or "")
    assert ran.left == []


def test_the_modules_are_marked_by_number_and_named_in_the_record(tmp_path: Path) -> None:
    small = ("--hidden", "32", "--heads", "2", "--sequence", "16", "--batch", "1", "--layers", "1")
    ran = run(tmp_path, SCRIPTS / "gpt_tensor_parallel.py", *small, "--fixed-backward")
    facts = ran.records[0].script
    assert facts is not None
    assert facts.modules[:2] == ["Gpt", "Gpt.tokens"]
    number = facts.modules.index("Gpt.blocks.0.mlp")
    marks = [event for event in ran.events() if event["name"] == f"nn.Module #{number}"]
    assert len(marks) == 2  # a step each
    inside = [
        event["name"]
        for event in ran.events()
        if event["tid"] == marks[0]["tid"] and 0 <= event["ts"] - marks[0]["ts"] <= marks[0]["dur"]
    ]
    assert inside.count("c10d::allreduce_") == 1
