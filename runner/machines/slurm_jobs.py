"""Slurm's own commands on a login node: submit, look and cancel. Their output is taken apart strictly.

https://slurm.schedmd.com/sbatch.html, squeue.html and scancel.html; from Slurm 20.11 on, without accounting.
"""

from __future__ import annotations

import re

import msgspec

from ..errors import SymmemCheckError, UserError
from ..report.text import one_line
from .model import MachineError
from .remote import CommandFailed, Shell
from .slurm_reasons import ENDED, refusal

# The job gets the environment of sbatch, so nothing of the caller's may be in that: a token stands there. Nor may a
# user's SBATCH_ or SQUEUE_ variables change what is asked and told.
_PLAIN = (
    'exec env -i PATH="$PATH" HOME="$HOME" USER="${USER:-}" LOGNAME="${LOGNAME:-}" LC_ALL=C'
    ' ${SLURM_CONF:+SLURM_CONF="$SLURM_CONF"} ${LD_LIBRARY_PATH:+LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} "$@"'
)
_NOT_FOUND = 127
# The comment is last, since it alone could hold the separator.
_FIELDS = ("%A", "%j", "%T", "%V", "%S", "%e", "%P", "%D", "%b", "%r", "%k")
_JOB_ID = re.compile(r"([1-9][0-9]{0,17})(?:;\S+)?")


class Busy(SymmemCheckError):
    """Nothing is free for a candidate just now; the message says why."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as squeue shows it. Times are seconds since 1970, None where there is none yet, or none that can be read;
    `ends` is the start and the time limit."""

    id: str
    name: str
    state: str
    submitted: float | None
    started: float | None
    ends: float | None
    partition: str
    nodes: str
    gres: str
    reason: str
    comment: str

    @property
    def is_over(self) -> bool:
        """Whether it is ended and holds nothing any more."""
        return self.state in ENDED


class Jobs:
    """The jobs of the user that a shell runs commands as."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def submit(self, options: list[str], script: str) -> str:
        """Submit a script, and return the job's id.

        Raises Busy or UserError where the cluster refuses it, by the reason, and MachineError where it failed: then a
        job may be there all the same.
        """
        try:
            said = self._run(["sbatch", "--parsable", *options], script.encode())
        except CommandFailed as error:
            kind, words = refusal(error.said)
            message = f"{self._shell.where}: sbatch refused the job: {one_line(words, 500)}"
            if kind == "busy":
                raise Busy(one_line(words, 500)) from None
            raise (UserError(message) if kind == "caller" else MachineError(message)) from None
        found = _JOB_ID.fullmatch(said.strip())
        if found is None:
            raise MachineError(f"{self._shell.where}: sbatch told no job's id, but {one_line(said, 200)!r}")
        return found[1]

    def find(self, name: str = "") -> list[Job]:
        """The jobs, of one name or of all, with those that ended within the last minutes."""
        command = [
            "SLURM_TIME_FORMAT=%s",
            "squeue",
            "--me",
            "--noheader",
            "--states=all",
            f"--format={'|'.join(_FIELDS)}",
        ]
        if name:
            command.append(f"--name={name}")
        try:
            said = self._run(command)
        except CommandFailed as error:
            raise MachineError(f"{self._shell.where}: squeue failed: {one_line(error.said, 500)}") from None
        return [self._job(line) for line in said.splitlines() if line.strip()]

    def cancel(self, job: str) -> None:
        """Ask for a job's end. One that is over is no error."""
        try:
            self._run(["scancel", job])
        except CommandFailed as error:
            if any(one.id == job and not one.is_over for one in self.find()):
                message = f"{self._shell.where}: scancel of job {job} failed: {one_line(error.said, 500)}"
                raise MachineError(message) from None

    def _run(self, command: list[str], stdin: bytes = b"") -> str:
        try:
            return self._shell.run(["sh", "-c", _PLAIN, "sh", *command], stdin=stdin)
        except CommandFailed as error:
            if error.status == _NOT_FOUND:
                name = next(part for part in command if "=" not in part)
                raise UserError(
                    f"{self._shell.where}: there is no {name} on the PATH of a command run there; give a login node"
                ) from None
            raise

    def _job(self, line: str) -> Job:
        parts = line.split("|", len(_FIELDS) - 1)
        if len(parts) != len(_FIELDS) or not _JOB_ID.fullmatch(parts[0]) or not re.fullmatch(r"[A-Z_]+", parts[2]):
            raise MachineError(f"{self._shell.where}: squeue printed what is no job: {one_line(line, 200)!r}")
        ident, name, state, submitted, started, ends, partition, nodes, gres, reason, comment = map(str.strip, parts)
        return Job(
            id=ident, name=name, state=state, submitted=_time(submitted), started=_time(started), ends=_time(ends),
            partition=partition, nodes=nodes, gres=gres.removeprefix("gres:").removeprefix("gres/"), reason=reason,
            comment=comment,
        )  # fmt: skip


def _time(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[1-9][0-9]{8,11}", text) else None
