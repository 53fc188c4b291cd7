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
_BARE_WORD = re.compile(r"(?:[-+]?(?:nan|inf|infinity)|n/a|none|nil|undefined)(?=\s*[,}\]])", re.IGNORECASE)
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_WORDS_REPAIRED = 100  # in one event
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
        at, sure = 0, True
        while True:
            match = _BETWEEN.match(self._text, at)
            at = match.end() if match else at
            if at >= len(self._text):
                break
            # Behind a loss the reading may go on inside the lost event, until an event is seen again.
            if sure and self._text[at] == "]":
                self.end = self._offset(at + 1)
                return
            parsed = _parse(self._text, at)
            if parsed is not None:
                row, at = parsed
                sure = sure or (isinstance(row, dict) and "ph" in row)
                yield from from_loose([row])
                continue
            if sure:
                self.lost.append(self._offset(at))
            sure = False
            border = self._next_event(at)
            if border is None:
                break
            at = border
        if not sure:
            self.unfinished = self.lost[-1]

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


def _parse(text: str, at: int) -> tuple[Any, int] | None:
    """The JSON value at a position and its end, if need be with bare words as nulls; or None."""
    growth = 0
    for _ in range(_WORDS_REPAIRED):
        try:
            value, end = _DECODER.raw_decode(text, at)
        except json.JSONDecodeError as error:
            word = _BARE_WORD.match(text, error.pos)
            if word is None:
                return None
            text = f"{text[: word.start()]}null{text[word.end() :]}"
            growth += 4 - len(word.group())
        except (ValueError, RecursionError):
            return None
        else:
            return value, end - growth
    return None
