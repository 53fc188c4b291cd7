"""The catalogue of kernel names: from a kernel's name to the collective that it ran, as far as the name tells.

The facts stand in kernels.yaml, one row a family of names, each with its source. It is read at the first
`classify`, never at import.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec

from .errors import UserError
from .kept import Kept
from .model import Kind, Mechanism

CATALOGUE = Path(__file__).with_name("kernels.yaml")

SYMMETRIC: dict[Mechanism, bool | None] = {
    "nccl-symmetric": True,
    "nccl-copy-engine": True,
    "rccl-symmetric": True,
    "torch-symm-mem": True,
    "nvshmem": True,
    "library-symmetric": True,
    "nccl": False,
    "rccl": False,
    "peer-mapped": None,
    "unknown": None,
}
"""Whether a mechanism needs symmetric memory; None where it can't be told (CUDA IPC buffers are mapped, no windows)."""

_ON_AMD: dict[Mechanism, Mechanism] = {"nccl": "rccl", "nccl-symmetric": "rccl-symmetric"}


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """What a kernel's name tells.

    `multicast`, `algorithm` and `dtype` (torch's name, such as bfloat16) are None and `kind` is unknown where the name
    does not tell. `collective` is False for kernels that move no collective's data: barriers, signals, housekeeping,
    compute. `row` is the name of the catalogue's row that told it.
    """

    mechanism: Mechanism
    symmetric: bool | None
    multicast: bool | None
    kind: Kind
    algorithm: str | None
    dtype: str | None
    collective: bool
    row: str


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One family of names; the comment on top of kernels.yaml says what each key means."""

    name: str
    pattern: str
    library: str
    mechanism: Mechanism
    source: str
    kind: Kind | None = None
    symmetric: bool | None = None
    multicast: bool | str | None = None
    algorithm: str | None = None
    dtype: str | None = None
    collective: bool = True
    versions: str | None = None
    note: str | None = None


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of kernels.yaml: the words that patterns may capture, and the rows in order."""

    kinds: dict[str, Kind]
    dtypes: dict[str, str]
    rows: list[Row]


@lru_cache(maxsize=4096)
def classify(name: str) -> Kernel | None:
    """Tell what the kernel `name`, demangled or not, says about itself; None where no row knows it.

    NCCL and RCCL use the same names: this says NCCL, see `on_amd`.

    Raises UserError if the catalogue is broken.
    """
    return _matcher()(name)


def on_amd(kernel: Kernel) -> Kernel:
    """Say RCCL where `classify` said NCCL: for a trace with hip* runtime events or an AMD device."""
    mechanism = _ON_AMD.get(kernel.mechanism)
    return kernel if mechanism is None else msgspec.structs.replace(kernel, mechanism=mechanism)


def load(path: Path = CATALOGUE) -> Catalogue:
    """Read a catalogue. Raises UserError naming file and row if it is not as its own comment says."""
    text = path.read_bytes()
    kept = Kept(path, text)
    catalogue = kept.read(Catalogue)
    if catalogue is None:
        catalogue = _from_yaml(path, text)
        kept.write(catalogue)
    return catalogue


def _from_yaml(path: Path, text: bytes) -> Catalogue:
    import yaml  # not at import: takes longer than the rest, and is rarely needed

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        raw = yaml.load(text, Loader=loader)
        catalogue = msgspec.convert(raw, Catalogue)
    except yaml.YAMLError as error:
        said = " ".join(str(error).replace('in "<byte string>", ', "").split())
        raise UserError(f"{path}: not valid YAML: {said}") from error
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {_with_row_name(str(error), raw)}") from error
    for name, number in Counter(row.name for row in catalogue.rows).items():
        if number > 1:
            raise UserError(f"{path}: {number} rows are named {name}; give each a name of its own")
    return catalogue


def matcher(catalogue: Catalogue) -> Callable[[str], Kernel | None]:
    """Make the function from a kernel's name to its Kernel. Raises UserError naming a row whose pattern is broken."""
    any_row = _any_row(catalogue.rows).match

    def match(name: str) -> Kernel | None:
        function = qualified(name)
        if any_row(function) is None:
            return None
        for row in catalogue.rows:
            if found := _one_row(row.name, row.pattern).match(function):
                return _kernel(row, found.groupdict(), catalogue)
        return None

    return match


def qualified(name: str) -> str:
    """Give `name` as patterns see it: qualified and with its arguments, without return type and anonymous namespaces.

    Of a mangled name only the qualified name is demangled; its arguments stay as they are.
    """
    if name.startswith(("_Z", "__nv_static_")):
        name = _demangled(name)
    return name.removeprefix("void ").replace("(anonymous namespace)::", "")


@lru_cache(maxsize=1)
def _matcher() -> Callable[[str], Kernel | None]:
    return matcher(load())


_BEFORE, _AFTER = r"(?:\w+::)*?(?:", r")(?!\w)"


def _any_row(rows: list[Row]) -> re.Pattern[str]:
    """Join all patterns in one: most kernels are compute, and each costs one match of about a microsecond.

    Without groups, because `re` skips an alternative by its first letter only where no group begins.
    """
    named_group = re.compile(r"[(][?]P<[^>]*>")
    try:
        return re.compile(_BEFORE + "|".join(named_group.sub("(?:", row.pattern) for row in rows) + _AFTER)
    except re.error as error:
        for row in rows:
            _one_row(row.name, row.pattern)
        raise UserError(f"{CATALOGUE.name}: the rows' patterns do not go together: {error}") from error


@cache
def _one_row(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(_BEFORE + pattern + _AFTER)
    except re.error as error:
        raise UserError(f"{CATALOGUE.name}: row {name}: the pattern is no regular expression: {error}") from error


def _kernel(row: Row, words: dict[str, str | None], catalogue: Catalogue) -> Kernel:
    """Make what `row` says, with the words that its pattern captured."""
    algorithm = words.get("algorithm") or row.algorithm
    multicast = row.multicast
    if isinstance(multicast, str):
        multicast = re.search(multicast, algorithm or "") is not None
    return Kernel(
        mechanism=row.mechanism,
        symmetric=SYMMETRIC[row.mechanism] if row.symmetric is None else row.symmetric,
        multicast=multicast,
        kind=row.kind or catalogue.kinds.get(words.get("kind") or "", "unknown"),
        algorithm=algorithm,
        dtype=row.dtype or catalogue.dtypes.get(words.get("dtype") or ""),
        collective=row.collective,
        row=row.name,
    )


_LENGTH = re.compile(r"L?(\d{1,4})(?!\d)")


def _demangled(name: str) -> str:
    """Demangle the qualified name only (Itanium C++ ABI, <nested-name>): enough to tell whose kernel it is."""
    start = re.search(r"_ZN?K?L?(?=\d)", name)
    if start is None:
        return name
    parts, at = [], start.end()
    while length := _LENGTH.match(name, at):
        at = length.end() + int(length[1])
        parts.append(name[length.end() : at])
    named = "::".join(part for part in parts if not part.startswith(("_GLOBAL__N", "_INTERNAL_")))
    rest = name[at:]
    return named + ("<" + rest[1:] if rest.startswith("I") else "(" + rest)


def _with_row_name(message: str, raw: Any) -> str:
    """Put the row's name where msgspec says its index (`$.rows[3].kind`)."""
    found = re.search(r"[$][.]rows\[(\d+)\]", message)
    if found is None:
        return message
    row = raw["rows"][int(found[1])]
    name = row.get("name", "without a name") if isinstance(row, dict) else "that is no mapping"
    return f"row {name}: {message}"
