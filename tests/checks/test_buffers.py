"""The watch over collectives' buffers, on one rank: what it sees, on which thread, and where memory lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.utils.checkpoint import checkpoint

from checks.buffers import SEES_COMPILED_CODE, BufferWatch, Places, Use, in_backward
from checks.pools import Pool, set_up

CPU = torch.device("cpu")
# Deeper than this, the engine runs a backward within a backward on a thread of its own (MAX_DEPTH in engine.h).
DEEP = 70


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def watched(call: Callable[[], object]) -> list[Use]:
    with BufferWatch() as watch:
        call()
    return watch.uses


def told(uses: list[Use]) -> list[tuple[str, str, str, int]]:
    return [(use.note["phase"], use.note["kind"], use.note["role"], use.note["bytes"]) for use in uses]


ONE, OTHER = torch.ones(4), torch.ones(4, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("call", "uses"),
    [
        (lambda: dist.all_reduce(ONE), [("all_reduce", "in-place", ONE)]),
        (lambda: dist.all_reduce(ONE, async_op=True).wait(), [("all_reduce", "in-place", ONE)]),
        (lambda: dist.all_reduce_coalesced([ONE]), [("all_reduce", "in-place", ONE)]),
        (lambda: dist.broadcast(ONE, 0), [("broadcast", "in-place", ONE)]),
        (lambda: dist.reduce(ONE, 0), [("reduce", "in-place", ONE)]),
        (
            lambda: dist.all_gather_into_tensor(OTHER, OTHER),
            [("all_gather", "output", OTHER), ("all_gather", "input", OTHER)],
        ),
        (lambda: dist.all_gather([ONE], ONE), [("all_gather", "output", ONE), ("all_gather", "input", ONE)]),
        (
            lambda: dist.reduce_scatter_tensor(ONE, ONE),
            [("reduce_scatter", "output", ONE), ("reduce_scatter", "input", ONE)],
        ),
        (lambda: dist.all_to_all_single(ONE, ONE), [("all_to_all", "output", ONE), ("all_to_all", "input", ONE)]),
        (lambda: dist.gather(ONE, [ONE], 0), [("gather", "output", ONE), ("gather", "input", ONE)]),
        (lambda: dist.scatter(ONE, [ONE], 0), [("scatter", "output", ONE), ("scatter", "input", ONE)]),
        (dist.barrier, []),
        (lambda: ONE + ONE, []),
        (lambda: dist.all_reduce(torch.ones(0)), []),
    ],
)
def test_each_kind_of_collective_is_seen_with_all_its_buffers(
    call: Callable[[], object], uses: list[tuple[str, str, torch.Tensor]]
) -> None:
    expected = [("forward", kind, role, tensor.nbytes) for kind, role, tensor in uses]
    seen = watched(call)
    assert told(seen) == expected
    assert [(use.address, use.note["dtype"]) for use in seen] == [
        (tensor.data_ptr(), str(tensor.dtype).removeprefix("torch.")) for _, _, tensor in uses
    ]


def test_functional_collectives_are_seen_with_the_buffers_that_they_make() -> None:
    def call() -> None:
        functional.wait_tensor(functional.all_reduce(ONE, "sum", dist.group.WORLD))
        functional.wait_tensor(functional.all_gather_tensor(ONE, 0, dist.group.WORLD))

    seen = watched(call)
    assert told(seen) == [
        ("forward", "all_reduce", "in-place", 16),
        ("forward", "all_gather", "input", 16),
        ("forward", "all_gather", "output", 16),
    ]
    assert seen[0].address not in (0, ONE.data_ptr())
    assert seen[1].address == ONE.data_ptr()


class InBackward(torch.autograd.Function):
    """Calls `call` in backward."""

    @staticmethod
    def forward(ctx, tensor: torch.Tensor, call: Callable[[], object]) -> torch.Tensor:
        ctx.call = call
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.call()
        return gradient, None


def backward_through(call: Callable[[], object]) -> None:
    with torch.enable_grad():  # which is off inside a backward
        InBackward.apply(torch.ones(1, requires_grad=True), call).backward(torch.ones(1))


def test_a_collective_of_backward_is_told_from_one_of_forward() -> None:
    def step() -> None:
        dist.all_reduce(ONE)
        backward_through(lambda: dist.all_reduce(ONE))
        dist.all_reduce(ONE)

    uses = watched(step)
    assert [use.note["phase"] for use in uses] == ["forward", "backward", "forward"]
    assert {use.note["thread"] for use in uses} == {"main"}
    assert not in_backward()


def test_a_final_callback_of_autograd_is_backward() -> None:
    engine = torch.autograd.Variable._execution_engine
    uses = watched(lambda: backward_through(lambda: engine.queue_callback(lambda: dist.all_reduce(ONE))))
    assert told(uses) == [("backward", "all_reduce", "in-place", 16)]


def test_a_thread_of_autograds_own_is_watched_too() -> None:
    def deeper(depth: int) -> None:
        backward_through(lambda: deeper(depth - 1) if depth else dist.all_reduce(ONE))

    (use,) = watched(lambda: deeper(DEEP))
    assert (use.note["phase"], use.note["thread"], use.address) == ("backward", "autograd", ONE.data_ptr())


@pytest.mark.skipif(not SEES_COMPILED_CODE, reason="this torch runs a compiled function uncompiled under a mode")
def test_a_compiled_function_is_watched_as_it_was_compiled() -> None:
    runs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        runs.append("compiled")
        return lambda *tensors: runs.append("ran") or graph.forward(*tensors)

    group = dist.group.WORLD.group_name

    def reduced(tensor: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(tensor, "sum", group) + 1

    # A checkpoint is a higher-order operator in compiled code.
    step = torch.compile(lambda tensor: checkpoint(reduced, tensor, use_reentrant=False), backend=backend)
    step(ONE)
    uses = watched(lambda: step(ONE))
    assert runs == ["compiled", "ran", "ran"]
    assert told(uses) == [("forward", "all_reduce", "in-place", 16)]


class SegmentsAt(list):
    """A memory whose pool has the given segments, (first address, address after the last) each."""

    def segments(self) -> list[tuple[int, int]]:
        return list(self)


@pytest.mark.parametrize(
    ("address", "registered", "in_pool", "registration"),
    [
        (4095, True, False, "none"),
        (4096, True, True, "symmetric"),
        (8191, True, True, "symmetric"),
        (8192, True, False, "none"),
        (4096, False, True, "none"),
        (20000, True, True, "plain"),
    ],
)
def test_memory_is_in_a_pool_as_that_is_registered(
    address: int, registered: bool, in_pool: bool, registration: str
) -> None:
    pool = Pool("step", SegmentsAt([(4096, 8192)]), "symmetric", registered=registered)
    others = [(lambda: [{"address": 20000, "total_size": 1}], "plain")]
    described = Places(pool, others, CPU).describe(Use({"kind": "all_reduce"}, address))
    assert described == {"kind": "all_reduce", "in_pool": in_pool, "registration": registration}


def test_without_a_pool_no_memory_is_in_one() -> None:
    assert Places(set_up("none", None), [], CPU).describe(Use({}, 4096)) == {"in_pool": False, "registration": "none"}
