"""Facts that torch does not tell, asked of NVIDIA's libraries by ctypes; None where they can't be asked."""

from __future__ import annotations

import ctypes
import os
import uuid
from pathlib import Path

# CUdevice_attribute, https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
MULTICAST_SUPPORTED = 132
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76


def loaded_nccl_path() -> str | None:
    """Return the path of the libnccl this process has loaded, None where NCCL is linked statically.

    Where two are loaded, the preloaded one wins, as it does for the dynamic linker.
    """
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return None
    fields = (line.split(maxsplit=5) for line in maps.splitlines())
    paths = list(dict.fromkeys(row[5] for row in fields if len(row) == 6 and "libnccl.so" in Path(row[5]).name))
    preloaded = {os.path.realpath(entry) for entry in os.environ.get("LD_PRELOAD", "").replace(":", " ").split()}
    return min(paths, key=lambda path: path not in preloaded, default=None)


def nccl_version(path: str) -> str | None:
    """Return the version that the loaded library at `path` gives of itself, such as "2.30.7"."""
    code = ctypes.c_int()
    try:
        if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return release(code.value)


def release(code: int) -> str:
    """Return NCCL's version code in words: 23007 is "2.30.7"; the base changed with 2.9, 2804 is "2.8.4".

    From NCCL_VERSION in https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/nccl.h.in
    """
    base = 10000 if code >= 10000 else 1000
    return f"{code // base}.{code % base // 100}.{code % 100}"


def multicast_supported(device: int) -> bool | None:
    """Return whether the visible GPU `device` can do NVLink multicast (needs an NVSwitch)."""
    value, handle = ctypes.c_int(), ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(handle), device)
        failed = failed or cuda.cuDeviceGetAttribute(ctypes.byref(value), MULTICAST_SUPPORTED, handle)
    except (OSError, AttributeError):
        return None
    return None if failed else bool(value.value)


def driver_cuda() -> int | None:
    """Return the major version of the newest CUDA that the GPU driver knows, such as 13."""
    code = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(code))
    except (OSError, AttributeError):
        return None
    return None if failed else code.value // 1000


def visible_devices() -> list[dict]:
    """Return index, name, compute capability and UUID of every visible GPU, asked of the driver without a context.

    The list is empty where the driver can't be asked. CUDA_VISIBLE_DEVICES counts here as it does for torch.
    """
    count = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return []
        return [device_of_driver(cuda, index) for index in range(count.value)]
    except (OSError, AttributeError):
        return []


def device_of_driver(cuda: ctypes.CDLL, index: int) -> dict:
    """Return what the driver says of the visible GPU `index`; raises OSError where it says nothing."""
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name, identity = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    if (
        cuda.cuDeviceGet(ctypes.byref(handle), index)
        or cuda.cuDeviceGetName(name, len(name), handle)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), CAPABILITY_MAJOR, handle)
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), CAPABILITY_MINOR, handle)
        or cuda.cuDeviceGetUuid_v2(identity, handle)
    ):
        raise OSError(f"the driver says nothing of GPU {index}")
    return {
        "index": index,
        "name": name.value.decode(errors="replace"),
        "capability": [major.value, minor.value],
        "uuid": str(uuid.UUID(bytes=identity.raw)),
    }


def driver_version() -> str | None:
    """Return the version of the GPU driver, such as "580.65.06"."""
    text = ctypes.create_string_buffer(96)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return None
        failed = nvml.nvmlSystemGetDriverVersion(text, len(text))
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return None
    return None if failed else text.value.decode(errors="replace")
