"""What release.yml has to decide: is this tag a release, what are its notes, and which moving tags follow it?

usage: python .github/release.py TAG --notes FILE

It prints `name=value` lines for GITHUB_OUTPUT; exit status 2 with the mend.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TAG = re.compile(r"v(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})")
Version = tuple[int, int, int]


def version_of(tag: str) -> Version | None:
    """`v1.2.3` as numbers; None for any other tag."""
    found = _TAG.fullmatch(tag)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def moving(tag: str, tags: list[str]) -> list[str]:
    """The moving tags, such as v1 and v1.2, that follow `tag`: not back from a higher version."""
    own = version_of(tag)
    assert own is not None
    others = [version for one in tags if (version := version_of(one)) is not None]
    names = {f"v{own[0]}": 1, f"v{own[0]}.{own[1]}": 2}
    return [name for name, same in names.items() if all(own >= one for one in others if one[:same] == own[:same])]


def notes_of(changelog: str, version: str) -> str:
    """The changelog's section of a version, without its heading; "" where there is none or it says nothing."""
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## \[|^\[[^\]]+\]: |\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def main() -> int:
    """Check the tag in this checkout, write the notes, print the outputs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tag")
    parser.add_argument("--notes", type=Path, required=True)
    given = parser.parse_args()
    if version_of(given.tag) is None:
        return _refuse(f"{given.tag!r} is no release's tag; tag it as v1.2.3")
    version = given.tag[1:]
    written = re.search(r'^__version__ = "([^"]*)"$', (ROOT / "runner/__init__.py").read_text("utf-8"), re.MULTILINE)
    if written is None or written[1] != version:
        return _refuse(f"runner/__init__.py says {written and written[1]}, the tag {version}; let both say the same")
    notes = notes_of((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    if not notes:
        return _refuse(f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD` with something in it; write it")
    if _git("merge-base", "--is-ancestor", "HEAD", "origin/main") is None:
        return _refuse("the tagged commit is not on main; tag one that is")
    given.notes.write_text(notes + "\n", encoding="utf-8")
    print(f"version={version}")
    print(f"moving={' '.join(moving(given.tag, (_git('tag', '--list') or '').split()))}")
    print(f"commit={(_git('rev-parse', 'HEAD') or '').strip()}")
    return 0


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def _refuse(why: str) -> int:
    print(f"::error title=release::{why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
