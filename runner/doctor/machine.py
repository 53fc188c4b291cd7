"""Findings about what the container or the machine allows a process."""

from __future__ import annotations

from collections.abc import Iterable

from .facts import Facts, Limits
from .finding import EVERY, Finding, fine, limits, prevents, unknown

SHM_NEEDED = 1 << 30
"""https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html, "Shared memory"."""
RANK_MEMORY = 4 << 30
"""What a rank with torch, CUDA and NCCL takes of the host's memory, roughly and with room to spare."""


def machine_findings(facts: Facts) -> Iterable[Finding]:
    """Yield what is found of shared memory, locked memory, memory, IPC and sockets."""
    allowed = facts.limits
    if allowed is None:
        yield unknown("limits", facts.why_unknown("limits"))
        return
    yield _shm(allowed)
    if allowed.memlock is None:
        yield fine("locked memory", "no limit")
    else:
        effect = "between machines, InfiniBand may fail to register memory; on one machine nothing is lost"
        yield limits(
            "locked memory", size(allowed.memlock), effect, "docker run --ulimit memlock=-1, or ulimit -l unlimited"
        )
    yield _memory(allowed, len(facts.gpus or []))
    yield _ipc(allowed)
    yield _descriptors(allowed)


def _shm(allowed: Limits) -> Finding:
    total, free = allowed.shm_total, allowed.shm_free
    if total is None or free is None:
        return unknown("/dev/shm", "not there", effect="NCCL may not start", mend="mount a tmpfs at /dev/shm")
    found = f"{size(free)} free of {size(total)}"
    if free < SHM_NEEDED:
        return limits("/dev/shm", found, "NCCL may fail to start for want of shared memory", "docker run --shm-size=1g")
    return fine("/dev/shm", found)


def _memory(allowed: Limits, gpus: int) -> Finding:
    if allowed.memory is None:
        return fine("memory", "no limit of a control group")
    ranks = max(2, gpus)
    found = f"at most {size(allowed.memory)}"
    if allowed.memory < ranks * RANK_MEMORY:
        effect = f"{ranks} ranks may be killed for want of memory: each takes up to {size(RANK_MEMORY)}"
        return limits("memory", found, effect, "raise the container's memory limit (docker run --memory)")
    return fine("memory", found)


def _ipc(allowed: Limits) -> Finding:
    if allowed.ipc_namespace is None:
        return unknown("IPC", "not told")
    where = "in a container; " if allowed.container else ""
    return fine("IPC", f"{where}all ranks started here share {allowed.ipc_namespace}")


def _descriptors(allowed: Limits) -> Finding:
    if allowed.fd_passing is None:
        return unknown("handles", "not told", EVERY)
    if allowed.fd_passing != "ok":
        effect = "ranks can't hand each other their memory, so nothing is symmetric"
        mend = "a sandbox forbids files over UNIX sockets: run without it (gVisor, seccomp profile)"
        return prevents("handles", f"a file can't be passed between processes: {allowed.fd_passing}", effect, mend)
    return fine("handles", "files can be passed between processes")


def size(number: int) -> str:
    """Return bytes for a person: 67108864 is "64 MiB"."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << power:
            return f"{number / (1 << power):.3g} {unit}" if number < 1000 << power else f"{number >> power} {unit}"
    return f"{number} B"
