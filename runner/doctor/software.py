"""Findings about torch, NCCL, and whether traces can be taken."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..versions import within
from .facts import Facts
from .finding import EVERY, Finding, fine, limits, prevents, unknown

_CUPTI = re.compile(r"CUPTI_ERROR_[A-Z_]+")
_OTHER_NCCL = "try another NCCL under this torch: --nccl 2.30.7"


def software_findings(facts: Facts, preload: Path | None) -> Iterable[Finding]:
    """Yield what is found of Python, torch and NCCL; `preload` is the NCCL that was to be put before torch's own."""
    if facts.python is not None:
        yield fine("python", f"{facts.python.version}, {facts.python.executable}")
    yield _torch(facts)
    yield from _nccl(facts, preload)


def kernels(version: str | None) -> list[str]:
    """Return the collectives that the NCCL of this version has symmetric kernels for, with their reductions.

    https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/device/symmetric/generate.py; "avg" is new in 2.30.
    """
    if not within(version, ">=2.27"):
        return []
    scatter = "sum, avg" if within(version, ">=2.30") else "sum"
    return ["all_reduce (sum)", "all_gather", f"reduce_scatter ({scatter})"]


def _torch(facts: Facts) -> Finding:
    torch = facts.torch
    if torch is None:
        mend = "give the Python that has the torch under test: --python EXE"
        return unknown("torch", facts.why_unknown("torch"), EVERY, "nothing can be run", mend)
    if torch.cuda is None:
        mend = "give a Python whose torch is built for CUDA: --python EXE"
        return unknown("torch", f"{torch.version}, built without CUDA", EVERY, "it has no NCCL and uses no GPU", mend)
    found = f"{torch.version}, CUDA {torch.cuda}"
    if not within(torch.version, ">=2.8"):
        effect = "this torch can't register a memory pool as symmetric"
        return prevents("torch", found, effect, "take torch 2.9 or newer (2.8: MemPool(symmetric=True))")
    if facts.gpus and not torch.devices:
        effect = "torch sees none of the GPUs that the driver shows"
        return unknown("torch", found, EVERY, effect, "see what torch.cuda.init() raises")
    return fine("torch", found)


def _nccl(facts: Facts, preload: Path | None) -> Iterable[Finding]:
    nccl = facts.nccl
    version = nccl.version if nccl else None
    if nccl is None or version is None:
        why = facts.why_unknown("nccl") if nccl is None else "none is loaded"
        yield unknown("NCCL", why, EVERY)
        return
    found = f"{version}, {nccl.path or 'linked into torch'}"
    if nccl.built and nccl.built != version:
        found += f" (torch was built with {nccl.built})"
    if preload is not None and not _same(nccl.path, preload):
        mend = "see the dynamic linker's message; the library must be readable and fit this machine's glibc"
        yield limits("--nccl", f"{preload} was not loaded", "what follows is told of the NCCL below", mend)
    if not kernels(version):
        yield prevents("NCCL", found, "it has no symmetric kernels: they came with 2.27", _OTHER_NCCL)
    elif not within(version, ">=2.30.3"):
        effect = "several ranks on one GPU need NCCL 2.30.3"
        yield limits("NCCL", found, effect, _OTHER_NCCL, ("ranks-on-one-gpu",))
    else:
        yield fine("NCCL", found)
    yield from _defects(version)


def _defects(version: str) -> Iterable[Finding]:
    if within(version, ">=2.28.3, <2.30.7"):
        yield limits(
            "values", f"NCCL {version}",
            "its symmetric kernels can be silently wrong (https://github.com/sgl-project/sglang/pull/37768)",
            "take NCCL 2.30.7 or newer",
        )  # fmt: skip
    if within(version, ">=2.27, <2.30"):
        effect = "averages fall back: its symmetric kernels only sum (FSDP and DDP average by default)"
        yield limits("averages", f"NCCL {version}", effect, "sum and divide, or take NCCL 2.30 for reduce-scatter")
    elif within(version, ">=2.30.3, <=2.32.3"):
        yield limits(
            "averages", f"NCCL {version}", "an all-reduce that averages fails on registered buffers", "sum and divide"
        )


def _same(path: str | None, preload: Path) -> bool:
    return path is not None and Path(path).resolve() == preload.resolve()


def tracing(facts: Facts) -> Finding:
    """Tell whether a trace shows kernels: without them a run can measure nothing, whatever runs."""
    subject, effect = "tracing", "traces show no kernels, so a run ends unmeasured"
    if not facts.gpus:
        return unknown(subject, "no GPU to trace")
    said = _CUPTI.search(facts.printed)
    injected = (facts.env or {}).get("CUDA_INJECTION64_PATH")
    if facts.tracing is None:
        why = facts.why_unknown("tracing") if "tracing" in facts.errors or facts.ended else "torch uses no GPU"
        return unknown(subject, f"{why} ({said[0]})" if said else why)
    if facts.tracing.kernels:
        return fine(subject, "a trace of a small operation shows its kernels")
    found = f"no kernel in a trace of a small operation{f' ({said[0]})' if said else ''}"
    if injected:
        return limits(
            subject, f"{found}; CUDA_INJECTION64_PATH={injected}", effect, "unset it: only one tool can use CUPTI"
        )
    mend = (
        "end other profilers (nsys, DCGM), and allow profiling: NVreg_RestrictProfilingToAdminUsers=0 or CAP_SYS_ADMIN"
    )
    return limits(subject, found, effect, mend)
