"""Documents that are too long: what is dropped first, that it is told, and that nothing is cut in the middle."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.comparison import Comparison, Difference, PerStep
from runner.report import limits
from runner.report.limits import FOOT, fitted, item, part
from runner.report.markdown import comment_markdown, summary_markdown
from runner.result import BandwidthRow, Environment, Result
from runner.script_result import Fallen, ScriptResult, ScriptRow

from .factory import CAUSE, ENVIRONMENT, case, coverage, filled_with, first_light, harmful, kernel, phase, result
from .test_markdown import parsed, rows_as_written, tables

MARKER = "<!-- symmem-check key=default sha=aa run=1 attempt=1 -->"
WHERE = "elsewhere is all of it"


def comment(of: Result, **more: Any) -> str:
    return comment_markdown(of, marker=MARKER, sha="a" * 40, **more)


def document(*parts: tuple[int, str, int]) -> str:
    """Parts of so many items, each item ten characters: `name` and a number."""
    texts = [
        part(rank, name) + f"<{name}>\n" + "".join(item() + f"{name}{number:>8}\n" for number in range(items))
        + FOOT + f"</{name}>\n"
        for rank, name, items in parts
    ]  # fmt: skip
    return "".join(texts)


def test_what_fits_is_whole() -> None:
    text = fitted(document((0, "a", 2), (3, "b", 1)), 1000, len, WHERE)
    assert text == "<a>\na       0\na       1\n</a>\n<b>\nb       0\n</b>\n"


def test_the_highest_rank_goes_first_item_by_item_and_the_last_of_them_first() -> None:
    text = fitted(document((0, "a", 5), (2, "b", 9), (1, "c", 5)), 200, len, WHERE)
    assert len(text) <= 200
    assert text.count("a  ") == 5 and text.count("c  ") == 5
    kept = text.count("b  ")
    assert 0 < kept < 9
    assert f"_{9 - kept} more b: {WHERE}._" in text and f"b       {kept}\n" not in text
    assert "</b>" in text


def test_a_part_without_items_left_goes_whole_and_is_named() -> None:
    text = fitted(document((0, "a", 1), (1, "c", 3), (2, "b", 9)), 114, len, WHERE)
    assert "<b>" not in text and text.count("c  ") == 3
    assert text.endswith(f"_Left out for length: b (9); {WHERE}._\n")


def test_within_a_part_the_weight_decides_and_the_order_stays() -> None:
    rows = "".join(
        item(weight) + f"{name}\n" for weight, name in ((2, "p" * 50), (0, "fail"), (2, "also"), (1, "known"))
    )
    text = fitted(part(1, "cases") + "head\n" + rows, 50, len, "more")
    assert text == "head\nfail\nknown\n\n_2 more cases: more._\n"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcdef"), st.integers(0, 12)), min_size=1, max_size=6),
    st.integers(400, 1500),
)
def test_it_fits_and_no_part_is_cut(parts: list[tuple[int, str, int]], limit: int) -> None:
    text = fitted(document(*parts), limit, len, WHERE)
    essential = sum(len(limits.parts_of(document(one))[0].text(one[2], WHERE)) for one in parts if one[0] == 0)
    if essential < limit - 200:
        assert len(text) <= limit
    assert not re.search("[\x1c-\x1f]", text)
    for name in "abcdef":
        assert text.count(f"<{name}>") == text.count(f"</{name}>")
    shown = sum(len(re.findall(rf"^{name}  ", text, re.MULTILINE)) for name in "abcdef")
    told = sum(map(int, re.findall(r"_(\d+) more", text))) + sum(map(int, re.findall(r"\((\d+)\)", text)))
    assert shown + told == sum(items for _, _, items in parts)


def large(cases: int = 900, filling: str = "") -> Result:
    troubles: dict[str, Any] = {"trouble": "raised", "detail": "line |\n```\n" * 200}
    made = [
        case(
            f"p{n}", phase("forward", "fail" if n == cases - 1 else "pass", fallback=4, message=f"{n} {filling}"),
            phase("backward", "error", message=f"no {n} {filling}", cause=CAUSE), **troubles,
        )
        for n in range(cases)
    ]  # fmt: skip
    return result(*made, word="fail", notes=[f"note {n} {filling}" for n in range(300)])


def whole(text: str) -> None:
    """Assert that every tag, fence and table in it is whole."""
    fences = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", text)
    assert "```" not in fences
    tokens = [part for token in parsed(text) for part in [token, *(token.children or [])]]
    tags = re.findall("</?[a-z]+", "".join(one.content for one in tokens if one.type in ("html_block", "html_inline")))
    for tag in ("details", "summary", "sub"):
        assert tags.count(f"<{tag}") == tags.count(f"</{tag}")
    assert not re.search("[\x1c-\x1f]", text)
    for table in tables(text):
        assert len({len(row) for row in table}) == 1 and len(table) > 1
    assert set(rows_as_written(fences)) <= {2, 3, 5, 6, 9, 11}


def test_a_comment_stays_below_githubs_limit_and_keeps_what_fails() -> None:
    text = comment(large(filling="é😀" * 40))
    assert 50_000 < limits.characters(text) <= 65_536
    whole(text)
    assert text.startswith(f"{MARKER}\n## symmem-check: FAIL\n")
    assert re.search(r"_\d+ more findings: the summary of its run has all of it\._", text)
    assert "Left out for length: cases (900)" in text and "facts of the environment" in text


def test_a_summary_stays_below_githubs_limit() -> None:
    text = summary_markdown(large(cases=700))
    assert 900_000 < len(text.encode()) < 1_000_000
    whole(text)
    assert re.search(r"_\d+ more tracebacks: result\.json has all of it\._", text)
    assert len(tables(text)[0]) == 701 and text.count("\n- **error**") == 700


@settings(deadline=None, max_examples=30)
@given(harmful.map(lambda text: text * 40), st.sampled_from([2000, 20_000, 65_536]))
def test_hostile_text_is_shortened_whole_too(text: str, limit: int) -> None:
    shortened = fitted_comment(filled_with(text), limit)
    whole(shortened)
    if limit == 65_536:
        assert limits.characters(shortened) <= limit


def fitted_comment(of: Result, limit: int) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "COMMENT_LIMIT", limit)
        return comment(of)


def test_the_longest_verdict_alone_fits() -> None:
    long = "@" * 100_000
    text = comment(filled_with(long), run_url="https://github.com/" + "a" * 400, fork=True)
    assert limits.characters(text) <= 65_536
    whole(text)


def test_the_comment_folds_its_cases_and_leaves_out_kernels() -> None:
    text = comment(first_light(), run_url="https://github.com/o/r/actions/runs/1")
    assert "<details><summary>All 4 cases</summary>\n\n| case |" in text
    assert "Kernels by" not in text and "Controls" not in text
    assert "Of commit aaaaaaaaaaaa; [its run](https://github.com/o/r/actions/runs/1) has the summary" in text
    assert "README.md" not in text
    assert "[symmetric memory](https://x.example/README.md#w)" in comment(
        first_light(), glossary="https://x.example/README.md#w"
    )


def compared(*changes: Difference, **more: Any) -> Result:
    return msgspec.structs.replace(first_light(), baseline=Comparison(file="b.json", differences=[*changes], **more))


LOST = Difference(
    change="regressed", case="all_reduce/static", phase="backward", before=PerStep(2, 0, 0, 0),
    after=PerStep(0, 2, 0, 0), sentence="2 of 2 were symmetric, and none is",
)  # fmt: skip


def test_against_a_baseline_what_changed_is_on_top_and_the_rest_folded() -> None:
    for text in (comment(compared(LOST, same=7)), summary_markdown(compared(LOST, same=7))):
        found = tables(text)
        changes = next(table for table in found if table[0][0] == "change")
        assert changes[1][:3] == ["**regressed**", "`all_reduce/static backward`", "2 → 0"]
        top, rest = (table for table in found if table[0][0] == "case" and len(table[0]) == 3)
        assert [row[0] for row in top[1:]] == ["`all_reduce/static`"] and len(rest) == 4
        assert "<details><summary>3 cases as before</summary>" in text
        assert text.index("Against the baseline") < text.index("### Cases") < text.index("as before")
        whole(text)
    same = comment(compared(same=8))
    assert "4 cases as before" in same and "### Cases" not in same
    other = summary_markdown(compared(incomparable=["NVIDIA A100, not H200"]))
    assert "as before" not in other and "### Cases" in other


def test_what_regressed_is_left_out_last() -> None:
    new = [msgspec.structs.replace(LOST, change="new", before=None, case=f"new/{n}") for n in range(3000)]
    text = comment(compared(*new, LOST, same=7, expectations=[]))
    whole(text)
    assert limits.characters(text) <= 65_536
    assert "**regressed**" in text and re.search(r"_\d+ more differences: ", text)


def test_an_address_that_could_end_its_link_is_no_link() -> None:
    assert "](" not in comment(result(), run_url="https://github.com/o/r) [x](https://evil.example")


def test_a_script_has_its_tables() -> None:
    rows = [
        ScriptRow(
            phase="backward", kind="all_reduce", group=f"group {n}", group_size=2, dtype="bfloat16", calls_per_step=2,
            coverage=coverage(0, 4), kernels=[kernel(False)],
        )
        for n in range(400)
    ]  # fmt: skip
    fallen = [
        Fallen(
            phase="backward", kind="all_reduce", group="dp", group_size=2, dtype="bfloat16", bytes=8, calls_per_step=1,
            op="op", module="layers.0", kernel=None, cause=CAUSE,
        )
    ]  # fmt: skip
    of = result(script=ScriptResult(command=["train.py"], ranks=2, steps=1, warmup=1, rows=rows, fallen=fallen))
    whole(comment(of))
    text = fitted_comment(of, 8000)
    whole(text)
    assert limits.characters(text) <= 8000
    assert re.search(r"_\d+ more rows of collectives: ", text) and "#### Fell back" in text
    assert "**Do this:** enter the pool" in text


def test_time_and_bandwidth_are_shown_where_ranks_have_their_own_gpus() -> None:
    row = BandwidthRow(
        kind="all_reduce", bytes=8 * 2**20, symmetric_us=50.0, general_us=100.04, symmetric_gbps=160.0,
        general_gbps=80.0,
    )  # fmt: skip
    one = case("a", phase("forward", symmetric=4), bandwidth=[row])
    alone = Environment(ranks=2, ranks_per_gpu=1, hosts=1)
    (table,) = [table for table in tables(summary_markdown(result(one, environment=alone))) if "size" in table[0]]
    assert table[1] == ["`all_reduce`", "8 MiB", "50.0", "100.0", "160.0", "80.0"]
    text = summary_markdown(result(one, environment=alone))
    assert "- all_reduce: symmetric is faster at every size (up to 2.0 times, at 8 MiB)\n" in text
    assert "bus bandwidth" not in summary_markdown(result(one, environment=ENVIRONMENT))


def test_the_parts_are_those_of_a_document_that_github_reads() -> None:
    assert [token.type for token in parsed(comment(first_light()))][:2] == ["html_block", "heading_open"]
