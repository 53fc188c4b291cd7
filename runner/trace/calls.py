"""What a call says of itself: kind, dtype, bytes, group; from a kernel's arguments, its call, or its name."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ..model import Kind
from .events import CommArgs

# c10::ScalarType as traces spell it (c10/core/ScalarType.h) → torch's name and bytes an element.
DTYPES: dict[str, tuple[str, int]] = {
    "Byte": ("uint8", 1),
    "Char": ("int8", 1),
    "Short": ("int16", 2),
    "Int": ("int32", 4),
    "Long": ("int64", 8),
    "UInt16": ("uint16", 2),
    "UInt32": ("uint32", 4),
    "UInt64": ("uint64", 8),
    "Bool": ("bool", 1),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "ComplexHalf": ("complex32", 4),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
    "Float8_e4m3fn": ("float8_e4m3fn", 1),
    "Float8_e5m2": ("float8_e5m2", 1),
    "Float8_e4m3fnuz": ("float8_e4m3fnuz", 1),
    "Float8_e5m2fnuz": ("float8_e5m2fnuz", 1),
    "Float8_e8m0fnu": ("float8_e8m0fnu", 1),
}
_BY_ANY_SPELLING = {name.lower(): value for name, value in DTYPES.items()} | {
    value[0]: value for value in DTYPES.values()
}

# The first that is found wins: "reduce_scatter" and "all_reduce" hold "reduce", "all_gather" holds "gather".
_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("reduce_scatter", re.compile("reduce_?scatter")),
    ("all_reduce", re.compile("all_?reduce")),
    ("all_gather", re.compile("all_?gather")),
    ("all_to_all", re.compile("all_?to_?all")),
    ("broadcast", re.compile("broadcast")),
    ("gather", re.compile("gather")),
    ("scatter", re.compile("scatter")),
    ("reduce", re.compile("reduce")),
    ("send_recv", re.compile("send|recv")),
)
COPY_ENGINE_KINDS: frozenset[Kind] = frozenset({"all_gather", "all_to_all", "gather", "scatter"})
_TOO_MANY = 1 << 48
"""More elements or ranks than there are: such a number is damage, and its sum must fit into 64 bits."""


class Facts(NamedTuple):
    """dtype in torch's name, `bytes` per rank (max of in and out), group description and size; None if unknown."""

    dtype: str | None
    bytes: int | None
    group: str | None
    group_size: int | None


@lru_cache(maxsize=1024)
def kind_of_word(word: str | None) -> Kind | None:
    """The kind that one name tells ("_allgather_base", "nccl:all_reduce"), or None ("nccl:coalesced")."""
    if word is None:
        return None
    lower = word.lower()
    return next((kind for kind, pattern in _KINDS if pattern.search(lower)), None)


def is_barrier_word(word: str | None) -> bool:
    return word is not None and "barrier" in word.lower()


def counts_as_call(args: CommArgs) -> bool:
    """Whether the row is a call that moves data between ranks: neither a wait, nor a barrier, nor a group of one."""
    word = (args.collective or "").lower()
    return word not in ("wait", "coalesced") and not is_barrier_word(word) and args.group_size != 1


def facts(own: CommArgs, call: CommArgs | None) -> Facts:
    """What is known of the data: each field from the kernel's own arguments, else from its call."""
    if call is None:
        call = own
    spelled = own.dtype if own.dtype is not None else call.dtype
    dtype, size = None, None
    if spelled is not None:
        dtype, size = _BY_ANY_SPELLING.get(spelled.removeprefix("c10::").lower(), (None, None))
    elements_in = _sane(own.in_elements if own.in_elements is not None else call.in_elements)
    elements_out = _sane(own.out_elements if own.out_elements is not None else call.out_elements)
    total = None
    if size is not None and elements_in is not None and elements_out is not None:
        total = max(elements_in, elements_out) * size
    return Facts(
        dtype,
        total,
        own.group if own.group is not None else call.group,
        _sane(own.group_size if own.group_size is not None else call.group_size),
    )


def _sane(count: int | None) -> int | None:
    return count if count is not None and 0 <= count < _TOO_MANY else None
