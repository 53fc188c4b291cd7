"""`symmem-check doctor` by its public door: a Python that tells given facts, and the real one of this machine."""

from __future__ import annotations

import copy
import json
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.cli import main
from runner.doctor import doctor
from runner.errors import UserError

GPU = {
    "name": "NVIDIA H200", "capability": [9, 0], "vmm": True, "vmm_rdma": True, "fd_handles": True, "multicast": True,
    "mig": False, "compute_mode": "default", "fabric": {"state": "completed", "status": 0},
    "nvlinks": {"gpu": 0, "switch": 18},
}  # fmt: skip


def machine(gpus: int = 8, nccl: str = "2.30.7", **changes: Any) -> dict[str, Any]:
    """Facts of a machine on which all is well; `changes` replace whole facts."""
    facts = {
        "schema": 1,
        "running": None,
        "errors": {},
        "python": {"version": "3.12.1", "executable": "/opt/python"},
        "env": {},
        "nccl_files": [],
        "limits": {
            "container": True, "shm_total": 64 << 30, "shm_free": 64 << 30, "memlock": None, "memory": None,
            "ipc_namespace": "ipc:[1]", "fd_passing": "ok",
        },
        "driver": {"status": 0, "error": None, "cuda": "13.0", "version": "580.65.06"},
        "gpus": [{"index": index, "bus_id": f"0000:{index:02X}:00.0", **copy.deepcopy(GPU)} for index in range(gpus)],
        "pairs": [
            {"one": one, "other": other, "p2p": True, "p2p_status": "ok", "nvlink": True}
            for one in range(gpus)
            for other in range(one + 1, gpus)
        ],
        "torch": {"version": "2.14.1+cu130", "cuda": "13.0", "nccl": nccl, "devices": gpus},
        "nccl": {"version": nccl, "path": "/lib/libnccl.so.2", "built": nccl},
        "tracing": {"kernels": 2},
    }  # fmt: skip
    return {**facts, **changes}


def each_gpu(facts: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The facts with something else true of each GPU."""
    return {**facts, "gpus": [{**gpu, **changes} for gpu in facts["gpus"]]}


def each_pair(facts: dict[str, Any], when: Callable[[int, int], bool], **changes: Any) -> dict[str, Any]:
    """The facts with something else true of some pairs."""
    pairs = [{**pair, **changes} if when(pair["one"], pair["other"]) else pair for pair in facts["pairs"]]
    return {**facts, "pairs": pairs}


def script(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return str(path)


class Asked:
    """The exit status and the JSON of the command for given facts."""

    def __init__(self, status: int, output: str) -> None:
        self.status = status
        self.told = json.loads(output)
        self.verdict = self.told["verdict"]
        self.findings = self.told["findings"]

    def finding(self, subject: str) -> dict[str, Any]:
        (found,) = (finding for finding in self.findings if finding["subject"] == subject)
        return found

    def not_fine(self) -> set[str]:
        return {finding["subject"] for finding in self.findings if finding["state"] != "fine"}


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Asked]:
    """Run the command with a Python that tells these facts."""

    def run(facts: dict[str, Any], *more: str) -> Asked:
        python = script(tmp_path / "python", f"echo {shlex.quote(json.dumps(facts))}", *more)
        status = main(["doctor", "--python", python, "--format", "json"])
        return Asked(status, capsys.readouterr().out)

    return run


def test_all_is_well(ask: Callable[..., Asked]) -> None:
    asked = ask(machine())
    assert asked.status == 0
    assert asked.not_fine() == {"averages"}
    verdict = asked.verdict
    assert verdict["kernels"] == ["all_reduce (sum)", "all_gather", "reduce_scatter (sum, avg)"]
    assert (verdict["symmetric"], verdict["ranks"], verdict["share_gpu"], verdict["multicast"]) == (True, 8, True, True)
    assert asked.told["schema"] == 1 and asked.told["facts"]["gpus"][7]["name"] == "NVIDIA H200"


@pytest.mark.parametrize(
    ("nccl", "gpus", "status", "kernels", "ranks", "share", "multicast"),
    [
        ("2.26.2", 8, 1, [], 0, False, False),
        ("2.27.5", 8, 0, ["all_reduce (sum)", "all_gather", "reduce_scatter (sum)"], 8, False, True),
        ("2.29.7", 8, 0, ["all_reduce (sum)", "all_gather", "reduce_scatter (sum)"], 8, False, True),
        ("2.32.3", 2, 0, ["all_reduce (sum)", "all_gather", "reduce_scatter (sum, avg)"], 2, True, False),
        ("2.28.9", 1, 1, [], 0, False, False),
        ("2.30.3", 1, 0, ["all_reduce (sum)", "all_gather", "reduce_scatter (sum, avg)"], 0, True, False),
    ],
)
def test_nccls_version_and_the_number_of_gpus_decide(
    ask: Callable[..., Asked],
    nccl: str, gpus: int, status: int, kernels: list[str], ranks: int, share: bool, multicast: bool,
) -> None:  # fmt: skip
    asked = ask(machine(gpus, nccl))
    verdict = asked.verdict
    assert (asked.status, verdict["kernels"]) == (status, kernels)
    assert (verdict["ranks"], verdict["share_gpu"], verdict["multicast"]) == (ranks, share, multicast)
    if status:
        assert "NCCL: " in verdict["sentence"] and asked.finding("NCCL")["mend"].endswith("--nccl 2.30.7")


@pytest.mark.parametrize(
    ("nccl", "wrong_values"),
    [("2.27.7", False), ("2.28.3", True), ("2.29.7", True), ("2.30.4", True), ("2.30.7", False)],
)
def test_the_nccl_with_wrong_values_is_named(ask: Callable[..., Asked], nccl: str, wrong_values: bool) -> None:
    assert ("values" in ask(machine(nccl=nccl)).not_fine()) is wrong_values


PCIE = each_pair(each_gpu(machine(2), nvlinks={"gpu": 0, "switch": 0}), lambda one, other: True, nvlink=False)


@pytest.mark.parametrize(
    ("nccl", "ranks", "state"), [("2.28.9", 2, "fine"), ("2.29.2", 0, "limits"), ("2.30.7", 0, "limits")]
)
def test_p2p_without_nvlink_is_enough_before_2_29(ask: Callable[..., Asked], nccl: str, ranks: int, state: str) -> None:
    asked = ask({**PCIE, "nccl": {"version": nccl}})
    assert (asked.verdict["ranks"], asked.finding("P2P and NVLink")["state"]) == (ranks, state)
    assert asked.status == (1 if nccl == "2.29.2" else 0)


def test_the_largest_linked_group_is_found(ask: Callable[..., Asked]) -> None:
    halves = each_pair(machine(), lambda one, other: (one < 3) != (other < 3), nvlink=False)
    asked = ask(halves)
    assert (asked.verdict["ranks"], asked.verdict["multicast"]) == (5, True)
    assert asked.finding("P2P and NVLink")["effect"].endswith("such as 3, 4, 5, 6, 7")
    pairs_only = each_pair(machine(4), lambda one, other: one // 2 != other // 2, p2p=False, p2p_status="not supported")
    asked = ask(pairs_only)
    assert (asked.verdict["ranks"], asked.verdict["multicast"]) == (2, False)
    assert "GPU 0 and 2: no P2P (not supported)" in asked.finding("P2P and NVLink")["found"]


def test_what_is_not_known_is_not_taken_for_a_no(ask: Callable[..., Asked]) -> None:
    untold = each_pair(machine(4, "2.29.7"), lambda one, other: True, nvlink=None)
    asked = ask(untold)
    assert (asked.status, asked.verdict["symmetric"], asked.verdict["ranks"]) == (3, None, None)
    assert "P2P and NVLink: not told for all GPUs" in asked.verdict["sentence"]
    shared = each_pair(machine(4), lambda one, other: True, nvlink=None)
    asked = ask(shared)
    assert (asked.status, asked.verdict["ranks"], asked.verdict["share_gpu"]) == (0, None, True)
    assert "not known" in asked.verdict["sentence"]


@pytest.mark.parametrize(
    ("variable", "nccl", "status", "state"),
    [
        ("NCCL_WIN_ENABLE=0", "2.30.7", 1, "prevents"),
        ("NCCL_WIN_ENABLE=1", "2.30.7", 0, None),
        ("NCCL_CUMEM_ENABLE=0", "2.30.7", 1, "prevents"),
        ("NCCL_LOCAL_REGISTER=0", "2.27.5", 1, "prevents"),
        ("NCCL_LOCAL_REGISTER=0", "2.28.9", 0, None),
        ("NCCL_P2P_DISABLE=1", "2.27.5", 1, "prevents"),
        ("NCCL_P2P_LEVEL=LOC", "2.28.9", 0, None),
        ("NCCL_ALGO=Ring", "2.30.7", 0, None),
        ("NCCL_ALGO=Ring", "2.31.2", 1, "prevents"),
        ("NCCL_ALGO=allreduce:ring", "2.31.2", 0, "limits"),
        ("NCCL_SYM_KERNEL=AllReduce_RSxLD_AGxST", "2.30.7", 0, "limits"),
        ("NCCL_SYM_KERNEL=AllReduce_RSxLD_AGxSTT", "2.30.7", 1, "prevents"),
        ("NCCL_SYM_KERNEL=^", "2.30.7", 0, None),
        ("NCCL_SYM_KERNEL=allreduce:LL", "2.31.2", 0, "limits"),
        ("NCCL_SYM_NOWIN_ENABLE=1", "2.30.7", 0, "limits"),
        ("NCCL_CTA_POLICY=ZERO", "2.30.7", 0, "limits"),
        ("TORCH_DIST_USE_NCCL2=1", "2.30.7", 0, "limits"),
        ("TORCH_DIST_USE_NCCL2=0", "2.30.7", 0, None),
    ],
)
def test_a_variable_is_judged_by_the_loaded_nccl(
    ask: Callable[..., Asked], variable: str, nccl: str, status: int, state: str | None
) -> None:
    name, value = variable.split("=", 1)
    asked = ask(machine(nccl=nccl, env={name: value}))
    assert asked.status == status
    if state is None:
        assert name not in asked.not_fine()
    else:
        assert asked.finding(name)["state"] == state
        assert asked.finding(name)["mend"]


@pytest.mark.parametrize("nccl", ["2.27.3", "2.28.9", "2.29.2", "2.29.7", "2.30.7"])
def test_nccl_sym_kernel_takes_just_the_names_of_that_nccls_kernels(
    ask: Callable[..., Asked], project: Path, nccl: str
) -> None:
    catalogue = json.loads((project / "tests/data/nccl-kernels.json").read_text())
    name = re.compile(r"ncclSymk?DevKernel_(\w+?)(?:_(?:sum|avg)_\w+)?\(")
    real = {
        version: {found[1] for kernel in catalogue[version] if (found := name.match(kernel))} for version in catalogue
    }
    assert len(real[nccl]) >= 11
    for kernel in set().union(*real.values()):
        state = ask(machine(nccl=nccl, env={"NCCL_SYM_KERNEL": kernel})).finding("NCCL_SYM_KERNEL")["state"]
        assert (kernel, state) == (kernel, "limits" if kernel in real[nccl] else "prevents")


def test_nvls_is_multicast_or_several_ranks_on_a_gpu(ask: Callable[..., Asked]) -> None:
    off, forced = (ask(machine(env={"NCCL_NVLS_ENABLE": value})).verdict for value in "01")
    assert (off["ranks"], off["share_gpu"], off["multicast"]) == (8, True, False)
    assert (forced["ranks"], forced["share_gpu"], forced["multicast"]) == (8, False, True)


def test_a_variable_may_stand_in_nccls_file_and_the_environment_wins(ask: Callable[..., Asked]) -> None:
    files = [{"path": "/etc/nccl.conf", "variables": {"NCCL_WIN_ENABLE": "0"}}]
    asked = ask(machine(nccl_files=files))
    assert (asked.status, asked.finding("NCCL_WIN_ENABLE")["found"]) == (1, "0 (in /etc/nccl.conf)")
    assert ask(machine(nccl_files=files, env={"NCCL_WIN_ENABLE": "1"})).status == 0


@pytest.mark.parametrize(
    ("facts", "status", "subject", "state"),
    [
        (each_gpu(machine(), vmm=False), 1, "cuMem", "prevents"),
        (each_gpu(machine(), vmm=None), 3, "cuMem", "not known"),
        (each_gpu(machine(), vmm_rdma=False), 3, "cuMem", "not known"),
        (each_gpu(machine(env={"NCCL_CUMEM_ENABLE": "1"}), vmm_rdma=False), 0, "cuMem", "fine"),
        (each_gpu(machine(), multicast=False), 0, "multicast", "limits"),
        (each_gpu(machine(1), compute_mode="exclusive-process"), 1, "compute mode", "limits"),
        (each_gpu(machine(1), mig=True), 3, "MIG", "not known"),
        (each_gpu(machine(1, "2.29.7"), mig=True), 1, "MIG", "not known"),
        (each_gpu(machine(nccl="2.29.7"), fabric={"state": "in progress", "status": 0}), 1, "fabric manager", "limits"),
        (each_gpu(machine(), fabric={"state": "completed", "status": 15}), 0, "fabric manager", "limits"),
        (each_gpu(machine(), fabric={"state": "not supported", "status": 0}), 0, "fabric manager", "fine"),
        (each_gpu(machine(), fabric=None), 0, "fabric manager", "not known"),
        (machine(driver={"status": 0, "cuda": "12.4"}), 1, "driver", "prevents"),
        (machine(driver={"status": 802, "error": "CUDA_ERROR_SYSTEM_NOT_READY"}, gpus=0), 3, "driver", "not known"),
        (machine(torch={"version": "2.7.1", "cuda": "12.6", "devices": 8}), 1, "torch", "prevents"),
        (machine(torch={"version": "2.13.0+cpu"}), 3, "torch", "not known"),
        (machine(torch={"version": "2.14.1", "cuda": "13.0", "devices": 0}), 3, "torch", "not known"),
        (machine(nccl="2.26.2", gpus=0), 3, "GPUs", "not known"),
        (machine(limits={"fd_passing": "Operation not permitted"}), 1, "handles", "prevents"),
        (machine(limits={"fd_passing": "ok", "shm_total": 64 << 20, "shm_free": 64 << 20}), 0, "/dev/shm", "limits"),
        (machine(limits={"fd_passing": "ok", "memlock": 65536}), 0, "locked memory", "limits"),
        (machine(limits={"fd_passing": "ok", "memory": 16 << 30}), 0, "memory", "limits"),
        (machine(tracing={"kernels": 0}), 0, "tracing", "limits"),
        (machine(tracing=None, errors={"tracing": "OutOfMemoryError: full"}), 0, "tracing", "not known"),
    ],
)  # fmt: skip
def test_each_fact_is_judged(
    ask: Callable[..., Asked], facts: dict[str, Any], status: int, subject: str, state: str
) -> None:
    asked = ask(facts)
    assert (asked.finding(subject)["state"], asked.status) == (state, status)
    if state == "prevents":
        assert asked.finding(subject)["mend"] and f"{subject}: " in asked.verdict["sentence"]


def test_nothing_told_is_not_known_throughout(ask: Callable[..., Asked]) -> None:
    asked = ask({"schema": 1})
    assert asked.status == 3
    assert {finding["state"] for finding in asked.findings} == {"not known"}
    assert "could not be told" in asked.verdict["sentence"]


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
    diagnosis = doctor(python, deadline=1.0)
    assert time.monotonic() - began < 5
    assert diagnosis.verdict.symmetric is True
    (tracing,) = (finding for finding in diagnosis.findings if finding.subject == "tracing")
    assert tracing.found == "the probe did not end within 1 s"


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
