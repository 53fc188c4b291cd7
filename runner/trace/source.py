"""A trace file as plain bytes, whatever it is wrapped in: plain or gzip, told by content, not by name."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import zlib
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ..errors import UserError

try:
    from isal import igzip_lib, isal_zlib
    from isal.igzip import IGzipFile

    GzipReader: Any = IGzipFile
    _ISAL_ERRORS: Any = (igzip_lib.IsalError, isal_zlib.error)
except ImportError:  # no wheel for this platform: the standard library reads the same bytes, slower
    from gzip import GzipFile

    GzipReader = GzipFile
    _ISAL_ERRORS = ()

GZIP_MAGIC = b"\x1f\x8b"
# A trace exported to .gz and compressed again by an upload step is common; more layers are a trick.
MAX_GZIP_LAYERS = 3
_GZIP_LENGTH = 4
_GZIP_LEAST = 18  # the shortest header and trailer
_GZIP_RATIO = 12  # Kineto's traces pack to a twelfth or less
_LAST_STEPS = (2**20, 2**12, 1)
_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it with `zstd -d` first",
    b"\xfd7zXZ\x00": "compressed with xz: unpack it with `xz -d` first",
    b"BZh": "compressed with bzip2: unpack it with `bzip2 -d` first",
}


def text_size(path: Path) -> int:
    """About how long the file's text is, in bytes; 0 where it can't be told, which the reading will tell better.

    A gzipped file ends with the length of what was packed last, modulo 2**32.
    """
    try:
        if not path.is_file():  # opening a pipe may wait for ever
            return 0
        with path.open("rb") as file:
            packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            size = file.seek(0, io.SEEK_END)
            if not packed or size < _GZIP_LEAST:
                return size
            file.seek(-_GZIP_LENGTH, io.SEEK_END)
            told = int.from_bytes(file.read(), "little")
    except (OSError, ValueError):
        return 0
    return told if told >= size else size * _GZIP_RATIO


class Source:
    """The decompressed bytes of one file, read forward.

    `cut_short` becomes a sentence when the compressed data ended or broke before its end; the bytes
    before that place are still delivered.

    Raises UserError on opening when the file is missing, not readable, or not a trace by its first bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_short: str | None = None
        self._refuse_no_file()
        try:
            self._file: IO[bytes] = path.open("rb", buffering=0)
        except OSError as error:
            raise UserError(f"{path}: cannot be opened ({error.strerror or error}); check the path") from None
        about = os.fstat(self._file.fileno())
        self.identity = about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns
        self._reader: Any = self._file
        self._opened: list[IO[bytes]] = [self._file]
        self._position = 0
        self._end: int | None = None  # of the text that can be had, once that is known of broken data
        try:
            self._unwrap()
        except BaseException:
            self.close()
            raise

    def _refuse_no_file(self) -> None:
        """Refuse pipes and devices: opening one may wait for ever, and a trace may have to be read twice."""
        try:
            mode = self.path.stat().st_mode
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"{self.path}: cannot be opened ({why}); check the path") from None
        if stat.S_ISDIR(mode):
            raise UserError(f"{self.path}: is a folder")
        if not stat.S_ISREG(mode):
            raise UserError(f"{self.path}: is no regular file; save the trace to a file first")

    def _unwrap(self) -> None:
        for layer in range(MAX_GZIP_LAYERS + 1):
            head = self._peek(6)
            if not head.startswith(GZIP_MAGIC):
                break
            if layer == MAX_GZIP_LAYERS:
                raise UserError(f"{self.path}: gzip inside gzip, {layer + 1} times; unpack it once and try again")
            packed = GzipReader(mode="rb", fileobj=self._file)
            self._opened.append(packed)
            self._file = packed
            # What is below its buffer, where it has one: of a call that fails all is lost that it has unpacked.
            self._reader = getattr(getattr(packed, "_buffer", None), "raw", packed)
        for magic, advice in _OTHER_FORMATS.items():
            if head.startswith(magic):
                raise UserError(f"{self.path}: {advice}")

    def _peek(self, size: int) -> bytes:
        head = b""
        with self._note_broken_gzip():
            while len(head) < size and (more := self._reader.read(size - len(head))):
                head += more
        with contextlib.suppress(*_GZIP_ERRORS):
            self._reader.seek(0)
        return head

    @property
    def plain(self) -> bool:
        """Whether the file is the text itself, so that reading may begin anywhere."""
        return len(self._opened) == 1

    def go_to(self, place: int) -> None:
        """Read on from a place in the text, in bytes from its beginning; from its end where it has no such place."""
        self.cut_short = None
        self._position = place
        self._end = None if self._seek(place) else place

    def readinto(self, view: memoryview) -> int:
        """Fill `view` with the next bytes and return how many; 0 at the end or where the data broke."""
        if self._end is None:
            filled = self._fill(view)
            if self.cut_short is None:
                self._position += filled
                return filled
            self._end = self._find_end()
            if not (self._seek(0) and self._seek(self._position)):
                self._end = self._position
        filled = self._fill(view[: self._end - self._position])
        self._position += filled
        return filled

    def _seek(self, place: int) -> bool:
        """Step to a place in the text, which is unpacked up to there; False where it breaks before."""
        with self._note_broken_gzip():
            self._reader.seek(place)
            return True
        return False

    def _fill(self, view: memoryview) -> int:
        filled = 0
        with self._note_broken_gzip():
            while filled < len(view) and (count := self._reader.readinto(view[filled:])):
                filled += count
        return filled

    def _find_end(self) -> int:
        """How much of broken data can be had, found by unpacking it again: of the call that fails, all is lost.

        From where it was read without fault it goes on in ever smaller steps, at last by single bytes.
        """
        end = self._position
        for step in _LAST_STEPS:
            view = memoryview(bytearray(step))
            if not (self._seek(0) and self._seek(end)):
                break  # data that is damaged inside may fail where it did not before
            with self._note_broken_gzip():
                while count := self._reader.readinto(view):
                    end += count
        return end

    def _note_broken_gzip(self) -> _BrokenGzip:
        return _BrokenGzip(self)

    def close(self) -> None:
        for file in reversed(self._opened):
            file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_GZIP_ERRORS: tuple[type[BaseException], ...] = (EOFError, zlib.error, OSError, io.UnsupportedOperation, *_ISAL_ERRORS)


class _BrokenGzip:
    """Turns the several exceptions of broken gzip data into `Source.cut_short`."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if kind is None:
            return False
        if isinstance(error, EOFError):
            self._source.cut_short = "the compressed data ends too early"
        elif isinstance(error, _GZIP_ERRORS):
            self._source.cut_short = f"the compressed data is broken ({error})"
        else:
            return False
        return True
