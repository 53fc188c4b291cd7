"""The page of the action's inputs and outputs, made of action.yml: `python -m runner.action_reference`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ACTION = Path(__file__).resolve().parent.parent / "action.yml"
_INPUTS = re.compile(r"^inputs:\n(.*?)^\S", re.MULTILINE | re.DOTALL)
_HEADING_OR_NAME = re.compile(r"^  (?:# (?P<heading>.+)|(?P<name>[a-z][a-z-]*):)$", re.MULTILINE)
HEAD = """\
# The action's inputs and outputs

Made from [action.yml](../action.yml) by `make docs`. Every input may be left out or be empty, which is the same.
"""


def reference(text: str) -> str:
    """The page for the text of an action.yml."""
    action = yaml.safe_load(text)
    lines = [HEAD]
    for heading, names in _groups(text):
        lines += [f"## {heading}", "", "| input | default | what it does |", "| --- | --- | --- |"]
        lines += [_input(name, action["inputs"][name]) for name in names]
        lines.append("")
    lines += ["## Outputs", "", "| output | what it is |", "| --- | --- |"]
    lines += [f"| `{name}` | {_cell(output['description'])} |" for name, output in action["outputs"].items()]
    return "\n".join(lines) + "\n"


def _groups(text: str) -> Iterator[tuple[str, list[str]]]:
    """The headings among the inputs, which are comments, each with the names below it."""
    found = _INPUTS.search(text)
    heading, names = "", list[str]()
    for line in _HEADING_OR_NAME.finditer(found[1] if found else ""):
        if line["name"]:
            names.append(line["name"])
            continue
        if names:
            yield heading, names
        heading, names = line["heading"], []
    if names:
        yield heading, names


def _input(name: str, about: dict[str, Any]) -> str:
    default = about.get("default", "")
    return f"| `{name}` | {f'`{default}`' if default else ''} | {_cell(about['description'])} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference(ACTION.read_text(encoding="utf-8")))
