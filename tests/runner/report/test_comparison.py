"""The comparison with a baseline, in the step summary and at the terminal."""

from __future__ import annotations

import io
import itertools

import msgspec
from hypothesis import given
from markdown_it import MarkdownIt

from runner.comparison import Changed, ChangedExpectation, Comparison, Difference, PerStep
from runner.report.comparison import print_comparison, summary
from runner.report.markdown import summary_markdown
from tests.runner.report.factory import coverage, first_light, harmful

BEFORE, AFTER = PerStep(4, 0, 0, 0), PerStep(1.5, 2.5, 0, 0)


def comparison(text: str = "base.json") -> Comparison:
    """A comparison with a difference of either kind of key, and `text` where a name can stand."""
    return Comparison(
        file=text, version="0.1.0", created=text, coverage={"backward": coverage(4)},
        versions=[Changed("PyTorch", "2.11.0", text)],
        expectations=[ChangedExpectation(case=text, phase="backward", before="symmetric", after=None)],
        differences=[
            Difference(change="regressed", case=text, phase="backward", before=BEFORE, after=AFTER, sentence=text),
            Difference(
                change="new", phase="forward", kind="all_reduce", group=text, group_size=8, dtype=text, before=None,
                after=BEFORE, sentence=text,
            ),
        ],
        same=1, notes=[text],
    )  # fmt: skip


def rows(document: str) -> list[list[str]]:
    """The cells of the baseline's table, as GitHub's Markdown has them."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(document)
    cells: list[list[str]] = []
    for token, inside in itertools.pairwise(tokens):
        if token.type == "tr_open":
            cells.append([])
        elif token.type in ("td_open", "th_open"):
            cells[-1].append(inside.content)
    start = next(number for number, row in enumerate(cells) if row[0] == "change")
    return [row for row in cells[start:] if len(row) == 6]


def test_the_summary_has_the_differences_and_the_coverage_before() -> None:
    document = summary_markdown(msgspec.structs.replace(first_light(), baseline=comparison()))
    assert "| backward | **50 %** (baseline 100 %) | 4 of 8 calls |" in document
    assert "| forward | **100 %** | 8 of 8 calls |" in document
    assert "never by time: 1 regressed, 1 new, 1 as it was." in document
    assert rows(document) == [
        ["change", "what", "symmetric", "fell back", "not eligible", "unknown"],
        ["**regressed**", "`base.json backward`", "4 → 1.5", "0 → 2.5", "0", "0"],
        ["new", "`forward all_reduce base.json in group base.json of 8 ranks`", "– → 4", "– → 0", "– → 0", "– → 0"],
    ]
    assert "- also changed: PyTorch 2.11.0 → base.json\n" in document
    assert "excuses nothing: base.json backward: symmetric → not judged\n" in document


def test_without_a_baseline_there_is_no_word_of_it() -> None:
    assert "baseline" not in summary_markdown(first_light())


def test_why_nothing_was_compared_is_told() -> None:
    apart = Comparison(file="base.json", incomparable=["ranks: 2 in the baseline, 4 here"])
    assert summary(apart) == "incomparable: ranks: 2 in the baseline, 4 here"
    assert "ranks: 2 in the baseline, 4 here." in summary_markdown(
        msgspec.structs.replace(first_light(), baseline=apart)
    )


@given(harmful)
def test_no_name_breaks_out_of_the_table(text: str) -> None:
    document = summary_markdown(msgspec.structs.replace(first_light(), baseline=comparison(text)))
    assert len(rows(document)) == 3


@given(harmful)
def test_at_the_terminal_a_difference_is_one_line_without_commands(text: str) -> None:
    out = io.StringIO()
    print_comparison(comparison(text), out)
    told = out.getvalue()
    assert len(told.splitlines()) == 8
    assert not any(ord(char) < 32 and char != "\n" for char in told)
