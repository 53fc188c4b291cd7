"""What is read of an allocation, in allocations of a real Slurm with two nodes."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from tests.slurm_cluster import Cluster

pytestmark = pytest.mark.needs_program("salloc")

ALLOCATIONS = [
    (["--nodes=2", "--ntasks-per-node=3"], None, (6, 3, 2)),
    (["--nodes=2", "--ntasks-per-node=3"], 3, (3, 3, 1)),
    (["--nodes=2", "--ntasks-per-node=3"], 2, (2, 2, 1)),
    (["--nodes=2"], 4, (4, 2, 2)),
    (["--ntasks=5", "--nodes=1"], None, (5, 5, 1)),
    (["--nodes=2"], None, "the allocation doesn't say how many tasks it has; allocate with --ntasks-per-node=N"),
    (["--ntasks=1"], None, "the allocation has one task, and a collective needs two; allocate with"),
    (["--nodes=2", "--ntasks-per-node=3"], 4, "4 ranks don't fill nodes of 3; give a multiple with --ranks"),
    (["--nodes=2", "--ntasks=3"], None, "3 tasks are not as many on each of 2 nodes; allocate with"),
]


@pytest.mark.parametrize(("options", "ranks", "expected"), ALLOCATIONS)
def test_ranks_are_spread_as_the_allocations_tasks(
    cluster: Cluster, project: Path, options: list[str], ranks: int | None, expected: tuple[int, int, int] | str
) -> None:
    script = f"""
        import os, sys
        sys.path.insert(0, {str(project)!r})
        from runner.allocation import find_allocation
        found = find_allocation(os.environ, {ranks})
        print(found.ranks, found.per_host, len(found.hosts), found.hosts[0], found.address)
        """
    done = cluster.try_run(["salloc", "--quiet", *options, sys.executable, "-c", textwrap.dedent(script)])
    if isinstance(expected, str):
        assert done.returncode == 1 and f"UserError: --launcher slurm: {expected}" in done.stderr
    else:
        *numbers, first, address = done.stdout.split()
        assert tuple(map(int, numbers)) == expected
        assert first == address  # the nodes' names are their addresses
