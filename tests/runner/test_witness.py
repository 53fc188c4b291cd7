"""`run --witness`: NCCL's own log from the command line to the reports, with the recorded run and with real ranks.

No real log is among the test data: the lines are composed from the format strings in NCCL's sources.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import runner.run
from runner.cli import main
from runner.judge.script import ScriptRecord, judge_script
from runner.nccl_log import log_path, log_variables, read_log, replacing
from runner.run import REPLAY
from runner.runfolder import RunFolder, read_json
from runner.script import run_ranks
from runner.settings import ScriptSettings
from tests.runner.test_nccl_log import GEN, PREFIX, SYM, WARNING
from tests.runner.test_run import ON_THE_CPU, command, result_in
from tests.runner.test_script import asked, folder_of

VERSION = "NCCL version 2.30.7+cuda13.0"
UNKNOWN_OP = "ncclSymkGetKernelIndex: unknown red op 4 for id 3"
# What rank 0 ran in two steps, forward and backward, under each pool set-up.
RECORDED = {
    "none": [GEN] * 4, "forward": [SYM, GEN] * 2, "step": [SYM, GEN] * 2, "single-thread": [SYM] * 4,
    "backward": [SYM] * 4, "static": [SYM] * 4, "unregistered": [GEN] * 4, "registered-not-symmetric": [GEN] * 4,
}  # fmt: skip


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def write_log(run: Path, parts: Mapping[str, list[str]], *set_up: str) -> dict[str, tuple[int, int]]:
    """Write rank 0's log, with something of no case between the parts; returns where each part lies."""
    path = log_path(run / "starts/0", json.loads((run / "starts/0/rank0.json").read_text())["pid"])
    places = {}
    with path.open("w") as log:
        log.writelines(f"{PREFIX}{line}\n" for line in (VERSION, *set_up))
        for name, lines in parts.items():
            log.write(f"{PREFIX}{GEN}\n{WARNING}of no case\n")
            begin = log.tell()
            log.writelines(line + "\n" if line.startswith("\n") else f"{PREFIX}{line}\n" for line in lines)
            places[name] = (begin, log.tell())
    return places


class Replayed:
    """The recorded run with a log beside it, judged by `symmem-check run --replay`."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.run = Path(shutil.copytree(REPLAY, tmp_path / "recorded"))
        self.out, self._capsys = tmp_path / "out", capsys
        edit(self.run / "plan.json", lambda plan: plan.update(witness=True))
        monkeypatch.setattr(runner.run, "REPLAY", self.run)
        monkeypatch.delenv("GITHUB_ACTIONS", raising=False)

    def record(self, pool: str, rank: int = 0, **changes: Any) -> None:
        edit(self.run / f"cases/all_reduce/{pool}/rank{rank}.json", lambda record: record.update(changes))

    def logged(self, *set_up: str, **parts: list[str]) -> None:
        """Write the log of the recorded run, but for the `parts`, and where each case's part lies."""
        for pool, place in write_log(self.run, RECORDED | parts, *set_up).items():
            self.record(pool, nccl_log=place)

    def judged(self) -> tuple[int, list[str], dict[str, dict[str, Any]]]:
        """The exit status, the lines on stdout, and the cases of result.json by pool set-up."""
        status = main(["run", "--replay", "--page", "--only", "all_reduce/*", "--out", str(self.out)])
        self.result = json.loads((self.out / "result.json").read_text()) if status != 2 else {"cases": []}
        return (
            status,
            self._capsys.readouterr().out.splitlines(),
            {case["id"].split("/")[1]: case for case in self.result["cases"]},
        )

    def reports(self) -> dict[str, str]:
        return {name: (self.out / name).read_text() for name in ("summary.md", "page.html", "junit.xml")}


@pytest.fixture
def replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Replayed:
    return Replayed(tmp_path, monkeypatch, capsys)


def test_a_log_that_agrees_is_told_once(replayed: Replayed) -> None:
    replayed.logged()
    status, lines, cases = replayed.judged()
    assert status == 0
    assert lines.count("note: NCCL's own log agrees with the traces of 8 cases") == 1
    assert all(case["witnessed"] and not case["witness"] and not case["notes"] for case in cases.values())
    assert "NCCL's own log agrees" in replayed.reports()["summary.md"]
    assert replayed.reports()["page.html"].count("<dt>NCCL&#39;s own log</dt><dd>agrees</dd>") == 8


def test_where_it_disagrees_every_report_says_so_and_the_verdict_stands(replayed: Replayed) -> None:
    replayed.logged(static=[GEN] * 4, none=[GEN] * 5)
    status, lines, cases = replayed.judged()
    assert (status, replayed.result["verdict"]["word"]) == (0, "pass")
    assert cases["static"]["witness"] == ["all_reduce: NCCL's log has 4 general, the trace 4 symmetric"]
    assert "note: all_reduce/static: all_reduce: NCCL's log has 4 general, the trace 4 symmetric" in lines
    assert "note: all_reduce/none: all_reduce: NCCL's log has 5 general, the trace 4 general" in lines
    assert "note: NCCL's own log disagrees with the traces of 2 of 8 cases" in lines
    assert "agrees with the traces of 8" not in "\n".join(lines)
    for name, text in replayed.reports().items():
        assert "log has 4 general, the trace 4 symmetric" in text, name
    assert "<dt>NCCL&#39;s own log</dt><dd>disagrees</dd>" in replayed.reports()["page.html"]


def test_a_case_in_trouble_has_what_nccl_warned_of_meanwhile(replayed: Replayed) -> None:
    replayed.logged(step=[SYM, WARNING + UNKNOWN_OP], static=[*RECORDED["static"], WARNING + "of no weight"])
    replayed.record("step", outcome="raised", message="DistBackendError: NCCL error", trace=None)
    status, lines, cases = replayed.judged()
    assert status == 1
    assert cases["step"]["notes"] == [f"NCCL warned: {UNKNOWN_OP}"]
    assert f"note: all_reduce/step: NCCL warned: {UNKNOWN_OP}" in lines
    assert not cases["static"]["notes"]


def test_the_facts_of_the_log_are_evidence_for_causes(replayed: Replayed) -> None:
    said = "Symmetric memory is not supported. cuMemEnable 0, globalGinSupport 0, globalNicFused 0"
    replayed.logged(said)
    cause = replayed.judged()[2]["none"]["phases"][0]["cause"]
    assert cause["name"] == "switched-off"
    assert f"NCCL's log: {said}" in cause["evidence"]


def test_a_log_that_cannot_be_read_is_a_note(replayed: Replayed) -> None:
    replayed.logged()
    (log,) = (replayed.run / "starts/0").glob("nccl.*.log")
    log.unlink()
    log.symlink_to("/proc/self/mem")  # a file of which no byte at the places of the records can be read
    status, lines, cases = replayed.judged()
    assert status == 0
    assert not any(case["witnessed"] for case in cases.values())
    told = [line for line in lines if f"starts/0/{log.name}: can't be read (Input/output error)" in line]
    assert len(told) == 8
    assert str(replayed.run) not in "".join(told)
    assert "note: NCCL's own log was asked for, and has nothing that could be compared with the traces" in lines


def test_a_log_nobody_asked_for_is_left_alone(replayed: Replayed) -> None:
    replayed.logged(static=[GEN] * 4)
    edit(replayed.run / "plan.json", lambda plan: plan.update(witness=False))
    _, lines, cases = replayed.judged()
    assert not cases["static"]["witness"]
    assert not [line for line in lines if "NCCL's" in line]


@pytest.mark.parametrize("place", [[-1, None], [0, 2**70], [0.5, 1], [1]])
def test_a_place_in_the_log_that_is_none(
    replayed: Replayed, place: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    replayed.record("static", nccl_log=place)
    assert main(["run", "--replay", "--out", str(replayed.out)]) == 2
    assert "rank0.json: not what a run writes there" in capsys.readouterr().err


def test_a_recorded_run_can_have_no_witness(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--replay", "--witness"]) == 2
    assert "--witness can't change a recorded run" in capsys.readouterr().err


# Real ranks, on the CPU ---------------------------------------------------------------------------------------------

SUITE = """\
suite: mine
ranks: 2
steps: 2
warmup: 1
checks:
  good: {workload: own.py:good, deadline: 60, expect: {forward: symmetric}}
  warns: {workload: own.py:warns, deadline: 60, expect: {forward: symmetric}}
"""
# In NCCL's place, the workload writes a line a step to where NCCL would.
WARN = """
    import os

    def warn(text):
        path = os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid()))
        with open(path, "a") as log:
            print(f"\\nnode-1:{os.getpid()}:1 [0] enqueue.cc:812 NCCL WARN {text}", file=log)
"""
OWN = """
    import itertools
    import torch
    import torch.distributed as dist

    def good(case, pool):
        case.run(lambda: dist.all_reduce(torch.ones(8)))
        case.check(torch.ones(8), torch.ones(8, dtype=torch.float64), tolerance=0.0)

    def warns(case, pool):
        numbers = itertools.count()
        warn("before all")
        case.run(lambda: (dist.all_reduce(torch.ones(8)), warn(f"step {next(numbers)}")))
        warn("after all")
        case.check(torch.ones(8), torch.ones(8, dtype=torch.float64), tolerance=0.0)
"""
TRAIN = """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(8):
        warn(f"step {number}")
        model(torch.ones(4)).sum().backward()
        optimizer.step()
"""


def run_in(repository: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (repository / "suite.yaml").write_text(SUITE)
    (repository / "own.py").write_text(textwrap.dedent(WARN) + textwrap.dedent(OWN))
    (repository / "command.py").write_text(textwrap.dedent(ON_THE_CPU))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_DEBUG")}
    return subprocess.run(
        command(repository, "--witness", *arguments),
        cwd=repository, env=environment | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_part_of_a_case_is_that_of_its_traced_steps(tmp_path: Path) -> None:
    """Steps 0 to 3 allocate, are watched, and warm up; the two after them are traced."""
    done = run_in(tmp_path, "--only", "warns", NCCL_DEBUG_FILE="/own/place", NCCL_DEBUG="INFO")
    assert done.returncode == 3, done.stderr  # no GPU events on a CPU
    assert "--witness replaces NCCL_DEBUG_FILE: NCCL's log goes into the run folder" in done.stderr.splitlines()
    result = result_in(tmp_path)
    (case,) = result["cases"]
    assert case["notes"] == ["NCCL warned: step 4", "NCCL warned: step 5"]
    variables = result["environment"]["variables"]
    assert variables["NCCL_DEBUG"] == "INFO" and "NCCL_DEBUG_FILE" not in variables
    assert len(list((tmp_path / "out/run/starts/0").glob("nccl.*.log"))) == 2


@pytest.mark.slow
def test_ranks_without_nccl_leave_no_log_and_that_is_told(tmp_path: Path) -> None:
    done = run_in(tmp_path, "--only", "good")
    assert done.returncode == 3, done.stderr
    assert "--witness replaces" not in done.stderr
    assert "note: NCCL's own log was asked for, and rank 0 wrote none: did NCCL run at all?" in done.stdout.splitlines()
    records = RunFolder(tmp_path / "out/run").records(RunFolder(tmp_path / "out/run").plan().cases[0])
    assert [record.nccl_log for record in records.values()] == [None, None]


def test_what_is_replaced_is_what_says_otherwise() -> None:
    assert replacing({}) is None
    assert replacing({**log_variables(Path()), "NCCL_ALGO": "ring"}) is None
    assert replacing({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"}) == (
        "--witness replaces NCCL_DEBUG, NCCL_DEBUG_SUBSYS: NCCL's log goes into the run folder"
    )


@pytest.mark.slow
def test_the_part_of_a_script_is_that_of_its_traced_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(WARN) + textwrap.dedent(TRAIN))
    settings = ScriptSettings(file=str(script), arguments=(), steps=2, warmup=3, keep_going=False, timeout=120.0)
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    end = run_ranks(settings, folder, 2, 1, python=sys.executable, witness=True)
    assert end.ended == "finished", end
    assert folder.plan().witness
    for rank in range(2):
        record = read_json(folder.path / f"cases/script/rank{rank}.json", ScriptRecord)
        log = log_path(folder.path / "starts/0", folder.environments(0)[rank].pid)
        assert read_log(log, record.nccl_log).facts.warnings == ("step 3", "step 4")


# A script, recorded --------------------------------------------------------------------------------------------------


def script_folder(out: Path, lines: list[str], **changes: Any) -> RunFolder:
    """The recorded run of a script, two traced steps: three symmetric calls forward, three general backward in each."""
    folder = folder_of(out, "train_tp_pool", **changes)
    shutil.copy(REPLAY / "starts/0/rank0.json", out / "starts/0/rank0.json")
    edit(out / "plan.json", lambda plan: plan.update(witness=True))
    place = write_log(out, {"steps": lines})["steps"]
    edit(out / "cases/script/rank0.json", lambda record: record.update(nccl_log=place))
    return folder


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([SYM, GEN] * 6, ["NCCL's own log agrees with the trace of rank 0"]),
        (
            [SYM] * 12,
            [
                "all_reduce: NCCL's log has 12 symmetric, the trace 6 symmetric and 6 general",
                "NCCL's own log disagrees with the trace of rank 0",
            ],
        ),
    ],
)
def test_the_log_of_a_script(tmp_path: Path, lines: list[str], told: list[str]) -> None:
    notes = judge_script(script_folder(tmp_path, lines), asked()).notes
    assert [note for note in notes if "NCCL" in note] == told


def test_a_script_in_trouble_before_its_traced_steps_has_all_that_nccl_warned_of(tmp_path: Path) -> None:
    folder = script_folder(tmp_path, [WARNING + UNKNOWN_OP])
    failed = {"outcome": "raised", "message": "DistBackendError", "trace": None, "nccl_log": None}
    edit(tmp_path / "cases/script/rank0.json", lambda record: record.update(failed))
    notes = judge_script(folder, asked()).notes
    assert {"NCCL warned: of no case", f"NCCL warned: {UNKNOWN_OP}"} <= set(notes)
