"""A canary's issues as Markdown, from templates/canary.md.j2; text from a run is escaped on its way out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import limits
from .comparison import cells
from .text import Markdown, code, issue_link, markdown

if TYPE_CHECKING:
    import jinja2

    from ..canary_topics import Row, Topic


def issue_body(topic: Topic, *, marker: str, run_url: str | None) -> str:
    """An issue's text: the marker that nobody sees, what changed, the versions on both sides, the table."""
    document = _render("canary.md.j2", topic=topic, marker=Markdown(marker), run=_run(run_url))
    return limits.fitted(document, limits.COMMENT_LIMIT, limits.characters, "the run has all of it")


def again_body(topic: Topic, *, run_url: str | None) -> str:
    """The comment where something that was good again is back."""
    return f"Back in {_run(run_url)}: {', '.join(code(row) for row in topic.rows)}.\n"


def good_body(rows: Sequence[Row], *, fixed: bool, run_url: str | None) -> str:
    """The comment that closes an issue, with the versions that are good."""
    from ..canary_topics import sides

    if fixed:
        text = f"No longer told in {_run(run_url)}: the suite does not name the problem any more, or it is back there."
    else:
        text = f"Good again in {_run(run_url)}."
    lines = [
        f"- {code(row.name)}: {', '.join(f'{side.name} {code(side.after, 80)}' for side in sides(row))}" for row in rows
    ]
    return "\n".join([text, "", *lines]).rstrip() + "\n"


def _run(url: str | None) -> Markdown:
    return Markdown(f"[this run]({url})" if url and limits.is_plain_url(url) else "this run")


def _render(name: str, **values: Any) -> str:
    return _templates().get_template(name).render(**values)


@functools.cache
def _templates() -> jinja2.Environment:
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=False,  # HTML's escaping would not do for Markdown
        finalize=lambda value: value if isinstance(value, Markdown) else markdown(str(value)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.globals |= {"part": limits.part, "item": limits.item, "foot": limits.FOOT, "cells": cells}
    templates.filters |= {"code": code, "issue_link": issue_link}
    return templates
