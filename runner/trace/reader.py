"""A Kineto trace as batches of events, in bounded memory.

The text is read in blocks. Near the end of a block the reader guesses a border between two events and proves
the guess by decoding: a block that starts at an event decodes as a JSON list only if its end, too, lies
between two events, outside every string and nested value. So any layout is read rightly (any indent, compact,
any order of keys, names that contain braces and quotes); a usual layout is only faster.

A block that is not valid JSON is taken apart, repaired where the repair is certain, and what stays unreadable
is dropped and counted (`Damage`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from ..errors import UserError
from . import borders, python_rows, salvage
from .damage import NO_CLOSING, Damage
from .events import decode, decode_forgiving
from .frame import Frame, FrameError
from .source import Source
from .text import Window

BLOCK = 256 * 1024
EVENT_LIMIT = 16 * 2**20
"""The longest single event, in bytes; a file with a longer one is refused, so that memory stays bounded."""

_OPENING, _CLOSING = ord("["), ord("]")
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_LEADING = re.compile(rb"[ \t\r\n\x00]*")
# A wrong guess costs a decode of the block; after four the block's structure is read.
_GUESSES = 4


class NotATrace(UserError):
    """The file is whole, but something else: an object without `traceEvents`."""


class Cut(NamedTuple):
    """What a reader that begins behind a comma between two events must know of the text before.

    `border` is the text around such commas, `members` what the file said of itself; `bare` where the file is a list
    without an object around it. `identity` is the file's: another may have taken its name.
    """

    border: bytes
    members: dict[str, Any]
    bare: bool
    identity: tuple[int, ...]


class SecondReader(Protocol):
    """Reads a later part of the file while the first is being read."""

    def begin(self, cut: Cut) -> None:
        """Begin at some comma far behind, where there is reason to."""

    def comma(self) -> int | None:
        """The place of that comma, once it is known."""

    def has_read(self) -> dict[str, Any] | None:
        """Take over what was read from there; return the file's members in it, or None where it is not to be used.

        Called when the events before the comma are read, all of them, and it is proven to stand between two.
        """


class TraceReader:
    """Reads one file. Iterate `batches()` once; then `members` and `damage` are complete.

    Undecoded arguments of an event (`Op.args`) are views into the reader's buffer: decode them before the next batch.

    `members` holds what the file says of itself (distributedInfo, deviceProperties).
    Raises UserError with file, place and mend when there is nothing to read.
    """

    def __init__(self, path: Path, *, block: int = BLOCK, second: SecondReader | None = None) -> None:
        self.path = path
        self.damage = Damage()
        self.members: dict[str, Any] = {}
        self.block = block
        self._border: bytes | None = None
        self._bare = False
        self._second = second
        self._second_begun = False
        self._second_has_read = False

    def batches(self) -> Iterator[list[Any]]:
        """Yield lists of events in the file's order; rows of no interest are structs of other types."""
        with Source(self.path) as source:
            window = Window(source, self.block)
            window.fill(self.block)
            if not self._skip_to_text(window):
                why = f"{source.cut_short}, before anything could be read" if source.cut_short else "empty"
                raise UserError(f"{self.path}: {why}; record the trace again")
            first = window.buffer[window.start]
            if first not in (_OPENING, ord("{")):
                shown = bytes(window.buffer[window.start : window.start + 1]).decode("ascii", "backslashreplace")
                raise UserError(
                    f"{self.path}: line {self.line_of(window.offset(window.start))}: not a trace: a Kineto trace "
                    f"begins with {{ or [, this with {shown!r}"
                )
            window.start += 1
            self._bare = first == _OPENING
            if not self._bare:
                self._to_first_events(window)
            yield from self._to_the_end(window)
        self._refuse_unreadable()

    def batches_from(self, window: Window, cut: Cut) -> Iterator[list[Any]]:
        """As `batches`, for the events behind a cut, where `window` begins; `members` are the whole file's."""
        self._border, self._bare, self.members = cut.border, cut.bare, dict(cut.members)
        yield from self._to_the_end(window)

    def _to_the_end(self, window: Window) -> Iterator[list[Any]]:
        yield from self._list(window)
        if not self._second_has_read:
            self._after_events(window)
        if window.source.cut_short:
            self.damage.note(window.source.cut_short, events_missing=True)

    def salvaged(self) -> str | None:
        """What was lost, in one line, or None."""
        place = self.damage.first_place
        return self.damage.summary(None if place is None else self.line_of(place))

    def line_of(self, offset: int) -> int:
        """The line number, from 1, of a byte offset in the text. Reads the file again: for error messages only."""
        line, left = 1, offset
        view = memoryview(bytearray(self.block))
        with Source(self.path) as source:
            while left > 0 and (count := source.readinto(view[: min(left, len(view))])):
                line += bytes(view[:count]).count(b"\n")
                left -= count
        return line

    def _because(self, source: Source) -> str:
        return f" ({source.cut_short})" if source.cut_short else ""

    def _refuse_unreadable(self) -> None:
        if self.damage.lost_events and not self.damage.read_events:
            raise UserError(f"{self.path}: {self.salvaged()}; nothing else is in the file; record the trace again")

    @staticmethod
    def _skip_to_text(window: Window) -> bool:
        if window.buffer[window.start : window.start + 3] == b"\xef\xbb\xbf":
            window.start += 3
        while True:
            match = _LEADING.match(window.buffer, window.start, window.end)
            window.start = match.end() if match else window.start
            if window.start < window.end:
                return True
            if window.exhausted:
                return False
            window.fill(BLOCK)

    def _after_events(self, window: Window) -> None:
        """Step through what follows the list of events."""
        if not self._bare:
            frame = Frame(window)
            try:
                if frame.next_events():
                    raise UserError(f"{self.path}: has traceEvents twice; keep one of them")
            except FrameError:  # behind the events nothing of need follows
                frame.ended = True
            self.members |= frame.members
            if not frame.ended:
                self.damage.note(NO_CLOSING)
        self._note_more_text(window)

    def _to_first_events(self, window: Window) -> None:
        """Step to the list of events, in text that is not valid JSON by its key. Raises UserError without one."""
        frame, place = Frame(window), ""
        self.members = frame.members
        try:
            if frame.next_events():
                return
        except FrameError as error:
            place = f" at line {self.line_of(window.offset(error.position))}"
        if frame.ended and not place:
            if frame.has_key:
                raise UserError(f"{self.path}: its traceEvents is no list; record the trace again")
            raise NotATrace(f"{self.path}: has no traceEvents list; give a trace that torch.profiler exported")
        window.restart()
        if not frame.find_events():
            wrong = f"is not valid JSON{place}" if place else f"breaks off{self._because(window.source)}"
            raise UserError(f"{self.path}: {wrong}, and no traceEvents list is in it; record the trace again")
        self.damage.note(f"the text before the events is not valid JSON{place}")

    def _note_more_text(self, window: Window) -> None:
        if Frame(window).skip_space():
            line = self.line_of(window.offset(window.start))
            self.damage.note(f"other text follows the end of the trace at line {line} and was not read")

    # ---- the list of events ------------------------------------------------------------------------------------

    def _list(self, window: Window) -> Iterator[list[Any]]:
        """Yield the events up to the list's end; the window then begins behind its `]`."""
        size = self.block
        while True:
            window.fill(size)
            if window.at_limit:
                yield from self._to_limit(window)
                if self._second_has_read:
                    return
                continue
            if self._border is not None and self._second is not None and window.limit is None:
                self._share(window, self._border, self._second)
            if self._skip_python(window):
                continue
            events, found = self._block_of_events(window)
            if found == "more" and not window.exhausted:
                events, found = self._by_structure(window)
            if events:
                self.damage.read_events += len(events)
                yield events
            if found == "end":
                window.limit = None
                return
            if found == "more":
                if window.exhausted:
                    yield from self._rest(window)
                    return
                if len(window) >= EVENT_LIMIT:
                    raise UserError(
                        f"{self.path}: line {self.line_of(window.offset(window.start))}: an event longer than "
                        f"{EVENT_LIMIT // 2**20} MiB; this is no trace, or a broken one"
                    )
                size = min(2 * len(window), EVENT_LIMIT)
            else:
                size = self.block

    def _share(self, window: Window, border: bytes, second: SecondReader) -> None:
        """Have another reader begin far behind, now that the look of borders is known, and read up to there only."""
        if not self._second_begun:
            self._second_begun = True
            second.begin(Cut(border, self.members, self._bare, window.source.identity))
        comma = second.comma()
        if comma is None:
            return
        if comma >= window.offset(window.end):
            window.limit = comma + 1
        else:  # this reader was faster
            self._second = None

    def _to_limit(self, window: Window) -> Iterator[list[Any]]:
        """Yield the events up to where the other reader began, and take over what it read, where that is proven right.

        Where it began inside an event, or something is damaged, this reader reads on as if there were no other.
        """
        window.limit = None
        try:
            events = self._decode(window, window.end - 1) if len(window) else []
        except msgspec.DecodeError:
            return
        window.start = window.end
        self.damage.read_events += len(events)
        yield events
        second, self._second = self._second, None
        members = None if second is None or self.damage.any else second.has_read()
        if members is not None:
            self.members |= members
            self._second_has_read = True

    def _skip_python(self, window: Window) -> bool:
        """Step over the block up to its last border where all of it is Python frames: half of a trace with stacks."""
        comma = borders.last(window, self._border, window.end) if self._border is not None else None
        count = None if comma is None else python_rows.count(window.buffer, window.start, comma, self._border)
        if comma is None or count is None:
            return False
        self.damage.read_events += count
        window.start = comma + 1
        return True

    def _block_of_events(self, window: Window) -> tuple[list[Any], str]:
        """Decode what is in memory up to the last border: the events, and "cut", "end" (of the list) or "more"."""
        guess = window.end
        for _ in range(_GUESSES):
            comma = borders.last(window, self._border, guess)
            if comma is None:
                break
            try:
                events = self._decode(window, comma)
            except msgspec.DecodeError as error:
                trailing = _TRAILING.search(str(error))
                if trailing:
                    return self._end(window, int(trailing.group(1))), "end"
                if "truncated" in str(error):
                    guess = comma
                    continue
                return self._take_apart(window, comma)
            if self._border is None:
                self._border = borders.text_around(window, comma)
            window.start = comma + 1
            return events, "cut"
        return [], "more"

    def _by_structure(self, window: Window) -> tuple[list[Any], str]:
        """As `_block_of_events`, for a block in which guessing found no border: by stepping through its brackets."""
        comma, end = borders.by_structure(window)
        try:
            if end is not None:
                events = self._decode(window, end)
                window.start = end + 1
                return events, "end"
            if comma is None:
                return [], "more"
            events = self._decode(window, comma)
        except msgspec.DecodeError:
            return self._take_apart(window, comma) if comma is not None and end is None else ([], "more")
        self._border = borders.text_around(window, comma, with_key=True)
        window.start = comma + 1
        return events, "cut"

    def _decode(self, window: Window, closing: int) -> list[Any]:
        """Decode the list from the window's start to the separator at `closing`, in place."""
        buffer = window.buffer
        opening = window.start - 1
        buffer[opening] = _OPENING
        kept, buffer[closing] = buffer[closing], _CLOSING
        try:
            # The events' undecoded arguments are views into the buffer: valid until the next block is read.
            return decode(memoryview(buffer)[opening : closing + 1])
        finally:
            buffer[closing] = kept

    def _end(self, window: Window, trailing: int) -> list[Any]:
        """Decode the last events: the decoder met other text, `trailing` bytes behind the list's `[`."""
        # `trailing` counts the other text's first byte, which may be a bracket itself.
        bracket = window.buffer.rindex(b"]", window.start - 1, window.start - 1 + trailing - 1)
        try:
            events = self._decode(window, bracket)
        except msgspec.DecodeError:  # nested so deeply that it depends on how deep the stack is here
            events, _ = self._take_apart(window, bracket, final=True)
        window.start = bracket + 1
        return events

    # ---- text that is not valid JSON -----------------------------------------------------------------------------

    def _rest(self, window: Window) -> Iterator[list[Any]]:
        """The end of the file without a border in it: the last events, and perhaps what follows the list."""
        window.buffer[window.start - 1] = _OPENING
        text = bytes(window.buffer[window.start - 1 : window.end])
        try:
            events = decode(text)
            window.start = window.end
        except msgspec.DecodeError as error:
            trailing = _TRAILING.search(str(error))
            end = int(trailing.group(1)) if trailing else None
            events = self._take_apart(window, window.end)[0] if end is None else self._end(window, end)
        self.damage.read_events += len(events)
        yield events

    def _take_apart(self, window: Window, stop: int, *, final: bool = False) -> tuple[list[Any], str]:
        """Read a stretch that is not valid JSON: as a whole by the forgiving reader, else event by event."""
        text = bytes(window.buffer[window.start : stop])
        try:
            events: list[Any] = decode_forgiving(b"[" + text + b"]")
        except ValueError:
            pass
        else:
            window.start = min(stop + 1, window.end)
            if stop == window.end:
                self.damage.break_off()
            return events, "cut"
        pieces = salvage.Pieces(text, self._border)
        events = list(pieces.events())
        if (
            pieces.unfinished is not None
            and not final
            and stop < window.end
            and (pieces.unfinished or len(window) < EVENT_LIMIT)
        ):
            # The cut may be a wrong guess, inside this piece: it is read with what follows.
            pieces.lost.pop()
            stop = window.start + pieces.unfinished - 1
        for place in pieces.lost:
            self.damage.lose(window.offset(window.start + place))
        if pieces.end is not None:
            window.start += pieces.end
            return events, "end"
        if stop == window.end:
            if pieces.unfinished is not None:
                self.damage.note("the file ends in the middle of an event", events_missing=True)
            else:
                self.damage.break_off()
        found = "more" if stop < window.start else "cut"
        window.start = min(stop + 1, window.end)
        return events, found
