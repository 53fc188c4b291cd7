"""What SECURITY.md promises of input that is not trusted: a class for each of its lines, through the public doors."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import html
from markdown_it import MarkdownIt

from checks.environment import KEPT_VARIABLES
from runner.errors import UserError
from runner.github.archive import extract_result
from runner.report.annotations import annotation_lines
from runner.report.junit import junit_xml
from runner.report.markdown import comment_markdown, summary_markdown
from runner.report.page import write_page
from runner.report.text import inert, inert_json
from runner.result import LARGEST_RESULT, read_result, write_result
from runner.runfolder import LARGEST_FILE, RunFolder
from runner.suite import load_suite
from runner.yaml_file import MAX_BYTES
from tests.runner.report.factory import filled_with
from tests.runner.trace.support import base, classify

PROJECT = Path(__file__).parents[1]
COMMANDS = (
    "::error::pwned", " ::add-mask::a", "\t::set-output name=a::b", "x\n::stop-commands::a", "x\r::error::b",
    "x\u2028::error::c", "\u00ad::error::d", ":\u200b:error::e", "##[error]f", "x ##[add-mask]g", "#\u00ad#[error]h",
    "\x1b[0m::error::i", "%0A::error::j",
)  # fmt: skip
SECRET = "ghs_thisIsTheSecretOfTheTest0123456789"


def runner_sees_a_command(line: str) -> bool:
    """As actions/runner's ActionCommand.cs looks for one; its comparisons overlook what nobody sees."""
    seen = re.sub("[\u00ad\u034f\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff\x00-\x08\x0e-\x1f]", "", line)
    return seen.lstrip().startswith("::") or "##[" in seen


def lines_of(text: str) -> list[str]:
    return re.split("\r\n|\r|\n", text)


def hostile_trace(text: str) -> dict[str, Any]:
    """A trace with `text` in every name that is shown."""
    trace = base()
    for row in trace["traceEvents"]:
        if row.get("cat") == "kernel":
            row["name"] += text
            row["args"] |= {"Process Group Description": text, "dtype": text}
    return trace


class TestNoCodeFromData:
    def test_nothing_in_the_source_runs_data(self) -> None:
        """No pickle, no eval, no yaml.load: a name of one in the source is a defect, wherever it stands."""
        forbidden = {"pickle", "marshal", "shelve", "eval", "exec", "unsafe_load", "full_load", "extractall", "system"}
        found = []
        for path in (PROJECT / "runner").rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = {getattr(node, "id", None), getattr(node, "attr", None)}
                names |= {alias.name for alias in getattr(node, "names", []) if isinstance(alias, ast.alias)}
                if names & forbidden or any(word.arg == "shell" for word in getattr(node, "keywords", [])):
                    found.append(f"{path.relative_to(PROJECT)}:{getattr(node, 'lineno', '?')}")
        assert found == []

    @pytest.mark.parametrize("tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!own"])
    def test_yaml_makes_no_objects(self, tmp_path: Path, tag: str) -> None:
        (tmp_path / "suite.yaml").write_text(f"suite: {tag} ['touch {tmp_path}/made']\nranks: 2\n")
        with pytest.raises(UserError, match=r"line [12]|missing"):
            load_suite(tmp_path / "suite.yaml")
        assert not (tmp_path / "made").exists()


class TestNoPathOutOfTheRunFolder:
    @pytest.mark.parametrize("folder", ["../out", "/etc", "cases/../../out", "", "starts/0", "cases/a\0b"])
    def test_a_cases_folder(self, tmp_path: Path, folder: str) -> None:
        plan = json.loads((PROJECT / "runner/replay/plan.json").read_text())
        plan["cases"][0]["folder"] = folder
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        with pytest.raises(UserError, match="not below cases/"):
            RunFolder(tmp_path).plan()

    @pytest.mark.parametrize("name", ["../rank0.trace.json.gz", "/etc/passwd", "a/b"])
    def test_a_traces_name(self, name: str) -> None:
        folder = RunFolder(PROJECT / "runner/replay")
        case = folder.plan().cases[0]
        record = msgspec.structs.replace(folder.records(case)[0], trace=name)
        with pytest.raises(UserError, match="names a trace elsewhere"):
            folder.trace(case, record)

    @pytest.mark.parametrize("name", ["../../result.json", "/result.json", "a/../../result.json", "..\\result.json"])
    def test_an_archives_names(self, tmp_path: Path, name: str) -> None:
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr(name, "{}")
        inside = tmp_path / "inside" / "inside"
        inside.mkdir(parents=True)
        with contextlib.suppress(UserError):
            extract_result(tmp_path / "a.zip", inside / "result.json")
        assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"a.zip", "result.json"}
        assert all(path.parent == inside for path in tmp_path.rglob("result.json"))

    def test_an_archives_link(self, tmp_path: Path) -> None:
        link = zipfile.ZipInfo("result.json")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr(link, "/etc/passwd")
        with pytest.raises(UserError, match="is a link"):
            extract_result(tmp_path / "a.zip", tmp_path / "result.json")
        assert not (tmp_path / "result.json").exists()


class TestNoUnboundedMemory:
    @pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
    def test_an_archive_that_unpacks_to_much(self, tmp_path: Path, method: int) -> None:
        with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
            archive.writestr("result.json", b"[" * 20_000_000)
        with pytest.raises(UserError, match=r"unpacks to more than 1 MiB|another method"):
            extract_result(tmp_path / "a.zip", tmp_path / "result.json", 2**20)
        assert not (tmp_path / "result.json").exists() or (tmp_path / "result.json").stat().st_size <= 2**20

    @pytest.mark.parametrize(("read", "limit"), [(read_result, LARGEST_RESULT), (load_suite, MAX_BYTES)])
    def test_a_file_that_is_too_large_is_not_read(self, tmp_path: Path, read: Any, limit: int) -> None:
        path = tmp_path / "large.yaml"
        with path.open("wb") as file:
            file.truncate(limit + 1)
        with pytest.raises(UserError, match=f"{limit >> 20} MiB"):
            read(path)

    def test_a_record_that_is_too_large_is_not_read(self, tmp_path: Path) -> None:
        with (tmp_path / "plan.json").open("wb") as file:
            file.truncate(LARGEST_FILE + 1)
        with pytest.raises(UserError, match="larger than"):
            RunFolder(tmp_path).plan()


class TestNoWorkflowCommand:
    @pytest.mark.parametrize("form", ["table", "csv", "json"])
    def test_by_a_kernels_name_or_a_files(self, tmp_path: Path, form: str) -> None:
        """Through the command line, with all of them at once: in one file's names, and as files of their own."""
        for number, text in enumerate(COMMANDS):
            name = text.replace("/", "").replace("\0", "")
            (tmp_path / f"{name}{number}.json").write_text(json.dumps(hostile_trace(text)))
        (tmp_path / "::error::broken.json").write_text("{")
        done = classify(".", format=form, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(PROJECT)})
        assert len(done.stdout) > 1000
        assert [line for line in lines_of(done.stdout + "\n" + done.stderr) if runner_sees_a_command(line)] == []
        if form == "json":
            files = json.loads(done.stdout)["files"]
            assert any("##[error]f" in row["kernel"] for file in files for row in file["collectives"])

    @pytest.mark.parametrize("text", COMMANDS)
    def test_by_a_result(self, tmp_path: Path, text: str) -> None:
        write_result(filled_with(text), tmp_path / "result.json")
        command = [sys.executable, "-m", "runner", "report", str(tmp_path)]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 1 and "verdict: fail" in done.stdout
        assert [line for line in lines_of(done.stdout + done.stderr) if runner_sees_a_command(line)] == []

    @pytest.mark.parametrize("text", COMMANDS)
    def test_by_an_annotation(self, text: str) -> None:
        """Each line is one command of ours, which takes the whole line."""
        lines = annotation_lines(filled_with(text))
        assert lines
        for line in lines:
            assert re.match(r"::(error|warning|notice) (file=[^:,]*,)?title=[^:,]*::", line)
            assert len(lines_of(line)) == 1

    @settings(deadline=None, derandomize=True, database=None)
    @given(text=st.text(st.sampled_from("#[:]\u00ad\u200b \n\rxé") | st.characters(codec="utf-8"), max_size=30))
    def test_by_any_text(self, text: str) -> None:
        assert not any(map(runner_sees_a_command, lines_of(inert(text))))
        document = json.dumps({"a": [text]}, ensure_ascii=False)
        assert not any(map(runner_sees_a_command, lines_of(inert_json(document))))
        assert json.loads(inert_json(document)) == {"a": [text]}

    def test_other_text_stays_as_it_is(self) -> None:
        text = "ncclDevKernel<(c10::ScalarType)7>(a::b) # [1]\n  at::native::add\n"
        assert inert(text.replace("# [", "#[")) == text.replace("# [", "#[")


class TestNoTerminalCommandAndNoFormula:
    @pytest.mark.parametrize("text", ["\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\r", "\x08", "\u202e"])
    def test_at_the_terminal(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "t.json").write_text(json.dumps(hostile_trace(text)))
        done = classify(tmp_path / "t.json", format="table")
        assert done.returncode == 0 and not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", done.stdout + done.stderr)

    @pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\n=1", "a\n=cmd|'/C calc'!A0"])
    def test_in_a_spreadsheet(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "t.json").write_text(json.dumps(hostile_trace(text)))
        done = classify(tmp_path / "t.json", format="csv")
        rows = list(csv.reader(io.StringIO(done.stdout)))
        assert len(rows) == len(done.stdout.splitlines()) > 1
        assert not [cell for row in rows for cell in row if cell[:1] in ("=", "+", "-", "@") or "\n" in cell]


class TestNoMarkup:
    TEXTS = (
        "<script>a()</script>", "<img src=x onerror=a()>", "[a](https://evil.example)", "@everybody", "![a](b)",
        "</details></table><h1>", "| a |\n| - |", "`` ` ``", "see https://evil.example/a", "<!-- symmem-check -->",
    )  # fmt: skip

    @pytest.mark.parametrize("text", TEXTS)
    def test_in_summary_and_comment(self, text: str) -> None:
        result = filled_with(text)
        for document in (summary_markdown(result), comment_markdown(result, marker="<!-- m -->", sha=text)):
            shown = html.fromstring(MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(document))
            assert not shown.xpath("//script | //img | //h1 | //*[@onerror] | //a[contains(@href, 'evil')]")
            # GitHub mentions nobody in code.
            assert not shown.xpath("//text()[contains(., '@everybody')][not(ancestor::code or ancestor::pre)]")

    @pytest.mark.parametrize("text", TEXTS)
    def test_in_the_page(self, tmp_path: Path, text: str) -> None:
        write_page(filled_with(text), tmp_path / "page.html")
        own = html.fromstring((tmp_path / "page.html").read_bytes())
        write_page(filled_with("plain"), tmp_path / "plain.html")
        plain = html.fromstring((tmp_path / "plain.html").read_bytes())
        for kind in ("script", "img", "h1", "iframe", "form", "a[contains(@href, 'evil')]", "*[@onerror]"):
            assert len(own.xpath(f"//{kind}")) == len(plain.xpath(f"//{kind}"))

    @pytest.mark.parametrize("text", TEXTS)
    def test_in_junit(self, text: str) -> None:
        from lxml import etree

        own, plain = (etree.fromstring(junit_xml(filled_with(one)).encode()) for one in (text, "plain"))
        assert {one.tag for one in own.iter()} == {one.tag for one in plain.iter()}


class TestNoSecretInLogs:
    def test_the_token_is_in_no_output_and_no_file(self, tmp_path: Path) -> None:
        """The command line with a token, in calls that go well and in those that fail with all they know."""
        environment = {
            "GITHUB_TOKEN": SECRET, "GITHUB_REPOSITORY": "o/r", "GITHUB_EVENT_NAME": "push", "GITHUB_SHA": "a" * 40,
            "GITHUB_API_URL": "http://127.0.0.1:9", "GITHUB_RUN_ID": "1", "GITHUB_WORKFLOW_REF": "o/r/.github/w@x",
        }  # fmt: skip
        calls = (
            ["run", "--replay", "--page", "--out", str(tmp_path / "out")],
            ["report", str(tmp_path / "out"), "--comment", "--annotations"],
            ["fetch", "result", "--out", str(tmp_path)],
        )
        for call in calls:
            done = subprocess.run(
                [sys.executable, "-m", "runner", *call],
                cwd=PROJECT, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.stdout + done.stderr and SECRET not in done.stdout + done.stderr
        written = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(written) >= 4 and not [path for path in written if SECRET.encode() in path.read_bytes()]

    @pytest.mark.parametrize("name", ["GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PATH"])
    def test_a_record_keeps_only_variables_that_bear_on_collectives(self, name: str) -> None:
        assert not name.startswith(KEPT_VARIABLES) and "NCCL_DEBUG".startswith(KEPT_VARIABLES)


class TestTheCommandsEnd:
    """An output that takes nothing more is one line, never a traceback, and never a verdict that was not told."""

    COMMAND = (sys.executable, "-m", "runner", "classify", "tests/data/malformed/00_base_valid.json")

    def run(self, redirect: str) -> subprocess.CompletedProcess[str]:
        command = f"{shlex.join(self.COMMAND)} {redirect}"
        return subprocess.run(
            ["bash", "-c", command], cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False
        )

    def test_a_full_disk(self) -> None:
        done = self.run(">/dev/full")
        assert (done.returncode, done.stderr) == (2, "symmem-check: an output: No space left on device\n")

    @pytest.mark.parametrize("redirect", [">&-", "2>&-", ">&- 2>&-", "2>/dev/full"])
    def test_a_closed_output(self, redirect: str) -> None:
        done = self.run(redirect)
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_reader_that_has_left(self) -> None:
        """As a program in a pipe ends, by SIGPIPE; 0 would say that a gate holds of which nothing was seen."""
        # Left for certain: a reader in a shell might close its end only when all has been written.
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            done = subprocess.run(
                self.COMMAND, cwd=PROJECT, stdout=pipe, stderr=subprocess.PIPE, timeout=120, check=False
            )
        assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_every_line_of_the_document_has_its_tests() -> None:
    promises = re.findall(r"^\d\. \*\*(.+?)\.\*\*", (PROJECT / "SECURITY.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert promises == [
        "No code from data", "No path out of the run folder", "No unbounded memory or time", "No workflow command",
        "No terminal command, no formula", "No markup", "No secret in logs",
    ]  # fmt: skip
