"""The object around the events: the members before and after `traceEvents`, read without holding them all.

Only a few members are of use (which rank, which device); the others are stepped over token by token.
A member that is not valid JSON (metadata with unescaped quotes, which torch 2.13 and 2.14 write) must not cost
the events: the scan then looks for the events by their key.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .text import Window

WANTED = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds")
MEMBER_LIMIT = 64 * 2**20
"""The longest single member before the events, in bytes; a longer one is refused, so that memory stays bounded."""

_SPACE = re.compile(rb"[\s\x00]*")
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("?)|[{}\[\]]', re.DOTALL)
_SCALAR = re.compile(rb"[^,}\]]*")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')


class FrameError(Exception):
    """The text around the events is not what JSON allows; `position` is in the window's buffer."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class TooLong(Exception):
    """A member is longer than MEMBER_LIMIT."""


class Frame:
    """Reads members of the outer object from a window, keeping the wanted ones in `members`."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self.members: dict[str, Any] = {}
        self.ended = False

    def next_events(self) -> bool:
        """Step to the next `traceEvents` list: True with the window just behind its `[`, False at the end.

        `ended` is then True where the object was closed. Raises FrameError where the text is not JSON.
        """
        window = self._window
        while True:
            position = self._skip(window.start, _SPACE)
            if position >= window.end:
                return False
            byte = window.buffer[position]
            if byte == ord("}"):
                window.start = position + 1
                self.ended = True
                return False
            if byte == ord(","):
                window.start = position + 1
                continue
            if byte != ord('"'):
                raise FrameError(position)
            if self._member(position):
                return True

    def _member(self, position: int) -> bool:
        window = self._window
        start = position - window.start
        key_end = self._value_end(position) - window.start
        colon = self._skip(window.start + key_end, _SPACE) - window.start
        if window.start + colon >= window.end:
            window.start = window.end  # cut off in a key: nothing follows
            return False
        if window.buffer[window.start + colon] != ord(":"):
            raise FrameError(window.start + colon)
        value = self._skip(window.start + colon + 1, _SPACE) - window.start
        key = bytes(window.buffer[window.start + start + 1 : window.start + key_end - 1]).decode("utf-8", "replace")
        if key == "traceEvents" and window.buffer[window.start + value : window.start + value + 1] == b"[":
            window.start += value + 1
            return True
        end = self._value_end(window.start + value)
        if key in WANTED:
            text = bytes(window.buffer[end - (end - window.start - value) : end])
            self._keep(key, text)
        window.start = end
        return False

    def _keep(self, key: str, text: bytes) -> None:
        try:
            self.members[key] = json.loads(text.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            self.members.pop(key, None)

    def _more(self, position: int) -> int:
        """Read further; return the same place's position after the window has moved."""
        window = self._window
        if len(window) >= MEMBER_LIMIT:
            raise TooLong
        relative = position - window.start
        window.fill(min(2 * max(len(window), 4096), MEMBER_LIMIT))
        return window.start + relative

    def _skip(self, position: int, pattern: re.Pattern[bytes]) -> int:
        """Return the position behind a run that may go on past what is in memory."""
        window = self._window
        while True:
            match = pattern.match(window.buffer, position, window.end)
            position = match.end() if match else position
            if position < window.end or window.exhausted:
                return position
            position = self._more(position)

    def _value_end(self, position: int) -> int:
        """Return the position behind the value that begins at `position`; the window's end where it is cut off."""
        window = self._window
        if bytes(window.buffer[position : position + 1]) not in (b'"', b"{", b"["):
            return self._skip(position, _SCALAR)
        depth = 0
        while True:
            match = _TOKEN.search(window.buffer, position, window.end)
            if match is None or match.group(1) == b"":
                position = match.start() if match else window.end
                if window.exhausted:
                    return window.end
                position = self._more(position)
                continue
            position = match.end()
            depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(match.group(), 0)
            if depth <= 0:
                return position

    def find_events(self) -> bool:
        """Look for `"traceEvents": [` by its text, for a frame that is not valid JSON. True when found."""
        window = self._window
        while True:
            match = _EVENTS_KEY.search(window.buffer, window.start, window.end)
            if match:
                window.start = match.end()
                return True
            if window.exhausted:
                return False
            self._more(window.start)
