"""The helper on a GPU host: one job at a time, which reaches nothing of it and leaves nothing behind."""

from __future__ import annotations

import os
import pwd
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .sshd import GpuHost, installed_host, needs_root

pytestmark = [
    needs_root,
    pytest.mark.needs_program("sudo"),
    pytest.mark.needs_program("visudo"),
    pytest.mark.slow,
]
NAME = "symmem-0123abcd-4711-1-gpu"
OTHER = "symmem-89abcdef-1-1-gpu"
WAIT = "sleep 600"


@pytest.fixture(scope="module")
def installed() -> Iterator[GpuHost]:
    with installed_host() as host:
        yield host


@pytest.fixture
def host(installed: GpuHost) -> Iterator[GpuHost]:
    """The host, which is clean and nobody's again after each test."""
    yield installed
    installed.reset()
    assert (installed.listed(), installed.processes()) == ([], [])


def wait_until(done: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.05)


def journal(host: GpuHost, name: str = NAME) -> str:
    return host.ask("journal", name).stdout.removeprefix("symmem-check-host 1\n")


def shared_memory(host: GpuHost) -> list[str]:
    uid = pwd.getpwnam(host.job_user).pw_uid
    return [row for row in Path("/proc/sysvipc/shm").read_text().splitlines()[1:] if int(row.split()[7]) == uid]


def test_a_job_runs_as_its_user_with_no_way_to_more_and_leaves_only_its_journal(host: GpuHost) -> None:
    host.start(
        NAME,
        "id -un; pwd; echo home $HOME; stat -c %a:%U jit; cat jit; echo; "
        "grep -E '^(CapPrm|CapBnd|NoNewPrivs|SigIgn)' /proc/self/status; cat /proc/self/oom_score_adj; ulimit -c\n",
        jit="c2VjcmV0",
    )
    host.wait_until_free()
    lines = journal(host).splitlines()
    job = host.state / "job"
    assert lines[:5] == [host.job_user, str(job), f"home {job}/home", f"600:{host.job_user}", "c2VjcmV0"]
    status = dict(line.split(":\t") for line in lines[5:9])
    # Whoever runs the tests in the background has them ignore SIGINT and SIGQUIT, and nobody can take that back.
    mine = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("SigIgn"))
    assert int(status.pop("SigIgn"), 16) & ~int(mine.split()[1], 16) == 0
    assert status == {"CapPrm": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1"}
    assert lines[9:] == ["0", "0"]
    assert not job.exists()


def test_whatever_a_job_leaves_behind_is_gone(host: GpuHost) -> None:
    """Daemons in sessions of their own that ignore signals, files in open folders, shared memory."""
    job = """
        stubborn() { trap '' TERM HUP INT; touch "$1"; while :; do sleep 1; done; }
        (setsid bash -c "$(declare -f stubborn); stubborn $HOME/../1 & exit" &)
        nohup bash -c "$(declare -f stubborn); stubborn $HOME/../2" >/dev/null 2>&1 &
        (stubborn "$HOME/../3" &)
        python3 -c 'import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(os.environ["HOME"] + "/../4", "w"); time.sleep(600)'
        python3 -c 'import ctypes; libc = ctypes.CDLL(None); assert libc.shmget(0, 4096, 0o1600) >= 0'
        mkdir -p "/tmp/$USER a/b" "/dev/shm/$USER"; touch "/tmp/$USER a/b/$(printf 'c\\nd')" "/dev/shm/$USER/x"
        mkfifo "/var/tmp/$USER"; ln -s /etc/passwd "/tmp/$USER.link"; chmod 000 "/tmp/$USER a/b"
        until [ -e 1 ] && [ -e 2 ] && [ -e 3 ] && [ -e 4 ]; do sleep 0.1; done
        touch ready; sleep 600"""
    host.start(NAME, job)
    wait_until((host.state / "job/ready").exists)
    assert len(host.processes()) >= 5 and len(host.files()) >= 8 and len(shared_memory(host)) == 1
    done = host.ask("stop", NAME)
    assert (done.returncode, done.stderr) == (0, "")
    assert (host.listed(), host.processes(), host.files(), shared_memory(host)) == ([], [], [], [])
    assert Path("/etc/passwd").exists()


def test_a_job_that_forks_without_end_is_ended(host: GpuHost) -> None:
    host.start(NAME, "ulimit -u 300; spin() { while :; do (spin) & sleep 0.05; done; }; spin 2>/dev/null")
    wait_until(lambda: len(host.processes()) > 40)
    assert host.ask("stop", NAME).returncode == 0
    assert host.processes() == []


def test_a_job_reaches_nothing_of_the_helper(host: GpuHost) -> None:
    state = host.state
    attempts = [
        f"cat {state}/taken", f"ls {state}", f"echo x >{state}/stop", f"rm -f {state}/taken", f"mv {state} {state}2",
        f"echo x >>{host.conf}", f"echo x >{host.helper}", f"{host.helper} stop {NAME}",
        f"sudo -n {host.helper} stop {NAME}", f"cat {state}/journal-{NAME}", f"flock -n {state}/watch true",
        "kill -TERM $PPID", f"kill -0 $(pgrep -of '{host.helper} supervise')", "echo hi | crontab -",
    ]  # fmt: skip
    tries = "\n".join(f"({one}) >/dev/null 2>&1 && echo 'did: {number}'" for number, one in enumerate(attempts))
    host.start(NAME, f"{tries}\necho tried\n{WAIT}")
    wait_until(lambda: "tried" in journal(host))
    assert journal(host) == "tried\n"
    assert [line.split()[0] for line in host.listed()] == [NAME]


def test_what_a_job_left_to_run_can_not_see_the_next_jobs_configuration(host: GpuHost) -> None:
    look = f"while :; do cat {host.state}/job/jit >>$HOME/../seen 2>/dev/null; cp {host.state}/job/jit /tmp/$USER; done"
    host.start(NAME, f"(setsid bash -c '{look}' >/dev/null 2>&1 &)\nsleep 1", jit="b2xk")
    host.wait_until_free()
    host.start(OTHER, "ls /tmp/$USER; pgrep -u $USER -c\n", jit="bmV3")
    host.wait_until_free()
    assert re.search(r"cannot access .*\n[1-3]\n", journal(host, OTHER)), journal(host, OTHER)


def test_a_second_start_is_refused_while_the_first_has_the_host(host: GpuHost) -> None:
    host.start(NAME, WAIT)
    (line,) = host.listed()
    name, since, deadline, how = line.split()
    assert (name, how, int(deadline) - int(since)) == (NAME, "running", 600)
    assert abs(int(since) - time.time()) < 120
    for asked, stdin in ((("free", "private"), ""), (("start", OTHER, "60", "6", "private"), "SmlU\n:")):
        done = host.ask(*asked, stdin=stdin)
        assert done.returncode == 10
        assert re.search(rf"is busy with {NAME} since 20..-..-..T..:..:..Z\n$", done.stderr)
    assert host.ask("stop", OTHER).returncode == 0
    assert host.listed() == [line]


def test_only_one_of_many_that_start_at_once_gets_the_host(host: GpuHost) -> None:
    given = f"SmlU\n{WAIT}"
    names = [f"symmem-0123abcd-{number}-1-gpu" for number in range(6)]
    many = [
        subprocess.Popen(
            [host.helper, "start", name, "60", str(len(given)), "private"], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for name in names
    ]  # fmt: skip
    for one in many:
        assert one.stdin is not None
        one.stdin.write(given)
        one.stdin.flush()
    outputs = [one.communicate(timeout=250) for one in many]
    assert sorted(one.returncode for one in many) == [0, 10, 10, 10, 10, 10], outputs
    (line,) = host.listed()
    assert line.split()[0] == names[[one.returncode for one in many].index(0)]


HOSTILE = [
    ("start", "../../etc", "60", "6", "private"), ("start", f"{NAME}\n", "60", "6", "private"),
    ("start", f"{NAME};id", "60", "6", "private"), ("start", "$(id)", "60", "6", "private"),
    ("start", NAME, "0", "6", "private"), ("start", NAME, "432001", "6", "private"),
    ("start", NAME, "060", "6", "private"), ("start", NAME, "1+1", "6", "private"),
    ("start", NAME, "a[$(id)]", "6", "private"), ("start", NAME, "60", "99999999", "private"),
    ("start", NAME, "60", "7", "private"), ("start", NAME, "60", "6", "maybe"), ("start", NAME, "60", "6"),
    ("start", NAME, "60", "6", "private", "more"), ("start",), ("stop",), ("stop", "*"), ("stop", NAME, NAME),
    ("stop", "symmem-0123abcd-1-1-"), ("journal", "../taken"), ("journal",), ("free",), ("free", "private", "x"),
    ("list", "x"), ("read_conf",), ("kill_all",), ("",), (), ("-h",),
]  # fmt: skip


def test_hostile_arguments_are_refused(host: GpuHost) -> None:
    for arguments in HOSTILE:
        done = host.ask(*arguments, stdin="SmlU\n:")
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, (arguments, done)
    assert host.listed() == []


def test_a_hostile_configuration_is_refused(host: GpuHost) -> None:
    for given in ("a b\n:", "\n:::", "$(id)\n", "SmlU\n\0\0"):
        done = host.ask("start", NAME, "60", str(len(given)), "private", stdin=given)
        assert done.returncode == 2, (given, done)
    assert host.listed() == []


def test_a_script_that_comes_in_part_starts_nothing(host: GpuHost) -> None:
    done = host.ask("start", NAME, "60", "100", "private", stdin="SmlU\nsleep 600")
    assert (done.returncode, done.stderr) == (2, "symmem-check-host: the script came in part\n")
    assert host.listed() == []


def test_sudo_lets_the_keeper_ask_what_it_may_and_nothing_else(host: GpuHost) -> None:
    def by_keeper(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["runuser", "-u", host.keeper, "--", "sudo", "-n", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False
        )

    assert by_keeper(str(host.helper), "list").returncode == 0
    assert by_keeper(str(host.helper), "free", "private").stdout.endswith(f"{host.state}/job\n")
    for arguments in ([host.helper, "unlock"], [host.helper, "supervise", "x"], [host.helper, "list", "x"],
                      [host.helper], ["/bin/sh", "-c", "id"], ["-u", host.job_user, host.helper, "list"]):  # fmt: skip
        assert by_keeper(*map(str, arguments)).returncode == 1
    done = subprocess.run(
        ["runuser", "-u", host.keeper, "--", host.helper, "list"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "must be run as root" in done.stderr


def test_the_supervisor_ends_a_job_that_outlives_its_deadline(host: GpuHost) -> None:
    host.set("grace-seconds", "1")
    host.start(NAME, "trap '' TERM; while :; do sleep 1; done", seconds=1)
    host.wait_until_free()
    assert host.processes() == []


def test_a_supervisor_that_is_killed_leaves_the_lock_to_the_next_who_asks(host: GpuHost) -> None:
    host.start(NAME, WAIT)
    _kill_supervisor(host)
    assert [line.split()[0] for line in host.listed()] == [NAME] and host.processes() != []
    done = host.ask("free", "private")
    assert done.returncode == 0, done.stderr
    assert (host.listed(), host.processes()) == ([], [])


def test_stop_ends_a_job_whose_supervisor_was_killed(host: GpuHost) -> None:
    host.start(NAME, WAIT)
    _kill_supervisor(host)
    assert host.ask("stop", NAME).returncode == 0
    assert (host.listed(), host.processes()) == ([], [])


def _kill_supervisor(host: GpuHost) -> None:
    done = subprocess.run(["pgrep", "-f", f"{host.helper} supervise"], capture_output=True, text=True, check=True)
    for pid in done.stdout.split():
        os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in done.stdout.split()))


def test_a_host_that_can_not_be_cleaned_is_dirty_until_it_can(host: GpuHost) -> None:
    host.start(NAME, f"touch /tmp/$USER.stuck; touch ready; {WAIT}")
    wait_until((host.state / "job/ready").exists)
    stuck = Path(f"/tmp/{host.job_user}.stuck")
    if subprocess.run(["chattr", "+i", stuck], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no file that root can't remove")
    try:
        done = host.ask("stop", NAME)
        told = f"is dirty and takes no more jobs: the file {stuck} could not be removed; mend it, then: sudo "
        assert done.returncode == 11 and told in done.stderr
        (line,) = host.listed()
        assert line.endswith(f" dirty the file {stuck} could not be removed")
        for asked, stdin in ((("free", "private"), ""), (("start", OTHER, "60", "6", "private"), "SmlU\n:")):
            refused = host.ask(*asked, stdin=stdin)
            assert refused.returncode == 11 and told in refused.stderr
        assert host.ask("unlock").returncode == 11
        assert host.setup("install", "--keeper", host.keeper, "--job-user", host.job_user).returncode == 1
    finally:
        subprocess.run(["chattr", "-i", stuck], check=True)
    done = host.ask("unlock")
    assert (done.returncode, done.stdout) == (0, "clean, and free for the next job\n")
    assert not stuck.exists() and host.ask("free", "private").returncode == 0


def test_unlock_leaves_a_job_that_runs_alone(host: GpuHost) -> None:
    host.start(NAME, WAIT)
    assert host.ask("unlock").returncode == 10
    assert [line.split()[0] for line in host.listed()] == [NAME]


def _nvidia_smi(host: GpuHost, script: str) -> Path:
    program = host.root / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    host.set("nvidia-smi", str(program))
    return program


def test_gpu_memory_of_a_process_that_is_gone_makes_the_host_dirty(host: GpuHost) -> None:
    lost = 2**31 - 2  # no process can have it
    pids = host.root / "pids"
    pids.write_text("")
    _nvidia_smi(host, f"cat {pids}")
    host.start(NAME, WAIT)
    pids.write_text(f"1\n{lost}\n")
    done = host.ask("stop", NAME)
    assert done.returncode == 11 and f"a GPU still holds memory of process {lost}, which is gone" in done.stderr
    pids.write_text("1\n")
    assert host.ask("stop", NAME).returncode == 0
    assert host.listed() == []


def test_gpu_memory_that_was_held_before_is_not_the_jobs(host: GpuHost) -> None:
    _nvidia_smi(host, f"echo {2**31 - 2}")
    host.start(NAME, ":")
    host.wait_until_free()


def test_a_driver_that_does_not_answer_takes_no_job(host: GpuHost) -> None:
    _nvidia_smi(host, "echo 'Unable to determine the device handle'; exit 15")
    done = host.ask("free", "private")
    assert done.returncode == 13 and "nvidia-smi fails, so the GPUs take no job; mend the driver" in done.stderr
    assert host.ask("start", NAME, "60", "6", "private", stdin="SmlU\n:").returncode == 13
    assert host.listed() == []


def test_a_driver_that_breaks_in_the_job_makes_the_host_dirty(host: GpuHost) -> None:
    program = _nvidia_smi(host, "exit 0")
    host.start(NAME, WAIT)
    program.write_text("#!/bin/sh\nexit 15\n")
    done = host.ask("stop", NAME)
    assert done.returncode == 11 and "nvidia-smi fails since the job" in done.stderr


def test_a_journal_is_bounded_has_no_terminal_commands_and_goes_with_the_next_job(host: GpuHost) -> None:
    host.start(NAME, "printf 'first\\033]0;x\\007\\n'; head -c 3000000 /dev/zero | tr '\\0' x; echo; sleep 1")
    host.wait_until_free()
    assert (host.state / f"journal-{NAME}").stat().st_size == 1 << 20
    host.start(OTHER, "printf '\\033]0;title\\007äé\\n'")
    host.wait_until_free()
    assert journal(host, OTHER) == "]0;titleäé\n" and journal(host) == ""


def test_public_repositories_are_refused_until_the_hosts_admin_allows_them(host: GpuHost) -> None:
    for asked in (("free", "public"), ("start", NAME, "60", "6", "public")):
        done = host.ask(*asked, stdin="SmlU\n:")
        assert done.returncode == 12
        assert f"to allow it, set public-repositories=allowed in {host.conf}" in done.stderr
    host.set("public-repositories", "allowed")
    assert host.ask("free", "public").returncode == 0


def test_installing_again_keeps_what_the_admin_set_and_changes_nothing_else(host: GpuHost) -> None:
    host.set("public-repositories", "allowed")
    before = host.conf.read_text()
    done = host.install()
    assert done.returncode == 0, done.stderr
    assert host.conf.read_text() == before
    assert (host.helper.stat().st_mode & 0o777, host.helper.stat().st_uid) == (0o755, 0)
    assert host.state.stat().st_mode & 0o777 == 0o711
    assert oct(Path(f"/etc/sudoers.d/symmem-check-{host.keeper}").stat().st_mode)[-3:] == "440"


def test_users_that_would_undo_it_are_refused(host: GpuHost) -> None:
    for keeper, job_user, told in (
        ("root", "some-job", "neither the keeper nor the job's user may be root"),
        (host.keeper, "root", "neither the keeper nor the job's user may be root"),
        (host.keeper, host.keeper, "must be two"),
        (host.keeper, "nobody", "nobody is somebody's already"),
        ("a.b", "some-job", "a user's name has small letters"),
        (host.keeper, "x ALL", "a user's name has small letters"),
    ):
        done = host.setup("install", "--keeper", keeper, "--job-user", job_user)
        assert done.returncode != 0 and told in done.stderr, done.stderr


def test_a_folder_that_others_can_write_to_is_refused(host: GpuHost) -> None:
    above = host.helper.parent
    above.chmod(0o777)
    try:
        done = host.install()
    finally:
        above.chmod(0o755)
    # install(1) sets the last folder right itself, so look one above it
    assert done.returncode == 0
    above.parent.chmod(0o777)
    try:
        done = host.install()
    finally:
        above.parent.chmod(0o755)
    assert done.returncode == 1 and f"{above.parent} can be written by others than root" in done.stderr


def test_the_scripts_are_clean(project: Path) -> None:
    shellcheck = Path(sys.executable).with_name("shellcheck")
    machines = project / "runner" / "machines"
    for script, options in (
        ("host.sh", []), ("host_setup.sh", []), ("bootstrap.sh", ["--shell=bash", "--severity=warning"]),
    ):  # fmt: skip
        command = [shellcheck, *options, machines / script]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
