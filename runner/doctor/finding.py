"""What a finding is: a fact about the machine, what it prevents, and the mend."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["fine", "limits", "prevents", "not known"]
Way = Literal["ranks-on-own-gpus", "ranks-on-one-gpu", "multicast"]
"""The ways to run symmetric kernels that a finding may close. Multicast needs ranks on GPUs of their own."""

EVERY: tuple[Way, ...] = ("ranks-on-own-gpus", "ranks-on-one-gpu")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`subject` was found to be `found`. `closes` are ways that are closed by it, `unsure` those that may be.

    `state` is "prevents" where a way to run symmetric kernels is closed, "limits" where something less is lost.
    `effect` says what, `mend` what to do; both are None where all is fine.
    """

    subject: str
    state: State
    found: str
    effect: str | None = None
    mend: str | None = None
    closes: tuple[Way, ...] = ()
    unsure: tuple[Way, ...] = ()


def fine(subject: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(subject=subject, state="fine", found=found)


def limits(subject: str, found: str, effect: str, mend: str, closes: tuple[Way, ...] = ()) -> Finding:
    """Something is lost, but symmetric kernels can run."""
    return Finding(subject=subject, state="limits", found=found, effect=effect, mend=mend, closes=closes)


def prevents(subject: str, found: str, effect: str, mend: str, closes: tuple[Way, ...] = EVERY) -> Finding:
    """A way to run symmetric kernels is closed."""
    return Finding(subject=subject, state="prevents", found=found, effect=effect, mend=mend, closes=closes)


def unknown(
    subject: str, found: str, unsure: tuple[Way, ...] = (), effect: str | None = None, mend: str | None = None
) -> Finding:
    """It could not be told."""
    return Finding(subject=subject, state="not known", found=found, effect=effect, mend=mend, unsure=unsure)
