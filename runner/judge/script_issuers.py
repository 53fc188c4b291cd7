"""Who issued a collective: the op around its launch, and the module that ran."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..model import Collective

_NODE = re.compile(r"(?:^|; )\w+: under autograd::engine::evaluate_function: ([^;,]+)")


class Issuer(NamedTuple):
    """The op and the module path that issued a collective; each None where the trace doesn't tell."""

    op: str | None
    module: str | None


def issuers(path: Path, rows: Sequence[Collective], modules: Sequence[str]) -> list[Issuer]:
    """Return the issuer of each of `rows`, the collectives of the trace at `path`."""
    return [Issuer(found[1].strip() if (found := _NODE.search(row.why)) else None, None) for row in rows]
