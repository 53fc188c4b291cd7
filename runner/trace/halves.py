"""One large file read by two processes at once, each a part of its events.

The other process begins at a comma in the middle that looks like one between two events. Whether it is one, only
the reading up to there tells: the first part ends there, or it doesn't. So the other's work is taken over where that
is proven, and only if it is what the first process would have done itself: the text is undamaged, and no frame that
matters is open at the cut. In every other case, and where the other process dies, the first one reads on alone.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import UserError
from .merge import extend, fits, pieces
from .reader import Cut, TraceReader
from .store import Store
from .worker import Worker

_STRETCH = 2**20
# No frame is open where one of these begins, unless it is nested in another.
_NODE = b'"autograd::engine::evaluate_function'
# The other process reads as much as this one: it is late only when stopped, or starved of its core.
_PATIENCE = 10.0
_PATIENCE_FACTOR = 5.0


def read_events(path: Path, *, block: int, halves: bool = False) -> tuple[TraceReader, Store]:
    """Read a file's events into a store, with `halves` in two processes. Raises UserError as the reader does."""
    store = Store()
    with SecondHalf(path, block, store) as second:
        reader = TraceReader(path, block=block, second=second if halves else None)
        for batch in reader.batches():
            store.add(batch)
    return reader, store


class SecondHalf:
    """The other process, as `reader.SecondReader` wants it; what it read goes into `store`."""

    def __init__(self, path: Path, block: int, store: Store) -> None:
        self._path = path
        self._block = block
        self._store = store
        self._worker: Worker | None = None
        self._began = 0.0

    def begin(self, border: bytes, members: dict[str, Any], *, bare: bool) -> int | None:
        try:
            comma = _comma_near_middle(self._path, border)
            if comma is not None:
                self._began = time.monotonic()
                self._worker = Worker(_read_and_send, self._path, self._block, Cut(comma, border, members, bare))
        except OSError:  # such as no more processes: this one reads all the same
            return None
        return comma

    def has_read(self) -> dict[str, Any] | None:
        if self._worker is None:
            return None
        patience = max(_PATIENCE, _PATIENCE_FACTOR * (time.monotonic() - self._began))
        if not self._worker.receiving.poll(patience):
            return None
        try:
            members, found = _received(self._worker.receiving)
        except (EOFError, OSError):  # the process ended, perhaps in the middle
            return None
        if not fits(self._store, found[0]):
            return None
        found.reverse()
        while found:
            extend(self._store, found.pop())
        return members

    def __enter__(self) -> SecondHalf:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._worker is not None:
            self._worker.kill()


def _comma_near_middle(path: Path, border: bytes) -> int | None:
    """The place of a comma that looks like one between two events, where possible before a node of backward."""
    with path.open("rb", buffering=0) as file:
        middle = path.stat().st_size // 2
        file.seek(middle)
        text = file.read(_STRETCH)
    node = text.find(_NODE)
    found = text.rfind(border, 0, node) if node >= 0 else -1
    if found < 0:
        found = text.find(border)
    return None if found < 0 else middle + found + border.index(b",")


def _read_and_send(path: Path, block: int, cut: Cut, sending: Connection) -> None:
    reader, store = TraceReader(path, block=block), Store()
    try:
        for batch in reader.batches_from(cut):
            store.add(batch)
            if reader.damage.any:
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


def _received(receiving: Connection) -> tuple[dict[str, Any], list[Store]]:
    """What `_send` sent, all of it. Raises EOFError or OSError where the end is missing."""
    members: dict[str, Any] = receiving.recv()
    found: list[Store] = []
    while (piece := receiving.recv()) is not None:
        found.append(piece)
    return members, found
