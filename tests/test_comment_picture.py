"""The README's picture of a comment: what it is made of is still there, and it is small and told in words too."""

from __future__ import annotations

import re
from pathlib import Path

from .comment_picture import LARGEST, LOST, PICTURE, comment, html


def test_the_comment_has_one_regression_with_its_cause(tmp_path: Path) -> None:
    text = comment(tmp_path / "run")
    assert text.splitlines()[1] == "## symmem-check: FAIL"
    assert re.search(rf"`{LOST}` \| pass: symmetric `\w+` \| \*\*regressed\*\*: fell back", text)
    assert "use_mem_pool of the calling thread does not hold. **Do this:**" in text
    assert "**known**" not in text and "not in the suite" not in text
    page = html(text)
    assert page.count("<table>") == 5 and "<details open><summary>4 cases as before" in page


def test_the_picture_is_small_and_has_a_text_for_who_cannot_see_it(project: Path) -> None:
    assert PICTURE.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and PICTURE.stat().st_size <= LARGEST
    shown = re.search(r"!\[([^\]]{60,})\]\(docs/comment\.png\)", (project / "README.md").read_text())
    assert shown is not None and "regressed" in shown[1]
