"""The script that every machine runs, with real bash and a stand-in for GitHub's runner."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.github.settings import Token
from runner.machines.bootstrap import bootstrap
from runner.machines.model import Limits, Order, Owner, RunnerProgram

from ..github.fake import REPOSITORY
from .fake import RUNNER, FakeWithRunners

OWNER = Owner(server="github.com", repository=REPOSITORY, run_id=1, attempt=1, key="gpu")
NAME = OWNER.name


@pytest.fixture
def script(tmp_path: Path, github: FakeWithRunners) -> Callable[..., str]:
    """The script, of a machine whose runner GitHub knows."""
    github.runners.append({"id": 1, "name": NAME, "os": "unknown", "status": "offline", "busy": False, "labels": []})

    def make(program: RunnerProgram | None = None, **more: Any) -> str:
        limits = Limits(max_hours=more.pop("hours", 1), idle_minutes=more.pop("idle", 5))
        order = Order(
            owner=OWNER, limits=limits, program=program or RunnerProgram(folder=str(RUNNER)), public=False,
            registration=lambda: Token(""), pause=time.sleep, tell=print,
        )  # fmt: skip
        if "jit_file" not in more:
            more["jit"] = Token(github.configuration(NAME))
        return bootstrap(order, work=str(tmp_path / "work"), **more)

    return make


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], "HOME": "/tmp", **environment}
    return subprocess.run(
        ["bash", "-s"], input=script, env=variables, capture_output=True, text=True, timeout=120, check=False
    )


def wait_for_end(pid: int) -> None:
    """Wait until a process is gone, which takes a moment longer where its last parent is slow to take its status."""
    end = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end, f"{pid} is still there"
        time.sleep(0.05)


def last(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The last two lines, without their beginning."""
    assert all("jitSecret" not in text for text in (done.stdout, done.stderr))
    return [line.removeprefix(f"symmem-check machine {NAME}: ") for line in done.stdout.splitlines()[-2:]]


def test_one_job_and_nothing_is_left(script: Callable[..., str], github: FakeWithRunners, tmp_path: Path) -> None:
    github.job = f"env >{tmp_path}/seen; touch left; exit 3"
    given = {
        "SYMMEM_CHECK_RUNNER_TOKEN": "x",
        "GITHUB_TOKEN": "y",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "https_proxy": "http://p",
    }
    done = run(script(), **given)
    assert last(done) == ["the runner ended with status 0", "ended"] and done.returncode == 0
    assert github.played == [(NAME, 3)]
    assert list((tmp_path / "work").iterdir()) == []
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines() if "=" in line)
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["https_proxy"]) == ("0,1", "http://p")
    assert {"HOME", "PATH", "GITHUB_JOB"} <= set(seen)
    assert not {"SYMMEM_CHECK_RUNNER_TOKEN", "GITHUB_TOKEN", "JIT", "ACTIONS_RUNNER_INPUT_JITCONFIG"} & set(seen)


def test_the_configuration_is_on_no_command_line(
    script: Callable[..., str], github: FakeWithRunners, tmp_path: Path
) -> None:
    """Every user of a machine can read those, and it is the runner's secret as long as the job runs."""
    github.job = f"cat /proc/[0-9]*/cmdline >{tmp_path}/lines 2>/dev/null; true"
    assert run(script()).returncode == 0 and github.played == [(NAME, 0)]
    lines = (tmp_path / "lines").read_bytes()
    assert b"run.sh" in lines and github.configuration(NAME).encode() not in lines


def test_a_hook_of_the_runners_own_folder_is_called_too(
    script: Callable[..., str], github: FakeWithRunners, tmp_path: Path
) -> None:
    folder = tmp_path / "prepared"
    shutil.copytree(RUNNER, folder)
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    hook.chmod(0o755)
    (folder / ".env").write_text(f"LANG=C.UTF-8\nACTIONS_RUNNER_HOOK_JOB_STARTED={hook}\n")
    github.job = f"sleep 4; echo $LANG >{tmp_path}/lang"
    done = run(script(RunnerProgram(folder=str(folder))).replace("IDLE=300", "IDLE=2"))
    assert done.returncode == 0 and github.played == [(NAME, 0)], done.stdout
    assert (tmp_path / "called").exists() and (tmp_path / "lang").read_text() == "C.UTF-8\n"


def test_a_step_of_the_job_can_be_cancelled(
    script: Callable[..., str], github: FakeWithRunners, tmp_path: Path
) -> None:
    """GitHub's runner does it by SIGINT, which a shell has its background processes ignore."""
    github.job = f"grep -e SigIgn /proc/self/status >{tmp_path}/seen"
    # As a machine's starters are: whoever runs this test may have it ignored.
    start = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp('bash', ['bash', '-s'])"
    subprocess.run([sys.executable, "-c", start], input=script(), text=True, timeout=120, check=True)
    ignored = int((tmp_path / "seen").read_text().split()[1], 16)
    assert not ignored & (1 << signal.SIGINT - 1 | 1 << signal.SIGQUIT - 1)


def test_a_configuration_that_comes_by_file_is_taken_and_removed(
    script: Callable[..., str], github: FakeWithRunners, tmp_path: Path
) -> None:
    file = tmp_path / "jit"
    with subprocess.Popen(["bash", "-s"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(script(jit_file=str(file), jit_seconds=120))
        process.stdin.close()
        time.sleep(1)
        assert github.said == []
        part = tmp_path / "jit.part"
        part.write_text(github.configuration(NAME) + "\n")
        part.rename(file)
        assert process.wait(120) == 0
    assert github.said == [f"{NAME} online", f"{NAME} busy", f"{NAME} done"] and not file.exists()


def test_a_configuration_that_never_comes(script: Callable[..., str], tmp_path: Path) -> None:
    done = run(script(jit_file=str(tmp_path / "jit"), jit_seconds=1))
    assert done.returncode == 1 and last(done) == ["no runner was registered for this machine within 1 s", "ended"]


def test_a_machine_without_a_job_ends_itself(
    script: Callable[..., str], github: FakeWithRunners, tmp_path: Path
) -> None:
    github.job = None
    done = run(script(idle=1).replace("IDLE=60", "IDLE=2"))
    assert done.returncode == 1 and last(done) == ["no job came within 2 s", "ended"]
    assert github.said == [f"{NAME} online"] and list((tmp_path / "work").iterdir()) == []


@pytest.mark.slow
def test_the_deadline_ends_a_job_that_will_not(
    script: Callable[..., str], github: FakeWithRunners, tmp_path: Path
) -> None:
    github.job = f"trap '' TERM INT HUP; echo $$ >{tmp_path}/pid; while :; do sleep 1; done"
    text = script().replace("DEADLINE=3600", "DEADLINE=6").replace("IDLE=300", "IDLE=60")
    done = run(text)
    assert done.returncode == 1 and last(done) == ["the deadline of 6 s is over", "ended"]
    if (tmp_path / "pid").exists():  # a busy machine may not have come to it
        wait_for_end(int((tmp_path / "pid").read_text()))
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_job_and_cleans_up(
    number: signal.Signals, script: Callable[..., str], github: FakeWithRunners, tmp_path: Path
) -> None:
    github.job = "sleep 600"
    # A shell that starts a job in the background would have SIGINT ignored; the machine's starters do not.
    with subprocess.Popen(["bash", "-s"], stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        process.stdin.write(script().encode())
        process.stdin.close()
        github.wait_for("busy")
        process.send_signal(number)
        assert process.wait(60) == (130 if number == signal.SIGINT else 143)
    assert list((tmp_path / "work").iterdir()) == []


def packed(tmp_path: Path) -> tuple[str, str]:
    """The stand-in as an archive: its address and SHA-256."""
    archive = tmp_path / "runner.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(RUNNER / "run.sh", "run.sh")
    return f"file://{archive}", hashlib.sha256(archive.read_bytes()).hexdigest()


@pytest.mark.needs_program("curl")
def test_the_runner_program_is_fetched_and_its_digest_checked(
    script: Callable[..., str], github: FakeWithRunners, tmp_path: Path
) -> None:
    url, digest = packed(tmp_path)
    done = run(script(RunnerProgram(url=url, sha256="0" * 64)))
    assert done.returncode == 1 and "is not the one with SHA-256 000" in last(done)[0] and github.said == []
    assert run(script(RunnerProgram(url=url, sha256=digest))).returncode == 0
    assert github.played == [(NAME, 0)]
    done = run(script(RunnerProgram(url=f"{url}x", sha256=digest)))
    assert done.returncode == 1 and last(done)[0].startswith("the runner program could not be fetched from file://")


def test_a_folder_without_the_program_is_told(script: Callable[..., str], tmp_path: Path) -> None:
    done = run(script(RunnerProgram(folder=str(tmp_path / "nothing"))))
    assert done.returncode == 1 and last(done)[0] == f"there is no runner program in {tmp_path / 'nothing'}"


@pytest.mark.parametrize("end", ["job", "idle", "nothing to run"])
def test_a_machine_of_its_own_is_switched_off_whatever_the_end(
    end: str, script: Callable[..., str], github: FakeWithRunners, tmp_path: Path
) -> None:
    calls, programs = tmp_path / "calls", tmp_path / "bin"
    programs.mkdir()
    for name in ("shutdown", "poweroff"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n')
        (programs / name).chmod(0o755)
    github.job = None if end == "idle" else "true"
    program = RunnerProgram(folder=str(tmp_path / "nothing")) if end == "nothing to run" else None
    text = script(program, power_off=True).replace("IDLE=300", "IDLE=1")
    # The clock that asks nobody goes on until the power is off; here it is ended with its process group.
    with subprocess.Popen(
        ["bash", "-s"], stdin=subprocess.PIPE, start_new_session=True,
        env={"PATH": f"{programs}:{os.environ['PATH']}", "HOME": "/tmp"},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(text.encode())
        process.stdin.close()
        process.wait(120)
        os.killpg(process.pid, signal.SIGKILL)
    assert calls.read_text().splitlines() == ["shutdown -h +60", "shutdown -h now"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_the_job_is_another_users(script: Callable[..., str], github: FakeWithRunners, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):  # up to those of the system
        folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    seen = tmp_path / "seen"
    seen.touch(mode=0o666)
    seen.chmod(0o666)
    github.job = f"id -un >{seen}; pwd >>{seen}"
    done = run(script(run_as="nobody"))
    assert done.returncode == 0, done.stderr
    assert seen.read_text().splitlines() == ["nobody", str(tmp_path / "work" / NAME)]


def test_what_the_yaml_holds_can_not_leave_its_quotes(script: Callable[..., str], tmp_path: Path) -> None:
    hostile = RunnerProgram(folder=f"/x'; touch {tmp_path}/pwned; '$(touch {tmp_path}/pwned)")
    assert run(script(hostile)).returncode == 1
    assert not (tmp_path / "pwned").exists()
