"""Why a job doesn't run, in words: what sbatch refuses, why a job waits, and how it ended.

https://slurm.schedmd.com/job_reason_codes.html, https://slurm.schedmd.com/squeue.html#SECTION_JOB-STATE-CODES and
the texts of https://github.com/SchedMD/slurm/blob/master/src/common/slurm_errno.c
"""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["busy", "caller", "failed"]
"""Whose it is: nothing is free, the caller asks for what can't be, or the cluster failed."""

_BUSY = re.compile(
    r"Requested nodes are busy|Required node not available|Required partition not available"
    r"|partition configuration not available now|(?:Max|Grp)Submit"
)
_FAILED = re.compile(
    r"contact slurm controller|Socket timed out|Connection refused|Connection timed out|Unable to connect"
    r"|Zero Bytes|I/O error|[Pp]rotocol authentication|[Mm]unge|backup controller|configuration source"
    r"|temporarily unable|temporarily unavailable|Unspecified error|Communication connection failure"
)

ENDED = {
    "BOOT_FAIL": "its node did not boot",
    "CANCELLED": "it was cancelled, by its user or an administrator",
    "COMPLETED": "it ended",
    "DEADLINE": "it could not have ended by its deadline any more",
    "FAILED": "it failed",
    "LAUNCH_FAILED": "it could not be launched",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it ran out of memory",
    "PREEMPTED": "it had to make room for another job",
    "RECONFIG_FAIL": "its node could not be reconfigured",
    "REVOKED": "another cluster took it",
    "TIMEOUT": "its time limit was over",
}
"""The states of a job that is over; all others are of one that may yet run, runs, or is being ended."""
TAKEN = ("PREEMPTED", "DEADLINE")
"""Those which say that there was no capacity."""

_WAITING = {
    "None": "Slurm has not looked at it yet",
    "Resources": "all such GPUs are taken",
    "Priority": "other jobs come first",
    "Dependency": "it waits for another job",
    "BeginTime": "Slurm put it off",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "it is held",
    "Licenses": "all licences are taken",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "PartitionConfig": "the partition has no such nodes, or not now",
    "ReqNodeNotAvail": "the nodes that could do are down, drained or reserved",
    "NodeDown": "the nodes that could do are down",
    "Reservation": "its reservation is not there yet",
}
_NEVER = {
    "PartitionTimeLimit": "the partition allows no job so long; lower max-hours",
    "PartitionNodeLimit": "the partition allows no job with so many nodes",
    "BadConstraints": "no node is as asked for",
    "AccountNotAllowed": "the partition does not take this account",
    "QOSNotAllowed": "the partition or account does not take this qos",
    "InvalidAccount": "there is no such account, or it is not yours",
    "InvalidQOS": "there is no such qos, or it is not yours",
}
_LIMIT = re.compile(r"(QOS|Assoc|Association)(Grp|Max|Min)?(\w*)")
_HOPELESS = re.compile(r"PartitionDown|PartitionInactive|\w*Minutes\w*")


def refusal(said: str) -> tuple[Kind, str]:
    """Whose it is that sbatch refused a job, and its words without sbatch's name before each line."""
    lines = [re.sub(r"^(?:sbatch|env|sh): (?:error: |fatal: )?", "", line.strip()) for line in said.splitlines()]
    words = "; ".join(line for line in lines if line) or "it gave no reason"
    if _FAILED.search(words):
        return "failed", words
    return ("busy", words) if _BUSY.search(words) else ("caller", words)


def waits_for(reason: str) -> str:
    """Why a job waits, in words and with Slurm's own."""
    name = re.split(r"[^A-Za-z]", reason.lstrip("("), maxsplit=1)[0]
    words = _WAITING.get(name) or _NEVER.get(name) or _limit(name)
    return f"{words} ({reason})" if words else reason


def is_for_the_caller(reason: str) -> bool:
    """Whether a job that waits for this will never run as it was asked for."""
    found = _LIMIT.fullmatch(reason)
    return reason in _NEVER or (found is not None and ("PerJob" in found[3] or found[2] == "Min"))


def is_hopeless(reason: str) -> bool:
    """Whether a job that waits for this runs some time, but not within minutes."""
    return _HOPELESS.fullmatch(reason) is not None


def _limit(name: str) -> str | None:
    found = _LIMIT.fullmatch(name)
    if found is None:
        return None
    whose = "the qos" if found[1] == "QOS" else "the account"
    if "Minutes" in found[3]:
        return f"the budget of {whose} is used up"
    if found[2] == "Min":
        return f"it asks for less than {whose} demands"
    if "PerJob" in found[3]:
        return f"it asks for more than {whose} allows a job"
    return f"a limit of {whose} is reached"
