"""A rank that Slurm's srun started: what torchrun would have told it, from Slurm's own variables."""

from __future__ import annotations

import errno
import os
import socket

NAMES = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}


def take_place() -> None:
    """Set the variables of a rank for this process; MASTER_ADDR, MASTER_PORT and LOCAL_WORLD_SIZE are there by now.

    On rank 0, where the others are to meet, raises SystemExit with EADDRINUSE where another program has the port.
    https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
    """
    for name, own in NAMES.items():
        os.environ[name] = os.environ[own]
    if os.environ["RANK"] == "0" and not is_free(int(os.environ["MASTER_PORT"])):
        raise SystemExit(errno.EADDRINUSE)


def is_free(port: int) -> bool:
    """Return whether this process could listen on the port."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as listener:
        # As torch's store does it: a connection that was closed moments ago is no obstacle.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind(("", port))
            listener.listen()
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True
