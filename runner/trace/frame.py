"""The object around the events: the members before and after `traceEvents`, read without holding them.

Only a few members are of use (which rank, which device); the others are stepped over, whatever their length.
A member that is not valid JSON (metadata with unescaped quotes, which torch 2.13 and 2.14 write) must not cost
the events: `find_events` then looks for them by their key.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .text import Window

WANTED = ("distributedInfo", "deviceProperties", "baseTimeNanoseconds")
KEPT_LIMIT = 2**20
"""The longest text of a wanted member, in bytes; a longer one is stepped over like any other."""

_FIRST_LOOK, _LOOK = 4096, 256 * 1024
_SPACE = re.compile(rb"[\s\x00]*")
_SCALAR = re.compile(rb"[^,}\]]*")
# Up to the closing quote (group 1), or to the end of a text that breaks off: so it never fails, which would be slow.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*\\?("|\Z)', re.DOTALL)
_IN_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_TOKEN = re.compile(_STRING.pattern + rb"|[{}\[\]]", re.DOTALL)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{}[]")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENTS_KEY_LENGTH = 256


class FrameError(Exception):
    """The text around the events is not what JSON allows; `position` is in the window's buffer."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class Frame:
    """Reads members of the outer object from a window, keeping the wanted ones in `members`.

    `ended` turns True where the object was closed, `has_key` where it has a member `traceEvents`, list or not.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self.members: dict[str, Any] = {}
        self.ended = False
        self.has_key = False

    def next_events(self) -> bool:
        """Step to the next `traceEvents` list: True with the window just behind its `[`, False at the end.

        Raises FrameError where the text is not JSON.
        """
        window = self._window
        while self.skip_space():
            byte = window.buffer[window.start]
            if byte == ord("}"):
                window.start += 1
                self.ended = True
                return False
            if byte == ord(","):
                window.start += 1
            elif byte != ord('"'):
                raise FrameError(window.start)
            elif self._member():
                return True
        return False

    def skip_space(self) -> bool:
        """Step over white space; False at the end of the file."""
        window = self._window
        while True:
            match = _SPACE.match(window.buffer, window.start, window.end)
            window.start = match.end() if match else window.start
            if window.start < window.end:
                return True
            if window.exhausted:
                return False
            window.fill(_LOOK)

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
            window.start = max(window.start, window.end - _EVENTS_KEY_LENGTH)
            window.fill(_LOOK)

    def _member(self) -> bool:
        """Step over one member, or into it where it is the list of events (then True)."""
        window = self._window
        key = _decoded(self._value())
        if not self.skip_space():
            return False
        if window.buffer[window.start] != ord(":"):
            raise FrameError(window.start)
        window.start += 1
        if not self.skip_space():
            return False
        if key == "traceEvents":
            self.has_key = True
            if window.buffer[window.start] == ord("["):
                window.start += 1
                return True
        text = self._value()
        if key in WANTED:
            self.members[key] = _decoded(text)
        return False

    def _value(self) -> bytes:
        """Step over the value at the window's start; return its text, empty where it is too long or cut off."""
        window = self._window
        value, kept, size = _Value(), bytearray(), _FIRST_LOOK
        while True:
            window.fill(size)
            chunk = bytes(window.buffer[window.start : min(window.end, window.start + size)])
            used = value.take(chunk)
            window.start += used
            if len(kept) <= KEPT_LIMIT:
                kept += chunk[:used]
            if value.done:
                return bytes(kept) if len(kept) <= KEPT_LIMIT else b""
            if window.start + len(chunk) - used >= window.end and window.exhausted:
                window.start = window.end
                return b""
            size = _LOOK


class _Value:
    """Finds the end of one JSON value in a text that comes in chunks, each behind the used part of the one before."""

    def __init__(self) -> None:
        self.done = False
        self._depth = 0
        self._in_string = False
        self._scalar: bool | None = None

    def take(self, chunk: bytes) -> int:
        """The number of bytes that belong to the value; `done` where it ended there."""
        if self._scalar is None:
            self._scalar = chunk[:1] not in (b'"', b"{", b"[")
        if self._scalar:
            match = _SCALAR.match(chunk)
            used = match.end() if match else 0
            self.done = used < len(chunk)
            return used
        if not self._in_string:
            return self._outside(chunk, 0)
        position, ended = self._string_end(chunk)
        return self._outside(chunk, position) if ended and not self.done else position

    def _string_end(self, chunk: bytes) -> tuple[int, bool]:
        match = _IN_STRING.match(chunk)
        end = match.end() if match else 0
        if chunk[end : end + 1] != b'"':
            return end, False
        self._in_string = False
        self.done = self._depth == 0
        return end + 1, True

    def _outside(self, chunk: bytes, position: int) -> int:
        """Step over a chunk by its brackets alone; where the value may end in it, token by token."""
        if self._depth == 0 and chunk[position : position + 1] == b'"':
            self._in_string = True
            return position + 1 + self._string_end(chunk[position + 1 :])[0]
        texts = _STRING.split(chunk[position:])  # text, closing quote, text, …
        depth = self._depth
        for byte in b"".join(texts[::2]).translate(None, _NO_BRACKETS):
            depth += 1 if byte in b"{[" else -1
            if depth <= 0:
                return self._tokens(chunk, position)
        self._depth = depth
        if len(texts) == 1 or texts[-2] == b'"':
            return len(chunk)
        self._in_string = True
        backslashes = len(chunk) - len(chunk.rstrip(b"\\"))
        return len(chunk) - backslashes % 2

    def _tokens(self, chunk: bytes, position: int) -> int:
        for match in _TOKEN.finditer(chunk, position):
            self._depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(match.group(), 0)
            if self._depth <= 0:
                self.done = True
                return match.end()
        return len(chunk)


def _decoded(text: bytes) -> Any:
    """The value of a member's text, None where it is no JSON."""
    try:
        return json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
