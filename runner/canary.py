"""Tell what a canary found in GitHub issues: one a cause, kept up to date, and closed when it is good again.

usage: python -m symmem_check.canary RESULTS --rows a,b

It reads results as data and needs a token with `issues: write`, so it belongs into a job of its own, apart from the one
that runs code on a GPU.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .canary_topics import NO_RESULT, Row, Topic, topics, was_judged
from .errors import SymmemCheckError, UserError
from .github.client import ApiError, Client, Clock
from .github.issues import Found, Issues, marker
from .github.settings import DEFAULT_ARTIFACT, DEFAULT_KEY, GithubSettings, github_settings
from .report.canary import again_body, good_body, issue_body
from .report.text import code, inert, markdown, one_line
from .result import read_result

MOST_OPENED = 10
"""Issues opened by one run: a broken night must not flood a repository."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Done(NamedTuple):
    """What became of a topic's issue."""

    action: str
    title: str
    url: str


def main(arguments: Sequence[str] | None = None, *, clock: Clock | None = None) -> int:
    """Run the command line; return the exit status: 0 when all is told, 2 for what is wrong or refused."""
    parsed = _parser().parse_args(arguments)
    try:
        rows = read_rows(parsed.results, parsed.prefix, parsed.rows)
        given = argparse.Namespace(
            base_branch=None, pull_request=None, comment_key=DEFAULT_KEY, artifact=DEFAULT_ARTIFACT
        )
        done = tell(rows, github_settings(given), parsed.label, parsed.key, clock=clock)
        for one in done:
            print(inert(f"{one.action}: {one_line(one.title)} {one.url}"))
        print(f"{len(rows)} rows, {len(done)} issues touched")
        _summarise(rows, done)
    except SymmemCheckError as error:
        print(inert(f"symmem-check: {one_line(str(error), 2000)}"), file=sys.stderr)
        return error.exit_status
    return 0


def read_rows(folder: Path, prefix: str, names: Sequence[str]) -> list[Row]:
    """The rows' results, `folder/<prefix><row>/result.json` each; what is missing or broken leaves its row without."""
    rows = []
    for name in names:
        file = folder / f"{prefix}{name}" / "result.json"
        try:
            rows.append(Row(name, read_result(file) if file.is_file() else None))
        except UserError as error:
            rows.append(Row(name, None, str(error)))
    return rows


def tell(
    rows: Sequence[Row], settings: GithubSettings, label: str, key: str, *, clock: Clock | None = None
) -> list[Done]:
    """Bring the repository's issues to what the rows show. Raises UserError where GitHub refuses."""
    issues = Issues(Client(settings.api_url, settings.token, clock=clock), settings.repository, label, key)
    url = f"{settings.server_url}/{settings.repository}/actions/runs/{settings.run_id}" if settings.run_id else None
    try:
        return _Night(issues, rows, key, url).tell()
    except ApiError as error:
        if error.status in (401, 403):
            raise UserError(
                f"the token may not write issues; give the job `permissions: issues: write`. {error}"
            ) from None
        raise


class _Night:
    """One run of the canary and the issues there are."""

    def __init__(self, issues: Issues, rows: Sequence[Row], key: str, url: str | None) -> None:
        self._issues, self._rows, self._key, self._url = issues, rows, key, url
        self._there: dict[str, list[Found]] = {}

    def tell(self) -> list[Done]:
        for found in self._issues.ours():
            self._there.setdefault(found.about, []).append(found)
        told = topics(self._rows)
        done, opened = [], 0
        for topic in told:
            if topic.about not in self._there:
                opened += 1
                if opened > MOST_OPENED:
                    continue
            done.append(self._one(topic))
        if opened > MOST_OPENED:
            print(f"symmem-check: {opened - MOST_OPENED} more causes got no issue tonight", file=sys.stderr)
        gone = [about for about in self._there if about not in {topic.about for topic in told}]
        return done + [one for about in gone for one in self._good(self._there[about])]

    def _one(self, topic: Topic) -> Done:
        there = self._there.get(topic.about, [])
        # An open one is the one; of closed ones the oldest, whose fate a person may have decided.
        current = next((one for one in there if one.issue.state == "open"), there[0] if there else None)
        # Rows that can't be judged tonight, and were in it before, are waited for.
        waiting = [row for row in current.rows if not self._settled(row, topic.about)] if current is not None else []
        named = marker(self._key, topic.about, list(dict.fromkeys([*topic.rows, *waiting])))
        body = issue_body(topic, marker=named, run_url=self._url)
        title = f"symmem-check canary: {topic.title}"
        if current is None:
            made = self._issues.open(title, body)
            return Done("opened", title, made.html_url)
        issue = current.issue
        if issue.state == "open":
            self._issues.change(issue, title=title, body=body)
            for duplicate in there:
                if duplicate is not current and duplicate.issue.state == "open":
                    self._issues.change(duplicate.issue, state="closed", state_reason="not_planned")
            return Done("updated", title, issue.html_url)
        if issue.state_reason == "not_planned":
            return Done("left closed as not planned", title, issue.html_url)
        self._issues.change(issue, title=title, body=body, state="open", state_reason="reopened")
        self._issues.comment(issue, again_body(topic, run_url=self._url))
        return Done("opened again", title, issue.html_url)

    def _good(self, there: Sequence[Found]) -> list[Done]:
        """Close what is open and good again, which only rows that were judged can show."""
        done = []
        for found in there:
            if found.issue.state != "open" or not all(self._settled(row, found.about) for row in found.rows):
                continue
            rows = [row for row in self._rows if row.name in found.rows]
            self._issues.change(found.issue, state="closed", state_reason="completed")
            fixed = found.about.startswith("fixed-")
            self._issues.comment(found.issue, good_body(rows, fixed=fixed, run_url=self._url))
            done.append(Done("closed", found.issue.title, found.issue.html_url))
        return done

    def _settled(self, name: str, about: str) -> bool:
        """Whether a row can show that it is good again; one that is no longer in the matrix holds nothing up."""
        same = [row for row in self._rows if row.name == name]
        if about == NO_RESULT:
            return all(row.result is not None for row in same)
        return all(map(was_judged, same))


def _summarise(rows: Sequence[Row], done: Sequence[Done]) -> None:
    """The step summary: a line a row, then the issues."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    lines = ["## symmem-check canary", "", "| row | verdict | |", "| --- | --- | --- |"]
    for row in rows:
        word = row.result.verdict.word if row.result is not None else "no result"
        sentence = row.result.verdict.sentence if row.result is not None else ""
        lines.append(f"| {code(row.name)} | {word} | {markdown(sentence)} |")
    lines += ["", *(f"- {one.action}: {markdown(one.title)} {one.url}" for one in done)]
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m symmem_check.canary",
        description="Tell what a canary found in GitHub issues: one a cause, kept up to date, closed when it is good "
        "again. The token is taken from GITHUB_TOKEN and needs issues: write.",
    )
    parser.add_argument("results", metavar="RESULTS", type=Path, help="the folder with a folder for each row")
    parser.add_argument("--rows", metavar="LIST", type=_names, required=True, help="the matrix's rows, with commas")
    parser.add_argument(
        "--prefix", metavar="TEXT", default="canary-", help="what stands before a row in its folder's name"
    )
    parser.add_argument("--label", metavar="NAME", default="symmem-check-canary", type=_label, help="the issues' label")
    parser.add_argument(
        "--key", metavar="KEY", default="canary", type=_name, help="one for each canary of a repository"
    )
    return parser


def _names(text: str) -> list[str]:
    names = [_name(name.strip()) for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names) or len(names) > 60:
        raise argparse.ArgumentTypeError(f"{text[:200]!r}: give each row once, with commas between, 60 at most")
    return names


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: a name is up to 64 letters, digits, dots, dashes and _")
    return text


def _label(text: str) -> str:
    if not re.fullmatch(r"[\w .:/-]{1,50}", text) or text != text.strip():
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: a label is up to 50 letters, digits, spaces and . : / - _")
    return text


if __name__ == "__main__":
    raise SystemExit(main())
