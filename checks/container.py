"""What a container or the machine's settings allow a process: shared memory, locked memory, memory, sockets."""

from __future__ import annotations

import array
import os
import resource
import socket
import uuid
from pathlib import Path

MEANS_UNLIMITED = 1 << 60
"""cgroup v1 writes about 2**63 for "no limit"."""


def limits() -> dict:
    """Return what is allowed here, in bytes; None is "no limit" for `memory` and `memlock`, else "not known"."""
    shm = _filesystem(Path("/dev/shm"))
    return {
        "container": _in_container(),
        "shm_total": shm and shm[0],
        "shm_free": shm and shm[1],
        "memlock": _finite(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
        "memory": memory_limit(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")),
        "ipc_namespace": _link(Path("/proc/self/ns/ipc")),
        "fd_passing": pass_descriptor(),
    }


def memory_limit(membership: Path, root: Path) -> int | None:
    """Return the lowest memory limit in bytes of this process's control group and those above it; None for no limit.

    `membership` is as /proc/self/cgroup, `root` as /sys/fs/cgroup: https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    try:
        rows = [row.split(":", 2) for row in membership.read_text().splitlines()]
    except OSError:
        rows = []
    found = []
    for _, controllers, group in (row for row in rows if len(row) == 3):
        if controllers == "":
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the group's path may be that of the host, and its own limit stands at the top.
        folder = top / group.strip("/")
        while folder != top:
            found.append(_number(folder / name))
            folder = folder.parent
        found.append(_number(top / name))
    return min((limit for limit in found if limit is not None), default=None)


def pass_descriptor() -> str:
    """Pass an open file between two abstract UNIX sockets as NCCL passes memory handles: "ok", or what went wrong.

    https://github.com/NVIDIA/nccl/blob/v2.30.7-1/src/misc/ipcsocket.cc
    """
    address = f"\0symmem-check-{uuid.uuid4().hex}"
    try:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
            Path(os.devnull).open("rb") as file,
        ):
            receiver.settimeout(5)
            receiver.bind(address)
            handles = array.array("i", [file.fileno()])
            sender.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)], 0, address)
            _, ancillary, _, _ = receiver.recvmsg(1, socket.CMSG_SPACE(handles.itemsize))
            if not ancillary:
                return "the descriptor did not arrive"
            got = array.array("i", ancillary[0][2][: handles.itemsize])
            os.close(got[0])
    except OSError as error:
        return str(error)
    return "ok"


def _in_container() -> bool:
    return Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() or "container" in os.environ


def _filesystem(path: Path) -> tuple[int, int] | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail


def _finite(limit: int) -> int | None:
    return None if limit in (resource.RLIM_INFINITY, -1) or limit >= MEANS_UNLIMITED else limit


def _number(path: Path) -> int | None:
    try:
        return _finite(int(path.read_text()))
    except (OSError, ValueError):  # "max", or no such group here
        return None


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None
