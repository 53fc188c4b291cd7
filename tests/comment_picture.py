"""Makes docs/comment.png, the README's picture of a comment: python -m tests.comment_picture.

The comment is the project's own, of the recorded run that ships with it and of a pull request that takes the memory
pool out of the tensor-parallel backward: the run compared has the recorded traces of `tensor_parallel/step` in the
place of those of `tensor_parallel/backward`. Only what GitHub adds is drawn here: the frame and its style.

It takes chromium and pngquant, and the fonts that GitHub names for Linux (Debian: fonts-noto-core, fonts-liberation).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from markdown_it import MarkdownIt

from runner.judge.gate import gated
from runner.judge.run import judge_run
from runner.plan import write_plan
from runner.report.markdown import comment_markdown
from runner.result import Gate
from runner.run import REPLAY
from runner.runfolder import RunFolder
from runner.suite import load_suite

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "comment.png"
WIDTH, SCALE = 800, 2
LARGEST = 150_000
"""Bytes: a README that takes long to load is not read."""
SECONDS = 120.0
CHROMIUM = ("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
PNGQUANT = ("pngquant", "--force", "--nofs", "--speed", "1", "--strip", "16")
CASES = (
    "all_reduce/static", "tensor_parallel/backward", "ddp_hook/static", "fsdp2/default", "collectives/all_gather/*",
)  # fmt: skip
LOST, INSTEAD = "tensor_parallel/backward", "tensor_parallel/step"

# The colours and sizes are those of GitHub's light theme: https://primer.style/product/primitives/color/
PAGE = """\
<!doctype html>
<meta charset="utf-8">
<style>
body { margin: 0; padding: 12px; background: #fff; color: #1f2328; }
body { font: 14px/1.5 "Noto Sans", Helvetica, Arial, sans-serif; }
.comment { border: 1px solid #d1d9e0; border-radius: 6px; }
.head { padding: 8px 16px; color: #59636e; background: #f6f8fa; }
.head { border-bottom: 1px solid #d1d9e0; border-radius: 6px 6px 0 0; }
.head b { color: #1f2328; }
.head span { border: 1px solid #d1d9e0; border-radius: 2em; padding: 0 7px; font-size: 12px; margin-left: 4px; }
.body { padding: 16px; }
.body > :first-child { margin-top: 0; }
.body > :last-child { margin-bottom: 0; }
h2, h3, h4 { margin: 24px 0 16px; line-height: 1.25; font-weight: 600; }
h2 { font-size: 21px; padding-bottom: .3em; border-bottom: 1px solid #d1d9e0b3; }
h3 { font-size: 17.5px; }
p, ul, table, details, blockquote { margin: 0 0 16px; }
ul { padding-left: 2em; }
li + li { margin-top: .25em; }
table { border-collapse: collapse; display: block; width: max-content; max-width: 100%; overflow: hidden; }
th, td { padding: 6px 13px; border: 1px solid #d1d9e0; }
th { font-weight: 600; }
tr:nth-child(2n) td { background: #f6f8fa; }
a { color: #0969da; text-decoration: underline; text-underline-offset: .2rem; }
code { padding: .2em .4em; border-radius: 6px; background: #818b981f; }
code { font: 85%/1.5 "Liberation Mono", Menlo, monospace; }
summary { margin-bottom: 16px; }
details:not([open]) summary { margin-bottom: 0; }
sub { line-height: 0; }
</style>
<div class="comment">
<div class="head"><b>github-actions</b><span>bot</span> commented 1 minute ago</div>
<div class="body">BODY</div>
</div>
<script>document.documentElement.dataset.height = document.documentElement.scrollHeight;</script>
"""


def comment(folder: Path) -> str:
    """The comment's Markdown; the run with the regression is made in `folder`."""
    suite = load_suite("default").select(CASES)
    run = RunFolder(shutil.copytree(REPLAY, folder))
    plan = run.plan()
    shown = [case for case in plan.cases if any(fnmatchcase(case.id, pattern) for pattern in CASES)]
    write_plan(msgspec.structs.replace(plan, cases=shown), folder / "plan.json")
    base = msgspec.structs.replace(judge_run(run, suite), created="2026-11-30T08:00:00+00:00")
    for path in (folder / "cases" / INSTEAD).iterdir():
        shutil.copyfile(path, folder / "cases" / LOST / path.name)
    for path in (folder / "cases" / LOST).glob("rank*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"case": LOST}))
    head = gated(judge_run(run, suite), Gate(), base, "main/result.json")
    return comment_markdown(
        head, marker="<!-- -->", sha="5f0c7d1be402",
        run_url="https://github.com/org/train/actions/runs/1", glossary="https://github.com/org/symmem-check#the-words",
    )  # fmt: skip


def html(markdown: str) -> str:
    """The comment as GitHub shows it; what it folds is open where it holds cases."""
    body = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)
    body = re.sub(r"<details>(?=<summary>\d+ cases)", "<details open>", body)
    return PAGE.replace("BODY", body)


def draw(page: Path, picture: Path) -> None:
    """Take a picture of the page in Chromium, as high as it is."""
    options = (f"--user-data-dir={page.parent / 'profile'}", f"--force-device-scale-factor={SCALE}", page.as_uri())
    shown = _run(*CHROMIUM, "--dump-dom", f"--window-size={WIDTH},200", *options)
    height = re.search(r'data-height="(\d+)"', shown)
    assert height is not None, shown[:2000]
    _run(*CHROMIUM, f"--screenshot={picture}", f"--window-size={WIDTH},{height[1]}", *options)
    _run(*PNGQUANT, "--output", str(picture), str(picture))


def _run(*command: str) -> str:
    return subprocess.run(
        command, check=True, timeout=SECONDS, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ).stdout


def main() -> int:
    """Make the picture anew; 1 where it has become too large."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "page.html").write_text(html(comment(folder / "run")), encoding="utf-8")
        draw(folder / "page.html", PICTURE)
    size = PICTURE.stat().st_size
    print(f"{PICTURE}: {size} bytes")
    return size > LARGEST


if __name__ == "__main__":
    sys.exit(main())
