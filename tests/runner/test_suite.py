"""Suite files: what a good one means, and that each mistake is told with file, line and key."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.axes import OPS, POOLS
from runner.errors import UserError
from runner.suite import Known, Suite, bundled_suites, load_suite

HEAD = "suite: mine\nranks: 2\nsteps: 2\nwarmup: 1\nchecks:\n"
CHECK = """\
  probe:
    workload: all_reduce
    deadline: 30
    matrix:
      pool: [none, step]
      size: [8 MiB, 1KiB, 512]
    fixed: {dtype: float32, op: sum}
    expect: {forward: symmetric, backward: any}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "suite.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, text: str) -> Suite:
    return load_suite(write(folder, text))


def expected_of(suite: Suite) -> dict[str, dict[str, str]]:
    return {case.id: dict(case.expect) for case in suite.cases}


def test_the_default_suite_has_the_probe_under_each_pool_set_up() -> None:
    suite = load_suite("default").select(["all_reduce/*"])
    assert (suite.name, suite.ranks, suite.steps, suite.warmup) == ("default", 2, 2, 1)
    both, neither = ("symmetric", "symmetric"), ("fallback", "fallback")
    assert {case.id: (case.expect["forward"], case.expect["backward"]) for case in suite.cases} == {
        "all_reduce/none": neither,
        "all_reduce/forward": ("symmetric", "fallback"),
        "all_reduce/step": both,
        "all_reduce/single-thread": both,
        "all_reduce/backward": both,
        "all_reduce/static": both,
        "all_reduce/unregistered": neither,
        "all_reduce/registered-not-symmetric": neither,
    }
    known = {case.id: case.known for case in suite.cases if case.known}
    assert list(known) == ["all_reduce/step"]
    assert list(known["all_reduce/step"]) == ["backward"]
    (problem,) = known["all_reduce/step"]["backward"]
    assert problem.issue == "https://github.com/pytorch/pytorch/issues/167353"
    controls = [case for case in suite.cases if "fallback" in case.expect.values()]
    assert all(case.because for case in controls)


def test_every_bundled_suite_can_be_planned() -> None:
    assert "default" in bundled_suites()
    for name in bundled_suites():
        suite = load_suite(name)
        assert suite.name == name
        assert len(suite.plan().cases) == len(suite.cases) > 0


def test_the_default_suite_is_a_part_of_the_full_one_that_needs_one_start_only() -> None:
    default, full = load_suite("default"), {case.id: case for case in load_suite("full").cases}
    assert default.configurations == {}
    for case in default.cases:
        assert msgspec.structs.replace(case, line=0) == msgspec.structs.replace(full[case.id], line=0), case.id
    assert {case.workload for case in default.cases} >= {"all_reduce", "tensor_parallel", "fsdp2", "collectives"}


def test_the_full_suite_has_every_workload_and_a_control_in_each_family(project: Path) -> None:
    full = load_suite("full")
    shipped = {path.stem for path in (project / "checks" / "workloads").glob("[!_]*.py")}
    assert {case.workload for case in full.cases} == shipped
    assert set(full.configurations) == {case.configuration for case in full.cases} - {"default"}
    assert set(full.plan().configurations) == set(full.configurations)
    assert full.select(["all_reduce/*"]).plan().configurations == {}
    controls = {case.workload for case in full.cases if "fallback" in case.expect.values()}
    assert controls >= {"all_reduce", "tensor_parallel", "ddp", "fsdp2", "checkpointing", "cuda_graph", "collectives"}


def test_pools_and_ops_are_those_of_the_workloads(project: Path) -> None:
    def keys_of(file: str, name: str) -> list[Any]:
        tree = ast.parse((project / "checks" / file).read_text(encoding="utf-8"))
        tables = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
        ]
        assert len(tables) == 1
        assert isinstance(tables[0], ast.Dict)
        return [key.value for key in tables[0].keys if isinstance(key, ast.Constant)]

    assert sorted(keys_of("pools.py", "SET_UPS")) == sorted(POOLS)
    assert sorted(keys_of("workloads/all_reduce.py", "OPS")) == sorted(OPS)


def test_a_matrix_makes_ids_in_the_declared_order_and_sizes_in_bytes(tmp_path: Path) -> None:
    suite = load(tmp_path, HEAD + CHECK)
    assert [case.id for case in suite.cases] == [
        f"probe/{pool}/{size}" for pool in ("none", "step") for size in ("8MiB", "1KiB", "512")
    ]
    first = suite.cases[0]
    assert first.axes == {"pool": "none", "size": 8 << 20, "dtype": "float32", "op": "sum"}
    assert list(first.axes) == ["pool", "size", "dtype", "op"]
    assert (first.folder, first.check, first.line, first.deadline) == ("cases/probe/none/8MiB", "probe", 6, 30.0)
    assert [case.axes["size"] for case in suite.cases[:3]] == [8 << 20, 1 << 10, 512]


def test_a_plan_holds_what_the_ranks_need_and_no_expectation(tmp_path: Path) -> None:
    suite = load(tmp_path, HEAD + CHECK)
    plan = suite.plan(ranks=4, ranks_per_gpu=2)
    assert (plan.ranks, plan.ranks_per_gpu, plan.steps, plan.warmup, plan.device) == (4, 2, 2, 1, "cuda")
    assert suite.plan().ranks == 2
    assert [(case.id, case.folder, case.axes) for case in plan.cases] == [
        (case.id, case.folder, case.axes) for case in suite.cases
    ]
    assert not {"expect", "known", "because"} & set(plan.cases[0].__struct_fields__)


def test_a_check_without_axes_is_one_case(tmp_path: Path) -> None:
    suite = load(tmp_path, HEAD + "  all: {workload: all_reduce, deadline: 1.5, expect: {backward: symmetric}}\n")
    assert [(case.id, case.axes, case.deadline) for case in suite.cases] == [("all", {}, 1.5)]


def test_the_first_exception_that_matches_is_laid_over_phase_by_phase(tmp_path: Path) -> None:
    suite = load(
        tmp_path,
        HEAD
        + CHECK
        + """\
    because: it should be
    exceptions:
      - when: {pool: none, size: [8 MiB, 512]}
        expect: {forward: fallback}
        because: a control
      - when: {pool: none}
        expect: {optimizer: fallback}
      - when: {size: 1024, dtype: float32}
        known: {forward: {issue: 'https://example.org/1', title: too small, nccl: '<2.31'}}
""",
    )
    assert expected_of(suite) == {
        "probe/none/8MiB": {"forward": "fallback", "backward": "any"},
        "probe/none/1KiB": {"forward": "symmetric", "backward": "any", "optimizer": "fallback"},
        "probe/none/512": {"forward": "fallback", "backward": "any"},
        "probe/step/8MiB": {"forward": "symmetric", "backward": "any"},
        "probe/step/1KiB": {"forward": "symmetric", "backward": "any"},
        "probe/step/512": {"forward": "symmetric", "backward": "any"},
    }
    assert [case.because for case in suite.cases] == ["a control", "it should be", "a control", *["it should be"] * 3]
    assert {case.id: case.known for case in suite.cases if case.known} == {
        "probe/step/1KiB": {"forward": (Known(issue="https://example.org/1", title="too small", nccl="<2.31"),)}
    }


@pytest.mark.parametrize(
    ("bound", "version", "holds"),
    [
        (">=2.8", "2.11.0+cu130", True),
        (">=2.8, <2.11", "2.11.0+cu130", False),
        (">=2.8", "2.7.1", False),
        ("==2.11.0", "2.11.0+cu130", True),
        ("<=2.11.0", "2.11.0+cu130", True),
        (">=2.15", "2.15.0.dev20260301+cu130", True),
        ("<2.15", "2.15.0.dev20260301+cu130", False),
        ("<2.15.0.dev20260401", "2.15.0.dev20260301+cu130", True),
        ("<2.15.0.dev20260401", "2.15.0.dev20260501", False),
        (">=2.9", "2.9.0a0+145a3a7.nv25.10", True),
        ("==2.11.*", "2.11.3", True),
        (">=2.8", None, False),
        (">=2.8", "unknown", False),
    ],
)
def test_a_known_problem_holds_for_its_versions_only(bound: str, version: str | None, holds: bool) -> None:
    assert Known(issue="", title="", torch=bound).applies(torch=version, nccl="2.30.7") is holds
    assert Known(issue="", title="", nccl=bound).applies(torch="2.11.0", nccl=version) is holds


def test_two_bounds_must_both_hold() -> None:
    known = Known(issue="", title="", torch=">=2.8", nccl="<2.30")
    assert known.applies(torch="2.9.0", nccl="2.28.9")
    assert not known.applies(torch="2.9.0", nccl="2.30.7")
    assert not known.applies(torch="2.7.0", nccl="2.28.9")


def test_select_keeps_what_matches_and_refuses_a_glob_without_a_match() -> None:
    suite = load_suite("default")
    assert suite.select([]) is suite
    assert [case.id for case in suite.select(["all*/st*"]).cases] == ["all_reduce/step", "all_reduce/static"]
    assert [case.id for case in suite.select(["all_*/static", "*/none"]).cases] == [
        "all_reduce/none",
        "all_reduce/static",
    ]
    with pytest.raises(UserError, match=r"--only 'all-reduce/\*': no case .* Its cases: all_reduce/none, "):
        suite.select(["*/step", "all-reduce/*"])


def test_a_workload_of_the_repository_is_looked_for_under_its_root(tmp_path: Path) -> None:
    suite = load(tmp_path, HEAD + CHECK.replace("all_reduce", "bench/step.py:train"))
    with pytest.raises(
        UserError, match=r"suite\.yaml, line 6: checks\.probe\.workload: there is no file 'bench/step\.py'"
    ):
        suite.plan(root=tmp_path)
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "step.py").write_text("")
    plan = suite.plan(root=tmp_path)
    assert plan.root == str(tmp_path)
    assert plan.cases[0].workload == "bench/step.py:train"


def test_an_unknown_workload_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no workload is named 'all_redcue'; did you mean \"all_reduce\""):
        load(tmp_path, HEAD + CHECK.replace("all_reduce", "all_redcue")).plan()


def test_a_suite_is_found_by_name_or_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"'defualt': no suite of that name.*did you mean \"default\""):
        load_suite("defualt")
    with pytest.raises(UserError, match=r"nowhere\.yaml: there is no such file"):
        load_suite(str(tmp_path / "nowhere.yaml"))
    with pytest.raises(UserError, match="can't be read: Is a directory"):
        load_suite(tmp_path)
    write(tmp_path, HEAD + CHECK)
    monkeypatch.chdir(tmp_path)
    assert load_suite("suite.yaml").name == "mine"


EXCEPTION = CHECK + "    exceptions:\n      - when: {pool: none}\n        expect: {backward: fallback}\n"
KNOWN = CHECK + "    known: {forward: {issue: 'https://x.org/1', title: t, torch: '>=2'}}\n"

MISTAKES = [
    # old text, new text, line, key, what the message says
    ("ranks: 2", "rank: 2", 2, "", "unknown key 'rank'; did you mean \"ranks\"? Allowed: suite, ranks, steps"),
    ("warmup: 1\n", "", 1, "", 'the key "warmup" is missing'),
    ("ranks: 2", "ranks: 2\nranks: 4", 3, "ranks", "stands twice; the first is in line 2"),
    ("ranks: 2", "ranks: two", 2, "ranks", "must be a whole number, and is 'two'"),
    ("ranks: 2", "ranks: 1", 2, "ranks", "must be at least 2, and is 1"),
    ("ranks: 2", "ranks: 010", 2, "ranks", "must be a whole number, and is a number ('010')"),
    ("ranks: 2", "ranks: 1:30", 2, "ranks", "must be a whole number"),
    ("ranks: 2", "ranks: 2.0", 2, "ranks", "must be a whole number"),
    ("ranks: 2", "ranks: [2]", 2, "ranks", "must be a whole number, and is a list"),
    ("ranks: 2", "ranks: !!python/object:os.system 2", 2, "ranks", "must be a whole number"),
    ("steps: 2", "steps: 0", 3, "steps", "must be at least 1"),
    ("steps: 2", "steps: 99999999999999999999999", 3, "steps", "must be a whole number"),
    ("warmup: 1", "warmup: -1", 4, "warmup", "must be at least 0"),
    ("suite: mine", "suite: my suite", 1, "suite", "must be a name of letters, digits"),
    ("suite: mine", "suite: no", 1, "suite", "must be a name, and is true or false ('no')"),
    ("  probe:", "  ..:", 6, "checks...", "the name of a check may have"),
    ("  probe:", "  a/b:", 6, "checks.a/b", "the name of a check may have"),
    ("  probe:", "  ? [a]\n  :", 6, "checks", "must be a key, and is a list"),
    ("deadline: 30", "deadline: 0", 8, "checks.probe.deadline", "seconds above 0"),
    ("deadline: 30", "deadline: .inf", 8, "checks.probe.deadline", "seconds above 0"),
    ("deadline: 30", "deadline: 1m", 8, "checks.probe.deadline", "seconds above 0, and is '1m'"),
    ("deadline: 30", "dead_line: 30", 8, "checks.probe", 'did you mean "deadline"?'),
    ("workload: all_reduce", "workload: ../x.py:f", 7, "checks.probe.workload", "inside the repository"),
    ("workload: all_reduce", "workload: /x.py:f", 7, "checks.probe.workload", "inside the repository"),
    ("workload: all_reduce", "workload: x.py", 7, "checks.probe.workload", "path/to/file.py:function"),
    ("workload: all_reduce", "workload: x.sh:f", 7, "checks.probe.workload", "path/to/file.py:function"),
    ("workload: all_reduce", "workload:", 7, "checks.probe.workload", "must be a workload, and is empty"),
    ("[none, step]", "[none, stpe]", 10, "checks.probe.matrix.pool[1]", "unknown value 'stpe'; did you mean \"step\"?"),
    ("[none, step]", "[none, none]", 10, "checks.probe.matrix.pool[1]", "the value 'none' stands twice"),
    ("[none, step]", "[]", 10, "checks.probe.matrix.pool", "has no value"),
    ("[none, step]", "none", 10, "checks.probe.matrix.pool", "must be a list, and is 'none'"),
    ("[none, step]", "[on]", 10, "checks.probe.matrix.pool[0]", "is true or false ('on'); put quotes around it"),
    ("pool: [none, step]", "Pool: [none]", 10, "checks.probe.matrix.Pool", "the name of an axis"),
    ("8 MiB", "8 MB", 11, "checks.probe.matrix.size[0]", "unit (B, KiB, MiB, GiB)"),
    ("8 MiB", "0", 11, "checks.probe.matrix.size[0]", "must be at least 1"),
    ("512", "1024", 11, "checks.probe.matrix.size[2]", "means the same as an earlier one"),
    ("[8 MiB, 1KiB, 512]", "[1]\n      note: ['a b']", 12, "checks.probe.matrix.note[0]", "can't be part of an id"),
    ("[8 MiB, 1KiB, 512]", "[1]\n      note: ['..']", 12, "checks.probe.matrix.note[0]", "can't be part of an id"),
    ("[8 MiB, 1KiB, 512]", "[1]\n      note: [a, A]", 5, "checks", "differ in capitals only"),
    ("{dtype: float32, op: sum}", "{pool: step}", 12, "checks.probe.fixed.pool", "is an axis of the matrix too"),
    ("{dtype: float32, op: sum}", "{dtype: bf16}", 12, "checks.probe.fixed.dtype", "Allowed: bfloat16, float16"),
    ("{dtype: float32, op: sum}", "{op: plus}", 12, "checks.probe.fixed.op", "Allowed: sum, avg"),
    ("{dtype: float32, op: sum}", "{x: 1.5}", 12, "checks.probe.fixed.x", "must be text or a whole number"),
    ("{dtype: float32, op: sum}", "{x: 2024-01-01}", 12, "checks.probe.fixed.x", "is a date ('2024-01-01')"),
    ("expect: {forward", "expect: {foward", 13, "checks.probe.expect", 'did you mean "forward"?'),
    ("forward: symmetric", "forward: symetric", 13, "checks.probe.expect.forward", 'did you mean "symmetric"?'),
    ("{forward: symmetric, backward: any}", "{}", 13, "checks.probe.expect", "names no phase"),
    ("    expect: {forward: symmetric, backward: any}\n", "", 6, "checks.probe", 'the key "expect" is missing'),
    ("when: {pool: none}", "when: {pol: none}", 15, "checks.probe.exceptions[0].when", 'did you mean "pool"?'),
    ("when: {pool: none}", "when: {pool: static}", 15, "checks.probe.exceptions[0].when.pool", "not among the values"),
    ("when: {pool: none}", "when: {}", 15, "checks.probe.exceptions[0].when", "would match every case"),
    ("        expect: {backward: fallback}\n", "", 15, "checks.probe.exceptions[0]", "changes nothing"),
    (
        "        expect: {backward: fallback}\n",
        "        because: a\n      - {when: {pool: none, size: 512}, because: b}\n",
        17,
        "checks.probe.exceptions[1]",
        "never applies",
    ),
    ("torch: '>=2'", "", 14, "checks.probe.known.forward", "needs a bound on the versions"),
    ("torch: '>=2'", "torch: 'since 2'", 14, "checks.probe.known.forward.torch", "is no version bound"),
    ("torch: '>=2'", "torch: '==2+cu130'", 14, "checks.probe.known.forward.torch", "labels are ignored"),
    ("torch: '>=2'", "torch: ''", 14, "checks.probe.known.forward.torch", "is empty"),
    ("torch: '>=2'", "torch: 2.8", 14, "checks.probe.known.forward.torch", "must be a version bound"),
    ("title: t,", "", 14, "checks.probe.known.forward", 'the key "title" is missing'),
    ("title: t,", 'title: "a\\nb",', 14, "checks.probe.known.forward.title", "must be one line of text"),
    ("https://x.org/1", "javascript:alert(1)", 14, "checks.probe.known.forward.issue", "must be the URL of the issue"),
    ("known: {forward", "known: {optimizer", 6, "checks.probe", 'stands in no "expect"'),
    ("forward: symmetric", "forward: fallback", 6, "checks.probe", "expected to fall back anyway"),
]


def mistake_text(old: str, new: str, key: str, says: str) -> str:
    """The file that has the text to be replaced: with an exception, or with a known problem, or plain."""
    exception = "exceptions" in key or "when:" in old or "backward: fallback" in old
    known = "known" in key or "known" in old or says in ('stands in no "expect"', "expected to fall back anyway")
    text = HEAD + (EXCEPTION if exception else KNOWN if known else CHECK)
    assert text.count(old) == 1, f"{old!r} must stand once"
    return text.replace(old, new)


@pytest.mark.parametrize(("old", "new", "line", "key", "says"), MISTAKES)
def test_a_mistake_is_told_with_file_line_and_key(
    tmp_path: Path, old: str, new: str, line: int, key: str, says: str
) -> None:
    text = mistake_text(old, new, key, says)
    with pytest.raises(UserError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'suite.yaml'}, line {line}: {key + ': ' if key else ''}")
    assert says in message
    assert message.isprintable()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("- a\n", "line 1: must be a mapping"),
        ("suite: [a\n", "line 2: not valid YAML: while parsing a flow sequence"),
        ("suite: a\n\tranks: 2\n", "line 2: not valid YAML"),
        ("suite: a\n---\nsuite: b\n", "line 2: not valid YAML: expected a single document"),
        ("suite: &a mine\nranks: *a\n", r"line 1: anchors \(&\) and aliases \(\*\) are not allowed"),
        ("a: [" + "[" * 100_000, "line 1: nested deeper than 20"),
        ("suite: \x00\n", "not valid YAML"),
        (HEAD + "  {}\n", "line 5: checks: no check stands here"),
        (HEAD, "line 5: checks: must be a mapping .* and is empty"),
    ],
)
def test_what_is_no_suite_is_told_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "suite.yaml"))
    assert str(caught.value).isprintable()


def test_bytes_that_are_not_utf8_and_a_huge_file_are_told(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_bytes(b"suite: a\nranks: \xff\n")
    with pytest.raises(UserError, match="line 2: not UTF-8"):
        load_suite(path)
    path.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(UserError, match="above 1 MiB"):
        load_suite(path)


@given(st.data())
def test_a_file_with_any_one_line_broken_never_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lines = (HEAD + EXCEPTION + KNOWN[len(CHECK) :]).splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    start, end = sorted(data.draw(st.integers(0, len(lines[number]))) for _ in range(2))
    junk = data.draw(st.text(alphabet="abz019:-[]{}&*!?|>%@`\"'#, \t~\x07é\n", max_size=6))
    lines[number] = lines[number][:start] + junk + lines[number][end:]
    path = write(tmp_path_factory.getbasetemp(), "\n".join(lines))
    try:
        suite = load_suite(path)
    except UserError as error:
        assert str(error).startswith(str(path))
        assert str(error).isprintable()
    else:
        ids = [case.id for case in suite.cases]
        assert len(set(ids)) == len(ids)
        assert all(re.fullmatch(r"[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)*", name) for name in ids)
