"""Facts of a machine as the ranks' half of `symmem-check doctor` tells them, and the command's answer to them."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.cli import main

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


def asking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Asked]:
    """Run the command with a Python that tells these facts."""

    def run(facts: dict[str, Any], *more: str) -> Asked:
        python = script(tmp_path / "python", f"echo {shlex.quote(json.dumps(facts))}", *more)
        status = main(["doctor", "--python", python, "--format", "json"])
        return Asked(status, capsys.readouterr().out)

    return run
