"""Packed data as bytes: the same ones in whatever pieces they are asked for, also where the data breaks."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.trace.source import Source

# Packs to a tenth, so that much of it comes of one step of the unpacking.
TEXT = b"".join(b"%d, " % (number * number % 10_007) for number in range(120_000))
WHOLE = gzip.compress(TEXT, 1)
NOISE = gzip.compress(random.Random(1).randbytes(200_000).hex().encode(), 1)
BROKEN: dict[str, tuple[bytes, str]] = {
    "cut off": (WHOLE[:-300], "ends too early"),
    "cut off in its last bytes": (WHOLE[:-5], "ends too early"),
    "other bytes follow": (WHOLE + b"garbage, garbage", "is broken"),
    "a wrong checksum": (WHOLE[:-8] + b"\0" * 8, "is broken"),
    "a second member that is cut off": (
        gzip.compress(TEXT[:300_000]) + gzip.compress(TEXT[300_000:])[:-50],
        "too early",
    ),
    "a hole": (NOISE[:50_000] + b"\xff" * 40 + NOISE[50_040:], "is broken"),
    "packed twice and cut off": (gzip.compress(WHOLE)[:-200], "ends too early"),
}


def read(path: Path, size: int, begin: int = 0) -> tuple[bytes, str | None]:
    """All bytes from a place on, and what was wrong; asked for in views of one size."""
    view = memoryview(bytearray(size))
    found = bytearray()
    with Source(path) as source:
        if begin:
            source.go_to(begin)
        while count := source.readinto(view):
            found += view[:count]
        assert source.readinto(view) == 0
        return bytes(found), source.cut_short


@pytest.mark.parametrize(("data", "wrong"), BROKEN.values(), ids=BROKEN)
def test_broken_data_gives_the_same_bytes_in_any_pieces(data: bytes, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)
    found, why = read(path, 2**20)
    assert why is not None and wrong in why
    for size in (2**18, 100_000, 4096, 333):
        assert read(path, size) == (found, why)
        assert read(path, size, begin=1000) == (found[1000:], why)
    assert read(path, 4096, begin=len(found) + 10**6)[0] == b""


@pytest.mark.parametrize("name", ["cut off", "cut off in its last bytes", "other bytes follow", "a wrong checksum"])
def test_all_that_can_be_unpacked_is_given(name: str, tmp_path: Path) -> None:
    """But for the last byte, perhaps: with it comes the look at what follows, which fails."""
    data = BROKEN[name][0]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)
    wanted = zlib.decompressobj(wbits=-15).decompress(data[10:])
    found, _ = read(path, 2**18)
    assert len(found) >= len(wanted) - 1
    assert TEXT.startswith(found)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda data: gzip.compress(gzip.compress(data))])
def test_whole_data_from_any_place(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(pack(TEXT))
    for begin in (0, 1, 70_000, len(TEXT) - 1, len(TEXT)):
        assert read(path, 5000, begin) == (TEXT[begin:], None)
