"""What a suite can say beyond a plain matrix: exclude and include, conditions, launch configurations, kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import UserError
from runner.plan import Configuration
from runner.suite import Known
from tests.runner.test_suite import CHECK, HEAD, load

MATRIX = """\
  probe:
    workload: all_reduce
    deadline: 30
    matrix:
      pool: [none, step, static]
      size: [512, 1KiB]
      exclude: [{pool: [none, step], size: 512}, {pool: static}]
      include:
        - {pool: backward, size: [2 KiB, 512]}
        - {size: 1 KiB, pool: static}
    expect: {forward: symmetric}
    exceptions:
      - when: {pool: backward}
        expect: {forward: fallback}
"""


def test_exclude_takes_out_of_the_product_and_include_adds_whole_points(tmp_path: Path) -> None:
    suite = load(tmp_path, HEAD + MATRIX)
    assert {case.id: (case.axes["size"], case.expect["forward"]) for case in suite.cases} == {
        "probe/none/1KiB": (1024, "symmetric"),
        "probe/step/1KiB": (1024, "symmetric"),
        "probe/backward/2KiB": (2048, "fallback"),
        "probe/backward/512": (512, "fallback"),
        "probe/static/1KiB": (1024, "symmetric"),
    }


NEEDS = HEAD + CHECK.replace("    fixed", "    only-if: {torch: '>=2.9, <3', own-gpu: true}\n    fixed")


def test_an_exception_replaces_the_conditions_that_it_names(tmp_path: Path) -> None:
    text = NEEDS + "    exceptions:\n      - when: {pool: none}\n        only-if: {torch: '>=2.12', ranks: '>=4'}\n"
    suite = load(tmp_path, text)
    needs = {case.axes["pool"]: case.needs for case in suite.cases}
    assert needs == {
        "none": {"torch": ">=2.12", "own-gpu": True, "ranks": ">=4"},
        "step": {"torch": ">=2.9, <3", "own-gpu": True},
    }
    assert [case.needs for case in suite.plan().cases] == [case.needs for case in suite.cases]


CONFIGURED = HEAD.replace(
    "checks:\n",
    "configurations:\n"
    "  mine: {env: {NCCL_CTA_POLICY: '2'}, symm-mem-backend: CUDA}\n"
    "  other: {env: {A_VARIABLE: ''}}\n"
    "checks:\n"
    "  first: {workload: all_reduce, deadline: 9, configuration: other, expect: {forward: any}}\n",
) + CHECK.replace("    fixed", "    configuration: mine\n    fixed")


def test_the_plan_has_the_configurations_of_its_cases_only(tmp_path: Path) -> None:
    suite = load(tmp_path, CONFIGURED)
    mine, other = (
        Configuration(env={"NCCL_CTA_POLICY": "2"}, symm_mem_backend="CUDA"),
        Configuration(env={"A_VARIABLE": ""}),
    )
    assert suite.plan().configurations == suite.configurations == {"mine": mine, "other": other}
    chosen = suite.select(["probe/*"]).plan()
    assert chosen.configurations == {"mine": mine}
    assert {case.configuration for case in chosen.cases} == {"mine"}


KINDS = HEAD + CHECK.replace(
    "backward: any}",
    "backward: {all_gather: symmetric, all_reduce: fallback}}\n    known:\n      forward:\n"
    "        - {issue: 'https://x.org/1', title: old, torch: '<2.9'}\n"
    "        - {issue: 'https://x.org/2', title: new, torch: '>=2.9'}\n"
    "      backward: {issue: 'https://x.org/3', title: kind, nccl: '<2.30', kind: all_gather}",
)


def test_kinds_have_each_its_own_expectation_and_problems_stand_in_order(tmp_path: Path) -> None:
    case = load(tmp_path, KINDS).cases[0]
    assert case.expect == {"forward": "symmetric", "backward": "symmetric"}
    assert case.kinds == {"backward": {"all_gather": "symmetric", "all_reduce": "fallback"}}
    assert [problem.title for problem in case.known["forward"]] == ["old", "new"]
    assert case.known["backward"] == (Known(issue="https://x.org/3", title="kind", nccl="<2.30", kind="all_gather"),)


def test_an_exception_may_take_known_problems_away(tmp_path: Path) -> None:
    rule = (
        "    exceptions:\n      - when: {pool: none}\n        expect: {backward: any}\n        known: {backward: []}\n"
    )
    known = {case.axes["pool"]: set(case.known) for case in load(tmp_path, KINDS + rule).cases}
    assert known == {"none": {"forward"}, "step": {"forward", "backward"}}
    with pytest.raises(UserError, match="names no problem; leave the key out"):
        load(tmp_path, HEAD + CHECK + "    known: {forward: []}\n")


def test_an_exception_for_the_whole_phase_ends_the_expectations_by_kind(tmp_path: Path) -> None:
    text = KINDS.replace(", kind: all_gather", "").replace("backward: {issue", "optimizer: {issue")
    text = text.replace("all_reduce: fallback}}", "all_reduce: fallback}, optimizer: any}")
    text += "    exceptions:\n      - when: {pool: none}\n        expect: {backward: fallback}\n"
    kinds = {case.axes["pool"]: (case.expect["backward"], case.kinds) for case in load(tmp_path, text).cases}
    assert kinds == {
        "none": ("fallback", {}),
        "step": ("symmetric", {"backward": {"all_gather": "symmetric", "all_reduce": "fallback"}}),
    }


MORE_MISTAKES = [
    # text of the file, old text, new text, key, what the message says
    (MATRIX, "{pool: static}]", "{pool: backward}]", "matrix.exclude[1].pool", "not among the values"),
    (MATRIX, "{pool: static}]", "{pool: none, size: 512}]", "matrix.exclude[1]", "matches no case that is left"),
    (MATRIX, "{pool: static}]", "{}]", "matrix.exclude[1]", "would match every case"),
    (MATRIX, "{pool: static}]", "{op: sum}]", "matrix.exclude[1]", "unknown key 'op'"),
    (MATRIX, "{size: 1 KiB, pool: static}", "{pool: static}", "matrix.include[1]", 'the key "size" is missing'),
    (MATRIX, "{size: 1 KiB,", "{op: sum, size: 1 KiB,", "matrix.include[1]", "unknown key 'op'"),
    (MATRIX, "size: 1 KiB, pool: static", "size: 1 KiB, pool: none", "matrix.include[1]", "none/1KiB is there already"),
    (MATRIX, "size: 1 KiB, pool", "size: 1024, pool", "matrix.include[1].size", "'1024' means the same as another"),
    (MATRIX, "size: [2 KiB, 512]", "size: []", "matrix.include[0].size", "has no value"),
    (MATRIX, "size: [2 KiB, 512]", "size: [2 KB]", "matrix.include[0].size[0]", "unit (B, KiB"),
    (NEEDS, "only-if: {torch", "only_if: {torch", "", 'did you mean "only-if"?'),
    (NEEDS, "torch: '>=2.9, <3'", "pytorch: '>=2'", "only-if", 'did you mean "torch"?'),
    (NEEDS, "'>=2.9, <3'", "'2.9'", "only-if.torch", "no bound of plain numbers"),
    (NEEDS, "'>=2.9, <3'", "'~=2.9'", "only-if.torch", "no bound of plain numbers"),
    (NEEDS, "'>=2.9, <3'", "'>=2.9rc1'", "only-if.torch", "no bound of plain numbers"),
    (NEEDS, "'>=2.9, <3'", "2.9", "only-if.torch", "must be a bound"),
    (NEEDS, "own-gpu: true", "own-gpu: false", "only-if.own-gpu", "must be true"),
    (NEEDS, "own-gpu: true", "own-gpu: 'true'", "only-if.own-gpu", "must be true"),
    (NEEDS, "{torch: '>=2.9, <3', own-gpu: true}", "{}", "only-if", "names no condition"),
    (CONFIGURED, "configuration: mine", "configuration: min", "configuration", 'did you mean "mine"?'),
    (KINDS, "all_gather: symmetric", "allgather: symmetric", "expect.backward", 'did you mean "all_gather"?'),
    (KINDS, "{all_gather: symmetric, all_reduce: fallback}", "{}", "expect.backward", "names no kind"),
    (
        KINDS,
        "kind: all_gather",
        "kind: all_reduce",
        "",
        'all_reduce in "backward" has a known problem, but is expected',
    ),
    (KINDS, "kind: all_gather", "kind: broadcast", "", '"expect" does not name that kind there'),
    (KINDS, "kind: all_gather", "kind: unknown", "known.backward.kind", "unknown value 'unknown'"),
    (KINDS, ", torch: '<2.9'", "", "known.forward[0]", "needs a bound on the versions"),
]


@pytest.mark.parametrize(("text", "old", "new", "key", "says"), MORE_MISTAKES)
def test_a_mistake_in_what_came_later_is_told_with_its_key(
    tmp_path: Path, text: str, old: str, new: str, key: str, says: str
) -> None:
    text = text if text.startswith(HEAD[:6]) else HEAD + text
    assert text.count(old) == 1, f"{old!r} must stand once"
    with pytest.raises(UserError) as caught:
        load(tmp_path, text.replace(old, new))
    message = str(caught.value)
    assert f": checks.probe{'.' + key if key else ''}: " in message
    assert says in message


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("  other: {env", "  default: {env", "configurations.default: is the configuration that changes nothing"),
        ("  other: {env", "  a/b: {env", "the name of a configuration"),
        ("  other: {env: {A_VARIABLE: ''}}", "  other: {}", "configurations.other: changes nothing"),
        ("A_VARIABLE: ''", "A_VARIABLE: 1", "A_VARIABLE: must be text, and is a number ('1'); put quotes"),
        ("A_VARIABLE: ''", "a-variable: x", "the name of a variable"),
        ("A_VARIABLE: ''", "LD_PRELOAD: x.so", "LD_PRELOAD: is not a suite's to set"),
        ("A_VARIABLE: ''", 'A: "a\\nb"', "must be one line of text"),
        ("symm-mem-backend: CUDA", "symm-mem-backend: cuda", "unknown value 'cuda'. Allowed: CUDA"),
        ("configuration: other", "configuration: mine", "no check runs in the configuration other"),
    ],
)
def test_a_mistake_in_a_configuration_is_told(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert CONFIGURED.count(old) == 1
    with pytest.raises(UserError) as caught:
        load(tmp_path, CONFIGURED.replace(old, new))
    assert says in str(caught.value)


def test_a_workload_that_leads_out_of_the_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "step.py").write_text("")
    root = tmp_path / "repository"
    (root / "bench").mkdir(parents=True)
    suite = load(tmp_path, HEAD + CHECK.replace("all_reduce", "bench/step.py:train"))
    (root / "bench" / "step.py").symlink_to(tmp_path / "elsewhere" / "step.py")
    with pytest.raises(UserError, match=r"line 6: checks\.probe\.workload: 'bench/step\.py' leads out of"):
        suite.plan(root=root)
    (root / "bench" / "step.py").unlink()
    (root / "bench").rmdir()
    (root / "bench").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="leads out of"):
        suite.plan(root=root)
    # A link that stays inside, and a root that is a link itself, lead nowhere else.
    (root / "bench").unlink()
    (root / "real").mkdir()
    (root / "real" / "step.py").write_text("")
    (root / "bench").symlink_to(root / "real")
    (tmp_path / "link").symlink_to(root)
    assert suite.plan(root=tmp_path / "link").cases[0].workload == "bench/step.py:train"


def test_a_matrix_of_too_many_cases_is_refused_before_it_is_made(tmp_path: Path) -> None:
    axes = "".join(f"      a{n}: {list(range(100))}\n" for n in range(5))
    text = (
        HEAD
        + "  big:\n    workload: all_reduce\n    deadline: 1\n    matrix:\n"
        + axes
        + "    expect: {forward: any}\n"
    )
    with pytest.raises(UserError, match=r"line 9: checks\.big\.matrix: makes more than 10000 cases"):
        load(tmp_path, text)


def test_include_cannot_make_too_many_cases_either(tmp_path: Path) -> None:
    text = HEAD + MATRIX.replace("size: [2 KiB, 512]", f"size: {list(range(1, 10_001))}")
    with pytest.raises(UserError, match=r"line 14: checks\.probe\.matrix\.include\[0\]: makes more than 10000 cases"):
        load(tmp_path, text)
