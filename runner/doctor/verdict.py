"""Which symmetric kernels this machine can run, from the findings."""

from __future__ import annotations

import msgspec

from .facts import Facts
from .finding import Finding, Way
from .gpus import groups
from .software import kernels


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`symmetric` is whether any symmetric kernel can run here, None where it could not be told.

    `kernels` are the collectives with their reductions, `ranks` the most ranks with a GPU each that can be in one
    symmetric group (0: none), `share_gpu` whether several ranks can on one GPU, `multicast` whether multicast (NVLS)
    kernels can run, from three ranks on. None is "not known". `why` are the effects that stand against it.
    """

    symmetric: bool | None
    kernels: list[str]
    ranks: int | None
    share_gpu: bool | None
    multicast: bool | None
    why: list[str]
    sentence: str

    @property
    def exit_status(self) -> int:
        """0 can, 1 can't, 3 not told."""
        return {True: 0, False: 1, None: 3}[self.symmetric]


def judge(facts: Facts, findings: list[Finding]) -> Verdict:
    """Draw the findings together. Without a GPU, or a torch that can use one, nothing can be told."""
    own, share = _open("ranks-on-own-gpus", findings), _open("ranks-on-one-gpu", findings)
    usable = bool(facts.gpus) and facts.torch is not None and facts.torch.cuda is not None
    symmetric = _any(own, share) if usable else None
    ranks = 0 if own is False else len(groups(facts)[0]) if own else None
    # NCCL takes its multicast kernels only with more than two ranks.
    multicast = _all(own, _open("multicast", findings), None if ranks is None else ranks > 2)
    version = facts.nccl.version if facts.nccl else None
    can = kernels(version) if symmetric else []
    why = _against(findings, symmetric)
    if symmetric:
        sentence = _can(version, can, ranks, share, multicast)
    elif symmetric is None:
        sentence = f"it could not be told whether this machine can run NCCL's symmetric kernels: {'; '.join(why)}"
    else:
        sentence = f"this machine can't run NCCL's symmetric kernels: {'; '.join(why)}"
    return Verdict(
        symmetric=symmetric,
        kernels=can,
        ranks=ranks if usable else None,
        share_gpu=share if usable else None,
        multicast=multicast if usable else None,
        why=why,
        sentence=sentence,
    )


def _open(way: Way, findings: list[Finding]) -> bool | None:
    if any(way in finding.closes for finding in findings):
        return False
    return None if any(way in finding.unsure for finding in findings) else True


def _any(one: bool | None, other: bool | None) -> bool | None:
    return True if one or other else None if None in (one, other) else False


def _all(*parts: bool | None) -> bool | None:
    return False if False in parts else None if None in parts else True


def _against(findings: list[Finding], symmetric: bool | None) -> list[str]:
    """Return what stands against symmetric kernels; what is not known only where that decides."""
    if symmetric:
        return []
    ways: set[Way] = {"ranks-on-own-gpus", "ranks-on-one-gpu"}
    if symmetric is None:
        unsure = [f"{finding.subject}: {finding.found}" for finding in findings if ways & set(finding.unsure)]
        return unsure + [f"{finding.subject}: {finding.effect}" for finding in findings if finding.state == "prevents"]
    return [f"{finding.subject}: {finding.effect}" for finding in findings if ways & set(finding.closes)]


def _can(version: str | None, can: list[str], ranks: int | None, share: bool | None, multicast: bool | None) -> str:
    ways = []
    if ranks:
        cast = {
            True: "with multicast kernels from 3 ranks on",
            False: "without multicast kernels",
            None: "multicast not known",
        }
        ways.append(f"up to {ranks} ranks with a GPU each, {cast[multicast]}")
    elif ranks is None:
        ways.append("ranks with a GPU each: not known")
    if share:
        ways.append("several ranks on one GPU, without multicast kernels")
    elif share is None:
        ways.append("several ranks on one GPU: not known")
    else:
        ways.append("but not with several ranks on one GPU")
    return f"this machine can run the symmetric kernels of NCCL {version}: {', '.join(can)}; {'; '.join(ways)}"
