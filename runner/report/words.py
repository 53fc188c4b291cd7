"""How a Result is put into words, the same in every report. All text is still as the Result has it, not escaped."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from ..model import Coverage, GatePhase
from ..result import CaseResult, KernelSeen, Outcome, PhaseResult, Result

GATE_PHASES: tuple[GatePhase, ...] = ("forward", "backward", "optimizer")
WORST_FIRST: tuple[Outcome, ...] = (
    "regressed", "fail", "error", "unmeasured", "fixed", "known", "incapable", "pass"
)  # fmt: skip

# A general kernel's name tells what its launch was made for, not what it ran: a label, and no algorithm. The protocol
# left the names with NCCL 2.31. https://github.com/NVIDIA/nccl/blob/master/src/device/generate.py
_GENERAL = re.compile(
    r"_((?:RING|TREE|COLLNET_DIRECT|COLLNET_CHAIN|COLLNET|NVLS_TREE|NVLS|PAT)(?:_(?:LL128|LL|SIMPLE))?)(?![A-Za-z0-9])"
)
_SURE: dict[str, str] = {"certain": "because", "likely": "most likely because", "possible": "perhaps because"}


def kernel_name(name: str | None) -> str:
    """A kernel's name without return type, namespace, template and call arguments; None is the copy engine."""
    if name is None:
        return "copy engine"
    short = re.sub(r"^(?:void )?(?:\(anonymous namespace\)::)?", "", name)
    return re.split(r"[(<]", short, maxsplit=1)[0].strip() or name


def kernel_label(name: str | None, algorithm: str | None) -> str:
    """The shortest name that people know a kernel by: `RSxLD_AGxST`, `RING_LL`, `copy engine`, or its plain name."""
    if algorithm is not None:
        return algorithm
    short = kernel_name(name)
    general = _GENERAL.search(short)
    return general[1] if general else short


def labels(kernels: Sequence[KernelSeen]) -> list[str]:
    """The kernels' labels, each once, in the order given."""
    return list(dict.fromkeys(kernel_label(seen.kernel, seen.algorithm) for seen in kernels))


def how_it_ran(phase: PhaseResult) -> str:
    """What a phase's collectives did, in a few words: `symmetric`, `fell back`, `2 of 4 symmetric`, `not measured`."""
    symmetric, fallback, ineligible, unknown = calls(phase.coverage)
    others = [(ineligible, "not eligible"), (unknown, "unknown")]
    if symmetric or fallback:
        word = "symmetric" if not fallback else "fell back" if not symmetric else ""
        word = word or f"{symmetric} of {symmetric + fallback} symmetric"
        return ", ".join([word, *(f"{number} {what}" for number, what in others if number)])
    if ineligible or unknown:
        return ", ".join(what for number, what in others if number)
    return "not run" if phase.outcome == "incapable" else "not measured"


def ran_as(phase: PhaseResult) -> str:
    """`how_it_ran` with the kernels' labels: `symmetric RSxLD_AGxST`."""
    return " ".join([how_it_ran(phase), ", ".join(labels(phase.kernels))]).strip()


def is_control(phase: PhaseResult) -> bool:
    """Whether the phase is there to prove that the check can fail, and did its duty."""
    return phase.expected == "fallback" and phase.outcome == "pass"


def needs_telling(phase: PhaseResult) -> bool:
    """Whether there is more to say than a line in a table: not a plain pass, or a fallback that nobody asked for."""
    return phase.outcome != "pass" or (phase.cause is not None and _fell_back(phase) is not None)


def finding(case: CaseResult, phase: PhaseResult) -> str:
    """One sentence on what happened and why, without the mend: `fell back, because …`."""
    cause = phase.cause
    told = _full(phase.message)
    if cause is not None and phase.outcome in ("fail", "known", "pass"):
        told = _fell_back(phase) or told
    if phase.outcome == "error" and case.trouble is not None and case.trouble not in phase.message:
        told = f"{told}: {_full(case.trouble)}"
    if cause is None:
        return told
    return f"{told}, {_SURE[cause.certainty]} {_inner(cause.sentence)}"


def _fell_back(phase: PhaseResult) -> str | None:
    """That a phase fell back, and how much of it; None where it did not, or had to."""
    symmetric, fallback, *_ = calls(phase.coverage)
    if not fallback or phase.expected == "fallback":
        return None
    return f"fell back in {fallback} of {symmetric + fallback} calls" if symmetric else "fell back"


def _full(sentence: str) -> str:
    return sentence.strip().removesuffix(".")


def _inner(sentence: str) -> str:
    """A sentence as it stands within another: `The pool …` becomes `the pool …`, `NCCL …` stays."""
    sentence = _full(sentence)
    return sentence[:1].lower() + sentence[1:] if re.match(r"[A-Z](?:[a-z]|\s)", sentence) else sentence


class Told(NamedTuple):
    """Phases of which the same is to be told: `where` pairs cases with phases; `case` and `phase` are the first."""

    where: list[tuple[CaseResult, list[GatePhase]]]
    case: CaseResult
    phase: PhaseResult

    @property
    def mend(self) -> str | None:
        """What to do about it, if anything is known."""
        return _full(self.phase.cause.mend) if self.phase.cause is not None else None

    @property
    def evidence(self) -> list[str]:
        """What shows the cause, a sentence each."""
        return self.phase.cause.evidence if self.phase.cause is not None else []

    @property
    def finding(self) -> str:
        """What happened and why, in one sentence."""
        return finding(self.case, self.phase)


def to_tell(result: Result) -> list[Told]:
    """What needs telling, the worst first, phases with the same finding together."""
    found: dict[tuple[object, ...], Told] = {}
    for case in result.cases:
        for phase in case.phases:
            if not needs_telling(phase):
                continue
            known = phase.known.issue if phase.known is not None else None
            evidence = tuple(phase.cause.evidence) if phase.cause is not None else ()
            told = Told([], case, phase)
            told = found.setdefault((phase.outcome, told.finding, told.mend, known, evidence), told)
            if told.where and told.where[-1][0] is case:
                told.where[-1][1].append(phase.phase)
            else:
                told.where.append((case, [phase.phase]))
    return sorted(found.values(), key=lambda told: WORST_FIRST.index(told.phase.outcome))


def places(told: Told, result: Result) -> list[tuple[str, str]] | None:
    """The ids of the cases that a finding is about, each with its phases; None where it is about all there are."""
    if len(result.cases) > 1 and sum(len(names) for _, names in told.where) == sum(len(c.phases) for c in result.cases):
        return None
    return [(case.id, " and ".join(names)) for case, names in told.where]


def percent(ratio: float | None) -> str:
    """A ratio from 0 to 1 in percent, rounded down so that 100 % means all; `n/a` where nothing eligible ran."""
    if ratio is None or not math.isfinite(ratio):
        return "n/a"
    return f"{math.floor(ratio * 1000 + 1e-9) / 10:g} %"


def coverage_counts(found: Coverage) -> str:
    """The calls behind a coverage: `12 of 16 calls; 4 not eligible`."""
    symmetric, fallback, ineligible, unknown = calls(found)
    if not any(calls(found)):
        return "nothing was measured"
    eligible = symmetric + fallback
    parts = [f"{symmetric} of {eligible} calls" if eligible else "nothing eligible ran"]
    parts += [f"{number} {what}" for number, what in ((ineligible, "not eligible"), (unknown, "unknown")) if number]
    return "; ".join(parts)


def calls(found: Coverage) -> tuple[int, int, int, int]:
    """A coverage's calls: symmetric, fallback, ineligible, unknown."""
    return found.symmetric.calls, found.fallback.calls, found.ineligible.calls, found.unknown.calls


def phases_of(result: Result) -> list[GatePhase]:
    """The phases that get a column: forward and backward always, optimizer where a case judges it."""
    judged = {phase.phase for case in result.cases for phase in case.phases}
    return [phase for phase in GATE_PHASES if phase != "optimizer" or phase in judged]


def phase_of(case: CaseResult, name: GatePhase) -> PhaseResult | None:
    """A case's phase by name; None where it isn't judged."""
    return next((phase for phase in case.phases if phase.phase == name), None)


def notes(result: Result) -> list[str]:
    """What a reader must know beside the findings.

    Shared GPUs, salvaged traces, where NCCL's own log disagrees, starts of the ranks gone wrong.
    """
    ran = any(phase.kernels for case in result.cases for phase in case.phases)
    told = [SHARED_GPU] if ran and result.environment.ranks_per_gpu > 1 else []
    told += result.notes
    told += [f"{case.id}: {note}" for case in result.cases for note in (*case.notes, *case.witness)]
    for start in result.starts:
        if start.ended != "finished":
            told.append(f"start {start.number} of the ranks: {start.message or start.ended}")
    return told


def environment_facts(result: Result) -> list[tuple[str, str]]:
    """What the run ran on and with, as name and value, those that are known."""
    about = result.environment
    gpu_and_capability = f"{about.gpu} (capability {about.capability})" if about.gpu and about.capability else about.gpu
    nccl = about.nccl
    if nccl and about.nccl_built and nccl != about.nccl_built:
        nccl = f"{nccl} (torch was built with {about.nccl_built})"
    yes = {True: "yes", False: "no", None: None}
    facts = [
        ("PyTorch", about.torch), ("NCCL, as loaded", nccl), ("NCCL library", about.nccl_path), ("CUDA", about.cuda),
        ("driver", about.driver), ("GPU", gpu_and_capability), ("NVLink", yes[about.nvlink]),
        ("multicast (NVLS)", yes[about.multicast]), ("ranks", str(about.ranks)),
        ("ranks per GPU", str(about.ranks_per_gpu)), ("hosts", str(about.hosts or "")),
        ("launcher", about.launcher if about.launcher != "torchrun" else None), ("Python", about.python),
    ]  # fmt: skip
    return [(name, value) for name, value in facts if value] + sorted(about.variables.items())


SHARED_GPU = "Ranks shared a GPU, so the times of this run mean nothing; which kernels ran is as good as ever."
REPLAY = "This is a replay: it judges the recorded run that ships with symmem-check. Nothing ran on this machine."
