"""The page as a file: what it says, what it embeds, and that no text from a run is more than text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any

import lxml.html
import msgspec
import pytest
from hypothesis import given, settings

from runner.comparison import Changed, ChangedExpectation, Comparison, Difference, PerStep
from runner.errors import UserError
from runner.report import page_timeline
from runner.report.page import page_html, write_page
from runner.report.page_timeline import timeline
from runner.report.text import is_issue_url
from runner.result import BandwidthRow, Gate, Result
from runner.script_result import Fallen, ScriptResult, ScriptRow

from .factory import CAUSE, GENERAL, ISSUE, case, coverage, filled_with, first_light, harmful, kernel, phase, result
from .page_factory import collective, page_result, step_of, trained


def parsed(document: str) -> lxml.html.HtmlElement:
    return lxml.html.document_fromstring(document)


def text_of(element: lxml.html.HtmlElement) -> str:
    return " ".join(element.text_content().split())


def section(document: str, name: str) -> str:
    (found,) = parsed(document).xpath(f"//section[@aria-labelledby='{name}']")
    return text_of(found)


def embedded(document: str) -> Any:
    (data,) = parsed(document).xpath("//script[@type='application/json']")
    return json.loads(data.text)


def blocks(data: dict[str, Any]) -> list[list[tuple[int, ...]]]:
    """Each step's blocks as (rank, sort, start, duration, number)."""
    return [
        [tuple(step["blocks"][at : at + 5]) for at in range(0, len(step["blocks"]), 5)] for step in data["steps"]
    ]  # fmt: skip


def sort_named(data: dict[str, Any], index: int) -> dict[str, Any]:
    return dict(zip(data["fields"], data["sorts"][index], strict=True))


def test_the_verdict_comes_first() -> None:
    document = page_html(page_result())
    told = section(document, "verdict")
    assert told.startswith("✕ fail 3 of 12 phases are not as expected.")
    assert "✕ fail 1" in told and "! error 2" in told and "≈ known 1" in told and "✓ pass 8" in told
    assert parsed(document).xpath("string(//title)") == "fail: symmem-check"
    assert "Replay" not in told
    assert "Replay. This is a replay" in section(page_html(result(replay=True)), "verdict")


def test_coverage_has_a_bar_whose_parts_are_the_launches() -> None:
    document = page_html(page_result())
    told = section(document, "coverage")
    assert "forward 100 % 8 of 8 calls" in told
    assert "backward 50 % 4 of 8 calls; 2 not eligible; 1 unknown" in told
    (bar,) = parsed(document).xpath("//*[contains(@class, 'cover')]//svg[starts-with(@aria-label, 'backward')]")
    assert [(rect.get("class"), rect.get("x"), rect.get("width")) for rect in bar] == [
        ("g-symmetric", "0.0%", "36.364%"), ("g-fallback", "36.364%", "36.364%"),
        ("g-ineligible", "72.727%", "18.182%"), ("g-unknown", "90.909%", "9.091%"),
    ]  # fmt: skip


def test_what_to_know_has_cause_mend_and_issue() -> None:
    document = page_html(first_light())
    told = section(document, "know")
    assert "≈ known all_reduce/step backward fell back, because the buffer lies outside the pool." in told
    assert f"Do this: {CAUSE.mend}." in told and "used on autograd's thread" in told
    assert [link.get("href") for link in parsed(document).xpath("//section[@aria-labelledby='know']//a")] == [ISSUE]


def test_the_table_has_a_row_a_case_and_a_cell_a_phase() -> None:
    page = parsed(page_html(page_result()))
    rows = page.xpath("//tr[contains(@class, 'case')]")
    assert [text_of(row.xpath(".//span[@class='name']")[0]) for row in rows] == [
        "all_reduce/none", "all_reduce/step", "all_reduce/static", "all_reduce/registered-not-symmetric",
        "all_reduce/crash", "train/fsdp2",
    ]  # fmt: skip
    assert [cell.get("data-outcome") for cell in rows[1].xpath("./td")] == ["pass", "known"]
    assert text_of(rows[1].xpath("./td")[0]) == "forward ✓ pass symmetric RSxLD_AGxST"
    assert text_of(rows[0].xpath("./td")[1]) == "backward ✓ pass control fell back RING_LL"


def test_the_worst_case_is_open_at_first() -> None:
    page = parsed(page_html(page_result()))
    (row,) = page.xpath("//tr[@data-open]")
    assert "train/fsdp2" in text_of(row)
    plain, seen = phase("forward", symmetric=1), [collective()]
    passed = parsed(page_html(result(case("a", plain), case("b", plain, collectives=seen), case("c", plain))))
    assert "all_reduce/b" in text_of(passed.xpath("//tr[@data-open]")[0])


def test_a_traceback_keeps_its_lines() -> None:
    (pre,) = parsed(page_html(page_result())).xpath("//pre")
    assert pre.text_content() == "Traceback (most recent call last):\nRuntimeError: <b>boo</b>"


def test_the_script_section() -> None:
    row = ScriptRow(
        phase="backward", kind="reduce_scatter", group="fsdp", group_size=8, dtype="bfloat16", calls_per_step=16.0,
        coverage=coverage(12, 4), kernels=[kernel(False)],
    )  # fmt: skip
    fallen = Fallen(
        phase="backward", kind="reduce_scatter", group="fsdp", group_size=8, dtype="bfloat16", bytes=1024,
        calls_per_step=4.0, op="ReduceBackward", module="model.layers.0", kernel=GENERAL, cause=CAUSE,
    )  # fmt: skip
    script = ScriptResult(
        command=["train.py", "--big"], ranks=8, steps=3, warmup=2, rows=[row], fallen=[fallen], more_fallen=7,
        trouble="it raised", detail="ValueError: no",
    )  # fmt: skip
    document = page_html(result(script=script))
    told = section(document, "script")
    assert "train.py --big" in told and "3 steps traced on each of 8 ranks" in told
    assert "it raised" in told and "ValueError: no" in told
    rows, fell_back = (
        [text_of(cell) for cell in table.xpath("./tbody/tr/td")]
        for table in parsed(document).xpath("//section[@aria-labelledby='script']//table")
    )
    assert rows == ["backward", "reduce_scatter", "bfloat16", "fsdp", "8", "16", "12", "4", "0", "0", "RING_LL", "75 %"]
    assert fell_back[:3] == ["4096", "4", "1024"] and fell_back[6:] == ["ReduceBackward", "model.layers.0", CAUSE.name]
    assert "and 7 more, in result.json" in told and f"Do this: {CAUSE.mend}" in told
    assert 'aria-labelledby="cases"' not in document


def test_the_baseline_section_has_the_worst_first() -> None:
    few, all_four = PerStep(0, 4, 0, 0), PerStep(4, 0, 0, 0)
    base = Comparison(
        file="old/result.json", created="2026-11-01T00:00:00+00:00", coverage={"backward": coverage(8)}, same=1,
        versions=[Changed("PyTorch", "2.10.0", "2.11.0")], notes=["counted a step"],
        expectations=[ChangedExpectation(case="a", phase="forward", before="symmetric", after=None)],
        differences=[
            Difference(change="new", case="b", phase="forward", before=None, after=all_four, sentence="is new"),
            Difference(change="regressed", case="a", phase="backward", before=all_four, after=few, sentence="fell"),
        ],
    )  # fmt: skip
    gate = Gate(minimum={"backward": 0.9})
    document = page_html(result(baseline=base, gate=gate, coverage={"backward": coverage(4, 4)}))
    told = section(document, "baseline")
    assert "Compared with old/result.json, made 2026-11-01T00:00:00+00:00" in told and "1 place is as before." in told
    assert told.index("↓ regressed a backward fell") < told.index("+ new b forward is new")
    assert "Also changed: PyTorch 2.10.0 → 2.11.0." in told and "counted a step" in told
    assert "which excuses nothing: a forward: symmetric → not judged." in told
    counts = section(document, "coverage")
    assert "4 of 8 calls; the baseline had 100 %; at least 90 % by calls was asked for" in counts
    apart = Comparison(file="old", incomparable=["2 ranks, not 8"])
    assert "can't be compared: 2 ranks, not 8" in section(page_html(result(baseline=apart)), "baseline")


def test_bandwidth_is_told_only_where_ranks_share_no_gpu() -> None:
    row = BandwidthRow(
        kind="all_reduce", bytes=2**29, symmetric_us=150.0, general_us=100.0, symmetric_gbps=200.0, general_gbps=300.0
    )
    own = msgspec.structs.replace(first_light().environment, ranks_per_gpu=1)
    measured = case("bandwidth", phase("forward", symmetric=1), bandwidth=[row])
    told = section(page_html(result(measured, environment=own)), "bandwidth")
    assert "512 MiB" in told and "150.0" in told and "it costs at every size" in told
    assert 'id="bandwidth"' not in page_html(result(measured))


def test_the_policy_allows_the_pages_own_style_and_scripts_only() -> None:
    document = page_html(page_result())
    page = parsed(document)
    (policy,) = page.xpath("//meta[@http-equiv='Content-Security-Policy']/@content")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules.pop("default-src") == "'none'" and rules.pop("base-uri") == "'none'"
    assert rules.pop("form-action") == "'none'" and rules.pop("img-src") == "data:"

    def hashes(pattern: str) -> list[str]:
        found = re.findall(pattern, document, re.DOTALL)
        return [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in found]

    assert rules.pop("style-src").split() == hashes(r"<style>(.*?)</style>")
    assert rules.pop("script-src").split() == hashes(r"<script>(.*?)</script>")
    assert rules == {} and len(hashes(r"<script>(.*?)</script>")) == 3


def test_nothing_is_asked_for_from_elsewhere() -> None:
    document = page_html(result(*first_light().cases, trained()))
    page = parsed(document)
    addresses = page.xpath("//@src | //@href | //@srcset | //@action | //@data")
    assert {address for address in addresses if not address.startswith(("#", "data:"))} == {ISSUE}
    style = page.xpath("string(//style)")
    assert "@import" not in style and set(re.findall(r"url\((.)", style)) == {"#"}
    assert not page.xpath("//@style") and "@import" not in style


def everywhere(text: str) -> Result:
    """A Result with `text` wherever one can stand, in its collectives, its script and its baseline too."""
    found = filled_with(text)
    one = collective(kernel=text, why=text, group=text, dtype=text, algorithm=text)
    axes: dict[str, str | int] = {"pool": text, "op": text}
    cases = [
        msgspec.structs.replace(case, collectives=[one], axes=axes, witness=[text], configuration=text)
        for case in found.cases
    ]
    key: dict[str, Any] = {"phase": "backward", "kind": "all_reduce", "group": text, "group_size": 8, "dtype": text}
    row = ScriptRow(**key, calls_per_step=1.0, coverage=coverage(1, 1), kernels=found.cases[0].phases[0].kernels)
    cause = found.cases[0].phases[0].cause
    fallen = Fallen(**key, bytes=1, calls_per_step=1.0, op=text, module=text, kernel=text, cause=cause)
    script = ScriptResult(
        command=[text, text], ranks=2, steps=1, warmup=2, rows=[row], fallen=[fallen], trouble=text, detail=text
    )
    amount = PerStep(1, 0, 0, 0)
    base = Comparison(
        file=text, version=text, created=text, incomparable=[text], versions=[Changed(text, text, text)], notes=[text],
        expectations=[ChangedExpectation(case=text, phase="forward", before=text, after=text)],
        differences=[Difference(change="new", **key, case=text, before=amount, after=None, sentence=text)],
    )  # fmt: skip
    return msgspec.structs.replace(found, cases=cases, script=script, baseline=base)


def shape(document: str) -> set[tuple[str, ...]]:
    """Every element of a page with the names of its attributes; and its links."""
    return {(str(one.tag), *sorted(one.attrib)) for one in parsed(document).iter()}


@settings(deadline=None, max_examples=60)
@given(harmful.filter(lambda text: not is_issue_url(text)))
def test_no_text_becomes_markup(text: str) -> None:
    document = page_html(everywhere(text))
    # Empty text leaves some elements out; none may come in.
    assert shape(document) <= shape(page_html(everywhere("plain")))
    assert document.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", document)
    assert len(re.findall(r"(?i)</script", document)) == 4
    assert embedded(document)["timelines"][0]["sorts"]


def test_data_can_not_end_its_script_element() -> None:
    hostile = "</script><script>alert(1)</script><!-- \u2028 \u2029 ]]> &lt;"
    document = page_html(result(case("a", phase("forward"), collectives=[collective(why=hostile)])))
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    assert not set("<>&\u2028\u2029") & set(data)
    assert sort_named(json.loads(data)["timelines"][0], 0)["why"] == "</script><script>alert(1)</script><!-- ]]> &lt;"


def test_a_timeline_tells_each_collective() -> None:
    found = [
        collective(0.0, 10.5, rank=0), collective(2.25, 10.0, rank=1),
        collective(20.0, 5.0, rank=0, phase="recompute", symmetric=False),
        collective(100.0, 1.0, rank=None, step=None, symmetric=None, mechanism="unknown", kernel=None),
    ]  # fmt: skip
    data = timeline(case("a", phase("backward", "fail", fallback=1, cause=CAUSE), collectives=found))
    assert data is not None
    assert [step["step"] for step in data["steps"]] == [3, None]
    assert blocks(data) == [
        [(0, 0, 0, 10_500, 1), (1, 0, 2_250, 10_000, 1), (0, 1, 20_000, 5_000, 1)], [(-1, 2, 0, 1_000, 1)],
    ]  # fmt: skip
    assert sort_named(data, 0)["state"] == "symmetric" and sort_named(data, 0)["label"] == "RSxLD_AGxST"
    assert sort_named(data, 1) | {"why": ""} == {
        "phase": "recompute", "kind": "all_reduce", "mechanism": "nccl", "state": "fallback", "label": "RING_LL",
        "kernel": GENERAL, "dtype": "bfloat16", "bytes": 2**23, "group": "default_pg", "size": 2, "calls": 1, "why": "",
    }  # fmt: skip
    assert sort_named(data, 2)["state"] == "unknown" and sort_named(data, 2)["kernel"] == "copy engine"
    why = f"The buffer lies outside the pool. Do this: {CAUSE.mend}."
    assert data["causes"] == {"backward": why, "recompute": why} and data["notes"] == []


def test_no_collective_makes_no_timeline() -> None:
    assert timeline(case("a", phase("forward"))) is None
    document = page_html(result(case("a", phase("forward"))))
    assert embedded(document)["timelines"] == [None] and "data-timeline" not in document.split("<script")[0]


@pytest.mark.parametrize(("hosts", "apart"), [(2, 5.0), (1, 1e9)])
def test_ranks_whose_clocks_differ_begin_at_0_each(hosts: int, apart: float) -> None:
    found = [collective(0.0), collective(50.0), collective(apart, rank=1), collective(apart + 50.0, rank=1)]
    data = timeline(case("a", phase("forward"), collectives=found), hosts=hosts)
    assert data is not None
    assert sorted((rank, start) for rank, _, start, _, _ in blocks(data)[0]) == [(0, 0), (0, 50000), (1, 0), (1, 50000)]
    assert data["notes"] == [
        "Each rank's first collective of a step is put at 0, as the ranks' clocks can't be compared."
    ]


def test_eight_ranks_with_two_thousand_collectives_stay_whole() -> None:
    data = timeline(trained(8, 2_000))
    assert data is not None and data["notes"] == []
    assert sum(map(len, blocks(data))) == 16_000


def test_what_can_not_be_seen_is_merged_and_told() -> None:
    whole = step_of(8, 20_000)
    began = time.process_time()
    document = page_html(result(msgspec.structs.replace(trained(), collectives=whole)))
    assert time.process_time() - began < 3
    (data,) = embedded(document)["timelines"]
    drawn = [block for step in blocks(data) for block in step]
    assert len(drawn) <= page_timeline.MOST_BLOCKS and len(document) < 3_000_000
    assert sum(number for *_, number in drawn) == len(whole)
    assert len(data["notes"]) == 1
    assert data["notes"][0].startswith(f"160,000 collectives are drawn as {len(drawn):,} blocks")
    # Nothing that differs in how it looks is merged: each state has as many as before.
    fallen = sum(number for _, sort, _, _, number in drawn if sort_named(data, sort)["state"] == "fallback")
    assert fallen == sum(one.symmetric is False and one.kind != "broadcast" for one in whole)


def test_a_single_fallback_among_many_is_not_lost() -> None:
    found = [collective(at * 3.0, 1.0, symmetric=at != 31_234) for at in range(60_000)]
    data = timeline(case("a", phase("forward"), collectives=found))
    assert data is not None
    (one,) = [block for block in blocks(data)[0] if sort_named(data, block[1])["state"] == "fallback"]
    assert one[2:] == (31_234 * 3_000, 1_000, 1)


def test_too_many_sorts_and_odd_times_make_no_endless_page() -> None:
    odd = [collective(at * 3.0, why=f"{at} " + "x" * 500, group=str(at), bytes=at) for at in range(40_000)]
    odd += [collective(1e300), collective(0.0, float("inf")), collective(0.0, -5.0)]
    data = timeline(case("a", phase("forward"), collectives=odd), cases=1_000)
    assert data is not None
    assert len(data["sorts"]) <= 1_010 and sum(map(len, blocks(data))) <= 1_000
    assert "2 collectives without a usable time are left out." in data["notes"]
    assert len(json.dumps(data)) < 1_500_000


def test_the_page_is_written_or_the_user_is_told(tmp_path: Path) -> None:
    write_page(page_result(), tmp_path / "page.html")
    written = (tmp_path / "page.html").read_bytes()
    assert written.decode("utf-8") == page_html(page_result()) and b"\r" not in written
    with pytest.raises(UserError, match=r"nowhere/page\.html: the page can't be written"):
        write_page(page_result(), tmp_path / "nowhere" / "page.html")
