"""What Slurm has given this job: how many ranks there are, on which hosts, and where they find one another."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping

import msgspec

from .errors import UserError
from .report.text import one_line

COMMAND_SECONDS = 60.0
"""A controller that restarts answers after some seconds; Slurm's own commands try so long."""
_PROGRAMS = ("srun", "scancel", "squeue", "scontrol")
_ADDRESS = re.compile(r"\bNodeAddr=(\S+)")


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an allocation that the ranks take: `per_host` of them on each of `hosts`, rank 0 on the first.

    `address` is where Slurm itself reaches that first host. `cpus` are a rank's, "" where the allocation doesn't say.
    """

    job: str
    hosts: tuple[str, ...]
    ranks: int
    per_host: int
    address: str
    cpus: str = ""


def find_allocation(environment: Mapping[str, str], ranks: int | None) -> Allocation:
    """The allocation that this process is in, for `ranks` ranks; for as many as it has tasks where that is None.

    Raises UserError outside of one, without Slurm's commands, and where the ranks don't fit.
    https://slurm.schedmd.com/sbatch.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
    """
    job = environment.get("SLURM_JOB_ID", "")
    if not job:
        raise UserError(
            "--launcher slurm: this is not inside an allocation (no SLURM_JOB_ID); call it within "
            "salloc --nodes=2 --ntasks-per-node=8 --gpus-per-node=8, or in a script that sbatch runs"
        )
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=environment.get("PATH")) is None]:
        raise UserError(f"--launcher slurm: {missing[0]} is not on the PATH; add the folder of Slurm's commands")
    nodes = _number(environment, "SLURM_JOB_NUM_NODES") or _number(environment, "SLURM_NNODES") or 1
    tasks = _number(environment, "SLURM_NTASKS")
    if tasks is None and (a_node := _number(environment, "SLURM_NTASKS_PER_NODE")):
        tasks = a_node * nodes
    count, per_host = _spread(ranks, tasks, nodes)
    names = _scontrol(environment, "show", "hostnames", environment.get("SLURM_JOB_NODELIST", "")).split()
    hosts = tuple(names[: count // per_host])
    if len(hosts) * per_host != count:
        raise UserError(f"--launcher slurm: job {job} has {nodes} nodes and names {len(names)}; call it on one of them")
    address = _ADDRESS.search(_scontrol(environment, "--oneliner", "show", "node", hosts[0]))
    fits = tasks is not None and count <= tasks
    return Allocation(
        job=job, hosts=hosts, ranks=count, per_host=per_host, address=address[1] if address else hosts[0],
        cpus=environment.get("SLURM_CPUS_PER_TASK", "") if fits else "",
    )  # fmt: skip


def _spread(ranks: int | None, tasks: int | None, nodes: int) -> tuple[int, int]:
    """How many ranks, and how many of them on a node: as the tasks, or evenly over all nodes where they are more."""
    wanted = ranks or tasks
    if wanted is None or (ranks is None and wanted < 2):
        told = "doesn't say how many tasks it has" if wanted is None else "has one task, and a collective needs two"
        raise UserError(f"--launcher slurm: the allocation {told}; allocate with --ntasks-per-node=N, or give --ranks")
    per_node = (tasks if tasks is not None and wanted <= tasks else wanted) / nodes
    if not per_node.is_integer():
        raise UserError(
            f"--launcher slurm: {tasks if tasks and wanted <= tasks else wanted} tasks are not as many on each of "
            f"{nodes} nodes; allocate with --ntasks-per-node=N, or give --ranks N"
        )
    per_host = min(wanted, int(per_node))
    if wanted % per_host:
        raise UserError(
            f"--launcher slurm: {wanted} ranks don't fill nodes of {per_host}; give a multiple with --ranks"
        )
    return wanted, per_host


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() and int(text) > 0 else None


def _scontrol(environment: Mapping[str, str], *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["scontrol", *arguments], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=COMMAND_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"scontrol {arguments[0]}: {one_line(str(error), 300)}; is Slurm up?") from None
    if done.returncode != 0:
        said = one_line(done.stderr.decode(errors="replace"), 300)
        raise UserError(f"scontrol {' '.join(arguments)}: {said}; is this the allocation's own environment?")
    return done.stdout.decode(errors="replace")
