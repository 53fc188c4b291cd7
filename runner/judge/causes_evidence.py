"""What a cause is looked for in: the evidence of one phase, and one sort of call that fell back in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..model import Collective, Kind
from ..nccl_log import LogFacts
from ..result import Certainty, Environment
from ..runfolder import Buffer, PoolRecord
from .causes_facts import Version, sides_needed, version_numbers


class Evidence(NamedTuple):
    """What is known of one phase: its fallen-back collectives, its buffers on every rank, and what was around them.

    None or empty is always "not known". `workload` is the name of a workload that ships with the project, `symmetric`
    are the collectives of the same case or script, of any phase, that did run symmetric, `log` is what NCCL's own log
    says.
    """

    collectives: Sequence[Collective]
    buffers: Sequence[Buffer]
    op: str | None
    pool: PoolRecord | None
    environment: Environment
    workload: str | None = None
    symmetric: Sequence[Collective] = ()
    log: LogFacts | None = None

    @property
    def version(self) -> Version | None:
        """The NCCL really loaded; None where it isn't known or the ranks differ."""
        told = self.environment.nccl or (self.log.version if self.log else None)
        return (version_numbers(told) or None) if told and "/" not in told else None

    @property
    def nccl(self) -> str:
        """NCCL as a sentence names it."""
        return f"NCCL {'.'.join(map(str, self.version))}" if self.version else "this NCCL"

    def variable(self, name: str) -> str | None:
        """A variable's value: from the ranks' environment, or from where else NCCL's log says that NCCL took it."""
        value = self.environment.variables.get(name)
        if value is None and self.log is not None:
            value = self.log.variables.get(name)
        return value

    def is_zero(self, name: str) -> bool:
        """Whether a variable is set, and to a number that is 0, as NCCL reads it."""
        try:
            return int(self.variable(name) or "", 0) == 0
        except ValueError:
            return False


class Call(NamedTuple):
    """One sort of call that fell back: `times` times over ranks and steps. `bytes` as in a Collective.

    `buffers` are those that calls like this one use on every rank, as far as their kind, dtype and size tell.
    """

    kind: Kind
    dtype: str | None
    bytes: int | None
    group: str | None
    group_size: int | None
    coalesced: bool
    times: int
    buffers: Sequence[Buffer]

    def needed(self, version: Version | None) -> list[Buffer]:
        """The buffers that have to be symmetric memory for a symmetric kernel."""
        sides = sides_needed(self.kind, version)
        return [buffer for buffer in self.buffers if buffer.role not in ("input", "output") or buffer.role in sides]


class Found(NamedTuple):
    """A cause that holds: a sentence, what shows it, how sure, and a mend where the rule's own can be more exact."""

    sentence: str
    evidence: list[str]
    certainty: Certainty = "certain"
    mend: str | None = None


class Rule(NamedTuple):
    """One cause: a short name, what it means, what it is seen by, the mend, where to read of it, and how to look.

    `look` is pure. It returns None where the cause does not hold, or where the evidence for it is missing.
    """

    name: str
    means: str
    seen_by: str
    mend: str
    source: str
    look: Callable[[Call, Evidence], Found | None]


def buffers_of(collective: Collective, buffers: Sequence[Buffer]) -> list[Buffer]:
    """The buffers that calls like `collective` may have used: those of its kind, dtype and size, where these are known.

    A kernel that served several calls has the size of none of them.
    """
    found = [buffer for buffer in buffers if collective.kind in (buffer.kind, "unknown")]
    if collective.dtype is not None:
        found = [buffer for buffer in found if buffer.dtype == collective.dtype]
    if collective.bytes is not None and collective.calls == 1:
        # The smaller side of an all-gather or reduce-scatter is one rank's part of the larger.
        sizes = {collective.bytes, collective.bytes // max(1, collective.group_size or 1)}
        found = [buffer for buffer in found if buffer.bytes in sizes]
    return found


def told(buffers: Sequence[Buffer], of: Sequence[Buffer], what: str) -> str:
    """Some of the buffers of a call in words."""
    first = buffers[0]
    return f"{len(buffers)} of the ranks' {len(of)} {first.kind} buffers {what} ({first.bytes} bytes of {first.dtype})"
