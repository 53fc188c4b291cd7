"""What NVIDIA's management library tells of GPUs: NVLink, MIG, fabric; asked by ctypes, None where it can't be."""

from __future__ import annotations

import ctypes

# https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html and group__NvLink.html
MAX_LINKS = 36
NOT_SUPPORTED = 3
P2P_READ, P2P_NVLINK = 0, 2
P2P_STATUS = {
    0: "ok",
    1: "the chipset does not support it",
    2: "the GPU does not support it",
    3: "the PCIe topology does not support it",
    4: "switched off in the driver's settings",
    5: "not supported",
}
COMPUTE_MODES = {0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process"}
REMOTE_TYPES = {0: "gpu", 2: "switch"}
FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_t."""

    _fields_ = (
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


class FabricInfoV2(ctypes.Structure):
    """nvmlGpuFabricInfo_v2_t; newer libraries answer this one too."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("health", ctypes.c_uint),
    )


class Nvml:
    """libnvidia-ml, to be used as a context; `works` is False where it is missing or does not start."""

    def __init__(self) -> None:
        self.works = False
        self._library: ctypes.CDLL | None = None

    def __enter__(self) -> Nvml:
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return self
        self.works = self._call("nvmlInit_v2") == 0
        return self

    def __exit__(self, *exception: object) -> None:
        if self.works:
            self._call("nvmlShutdown")

    def driver_version(self) -> str | None:
        """Return the version of the GPU driver, such as "580.65.06"."""
        text = ctypes.create_string_buffer(96)
        failed = self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text)))
        return None if failed else text.value.decode(errors="replace")

    def device(self, bus_id: str | None) -> ctypes.c_void_p | None:
        """Return the handle of the GPU at a PCI address such as "0000:1B:00.0"."""
        handle = ctypes.c_void_p()
        if not self.works or bus_id is None:
            return None
        failed = self._call("nvmlDeviceGetHandleByPciBusId_v2", bus_id.encode(), ctypes.byref(handle))
        return None if failed else handle

    def gpu(self, handle: ctypes.c_void_p | None) -> dict:
        """Return whether MIG is on, the compute mode, the fabric's state, and how many active NVLinks reach what."""
        links = self.links(handle)
        counts = None if links is None else {kind: sum(link[0] == kind for link in links) for kind in ("gpu", "switch")}
        return {
            "mig": self._mig(handle),
            "compute_mode": self._compute_mode(handle),
            "fabric": self._fabric(handle),
            "nvlinks": counts,
        }

    def _mig(self, handle: ctypes.c_void_p | None) -> bool | None:
        now, pending = ctypes.c_uint(), ctypes.c_uint()
        failed = self._ask("nvmlDeviceGetMigMode", handle, ctypes.byref(now), ctypes.byref(pending))
        # A GPU that knows no MIG has it off.
        return False if failed == NOT_SUPPORTED else None if failed else bool(now.value)

    def _compute_mode(self, handle: ctypes.c_void_p | None) -> str | None:
        mode = ctypes.c_uint()
        failed = self._ask("nvmlDeviceGetComputeMode", handle, ctypes.byref(mode))
        return None if failed else COMPUTE_MODES.get(mode.value)

    def _fabric(self, handle: ctypes.c_void_p | None) -> dict | None:
        """Return `state` in words and `status`, the nvmlReturn_t with which the GPU's registration ended."""
        new = FabricInfoV2(version=ctypes.sizeof(FabricInfoV2) | 2 << 24)
        found: FabricInfo | FabricInfoV2 = new
        if self._ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(new)):
            found = FabricInfo()
            if self._ask("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(found)):
                return None
        state = FABRIC_STATES.get(found.state)
        return None if state is None else {"state": state, "status": found.status}

    def links(self, handle: ctypes.c_void_p | None) -> list[tuple[str, tuple[int, int, int]]] | None:
        """Return the active NVLinks: what is at the other end ("gpu", "switch", "other"), and its PCI address."""
        if handle is None or not self._has("nvmlDeviceGetNvLinkState"):
            return None
        found = []
        for number in range(MAX_LINKS):
            link, active, kind, address = ctypes.c_uint(number), ctypes.c_uint(), ctypes.c_uint(), PciInfo()
            if self._ask("nvmlDeviceGetNvLinkState", handle, link, ctypes.byref(active)) or not active.value:
                continue
            failed = self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link, ctypes.byref(kind))
            name = "other" if failed else REMOTE_TYPES.get(kind.value, "other")
            self._ask("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link, ctypes.byref(address))
            found.append((name, (address.domain, address.bus, address.device)))
        return found

    def p2p(self, one: ctypes.c_void_p | None, other: ctypes.c_void_p | None) -> str | None:
        """Return "ok" or why one GPU can't read the other's memory directly."""
        status = self._p2p_status(one, other, P2P_READ)
        return None if status is None else P2P_STATUS.get(status)

    def nvlink(self, one: ctypes.c_void_p | None, other: ctypes.c_void_p | None) -> bool | None:
        """Return whether two GPUs reach one another by NVLink, directly or over NVSwitch."""
        status = self._p2p_status(one, other, P2P_NVLINK)
        if status == 0:
            return True
        links, others = self.links(one), self.links(other)
        if links is None or others is None:
            return None
        if all(any(kind == "switch" for kind, _ in side) for side in (links, others)):
            return True
        address = self._address(other)
        if address is not None and any(kind == "gpu" and place == address for kind, place in links):
            return True
        # Ends of an unknown kind may well lead there, so they are no proof of the contrary.
        return None if any(kind == "other" for kind, _ in links) and status is None else False

    def _address(self, handle: ctypes.c_void_p | None) -> tuple[int, int, int] | None:
        found = PciInfo()
        if self._ask("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(found)):
            return None
        return (found.domain, found.bus, found.device)

    def _p2p_status(self, one: ctypes.c_void_p | None, other: ctypes.c_void_p | None, ability: int) -> int | None:
        status = ctypes.c_uint()
        if other is None or self._ask(
            "nvmlDeviceGetP2PStatus", one, other, ctypes.c_uint(ability), ctypes.byref(status)
        ):
            return None
        return status.value

    def _has(self, name: str) -> bool:
        return self.works and hasattr(self._library, name)

    def _ask(self, name: str, handle: ctypes.c_void_p | None, *arguments: object) -> int:
        return -1 if handle is None else self._call(name, handle, *arguments)

    def _call(self, name: str, *arguments: object) -> int:
        """Return the function's nvmlReturn_t, or -1 where this library has no such function."""
        function = getattr(self._library, name, None)
        return -1 if function is None else function(*arguments)
