"""Whether a block of text holds Python frames and nothing else, told without decoding it.

With `with_stack=True` more than half of a trace are rows that no rule asks for. They may be stepped over only where
counting proves what decoding would: that the text is a run of whole `python_function` events of one list.
"""

from __future__ import annotations

import re

# An event as Kineto writes it, up to its arguments' first key: the kind first, nothing nested before the arguments.
_EVENT = re.compile(
    rb'\s*\{(\s*"ph"\s*:\s*"X"\s*,\s*"cat"\s*:\s*"python_function"\s*,)[^{}\[\]\\]*?(\s*"args"\s*:\s*\{\s*"[^"\\]*"\s*:)'
)


def count(buffer: bytearray, start: int, comma: int, border: bytes | None) -> int | None:
    """How many events stand in `buffer[start:comma]`, if all are Python frames; None where that is not proven.

    `start` is where an event begins, `comma` one between two events by its look (`border`, the text around it).

    Why counting proves it, in valid JSON: a border with a line break in it stands in no string. As no list opens or
    closes in the text, each border is one of the list of events. And each opening brace belongs to the head of such
    an event or to its arguments, so no other object is there.
    """
    if border is None or b"\n" not in border:
        return None
    first = _EVENT.match(buffer, start, comma)
    if first is None or buffer.find(b"[", start, comma) >= 0 or buffer.find(b"]", start, comma) >= 0:
        return None
    head, args = border + first[1], first[2]
    events = buffer.count(head, start, comma) + 1
    if b"\n" not in args or buffer.count(args, start, comma) != events:
        return None
    return events if buffer.count(b"{", start, comma) == 2 * events else None
