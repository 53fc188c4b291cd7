"""A kernel writes a buffer and the all-reduce of it follows at once, many times: are the values always right?

NCCL launches its symmetric kernels so that they may start before the kernel in front of them has ended; they have
to wait for its writes. From 2.28.3 up to, not including, 2.30.7 they did not, so they could send what the buffer
held before: https://github.com/sgl-project/sglang/pull/37768
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ..case import Case
from ..memory import Incapable
from ..pools import Pool
from ..profiler import synchronize
from ..values import combined, known_values
from .collectives import in_pool

ROUNDS = 50

# It lets the next kernel of the stream start at once, as Hopper's kernels may
# (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#programmatic-dependent-launch-and-synchronization), and
# writes only afterwards: a follower that doesn't wait for it is sure to read the values of the round before.
EARLY = """
extern "C" __global__ void produce_late(float* out, const float* in, const float* more, int elements) {
    asm volatile("griddepcontrol.launch_dependents;");
    const long long began = clock64();
    while (clock64() - began < 50000) {}
    const int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += stride) out[i] = in[i] + more[0];
}
"""

Producer = Callable[[Tensor, Tensor, Tensor], None]


def back_to_back(case: Case, pool: Pool, *, dtype: str, size: int, producer: str = "torch", graph: str = "no") -> None:
    """Trace rounds of producer and all-reduce of `size` bytes, and check what each of them wrote.

    Each round sends the source plus another number, so values of the round before are wrong. `producer` is "torch",
    an ordinary kernel, or "early", one that lets its follower start before it has written. With `graph` "yes" all
    rounds are captured in one CUDA graph, which the steps replay.
    """
    element = getattr(torch, dtype)
    produce = make_producer(producer, element, case.device)
    elements = max(1, size // element.itemsize)
    source = known_values(elements, case.rank, element, case.device)
    expected = expected_sums(case, elements)
    # As tensors, since a kernel of one's own takes pointers; so small that bfloat16 counts the sums of 28 ranks.
    rounds = (torch.arange(ROUNDS, device=case.device) % 8).to(element).unbind()
    with in_pool(pool):
        buffer = torch.empty_like(source)
    worst = torch.zeros_like(expected)

    def step() -> None:
        for number in rounds:
            produce(buffer, source, number)
            dist.all_reduce(buffer)
            error = buffer.to(worst.dtype).sub_(expected).sub_(number.to(worst.dtype) * case.world_size).abs_()
            # What is not a number must not get lost in the maximum.
            torch.maximum(worst, error.nan_to_num_(torch.inf), out=worst)

    if graph == "yes":
        case.allocate(step)
        case.watch(step)
        replay = captured(step, case.device).replay
        # A replay has no operators around its kernels; the window tells the phase.
        case.run(torch.profiler.record_function("forward")(replay), watch_buffers=False)
    else:
        case.run(step)
    case.check(worst, torch.zeros_like(worst, dtype=torch.float64), tolerance=0.0)


def expected_sums(case: Case, elements: int) -> Tensor:
    """Return the sum of all ranks' sources, in float32, which counts these small numbers exactly."""
    period = combined(range(case.world_size), "sum").to(case.device, torch.float32)
    return period.repeat(-(-elements // period.numel()))[:elements].clone()


def make_producer(name: str, dtype: torch.dtype, device: torch.device) -> Producer:
    """Return what writes `source + number` into `out`; raises Incapable where "early" can't be."""
    if name == "torch":
        return lambda out, source, number: torch.add(source, number, out=out)
    if name != "early" or dtype != torch.float32:
        raise ValueError(f"the producer is torch, or early for float32, and not {name} for {dtype}")
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        raise Incapable("a kernel lets its follower start early from compute capability 9.0 on")
    if not hasattr(torch.cuda, "_compile_kernel"):
        raise Incapable(f"torch compiles a kernel from source from 2.9 on; this is {torch.__version__}")
    try:
        kernel = torch.cuda._compile_kernel(EARLY, "produce_late")
    except (OSError, ImportError) as error:
        raise Incapable(f"torch finds no compiler for a kernel from source here: {error}") from error

    def produce(out: Tensor, source: Tensor, number: Tensor) -> None:
        # Few blocks, so that its follower finds room beside it.
        kernel(grid=(16, 1, 1), block=(256, 1, 1), args=[out, source, number, out.numel()])

    return produce


def captured(step: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """Return a graph of the step, which has run before."""
    if device.type != "cuda":
        raise Incapable(f"a CUDA graph needs a GPU, and this run is on the {device.type}")
    synchronize(device)
    graph = torch.cuda.CUDAGraph()
    # Other threads, such as the watchdog of the process group, may call CUDA meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    return graph
