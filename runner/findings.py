"""What is told of collectives in every kind of run: why they fell back, and which kernels they ran as."""

from __future__ import annotations

from typing import Literal

import msgspec

from .model import Kind, Mechanism

Certainty = Literal["certain", "likely", "possible"]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why collectives of a phase fell back: a short name, a sentence, how sure, what shows it, and the mend."""

    name: str
    sentence: str
    certainty: Certainty
    evidence: list[str]
    mend: str


class KernelSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel (None: the copy engine) that a phase's collectives ran as, and how often over ranks and steps."""

    kernel: str | None
    kind: Kind
    mechanism: Mechanism
    algorithm: str | None
    symmetric: bool | None
    launches: int
