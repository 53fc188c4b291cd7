"""The doctor's facts by its own door: on this machine, and with a driver and an NVML made here, with two GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from checks.container import limits, memory_limit, pass_descriptor
from checks.doctor import PROBES, tell_facts

DRIVER = """
#include <string.h>
#include <stdlib.h>
static int env(const char* name, int otherwise) { const char* set = getenv(name); return set ? atoi(set) : otherwise; }
int cuInit(unsigned flags) { return env("FAKE_INIT", 0); }
int cuGetErrorName(int status, const char** text) { *text = "CUDA_ERROR_SYSTEM_NOT_READY"; return 0; }
int cuDriverGetVersion(int* version) { *version = 13010; return 0; }
int cuDeviceGetCount(int* count) { *count = env("FAKE_GPUS", 2); return 0; }
int cuDeviceGet(int* device, int index) { *device = 70 + index; return 0; }
int cuDeviceGetName(char* name, int size, int device) { strncpy(name, "NVIDIA H200", size); return 0; }
int cuDeviceGetPCIBusId(char* text, int size, int device) {
  strncpy(text, device == 70 ? "0000:1B:00.0" : "0000:2C:00.0", size); return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 132 ? device == 70 : 1; return 0; }
int cuDeviceCanAccessPeer(int* can, int one, int other) { *can = env("FAKE_P2P", 1) || one < other; return 0; }
"""

# Structures as in https://docs.nvidia.com/deploy/nvml-api: nvmlPciInfo_t, nvmlGpuFabricInfo_v2_t.
NVML = """
#include <string.h>
#include <stdlib.h>
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state;
                 unsigned health; } Fabric;
typedef struct { Pci pci; int number; } Gpu;
static Gpu* gpus[2];
static int is(const char* name, const char* value) {
  const char* set = getenv(name); return set && !strcmp(set, value); }
int nvmlInit_v2(void) { return is("FAKE_NVML", "dead") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned size) { strncpy(text, "580.65.06", size); return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, Gpu** handle) {
  int number = strcmp(address, "0000:1B:00.0") != 0;
  if (!gpus[number]) gpus[number] = calloc(1, sizeof(Gpu));
  gpus[number]->number = number; gpus[number]->pci.bus = number ? 0x2c : 0x1b;
  *handle = gpus[number]; return 0; }
int nvmlDeviceGetPciInfo_v3(Gpu* gpu, Pci* info) { *info = gpu->pci; return 0; }
int nvmlDeviceGetMigMode(Gpu* gpu, unsigned* now, unsigned* pending) { *now = gpu->number; *pending = 0; return 0; }
int nvmlDeviceGetComputeMode(Gpu* gpu, unsigned* mode) { *mode = gpu->number ? 3 : 0; return 0; }
int nvmlDeviceGetGpuFabricInfoV(Gpu* gpu, Fabric* info) {
  if (info->version != (sizeof(Fabric) | 2 << 24)) return 25;
  info->state = gpu->number ? 2 : 3; info->status = gpu->number ? 0 : 15; return 0; }
int nvmlDeviceGetNvLinkState(Gpu* gpu, unsigned link, unsigned* active) {
  if (link >= 18) return 2;
  *active = !is("FAKE_LINKS", "none") && link < 4; return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(Gpu* gpu, unsigned link, unsigned* kind) {
  *kind = is("FAKE_LINKS", "direct") || is("FAKE_LINKS", "elsewhere") ? 0 : 2; return 0; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu* gpu, unsigned link, Pci* info) {
  info->bus = is("FAKE_LINKS", "elsewhere") ? 0x77 : gpu->number ? 0x1b : 0x2c; return 0; }
int nvmlDeviceGetP2PStatus(Gpu* one, Gpu* other, unsigned ability, unsigned* status) {
  *status = ability == 0 ? 3 : 5; return 0; }
"""


def facts(environment: dict[str, str] | None = None) -> dict:
    """What the doctor's door prints last in a fresh process."""
    command = [sys.executable, str(Path(__file__).parents[2] / "checks" / "__main__.py"), "--doctor"]
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=120, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["running"] for line in lines] == [*PROBES, None]
    return lines[-1]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the dynamic linker finds the driver and the NVML made here."""
    folder = tmp_path_factory.mktemp("driver")
    for name, source in (("libcuda.so.1", DRIVER), ("libnvidia-ml.so.1", NVML)):
        (folder / "source.c").write_text(source)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / name, folder / "source.c"], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


@pytest.mark.slow
def test_this_machine_is_told_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_WIN_ENABLE", "0")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not to be told")
    told = facts()
    assert told["errors"] == {}
    assert told["python"]["executable"] == sys.executable
    assert told["env"]["NCCL_WIN_ENABLE"] == "0" and "AWS_SECRET_ACCESS_KEY" not in told["env"]
    assert told["torch"]["version"].startswith("2.")
    assert told["limits"]["fd_passing"] == "ok"
    if told["torch"]["cuda"] is None:
        assert (told["nccl"]["version"], told["tracing"]) == (None, None)


@pytest.mark.slow
@pytest.mark.needs_program("cc")
def test_driver_and_nvml_tell_of_each_gpu_and_pair(libraries: dict[str, str]) -> None:
    told = facts(libraries)
    assert told["errors"] == {}
    assert told["driver"] == {"status": 0, "error": None, "cuda": "13.1", "version": "580.65.06"}
    assert told["gpus"][0] == {
        "index": 0, "name": "NVIDIA H200", "bus_id": "0000:1B:00.0", "capability": [9, 0], "vmm": True,
        "fd_handles": True, "vmm_rdma": True, "multicast": True, "mig": False, "compute_mode": "default",
        "fabric": {"state": "completed", "status": 15}, "nvlinks": {"gpu": 0, "switch": 4},
    }  # fmt: skip
    other = told["gpus"][1]
    assert (other["multicast"], other["mig"], other["compute_mode"]) == (False, True, "exclusive-process")
    assert other["fabric"] == {"state": "in progress", "status": 0}
    assert told["pairs"] == [
        {"one": 0, "other": 1, "p2p": True, "p2p_status": "the PCIe topology does not support it", "nvlink": True}
    ]


@pytest.mark.slow
@pytest.mark.needs_program("cc")
@pytest.mark.parametrize(
    ("environment", "p2p", "nvlink"),
    [
        ({"FAKE_LINKS": "direct"}, True, True),
        ({"FAKE_LINKS": "elsewhere"}, True, False),
        ({"FAKE_LINKS": "none", "FAKE_P2P": "0"}, False, False),
        ({"FAKE_NVML": "dead"}, True, None),
    ],
)
def test_links_are_told_by_what_is_at_their_ends(
    libraries: dict[str, str], environment: dict[str, str], p2p: bool, nvlink: bool | None
) -> None:
    (pair,) = facts({**libraries, **environment})["pairs"]
    assert (pair["p2p"], pair["nvlink"]) == (p2p, nvlink)


@pytest.mark.slow
@pytest.mark.needs_program("cc")
def test_a_driver_that_does_not_start_is_named(libraries: dict[str, str]) -> None:
    told = facts({**libraries, "FAKE_INIT": "802"})
    assert told["driver"]["status"] == 802 and told["driver"]["error"] == "CUDA_ERROR_SYSTEM_NOT_READY"
    assert (told["gpus"], told["pairs"]) == ([], [])


def test_a_probe_that_raises_costs_only_itself() -> None:
    def broken(facts: dict) -> None:
        raise RuntimeError("no\nluck")

    lines: list[str] = []
    tell_facts(lines.append, {"first": lambda facts: 1, "broken": broken, "last": lambda facts: facts["first"] + 1})
    told = json.loads(lines[-1])
    assert told == {"schema": 1, "running": None, "errors": {"broken": "RuntimeError: no"}, "first": 1, "last": 2}


def test_what_is_known_is_printed_before_a_probe_hangs() -> None:
    lines: list[str] = []
    release = threading.Event()
    worker = threading.Thread(
        target=tell_facts, args=(lines.append, {"first": lambda facts: 1, "hangs": lambda facts: release.wait(30)})
    )
    worker.start()
    try:
        while len(lines) < 2 and worker.is_alive():
            worker.join(0.01)
        told = json.loads(lines[-1])
        assert (told["first"], told["running"]) == (1, "hangs")
    finally:
        release.set()
        worker.join()


def test_nccls_own_files_are_read_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".nccl.conf").write_text("# mine\nNCCL_WIN_ENABLE=0\n NCCL_DEBUG = INFO\nnothing\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NCCL_CONF_FILE", raising=False)
    expected = {"path": str(tmp_path / ".nccl.conf"), "variables": {"NCCL_WIN_ENABLE": "0", "NCCL_DEBUG": "INFO"}}
    assert PROBES["nccl_files"]({})[0] == expected
    other = tmp_path / "other"
    other.write_text("NCCL_ALGO=Ring\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(other))
    assert PROBES["nccl_files"]({})[0] == {"path": str(other), "variables": {"NCCL_ALGO": "Ring"}}


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/a/b\n", {"memory.max": "max", "a/memory.max": "8192", "a/b/memory.max": "max"}, 8192),
        ("0::/a/b\n", {"a/memory.max": "8192", "a/b/memory.max": "4096"}, 4096),
        ("0::/not/seen/here\n", {"memory.max": "1024"}, 1024),
        ("4:memory:/x\n0::/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("4:cpu,memory:/x\n", {"memory/x/memory.limit_in_bytes": "2048"}, 2048),
        ("4:cpu:/x\n", {}, None),
        ("nonsense\n", {"memory.max": "1"}, None),
    ],
)
def test_the_lowest_memory_limit_holds(
    tmp_path: Path, membership: str, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "cgroup").write_text(membership)
    for name, content in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    assert memory_limit(tmp_path / "cgroup", tmp_path / "fs") == limit


def test_limits_of_this_machine() -> None:
    told = limits()
    assert told["ipc_namespace"] is None or told["ipc_namespace"].startswith("ipc:[")
    assert told["shm_total"] is None or 0 <= told["shm_free"] <= told["shm_total"]


def test_no_descriptor_is_left_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert [pass_descriptor() for _ in range(20)] == ["ok"] * 20
    assert len(list(Path("/proc/self/fd").iterdir())) == before
