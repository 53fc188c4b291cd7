"""Findings about the GPUs: driver, cuMem, how they reach one another, multicast, MIG, the NVLink fabric.

What NCCL asks for is told in its source: symmetricSupport in
https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/init.cc and the kernels' own conditions in src/sym_kernels.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..versions import within
from .facts import Facts, Gpu, Pair
from .finding import EVERY, Finding, Way, fine, limits, prevents, unknown

# cuInit's results that have a mend of their own: CUresult in
# https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
_DRIVER_MENDS = {
    34: "the libcuda that is found is a stub for linking: take its folder out of LD_LIBRARY_PATH",
    100: "give the process a GPU: docker run --gpus all, and look at CUDA_VISIBLE_DEVICES",
    802: "start the fabric manager (systemctl start nvidia-fabricmanager), of the driver's very version",
    803: "the driver's library and kernel module differ: reboot, or give the container the host's library",
    804: "take the CUDA compatibility package off the library path: this GPU does not support it",
}


def gpu_findings(facts: Facts) -> Iterable[Finding]:
    """Yield what is found of the driver and the GPUs; a machine without any says so."""
    yield _driver(facts)
    gpus = facts.gpus
    if gpus is None:
        yield unknown("GPUs", facts.why_unknown("gpus"), EVERY)
        return
    if not gpus:
        yield unknown(
            "GPUs", "none is visible", EVERY, "nothing can run on symmetric memory here", "run this where the GPUs are"
        )
        return
    yield _gpus(gpus)
    yield _cumem(gpus, facts)
    yield from _shared(gpus)
    if len(gpus) > 1:
        yield _reach(facts)
    yield _multicast(gpus)
    yield _fabric(gpus)


def groups(facts: Facts) -> tuple[list[int], list[int]]:
    """Return the largest group of GPUs that surely are, and that may be, linked as this NCCL asks for.

    NCCL before 2.29 asks for P2P between each two, later ones for NVLink as well.
    """
    gpus = [gpu.index for gpu in facts.gpus or []]
    linked = {frozenset((pair.one, pair.other)): _linked(pair, facts) for pair in facts.pairs or []}
    return (
        _largest(gpus, lambda one, other: linked.get(frozenset((one, other))) is True),
        _largest(gpus, lambda one, other: linked.get(frozenset((one, other))) is not False),
    )


def _linked(pair: Pair, facts: Facts) -> bool | None:
    asked = [pair.p2p, pair.nvlink] if needs_nvlink(facts) else [pair.p2p]
    return False if False in asked else None if None in asked else True


def needs_nvlink(facts: Facts) -> bool:
    """Whether the loaded NCCL is symmetric only over NVLink; one of unknown version is taken for a new one."""
    version = facts.nccl.version if facts.nccl else None
    return version is None or within(version, ">=2.29")


def _largest(gpus: list[int], linked: Callable[[int, int], bool]) -> list[int]:
    best: list[int] = []

    def extend(group: list[int], rest: list[int]) -> None:
        nonlocal best
        if len(group) > len(best):
            best = group
        for number, gpu in enumerate(rest):
            if len(group) + len(rest) - number <= len(best):
                return
            extend([*group, gpu], [other for other in rest[number + 1 :] if linked(gpu, other)])

    extend([], gpus)
    return best


def _driver(facts: Facts) -> Finding:
    driver = facts.driver
    if driver is None:
        return unknown("driver", facts.why_unknown("driver"), EVERY)
    if driver.status is None:
        found = f"driver {driver.version}, but no libcuda.so.1" if driver.version else "no NVIDIA driver (libcuda.so.1)"
        mend = "install the driver, or give the container the GPUs (docker run --gpus all)"
        return unknown("driver", found, EVERY, "no GPU can be used", mend)
    if driver.status != 0:
        found = f"cuInit fails: {driver.error or 'CUDA error'} ({driver.status})"
        mend = _DRIVER_MENDS.get(driver.status, "see nvidia-smi and the kernel's log for what the driver says")
        return unknown("driver", found, EVERY, "no GPU can be used", mend)
    found = f"{driver.version or 'version not known'}, CUDA {driver.cuda or 'not known'}"
    built = facts.torch.cuda if facts.torch else None
    if built and driver.cuda and _major(driver.cuda) < _major(built):
        effect = f"torch is built for CUDA {built}, which this driver can't do"
        return prevents("driver", found, effect, "update the driver, or take a torch for an older CUDA")
    if driver.cuda and _major(driver.cuda) < 12:
        return prevents(
            "driver",
            found,
            "NCCL uses cuMem from CUDA 12.0 on, and without it nothing is symmetric",
            "update the driver",
        )
    return fine("driver", found)


def _gpus(gpus: list[Gpu]) -> Finding:
    found = ", ".join(_counted(gpu.name or "GPU of unknown name" for gpu in gpus))
    if len(gpus) == 1:
        return limits(
            "GPUs", found, "one GPU: ranks can only share it, and no multicast kernel can run",
            "more GPUs with NVLink between them", ("ranks-on-own-gpus",),
        )  # fmt: skip
    return fine("GPUs", found)


def _cumem(gpus: list[Gpu], facts: Facts) -> Finding:
    effect = "NCCL's memory can't be mapped by other ranks, so nothing is symmetric"
    if missing := [gpu for gpu in gpus if gpu.vmm is False or gpu.fd_handles is False]:
        found = f"no virtual memory management, or no handles to share, on {_named(missing)}"
        return prevents("cuMem", found, effect, "another GPU, or another mode of a virtual one (vGPU profile, WSL)")
    if any(gpu.vmm is None for gpu in gpus):
        return unknown("cuMem", "the driver does not tell", EVERY)
    forced = (facts.env or {}).get("NCCL_CUMEM_ENABLE") == "1"
    if (without := [gpu for gpu in gpus if gpu.vmm_rdma is False]) and not forced:
        return unknown(
            "cuMem", f"there, but not for RDMA, on {_named(without)}", EVERY,
            "some releases of NCCL then switch it off", "NCCL_CUMEM_ENABLE=1 forces it",
        )  # fmt: skip
    return fine("cuMem", "supported")


def _shared(gpus: list[Gpu]) -> Iterable[Finding]:
    """Yield what keeps several ranks off one GPU."""
    if exclusive := [gpu for gpu in gpus if gpu.compute_mode not in (None, "default")]:
        found = f"{exclusive[0].compute_mode} on {_named(exclusive)}"
        yield limits(
            "compute mode", found, "ranks can't share such a GPU", "nvidia-smi -c DEFAULT", ("ranks-on-one-gpu",)
        )
    if sliced := [gpu for gpu in gpus if gpu.mig]:
        effect = "MIG instances don't reach one another's memory, and ranks that share one were never tried"
        yield unknown("MIG", f"on, on {_named(sliced)}", ("ranks-on-one-gpu",), effect, "nvidia-smi -mig 0")
    elif all(gpu.mig is False for gpu in gpus):
        yield fine("MIG", "off")
    else:
        yield unknown("MIG", "NVML does not tell")


def _reach(facts: Facts) -> Finding:
    if facts.pairs is None:
        return unknown("P2P and NVLink", facts.why_unknown("pairs"), ("ranks-on-own-gpus",))
    everyone = len(facts.gpus or [])
    asked = "P2P and NVLink" if needs_nvlink(facts) else "P2P"
    surely, maybe = groups(facts)
    if len(surely) == everyone:
        return fine("P2P and NVLink", f"{asked} between each two of the {everyone} GPUs")
    bad = [pair for pair in facts.pairs if _linked(pair, facts) is False]
    if not bad:
        return unknown("P2P and NVLink", "not told for all GPUs", () if len(surely) > 1 else ("ranks-on-own-gpus",))
    found = "; ".join(_why(pair) for pair in bad[:4]) + (f"; and {len(bad) - 4} more pairs" if len(bad) > 4 else "")
    mend = (
        "look at nvidia-smi topo -m; P2P is lost to MIG, to virtual machines, to IOMMU/ACS, and without fabric manager"
    )
    if not any(pair.p2p is False for pair in bad):
        mend = "GPUs with NVLink; NCCL 2.27 and 2.28 ask for P2P alone"
    if len(maybe) < 2:
        effect = f"ranks on GPUs of their own need {asked} between each two"
        return limits("P2P and NVLink", found, effect, mend, ("ranks-on-own-gpus",))
    if len(surely) < 2:
        return unknown("P2P and NVLink", found, ("ranks-on-own-gpus",), None, mend)
    effect = f"groups are symmetric only among linked GPUs, such as {', '.join(map(str, surely))}"
    return limits("P2P and NVLink", found, effect, mend)


def _why(pair: Pair) -> str:
    if pair.p2p is False:
        reason = f" ({pair.p2p_status})" if pair.p2p_status not in (None, "ok") else ""
        return f"GPU {pair.one} and {pair.other}: no P2P{reason}"
    return f"GPU {pair.one} and {pair.other}: no NVLink"


def _multicast(gpus: list[Gpu]) -> Finding:
    closes: tuple[Way, ...] = ("multicast",)
    if missing := [gpu for gpu in gpus if gpu.multicast is False]:
        effect = "no multicast (NVLS) kernels; the others still run, and backend.mem_allocator raises"
        mend = "make the pool with symm_mem.get_mem_pool; multicast itself needs NVSwitch, and no MIG"
        return limits("multicast", f"not on {_named(missing)}", effect, mend, closes)
    if any(gpu.multicast is None for gpu in gpus):
        return unknown("multicast", "the driver does not tell", closes)
    if len(gpus) < 3:
        return limits(
            "multicast", "supported", "NCCL takes its multicast kernels only with more than two GPUs",
            "run with 3 or more GPUs to see them", closes,
        )  # fmt: skip
    return fine("multicast", "supported")


def _fabric(gpus: list[Gpu]) -> Finding:
    states = [gpu.fabric for gpu in gpus]
    unready = [gpu for gpu in gpus if gpu.fabric and gpu.fabric.state in ("not started", "in progress")]
    failed = [gpu for gpu in gpus if gpu.fabric and gpu.fabric.state == "completed" and gpu.fabric.status]
    mend = "start the fabric manager (systemctl status nvidia-fabricmanager), of the driver's very version"
    effect = "GPUs don't reach one another over NVSwitch"
    if unready and unready[0].fabric:
        found = f"registration {unready[0].fabric.state} on {_named(unready)}"
        return limits("fabric manager", found, effect, mend, ("ranks-on-own-gpus", "multicast"))
    if failed and failed[0].fabric:
        found = f"registration failed (NVML error {failed[0].fabric.status}) on {_named(failed)}"
        return limits("fabric manager", found, effect, mend, ("ranks-on-own-gpus", "multicast"))
    if any(state is None for state in states):
        return unknown("fabric manager", "NVML does not tell")
    if all(state and state.state == "not supported" for state in states):
        return fine("fabric manager", "not needed: these GPUs register with no fabric")
    return fine("fabric manager", "registration completed")


def _named(gpus: list[Gpu]) -> str:
    return f"GPU {', '.join(str(gpu.index) for gpu in gpus)}"


def _counted(names: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return [f"{count} × {name}" for name, count in counts.items()]


def _major(version: str) -> int:
    number = version.split(".", maxsplit=1)[0]
    return int(number) if number.isdecimal() else 0
