"""The provider `ssh`, through a machine's whole life: a real sshd, real sudo, GitHub's stand-in and its runner's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from runner.errors import UserError
from runner.github.client import Client
from runner.github.runners import Runners
from runner.github.settings import Token
from runner.machines.lifecycle import Lifecycle
from runner.machines.model import MachineError, NoCapacity, Owner, Provider
from runner.machines.spec import Spec, read_spec

from ..github.fake import REPOSITORY
from .conftest import RUN
from .fake import ADMIN, FakeWithRunners
from .sshd import GpuHost, Sshd, installed_host, needs_root, running_sshd

pytestmark = [
    needs_root,
    pytest.mark.needs_program("sshd"),
    pytest.mark.needs_program("sudo"),
    pytest.mark.slow,
]
SERVER = "github.com"
SECRET_HEAD = "jitSecretThatNoLogMayShow"


class FastClock:
    """Real time, twenty times as fast: a poll every five seconds comes four times a second."""

    def __init__(self) -> None:
        self.zero, self.began = time.monotonic(), time.time()

    def now(self) -> float:
        return self.began + (time.monotonic() - self.zero) * 20

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / 20)


def owner(run: int = RUN, attempt: int = 1, key: str = "gpu", repository: str = REPOSITORY) -> Owner:
    return Owner(server=SERVER, repository=repository, run_id=run, attempt=attempt, key=key)


def wait_until(done: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    with running_sshd() as running:
        yield running


@pytest.fixture(scope="module")
def installed() -> Iterator[list[GpuHost]]:
    """Two hosts, which are one machine: each has a helper, a keeper and a job's user of its own."""
    with installed_host() as first, installed_host() as second:
        yield [first, second]


@pytest.fixture
def hosts(installed: list[GpuHost]) -> Iterator[list[GpuHost]]:
    """Both hosts, clean and nobody's again after each test."""
    yield installed
    for host in installed:
        host.reset()
        assert (host.listed(), host.processes()) == ([], [])


class Bench:
    """What a job that starts machines has: its YAML, and the lifecycle made of it."""

    def __init__(self, sshd: Sshd, github: FakeWithRunners, hosts: list[GpuHost]) -> None:
        self.sshd, self.github, self.hosts = sshd, github, hosts
        self.told: list[str] = []

    def yaml(
        self, *hosts: str, limits: str = "max-hours: 1, register-minutes: 60, capacity-minutes: 1", more: str = ""
    ) -> str:
        folder = self.hosts[0].runner
        head = f"provider: ssh\nlimits: {{{limits}}}\nrunner: {{folder: {folder}}}\n{more}\nhosts:\n"
        return head + "\n".join(hosts or [self.host(0)])

    def host(self, number: int, known_hosts: str | None = None, more: str = "", **changed: object) -> str:
        host = self.hosts[number]
        entries = {"host": "127.0.0.1", "user": host.keeper, "port": self.sshd.port, "helper": host.helper} | changed
        lines = ", ".join(f"{name}: {value}" for name, value in entries.items())
        return f'- {{{lines}, known-hosts: "{known_hosts or self.sshd.known_hosts()}"{more}}}'

    def made(self, yaml: str | None = None) -> tuple[Lifecycle, Provider]:
        spec, provider = read_spec(self.yaml() if yaml is None else yaml)
        return self.lifecycle(spec, provider), provider

    def lifecycle(self, spec: Spec, provider: Provider) -> Lifecycle:
        runners = Runners(Client(self.github.url, Token(ADMIN)), REPOSITORY)
        return Lifecycle(provider, runners, spec, self.told.append, FastClock())


@pytest.fixture
def bench(
    sshd: Sshd, github: FakeWithRunners, hosts: list[GpuHost], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    monkeypatch.setenv("SYMMEM_CHECK_SSH_KEY", sshd.key)
    made = Bench(sshd, github, hosts)
    yield made
    assert SECRET_HEAD not in "\n".join(made.told) and ADMIN not in "\n".join(made.told)


def test_a_host_takes_one_job_and_is_clean_after_it(bench: Bench) -> None:
    (host, _), github = bench.hosts, bench.github
    seen = host.root / "seen"
    seen.mkdir()
    seen.chmod(0o777)
    github.job = (
        f"until [ -e {seen}/queued ]; do sleep 0.1; done; id -un >{seen}/ran; touch /dev/shm/$(id -un);"
        f"touch {seen}/left; until [ -e {seen}/read ]; do sleep 0.1; done"
    )
    lifecycle, provider = bench.made()
    machine = lifecycle.start(owner()).machine
    assert machine.owner == owner() and machine.id == f"{host.keeper}@127.0.0.1:{bench.sshd.port}"
    assert (machine.where, machine.what, machine.deadline - machine.since) == ("127.0.0.1", "GPU host", 3600)
    assert provider.list(SERVER, REPOSITORY) == [machine] and provider.list(SERVER, "octo/other") == []
    (seen / "queued").touch()
    wait_until((seen / "left").exists)
    assert (seen / "ran").read_text() == f"{host.job_user}\n"
    (seen / "read").touch()
    github.wait_for("done", 120)
    assert github.played == [(owner().name, 0)] and github.runners == []
    host.wait_until_free()
    assert (host.processes(), host.files()) == ([], [])
    assert provider.list(SERVER, REPOSITORY) == []
    assert "Listening for Jobs" in provider.journal(machine) and SECRET_HEAD not in provider.journal(machine)
    provider.stop(machine)
    assert lifecycle.stop(owner()).ended == []


def test_the_next_host_is_taken_where_one_is_busy_and_none_is_no_capacity(bench: Bench) -> None:
    bench.github.job = None
    lifecycle, provider = bench.made(bench.yaml(bench.host(0), bench.host(1, more=", price: 2.5")))
    first = lifecycle.start(owner()).machine
    second = lifecycle.start(owner(key="b")).machine
    assert [first.id.split("@")[0], second.id.split("@")[0]] == [host.keeper for host in bench.hosts]
    assert (first.price, second.price) == (None, 2.5)
    with pytest.raises(NoCapacity) as raised:
        lifecycle.start(owner(key="c"))
    said = re.escape("no host was free within 1 minutes: 127.0.0.1 is busy with ") + (
        rf"{owner().name} since 20\S+Z; 127\.0\.0\.1 is busy with {owner(key='b').name} since 20\S+Z"
    )
    assert re.fullmatch(said, str(raised.value)) and raised.value.exit_status == 4
    assert sorted(bench.github.names()) == sorted([owner().name, owner(key="b").name])
    (ended,) = lifecycle.stop(owner()).ended
    assert ended == f"{owner().name}: GPU host in 127.0.0.1 ({first.id})"
    assert provider.list(SERVER, REPOSITORY) == [second]
    lifecycle.stop(owner(key="b"))
    assert bench.github.runners == [] and not any(host.processes() for host in bench.hosts)


def test_a_later_attempt_takes_the_place_of_an_earlier_one(bench: Bench) -> None:
    bench.github.job = None
    lifecycle, provider = bench.made()
    lifecycle.start(owner())
    lifecycle.start(owner(attempt=2))
    assert [machine.owner.attempt for machine in provider.list(SERVER, REPOSITORY)] == [2]
    bench.github.over.add((RUN, 2))
    reaped = lifecycle.reap(SERVER, REPOSITORY)
    assert reaped.failed == [] and len(reaped.ended) == 2  # the machine and its runner
    assert provider.list(SERVER, REPOSITORY) == [] and bench.hosts[0].processes() == []


def test_a_starter_that_is_killed_right_after_start_leaves_a_machine_that_stop_finds(bench: Bench) -> None:
    """As a cancelled workflow does: the client of ssh dies with it, at any moment from the begin of the call on."""
    bench.github.job = None
    lifecycle, provider = bench.made()
    host = bench.hosts[0]
    cut = threading.Thread(target=_kill_ssh_when, args=(bench.sshd.port, lambda: bool(host.listed())))
    cut.start()
    with suppress(MachineError):  # an answer that was lost is taken back, one that came in time is a start
        lifecycle.start(owner())
    cut.join(120)
    lifecycle.stop(owner())
    assert (provider.list(SERVER, REPOSITORY), host.processes(), bench.github.runners) == ([], [], [])


def test_a_connection_that_is_cut_leaves_the_job_running_for_stop_to_find(bench: Bench) -> None:
    bench.github.job = None
    lifecycle, provider = bench.made()
    host, name = bench.hosts[0], owner().name
    given = "SmlU\nsleep 600"
    identity = bench.sshd.folder / "user"
    command = [
        "ssh", "-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-i", identity,
        "-p", str(bench.sshd.port), f"{host.keeper}@127.0.0.1",
        f"sudo -n -- {host.helper} start {name} 600 {len(given)} private",
    ]  # fmt: skip
    client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert client.stdin is not None
    client.stdin.write(given.encode())
    client.stdin.flush()
    wait_until(lambda: bool(host.listed()))
    client.kill()
    client.communicate()
    wait_until(lambda: any("sleep 600" in line for line in host.processes()))
    (machine,) = provider.list(SERVER, REPOSITORY)
    assert machine.owner == owner()
    assert len(lifecycle.stop(owner()).ended) == 1
    assert (host.listed(), host.processes()) == ([], [])


def _kill_ssh_when(port: int, ready: Callable[[], bool]) -> None:
    """Kill this test's ssh clients as soon as the host is taken."""
    wait_until(ready)
    command = ["pgrep", "-P", str(os.getpid()), "-f", f"ssh .*-p {port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for pid in done.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def test_no_argument_of_any_process_shows_the_runners_configuration(bench: Bench) -> None:
    """It is on stdin, in a file of the job's user alone, and in the runner's environment."""
    bench.github.job = None
    shown: list[str] = []
    done = threading.Event()
    secret = bench.github.configuration(owner().name)

    def look() -> None:
        while not done.is_set():
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    arguments = file.read_bytes()
                    if secret[:60].encode() in arguments or secret[-60:].encode() in arguments:
                        shown.append(arguments[:1000].decode())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        lifecycle, _ = bench.made()
        lifecycle.start(owner())
    finally:
        done.set()
        watcher.join(60)
    assert shown == []
    host = bench.hosts[0]
    assert not (host.state / "job/jit").exists()
    found = subprocess.run(["grep", "-rlsF", secret[-60:], host.state], capture_output=True, text=True, check=False)
    assert found.stdout == ""
    lifecycle.stop(owner())


def test_a_runner_that_never_comes_is_told_with_the_hosts_journal(bench: Bench) -> None:
    yaml = bench.yaml(limits="max-hours: 1, register-minutes: 3").replace(str(bench.hosts[0].runner), "/no/runner")
    with pytest.raises(MachineError, match=r"its runner (did not come|came; the last).* what it printed: symmem-check"):
        bench.made(yaml)[0].start(owner())
    assert any("there is no runner program in /no/runner" in line for line in bench.told)
    assert bench.hosts[0].listed() == [] and bench.github.runners == []


def test_a_public_repository_must_be_allowed_here_and_on_the_host(bench: Bench) -> None:
    bench.github.private, bench.github.job = False, None
    with pytest.raises(UserError, match=r"is public, so anybody could run code") as raised:
        bench.made()[0].start(owner())
    assert raised.value.exit_status == 2
    allowed = bench.yaml(more="public-repository: allowed")
    with pytest.raises(UserError, match=r"to allow it, set public-repositories=allowed in /"):
        bench.made(allowed)[0].start(owner())
    assert bench.github.runners == [] and bench.hosts[0].listed() == []
    bench.hosts[0].set("public-repositories", "allowed")
    lifecycle, provider = bench.made(allowed)
    assert lifecycle.start(owner()).machine in provider.list(SERVER, REPOSITORY)
    lifecycle.stop(owner())


def test_a_host_with_another_key_gets_nothing(bench: Bench) -> None:
    _, provider = bench.made(bench.yaml(bench.host(0, bench.sshd.known_hosts("other_host"))))
    with pytest.raises(MachineError, match=r"127\.0\.0\.1: its key is not the one in known-hosts"):
        provider.list(SERVER, REPOSITORY)


def test_a_host_that_is_not_set_up_is_told_with_the_mend(bench: Bench) -> None:
    other = bench.host(0, helper="/usr/local/libexec/no-such-helper")
    with pytest.raises(MachineError, match=r"sudo does not let keeper-\w+ run /usr/\S+ .*docs/machines/ssh\.md tells"):
        bench.made(bench.yaml(other))[1].list(SERVER, REPOSITORY)
    host = bench.hosts[0]
    kept = host.helper.with_suffix(".kept")
    host.helper.rename(kept)
    try:
        with pytest.raises(MachineError, match=r"sudo or /\S+ is not there \(.*command not found\); docs/machines/ssh"):
            bench.made()[1].list(SERVER, REPOSITORY)
        host.helper.write_text("#!/bin/sh\necho symmem-check-host 99\n")
        host.helper.chmod(0o755)
        with pytest.raises(MachineError, match=r"is of another version than this program; install it again"):
            bench.made()[1].list(SERVER, REPOSITORY)
    finally:
        kept.rename(host.helper)


@pytest.mark.parametrize("stop", ["ends", "fails"])
def test_no_second_host_starts_beside_one_that_may_have_begun(bench: Bench, stop: str) -> None:
    """The first host's answer is lost. Where it can be taken back, the next host may have the job."""
    bench.github.job = None
    first, second = bench.hosts
    lifecycle, provider = bench.made(bench.yaml(bench.host(0), bench.host(1)))
    kept = first.helper.with_suffix(".kept")
    first.helper.rename(kept)
    first.helper.write_text(
        "#!/bin/sh\necho symmem-check-host 1\n"
        f"case $1 in free) echo /somewhere;; start) exit 9;; stop) {'true' if stop == 'ends' else 'exit 9'};; esac\n"
    )
    first.helper.chmod(0o755)
    try:
        if stop == "ends":
            assert lifecycle.start(owner()).machine.id.startswith(f"{second.keeper}@")
            assert any(line.startswith("passed over: 127.0.0.1: ") for line in bench.told)
            lifecycle.stop(owner())
        else:
            with pytest.raises(MachineError, match=r"failed with status 9: .*; whether it began can't be told either"):
                lifecycle.start(owner())
        assert (provider.list(SERVER, REPOSITORY), second.processes(), bench.github.runners) == ([], [], [])
    finally:
        kept.rename(first.helper)


def test_hosts_that_can_not_be_asked_hide_none_of_the_others(bench: Bench) -> None:
    bench.github.job = None
    lifecycle, _ = bench.made()
    machine = lifecycle.start(owner()).machine
    _, both = bench.made(bench.yaml(bench.host(1, port=1), bench.host(0)))
    with pytest.raises(MachineError, match=r"^not all hosts could be asked: 127\.0\.0\.1: ssh failed: ") as raised:
        both.list(SERVER, REPOSITORY)
    assert raised.value.machines == [machine]  # type: ignore[attr-defined]
    lifecycle.stop(owner())


def test_a_host_that_does_not_answer_is_passed_over(bench: Bench) -> None:
    bench.github.job = None
    lifecycle, _ = bench.made(bench.yaml(bench.host(1, port=1), bench.host(0)))
    machine = lifecycle.start(owner()).machine
    assert machine.id.startswith(bench.hosts[0].keeper) and "passed over: " in "\n".join(bench.told)
    done = lifecycle.stop(owner())
    assert len(done.ended) == 1 and done.failed[0].startswith("not all hosts could be asked: 127.0.0.1: ssh failed")
    assert bench.hosts[0].listed() == [] and bench.github.runners == []


def test_a_dirty_host_is_told_with_the_mend_and_stays_listed(bench: Bench) -> None:
    bench.github.job = None
    host = bench.hosts[0]
    program = host.root / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    host.set("nvidia-smi", str(program))
    lifecycle, provider = bench.made()
    lifecycle.start(owner())
    program.write_text("#!/bin/sh\nexit 15\n")
    told = (
        r"127\.0\.0\.1 is dirty and takes no more jobs: nvidia-smi fails since the job; mend it, then: sudo \S+ unlock"
    )
    (failed,) = lifecycle.stop(owner()).failed
    assert re.search(told, failed)
    (machine,) = provider.list(SERVER, REPOSITORY)
    assert machine.what == "GPU host, dirty nvidia-smi fails since the job"
    with pytest.raises(MachineError, match=told):
        bench.made()[0].start(owner(key="b"))
    program.write_text("#!/bin/sh\n")
    lifecycle.stop(owner())
    assert provider.list(SERVER, REPOSITORY) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"more": ", price: 3"}, r"127\.0\.0\.1 costs 3 USD an hour, above max-price, which is 2$"),
        ({}, r"127\.0\.0\.1 has no price, so max-price can't be held"),
    ],
)  # fmt: skip
def test_a_price_above_the_limit_is_refused_before_anything_is_asked(
    bench: Bench, changed: dict[str, str], told: str
) -> None:
    lifecycle, _ = bench.made(bench.yaml(bench.host(0, **changed), limits="max-hours: 1, max-price: 2"))
    with pytest.raises(UserError, match=told):
        lifecycle.start(owner())
    assert bench.github.asked == []
