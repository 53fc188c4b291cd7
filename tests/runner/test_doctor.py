"""`symmem-check doctor` by its public door, with a Python that tells given facts: what is made of each fact."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runner.doctor_facts import Asked, asking, each_gpu, each_pair, machine


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Asked]:
    return asking(tmp_path, capsys)


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
