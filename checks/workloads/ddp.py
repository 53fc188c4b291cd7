"""DistributedDataParallel: it reduces gradients in buckets that it allocates itself, in C++.

So the pool that a step is in does not matter to it. What helps is a communication hook, which is handed each
bucket and may reduce it anywhere.
"""

# Without `from __future__ import annotations`: DDP compares a hook's annotations with the classes themselves.
import contextlib

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ..case import Case
from ..pools import Pool
from ..profiler import synchronize
from ._models import Layers, check

LAYERS = 3
BUCKETS = ("default", "built-in-pool", "hook")


def ddp(case: Case, pool: Pool, *, dtype: str, size: int, buckets: str) -> None:
    """Trace steps of a model with layers of `size` bytes, one bucket each, and check the averaged gradients.

    `buckets` says where these lie: "default"; "built-in-pool", where DDP is made inside the pool; or "hook", where
    a hook copies them into a buffer of the set-up. Raises ValueError for another.
    """
    if buckets not in BUCKETS:
        raise ValueError(f"there are no buckets {buckets!r}: it is one of {', '.join(BUCKETS)}")
    layers = Layers(case, dtype=dtype, size=size, layers=LAYERS)
    expected = layers.references(case.world_size)
    with pool.around_buffer() if buckets == "built-in-pool" else contextlib.nullcontext():
        model = DistributedDataParallel(layers, bucket_cap_mb=size / 2**20)
    kept: list[tuple[Tensor, dist.Work]] = []
    if buckets == "hook":
        model.register_comm_hook((pool, kept), average_in_pool)

    def step() -> None:
        # Each bucket's buffer is kept until the next step begins. If it went back to the pool as soon as its all-reduce
        # is over, it would depend on timing which rank needs a new segment when, and registering that is collective:
        # seen to hang. Until someone waits for the work, torch holds its buffers too, and its watchdog lets go of
        # them at any time: seen to hang with four ranks.
        synchronize(case.device)
        for _, work in kept:
            work.wait()
        kept.clear()
        model.zero_grad()
        with pool.around_step():
            with pool.around_forward():
                output = model(layers.inputs)
            with pool.around_backward():
                output.backward(layers.gradient)

    def first_steps() -> None:
        # DDP rebuilds its buckets in the second step, in the order in which the gradients came in the first.
        step()
        step()

    case.allocate(first_steps)
    case.run(step)
    for layer, reference in zip(layers.layers, expected, strict=True):
        check(case, layer.weight.grad, reference)


def average_in_pool(state: tuple[Pool, list[tuple[Tensor, dist.Work]]], bucket: dist.GradBucket) -> Future[Tensor]:
    """Reduce a bucket in a buffer of the set-up. DDP calls it on autograd's thread, and copies the result back."""
    pool, kept = state
    buffer = pool.buffer(bucket.buffer(), slot=f"bucket{bucket.index()}")
    # Divided before it is summed: NCCL has symmetric kernels for sums, but none for the average of an all-reduce.
    buffer.div_(dist.get_world_size())
    with torch.no_grad():
        work = dist.all_reduce(buffer, async_op=True)
    kept.append((buffer, work))
    return work.get_future().then(lambda future: future.value()[0])
