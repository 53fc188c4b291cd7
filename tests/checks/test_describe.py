"""What a Python offers, told without importing its torch: from a torch of files only, and a driver made for this."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CUDA_TORCH = "__version__ = '2.11.0+cu130'\ncuda = '13.0'\nhip = None\n"
# What the real driver answers with: the codes of CUDA's driver API, on a machine with two GPUs.
DRIVER = """
#include <string.h>
int cuDriverGetVersion(int *v) { *v = VERSION; return 0; }
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int i) { *d = 40 + i; return 0; }
int cuDeviceGetName(char *name, int size, int d) { strncpy(name, d == 40 ? "NVIDIA H200" : "Other", size); return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? d - 40 : -1; return 0; }
int cuDeviceGetUuid_v2(char *u, int d) { memset(u, d, 16); return 0; }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for sys.path with a torch whose import says so, and fails."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('torch was imported')")
    (tmp_path / "torch" / "version.py").write_text(CUDA_TORCH)
    return tmp_path


def driver(folder: Path, *, version: int = 13000, init: int = 0) -> None:
    source = folder / "driver.c"
    source.write_text(DRIVER)
    command = ["cc", "-shared", "-fPIC", f"-DVERSION={version}", f"-DINIT={init}", str(source)]
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1")], check=True)


def describe(project: Path, folder: Path, *more: str) -> dict:
    environment = {**os.environ, "PYTHONPATH": str(folder), "LD_LIBRARY_PATH": str(folder)}
    command = [sys.executable, str(project / "checks" / "__main__.py"), "--describe", *more]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.needs_program("cc")
def test_version_and_gpus_are_told_without_the_import(project: Path, folder: Path) -> None:
    driver(folder)
    assert describe(project, folder) == {
        "torch": "2.11.0+cu130",
        "cuda": "13.0",
        "devices": [
            {
                "index": 0,
                "name": "NVIDIA H200",
                "capability": [9, 0],
                "uuid": "28282828-2828-2828-2828-282828282828",
            },
            {"index": 1, "name": "Other", "capability": [9, 1], "uuid": "29292929-2929-2929-2929-292929292929"},
        ],
        "nccl_built": None,
        "error": None,
    }
    assert describe(project, folder, "--thorough")["error"].endswith("RuntimeError: torch was imported")


@pytest.mark.needs_program("cc")
@pytest.mark.parametrize(("version", "init"), [(12080, 0), (13000, 999)])
def test_a_driver_that_torch_cannot_use_is_left_to_torch_to_tell(
    project: Path, folder: Path, version: int, init: int
) -> None:
    driver(folder, version=version, init=init)
    assert describe(project, folder)["error"].endswith("RuntimeError: torch was imported")


def test_a_build_without_cuda_needs_no_import(project: Path, folder: Path) -> None:
    (folder / "torch" / "version.py").write_text("__version__ = '2.13.0+cpu'\ncuda = None\n")
    assert describe(project, folder)["error"] == "torch 2.13.0+cpu is built without CUDA"


@pytest.mark.parametrize("content", ["", "__version__ = '2'", "raise SystemError", "__version__ = '2'; cuda = '13.0'"])
def test_an_unusual_build_is_left_to_torch_to_tell(project: Path, folder: Path, content: str) -> None:
    """Among them a CUDA build where there is no driver."""
    (folder / "torch" / "version.py").write_text(content)
    (folder / "libcuda.so.1").write_text("no library")
    assert describe(project, folder)["error"] == "torch can't be imported: RuntimeError: torch was imported"
