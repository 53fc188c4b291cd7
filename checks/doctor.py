"""Facts about this Python, its torch and NCCL, the GPUs and the machine, for `symmem-check doctor`; judged elsewhere.

One line of JSON is printed before each probe, with all that is known by then and in `running` the probe that comes
next, and one at the end: a probe that hangs or crashes the process costs its own facts and those after it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from . import container
from .cuda_driver import CudaDriver
from .describe import nccl_built, one_line
from .nvml import Nvml

KEPT_VARIABLES = (
    "NCCL_", "TORCH_", "NVSHMEM_", "KINETO_", "CUDA_", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "LD_PRELOAD",
    "NVTX_INJECTION64_PATH", "DDP_DISABLE_COMM_MEM",
)  # fmt: skip

Probe = Callable[[dict], object]
"""Takes the facts so far, and returns its own, which must go into JSON."""


def tell_facts(tell: Callable[[str], None], probes: dict[str, Probe] | None = None) -> None:
    """Run the probes, by default all, in their order, and hand each line of JSON to `tell`."""
    facts: dict = {"schema": 1, "running": None, "errors": {}}
    for name, probe in (PROBES if probes is None else probes).items():
        facts["running"] = name
        tell(json.dumps(facts))
        try:
            facts[name] = probe(facts)
        except Exception as error:
            facts["errors"][name] = one_line(error)
    facts["running"] = None
    tell(json.dumps(facts))


def python(facts: dict) -> dict:
    """Return the interpreter's version and path."""
    return {"version": platform.python_version(), "executable": sys.executable}


def env(facts: dict) -> dict:
    """Return the variables that may matter."""
    return {key: value for key, value in sorted(os.environ.items()) if key.startswith(KEPT_VARIABLES)}


def nccl_files(facts: dict) -> list[dict]:
    """Return the variables that NCCL reads from files; the environment wins, then the file that stands first.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    own = os.environ.get("NCCL_CONF_FILE")
    home = own or os.path.expanduser("~/.nccl.conf")  # noqa: PTH111 - Path.expanduser raises where there is no home
    found = []
    for path in (Path(home), Path("/etc/nccl.conf")):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        pairs = (line.split("=", 1) for line in lines if "=" in line and not line.lstrip().startswith("#"))
        found.append({"path": str(path), "variables": {key.strip(): value.strip() for key, value in pairs}})
    return found


def limits(facts: dict) -> dict:
    """Return what this container or user is allowed."""
    return container.limits()


def driver(facts: dict) -> dict:
    """Return whether the CUDA driver starts, and its versions."""
    with Nvml() as nvml:
        return {**CudaDriver().facts(), "version": nvml.driver_version()}


def gpus(facts: dict) -> list[dict]:
    """Return the visible GPUs and what each can do."""
    cuda = CudaDriver()
    found = [cuda.gpu(index) for index in range(cuda.count())]
    with Nvml() as nvml:
        return [{**gpu, **nvml.gpu(nvml.device(gpu["bus_id"]))} for gpu in found]


def pairs(facts: dict) -> list[dict]:
    """Return for each pair of visible GPUs whether they reach one another's memory, and by NVLink."""
    cuda = CudaDriver()
    found = []
    with Nvml() as nvml:
        handles = [nvml.device(gpu["bus_id"]) for gpu in facts.get("gpus", [])]
        for one in range(len(handles)):
            for other in range(one + 1, len(handles)):
                ways = (cuda.can_access(one, other), cuda.can_access(other, one))
                found.append(
                    {
                        "one": one,
                        "other": other,
                        "p2p": False if False in ways else None if None in ways else True,
                        "p2p_status": nvml.p2p(handles[one], handles[other]),
                        "nvlink": nvml.nvlink(handles[one], handles[other]),
                    }
                )
    return found


def torch_facts(facts: dict) -> dict:
    """Return torch's version, the CUDA and NCCL it was built with, and how many GPUs it sees."""
    import torch

    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl_built(),
        "devices": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    }


def nccl(facts: dict) -> dict:
    """Return the NCCL that is loaded in this process."""
    from .environment import loaded_nccl

    return loaded_nccl()


def tracing(facts: dict) -> dict | None:
    """Return how many kernels a trace of a small operation on the first GPU shows; None without a GPU.

    The trace's file is looked at, since torch's own table has times even without CUPTI.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    from .profiler import start_profiler_once, synchronize

    warnings.filterwarnings("ignore", message=".*Profiler clears events", category=UserWarning)
    device = torch.device("cuda", 0)
    start_profiler_once(device)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as window:
        torch.ones(1024, device=device).add_(1)
        synchronize(device)
    with tempfile.TemporaryDirectory(prefix="symmem-check-") as folder:
        path = Path(folder) / "trace.json"
        window.export_chrome_trace(str(path))
        events = json.loads(path.read_text(errors="replace"))["traceEvents"]
    return {"kernels": sum(event.get("cat") == "kernel" for event in events)}


# The first are harmless; what may hang or crash comes last.
PROBES: dict[str, Probe] = {
    "python": python,
    "env": env,
    "nccl_files": nccl_files,
    "limits": limits,
    "driver": driver,
    "gpus": gpus,
    "pairs": pairs,
    "torch": torch_facts,
    "nccl": nccl,
    "tracing": tracing,
}
