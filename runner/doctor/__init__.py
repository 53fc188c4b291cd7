"""`symmem-check doctor`: can this machine run symmetric kernels, and if not, why not and what to do.

The facts are collected in the user's Python (`checks/doctor.py`) and judged here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..launch import describe_python
from ..nccl_library import check_nccl, nccl_to_preload
from ..settings import default_python
from .facts import DEADLINE, Facts, ask
from .finding import Finding
from .gpus import gpu_findings
from .machine import machine_findings
from .software import software_findings, tracing
from .variables import variable_findings
from .verdict import Verdict, judge

__all__ = ["Diagnosis", "diagnose", "doctor"]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What `--format json` prints: the verdict, each finding, and the facts they were drawn from."""

    schema: int = 1
    verdict: Verdict
    findings: list[Finding]
    facts: Facts


def doctor(
    python: str | None = None,
    nccl: str | None = None,
    *,
    tell: Callable[[str], None] = lambda line: None,
    deadline: float = DEADLINE,
) -> Diagnosis:
    """Ask and judge this machine, with the torch of `python` (default: python3 on the PATH) on the NCCL `nccl`.

    `nccl` is a path or a version, None for torch's own. Raises UserError where either can't be used.
    """
    python = python or default_python()
    check_nccl(nccl)
    preload = None if nccl is None else _preload(python, nccl, tell)
    return diagnose(ask(python, preload, deadline), preload)


def diagnose(facts: Facts, preload: Path | None = None) -> Diagnosis:
    """Judge the facts; `preload` is the NCCL that was asked for."""
    findings = [
        *software_findings(facts, preload),
        *gpu_findings(facts),
        *machine_findings(facts),
        tracing(facts),
        *variable_findings(facts),
    ]
    return Diagnosis(verdict=judge(facts, findings), findings=findings, facts=facts)


def _preload(python: str, nccl: str, tell: Callable[[str], None]) -> Path | None:
    described = describe_python(python)
    if described.error is not None and described.cuda is None:
        # The call may be right all the same: what is missing is among the findings.
        tell(f"--nccl {nccl}: left out, since {described.error}")
        return None
    return nccl_to_preload(nccl, described, tell)
