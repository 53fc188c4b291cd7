"""Text from traces is made fit for where it is shown."""

from __future__ import annotations

import html
import unicodedata

import pytest
from hypothesis import given
from markdown_it import MarkdownIt

from runner.report.text import (
    clean,
    code,
    cut,
    fence,
    is_issue_url,
    issue_link,
    markdown,
    one_line,
    spreadsheet,
)

from .factory import ISSUE, harmful


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;https://evil.example\x07click\x1b]8;;\x1b\\", "click"),
        ("\x9b2Jgone", "gone"),
        ("a\x00b\x07c\x7fd", "abcd"),
        ("half \ud800 character", "half  character"),
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("tab\tstays", "tab\tstays"),
        ("\u202eesrever", "esrever"),
        ("\ufffe\U0010ffff", ""),
        ("中文 😀 é", "中文 😀 é"),
    ],
)
def test_clean(text: str, wanted: str) -> None:
    assert clean(text) == wanted


@given(harmful)
def test_clean_leaves_no_control_and_no_half_character(text: str) -> None:
    left = {char for char in clean(text) if unicodedata.category(char) in ("Cc", "Cs")}
    assert left <= {"\n", "\t"}
    clean(text).encode()


def test_one_line_is_cut_visibly() -> None:
    assert one_line(" a\n b\t c ") == "a b c"
    assert one_line("x" * 10_000, 20) == "x" * 19 + "…"


def test_cut_keeps_the_end_where_the_error_is() -> None:
    lines = "\n".join(f"line {number}" for number in range(1000))
    short = cut(lines, 400)
    assert short.startswith("line 0\n") and short.endswith("line 999")
    assert "characters left out" in short and len(short) < 500


@pytest.mark.parametrize(
    "text",
    [
        "a|b", "`a`", "<b>bold</b>", "&amp; &#64;", "**a** _b_ __c__ ~~d~~", "[a](https://b.example)", "![a](b)",
        "a\\b", "$x$", "- item", "+ item", "12. item", "3) item", "# title", "> quote", "all_reduce/step",
        "torch 2.11.0+cu130 \"x\" 'y'", "std::vector<int>::at", "<!-- -->", "</details>",
    ],
)  # fmt: skip
def test_markdown_shows_the_text_itself(text: str) -> None:
    shown = MarkdownIt("gfm-like").disable("linkify").render(f"{markdown(text)}\n")
    assert shown.startswith("<p>") and shown.endswith("</p>\n")
    assert "<" not in shown[3:-5]
    assert html.unescape(shown[3:-5]).replace("\u2060", "") == text


@pytest.mark.parametrize(
    "text",
    [
        "@octocat",
        "#123",
        "pytorch/pytorch#167353",
        "GH-12",
        "http://a.example",
        "www.a.example",
        "a@b.example",
        ":tada:",
    ],
)
def test_markdown_makes_no_link_of_text(text: str) -> None:
    # GitHub looks for these in the text it has rendered, so an entity alone would not do.
    shown = html.unescape(str(markdown(text)))
    assert text not in shown
    assert shown.replace("\u2060", "") == text


def test_markdown_leaves_plain_text_readable() -> None:
    assert markdown("fell back in 2 of 4 calls, because NCCL 2.26 has none (all_reduce)") == (
        "fell back in 2 of 4 calls, because NCCL 2.26 has none (all_reduce)"
    )


def test_code() -> None:
    assert code("f(a<4096ul>)") == "`f(a<4096ul>)`"
    assert code("a|b") == "<code>a&#124;b</code>"
    assert code("`") == "<code>&#96;</code>"
    assert code("") == ""


@given(harmful)
def test_a_fence_is_ended_by_its_own_end_only(text: str) -> None:
    (block,) = MarkdownIt().parse(fence(text))
    assert block.type == "fence"
    assert block.content.rstrip("\n") == cut(text).rstrip("\n")


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        (ISSUE, f"[pytorch#167353]({ISSUE})"),
        ("https://github.com/NVIDIA/nccl/pull/12", "[nccl#12](https://github.com/NVIDIA/nccl/pull/12)"),
        ("https://bugs.example.org/x-1", "[https://bugs.example.org/x-1](https://bugs.example.org/x-1)"),
    ],
)
def test_an_issue_becomes_a_link(url: str, wanted: str) -> None:
    assert issue_link(url) == wanted


@pytest.mark.parametrize(
    "url",
    [
        "http://github.com/a/b/issues/1", "javascript:alert(1)", "https://a.example/)[x](b", "https://a.example/\n",
        "https://user@a.example/", "https://a.example/?q=<script>", "https://a.example:8080/x", "https://localhost/x",
        "", "https://a.example/" + "x" * 300, "https://еxample.org/x",
    ],
)  # fmt: skip
def test_no_other_text_becomes_a_link(url: str) -> None:
    assert not is_issue_url(url)
    assert "](" not in issue_link(url) and "://" not in issue_link(url)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\n=1", "\x1b[0m=1"])
def test_a_spreadsheet_runs_no_formula(text: str) -> None:
    assert spreadsheet(text).startswith("'")


def test_a_spreadsheet_shows_other_text_as_it_is() -> None:
    assert spreadsheet("ncclDevKernel_AllReduce(a, b)") == "ncclDevKernel_AllReduce(a, b)"
