"""Events out of text that is not valid JSON, one by one: the slow and forgiving path.

Only repairs that cannot change a meaning are made: a bare `N/A`, `nan` or `inf` (as old Kineto wrote them) is read
as "no value". Everything else that does not parse is left out, and its place kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .events import Event, from_loose

_ANY_BORDER = re.compile(r"\}\s*,\s*(?=\{)")
_BARE_WORD = re.compile(
    r"(?<=[:\[,])(\s*)([-+]?(?:nan|inf|infinity)|n/a|none|nil|undefined)(?=\s*[,}\]])", re.IGNORECASE
)
_BETWEEN = re.compile(r"[ \t\r\n,]*")
# An event with a bare word may hold such borders itself; how many of them are tried as its end.
_ENDS_TRIED = 4
_DECODER = json.JSONDecoder(strict=False)


class Pieces:
    """A stretch of text that begins at an event, taken apart.

    After `events()` is exhausted: `lost` has the offsets of unreadable pieces, `end` the offset behind the list's
    closing bracket (None where it did not come), `unfinished` the offset of a last piece that breaks off, which is
    in `lost` too.
    """

    def __init__(self, text: bytes, border: bytes | None) -> None:
        self._text = text.decode("utf-8", "surrogateescape")
        self._ascii = text.isascii()
        # Only a border with a line break in it can be trusted to stand between two events.
        self._border = border.decode("ascii", "replace") if border is not None and b"\n" in border else None
        self.lost: list[int] = []
        self.end: int | None = None
        self.unfinished: int | None = None

    def events(self) -> Iterator[Event]:
        at = 0
        while True:
            match = _BETWEEN.match(self._text, at)
            at = match.end() if match else at
            if at >= len(self._text):
                return
            if self._text[at] == "]":
                self.end = self._offset(at + 1)
                return
            parsed = self._parse(at)
            if parsed is not None:
                row, at = parsed
                yield from from_loose([row])
                continue
            self.lost.append(self._offset(at))
            border = self._next_event(at)
            if border is None:
                self.unfinished = self.lost[-1]
                return
            at = border

    def _offset(self, position: int) -> int:
        return position if self._ascii else len(self._text[:position].encode("utf-8", "surrogateescape"))

    def _next_event(self, at: int) -> int | None:
        """Where the next event begins, by the file's own border where it has one."""
        if self._border is not None:
            found = self._text.find(self._border, at)
            if found >= 0:
                return found + len(self._border) - 1
        match = _ANY_BORDER.search(self._text, at)
        return match.end() if match else None

    def _parse(self, at: int) -> tuple[Any, int] | None:
        """The JSON value at a position and its end, if need be with bare words as nulls; or None."""
        value = _value(self._text, at)
        stop: int | None = at
        for _ in range(_ENDS_TRIED):
            if value is not None or stop is None:
                break
            stop = self._next_event(stop)
            repaired, grown = _with_nulls(self._text[at:stop])
            value = _value(repaired, 0) if grown else None
            if value is not None:
                row, end = value
                return row, at + end - sum(growth for place, growth in grown if place < end)
        return value


def _value(text: str, at: int) -> tuple[Any, int] | None:
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def _with_nulls(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Bare words replaced by null, and for each its place in the new text and by how much it grew."""
    parts: list[str] = []
    grown: list[tuple[int, int]] = []
    done = length = 0
    for match in _BARE_WORD.finditer(text):
        parts += [text[done : match.start(2)], "null"]
        length += match.start(2) - done
        grown.append((length, 4 - len(match.group(2))))
        length += 4
        done = match.end(2)
    return "".join([*parts, text[done:]]), grown
