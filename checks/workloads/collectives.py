"""One collective of every kind: each way to call it, and each choice of which of its buffers are registered.

Forward only: whatever chooses the kernel is the same in backward, which the all_reduce probe looks at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.distributed.distributed_c10d import _coalescing_manager

from ..case import Case
from ..memory import Incapable
from ..pools import Pool
from ..values import check_values, known_values
from .all_reduce import OPS

SIDES = ("both", "input", "output", "none")
PLACES = ("in", "out")
COALESCED = 4
# What another rank must not see in what it gets: the values of a seed that nobody sends.
NOBODY = 1_000_000


@dataclass
class Call:
    """One collective's buffers on this rank, of one dimension, what goes in, and what must come out.

    `input` and `output` may be one tensor, or one of them a part of the other. `source` is copied into the input
    before each call, since an in-place collective overwrites it. `expected` has, for each piece of the output, the
    seeds whose values are reduced there.
    """

    kind: str
    op: str
    source: Tensor
    expected: list[list[int]]
    input: Tensor
    output: Tensor

    def fill(self) -> None:
        """Write what this rank sends."""
        self.input.copy_(self.source)

    def check(self, case: Case) -> None:
        """Compare the output with the reference."""
        for piece, seeds in zip(self.output.chunk(len(self.expected)), self.expected, strict=True):
            check_values(case, piece, seeds, self.op)


def collectives(
    case: Case,
    pool: Pool,
    *,
    kind: str,
    dtype: str,
    op: str,
    size: int,
    registered: str = "both",
    place: str | None = None,
    call: str = "sync",
) -> None:
    """Trace one collective and check what it wrote.

    `kind` is all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or gather. `size` is in bytes and of the
    larger buffer of a rank. `registered` says which buffers are made in the pool: both, input, output or none.
    `place` is "in" or "out": torch has all_reduce and broadcast in place only, unless they are functional, and for the
    others None is "out".
    `call` is sync, async, side-stream, coalesced (several of them, of `size` together) or functional.
    Raises ValueError for a combination that torch does not have.
    """
    if place is None:
        place = "in" if kind in ("all_reduce", "broadcast") and call != "functional" else "out"
    refuse_what_torch_lacks(kind, op, registered, place, call)
    element = getattr(torch, dtype)
    refuse_float8_reductions(kind, element, case.device)
    count = COALESCED if call == "coalesced" else 1
    calls = [make_call(case, pool, kind, element, op, size // count, registered, place, n) for n in range(count)]
    issue = CALLS[call]

    def step() -> None:
        for each in calls:
            each.fill()
        issue(pool if registered in ("both", "output") else None, calls)

    try:
        case.run(step)
    except (RuntimeError, TypeError, ValueError) as error:
        if "float8" in str(error).lower():
            raise Incapable(f"this torch hands no {dtype} to NCCL for {kind}: {error}") from error
        raise
    for each in calls:
        each.check(case)


def refuse_what_torch_lacks(kind: str, op: str, registered: str, place: str, call: str) -> None:
    """Raise ValueError for axis values that are none, or that do not go together."""
    choices = {"kind": (kind, EAGER), "op": (op, OPS), "registered": (registered, SIDES), "place": (place, PLACES)}
    for axis, (value, allowed) in (choices | {"call": (call, CALLS)}).items():
        if value not in allowed:
            raise ValueError(f"there is no {axis} {value!r}: it is one of {', '.join(allowed)}")
    one_buffer = kind in ("all_reduce", "broadcast") and call != "functional"
    if one_buffer and (place != "in" or registered not in ("both", "none")):
        raise ValueError(f"torch has {kind} in place only: place in, and registered both or none")
    if place == "in" and (kind in ("all_to_all", "gather") or call == "functional"):
        raise ValueError(f"torch has no {call} {kind} in place")
    if kind == "gather" and call in ("coalesced", "functional"):
        raise ValueError(f"torch has no {call} gather")


def refuse_float8_reductions(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise Incapable where NCCL can't reduce 8-bit floats: before compute capability 9.0."""
    if dtype.itemsize > 1 or not dtype.is_floating_point or kind not in ("all_reduce", "reduce_scatter"):
        return
    if device.type != "cuda":
        raise Incapable(f"{dtype} is reduced by NCCL only, and this run is on the {device.type}")
    if torch.cuda.get_device_capability(device) < (9, 0):
        raise Incapable(f"NCCL reduces {dtype} from compute capability 9.0 on")


# ---- buffers ---------------------------------------------------------------------------------------------------------


def make_call(
    case: Case, pool: Pool, kind: str, dtype: torch.dtype, op: str, size: int, registered: str, place: str, number: int
) -> Call:
    """Make the buffers of one call of `size` bytes, with seeds that the case's other calls don't have (`number`)."""
    rank, ranks = case.rank, case.world_size
    piece = max(1, size // dtype.itemsize // ranks)
    first = number * ranks * ranks
    everybody = [first + peer for peer in range(ranks)]
    # Where each peer gets another piece, the one from `rank` for `peer` has this seed.
    to_peers = [first + rank * ranks + peer for peer in range(ranks)]
    from_peers = [first + peer * ranks + rank for peer in range(ranks)]

    def empty(side: str, elements: int) -> Tensor:
        with in_pool(pool) if registered in ("both", side) else contextlib.nullcontext():
            return torch.empty(elements, dtype=dtype, device=case.device)

    def values(seed: int, elements: int) -> Tensor:
        return known_values(elements, seed, dtype, case.device)

    whole = piece * ranks
    if kind == "all_reduce":
        buffer = empty("input", whole)
        return Call(kind, op, values(everybody[rank], whole), [everybody], buffer, buffer)
    if kind == "broadcast":
        buffer = empty("input", whole)
        return Call(kind, "sum", values(first if rank == 0 else NOBODY, whole), [[first]], buffer, buffer)
    if kind in ("all_gather", "gather"):
        output = empty("output", whole)
        own = output[rank * piece : (rank + 1) * piece] if place == "in" else empty("input", piece)
        call = Call(kind, "sum", values(everybody[rank], piece), [[seed] for seed in everybody], own, output)
        if kind == "gather" and rank != 0:
            # Nothing comes out here, so that the input is still what it was is all there is to check.
            call.output, call.expected = own, [[everybody[rank]]]
        return call
    buffer = empty("input", whole)
    source = torch.cat([values(seed, piece) for seed in to_peers])
    if kind == "all_to_all":
        return Call(kind, "sum", source, [[seed] for seed in from_peers], buffer, empty("output", whole))
    own = buffer[rank * piece : (rank + 1) * piece] if place == "in" else empty("output", piece)
    return Call(kind, op, source, [from_peers], buffer, own)


def in_pool(pool: Pool) -> contextlib.ExitStack:
    """Use the pool on this thread, in whichever of its places the set-up does."""
    stack = contextlib.ExitStack()
    for around in (pool.around_step, pool.around_forward, pool.around_buffer):
        stack.enter_context(around())
    return stack


# ---- ways to call ----------------------------------------------------------------------------------------------------

Eager = Callable[..., "dist.Work | None"]


def gather(call: Call, async_op: bool) -> dist.Work | None:
    """Gather on rank 0, into pieces of one buffer."""
    pieces = list(call.output.chunk(len(call.expected))) if dist.get_rank() == 0 else None
    return dist.gather(call.input, pieces, dst=0, async_op=async_op)


EAGER: dict[str, Eager] = {
    "all_reduce": lambda call, async_op: dist.all_reduce(call.input, OPS[call.op], async_op=async_op),
    "all_gather": lambda call, async_op: dist.all_gather_into_tensor(call.output, call.input, async_op=async_op),
    "reduce_scatter": lambda call, async_op: dist.reduce_scatter_tensor(
        call.output, call.input, OPS[call.op], async_op=async_op
    ),
    "all_to_all": lambda call, async_op: dist.all_to_all_single(call.output, call.input, async_op=async_op),
    "broadcast": lambda call, async_op: dist.broadcast(call.input, src=0, async_op=async_op),
    "gather": gather,
}

FUNCTIONAL: dict[str, Callable[[Call], Tensor]] = {
    "all_reduce": lambda call: functional.all_reduce(call.input, call.op, dist.group.WORLD),
    "all_gather": lambda call: functional.all_gather_tensor(call.input, 0, dist.group.WORLD),
    "reduce_scatter": lambda call: functional.reduce_scatter_tensor(call.input, call.op, 0, dist.group.WORLD),
    "all_to_all": lambda call: functional.all_to_all_single(call.input, None, None, dist.group.WORLD),
    "broadcast": lambda call: functional.broadcast(call.input, 0, dist.group.WORLD),
}


def sync(pool: Pool | None, calls: list[Call]) -> None:
    """Call and go on: what follows on the stream waits."""
    for call in calls:
        EAGER[call.kind](call, False)


def asynchronous(pool: Pool | None, calls: list[Call]) -> None:
    """Call with async_op and wait for the work."""
    for call in calls:
        EAGER[call.kind](call, True).wait()


def side_stream(pool: Pool | None, calls: list[Call]) -> None:
    """Call on another stream than the one that wrote the input and reads the output."""
    device = calls[0].input.device
    if device.type != "cuda":
        raise Incapable(f"a side stream needs a GPU, and this run is on the {device.type}")
    main, side = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        sync(pool, calls)
    main.wait_stream(side)


def coalesced(pool: Pool | None, calls: list[Call]) -> None:
    """Call several inside torch's coalescing manager, which hands them to NCCL as one group."""
    # Three kinds have a coalesced form; the others are grouped as they come, for which torch wants the device.
    device = None if calls[0].kind in ("all_reduce", "all_gather", "reduce_scatter") else calls[0].input.device
    with _coalescing_manager(device=device):
        sync(pool, calls)


def as_functional(pool: Pool | None, calls: list[Call]) -> None:
    """Call the functional form, which makes its own output: in the pool, if that side is to be registered."""
    for call in calls:
        call.output = torch.empty(0)  # first, so that this call takes the block that the last step's had
        with in_pool(pool) if pool is not None else contextlib.nullcontext():
            result = functional.wait_tensor(FUNCTIONAL[call.kind](call))
        call.output = result


CALLS: dict[str, Callable[[Pool | None, list[Call]], None]] = {
    "sync": sync,
    "async": asynchronous,
    "side-stream": side_stream,
    "coalesced": coalesced,
    "functional": as_functional,
}
