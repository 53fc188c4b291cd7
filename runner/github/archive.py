"""One file out of an artifact's zip, taken as data: nothing is unpacked under a name that the archive chose."""

from __future__ import annotations

import io
import stat
import zipfile
import zlib
from pathlib import Path

from ..errors import UserError
from ..report.text import one_line
from ..result import LARGEST_RESULT

RESULT_NAME = "result.json"
MOST_MEMBERS = 100_000
LARGEST_DIRECTORY = 16 * 2**20
"""Bytes of the archive's list of members: a hundred thousand with long names."""
_CHUNK = 2**20


class _Bounded(io.FileIO):
    """A file of which no more is read at once than a list of members may have: zipfile reads that whole."""

    def read(self, size: int | None = -1, /) -> bytes:
        whole = size is None or size < 0
        data = super().read(LARGEST_DIRECTORY + 1 if whole else min(size or 0, LARGEST_DIRECTORY + 1)) or b""
        if len(data) > LARGEST_DIRECTORY:
            raise UserError("the artifact's list of files is too long for an output folder of symmem-check")
        return data


def extract_result(archive: Path, to: Path, limit: int = LARGEST_RESULT) -> None:
    """Write the archive's `result.json` (the one nearest to its top) to `to`, `limit` bytes at most.

    What the archive says of its sizes is not believed. Raises UserError for an archive that is broken, that has no such
    file or two as near, or whose file is a link, is encrypted or is too large.
    """
    try:
        with _Bounded(archive) as file, zipfile.ZipFile(file) as opened:
            member = _result_member(opened)
            with opened.open(member) as source, to.open("wb") as target:
                left = limit
                while chunk := source.read(min(_CHUNK, left + 1)):
                    left -= len(chunk)
                    if left < 0:
                        raise UserError(f"the artifact's {RESULT_NAME} unpacks to more than {limit // 2**20} MiB")
                    target.write(chunk)
    # zipfile raises each of these for some malformed archive.
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        why = one_line(f"{type(error).__name__}: {error}", 300)  # it may quote a name of the archive
        raise UserError(f"the artifact is no zip file that can be read ({why})") from None


def _result_member(opened: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = opened.infolist()
    if len(members) > MOST_MEMBERS:
        raise UserError(f"the artifact has {len(members)} files, which is no output folder of symmem-check")
    found = [member for member in members if member.filename.split("/")[-1] == RESULT_NAME]
    nearest = min((member.filename.count("/") for member in found), default=0)
    found = [member for member in found if member.filename.count("/") == nearest]
    if len(found) != 1:
        raise UserError(f"the artifact has {len(found) or 'no'} {RESULT_NAME}; upload one output folder in it")
    member = found[0]
    mode = member.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        raise UserError(f"the artifact's {RESULT_NAME} is a link or the like, and no file")
    if member.flag_bits & 1:
        raise UserError(f"the artifact's {RESULT_NAME} is encrypted")
    # Of the other methods zipfile unpacks all at once, however little is read; no upload to GitHub uses them.
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"the artifact's {RESULT_NAME} is compressed by another method than zip's usual ones")
    return member
