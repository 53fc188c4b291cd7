"""What fits into GitHub: a document of parts, shortened by dropping the least important, and saying so.

A template writes `{{ part(rank, name) }}` where a part begins, `{{ item() }}` before each thing in it that may be
dropped alone (a row, a list's item), and `{{ foot }}` before what has to stand behind them. So nothing is ever cut
within a table, a tag or a fence. The marks are control characters, which no text from a run can hold (text.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .text import Markdown

COMMENT_LIMIT = 65_536
"""Characters of a comment; with more, GitHub answers 422 "Body is too long (maximum is 65536 characters)"."""
SUMMARY_LIMIT = 999_000
"""Bytes of a step summary. GitHub throws one of more than 1 MiB away whole:
https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands#step-isolation-and-limits"""

_PART, _ITEM, _NAMED, _FOOT = "\x1d", "\x1e", "\x1f", "\x1c"
_URL = re.compile(r"https?://[A-Za-z0-9.:_-]+(?:/[A-Za-z0-9._~@#-]*)*")
FOOT = Markdown(_FOOT)


def part(rank: int, name: str) -> Markdown:
    """Mark where a part begins. The highest `rank` is dropped first, 0 never; `name` is what its items are called."""
    return Markdown(f"{_PART}{rank}{_NAMED}{name}{_NAMED}")


def item(weight: int = 1) -> Markdown:
    """Mark where an item begins. Within a part, those of the highest `weight` (0 to 9) are dropped first."""
    return Markdown(f"{_ITEM}{weight}")


class Part(NamedTuple):
    """A part of a document: its items between a head and a foot, as (weight, text)."""

    rank: int
    name: str
    head: str
    items: list[tuple[int, str]]
    foot: str

    def text(self, kept: int, where: str) -> str:
        """The part with its `kept` most important items in their order, and a sentence for the others."""
        order = sorted(range(len(self.items)), key=lambda index: (self.items[index][0], index))
        chosen = sorted(order[:kept])
        left_out = len(self.items) - kept
        more = f"\n_{left_out} more {self.name}: {where}._\n\n" if left_out else ""
        return "".join([self.head, *(self.items[index][1] for index in chosen), more, self.foot])


def parts_of(document: str) -> list[Part]:
    """A rendered template taken apart at its marks."""
    before, *marked = document.split(_PART)
    parts = [Part(0, "", before, [], "")] if before.strip() else []
    for one in marked:
        rank, name, content = one.split(_NAMED)
        content, _, foot = content.partition(_FOOT)
        head, *items = content.split(_ITEM)
        parts.append(Part(int(rank), name, head, [(int(text[0]), text[1:]) for text in items], foot))
    return parts


def characters(text: str) -> int:
    """Characters as UTF-16 counts them, which is never fewer than anybody else does."""
    return len(text.encode("utf-16-le")) // 2


def utf8_bytes(text: str) -> int:
    """Bytes in a file."""
    return len(text.encode())


def is_plain_url(url: str) -> bool:
    """Whether a URL can stand in a Markdown link as it is."""
    return len(url) <= 500 and _URL.fullmatch(url) is not None


def fitted(document: str, limit: int, size: Callable[[str], int], where: str) -> str:
    """The document within `limit` as `size` counts; `where` says in words where the whole is.

    Parts go from the highest rank on, each item by item, then whole; parts of rank 0 stay as they are.
    """
    parts = parts_of(document)
    kept = [len(one.items) for one in parts]
    dropped: list[int] = []
    # Of two with the same rank, the one that stands further down goes first.
    for index in sorted(range(len(parts)), key=lambda index: (parts[index].rank, index), reverse=True):
        if size(_joined(parts, kept, dropped, where)) <= limit or not parts[index].rank:
            break
        fewest, most = 0, len(parts[index].items)
        while fewest < most:
            kept[index] = (fewest + most + 1) // 2
            if size(_joined(parts, kept, dropped, where)) <= limit:
                fewest = kept[index]
            else:
                most = kept[index] - 1
        kept[index] = fewest
        if not fewest:
            dropped.append(index)
    return _joined(parts, kept, dropped, where)


def _joined(parts: Sequence[Part], kept: Sequence[int], dropped: Sequence[int], where: str) -> str:
    texts = [one.text(kept[index], where) for index, one in enumerate(parts) if index not in dropped]
    text = "".join(texts).rstrip("\n") + "\n"
    if not dropped:
        return text
    gone = [parts[index] for index in sorted(dropped)]
    names = [f"{one.name} ({len(one.items)})" if one.items else one.name for one in gone]
    return f"{text}\n_Left out for length: {', '.join(names)}; {where}._\n"
