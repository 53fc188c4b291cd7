"""What the CUDA driver tells of the visible GPUs, asked by ctypes; no CUDA context is made on any of them."""

from __future__ import annotations

import ctypes

# CUdevice_attribute, https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html
ATTRIBUTES = {
    "major": 75,
    "minor": 76,
    "vmm": 102,  # VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    "fd_handles": 103,  # HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    "vmm_rdma": 110,  # GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
    "multicast": 132,  # MULTICAST_SUPPORTED
}


class CudaDriver:
    """libcuda after cuInit. `status` is cuInit's result (0 is success), None where there is no libcuda at all.

    Results are told in https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html (CUresult).
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self._library: ctypes.CDLL | None = None
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
            self.status = self._library.cuInit(0)
        except (OSError, AttributeError):
            return

    def facts(self) -> dict:
        """Return the driver's state: `status`, the error's name, and the CUDA version that it can do ("13.0")."""
        return {"status": self.status, "error": self._error_name(), "cuda": self._version()}

    def _error_name(self) -> str | None:
        if self._library is None or not self.status:
            return None
        text = ctypes.c_char_p()
        failed = self._call("cuGetErrorName", self.status, ctypes.byref(text))
        return None if failed or text.value is None else text.value.decode(errors="replace")

    def _version(self) -> str | None:
        value = ctypes.c_int()
        if self._call("cuDriverGetVersion", ctypes.byref(value)):
            return None
        return f"{value.value // 1000}.{value.value % 1000 // 10}"

    def count(self) -> int:
        """Return how many GPUs are visible; 0 where the driver does not work."""
        value = ctypes.c_int()
        return 0 if self.status != 0 or self._call("cuDeviceGetCount", ctypes.byref(value)) else value.value

    def gpu(self, index: int) -> dict:
        """Return name, PCI address and abilities of the visible GPU `index`; what can't be told is None."""
        handle = self._handle(index)
        name, address = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
        told = {key: self._attribute(handle, number) for key, number in ATTRIBUTES.items()}
        major, minor = told.pop("major"), told.pop("minor")
        return {
            "index": index,
            "name": _text(name, self._call("cuDeviceGetName", name, len(name), handle)),
            "bus_id": _text(address, self._call("cuDeviceGetPCIBusId", address, len(address), handle)),
            "capability": None if major is None or minor is None else [major, minor],
            **{key: None if value is None else bool(value) for key, value in told.items()},
        }

    def can_access(self, one: int, other: int) -> bool | None:
        """Return whether GPU `one` can map the memory of GPU `other` (as cudaDeviceCanAccessPeer)."""
        value = ctypes.c_int()
        failed = self._call("cuDeviceCanAccessPeer", ctypes.byref(value), self._handle(one), self._handle(other))
        return None if failed else bool(value.value)

    def _handle(self, index: int) -> ctypes.c_int:
        handle = ctypes.c_int()
        if self._call("cuDeviceGet", ctypes.byref(handle), index):
            raise OSError(f"the CUDA driver does not give GPU {index}")
        return handle

    def _attribute(self, handle: ctypes.c_int, number: int) -> int | None:
        value = ctypes.c_int()
        return None if self._call("cuDeviceGetAttribute", ctypes.byref(value), number, handle) else value.value

    def _call(self, name: str, *arguments: object) -> int:
        """Return the function's CUresult, or -1 where this driver has no such function."""
        function = getattr(self._library, name, None) if self._library is not None else None
        return -1 if function is None else function(*arguments)


def _text(buffer: ctypes.Array, failed: int) -> str | None:
    return None if failed else buffer.value.decode(errors="replace")
