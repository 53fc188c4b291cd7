"""Small traces made at random from a grammar that reaches every rule of the reading. All of them are valid JSON.

Rows of one thread nest, as real ones do; ids, arguments and types are sometimes missing, doubled or odd.
"""

from __future__ import annotations

import random
from typing import Any

OPS = (
    "aten::mm",
    "c10d::allreduce_",
    "_c10d_functional::all_reduce",
    "aten::copy_",
    "ncclAllReduce",
    "symm_mem::one_shot_all_reduce",
)
NODE = "autograd::engine::evaluate_function: MulBackward0"
ANNOTATIONS = (
    "forward", "my_fwd pass", "Backward pass", "1 (B)", "0 (W)", "2 (F)", "forward_backward",
    "Optimizer.step#AdamW.step", "optimizer", "data loading", "FSDP::root_post_backward_callback",
    "nccl:coalesced", "nccl:all_reduce",
    "nccl:all_reduce_barrier", "nccl:_all_gather_base", "nccl:send 0->1", "zero_grad",
)  # fmt: skip
KERNELS = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)",
    "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs4K)",
    "ncclSymkDevKernel_ReduceScatter_LDMC_sum_f32(ncclSymkDevWorkArgs4K)",
    "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
    "void at::native::vectorized_elementwise_kernel<4>(int)",
    "triton_red_fused_all_reduce_0", "my_own_all_reduce(float*)",
)  # fmt: skip
COLLECTIVES = (
    "allreduce", "_allgather_base", "_reduce_scatter_base", "broadcast", "all_to_allv", "gather", "send", "barrier",
    "wait", "allreduce_coalesced", "coalesced", "nccl:all_reduce",
)  # fmt: skip
RUNTIME = ("cudaLaunchKernelExC", "cuLaunchKernelEx", "cudaMemcpyAsync", "cudaGraphLaunch", "cudaEventRecord")
ODD = (None, "", "NaN", "7", -1, 0, 1.0, 2.5, True, [], {}, [1, [2, {"a": "}, {"}]], 2**70, 'name " with } , { and ]')


class Maker:
    """Makes one trace from a seed; `Maker(3).trace()`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cpu: list[dict[str, Any]] = []
        self.gpu: list[dict[str, Any]] = []
        self.launches: list[dict[str, Any]] = []
        self.correlation = 0
        self.external = 1000
        # Times in fifths of a microsecond, all different, so that no order is a matter of taste.
        self.time = 0.0
        self.runtime = self.random.choice((RUNTIME, RUNTIME, (*RUNTIME[2:], "hipExtLaunchKernel")))

    def trace(self) -> dict[str, Any] | list[Any]:
        """The trace as a JSON value: an object, or a bare list of events."""
        processes = self.random.choice((1, 1, 1, 2))
        for process in range(processes):
            self._process(100 + 1000 * process, process)
        extra = [{"ph": "i", "name": "x", "ts": 1}, {"ph": "C", "cat": "Trace"}, None, 5, "text", [], {}]
        events: list[Any] = self.cpu + self.launches + self.gpu
        events += self.random.sample(extra, self.random.randrange(4))
        if self.random.random() < 0.3:
            self.random.shuffle(events)
        if self.random.random() < 0.1:
            return events
        about = {"rank": self.random.choice((0, 3, None, 7)), "world_size": self.random.choice((2, None, 8))}
        device = self.random.choice(("NVIDIA H200", "NVIDIA H200", "AMD Instinct MI300X"))
        return {"deviceProperties": [{"name": device}], "distributedInfo": about, "traceEvents": events}

    def _process(self, pid: int, gpu: int) -> None:
        for place, tid in enumerate(self.random.sample((1, 2, 3, -7, "main"), self.random.randrange(1, 4))):
            if self.random.random() < 0.25:
                self.cpu.append(_named(pid, tid, f"thread {tid} (pt_autograd_0)"))
            self.time = self.random.random()
            step = place == 0 and self.random.random() < 0.8
            for number in range(self.random.randrange(1, 4)):
                name = f"ProfilerStep#{number}" if step else "epoch"
                self._frame(pid, tid, gpu, "user_annotation", name, depth=0)

    def _tick(self) -> float:
        self.time = round(self.time + self.random.randrange(1, 9) / 5, 3)
        return self.time

    def _frame(self, pid: int, tid: Any, gpu: int, cat: str, name: str, depth: int, args: Any = None) -> None:
        """One host row with what is inside it."""
        row = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": self._tick(), "args": args or {}}
        self.cpu.append(row)
        for _ in range(self.random.randrange(4 if depth < 5 else 1)):
            self._inside(pid, tid, gpu, depth + 1)
        if name == "record_param_comms" and self.random.random() < 0.7:
            self._launch(pid, tid, gpu, args)
        row["dur"] = round(self._tick() - row["ts"], 3)

    def _inside(self, pid: int, tid: Any, gpu: int, depth: int) -> None:
        choice = self.random.random()
        if choice < 0.2:
            self._frame(pid, tid, gpu, "user_annotation", self.random.choice(ANNOTATIONS), depth)
        elif choice < 0.35:
            args = {"Sequence number": 5, "Fwd thread id": 1}
            self._frame(pid, tid, gpu, "cpu_op", NODE, depth, args)
        elif choice < 0.55:
            args = self.random.choice(
                ({}, {"Sequence number": 5, "Fwd thread id": 0}, {"Fwd thread id": 0}, {"Sequence number": 1})
            )
            self._frame(pid, tid, gpu, "cpu_op", self.random.choice(OPS), depth, dict(args))
        elif choice < 0.85:
            self._frame(pid, tid, gpu, "cpu_op", "record_param_comms", depth, self._comm_args())
        elif choice < 0.9:
            self._coalesced(pid, tid, gpu)
        else:
            self._launch(pid, tid, gpu, None)

    def _coalesced(self, pid: int, tid: Any, gpu: int) -> None:
        """Calls that launch nothing, and one launch for them all."""
        for _ in range(self.random.randrange(1, 4)):
            args = self._comm_args() | {"Collective name": self.random.choice(("allreduce_coalesced", "allreduce"))}
            row = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": pid, "tid": tid, "ts": self._tick()}
            self.cpu.append(row | {"dur": 0.1, "args": args})
        row = {
            "ph": "X",
            "cat": "user_annotation",
            "name": "nccl:coalesced",
            "pid": pid,
            "tid": tid,
            "ts": self._tick(),
        }
        self.cpu.append(row)
        self._launch(pid, tid, gpu, None)
        row["dur"] = round(self._tick() - row["ts"], 3)

    def _comm_args(self) -> dict[str, Any]:
        self.external += 1
        args: dict[str, Any] = {
            "Collective name": self.random.choice(COLLECTIVES),
            "In msg nelems": self.random.choice((1, 1024, 0)), "Out msg nelems": self.random.choice((1, 2048)),
            "dtype": self.random.choice(("BFloat16", "Float", "c10::Half", "Long", "Foo")),
            "Group size": self.random.choice((1, 2, 2, 2, 8)), "Process Group Description": "default_pg",
            "External id": self.external,
            "Input Dims": self.random.choice(([[4], []], [[[4], [5]], [], []], [], "x", [[[1], [2], [3]]])),
        }  # fmt: skip
        for key in list(args):
            if self.random.random() < 0.08:
                del args[key]
            elif self.random.random() < 0.03:
                args[key] = self.random.choice(ODD)
        return args

    def _launch(self, pid: int, tid: Any, gpu: int, call: Any) -> None:
        """A call of the runtime, and mostly the GPU rows that it puts on."""
        self.correlation += 1
        correlation = self.correlation
        name = self.random.choice(self.runtime)
        cat = "cuda_driver" if name.startswith("cu") and name[2].isupper() else "cuda_runtime"
        row = {
            "ph": "X", "cat": cat, "name": name,
            "pid": pid, "tid": tid, "ts": self._tick(), "dur": 0.1, "args": {"correlation": correlation},
        }  # fmt: skip
        if "External id" in (call or {}):
            row["args"]["External id"] = call["External id"]
        if self.random.random() < 0.08:
            row["args"] = self.random.choice(({}, {"correlation": -1}, {"correlation": str(correlation)}))
        if self.random.random() < 0.95:
            self.launches.append(row)
        if name == "cudaEventRecord":
            return
        rows = self.random.choice((1, 1, 1, 0, 2)) if name != "cudaGraphLaunch" else self.random.choice((1, 3))
        for _ in range(rows):
            self._gpu_row(gpu, correlation, call or {})

    def _gpu_row(self, gpu: int, correlation: int, call: dict[str, Any]) -> None:
        copy = self.random.random() < 0.25
        args: dict[str, Any] = {"correlation": correlation, "stream": 7}
        if "External id" in call:
            args["External id"] = call["External id"]
        if not copy and self.random.random() < 0.5:
            copied = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size")
            args |= {key: value for key, value in call.items() if key in copied and self.random.random() < 0.9}
        if self.random.random() < 0.03:
            args["correlation"] = self.random.choice((0, -1, None, "x", str(correlation)))
        self.gpu.append(
            {
                "ph": "X",
                "cat": "gpu_memcpy" if copy else "kernel",
                "name": "Memcpy DtoD" if copy else self.random.choice(KERNELS),
                "pid": gpu,
                "tid": 7,
                "ts": round(self.time + 10 + len(self.gpu) * 0.125, 3),
                "dur": self.random.randrange(1, 80) / 8,
                "args": args,
            }
        )


def _named(pid: int, tid: Any, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
