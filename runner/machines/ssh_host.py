"""One GPU host that somebody owns: what its helper (host.sh) is asked by ssh, and what its answers mean."""

from __future__ import annotations

import re

import msgspec

from ..errors import UserError
from ..report.text import one_line
from .model import MachineError, NoCapacity
from .remote import CommandFailed, SshShell

HELPER = "/usr/local/libexec/symmem-check-host"
GREETING = "symmem-check-host 1"
"""The first line of every answer; the number changes when the questions or answers do."""
SET_UP = "docs/machines/ssh.md tells how to set it up"

_BUSY, _DIRTY, _REFUSED = 10, 11, 12
# The second is for what may have to clean up first: killing, removing and looking have deadlines of minutes there.
_ASK_SECONDS, _CLEAN_SECONDS = 60.0, 600.0
_FOLDER = re.compile(r"(/[A-Za-z0-9._-]+)+")
_HELD = re.compile(r"(symmem-[a-z0-9-]{1,60}|-) ([0-9]{1,12}) ([0-9]{1,12}) (running|ending|dirty)(?: (.*))?")
_SPAN = re.compile(r"([0-9]{1,12}) ([0-9]{1,12})")


class Held(msgspec.Struct, frozen=True):
    """Who has a host: the machine's name, `-` where a host is dirty and nobody's; since when and until when, in
    seconds since 1970; `running`, `ending` or `dirty`, and why it is dirty."""

    name: str
    since: float
    deadline: float
    state: str
    why: str


class Host:
    """A host with the helper at `helper`; `price` is US dollars an hour, None where nobody said.

    Every call raises NoCapacity where the host is busy, UserError where its admin refuses what is asked, and
    MachineError where it can't be reached, is dirty, or is not set up.
    """

    def __init__(self, shell: SshShell, helper: str, price: float | None) -> None:
        self._shell, self._helper, self.price = shell, helper, price

    @property
    def id(self) -> str:
        """What tells the host from the others: `user@host:port`."""
        return self._shell.login

    @property
    def where(self) -> str:
        """The host's name, for people."""
        return self._shell.where

    def free(self, *, public: bool) -> str:
        """The folder in which a job would run now."""
        return self._line(_FOLDER, "free", _visibility(public), timeout=_CLEAN_SECONDS)[0]

    def start(self, name: str, seconds: int, given: bytes, *, public: bool) -> tuple[float, float]:
        """Take the lock and start `given`: a line with the runner's configuration, then the script. Returns since when
        and until when, in seconds since 1970."""
        arguments = ("start", name, str(seconds), str(len(given)), _visibility(public))
        found = self._line(_SPAN, *arguments, stdin=given, timeout=_CLEAN_SECONDS)
        return float(found[1]), float(found[2])

    def stop(self, name: str) -> None:
        """End what runs under that name, and return when nothing of it is left; nothing happens where it is gone."""
        try:
            self._ask("stop", name, timeout=_CLEAN_SECONDS)
        except NoCapacity as error:  # busy with another call for a minute
            raise MachineError(str(error)) from None

    def held(self) -> list[Held]:
        """Who has the host: nobody or one."""
        return [self._held(line) for line in self._ask("list")]

    def journal(self, name: str) -> str:
        """The last 16 KiB of what ran there under that name wrote, until the next starts."""
        return "\n".join(self._ask("journal", name))

    def _held(self, line: str) -> Held:
        found = self._parsed(_HELD, line)
        return Held(found[1], float(found[2]), float(found[3]), found[4], one_line(found[5] or "", 300))

    def _line(self, pattern: re.Pattern[str], *arguments: str, stdin: bytes = b"", timeout: float) -> re.Match[str]:
        lines = self._ask(*arguments, stdin=stdin, timeout=timeout)
        return self._parsed(pattern, lines[0] if lines else "")

    def _parsed(self, pattern: re.Pattern[str], line: str) -> re.Match[str]:
        found = pattern.fullmatch(line)
        if found is None:
            raise MachineError(f"{self.where}: {self._helper} said {one_line(line, 100)!r}, which is no answer of it")
        return found

    def _ask(self, *arguments: str, stdin: bytes = b"", timeout: float = _ASK_SECONDS) -> list[str]:
        try:
            answer = self._shell.run(["sudo", "-n", "--", self._helper, *arguments], stdin=stdin, timeout=timeout)
        except CommandFailed as error:
            raise self._meaning(error) from None
        greeting, *lines = answer.splitlines() or [""]
        if greeting != GREETING:
            raise MachineError(
                f"{self.where}: {self._helper} is of another version than this program; install it again ({SET_UP})"
            )
        return lines

    def _meaning(self, error: CommandFailed) -> MachineError | NoCapacity | UserError:
        last = error.said.splitlines()[-1] if error.said else "it gave no reason"
        said = one_line(last.removeprefix("symmem-check-host: "), 500)
        if error.status == _BUSY:
            return NoCapacity(f"{self.where} {said}")
        if error.status == _REFUSED:
            return UserError(f"{self.where} {said}")
        if error.status == _DIRTY:
            return MachineError(f"{self.where} {said}")
        if "command not found" in last or error.status == 127:
            return MachineError(f"{self.where}: sudo or {self._helper} is not there ({said}); {SET_UP}")
        if "password is required" in last or "not allowed" in last or "may not run" in last:
            return MachineError(
                f"{self.where}: sudo does not let {self._shell.user} run {self._helper} ({said}); {SET_UP}"
            )
        return MachineError(f"{self.where}: {self._helper} failed with status {error.status}: {said}")


def _visibility(public: bool) -> str:
    return "public" if public else "private"
