"""`symmem-check doctor` itself: a Python that fails, another NCCL, its table, and the real machine."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.cli import main
from runner.doctor import doctor
from runner.errors import UserError
from tests.runner.doctor_facts import Asked, asking, machine, script


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Asked]:
    return asking(tmp_path, capsys)


def test_cupti_says_why_nothing_is_traced(ask: Callable[..., Asked]) -> None:
    facts = machine(tracing={"kernels": 0}, env={"CUDA_INJECTION64_PATH": "/opt/nsys.so"})
    asked = ask(facts, "echo 'function cuptiX: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (39)' >&2")
    found = asked.finding("tracing")["found"]
    assert "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" in found and "/opt/nsys.so" in found


def test_a_crash_leaves_what_was_told_before(ask: Callable[..., Asked]) -> None:
    facts = machine(running="tracing", tracing=None)
    asked = ask(facts, "echo noise", "kill -SEGV $$")
    assert asked.status == 0
    assert asked.finding("tracing")["found"] == "the probe was killed by SIGSEGV"
    early = {key: value for key, value in facts.items() if key not in ("gpus", "pairs", "torch", "nccl", "tracing")}
    asked = ask({**early, "running": "gpus"}, "exit 3")
    assert asked.status == 3
    assert asked.finding("GPUs")["found"] == "the probe ended with status 3"
    assert asked.finding("torch")["found"] == "not asked: the probe gpus ended with status 3"


def test_a_hang_is_ended_in_time_and_leaves_what_was_told_before(tmp_path: Path) -> None:
    facts = machine(running="tracing", tracing=None)
    python = script(tmp_path / "python", f"echo {shlex.quote(json.dumps(facts))}", "sleep 1000 & sleep 1000")
    began = time.monotonic()
    diagnosis = doctor(python, deadline=4.0)  # long enough for a shell to start on a busy machine
    assert time.monotonic() - began < 120  # and not the 1000 s that the probe would take
    assert diagnosis.verdict.symmetric is True
    (tracing,) = (finding for finding in diagnosis.findings if finding.subject == "tracing")
    assert tracing.found == "the probe did not end within 4 s"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["echo oops >&2", "exit 4"], "ended with status 4: oops"),
        (['echo \'{"schema": "x"}\''], "told nothing: no output"),
        (["head -c 3000 /dev/urandom"], "told nothing"),
    ],
)
def test_a_python_that_tells_nothing_is_the_callers_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], said: str
) -> None:
    assert main(["doctor", "--python", script(tmp_path / "python", *lines)]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_a_python_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can't be run"):
        doctor(str(tmp_path / "no-python"))


def elf() -> bytes:
    """A file that passes for an NCCL on this machine."""
    real = Path(sys.executable).resolve().read_bytes()
    return real[:64] + b"\0ncclGetVersion\0"


@pytest.mark.parametrize("loaded", [True, False])
def test_the_preload_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str], loaded: bool) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(elf())
    path = str(library) if loaded else "/own/libnccl.so.2"
    facts = {**machine(), "nccl": {"version": "2.30.7", "path": path, "built": "2.28.9"}}
    described = {"torch": "2.11.0+cu130", "cuda": "13.0", "devices": [], "nccl_built": "2.28.9", "error": "none"}
    python = script(
        tmp_path / "python",
        f'[ "$2" = --describe ] && echo {shlex.quote(json.dumps(described))} && exit',
        f'[ "$LD_PRELOAD" = {library} ] || exit 9',
        f"echo {shlex.quote(json.dumps(facts))}",
    )
    assert main(["doctor", "--python", python, "--nccl", str(library), "--format", "json"]) == 0
    findings = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert ("--nccl" not in findings) is loaded
    assert "torch was built with 2.28.9" in findings["NCCL"]["found"]


def test_no_nccl_goes_under_a_torch_without_cuda(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    python = script(tmp_path / "python", 'echo \'{"torch": "2.13.0+cpu"}\'')
    assert main(["doctor", "--python", python, "--nccl", "2.30.7"]) == 2
    assert "torch 2.13.0+cpu is not built for CUDA" in capsys.readouterr().err


def test_without_torch_an_nccl_is_left_out_and_nothing_can_be_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    facts = {**machine(gpus=0), "torch": None, "nccl": None}
    python = script(
        tmp_path / "python",
        '[ "$2" = --describe ] && echo \'{"error": "torch is missing"}\' && exit',
        f"echo {shlex.quote(json.dumps(facts))}",
    )
    assert main(["doctor", "--python", python, "--nccl", "2.30.7"]) == 3
    printed = capsys.readouterr()
    assert "--nccl 2.30.7: left out, since torch is missing" in printed.err
    assert printed.out.splitlines()[-1].startswith("verdict: it could not be told")


def test_the_table_tells_each_finding_and_ends_with_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = machine(1, env={"NCCL_WIN_ENABLE": "0", "NCCL_NET\x1b[31m": "[bold]x[/bold]\nnext"})
    assert main(["doctor", "--python", script(tmp_path / "python", f"cat {tmp_path / 'facts'}")]) == 2
    (tmp_path / "facts").write_text(json.dumps(facts))
    capsys.readouterr()
    assert main(["doctor", "--python", str(tmp_path / "python")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "\x1b" not in "".join(lines)
    assert any(line.split()[:3] == ["NCCL_WIN_ENABLE", "prevents", "0"] for line in lines)
    assert any("NCCL_NET=[bold]x[/bold] next" in line for line in lines)
    why = "NCCL_WIN_ENABLE: prevents: NCCL makes no windows, so nothing is symmetric; do this: unset it"
    assert why in lines
    assert lines[-1].startswith("verdict: this machine can't run NCCL's symmetric kernels: GPUs: one GPU")
    assert lines[-1].endswith("NCCL_WIN_ENABLE: NCCL makes no windows, so nothing is symmetric")


@pytest.mark.slow
def test_this_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    status = main(["doctor", "--python", sys.executable, "--format", "json"])
    asked = Asked(status, capsys.readouterr().out)
    assert asked.told["facts"]["running"] is None and asked.told["facts"]["python"]["executable"] == sys.executable
    assert asked.finding("handles")["state"] == "fine"
    if not asked.told["facts"]["gpus"]:
        assert status == 3 and "driver: " in asked.verdict["sentence"]
