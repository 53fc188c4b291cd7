"""The axes that mean the same in every check: pool, dtype, op and size. Other axes are the workload's own."""

from __future__ import annotations

import re

from .yaml_file import Value

POOLS = ("none", "forward", "step", "single-thread", "backward", "static", "unregistered", "registered-not-symmetric")
DTYPES = (
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "uint8",
    "int32",
    "int64",
)
OPS = ("sum", "avg", "min", "max")

_CHOICES = {"pool": POOLS, "dtype": DTYPES, "op": OPS}
_SIZE = re.compile(r"([1-9][0-9]{0,14}) ?(B|KiB|MiB|GiB)")
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def read_axis(axis: str, value: Value) -> tuple[str, str | int]:
    """One value of an axis: as it stands in a case's id, and as the workload gets it.

    `pool`, `dtype` and `op` must be known names; a `size` is a number of bytes or one with a unit ("8 MiB"), and
    the workload gets bytes; any other axis takes text or whole numbers. Raises UserError with the value's place.
    """
    if axis in _CHOICES:
        word = value.choice(_CHOICES[axis])
        return word, word
    if axis == "size":
        return _read_size(value)
    plain = value.text_or_number()
    return str(plain), plain


def _read_size(value: Value) -> tuple[str, int]:
    written = value.text_or_number()
    if isinstance(written, int):
        return str(value.whole_number(1)), written
    found = _SIZE.fullmatch(written)
    if not found:
        value.error('must be a number of bytes, or one with a unit (B, KiB, MiB, GiB) such as "8 MiB"')
    number, unit = found.groups()
    return number + unit, int(number) * _UNITS[unit]
