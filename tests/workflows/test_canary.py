"""The canary's issues: one a cause, kept up to date, closed when good again; against GitHub's own description."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from markdown_it import MarkdownIt

from runner.canary import main
from runner.canary_topics import Row, Topic, topics
from runner.comparison import Changed, Comparison, Difference, PerStep
from runner.github.issues import marker
from runner.report.canary import good_body, issue_body
from runner.result import Cause, KnownProblem, Result, write_result
from runner.script_result import Fallen, ScriptResult

from ..github.fake import REPOSITORY, TOKEN, Fault
from ..runner.report.factory import CAUSE, ENVIRONMENT, ISSUE, case, filled_with, harmful, phase, result
from .fake_issues import FakeWithIssues

LOST = (
    PerStep(symmetric=6, fallback=0, ineligible=0, unknown=0),
    PerStep(symmetric=0, fallback=6, ineligible=0, unknown=0),
)
GOOD = result(case("static", phase("backward", symmetric=4)))
RUN = f"https://github.com/{REPOSITORY}/actions/runs/50"


def regressed(cause: Cause | None = CAUSE, **more: Any) -> Result:
    """A case that lost its symmetric kernels with another PyTorch."""
    lost = Difference(
        change="regressed", case="all_reduce/static", phase="backward", before=LOST[0], after=LOST[1], sentence="Lost."
    )
    told = Comparison(file="baseline.json", versions=[Changed("PyTorch", "2.10.0", "2.11.0+cu130")], differences=[lost])
    return result(
        case("static", phase("backward", "regressed", fallback=4, cause=cause, message="no longer symmetric")),
        word="fail", sentence="1 regressed.", baseline=told, **more,
    )  # fmt: skip


def crashed() -> Result:
    return result(case("static", phase("backward", "error", message="the case hung")), word="fail", sentence="1 error.")


Night = Callable[..., int]


@pytest.fixture
def night(fake: FakeWithIssues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Night:
    """One night: what each row left (None: nothing), told to the server."""
    for name, value in {
        "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": fake.url, "GITHUB_RUN_ID": "50",
        "GITHUB_SERVER_URL": "https://github.com", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_EVENT_PATH": "", "GITHUB_EVENT_NAME": "schedule",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("runner.github.client.SystemClock.sleep", lambda self, seconds: None)

    def call(*flags: str, **rows: Result | None) -> int:
        for name, left in rows.items():
            file = tmp_path / "results" / f"canary-{name}" / "result.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            if left is not None:
                write_result(left, file)
        return main([str(tmp_path / "results"), "--rows", ",".join(rows), *flags])

    return call


def test_a_good_night_touches_nothing(fake: FakeWithIssues, night: Night, tmp_path: Path) -> None:
    assert night(stable=GOOD, nightly=GOOD) == 0
    assert fake.issues == [] and fake.calls("POST") == []
    assert "| `nightly` | pass | All is as expected. |" in (tmp_path / "summary.md").read_text()


def test_one_issue_a_cause_with_both_rows_and_the_versions_on_both_sides(fake: FakeWithIssues, night: Night) -> None:
    assert night(stable=regressed(), nightly=regressed()) == 0
    (issue,) = fake.issues
    assert issue["title"] == "symmem-check canary: Fell back: allocated-on-autograd-thread"
    assert [label["name"] for label in issue["labels"]] == ["symmem-check-canary"]
    body = issue["body"]
    assert body.startswith(
        "<!-- symmem-check-canary key=canary about=allocated-on-autograd-thread rows=stable,nightly -->\n"
    )
    row = "| `nightly` | `all_reduce/static backward` | regressed | 6 → 0 | 0 → 6 | 0 | 0 |"
    assert row in body and row.replace("nightly", "stable") in body
    assert "| `nightly` | PyTorch | `2.10.0` | **2.11.0+cu130** |" in body
    assert "| `stable` | NCCL | `2.30.7` | `2.30.7` |" in body
    assert f"[this run]({RUN})" in body and "**Do this:** enter the pool inside" in body


def test_the_same_night_again_updates_the_issue(fake: FakeWithIssues, night: Night) -> None:
    night(stable=regressed(), nightly=GOOD)
    night(stable=regressed(), nightly=regressed())
    (issue,) = fake.issues
    assert "rows=stable,nightly -->" in issue["body"] and issue["state"] == "open"
    assert fake.said(issue["number"]) == []


def test_two_causes_are_two_issues(fake: FakeWithIssues, night: Night) -> None:
    night(stable=regressed(), nightly=crashed())
    assert sorted(issue["title"] for issue in fake.issues) == [
        "symmem-check canary: A case raises, hangs or gives wrong values",
        "symmem-check canary: Fell back: allocated-on-autograd-thread",
    ]


def test_it_is_closed_when_good_again_and_opened_again_when_back(fake: FakeWithIssues, night: Night) -> None:
    night(stable=regressed())
    night(stable=GOOD)
    (issue,) = fake.issues
    assert (issue["state"], issue["state_reason"]) == ("closed", "completed")
    assert f"Good again in [this run]({RUN})." in fake.said(issue["number"])[0]
    assert "PyTorch `2.11.0+cu130`" in fake.said(issue["number"])[0]
    night(stable=GOOD)
    assert len(fake.said(issue["number"])) == 1  # told once
    night(stable=regressed())
    assert len(fake.issues) == 1 and issue["state"] == "open"
    assert fake.said(issue["number"])[1].startswith("Back in ")


@pytest.mark.parametrize("other", [None, crashed()], ids=["no result", "crashed"])
def test_a_row_that_was_not_judged_closes_nothing(fake: FakeWithIssues, night: Night, other: Result | None) -> None:
    night(stable=regressed(), nightly=GOOD)
    night(stable=other, nightly=GOOD)
    assert fake.issues[0]["state"] == "open"
    night(stable=GOOD, nightly=GOOD)
    assert [issue["state"] for issue in fake.issues] == ["closed", "closed"]


def test_a_row_that_waits_stays_in_the_marker(fake: FakeWithIssues, night: Night) -> None:
    night(stable=regressed(), nightly=regressed())
    night(stable=regressed(), nightly=None)
    assert "rows=stable,nightly -->" in fake.issues[0]["body"]
    night(stable=regressed(), nightly=GOOD)
    assert "rows=stable -->" in fake.issues[0]["body"]


def test_a_row_that_left_the_matrix_holds_nothing_up(fake: FakeWithIssues, night: Night) -> None:
    night(old=regressed(), stable=GOOD)
    night(stable=GOOD)
    assert fake.issues[0]["state"] == "closed"


def test_what_a_person_closed_as_not_planned_stays_closed(
    fake: FakeWithIssues, night: Night, capsys: pytest.CaptureFixture[str]
) -> None:
    night(stable=regressed())
    fake.issues[0].update(state="closed", state_reason="not_planned")
    night(stable=regressed())
    assert len(fake.issues) == 1 and fake.issues[0]["state"] == "closed"
    assert "left closed as not planned" in capsys.readouterr().out


def test_a_known_problem_that_is_gone_is_an_issue_of_its_own(fake: FakeWithIssues, night: Night) -> None:
    known = KnownProblem(issue=ISSUE, title="use_mem_pool holds for the calling thread only")
    gone = result(case("step", phase("backward", "fixed", symmetric=4, known=known, message="symmetric")))
    night(stable=gone, nightly=gone)
    (issue,) = fake.issues
    assert issue["title"] == "symmem-check canary: Fixed upstream: pytorch#167353"
    assert f"[pytorch#167353]({ISSUE})" in issue["body"]
    night(stable=GOOD, nightly=GOOD)
    assert issue["state"] == "closed" and "No longer told" in fake.said(issue["number"])[0]


def test_a_broken_result_is_told_as_none(fake: FakeWithIssues, night: Night, tmp_path: Path) -> None:
    night(stable=GOOD)
    (tmp_path / "results" / "canary-stable" / "result.json").write_text("{")
    assert main([str(tmp_path / "results"), "--rows", "stable"]) == 0
    assert fake.issues[0]["title"] == "symmem-check canary: A row of the canary left no result"
    assert "not a result of symmem-check" in fake.issues[0]["body"]


def test_a_lost_coverage_without_any_finding_is_told(fake: FakeWithIssues, night: Night) -> None:
    low = result(case("static", phase("backward", symmetric=4)), word="fail", sentence="coverage is 80 %, not 90 %.")
    night(stable=low)
    assert fake.issues[0]["title"] == "symmem-check canary: The gate does not hold"
    assert "coverage is 80 %, not 90 %." in fake.issues[0]["body"]


def test_a_scripts_loss_is_told_with_its_cause() -> None:
    where: dict[str, Any] = {
        "phase": "backward",
        "kind": "all_reduce",
        "group": "dp",
        "group_size": 8,
        "dtype": "bfloat16",
    }
    lost = Difference(change="regressed", before=LOST[0], after=LOST[1], sentence="Lost.", **where)
    fallen = Fallen(**where, bytes=8, calls_per_step=2, op=None, module=None, kernel=None, cause=CAUSE)
    script = ScriptResult(command=["train.py"], ranks=8, steps=3, warmup=3, fallen=[fallen])
    told = Comparison(file="b.json", differences=[lost])
    (topic,) = topics([Row("stable", result(word="fail", sentence="Lost.", script=script, baseline=told))])
    assert topic.about == CAUSE.name
    assert topic.findings[0].place == "backward all_reduce bfloat16 in group dp of 8 ranks"
    assert topic.findings[0].mend == CAUSE.mend


def test_others_issues_with_a_copied_marker_are_left_alone(fake: FakeWithIssues, night: Night) -> None:
    copied = marker("canary", "allocated-on-autograd-thread", ["stable"])
    fake.add_issue(copied, author="somebody")
    fake.add_issue(copied, pull_request={"url": None, "html_url": None, "diff_url": None, "patch_url": None})
    fake.add_issue(marker("other", "allocated-on-autograd-thread", ["stable"]))
    night(stable=GOOD)
    assert [issue["state"] for issue in fake.issues] == ["open"] * 3
    night(stable=regressed())
    assert len(fake.issues) == 4


def test_duplicates_are_closed_and_the_oldest_stays(fake: FakeWithIssues, night: Night) -> None:
    for _ in range(2):
        fake.add_issue(marker("canary", "allocated-on-autograd-thread", ["stable"]))
    night(stable=regressed())
    assert [(one["state"], one.get("state_reason")) for one in fake.issues] == [
        ("open", None),
        ("closed", "not_planned"),
    ]


def test_it_is_found_among_many(fake: FakeWithIssues, night: Night) -> None:
    night(stable=regressed())
    for _ in range(130):
        fake.add_issue("Another with the same label.")
    night(stable=GOOD)
    assert fake.issues[0]["state"] == "closed"


def test_a_token_without_the_right_is_told(
    fake: FakeWithIssues, night: Night, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.may_write_issues = False
    assert night(stable=regressed()) == 2
    err = capsys.readouterr().err
    assert "give the job `permissions: issues: write`" in err and TOKEN not in err


def test_a_night_that_breaks_everything_opens_ten_issues(
    fake: FakeWithIssues, night: Night, capsys: pytest.CaptureFixture[str]
) -> None:
    causes = [
        CAUSE.__class__(name=f"c{n}", sentence="S.", certainty="likely", evidence=[], mend="m") for n in range(13)
    ]
    cases = [case(f"p{n}", phase("backward", "fail", fallback=4, cause=cause)) for n, cause in enumerate(causes)]
    assert night(stable=result(*cases, word="fail", sentence="All fail.")) == 0
    assert len(fake.issues) == 10
    assert "3 more causes got no issue" in capsys.readouterr().err


def test_a_lost_answer_is_no_traceback(fake: FakeWithIssues, night: Night, capsys: pytest.CaptureFixture[str]) -> None:
    fake.faults = [Fault("POST", "/issues$", drop="after")]
    assert night(stable=regressed()) == 2
    assert "symmem-check: GitHub: POST" in capsys.readouterr().err
    assert night(stable=regressed()) == 0
    assert len(fake.issues) == 1  # found again by its marker


@pytest.mark.parametrize("wrong", ["", "a,a", "a b", "-->", "../x"])
def test_wrong_rows_are_refused(wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path), "--rows", wrong])
    assert ended.value.code == 2 and "--rows" in capsys.readouterr().err


@given(harmful)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_text_from_a_run_stays_text(text: str) -> None:
    """Nothing in it becomes a link, a mention, HTML or another row."""
    row = Row("stable", filled_with(text))
    found = topics([row])
    assert found
    for topic in found:
        body = issue_body(topic, marker=marker("canary", topic.about, topic.rows), run_url=RUN)
        _is_tame(body, rows=_rows(topic))
    _is_tame(good_body([row], fixed=False, run_url=RUN))


def _rows(topic: Topic) -> int:
    return len(topic.findings) + len(topic.sides) + 2


def _is_tame(body: str, rows: int = 0) -> None:
    assert len(body) <= 65_536
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(body)
    inline = [child for token in tokens for child in token.children or []]
    links = [str(token.attrs["href"]) for token in inline if token.type == "link_open"]
    assert set(links) <= {RUN, ISSUE}
    html = [token.content for token in [*tokens, *inline] if token.type in ("html_block", "html_inline")]
    assert all(one.startswith("<!-- symmem-check-canary ") or one in ("<code>", "</code>") for one in html)
    assert rows == 0 or sum(token.type == "tr_open" for token in tokens) == rows
    plain = [token.content for token in inline if token.type == "text"]
    assert not any("@" in one and "\u2060" not in one for one in plain)


def test_a_long_issue_is_cut_to_what_github_takes() -> None:
    cases = [case(f"{'p' * 200}{n}", phase("backward", "fail", fallback=4, cause=CAUSE)) for n in range(500)]
    (topic,) = topics([Row("stable", result(*cases, word="fail", sentence="All.", environment=ENVIRONMENT))])
    body = issue_body(topic, marker=marker("canary", topic.about, topic.rows), run_url=RUN)
    assert 40_000 < len(body) <= 65_536 and "the run has all of it" in body
