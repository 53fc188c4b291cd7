"""One large file read by two processes at once, each a part of its events; a gzipped one is unpacked by both.

The other process begins at a comma in the middle that looks like one between two events. Whether it is one, only
the reading up to there tells: the first part ends there, or it doesn't. So the other's work is taken over where that
is proven, and only if it is what the first process would have done itself: the text is undamaged, and no frame that
matters is open at the cut. In every other case, and where the other process dies, the first one reads on alone; where
it dies while its rows are taken over, the file is read once more, alone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .merge import extend, fits, pieces
from .reader import Cut, TraceReader
from .source import Source, text_size
from .store import Store
from .text import Window

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from .worker import Worker

_STRETCH = 2**20
# Where the other begins, as a part of the text: it has to unpack what lies before, which is a sixth of the whole work.
_PLAIN_SHARE, _GZIP_SHARE = 0.5, 0.54
# No frame is open where one of these begins, unless it is nested in another.
_NODE = b'"autograd::engine::evaluate_function'
# The other process reads as much as this one: it is late only when stopped, or starved of its core.
_PATIENCE = 10.0
_PATIENCE_FACTOR = 5.0


class _BrokenOff(Exception):
    """The other process came to its end while this one was taking its rows over."""


def read_events(path: Path, *, block: int, halves: bool = False) -> tuple[TraceReader, Store]:
    """Read a file's events into a store, with `halves` in two processes. Raises UserError as the reader does."""
    store = Store()
    try:
        with SecondHalf(path, block, store) as second:
            reader = TraceReader(path, block=block, second=second if halves else None)
            for batch in reader.batches():
                store.add(batch)
    except _BrokenOff:  # what the store holds is neither half nor whole
        return read_events(path, block=block)
    return reader, store


class SecondHalf:
    """The other process, as `reader.SecondReader` wants it; what it read goes into `store`."""

    def __init__(self, path: Path, block: int, store: Store) -> None:
        self._path = path
        self._block = block
        self._store = store
        self._worker: Worker | None = None
        self._began = 0.0
        self._comma: int | None = None

    def begin(self, cut: Cut) -> None:
        from .worker import Worker  # not at import: most files are read without, and it takes a while

        self._began = time.monotonic()
        with contextlib.suppress(OSError):  # such as no more processes: this one reads all the same
            self._worker = Worker(_read_and_send, self._path, self._block, cut, os.getpid())

    def comma(self) -> int | None:
        if self._comma is None and self._worker is not None:
            try:
                if self._worker.receiving.poll(0):
                    self._comma = self._worker.receiving.recv()
            except (EOFError, OSError):  # the process ended
                self._worker.kill()
                self._worker = None
        return self._comma

    def has_read(self) -> dict[str, Any] | None:
        if self._worker is None:
            return None
        patience = max(_PATIENCE, _PATIENCE_FACTOR * (time.monotonic() - self._began))
        try:
            if not self._worker.receiving.poll(patience):
                return None
            members: dict[str, Any] = self._worker.receiving.recv()
            if not self._worker.receiving.poll(_PATIENCE):
                return None
            head = self._worker.receiving.recv()
        except (EOFError, OSError):  # the process ended, perhaps in the middle
            return None
        if not fits(self._store, head):
            return None
        extend(self._store, _received(self._worker.receiving, head))
        return members

    def __enter__(self) -> SecondHalf:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._worker is not None:
            self._worker.kill()


def _comma_near(window: Window, border: bytes) -> int | None:
    """Step to behind a comma that looks like one between two events, where possible before a node of backward.

    Returns its place in the text.
    """
    buffer, start = window.buffer, window.start
    node = buffer.find(_NODE, start, window.end)
    found = buffer.rfind(border, start, node) if node >= 0 else -1
    if found < 0:
        found = buffer.find(border, start, window.end)
    if found < 0:
        return None
    window.start = found + border.index(b",") + 1
    return window.offset(window.start) - 1


def _middle(path: Path, source: Source) -> int:
    return int(text_size(path) * (_PLAIN_SHARE if source.plain else _GZIP_SHARE))


def _read_and_send(path: Path, block: int, cut: Cut, parent: int, sending: Connection) -> None:
    reader, store = TraceReader(path, block=block), Store()
    try:
        with Source(path) as source:
            if source.identity != cut.identity:
                return
            window = Window(source, max(block, _STRETCH))
            window.restart(_middle(path, source))
            comma = _comma_near(window, cut.border)
            if comma is None:
                return
            sending.send(comma)
            for batch in reader.batches_from(window, cut):
                store.add(batch)
                if reader.damage.any or os.getppid() != parent:  # nobody waits for it any more
                    return
    except UserError:  # the first reader will come to it itself
        return
    if not reader.damage.any:
        _send(sending, reader.members, store)


def _send(sending: Connection, members: dict[str, Any], store: Store) -> None:
    sending.send(members)
    for piece in pieces(store):
        sending.send(piece)
    sending.send(None)


def _received(receiving: Connection, piece: Store | None) -> Iterator[Store]:
    """What `_send` sent, piece by piece, from a first one on. Raises _BrokenOff where the end is missing."""
    while piece is not None:
        yield piece
        try:
            if not receiving.poll(_PATIENCE):
                raise _BrokenOff
            piece = receiving.recv()
        except (EOFError, OSError):
            raise _BrokenOff from None
