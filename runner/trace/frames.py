"""Which CPU rows of a trace matter to the judgement, told by their names, and which of them are around a launch.

Sources of the names, all in https://github.com/pytorch/pytorch: torch/csrc/autograd/engine.cpp (evaluate_function),
torch/csrc/distributed/c10d/ParamCommsUtils.hpp (record_param_comms), ProcessGroupNCCL.cpp beside it (nccl:…),
torch/distributed/fsdp/_fully_shard (root_post_backward_callback), torch/optim/optimizer.py (Optimizer.step),
torch/profiler/profiler.py (ProfilerStep).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from itertools import islice
from operator import ge
from typing import NamedTuple

EVALUATE = 1 << 0
"""`autograd::engine::evaluate_function: …`: the engine runs a node of the backward graph."""
COMM = 1 << 1
"""`record_param_comms`: c10d's description of one call."""
SYMM = 1 << 2
"""`symm_mem::…`: an op of torch's own symmetric memory."""
NCCL = 1 << 3
"""`nccl:…`: ProcessGroupNCCL's window around what it launches."""
COALESCED = 1 << 4
BARRIER = 1 << 5
STEP = 1 << 6
OPTIMIZER = 1 << 7
CALLBACK = 1 << 8
"""FSDP2's autograd final callback: backward, though outside every `evaluate_function`."""
NAMES_FORWARD = 1 << 9
NAMES_BACKWARD = 1 << 10
NAMES_OPTIMIZER = 1 << 11
FORWARD_OP = 1 << 12
"""An op that records the graph (`Sequence number`, `Fwd thread id` 0); kept only where backward runs it again."""
INNER = 1 << 13
"""Any other op below a COMM or SYMM op; kept because it, not the call, is then the innermost op of a launch."""
IS_OP = 1 << 14
"""A CPU op, not an annotation."""

CALL = COMM | SYMM

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_PHASE_WORDS = {
    "forward": NAMES_FORWARD,
    "fwd": NAMES_FORWARD,
    "backward": NAMES_BACKWARD,
    "bwd": NAMES_BACKWARD,
    "optimizer": NAMES_OPTIMIZER,
}
# Pipeline schedules mark their actions with letters: (F), and backward as a whole (B) or for weights (W).
_PHASE_LETTERS = {"(F)": NAMES_FORWARD, "(B)": NAMES_BACKWARD, "(W)": NAMES_BACKWARD}


def flags_of_op(name: str) -> int:
    """The flags of a CPU op by its name; 0 for one that matters only inside others."""
    if name == "record_param_comms":
        return COMM | IS_OP
    if name.startswith("autograd::engine::evaluate_function"):
        return EVALUATE | IS_OP
    if name.startswith("symm_mem::"):
        return SYMM | IS_OP
    return _flags_of_any(name)


def flags_of_annotation(name: str) -> int:
    """The flags of a user annotation by its name; 0 for one that tells nothing."""
    flags = _flags_of_any(name)
    return flags if flags & (NCCL | STEP) else flags | _named_phase(name)


def _flags_of_any(name: str) -> int:
    if name.startswith("nccl:"):
        return NCCL | COALESCED * (name == "nccl:coalesced") | BARRIER * ("barrier" in name)
    if name.startswith("ProfilerStep#"):
        return STEP
    if name.startswith("Optimizer.step"):
        return OPTIMIZER
    if "root_post_backward_callback" in name:
        return CALLBACK
    return 0


def _named_phase(name: str) -> int:
    """The one phase that the name names, else 0."""
    found = {flag for word in _WORDS.findall(name) if (flag := _PHASE_WORDS.get(word.lower()))}
    found |= {flag for letters, flag in _PHASE_LETTERS.items() if letters in name}
    return found.pop() if len(found) == 1 else 0


class Frame(NamedTuple):
    """One CPU row around a launch. `name` and `call` index the store's names and call descriptions, -1 for none."""

    flags: int
    name: int
    call: int
    start: float
    end: float


class Frames:
    """The kept rows of one thread, as columns: about 32 bytes a row, whatever the trace holds."""

    def __init__(self) -> None:
        self.starts = array("d")
        self.ends = array("d")
        self.flags = array("i")
        self.names = array("i")
        self.calls = array("i")

    def __len__(self) -> int:
        return len(self.starts)

    def append(self, start: float, end: float, flags: int, name: int = -1, call: int = -1) -> None:
        self.starts.append(start)
        self.ends.append(end)
        self.flags.append(flags)
        self.names.append(name)
        self.calls.append(call)

    def frame(self, row: int) -> Frame:
        return Frame(self.flags[row], self.names[row], self.calls[row], self.starts[row], self.ends[row])

    def with_flags(self, flags: int) -> Iterable[Frame]:
        """The rows that have any of `flags`, in order."""
        return (self.frame(row) for row, own in enumerate(self.flags) if own & flags)

    def drop_plain_ops(self) -> None:
        """Forget the ops that were kept only for what stood around them."""
        plain = INNER | FORWARD_OP
        self._reorder([row for row, own in enumerate(self.flags) if own & CALL or not own & plain])

    def sort(self) -> None:
        """Order by start, the longer first where two start together."""
        starts, ends = self.starts, self.ends
        if not any(map(ge, starts, islice(starts, 1, None))):
            return
        order = sorted(range(len(self)), key=lambda row: (starts[row], -ends[row]))
        self._reorder(order)

    def _reorder(self, rows: list[int]) -> None:
        for column in ("starts", "ends", "flags", "names", "calls"):
            old = getattr(self, column)
            setattr(self, column, array(old.typecode, (old[row] for row in rows)))


class Walk:
    """The rows of one thread around moments that are asked for in order of time; the rows must be sorted."""

    def __init__(self, rows: Frames) -> None:
        self._rows = rows
        self._row = 0
        self._open: list[Frame] = []

    def around(self, time: float) -> tuple[Frame, ...]:
        """The rows that hold a moment, outermost first."""
        # Rows of one thread nest, but for asynchronous windows; so a finished one may lie below an open one.
        held = [frame for frame in self._open if frame.end >= time]
        starts, ends, row, count = self._rows.starts, self._rows.ends, self._row, len(self._rows)
        while row < count and starts[row] <= time:
            if ends[row] >= time:
                held.append(self._rows.frame(row))
            row += 1
        self._row, self._open = row, held
        return tuple(held)
