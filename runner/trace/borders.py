"""Where one event of the list ends and the next begins: by the look of the text, or by its structure."""

from __future__ import annotations

import re

from .text import Window

_BORDER = re.compile(rb"\}\s*,\s*\{")
_FIRST_KEY = re.compile(rb'\s*"[^"\\]{0,40}"\s*:')
_COMMA = re.compile(rb"\s*,")
# Strings as a whole (up to the end of a text that breaks off), and runs of brackets.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*\\?(?:"|\Z)|[{\[]+|[}\]]+', re.DOTALL)


def last(window: Window, border: bytes | None, before: int) -> int | None:
    """The position of the comma that looks like the last between two events before a position.

    `border` is the text that the file has between events, if it is known.
    """
    buffer, start = window.buffer, window.start
    if border is not None:
        found = buffer.rfind(border, start, before)
        if found >= 0:
            return found + border.index(b",")
    stretch = 4096
    while True:
        low = max(start, before - stretch)
        borders = list(_BORDER.finditer(buffer, low, before))
        if borders:
            return borders[-1].start() + borders[-1].group().index(b",")
        if low == start:
            return None
        stretch *= 8


def text_around(window: Window, comma: int, *, with_key: bool = False) -> bytes | None:
    """The text from the end of one event to the beginning of the next around the comma between them.

    `with_key`: with the next event's first key, for files whose events hold borders of the same look.
    """
    buffer = window.buffer
    found = _BORDER.match(buffer, buffer.rfind(b"}", window.start, comma), window.end)
    if found is None:
        return None
    key = _FIRST_KEY.match(buffer, found.end(), window.end) if with_key else None
    return bytes(buffer[found.start() : key.end() if key else found.end()])


def by_structure(window: Window) -> tuple[int | None, int | None]:
    """Step through the window's brackets: the last comma between events, and the list's closing bracket.

    Each None where it is not in the window. Right for valid JSON; in other text the answer may be wrong.
    """
    depth, comma = 0, None
    for token in _TOKEN.finditer(window.buffer, window.start, window.end):
        first = window.buffer[token.start()]
        if first in b"{[":
            depth += token.end() - token.start()
        elif first != ord('"'):
            if token.end() - token.start() > depth:
                return comma, token.start() + depth
            depth -= token.end() - token.start()
            if depth == 0 and (found := _COMMA.match(window.buffer, token.end(), window.end)):
                comma = found.end() - 1
    return comma, None
