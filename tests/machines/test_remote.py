"""Commands on a host: by OpenSSH's client against a real sshd, and on this very host."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.github.settings import Token
from runner.machines.model import MachineError
from runner.machines.remote import CommandFailed, LocalShell, SshShell, read_login
from runner.yaml_file import parse_yaml

from .sshd import Sshd, running_sshd

ME = pwd.getpwuid(os.geteuid()).pw_name
SECRET = "c2VjcmV0VGhhdE5vTG9nTWF5U2hvdw"


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    """An sshd that lets this test's own user in."""
    with running_sshd() as running:
        shell = shell_of(running)
        try:
            shell.run(["true"])
        except MachineError as error:
            pytest.skip(f"sshd does not let {ME} in here: {error}")
        yield running


def shell_of(sshd: Sshd, known_hosts: str | None = None, key: str | None = None, user: str = ME) -> SshShell:
    known = sshd.known_hosts() if known_hosts is None else known_hosts
    return SshShell("127.0.0.1", user, sshd.port, known, Token(sshd.key if key is None else key))


@pytest.mark.needs_program("sshd")
def test_arguments_arrive_as_they_are_and_stdin_and_output_pass(sshd: Sshd) -> None:
    words = ["a b", "$(id)", "'", "*", "", "é\n"]
    shell = shell_of(sshd)
    assert shell.run(["printf", "%s|", *words]) == "".join(f"{word}|" for word in words)
    assert shell.run(["cat"], stdin=SECRET.encode()) == SECRET
    assert (shell.where, shell.login) == ("127.0.0.1", f"{ME}@127.0.0.1:{sshd.port}")


@pytest.mark.needs_program("sshd")
def test_a_command_that_fails_is_told_by_its_status_and_last_line_without_what_it_was_given(sshd: Sshd) -> None:
    for shell in (shell_of(sshd), LocalShell()):
        with pytest.raises(CommandFailed) as raised:
            shell.run(["sh", "-c", "cat >/dev/null; echo first >&2; printf '\\033[2Jlast\\n' >&2; exit 7"], stdin=b"x")
        assert (raised.value.status, raised.value.exit_status) == (7, 3)
        assert str(raised.value).startswith(f"{shell.where}: sh ended with status 7: ")
        assert str(raised.value).endswith("last") and "\033" not in str(raised.value)


@pytest.mark.needs_program("sshd")
def test_a_host_with_another_key_is_refused_with_the_mend(sshd: Sshd) -> None:
    with pytest.raises(MachineError) as raised:
        shell_of(sshd, sshd.known_hosts("other_host")).run(["true"])
    assert str(raised.value) == (
        "127.0.0.1: its key is not the one in known-hosts, so this may be another host; compare what "
        f"ssh-keyscan -p {sshd.port} 127.0.0.1 prints with the host's own /etc/ssh/ssh_host_*_key.pub, "
        "then put it there if it is the same"
    )


@pytest.mark.needs_program("sshd")
def test_a_host_that_is_not_known_is_refused_whatever_the_user_knows(sshd: Sshd) -> None:
    with pytest.raises(MachineError, match=r"^127\.0\.0\.1: known-hosts has no key of it; compare what ssh-keyscan "):
        shell_of(sshd, "other.example ssh-ed25519 AAAA").run(["true"])


@pytest.mark.needs_program("sshd")
def test_a_user_that_is_not_let_in_is_told_which_key_goes_where(sshd: Sshd) -> None:
    other = (sshd.folder / "other_user").read_text()
    with pytest.raises(MachineError) as raised:
        shell_of(sshd, key=other).run(["true"])
    assert str(raised.value) == (
        f"127.0.0.1: does not let {ME} log in; put the public half of the key in SYMMEM_CHECK_SSH_KEY into the file "
        f"authorized_keys of {ME} there"
    )


@pytest.mark.needs_program("sshd")
def test_a_private_key_is_in_no_argument_and_no_file_stays(
    sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shell = shell_of(sshd)
    shown = shell.run(["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"])
    assert sshd.key.splitlines()[1] not in shown
    assert list(tmp_path.iterdir()) == []
    assert sshd.key.splitlines()[1] not in repr(vars(shell))


def test_a_host_that_does_not_answer_is_told_by_its_name() -> None:
    shell = SshShell("127.0.0.1", "x", 1, "127.0.0.1 ssh-ed25519 AAAA", None)
    with pytest.raises(MachineError, match=r"^127\.0\.0\.1: ssh failed: .*port 1: Connection refused$"):
        shell.run(["true"])


@pytest.mark.needs_program("sshd")
def test_a_command_that_does_not_end_is_left_at_its_deadline(sshd: Sshd) -> None:
    for shell in (shell_of(sshd), LocalShell()):
        with pytest.raises(MachineError, match=r"sleep had not ended after 1 s$"):
            shell.run(["sleep", "30"], timeout=1)


def test_a_program_that_is_missing_here_is_for_the_caller_to_mend() -> None:
    with pytest.raises(UserError, match=r"^no-such-program: there is no such program here; install it$"):
        LocalShell().run(["no-such-program"])


def test_a_local_command_gets_its_input_and_a_session_of_its_own() -> None:
    assert LocalShell().run(["cat"], stdin=b"x") == "x"
    shown = LocalShell().run(["ps", "-o", "sid=", "-p", str(os.getpid())]).strip()
    assert LocalShell().run(["sh", "-c", "ps -o sid= -p $$"]).strip() != shown


@pytest.mark.parametrize(
    ("login", "told"),
    [
        ("{host: h, user: u}", 'the key "known-hosts" is missing'),
        ("{host: h, user: u, known-hosts: ''}", "line 1: known-hosts: is empty"),
        ("{host: -oProxyCommand=x, user: u, known-hosts: k}", "host: must be a host's name"),
        ("{host: h, user: -x, known-hosts: k}", "user: must be a user's name"),
        ("{host: h, user: u, known-hosts: k, port: 0}", "port: must be at least 1"),
        ("{host: h, user: u, known-hosts: k, key: x}", 'unknown key \'key\''),
    ],
)  # fmt: skip
def test_a_login_that_can_not_be_is_told_with_its_key(login: str, told: str) -> None:
    with pytest.raises(UserError) as raised:
        read_login(parse_yaml(login, Path("machine")))
    assert told in str(raised.value)


def test_a_login_takes_its_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYMMEM_CHECK_SSH_KEY", SECRET)
    shell = read_login(parse_yaml("{host: gpu1.example, user: ci, known-hosts: k, price: 1}", Path("m")), ("price",))
    assert shell.login == "ci@gpu1.example:22" and SECRET not in repr(vars(shell))
