"""Where the buffers of a script's collectives lie: watched for one step before those that are traced."""

from __future__ import annotations

import sys

from .script_pools import registration_of


class StepWatch:
    """Watches one step: begun after one step of the optimizer, ended after the next, on the same thread."""

    def __init__(self) -> None:
        self._watch = None

    def start(self) -> None:
        """Begin to watch. Not where the script has compiled anything: it would no longer be itself."""
        if has_compiled() or "torch.distributed" not in sys.modules:
            return
        from .buffers import BufferWatch

        self._watch = BufferWatch()
        self._watch.__enter__()

    def stop(self, registrations: dict[tuple, bool], device) -> list[dict]:
        """End the watch; returns the record's entries. `registrations` are the pools the script has registered."""
        if self._watch is None:
            return []
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        uses = self._watch.uses
        if _get_current_dispatch_mode() is self._watch:  # else the script has entered one of its own meanwhile
            self._watch.__exit__(None, None, None)
        self._watch = None
        places = _Places(registrations, device)
        return [dict(use.note, **places.find(use.address)) for use in uses]


class _Places:
    """The segments of the caching allocator, with how NCCL knows each."""

    def __init__(self, registrations: dict[tuple, bool], device) -> None:
        self._registrations, self._device = registrations, device
        self._segments = _snapshot() if device.type == "cuda" else []
        self._backend: set[int] | None = None

    def find(self, address: int) -> dict:
        for part in self._segments:
            if part["address"] <= address < part["address"] + part["total_size"]:
                pool = tuple(part["segment_pool_id"])
                registration = registration_of(pool, self._registrations)
                if pool != (0, 0) and registration == "none" and part["address"] in self._backend_segments():
                    registration = "plain"
                return {"in_pool": pool != (0, 0), "registration": registration}
        return {"in_pool": False, "registration": "none"}

    def _backend_segments(self) -> set[int]:
        """The first addresses of what the backend allocates by itself, as DDP has it do. Asked for only where a
        collective's buffer lies in a pool that the script has not registered: the question costs an allocation."""
        if self._backend is None:
            from .buffers import backend_segments

            self._backend = {part["address"] for part in backend_segments(self._device)}
        return self._backend


def _snapshot() -> list[dict]:
    import torch

    return torch.cuda.memory_snapshot()


def has_compiled() -> bool:
    """Return whether torch.compile has been at work in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return bool(utils and utils.counters["frames"]["total"])
