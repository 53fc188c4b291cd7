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

_ANY_BORDER = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_BARE_WORD = re.compile(
    r"(?<=[:\[,])(\s*)([-+]?(?:nan|inf|infinity)|n/a|none|nil|undefined)(?=\s*[,}\]])", re.IGNORECASE
)
_LEADING = b" \t\r\n,"


class Pieces:
    """A stretch of text that begins at an event, taken apart.

    After `events()` is exhausted: `lost` has the offsets of unreadable pieces, `end` the offset behind the list's
    closing bracket (None where it did not come), `unfinished` tells that the last piece breaks off.
    """

    def __init__(self, text: bytes, border: bytes | None) -> None:
        self._text = text
        # Only a border with a line break in it can be trusted to stand between two events.
        self._border = border if border is not None and b"\n" in border else None
        self.lost: list[int] = []
        self.end: int | None = None
        self.unfinished = False

    def events(self) -> Iterator[Event]:
        for start, stop in self._split():
            if self.end is not None:
                return
            yield from self._piece(start, stop, last=stop == len(self._text))

    def _split(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of the pieces, by the file's own border where it has one."""
        if self._border is None:
            yield from self._split_anywhere(0, len(self._text))
            return
        start, comma = 0, self._border.index(b",")
        while (found := self._text.find(self._border, start)) >= 0:
            yield start, found + comma
            start = found + comma + 1
        yield start, len(self._text)

    def _split_anywhere(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        for border in _ANY_BORDER.finditer(self._text, start, stop):
            yield start, border.start()
            start = border.end()
        yield start, stop

    def _piece(self, start: int, stop: int, *, last: bool) -> Iterator[Event]:
        while start < stop and self._text[start] in _LEADING:
            start += 1
        if start == stop:
            return
        if self._text[start : start + 1] == b"]":
            self.end = start + 1
            return
        parsed = _parse(self._text[start:stop])
        if parsed is not None:
            row, used = parsed
            yield from from_loose([row])
            rest = self._text[start + used : stop].lstrip(_LEADING)
            if rest.startswith(b"]"):
                self.end = stop - len(rest) + 1
            elif rest:
                self._lose(stop - len(rest), last)
            return
        parts = list(self._split_anywhere(start, stop))
        if len(parts) > 1:
            for part_start, part_stop in parts:
                yield from self._piece(part_start, part_stop, last=last and part_stop == stop)
            return
        self._lose(start, last)

    def _lose(self, place: int, last: bool) -> None:
        self.lost.append(place)
        self.unfinished = self.unfinished or last


def _parse(piece: bytes) -> tuple[Any, int] | None:
    """The piece's first JSON value and the bytes it took, or None. A hole of NULs is a loss, not white space."""
    text = piece.decode("utf-8", "surrogateescape")
    for attempt, grown in ((text, []), _with_nulls(text)):
        try:
            row, end = _DECODER.raw_decode(attempt)
        except (ValueError, RecursionError):
            continue
        if not isinstance(row, dict):
            return None
        used = end - sum(growth for place, growth in grown if place < end)
        return _clean(row), len(text[:used].encode("utf-8", "surrogateescape"))
    return None


_DECODER = json.JSONDecoder(strict=False)


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


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
