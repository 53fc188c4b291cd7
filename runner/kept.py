"""What was read of a YAML file of this package, kept beside its compiled modules, as Python keeps those.

Reading the catalogue of kernels takes a fifth of the time in which a small trace is judged.
"""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from . import __version__

Content = TypeVar("Content")


class Kept:
    """The content of one file, good for one text of it and one version of this package."""

    def __init__(self, path: Path, text: bytes) -> None:
        self._path = path.parent / "__pycache__" / f"{path.name}.msgpack"
        self._text = f"{__version__} {len(text)} {zlib.crc32(text)}"

    def _stamp_of(self, packed: bytes) -> bytes:
        return f"{self._text} {len(packed)} {zlib.crc32(packed)}".encode()

    def read(self, content: type[Content]) -> Content | None:
        """The content, or None where none is kept, or that of another text or version."""
        try:
            stamp, _, packed = self._path.read_bytes().partition(b"\n")
            if stamp != self._stamp_of(packed):
                return None
            return msgspec.msgpack.decode(packed, type=content)
        except (OSError, msgspec.MsgspecError):
            return None

    def write(self, content: object) -> None:
        """Keep the content, where Python keeps what it compiles; where that can't be done it is read anew each time."""
        if sys.dont_write_bytecode or not self._path.parent.is_dir():
            return
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            try:
                packed = msgspec.msgpack.encode(content)
                unfinished.write_bytes(self._stamp_of(packed) + b"\n" + packed)
                unfinished.replace(self._path)
            finally:
                unfinished.unlink(missing_ok=True)
