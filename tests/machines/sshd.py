"""A host with a real sshd on loopback, real sudo, and the helper of the provider `ssh` installed as its admin would.

The users are made for it and removed afterwards, so it takes root.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .fake import RUNNER

SETUP = Path(__file__).resolve().parents[2] / "runner" / "machines" / "host_setup.sh"
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes users and asks sudo, so it must be run as root")


class Sshd:
    """sshd on a free port of loopback with a host key of its own, for users whose one key is `key`, a private key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("host", "other_host", "user", "other_user"):
            _keygen(folder / name)
        self.key = (folder / "user").read_text()
        shutil.copy(folder / "user.pub", folder / "authorized_keys")
        (folder / "authorized_keys").chmod(0o644)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # where sshd drops its rights
        for attempt in range(5):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            if self._listens(attempt):
                return
        raise AssertionError((folder / "log").read_text())

    def _listens(self, attempt: int) -> bool:
        settings = {
            "ListenAddress": f"127.0.0.1:{self.port}", "HostKey": self.folder / "host", "UsePAM": "no",
            "StrictModes": "no", "PidFile": "none", "AuthorizedKeysFile": self.folder / "authorized_keys",
            "PasswordAuthentication": "no", "KbdInteractiveAuthentication": "no", "MaxStartups": "100",
            "PermitRootLogin": "prohibit-password",
        }  # fmt: skip
        config = self.folder / "sshd_config"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([str(SSHD), "-D", "-e", "-f", config], stdin=subprocess.DEVNULL, stderr=log)
        end = time.monotonic() + 30
        while self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            except OSError:
                assert time.monotonic() < end, f"sshd does not answer at attempt {attempt}"
                time.sleep(0.05)
            else:
                return True
        return False

    def known_hosts(self, name: str = "host") -> str:
        """The line for known_hosts; of `other_host`, a key that the host doesn't have."""
        return f"[127.0.0.1]:{self.port} {(self.folder / f'{name}.pub').read_text().strip()}"

    def close(self) -> None:
        """Stop listening; sessions that are open go on."""
        self.process.terminate()
        self.process.wait(30)


def _keygen(file: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", file], check=True)


class GpuHost:
    """What host_setup.sh makes, below `root`: a helper, its keeper and its job's user, both new users of this machine.

    `runner` is the folder of the stand-in for GitHub's runner, where the job's user can read it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        tail = secrets.token_hex(4)
        self.keeper, self.job_user = f"keeper-{tail}", f"job-{tail}"
        self.helper = root / "usr/local/libexec/symmem-check-host"
        self.conf = root / "etc/symmem-check/host.conf"
        self.state = root / "var/lib/symmem-check"
        self.runner = root / "runner"
        shutil.copytree(RUNNER, self.runner)
        for path in (self.runner, *self.runner.iterdir()):
            path.chmod(0o755)

    def setup(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call host_setup.sh."""
        return _call([str(SETUP), *arguments, "--prefix", str(self.root)])

    def install(self) -> subprocess.CompletedProcess[str]:
        """Install as the host's admin does."""
        return self.setup("install", "--keeper", self.keeper, "--job-user", self.job_user)

    def ask(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Call the helper as root."""
        return _call([str(self.helper), *arguments], stdin)

    def start(self, name: str, script: str, *, seconds: int = 600, jit: str = "SmlU") -> None:
        """Start a script as the job of a machine."""
        given = f"{jit}\n{script}"
        done = self.ask("start", name, str(seconds), str(len(given.encode())), "private", stdin=given)
        assert done.returncode == 0, done.stderr

    def set(self, key: str, value: str) -> None:
        """Change a line of host.conf."""
        lines = self.conf.read_text().splitlines()
        self.conf.write_text("\n".join(f"{key}={value}" if x.startswith(f"{key}=") else x for x in lines) + "\n")

    def listed(self) -> list[str]:
        """What the helper lists."""
        done = self.ask("list")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[1:]

    def wait_until_free(self, seconds: float = 120) -> None:
        """Wait until no job has the host."""
        end = time.monotonic() + seconds
        while self.listed():
            assert time.monotonic() < end, f"not free within {seconds} s: {self.listed()}"
            time.sleep(0.1)

    def processes(self) -> list[str]:
        """What the job's user runs: command lines."""
        done = _call(["ps", "-o", "stat=,args=", "-u", self.job_user, "-U", self.job_user])
        return [line for line in done.stdout.splitlines() if not line.startswith("Z")]

    def files(self) -> list[str]:
        """What the job's user has in the folders that anybody may write to, and below the helper's."""
        places = ["/tmp", "/var/tmp", "/dev/shm", "/run/lock", str(self.state)]
        done = _call(["find", *places, "-ignore_readdir_race", "-user", self.job_user])
        return done.stdout.splitlines()

    def reset(self) -> None:
        """End what a test left, and take back what it set; fails where the helper can't."""
        for key, value in (("nvidia-smi", ""), ("grace-seconds", "300"), ("public-repositories", "refused")):
            self.set(key, value)
        held = self.listed()
        for line in held:
            self.ask("stop", line.split()[0])
        if held:
            done = self.ask("unlock")
            assert done.returncode == 0, done.stderr

    def remove(self) -> None:
        """Uninstall, and remove the users, whatever fails."""
        try:
            self.reset()
            done = self.setup("uninstall")
            assert done.returncode == 0, done.stderr
        finally:
            sudoers = Path(f"/etc/sudoers.d/symmem-check-{self.keeper}")
            left = [self.state.exists(), sudoers.exists()]
            sudoers.unlink(missing_ok=True)
            for user in (self.keeper, self.job_user):
                subprocess.run(["pkill", "-KILL", "-U", user], check=False, capture_output=True)
                subprocess.run(["userdel", "-f", "-r", user], check=False, capture_output=True)
        assert left == [False, False]


def _call(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, errors="replace", timeout=250, check=False
    )


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, as pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="symmem-check-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def running_sshd() -> Iterator[Sshd]:
    """An sshd while it is needed."""
    with open_folder() as folder:
        sshd = Sshd(folder)
        try:
            yield sshd
        finally:
            sshd.close()


@contextmanager
def installed_host() -> Iterator[GpuHost]:
    """A host while it is needed."""
    with open_folder() as folder:
        host = GpuHost(folder)
        done = host.install()
        assert done.returncode == 0, done.stderr
        try:
            yield host
        finally:
            host.remove()
