"""Which memory pools a script registers with NCCL: noted as it does so, since nothing tells it afterwards."""

from __future__ import annotations

from collections.abc import Callable

BACKENDS = ("ProcessGroupNCCL", "ProcessGroupNCCL2")


def watch_registrations(registrations: dict[tuple, bool]) -> None:
    """Note each pool that the script registers from now on: its id, and whether as symmetric memory.

    A pool that is deregistered is forgotten. Called when torch.distributed has just been imported.
    """
    try:
        import torch._C._distributed_c10d as c10d
    except ImportError:
        return
    for backend in (getattr(c10d, name, None) for name in BACKENDS):
        if hasattr(backend, "register_mem_pool"):
            backend.register_mem_pool = _noting(backend.register_mem_pool, registrations)
            backend.deregister_mem_pool = _forgetting(backend.deregister_mem_pool, registrations)


def _noting(register: Callable, registrations: dict[tuple, bool]) -> Callable:
    def register_mem_pool(backend, pool, *arguments, **options):
        result = register(backend, pool, *arguments, **options)
        registrations[tuple(pool.id)] = bool(options.get("symm", arguments[0] if arguments else False))
        return result

    return register_mem_pool


def _forgetting(deregister: Callable, registrations: dict[tuple, bool]) -> Callable:
    def deregister_mem_pool(backend, pool):
        result = deregister(backend, pool)
        registrations.pop(tuple(pool.id), None)
        return result

    return deregister_mem_pool


def registration_of(pool: tuple, registrations: dict[tuple, bool]) -> str:
    """Return how the pool with this id is registered: "symmetric", "plain" or "none"."""
    if pool not in registrations:
        return "none"
    return "symmetric" if registrations[pool] else "plain"


def describe_pools(registrations: dict[tuple, bool], snapshot: list[dict]) -> dict:
    """Return what a record holds of the script's pools, by `snapshot` (torch.cuda.memory_snapshot()).

    `segments` counts those of the registered pools, `registered` is the best of their registrations.
    """
    kinds = set(registrations.values())
    return {
        "set_up": "script",
        "allocator": "register_mem_pool" if registrations else None,
        "segments": sum(tuple(part.get("segment_pool_id", ())) in registrations for part in snapshot),
        "registered": "symmetric" if True in kinds else "plain" if kinds else "none",
    }
