"""The gate: which outcomes fail, which coverage is asked for, and the sentence that a person reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from runner.cli import main
from runner.judge.gate import below_minimum, gated, ratio
from runner.model import Amount, Coverage
from runner.report.junit import junit_xml
from runner.result import FAILING, Gate, Outcome, Result, read_result, write_result
from runner.script_result import ScriptResult, ScriptRow
from tests.runner.report.factory import case, coverage, phase, result


def with_outcome(outcome: Outcome, **more: Any) -> Result:
    """A Result of two phases, of which one is symmetric and passes."""
    other = phase("backward", outcome, message=f"it was {outcome}", fallback=4)
    return result(case("static", phase("forward", symmetric=4), other), **more)


@pytest.mark.parametrize("outcome", ["regressed", "fail", "error", "unmeasured"])
def test_these_fail_unless_the_caller_chooses_others(outcome: Outcome) -> None:
    assert gated(with_outcome(outcome), Gate()).verdict.word == "fail"
    others = tuple(sorted(FAILING - {outcome}))
    chosen = gated(with_outcome(outcome), Gate(fail_on=others)).verdict
    assert chosen.word == "pass"
    assert chosen.sentence.startswith("1 of 2 phases are as expected, and the gate does not fail for the others (1 ")


@pytest.mark.parametrize("outcome", ["known", "incapable", "fixed", "pass"])
def test_these_pass_unless_the_caller_chooses_them(outcome: Outcome) -> None:
    assert gated(with_outcome(outcome), Gate()).verdict.word == "pass"
    assert gated(with_outcome(outcome), Gate(fail_on=(outcome,))).verdict.word == "fail"


def test_the_sentence_has_the_worst_first_and_the_coverage() -> None:
    found = with_outcome("fail", coverage={"backward": coverage(0, 4)})
    verdict = gated(found, Gate(minimum={"backward": 0.9})).verdict
    assert verdict.sentence == (
        "Of 2 phases 1 failed; first all_reduce/static backward: it was fail; "
        "backward coverage is 0 %, and 90 % is asked for."
    )


MIXED = Coverage(Amount(3, 100, 0.0), Amount(1, 300, 0.0), Amount(5, 9, 0.0), Amount(7, 9, 0.0), 0.75)


@pytest.mark.parametrize(
    ("by", "least", "word"),
    [("calls", 0.75, "pass"), ("calls", 0.76, "fail"), ("bytes", 0.25, "pass"), ("bytes", 0.26, "fail")],
)
def test_a_minimum_counts_calls_or_bytes_of_what_is_eligible(by: Any, least: float, word: str) -> None:
    found = with_outcome("pass", coverage={"backward": MIXED})
    judged = gated(found, Gate(minimum={"backward": least}, coverage_by=by))
    assert judged.verdict.word == word
    assert below_minimum(judged) == ([] if word == "pass" else ["backward"])


@pytest.mark.parametrize("found", [None, coverage(0, 0, 3, 2)])
def test_nothing_eligible_is_below_any_minimum(found: Coverage | None) -> None:
    judged = gated(with_outcome("pass", coverage={"forward": found} if found else {}), Gate(minimum={"forward": 0.0}))
    assert judged.verdict.word == "fail"
    assert judged.verdict.sentence == "Forward coverage is n/a (nothing eligible ran), and 0 % is asked for."
    assert ratio(found, "bytes") is None


def test_nothing_measured_is_unmeasured_whatever_is_asked_for() -> None:
    found = result(case("static", phase("forward", "unmeasured"), trouble="no GPU"))
    asked = Gate(fail_on=("regressed",), minimum={"forward": 0.0})
    assert gated(found, asked).verdict.word == "unmeasured"
    assert gated(found, asked).verdict.sentence == "Nothing could be measured: no GPU."


def test_a_low_coverage_alone_is_in_junit() -> None:
    judged = gated(with_outcome("pass", coverage={"backward": MIXED}), Gate(minimum={"backward": 0.9}))
    document = junit_xml(judged)
    assert 'name="verdict"' in document
    assert "backward coverage is 75 %, and 90 % is asked for" in document.replace("Backward", "backward")


# ---- scripts ---------------------------------------------------------------------------------------------------------


def script(symmetric: int = 0, fallback: int = 0, *, steps: int = 2, dtype: str = "bfloat16") -> Result:
    """A script's Result of one backward row, whose launches are over all steps."""
    found = coverage(symmetric, fallback)
    row = ScriptRow(
        phase="backward", kind="all_reduce", group="dp", group_size=2, dtype=dtype,
        calls_per_step=(symmetric + fallback) / steps, coverage=found, kernels=[],
    )  # fmt: skip
    ran = ScriptResult(command=["train.py"], ranks=2, steps=steps, warmup=3, rows=[row])
    return result(script=ran, coverage={"forward": coverage(2), "backward": found})


def test_a_script_that_lost_its_symmetric_kernels_fails_and_says_where() -> None:
    judged = gated(script(fallback=12), Gate(), script(symmetric=12), "base.json")
    assert judged.verdict.word == "fail"
    assert judged.verdict.sentence == (
        "Regressed: backward all_reduce bfloat16 in group dp of 2 ranks: 6 of 6 calls a step symmetric in the "
        "baseline; now 0 of 6 calls a step symmetric, 6 fell back."
    )
    assert gated(script(fallback=12), Gate(fail_on=("error",)), script(symmetric=12), "base.json").verdict == (
        msgspec.structs.replace(
            judged.verdict, word="pass",
            sentence="Coverage of your script: forward 100 %, backward 0 %; no minimum is asked for; 1 regressed.",
        )
    )  # fmt: skip


def test_a_script_is_compared_by_the_step() -> None:
    judged = gated(script(symmetric=18, steps=3), Gate(), script(symmetric=12, steps=2), "base.json")
    assert judged.baseline is not None
    assert (judged.baseline.differences, judged.baseline.same) == ([], 1)
    assert judged.verdict.sentence == (
        "Coverage of your script: forward 100 %, backward 100 %; no minimum is asked for; "
        "nothing regressed against the baseline."
    )


def test_another_dtype_is_another_key() -> None:
    judged = gated(script(fallback=12, dtype="float32"), Gate(), script(symmetric=12), "base.json")
    assert judged.baseline is not None
    assert [found.change for found in judged.baseline.differences] == ["removed", "new"]
    assert judged.verdict.word == "pass"
    assert judged.verdict.sentence.endswith(
        "nothing regressed against the baseline; 1 of the baseline no longer there."
    )


def test_a_script_that_did_not_end_keeps_its_verdict_and_is_not_compared() -> None:
    broken = script(fallback=12)
    assert broken.script is not None
    broken = msgspec.structs.replace(
        broken, script=msgspec.structs.replace(broken.script, trouble="rank 1: ValueError"),
        verdict=msgspec.structs.replace(broken.verdict, word="fail", sentence="The script failed: rank 1."),
    )  # fmt: skip
    judged = gated(broken, Gate(minimum={"backward": 0.0}), script(symmetric=12), "base.json")
    assert (judged.verdict, judged.baseline) == (broken.verdict, None)


# ---- from the command line -------------------------------------------------------------------------------------------


@pytest.fixture
def baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The recorded run as a run of the user's own, which may be a baseline."""
    assert main(["run", "--replay", "--only", "all_reduce/*", "--out", str(tmp_path / "first")]) == 0
    path = tmp_path / "baseline.json"
    write_result(msgspec.structs.replace(read_result(tmp_path / "first/result.json"), replay=False), path)
    capsys.readouterr()
    return path


def replayed(tmp_path: Path, *arguments: str) -> tuple[int, Result]:
    status = main(["run", "--replay", "--only", "all_reduce/*", "--out", str(tmp_path / "out"), *arguments])
    return status, read_result(tmp_path / "out/result.json")


def test_a_replay_leaves_nothing_of_an_earlier_run(tmp_path: Path) -> None:
    replayed(tmp_path, "--page")
    (tmp_path / "out" / "run").mkdir()
    (tmp_path / "out" / "run" / "plan.json").write_text("{}")
    replayed(tmp_path)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["junit.xml", "result.json", "summary.md"]


def test_run_compares_with_a_baseline_and_says_so(
    baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = replayed(tmp_path, "--baseline", str(baseline), "--require-baseline")
    assert (status, found.verdict.word) == (0, "pass")
    assert found.baseline is not None
    assert (found.baseline.same, found.baseline.file) == (16, str(baseline))
    told = capsys.readouterr().out
    assert f"compared with {baseline}: 16 as they were" in told
    assert "coverage backward: 75 % (12 of 16 calls; the baseline had 75 %)" in told


def test_run_fails_where_something_regressed(baseline: Path, tmp_path: Path) -> None:
    old = read_result(baseline)
    step = next(case for case in old.cases if case.id == "all_reduce/step")
    better = msgspec.structs.replace(step.phases[1], outcome="fixed", coverage=step.phases[0].coverage)
    changed = msgspec.structs.replace(step, phases=[step.phases[0], better])
    cases = [changed if case.id == step.id else case for case in old.cases]
    write_result(msgspec.structs.replace(old, cases=cases), baseline)
    status, found = replayed(tmp_path, "--baseline", str(baseline))
    assert (status, found.verdict.word) == (1, "fail")
    assert "1 regressed; first all_reduce/step backward: 2 of 2 calls a step symmetric" in found.verdict.sentence
    status, found = replayed(tmp_path, "--baseline", str(baseline), "--fail-on", "fail, error")
    assert (status, found.gate.fail_on) == (0, ("error", "fail"))


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--min-backward-coverage", "75"], 0, "as expected"),
        (["--min-backward-coverage", "75.1%"], 1, "Backward coverage is 75 %, and 75.1 % is asked for."),
        (["--min-backward-coverage", "80", "--coverage-by", "bytes"], 1, "75 % of bytes, and 80 % is asked for."),
        (["--min-forward-coverage", "100"], 0, "as expected"),
        (["--fail-on", "known"], 1, "1 with a known problem; first all_reduce/step backward"),
    ],
)
def test_the_gate_by_flags(tmp_path: Path, arguments: list[str], status: int, told: str) -> None:
    seen, found = replayed(tmp_path, *arguments)
    assert seen == status
    assert told in found.verdict.sentence


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--require-baseline"], "--require-baseline: there is no baseline"),
        (["--baseline", "", "--require-baseline"], "--require-baseline: there is no baseline"),
        (["--baseline", "no-such.json"], "no-such.json: cannot be read"),
        (["--baseline", "auto"], "symmem-check fetch baseline --out DIR"),
        (["--baseline", __file__], "not a result of symmem-check"),
    ],
)
def test_a_baseline_that_is_none_is_refused(
    tmp_path: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--replay", "--only", "all_reduce/*", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_replay_is_refused_as_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--replay", "--only", "all_reduce/*", "--out", str(tmp_path / "first")]) == 0
    assert (
        main(
            [
                "run",
                "--replay",
                "--only",
                "all_reduce/*",
                "--out",
                str(tmp_path / "out"),
                "--baseline",
                str(tmp_path / "first"),
            ]
        )
        == 2
    )
    assert "first/result.json: is a replay of the recorded run that ships with symmem-check" in capsys.readouterr().err


@pytest.mark.parametrize("outcomes", ["pass", "regressed,no-such", " , "])
def test_an_outcome_that_cannot_fail_is_refused(outcomes: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--replay", "--fail-on", outcomes])
    assert ended.value.code == 2
    assert "regressed, known, error, unmeasured, incapable, fail, fixed" in capsys.readouterr().err


def test_report_writes_what_is_asked_for_and_ends_as_the_verdict(tmp_path: Path, project: Path) -> None:
    replayed(tmp_path, "--min-backward-coverage", "80", "--page")
    for name in ("result.json", "junit.xml", "summary.md", "page.html"):
        assert (tmp_path / "out" / name).is_file(), name
    command = [sys.executable, "-m", "runner", "report", str(tmp_path / "out"), "--annotations"]
    for kind, name in (("junit", "junit.xml"), ("markdown", "summary.md"), ("page", "page.html")):
        command += [f"--{kind}", str(tmp_path / name)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "verdict: fail: Backward coverage is 75 %, and 80 % is asked for." in done.stdout
    assert any(line.startswith("::error ") and "80 %25 is asked for" in line for line in done.stdout.splitlines())
    for name in ("junit.xml", "summary.md", "page.html"):
        assert (tmp_path / name).read_text() == (tmp_path / "out" / name).read_text()


def test_report_names_the_file_that_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replayed(tmp_path)
    assert main(["report", str(tmp_path / "out/result.json"), "--junit", str(tmp_path / "none/junit.xml")]) == 2
    assert "none/junit.xml: can't be written" in capsys.readouterr().err


def test_report_and_fetch_on_github_need_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("GITHUB_TOKEN", "GH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GITHUB_REPOSITORY", "owner/name")
    replayed(tmp_path)
    for arguments in (["report", str(tmp_path / "out"), "--comment"], ["fetch", "baseline", "--out", str(tmp_path)]):
        assert main(arguments) == 2
        assert "no token for GitHub" in capsys.readouterr().err


def test_a_baseline_of_the_other_kind_is_refused_before_anything_runs(
    baseline: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "script.json"
    write_result(script(symmetric=4), own)
    training = tmp_path / "train.py"
    training.write_text("raise SystemExit('this must not run')")
    cases = [
        (["--replay", "--baseline", str(own)], "is of a script, and this run is of a suite"),
        (["--script", str(training), "--baseline", str(baseline)], "is of a suite, and this run is of a script"),
    ]
    for arguments, told in cases:
        assert main(["run", "--out", str(tmp_path / "out"), *arguments]) == 2
        assert told in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("found", "failing"),
    [
        (gated(script(fallback=12), Gate(), script(symmetric=12), "base.json"), ["verdict"]),
        (gated(script(fallback=12), Gate(minimum={"backward": 0.5})), ["train.py backward"]),
        (
            gated(script(fallback=12), Gate(minimum={"backward": 0.5}), script(symmetric=12), "base.json"),
            ["train.py backward", "verdict"],
        ),
        (gated(with_outcome("fail"), Gate()), ["all_reduce/static backward"]),
        (gated(with_outcome("fail"), Gate(minimum={"backward": 0.5})), ["all_reduce/static backward", "verdict"]),
        (gated(with_outcome("pass"), Gate(minimum={"backward": 0.5})), ["verdict"]),
        (gated(with_outcome("regressed"), Gate()), ["all_reduce/static backward"]),
    ],
)
def test_junit_shows_every_reason_of_the_verdict(found: Result, failing: list[str]) -> None:
    cases = ElementTree.fromstring(junit_xml(found)).iter("testcase")
    assert [case.get("name") for case in cases if case.find("failure") is not None] == failing
