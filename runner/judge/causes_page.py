"""docs/causes.md, made from the causes themselves: python -m runner.judge.causes_page > docs/causes.md."""

from __future__ import annotations

from .cause import RULES

_TOP = """\
<!-- Made by: python -m runner.judge.causes_page > docs/causes.md -->
# Causes

When an eligible collective falls back to a general kernel, symmem-check looks for the cause in this order and tells the
first that its evidence supports: `certain`, `likely` or `possible`, with what shows it and what to do. Where the
evidence for a cause is missing, that cause is passed over; where none is left, the report says that the cause is not
known.

Evidence is what the ranks recorded (buffers, pool, versions, environment, NVLink), the traces, and NCCL's own log where
one was written (`symmem-check run --witness`).
"""


def causes_page() -> str:
    """The page as Markdown."""
    index = "\n".join(f"{number}. [{rule.name}](#{_anchor(rule.name)})" for number, rule in enumerate(RULES, 1))
    parts = [
        f"## {rule.name}\n\n{rule.means}\n\n"
        f"* Seen by: {rule.seen_by}.\n* Do this: {rule.mend}.\n* Source: <{rule.source}>\n"
        for rule in RULES
    ]
    return "\n".join([_TOP, index, "", *parts])


def _anchor(name: str) -> str:
    """The anchor that GitHub gives a heading: dots are left out."""
    return name.replace(".", "")


if __name__ == "__main__":
    print(causes_page(), end="")
