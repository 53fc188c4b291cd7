"""The step summary: what it says, and that no name in it is more than text."""

from __future__ import annotations

import html
import re
from typing import Any

import msgspec
from hypothesis import given, settings
from markdown_it import MarkdownIt
from markdown_it.token import Token

from runner.report import words
from runner.report.markdown import summary_markdown
from runner.report.text import is_issue_url
from runner.result import Result, StartResult

from .factory import CAUSE, ISSUE, KNOWN, case, coverage, filled_with, first_light, harmful, phase, result


def parsed(document: str) -> list[Token]:
    return MarkdownIt("gfm-like").disable("linkify").parse(document)


def tables(document: str) -> list[list[list[str]]]:
    """The tables that a renderer of GitHub's Markdown sees, as rows of cells."""
    found: list[list[list[str]]] = []
    in_table = False
    for token in parsed(document):
        in_table = token.type == "table_open" or (in_table and token.type != "table_close")
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and in_table:
            found[-1][-1].append(token.content)
    return found


def rows_as_written(document: str) -> list[int]:
    """The numbers of cells of the lines that are a table's, by GitHub's own rule: only `\\|` is no border."""
    lines = [line for line in document.splitlines() if line.startswith("| ")]
    return [len(re.split(r"(?<!\\)\|", line)) - 2 for line in lines]


def test_the_verdict_comes_first() -> None:
    lines = summary_markdown(first_light()).splitlines()
    assert lines[0] == "## symmem-check: PASS"
    assert lines[2] == "All 8 phases are as expected (1 with a known problem)."


def test_the_tables() -> None:
    found = tables(summary_markdown(first_light()))
    assert found[0][1:] == [["forward", "**100 %**", "8 of 8 calls"], ["backward", "**50 %**", "4 of 8 calls"]]
    general, symmetric = "fell back `RING_LL`", "symmetric `RSxLD_AGxST`"
    assert found[1] == [
        ["case", "forward", "backward"],
        ["`all_reduce/none`", f"pass (control): {general}", f"pass (control): {general}"],
        ["`all_reduce/step`", f"pass: {symmetric}", f"**known**: {general}"],
        ["`all_reduce/static`", f"pass: {symmetric}", f"pass: {symmetric}"],
        ["`all_reduce/registered-not-symmetric`", f"pass (control): {general}", f"pass (control): {general}"],
    ]


def test_the_optimizer_gets_a_column_where_it_is_judged() -> None:
    document = summary_markdown(result(case("a", phase("optimizer", symmetric=1))))
    assert tables(document)[0] == [
        ["case", "forward", "backward", "optimizer"],
        ["`all_reduce/a`", "not judged", "not judged", "pass: symmetric `RSxLD_AGxST`"],
    ]


def test_a_fallback_is_told_with_cause_mend_evidence_and_issue() -> None:
    document = summary_markdown(first_light())
    at = document.index("### What to know")
    assert document[at:].splitlines()[2:5] == [
        "- **known**: `all_reduce/step` backward: fell back, because the buffer lies outside the pool. "
        "**Do this:** enter the pool inside the Function's backward. "
        f"Known upstream: [pytorch#167353]({ISSUE}), {KNOWN.title}.",
        "  - 2 of the ranks' all_reduce buffers outside the pool",
        "  - used on autograd's thread",
    ]


def test_controls_are_folded() -> None:
    document = summary_markdown(first_light())
    controls = document[document.index("<details><summary>Controls: 4 ") :].split("</details>")[0]
    assert "- `all_reduce/none` forward: a control: in no pool\n" in controls
    assert controls.count("\n- ") == 4
    before = document[: document.index("<details>")]
    assert "a control: in no pool" not in before


def test_nothing_to_know_makes_no_heading() -> None:
    document = summary_markdown(result(case("a", phase("forward", symmetric=4))))
    assert "### What to know" not in document and "Controls" not in document


def test_an_errors_detail_is_folded_and_whole() -> None:
    detail = "Traceback (most recent call last):\n  File <x>\n```\nValueError: |"
    troubled = case("a", phase("forward", "error", message="rank 0 raised"), trouble="rank 0 raised", detail=detail)
    document = summary_markdown(result(troubled, word="fail"))
    assert "<details><summary>What all_reduce/a wrote: rank 0 raised</summary>\n\n````text\n" in document
    (block,) = [token for token in parsed(document) if token.type == "fence"]
    assert block.content == detail + "\n"


def test_a_replay_is_marked_at_the_top() -> None:
    document = summary_markdown(result(replay=True))
    assert document.startswith("## symmem-check: PASS (replay)\n")
    assert document.index(words.REPLAY) < document.index("symmetric memory")
    assert words.REPLAY not in summary_markdown(result())


def test_the_words_are_explained_by_a_link_where_its_address_is_known() -> None:
    assert "symmetric memory" in summary_markdown(result()) and "README.md" not in summary_markdown(result())
    elsewhere = summary_markdown(result(), glossary="https://docs.example/words")
    assert "[symmetric memory](https://docs.example/words)" in elsewhere and "README.md" not in elsewhere


def test_notes_tell_of_shared_gpus_salvaged_traces_and_broken_starts() -> None:
    own = msgspec.structs.replace(first_light().environment, ranks_per_gpu=1)
    starts = [
        StartResult(number=0, cases=[], ended="died", message="rank 1 died"),
        StartResult(number=1, cases=[], ended="finished"),
    ]
    noted = result(case("a", phase("forward", symmetric=1), notes=["salvaged"]), starts=starts, notes=["of the run"])
    notes = summary_markdown(noted).partition("### Notes\n\n")[2].split("\n\n")[0].splitlines()
    assert notes == [
        f"- {words.SHARED_GPU}", "- of the run", "- all_reduce/a: salvaged", "- start 0 of the ranks: rank 1 died"
    ]  # fmt: skip
    assert "### Notes" not in summary_markdown(result(case("a", phase("forward", symmetric=1)), environment=own))


def test_the_environment_is_what_was_loaded() -> None:
    environment = tables(summary_markdown(first_light()))[-1]
    assert ["NCCL, as loaded", "`2.30.7 (torch was built with 2.28.9)`"] in environment
    assert ["GPU", "`NVIDIA H200 (capability 9.0)`"] in environment
    assert ["NCCL_DEBUG", "`WARN`"] in environment


def test_kernels_by_their_full_names() -> None:
    kernels = tables(summary_markdown(first_light()))[2]
    assert kernels[1] == [
        "`all_reduce/none`", "forward", "4",
        "`ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)`", "nccl",
    ]  # fmt: skip


def test_a_run_that_could_not_begin() -> None:
    phases = [phase(name, "unmeasured", message="no torch") for name in ("forward", "backward")]
    cases = [case(str(number), *phases, trouble="no torch") for number in range(12)]
    none = {"forward": coverage(), "backward": coverage()}
    document = summary_markdown(result(*cases, word="unmeasured", sentence="Nothing: no torch.", coverage=none))
    assert "\n- **unmeasured**: all 12 cases: no torch.\n" in document
    assert "| forward | **n/a** | nothing was measured |" in document
    assert "| `all_reduce/0` | **unmeasured** | **unmeasured** |" in document
    assert words.SHARED_GPU not in document


def test_of_many_cases_with_one_reason_eight_are_named() -> None:
    cases = [case(str(number), phase("forward", "incapable", message="no multicast")) for number in range(12)]
    document = summary_markdown(result(*cases, case("a", phase("forward", symmetric=1))))
    assert document.count("no multicast") == 1
    assert "`all_reduce/7` forward and 4 more: no multicast." in document


def active(document: str) -> set[str]:
    """The sorts of markup in a document, and where its links go."""
    found = set()
    for token in parsed(document):
        for part in [token] if token.children is None else token.children:
            found.add(part.type)
            found |= {f"{part.type} {part.attrs[name]}" for name in ("href", "src") if name in part.attrs}
            if part.type in ("html_inline", "html_block"):
                found |= set(re.findall(r"<[^>]*>", part.content))
    return found


PLAIN = active(summary_markdown(filled_with("plain"))) | {"<code>", "</code>", "html_inline", "code_inline"}


@settings(deadline=None)
@given(harmful.filter(lambda text: not is_issue_url(text)))
def test_no_text_becomes_markup(text: str) -> None:
    document = summary_markdown(filled_with(text))
    assert active(document) <= PLAIN
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", document)
    page = MarkdownIt("gfm-like").disable("linkify").render(document)
    assert "<script" not in page
    # GitHub makes links of these after rendering, everywhere but in code and in links.
    prose = html.unescape(re.sub(r"(?s)<(code|a)\b.*?</\1>", "", page))
    assert not re.search(r"@\w|#\d|GH-\d|://|www\.|:tada:", prose)


@settings(deadline=None)
@given(harmful)
def test_no_text_breaks_a_table(text: str) -> None:
    document = summary_markdown(filled_with(text))
    found = tables(document)
    assert [len(table) for table in found[:3]] == [3, 9, 33] and len(found) == 4
    assert [{len(row) for row in table} for table in found] == [{3}, {3}, {5}, {2}]
    fence = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", document)
    assert set(rows_as_written(fence)) == {2, 3, 5}


def test_a_thousand_long_tracebacks_stay_below_githubs_limit() -> None:
    long: dict[str, Any] = {"trouble": "y" * 10_000, "detail": "x\n" * 100_000}
    cases = [
        case(str(number), phase("forward", "error", message="raised", cause=CAUSE), **long) for number in range(200)
    ]
    assert len(summary_markdown(result(*cases, word="fail")).encode()) < 1_000_000


def test_a_result_read_back_makes_the_same_summary() -> None:
    again = msgspec.json.decode(msgspec.json.encode(first_light()), type=Result)
    assert summary_markdown(again) == summary_markdown(first_light())
