"""A window of bytes that slides over a file: the reader's only buffer."""

from __future__ import annotations

from .source import Source


class Window:
    """The unread part of a file that is in memory: `buffer[start:end]`.

    One byte before `start` always exists, so that a decoder can be given a bracket there without a copy.
    Memory is the block that was asked for, or the longest event, whichever is larger.
    `limit`, while it is set, is a place in the file's text behind which nothing is read.
    """

    def __init__(self, source: Source, size: int) -> None:
        self.source = source
        self.limit: int | None = None
        self._size = size
        self.buffer = bytearray(size + 2)
        self._begin(0)

    def _begin(self, offset: int) -> None:
        self.start = 1
        self.end = 1
        self.exhausted = False
        self._offset = offset

    def __len__(self) -> int:
        return self.end - self.start

    def restart(self, offset: int = 0) -> None:
        """Begin anew at a place in the file's text; other than 0 in a plain file only."""
        self.source.go_to(offset)
        self._begin(offset)
        self.fill(self._size)

    @property
    def at_limit(self) -> bool:
        return self.limit is not None and self.offset(self.end) >= self.limit

    def offset(self, position: int) -> int:
        """Return the place in the file's text, in bytes from its beginning, of a position in the buffer."""
        return self._offset + position - 1

    def fill(self, size: int) -> None:
        """Hold at least `size` unread bytes, or all there are. Positions in the buffer change."""
        if self.exhausted or len(self) >= size:
            return
        unread = self.buffer[self.start : self.end]
        self._offset += self.start - 1
        if size + 2 > len(self.buffer):
            # A new one, not a longer one: decoded events may still look into the old buffer.
            self.buffer = bytearray(size + 2)
        self.buffer[1 : 1 + len(unread)] = unread
        self.start, self.end = 1, 1 + len(unread)
        with memoryview(self.buffer) as view:
            while len(self) < size and not self.at_limit:
                stop = size + 1
                if self.limit is not None:
                    stop = min(stop, self.end + self.limit - self.offset(self.end))
                count = self.source.readinto(view[self.end : stop])
                if not count:
                    self.exhausted = True
                    break
                self.end += count
