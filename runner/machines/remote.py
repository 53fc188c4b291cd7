"""Commands on a host that is not ours alone: by OpenSSH's own client with strict host keys, or on this very host."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Protocol

from ..errors import UserError
from ..github.settings import Token
from ..report.text import one_line
from ..yaml_file import Value
from .model import MachineError

KEY_VARIABLE = "SYMMEM_CHECK_SSH_KEY"
LOGIN_KEYS = ("host", "user", "port", "known-hosts")
CONNECT_SECONDS = 15
_SSH_FAILED = 255
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|[0-9a-fA-F:]{2,39}")
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


class CommandFailed(MachineError):
    """A command ended with another status than 0; `status` is it, and `said` what it wrote to stderr."""

    def __init__(self, message: str, status: int, said: str) -> None:
        super().__init__(message)
        self.status, self.said = status, said


class Shell(Protocol):
    """Where commands run."""

    @property
    def where(self) -> str:
        """The host, for messages."""

    def run(self, arguments: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> str:
        """Run a command and return what it wrote to stdout.

        Raises CommandFailed for a status other than 0, MachineError where the host can't be reached or `timeout`
        seconds are over. Neither shows `stdin`, which may hold a secret; arguments never do.
        """


class LocalShell:
    """This host, as where the starting job's own runner stands on a cluster's login node."""

    where = "this host"

    def run(self, arguments: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> str:
        """See Shell."""
        return _run(arguments, arguments[0], self.where, stdin, timeout)


class SshShell:
    """A host by OpenSSH's client. `known_hosts` are lines of a known_hosts file; no other key of the host will do.

    `key` is a private key's text; without one, an agent's and the user's own are tried.
    """

    def __init__(self, host: str, user: str, port: int, known_hosts: str, key: Token | None) -> None:
        self._host, self._user, self._port = host, user, port
        self._known_hosts, self._key = known_hosts, key

    @property
    def where(self) -> str:
        """The host, for messages."""
        return self._host

    @property
    def user(self) -> str:
        """The user that logs in."""
        return self._user

    @property
    def login(self) -> str:
        """What tells this login from others: `user@host:port`."""
        return f"{self._user}@{self._host}:{self._port}"

    def run(self, arguments: list[str], *, stdin: bytes = b"", timeout: float = 60.0) -> str:
        """See Shell. What ssh itself refuses is told with its mend."""
        with tempfile.TemporaryDirectory(prefix="symmem-check-ssh-") as folder:
            options = self._options(Path(folder))
            command = ["ssh", *options, "-p", str(self._port), "-l", self._user, "--", self._host]
            try:
                return _run([*command, shlex.join(arguments)], arguments[0], self._host, stdin, timeout)
            except CommandFailed as error:
                if error.status != _SSH_FAILED:
                    raise
                raise MachineError(f"{self._host}: {self._why(error.said)}") from None

    def _why(self, said: str) -> str:
        """The reason that ssh gave, and the mend."""
        scan = f"ssh-keyscan{'' if self._port == 22 else f' -p {self._port}'} {self._host}"
        compare = f"compare what {scan} prints with the host's own /etc/ssh/ssh_host_*_key.pub, then put it there"
        if "HOST IDENTIFICATION HAS CHANGED" in said:
            return f"its key is not the one in known-hosts, so this may be another host; {compare} if it is the same"
        if "host key is known" in said or "Host key verification failed" in said:
            return f"known-hosts has no key of it; {compare}"
        if "Permission denied" in said:
            return (
                f"does not let {self._user} log in; put the public half of the key in {KEY_VARIABLE} into the file "
                f"authorized_keys of {self._user} there"
            )
        return f"ssh failed: {one_line(said, 500) or 'it gave no reason'}"

    def _options(self, folder: Path) -> list[str]:
        known = folder / "known_hosts"
        known.write_text(self._known_hosts.strip() + "\n", encoding="utf-8")
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(known),
            "GlobalKnownHostsFile": "/dev/null",
            "UpdateHostKeys": "no",
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": "10",
            "ServerAliveCountMax": "3",
            "ForwardAgent": "no",
            "ClearAllForwardings": "yes",
            "LogLevel": "ERROR",
        }
        if self._key is not None:
            file = folder / "key"
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as out:  # noqa: PTH123
                out.write(self._key.value.strip() + "\n")
            options |= {"IdentityFile": str(file), "IdentitiesOnly": "yes"}
        return ["-F", "none", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]


def read_login(value: Value, more: tuple[str, ...] = ()) -> SshShell:
    """A host to log in to: `host`, `user`, `known-hosts` and perhaps `port`; the key comes by SYMMEM_CHECK_SSH_KEY.

    `more` are the caller's own keys in the same mapping."""
    entries = value.mapping((*LOGIN_KEYS, *more), required=("host", "user", "known-hosts"))
    known_hosts = entries["known-hosts"].text("the lines that ssh-keyscan prints, compared with the host's own keys")
    if not known_hosts.strip():
        entries["known-hosts"].error("is empty; give the lines of the host's keys, since no other host will do")
    key = os.environ.get(KEY_VARIABLE, "")
    return SshShell(
        host=entries["host"].matching(_HOST, "a host's name or address"),
        user=entries["user"].matching(_USER, "a user's name"),
        port=entries["port"].whole_number(1, 65535) if "port" in entries else 22,
        known_hosts=known_hosts,
        key=Token(key) if key.strip() else None,
    )


def _run(command: list[str], name: str, where: str, stdin: bytes, timeout: float) -> str:
    try:
        # In a session of its own: Ctrl-C at a terminal is for the caller, who ends what the command began.
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=timeout, check=False, start_new_session=True
        )
    except FileNotFoundError:
        raise UserError(f"{command[0]}: there is no such program here; install it") from None
    except subprocess.TimeoutExpired:
        raise MachineError(f"{where}: {name} had not ended after {timeout:g} s") from None
    except OSError as error:
        raise MachineError(f"{where}: {name} can't be run ({error.strerror or error})") from None
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode != 0:
        last = said.splitlines()[-1] if said else "it gave no reason"
        message = f"{where}: {name} ended with status {done.returncode}: {one_line(last, 500)}"
        raise CommandFailed(message, done.returncode, said)
    return done.stdout.decode(errors="replace")
