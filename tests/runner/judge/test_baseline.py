"""Runs compared by key: which differences are a regression, which are none, and what makes runs incomparable."""

from __future__ import annotations

import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.comparison import Comparison
from runner.judge.baseline import Counts, Entry, Key, Side, compare
from runner.judge.baseline_sides import why_no_baseline
from runner.judge.gate import compare_results, gated
from runner.judge.run import judge_run, unmeasured_run
from runner.result import CaseResult, Gate, PhaseResult, Result
from runner.run import REPLAY
from runner.runfolder import RunFolder
from runner.suite import load_suite
from tests.runner.judge.test_run import case_folder, edit_record, take_traces_of
from tests.runner.report.factory import ENVIRONMENT, case, coverage, phase, result


def one(*phases: PhaseResult, **more: Any) -> Result:
    """A Result of one case."""
    return result(case("static", *phases, **more))


def changes(base: Result, head: Result) -> dict[str, str]:
    return {found.place: found.change for found in compare_results(base, head, "base.json").differences}


def backward(**counts: int) -> Result:
    """A Result of one case whose backward had that many launches in each group."""
    return one(msgspec.structs.replace(phase("backward"), coverage=coverage(**counts)))


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ({"symmetric": 4}, {"symmetric": 4}, None),
        ({"symmetric": 4}, {"fallback": 4}, "regressed"),
        ({"symmetric": 4}, {"symmetric": 3, "fallback": 1}, "regressed"),
        ({"symmetric": 4}, {"ineligible": 4}, "regressed"),
        ({"symmetric": 4}, {"symmetric": 2, "unknown": 2}, "regressed"),
        ({"fallback": 4}, {"symmetric": 4}, "improved"),
        ({"unknown": 4}, {"symmetric": 4}, "improved"),
        # Fewer calls, or other calls beside as many symmetric ones, lose nothing.
        ({"symmetric": 4}, {"symmetric": 2}, "changed"),
        ({"symmetric": 4}, {"symmetric": 4, "fallback": 4}, "changed"),
        ({"symmetric": 4}, {"symmetric": 6, "fallback": 1}, "changed"),
        ({"fallback": 4}, {"fallback": 8}, "changed"),
        ({"symmetric": 4, "fallback": 4}, {"symmetric": 2, "fallback": 2}, "changed"),
    ],
)
def test_regressed_is_less_symmetric_and_more_of_something_else(
    before: dict[str, int], after: dict[str, int], change: str | None
) -> None:
    found = changes(backward(**before), backward(**after))
    assert found == ({"all_reduce/static backward": change} if change else {})


def test_the_difference_says_what_was_and_what_is() -> None:
    (found,) = compare_results(backward(symmetric=4), backward(symmetric=1, fallback=3), "base.json").differences
    assert found.sentence == (
        "4 of 4 calls a step symmetric in the baseline; now 1 of 4 calls a step symmetric, 3 fell back"
    )
    assert found.before is not None and found.after is not None
    assert (found.before.symmetric, found.after.symmetric, found.after.fallback) == (4, 1, 3)


@pytest.mark.parametrize(
    ("outcome", "change"),
    [("incapable", "regressed"), ("known", "regressed"), ("error", "unmeasured"), ("unmeasured", "unmeasured")],
)
def test_what_is_no_longer_measured_is_not_excused_by_an_outcome_that_fails_nothing(outcome: Any, change: str) -> None:
    lost = one(phase("backward", outcome, message="gone"), trouble="gone")
    assert changes(backward(symmetric=4), lost) == {"all_reduce/static backward": change}
    assert changes(backward(fallback=4), lost) == {"all_reduce/static backward": "unmeasured"}


def test_new_and_removed_cases_are_neither_regressed_nor_improved() -> None:
    base = result(case("static", phase("forward", symmetric=4)), case("old", phase("forward", symmetric=4)))
    head = result(case("static", phase("forward", symmetric=4)), case("new", phase("forward", fallback=4)))
    comparison = compare_results(base, head, "base.json")
    assert [(found.change, found.place) for found in comparison.differences] == [
        ("removed", "all_reduce/old forward"),
        ("new", "all_reduce/new forward"),
    ]
    assert comparison.same == 1
    assert comparison.differences[0].sentence == "4 of 4 calls a step symmetric in the baseline; now gone"


@pytest.mark.parametrize(
    ("fact", "value", "told"),
    [
        ("ranks", 4, "ranks: 2 in the baseline, 4 here"),
        ("ranks_per_gpu", 1, "ranks per GPU: 2 in the baseline, 1 here"),
        ("capability", "10.0", "GPU capability: 9.0 in the baseline, 10.0 here"),
        ("nvlink", False, "NVLink: yes in the baseline, no here"),
        ("multicast", True, "multicast: no in the baseline, yes here"),
        ("hosts", 2, "hosts: 1 in the baseline, 2 here"),
    ],
)
def test_another_machine_is_incomparable_and_not_regressed(fact: str, value: object, told: str) -> None:
    head = backward(fallback=4)
    head = msgspec.structs.replace(head, environment=msgspec.structs.replace(ENVIRONMENT, **{fact: value}))
    comparison = compare_results(backward(symmetric=4), head, "base.json")
    assert comparison.incomparable == [told]
    assert (comparison.differences, comparison.same) == ([], 0)
    judged = gated(head, Gate(), backward(symmetric=4), "base.json")
    assert judged.cases[0].phases[0].outcome == "pass"
    assert told in judged.verdict.sentence


def test_a_fact_that_is_not_known_excuses_nothing() -> None:
    head = backward(fallback=4)
    head = msgspec.structs.replace(head, environment=msgspec.structs.replace(ENVIRONMENT, nvlink=None))
    assert changes(backward(symmetric=4), head) == {"all_reduce/static backward": "regressed"}


def test_a_variable_that_takes_multicast_away_excuses_nothing() -> None:
    own = msgspec.structs.replace(ENVIRONMENT, ranks_per_gpu=1, multicast=True)
    off = msgspec.structs.replace(own, multicast=False, variables={"NCCL_NVLS_ENABLE": "0"})
    base = msgspec.structs.replace(backward(symmetric=4), environment=own)
    head = msgspec.structs.replace(backward(fallback=4), environment=off)
    comparison = compare_results(base, head, "base.json")
    assert comparison.incomparable == []
    assert [found.change for found in comparison.differences] == ["regressed"]
    assert "NCCL_NVLS_ENABLE not set → 0" in map(str, comparison.versions)
    # Without the variable it is the machine that differs.
    plain = msgspec.structs.replace(head, environment=msgspec.structs.replace(off, variables={}))
    assert compare_results(base, plain, "base.json").incomparable == ["multicast: yes in the baseline, no here"]


def test_other_versions_are_named_beside_the_difference() -> None:
    newer = msgspec.structs.replace(ENVIRONMENT, torch="2.12.0+cu130", nccl="2.32.3", driver="590.1")
    head = msgspec.structs.replace(backward(fallback=4), environment=newer)
    judged = gated(head, Gate(), backward(symmetric=4), "base.json")
    assert judged.baseline is not None
    told = ["PyTorch 2.11.0+cu130 → 2.12.0+cu130", "NCCL 2.30.7 → 2.32.3", "driver 580.95.05 → 590.1"]
    assert list(map(str, judged.baseline.versions)) == told
    assert judged.cases[0].phases[0].message.endswith(f"(also changed: {', '.join(told)})")


def test_a_changed_expectation_is_shown_and_excuses_nothing() -> None:
    base, head = backward(symmetric=4), one(phase("backward", expected="fallback", fallback=4))
    judged = gated(head, Gate(), base, "base.json")
    assert judged.baseline is not None
    assert list(map(str, judged.baseline.expectations)) == ["all_reduce/static backward: symmetric → fallback"]
    assert judged.cases[0].phases[0].outcome == "regressed"
    assert judged.verdict.word == "fail"


def test_steps_do_not_count_but_what_ran_in_each() -> None:
    recorded = judge_run(RunFolder(REPLAY), load_suite("default").select(["all_reduce/*"]))
    first = [_only_step(case, 2) for case in recorded.cases]
    half = msgspec.structs.replace(recorded, cases=first)
    assert half.cases[3].phases[0].coverage.symmetric.calls * 2 == recorded.cases[3].phases[0].coverage.symmetric.calls
    comparison = compare_results(recorded, half, "base.json")
    assert (comparison.differences, comparison.same) == ([], 16)


def _only_step(case: CaseResult, step: int) -> CaseResult:
    from runner.judge.coverage import GATE_PHASES
    from runner.judge.coverage import coverage as covered

    rows = [row for row in case.collectives if row.step == step]
    phases = [
        msgspec.structs.replace(phase, coverage=covered(row for row in rows if row.phase in GATE_PHASES[phase.phase]))
        for phase in case.phases
    ]
    return msgspec.structs.replace(case, collectives=rows, phases=phases)


# ---- the recorded run, with things done to it ------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(REPLAY, tmp_path / "run"))


@pytest.fixture
def recorded() -> Result:
    return judge_run(RunFolder(REPLAY), load_suite("default").select(["all_reduce/*"]))


def test_a_recorded_fallback_regresses_and_keeps_its_cause(folder: Path, recorded: Result) -> None:
    take_traces_of(folder, "static", "step")
    head = gated(
        judge_run(RunFolder(folder), load_suite("default").select(["all_reduce/*"])), Gate(), recorded, "base.json"
    )
    (static,) = (case for case in head.cases if case.id == "all_reduce/static")
    assert [(phase.phase, phase.outcome) for phase in static.phases] == [("forward", "pass"), ("backward", "regressed")]
    assert static.phases[1].message == (
        "2 of 2 calls a step symmetric in the baseline; now 0 of 2 calls a step symmetric, 2 fell back"
    )
    assert head.verdict.sentence.startswith("Of 16 phases 1 regressed; first all_reduce/static backward: 2 of 2 calls")
    assert head.baseline is not None and head.baseline.same == 15
    assert head.baseline.coverage["backward"].ratio == 0.75


def test_regressed_comes_before_a_known_problem(folder: Path, recorded: Result) -> None:
    """The baseline did not have the problem, so it is not excused by it."""
    take_traces_of(folder, "step", "single-thread")
    fixed = judge_run(RunFolder(folder), load_suite("default").select(["all_reduce/*"]))
    head = gated(recorded, Gate(), fixed, "base.json")
    (step,) = (case for case in head.cases if case.id == "all_reduce/step")
    assert step.phases[1].outcome == "regressed"
    assert step.phases[1].known is not None


def test_a_phase_that_the_suite_no_longer_judges_still_regresses(folder: Path, recorded: Result) -> None:
    take_traces_of(folder, "static", "step")
    suite = load_suite("default").select(["all_reduce/*"])
    forward = [msgspec.structs.replace(case, expect={"forward": case.expect["forward"]}) for case in suite.cases
               if "forward" in case.expect]  # fmt: skip
    head = judge_run(RunFolder(folder), msgspec.structs.replace(suite, cases=tuple(forward)))
    assert {phase.phase for case in head.cases for phase in case.phases} == {"forward"}
    judged = gated(head, Gate(), recorded, "base.json")
    (static,) = (case for case in judged.cases if case.id == "all_reduce/static")
    assert [(phase.phase, phase.outcome, phase.expected) for phase in static.phases[1:]] == [
        ("backward", "regressed", "any")
    ]
    assert static.phases[1].coverage.fallback.calls == 4
    assert judged.verdict.word == "fail"
    assert judged.baseline is not None
    assert "all_reduce/static backward: symmetric → not judged" in map(str, judged.baseline.expectations)


def test_a_rank_whose_trace_is_broken_is_no_measure(folder: Path, recorded: Result) -> None:
    (case_folder(folder, "static") / "rank1.trace.json.gz").write_bytes(b"no trace")
    head = gated(
        judge_run(RunFolder(folder), load_suite("default").select(["all_reduce/*"])), Gate(), recorded, "base.json"
    )
    assert head.baseline is not None
    assert {found.place: found.change for found in head.baseline.differences} == {
        "all_reduce/static forward": "unmeasured",
        "all_reduce/static backward": "unmeasured",
    }
    assert {phase.outcome for case in head.cases for phase in case.phases if case.id == "all_reduce/static"} == {
        "error"
    }


def test_a_machine_that_suddenly_cannot_is_regressed(folder: Path, recorded: Result) -> None:
    """Else a condition put into the suite would take a case out of the gate."""

    def lacks(record: dict) -> None:
        record |= {"outcome": "incapable", "message": "needs torch >=9", "trace": None}

    edit_record(folder, "static", lacks)
    head = gated(
        judge_run(RunFolder(folder), load_suite("default").select(["all_reduce/*"])), Gate(), recorded, "base.json"
    )
    (static,) = (case for case in head.cases if case.id == "all_reduce/static")
    assert {phase.outcome for phase in static.phases} == {"regressed"}
    assert static.phases[0].message == (
        "2 of 2 calls a step symmetric in the baseline; now not measured (incapable): needs torch >=9"
    )


def test_which_results_are_no_baseline(folder: Path, recorded: Result) -> None:
    suite = load_suite("default").select(["all_reduce/*"])
    assert why_no_baseline(recorded) is None
    failed = msgspec.structs.replace(recorded, verdict=gated(recorded, Gate(minimum={"backward": 1.0})).verdict)
    assert failed.verdict.word == "fail" and why_no_baseline(failed) is None
    replay = msgspec.structs.replace(recorded, replay=True)
    assert "recorded run" in (why_no_baseline(replay) or "")
    assert "the verdict unmeasured (Nothing could be measured: no GPU)" in (
        why_no_baseline(unmeasured_run(suite, 2, 1, "no GPU")) or ""
    )
    (folder / "starts/0/end.json").write_text('{"exit_status": -15, "ended": "stopped", "message": "by SIGTERM"}')
    assert "interrupted" in (why_no_baseline(judge_run(RunFolder(folder), suite)) or "")


# ---- any two runs ----------------------------------------------------------------------------------------------------


def _side(entries: dict[Key, Entry]) -> Side:
    return Side("a", True, entries, {"ranks": "2"}, {}, {}, {}, {})


_counts = st.builds(Counts, *[st.fractions(min_value=0, max_value=4, max_denominator=3)] * 4)
_entries = st.builds(
    Entry, st.none() | _counts, st.sampled_from(["pass", "fail", "known", "incapable", "error", "unmeasured"])
)
_keys = st.builds(
    Key, st.none(), st.sampled_from(["forward", "backward", "unknown"]), st.sampled_from(["all_reduce", "all_gather"]),
    st.none() | st.just("dp"), st.sampled_from([2, None]), st.none(),
)  # fmt: skip
_sides = st.dictionaries(_keys | st.builds(Key, st.just("a"), st.sampled_from(["forward", "backward"])), _entries).map(
    _side
)


def by_key(comparison: Comparison) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for difference in comparison.differences:
        found.setdefault(difference.change, set()).add(difference.place)
    return found


@given(_sides)
def test_a_run_never_differs_from_itself(side: Side) -> None:
    comparison = compare(side, side)
    assert (comparison.differences, comparison.same) == ([], len(side.entries))


@given(_sides, _sides)
def test_what_regressed_one_way_improved_the_other_way(base: Side, head: Side) -> None:
    there, back = by_key(compare(base, head)), by_key(compare(head, base))
    mirror = {"regressed": "improved", "improved": "regressed", "new": "removed", "removed": "new"}
    assert there == {mirror.get(change, change): places for change, places in back.items()}


@given(_sides, _sides)
def test_every_key_is_the_same_or_has_one_difference(base: Side, head: Side) -> None:
    comparison = compare(base, head)
    assert comparison.same + len(comparison.differences) == len(base.entries.keys() | head.entries.keys())


@given(_sides, _sides)
def test_nothing_regresses_where_nothing_was_symmetric(base: Side, head: Side) -> None:
    none = {
        key: Entry(e.counts and e.counts._replace(symmetric=Fraction()), e.outcome) for key, e in base.entries.items()
    }
    assert compare(_side(none), head).regressed == []


def test_a_phase_that_can_no_longer_be_told_is_regressed() -> None:
    four = Counts(Fraction(4), Fraction(), Fraction(), Fraction())
    told, untold = (Key(None, phase, "all_reduce", "dp", 2, "bfloat16") for phase in ("backward", "unknown"))
    lost = compare(_side({told: Entry(four)}), _side({untold: Entry(four)}))
    assert {found.place: found.change for found in lost.differences} == {
        "backward all_reduce bfloat16 in group dp of 2 ranks": "regressed",
        "unknown all_reduce bfloat16 in group dp of 2 ranks": "new",
    }
    # Gone altogether, or as another dtype, is another thing.
    other = compare(_side({told: Entry(four)}), _side({untold._replace(dtype="float32"): Entry(four)}))
    assert sorted(found.change for found in other.differences) == ["new", "removed"]
