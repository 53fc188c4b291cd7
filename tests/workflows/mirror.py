"""The reusable workflow's inputs and outputs, from action.yml: `python tests/workflows/mirror.py` writes them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).resolve().parent.parent.parent
WORKFLOW = PROJECT / ".github" / "workflows" / "symmem-check.yml"
OWN = {"token", "mode", "machine", "machine-key", "runner-token"}
"""The action's inputs that are not handed on to the check: its token is the job's, its mode `check`, and the machine is
the other jobs' affair."""
OUTSIDE = ("verdict", "forward-coverage", "backward-coverage", "regressions", "comment-url")
"""The action's outputs that are no paths on the job's machine."""


def mirrored(workflow: str, action: dict[str, Any]) -> str:
    """The workflow's text with its four blocks made anew."""
    inputs = {name: about for name, about in action["inputs"].items() if name not in OWN}
    outputs = {name: action["outputs"][name] for name in OUTSIDE}
    blocks = {
        "end of the action's inputs": [line for name, about in inputs.items() for line in _input(name, about)],
        "end of the action's outputs": [
            line
            for name, about in outputs.items()
            for line in (f"{name}:", *_described(about), f"  value: ${{{{ {_value(name)} }}}}")
        ],
        "end of the job's outputs": [f"{name}: ${{{{ steps.check.outputs.{name} }}}}" for name in outputs],
        "end of what is passed on": [f"{name}: ${{{{ inputs.{name} }}}}" for name in inputs],
    }
    lines: list[str] = []
    block: list[str] | None = None
    for line in workflow.splitlines():
        text = line.strip()
        if text.startswith("# ") and text[2:] in blocks:
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + one for one in blocks[text[2:]]]
            block = None
        if block is None:
            lines.append(line)
        if "mirror.py" in text:
            block = []
    return "\n".join(lines) + "\n"


def _value(name: str) -> str:
    value = f"jobs.check.outputs.{name}"
    return f"{value} || jobs.start.outputs.verdict" if name == "verdict" else value


def _input(name: str, about: dict[str, Any]) -> list[str]:
    default = about.get("default", "")
    boolean = default in ("true", "false")
    shown = default if boolean else json.dumps(default)
    return [f"{name}:", *_described(about), f"  type: {'boolean' if boolean else 'string'}", f"  default: {shown}"]


def _described(about: dict[str, Any]) -> list[str]:
    words, lines = about["description"].split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 100:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return ["  description: >-", *(f"    {line}" for line in lines)]


if __name__ == "__main__":
    action = yaml.safe_load((PROJECT / "action.yml").read_text(encoding="utf-8"))
    made = mirrored(WORKFLOW.read_text(encoding="utf-8"), action)
    WORKFLOW.write_text(made, encoding="utf-8")
    sys.stdout.write(f"{WORKFLOW}: written\n")
