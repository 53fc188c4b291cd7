"""The errors that end a command, each with the exit status it stands for.

A message is one line for a person: what is wrong, where, and what to do about it.
"""

from __future__ import annotations


class SymmemCheckError(Exception):
    """Base of the errors that a command reports in one line and without a traceback."""

    exit_status = 2


class UserError(SymmemCheckError):
    """The call or a file is wrong: exit status 2."""

    exit_status = 2


class Interrupted(SymmemCheckError):
    """A signal ended the run; what was done until then is written. Exit status 128 and the signal's number."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_status = 128 + number


class Unmeasured(SymmemCheckError):
    """Nothing could be measured (no torch, no GPU, no kernels): exit status 3."""

    exit_status = 3
